"""Runs ``python -m experiments.word_vectors``: word2vec, see its ``--help``."""

from transformer_jax.cli.train_word_vectors import main, run_as_program

__all__ = ["main"]

if __name__ == "__main__":
    run_as_program()
