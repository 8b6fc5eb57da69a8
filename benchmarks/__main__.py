"""What ``python -m benchmarks`` runs."""

import sys

if sys.argv[1:2] == ["kernels"]:
    from benchmarks.kernels import main as measure_kernels

    measure_kernels(sys.argv[2:])
else:
    from benchmarks.suite import main

    main()
