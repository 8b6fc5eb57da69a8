"""From vectors to scores over the vocabulary."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32

from transformer_jax.config import TransformerConfig
from transformer_jax.modules.linear import Embed

__all__ = ["Head", "OutputTable"]


class OutputTable(NamedTuple):
    """How vectors become logits: ``softcap(scale · x tableᵀ + bias)``."""

    table: Array  # [V D]
    bias: Array | None  # [V]
    scale: float
    softcap: float | None

    def logits(self, hidden: Float[Array, "*rows D"]) -> Float32[Array, "*rows V"]:
        """Scores over the vocabulary, in float32."""
        if self.scale != 1.0:
            hidden = hidden * self.scale
        contract = (((hidden.ndim - 1,), (1,)), ((), ()))
        table = self.table.astype(hidden.dtype)
        out = jax.lax.dot_general(hidden, table, contract, preferred_element_type=jnp.float32)
        if self.bias is not None:
            out = out + self.bias.reshape((1,) * (out.ndim - 1) + self.bias.shape)
        return out if self.softcap is None else self.softcap * jnp.tanh(out / self.softcap)


class Head(nnx.Module):
    """What the output has of its own: a table unless tied, and perhaps a bias."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.config = config.head
        V, D = config.vocab_size, config.embedding_size
        init = jax.nn.initializers.normal(D**-0.5)
        tied = config.head.tie_word_embeddings
        self.table = (
            None
            if tied
            else nnx.Param(init(rngs.params(), (V, D), jnp.float32), axes=("vocab", "embed"))
        )
        self.bias = nnx.Param(jnp.zeros(V), axes=("vocab",)) if config.head.bias else None

    def output_table(self, embedding: Embed) -> OutputTable:
        """The map to logits; a tied head reads the table of ``embedding``."""
        table = embedding.table if self.table is None else self.table
        bias = None if self.bias is None else self.bias[...]
        return OutputTable(table[...], bias, self.config.scale, self.config.final_logit_softcapping)
