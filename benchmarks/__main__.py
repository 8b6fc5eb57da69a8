"""What ``python -m benchmarks`` runs."""

from benchmarks.suite import main

main()
