"""What ``python -m benchmarks`` runs."""

import os
import sys

if sys.argv[1:2] == ["kernels"]:
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        # One core, as JAX starts as many threads as there are cores for it.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    from benchmarks.kernels import main as measure_kernels

    measure_kernels(sys.argv[2:])
elif sys.argv[1:2] == ["programs"]:
    from benchmarks.programs import main as compile_programs

    compile_programs(sys.argv[2:])
elif sys.argv[1:2] == ["word-vectors"]:
    from benchmarks.word_vectors import main as train_word_vectors

    train_word_vectors(sys.argv[2:])
else:
    from benchmarks.suite import main

    main()
