"""Laws that every model must satisfy, for any callable: JAX, NumPy, or torch through NumPy.

Each returns a :class:`Finding`: the law in words, the largest error, and the place of the largest
error. The tests of this package call them::

    from transformer_jax import laws

    laws.causality(lambda tokens: model(tokens), tokens).require()

``ALL`` holds each law with its sentence and its default tolerance.
"""

from transformer_jax.laws.attention import (
    attention_formula,
    attention_kernel,
    mask_polarity,
    masked_rows,
    weights_sum_to_one,
    with_gradients,
)
from transformer_jax.laws.decoding import beam_search, cached, prefilled, prompt_padding, reordered
from transformer_jax.laws.dependence import causality, causality_by_gradient, visibility
from transformer_jax.laws.finding import ALL, Finding, Law, LawBroken
from transformer_jax.laws.loss_laws import loss_length, loss_padding, loss_split
from transformer_jax.laws.rows import (
    batch_mates,
    batch_of_one,
    padding,
    padding_length,
    source_length,
    source_padding,
)
from transformer_jax.laws.runs import repeatability, resumed, sharded
from transformer_jax.laws.sequences import packed_mates, packing, permutation

__all__ = [
    "ALL",
    "Finding",
    "Law",
    "LawBroken",
    "attention_formula",
    "attention_kernel",
    "batch_mates",
    "batch_of_one",
    "beam_search",
    "cached",
    "causality",
    "causality_by_gradient",
    "loss_length",
    "loss_padding",
    "loss_split",
    "mask_polarity",
    "masked_rows",
    "packed_mates",
    "packing",
    "padding",
    "padding_length",
    "permutation",
    "prefilled",
    "prompt_padding",
    "reordered",
    "repeatability",
    "resumed",
    "sharded",
    "source_length",
    "source_padding",
    "visibility",
    "weights_sum_to_one",
    "with_gradients",
]
