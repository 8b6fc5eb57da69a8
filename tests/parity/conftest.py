"""Programs that make references need torch and transformers, and are no tests."""

collect_ignore_glob = ["remake*.py", "exact.py", "sweep/reference.py", "sweep/checking.py"]
