"""Encoders and decoders with heads: masked words, labels of texts and tokens, values."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.layers import ACTIVATIONS, dropout, gather_positions
from transformer_jax.functional.losses import OutputTable
from transformer_jax.functional.masks import padding_mask
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.basic import Linear, Norm
from transformer_jax.models.transformer.models import Decoder, Encoder, Head

__all__ = [
    "DecoderSequenceClassifier",
    "EncoderForMaskedLM",
    "ReplacedTokenDetector",
    "SequenceClassifier",
    "TokenClassifier",
    "ValuedDecoder",
]


class EncoderForMaskedLM(Encoder):
    """Encoder with masked-language-modelling and, optionally, sentence-pair heads.

    ``softmax(W norm(act(W' h + b')) + b)``, where ``W`` is the embedding table if tied, and
    ``softmax(W'' pooled + b'')``, whose index 0 is "is next" (NSP, SOP). Devlin et al. 2019.
    """

    def __init__(self, config: TransformerConfig, *, next_sentence: bool = True, rngs: nnx.Rngs):
        if next_sentence and not config.head.pooler:
            raise ConfigError("next-sentence prediction reads the pooler's output: set head.pooler")
        super().__init__(config, rngs=rngs)
        D, E, transform = config.d_model, config.embedding_size, config.head.mlm_transform
        if E != D and not transform:
            raise ConfigError(
                f"embedding.embedding_size is {E}: vectors of {D} meet its table after a map: set "
                f"head.mlm_transform"
            )
        self.transform, self.transform_norm = _transform(config, E, rngs) if transform else _NONE
        self.head = Head(config, rngs=rngs)
        self.next_sentence = Linear(D, 2, ("embed", "label"), rngs=rngs) if next_sentence else None

    def mlm_logits(self, hidden: Float[Array, "*rows D"]) -> Float32[Array, "*rows V"]:
        """Logits over the vocabulary at masked positions, in float32."""
        return self.output_table().logits(self.mlm_transform(hidden))

    def mlm_transform(self, hidden: Float[Array, "*rows D"]) -> Float[Array, "*rows E"]:
        """Returns the hidden states that :meth:`output_table` multiplies."""
        return _transformed(self.config, self.transform, self.transform_norm, hidden)

    def output_table(self) -> OutputTable:
        """The output projection, for losses that never hold all logits at once."""
        return self.head.output_table(self.embedding)

    def nsp_logits(self, hidden: Float[Array, "B T D"]) -> Float32[Array, "B 2"]:
        """Sentence-pair logits in float32; index 0 is "is next"."""
        assert self.next_sentence is not None
        return self.next_sentence(self.pooled(hidden)).astype(jnp.float32)


# The dense layer and the norm of a transform.
_NONE: tuple[Linear | None, Norm | None] = (None, None)


def _transform(
    config: TransformerConfig, width: int, rngs: nnx.Rngs
) -> tuple[Linear | None, Norm | None]:
    bias = config.head.mlm_transform_bias
    dense = Linear(config.d_model, width, ("embed", None), bias=bias, rngs=rngs)
    return dense, Norm(config.norm, width)


def _transformed(
    config: TransformerConfig, dense: Linear | None, norm: Norm | None, x: Float[Array, "*rows D"]
) -> Float[Array, "*rows E"]:
    if dense is None or norm is None:
        return x
    act = ACTIVATIONS[config.head.mlm_transform_activation or config.feed_forward.activation]
    return norm(act(dense(x)))


class _Labelled(Encoder):
    """An encoder with dropout and a linear map to ``labels`` outputs.

    With ``labels.transform``, the layers of the masked-LM head are before them.
    """

    def __init__(self, config: TransformerConfig, *, labels: int, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        transform = config.labels.transform
        layers = _transform(config, config.d_model, rngs) if transform else _NONE
        self.transform, self.transform_norm = layers
        self.labels = Linear(config.d_model, labels, ("embed", "label"), rngs=rngs)

    def __call__(  # type: ignore[override]
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"] | Bool[Array, "B T"],
        token_type_ids: Int[Array, "B T"] | None = None,
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float32[Array, "B *T V"]:
        """``W dropout(x) + b`` of the :meth:`classifier_inputs`, in float32."""
        keys = (None, None) if key is None else jax.random.split(key)
        hidden = super().__call__(tokens, lengths, token_type_ids, key=keys[0])
        vectors = self.classifier_inputs(hidden, lengths)
        vectors = _transformed(self.config, self.transform, self.transform_norm, vectors)
        return self.scores(vectors, keys[1])

    def scores(
        self, vectors: Float[Array, "*rows D"], key: Key[Array, ""] | None
    ) -> Float32[Array, "*rows V"]:
        """Applies dropout and the classification layer, in float32."""
        vectors = dropout(vectors, self.config.norm.residual_dropout, key)
        return self.labels(vectors).astype(jnp.float32)

    def classifier_inputs(
        self, hidden: Float[Array, "B T D"], lengths: Int[Array, " B"] | Bool[Array, "B T"]
    ) -> Float[Array, "B *T D"]:
        """Returns the hidden states to classify: those of all tokens."""
        return hidden


class SequenceClassifier(_Labelled):
    """Class logits, or one regression output, for each text or text pair."""

    def classifier_inputs(
        self, hidden: Float[Array, "B T D"], lengths: Int[Array, " B"] | Bool[Array, "B T"]
    ) -> Float[Array, "B D"]:
        """Returns the pooled hidden states, by ``labels.pooling``."""
        if self.config.labels.pooling == "first":
            return self.pooled(hidden)
        if lengths.ndim == 1:
            lengths = jnp.arange(hidden.shape[1])[None] < lengths[:, None]
        total = jnp.where(lengths[..., None], hidden, 0).sum(1, dtype=jnp.float32)
        count = jnp.maximum(lengths.sum(1, dtype=jnp.float32), 1)[:, None]
        return (total / count).astype(hidden.dtype)


class TokenClassifier(_Labelled):
    """Logits for each token, for tags or for starts and ends of answers."""


class ReplacedTokenDetector(TokenClassifier):
    """Replaced-token detection, one logit for each token: ``w act(W h + b) + c``.

    ELECTRA's discriminator: Clark et al. 2020, section 2.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        super().__init__(config, labels=1, rngs=rngs)
        self.detector = Linear(config.d_model, config.d_model, ("embed", None), rngs=rngs)

    def classifier_inputs(
        self, hidden: Float[Array, "B T D"], lengths: Int[Array, " B"] | Bool[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """Maps the vectors of all tokens, with the activation of the layers."""
        return ACTIVATIONS[self.config.feed_forward.activation](self.detector(hidden))


class DecoderSequenceClassifier(Decoder):
    """Class logits, or one regression output, for each text: ``W hₙ`` at its last token.

    Only that token attends to the complete text. There is no language-modelling head.

    Radford et al. 2018, section 3.2. The authors' code adds a bias; the classifiers of Llama, Qwen
    and GPT-2 in transformers have none.
    """

    def __init__(self, config: TransformerConfig, *, labels: int, rngs: nnx.Rngs):
        head = config.head
        if not head.tie_word_embeddings or head.bias:
            raise ConfigError(
                "head.tie_word_embeddings is False or head.bias True: a classifier has no "
                "language-modelling head"
            )
        super().__init__(config, rngs=rngs)
        self.labels = Linear(config.d_model, labels, ("embed", "label"), bias=False, rngs=rngs)

    def __call__(  # type: ignore[override]
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"] | Bool[Array, "B T"],
        token_type_ids: Int[Array, "B T"] | None = None,
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float32[Array, "B V"]:
        """Logits in float32.

        Args:
            tokens: The texts.
            lengths: Number of non-padding tokens in each row, or a mask of them, wherever they are.
            token_type_ids: Ignored: all classifiers take it, but decoders have no table for it.
            key: Random key of dropout; None is no dropout.
        """
        del token_type_ids
        return self.scores(self.states(tokens, lengths, key=key), lengths)

    def states(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"] | Bool[Array, "B T"],
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B T D"]:
        """The hidden state at each token of the texts."""
        positions = None
        if lengths.ndim == 2:  # padding has no position
            positions = jnp.maximum(jnp.cumsum(lengths, axis=1, dtype=jnp.int32) - 1, 0)
        embedded, mask = self.embed(tokens), padding_mask(lengths)
        hidden: Array = self.decoder(embedded, mask, positions=positions, key=key)
        return hidden

    def scores(
        self, hidden: Float[Array, "B T D"], lengths: Int[Array, " B"] | Bool[Array, "B T"]
    ) -> Float32[Array, "B V"]:
        """Applies the classification layer at the last token of each text, in float32."""
        T, which = hidden.shape[1], lengths
        if which.ndim == 1:
            which = jnp.arange(T)[None] < which[:, None]
        last = jnp.max(jnp.where(which, jnp.arange(T, dtype=jnp.int32)[None], 0), axis=1)
        return self.labels(gather_positions(hidden, last[:, None])[:, 0]).astype(jnp.float32)


class ValuedDecoder(Decoder):
    """A decoder with a value head, ``V_t = w h_t + b``, which estimates the future reward.

    The policy and its value function share all layers. Ziegler et al. 2019,
    https://arxiv.org/abs/1909.08593.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.value = Linear(config.d_model, 1, ("embed", "label"), rngs=rngs)

    def values(self, hidden: Float[Array, "*rows D"]) -> Float32[Array, "*rows"]:
        """The value at each position, in float32."""
        return self.value(hidden)[..., 0].astype("float32")
