"""The laws on a trained model, on the devices and attention kernels at hand: :func:`examine`.

``transformer-jax doctor RUN`` prints what it returns. Models of other libraries are checked by the
laws themselves, :mod:`transformer_jax.laws`.
"""

from transformer_jax.doctor.examination import Examination, Result, examine

__all__ = ["Examination", "Result", "examine"]
