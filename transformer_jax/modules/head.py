"""From vectors to scores over the vocabulary."""

import jax
import jax.numpy as jnp
from flax import nnx

from transformer_jax.config import TransformerConfig
from transformer_jax.functional.losses import OutputTable
from transformer_jax.modules.linear import Embed
from transformer_jax.modules.trained_rows import TrainedRows, output_table

__all__ = ["Head"]


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
        self.trained: TrainedRows | None = None  # rows, where the table is a constant
        self.bias = nnx.Param(jnp.zeros(V), axes=("vocab",)) if config.head.bias else None

    def output_table(self, embedding: Embed) -> OutputTable:
        """The map to logits; a tied head reads the table of ``embedding``."""
        source = embedding if self.table is None else self
        bias = None if self.bias is None else self.bias[...]
        return output_table(source, bias, self.config.scale, self.config.final_logit_softcapping)
