"""Flax NNX modules of which models consist: they hold parameters and call pure functions."""
