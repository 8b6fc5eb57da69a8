"""Laws that every model keeps, as functions of any callable: JAX, NumPy, or torch through NumPy.

Each returns a :class:`Finding`: the law in words, the largest error, and the place that breaks it.
The tests of this package call them::

    from transformer_jax import laws

    laws.causality(lambda tokens: model(tokens), tokens).require()

``ALL`` holds each law with its sentence and its default tolerance.
"""

from transformer_jax.laws.dependence import causality, causality_by_gradient, visibility
from transformer_jax.laws.finding import ALL, Finding, Law, LawBroken
from transformer_jax.laws.rows import batch_mates, batch_of_one, padding, padding_length

__all__ = [
    "ALL",
    "Finding",
    "Law",
    "LawBroken",
    "batch_mates",
    "batch_of_one",
    "causality",
    "causality_by_gradient",
    "padding",
    "padding_length",
    "visibility",
]
