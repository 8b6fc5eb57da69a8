"""Runs ``python -m experiments.encoder_only``: see :mod:`transformer_jax.cli.encoder_only`."""

from transformer_jax.cli.encoder_only import FAMILY, main
from transformer_jax.cli.training import run_as_program

__all__ = ["main"]

if __name__ == "__main__":
    run_as_program(FAMILY)
