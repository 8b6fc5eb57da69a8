"""Interleaved benchmarks: a controller, workers in any Python, and their cases."""
