"""The laws on a trained model, on the available devices and attention kernels: :func:`examine`.

``transformer-jax doctor RUN`` prints its result. For models of other libraries, call the laws
directly: :mod:`transformer_jax.laws`.
"""

from transformer_jax.doctor.examination import Examination, Result, examine

__all__ = ["Examination", "Result", "examine"]
