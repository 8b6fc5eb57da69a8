"""What makes references needs torch and transformers, and is no test."""

collect_ignore_glob = ["remake*.py", "exact.py", "sweep/reference.py", "sweep/checking.py"]
