"""Runs ``python -m experiments.seq2seq``: see :mod:`transformer_jax.cli.seq2seq`."""

from transformer_jax.cli.seq2seq import FAMILY, main
from transformer_jax.cli.training import run_as_program

__all__ = ["main"]

if __name__ == "__main__":
    run_as_program(FAMILY)
