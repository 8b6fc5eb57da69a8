"""The program ``python -m benchmarks``."""

import os
import sys

from benchmarks.program import run_program

# Sections of the benchmark of a GPU, by the commands that had them with --device gpu.
_ON_GPU = {
    "train": ["base"],
    "decode": ["translate"],
    "language-train": ["step", "configurations"],
    "language-decode": ["decode"],
}


def _main() -> None:
    name, arguments = sys.argv[1:2], sys.argv[2:]
    if " --device gpu" in " ".join(["", *arguments]) and name[0] in _ON_GPU:
        at = arguments.index("--device")
        arguments[at : at + 2] = ["--only", *_ON_GPU[name[0]]]
        name = ["gpu"]
    if name == ["kernels"]:
        if os.environ.get("JAX_PLATFORMS") == "cpu":
            # One core, since JAX starts one thread per available core.
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
        from benchmarks.kernels import main as measure_kernels

        measure_kernels(arguments)
    elif name == ["gpu"]:
        from benchmarks.gpu import main as measure_gpu

        measure_gpu(arguments)
    elif name == ["programs"]:
        from benchmarks.programs import main as compile_programs

        compile_programs(arguments)
    elif name == ["word-vectors"]:
        from benchmarks.word_vectors import main as train_word_vectors

        train_word_vectors(arguments)
    else:
        from benchmarks.suite import main

        main()


if __name__ == "__main__":
    run_program(_main)
