"""Runs ``python -m experiments.decoder_only``: see :mod:`transformer_jax.cli.decoder_only`."""

from transformer_jax.cli.decoder_only import FAMILY, main
from transformer_jax.cli.training import run_as_program

__all__ = ["main"]

if __name__ == "__main__":
    run_as_program(FAMILY)
