"""An encoder that returns one vector for each text: pooling, a linear layer, normalization."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float32, Key

from transformer_jax.functional.contrastive import unit_vectors
from transformer_jax.functional.masks import segment_mask
from transformer_jax.functional.pooling import pool_hidden_states
from transformer_jax.functional.pools import Pool
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.basic import Linear
from transformer_jax.models.transformer.models import Encoder

__all__ = ["DenseForm", "SentenceEncoder", "SentenceForm"]


@dataclasses.dataclass(frozen=True)
class DenseForm:
    """The linear layer after pooling, ``act(x W + b)``."""

    width: int  # of its output
    bias: bool = True
    tanh: bool = False  # whether act is tanh; otherwise it is the identity


@dataclasses.dataclass(frozen=True)
class SentenceForm:
    """The steps from the states of the tokens of a text to its vector."""

    pools: tuple[Pool, ...] = ("mean",)  # concatenated
    dense: DenseForm | None = None
    normalize: bool = False


class SentenceEncoder(Encoder):
    """An encoder of texts: Reimers and Gurevych 2019, https://arxiv.org/abs/1908.10084.

    Args:
        config: Configuration of the encoder.
        form: From states to vectors.
        rngs: Random streams of the parameters.
    """

    def __init__(
        self, config: TransformerConfig, form: SentenceForm = SentenceForm(), *, rngs: nnx.Rngs
    ):
        super().__init__(config, rngs=rngs)
        self.form, dense = form, form.dense
        inputs = len(form.pools) * config.d_model
        mapped = lambda to: Linear(inputs, to.width, ("embed", None), bias=to.bias, rngs=rngs)
        self.dense: Linear | None = None if dense is None else mapped(dense)

    def vectors(
        self, batch: dict[str, Any], *, key: Key[Array, ""] | None = None
    ) -> Float32[Array, "B S F"]:
        """Returns the vectors of the texts of each row; without a text, zeros.

        Texts of a row do not attend to each other.

        Args:
            batch: ``tokens``, ``segments`` and ``positions`` ``[B T]``, ``starts`` and ``lengths``
                ``[B S]``, see :func:`.make_packed_inputs`; and optionally ``skip`` ``[B S]``, the
                number of tokens at the start of each text that are not pooled.
            key: Random key of dropout; None is no dropout.
        """
        segments = batch["segments"]
        hidden = self.encoder(
            self.embedding(batch["tokens"]) * self.config.embedding_scale,
            segment_mask(segments, segments),
            positions=batch["positions"],
            key=key,
        )
        skip, states = batch.get("skip", 0), hidden.astype(jnp.float32)
        pooled = pool_hidden_states(states, batch, self.form.pools, skip)
        vectors = jnp.where(batch["lengths"][..., None] > 0, pooled, 0.0)
        if self.dense is not None and self.form.dense is not None:
            mapped = self.dense(vectors).astype(jnp.float32)
            vectors = jnp.tanh(mapped) if self.form.dense.tanh else mapped
        return unit_vectors(vectors) if self.form.normalize else vectors
