"""Runs ``python -m experiments.laboratory``: see :mod:`transformer_jax.cli.laboratory`."""

from benchmarks.harness import environment
from transformer_jax.cli.laboratory import main, run_as_program

__all__ = ["main"]

if __name__ == "__main__":
    run_as_program(environment)
