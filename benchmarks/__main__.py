"""The program ``python -m benchmarks``."""

import importlib
import os
import sys

from benchmarks.program import run_program

# Benchmarks with flags of their own, by their modules; the others are those of the suite.
OWN = {
    "finished-rows": "benchmarks.finished_rows",
    "gpu": "benchmarks.gpu",
    "kernels": "benchmarks.kernels",
    "page": "benchmarks.page",
    "programs": "benchmarks.programs",
    "starts": "benchmarks.starts",
    "word-vectors": "benchmarks.word_vectors",
}
# Sections of the benchmark of a GPU, by the commands that had them with --device gpu.
_ON_GPU = {
    "train": ["base"],
    "decode": ["translate"],
    "language-train": ["step", "configurations"],
    "language-decode": ["decode"],
}


def _main() -> None:
    name, arguments = "".join(sys.argv[1:2]), sys.argv[2:]
    if name in _ON_GPU and " --device gpu" in " ".join(["", *arguments]):
        at = arguments.index("--device")
        arguments[at : at + 2] = ["--only", *_ON_GPU[name]]
        name = "gpu"
    if name == "kernels" and os.environ.get("JAX_PLATFORMS") == "cpu":
        # One core, since JAX starts one thread per available core.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    if name in OWN:
        importlib.import_module(OWN[name]).main(arguments)
    else:
        from benchmarks.suite import main

        main()


if __name__ == "__main__":
    run_program(_main)
