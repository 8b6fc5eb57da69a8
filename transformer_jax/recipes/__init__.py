"""Kinds of training, one file each; see :mod:`transformer_jax.recipes.recipe`."""
