"""Command lines of pages that no test runs as they stand, each with the reason."""

OUTSIDE = {
    "git clone": "takes the address of the repository",
    "python3 -m venv": "makes an environment, as every run of `make test` does",
    "pip install": "installs packages from a registry",
    "hf download": "downloads a checkpoint",
    "make demo": "trains for minutes; continuous integration runs a shorter one",
    "make test": "runs the tests",
    "make test-all": "runs the tests",
    "make check": "checks style and types of all files: part of continuous integration",
    "make gates": "compiles programs for accelerators in an environment of its own",
    "make docs": "builds the site in an environment of its own",
    "make bench": "measures for an hour, beside packages of others",
    "python course/transformer.py": "trains for minutes; tests/course compares its functions",
    "python course/chapters.py": "runs the chapters, as tests/course does",
    "python -m benchmarks": "measures for minutes; "
    "tests/benchmarks runs the programs on tiny models",
}


def is_outside(text: str) -> bool:
    """Returns whether a line is one of :data:`OUTSIDE`."""
    return any(text == start or text.startswith(f"{start} ") or
               text.startswith(f"{start}.") for start in OUTSIDE)  # fmt: skip
