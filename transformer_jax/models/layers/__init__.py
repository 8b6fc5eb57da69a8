"""Flax NNX modules of which models are built: they hold parameters and call pure functions."""
