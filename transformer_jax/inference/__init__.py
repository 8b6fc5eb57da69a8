"""Trained models as functions of text or images: :func:`transformer_jax.load`."""
