"""Interleaved benchmarks: a controller, workers in any Python, and the cases they run."""
