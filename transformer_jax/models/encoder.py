"""The encoder-only Transformer, which reads a text in both directions."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from transformer_jax.core.arguments import check_values
from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.layers import ACTIVATIONS
from transformer_jax.functional.masks import padding_mask
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.attention import stack_weights
from transformer_jax.models.layers.basic import Linear
from transformer_jax.models.layers.embedding import Embed, check_tokens
from transformer_jax.models.layers.parameters import at_depth
from transformer_jax.models.layers.stack import OnHidden, Stack
from transformer_jax.models.layers.summary import Summarized

__all__ = ["Encoder"]


class Encoder(Summarized):
    """Computes a contextual vector for each token, from all tokens around it.

    BERT without its heads: Devlin et al. 2019. Texts begin with [CLS], and every part ends with
    [SEP]; tokens beyond the length of a row are padding, which no token sees. Models with heads
    are subclasses, so that shared parameters have the same names in all of them.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        check_values("Encoder: ", {"config": TransformerConfig}, {"config": config})
        if config.encoder_layers < 1 or config.decoder_layers:
            raise ConfigError(
                f"encoder_layers is {config.encoder_layers} and decoder_layers "
                f"{config.decoder_layers}: an encoder-only model has at least 1 and 0"
            )
        if config.image.image_size:
            raise ConfigError(
                f"image.image_size is {config.image.image_size}: an encoder of words has 0"
            )
        self.config = config
        D = config.d_model
        E = config.embedding_size
        spread = E**-0.5 if config.embedding.scale is None else 0.02
        dtype = config.compute.dtype
        self.embedding = Embed(config.vocab_size, E, scale=spread, dtype=dtype, rngs=rngs)
        at_depth(self.embedding, 0)
        self.encoder = Stack(config, config.encoder_layers, decoder=False, cross=False, rngs=rngs)
        self.pooler = Linear(D, D, ("embed", None), rngs=rngs) if config.head.pooler else None

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"] | Bool[Array, "B T"],
        token_type_ids: Int[Array, "B T"] | None = None,
        *,
        key: Key[Array, ""] | None = None,
        on_weights=None,
        on_hidden: OnHidden | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns a contextual vector for each of ``tokens``.

        Args:
            tokens: The texts.
            lengths: Number of non-padding tokens in each row, or a mask of them, wherever they are.
            token_type_ids: Part of the pair that each token belongs to, 0 or 1 (rows of the segment
                table); None is 0.
            key: Random key of dropout; None is no dropout.
            on_weights: Called with the weights of each block's self-attention.
            on_hidden: Called with the first block's input and each block's output.
        """
        check_tokens(tokens)
        return self.encoder(
            self.embedding(tokens) * self.config.embedding_scale,
            padding_mask(lengths),
            positions=self.encoder.position_ids(tokens.shape[1], lengths),
            segments=token_type_ids,
            key=key,
            on_weights=on_weights,
            on_hidden=on_hidden,
        )

    def pooled(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B D"]:
        """Returns a vector for each text: ``act(W h₁ + b)``, or ``h₁`` without a pooler."""
        first = hidden[:, 0]
        if self.pooler is None:
            return first
        return ACTIVATIONS[self.config.head.pooler_activation](self.pooler(first))

    def hidden_states(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"] | Bool[Array, "B T"],
        token_type_ids: Int[Array, "B T"] | None = None,
    ) -> Float[Array, "{self.config.encoder_layers}+1 B T D"]:
        """Returns the output of every layer for each token; layer 0 is the embeddings."""
        found: list[Array] = []
        Encoder.__call__(self, tokens, lengths, token_type_ids, on_hidden=found.append)
        return jnp.stack(found)

    def attention_maps(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"] | Bool[Array, "B T"],
        token_type_ids: Int[Array, "B T"] | None = None,
    ) -> Float32[Array, "L B N T T"]:
        """The attention weights of every layer and head, exact with any kernel."""
        maps: list[Array] = []
        see = lambda weights: maps.append(weights)
        Encoder.__call__(self, tokens, lengths, token_type_ids, on_weights=(see, see))
        return stack_weights(maps)
