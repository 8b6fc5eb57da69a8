"""The decoder-only Transformer: a language model, optionally with a value head."""

from collections.abc import Mapping

from flax import nnx
from jaxtyping import Array, Float, Float32, Int, Key

from transformer_jax.core.arguments import check_values
from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.losses import OutputTable
from transformer_jax.functional.masks import Mask
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.attention import stack_weights
from transformer_jax.models.layers.basic import Linear
from transformer_jax.models.layers.cache import Cache
from transformer_jax.models.layers.embedding import Embed, Head, check_tokens
from transformer_jax.models.layers.parameters import at_depth
from transformer_jax.models.layers.stack import OnHidden, Stack
from transformer_jax.models.layers.summary import Summarized

__all__ = ["Decoder", "ValuedDecoder"]


class Decoder(Summarized):
    """Scores each token of a text, given the tokens before it.

    ``Y = softmax(X̃ W^(p))`` at every position, each of which sees only earlier ones. The last
    tokens of a row may be padding: no token before them sees them. Radford et al. 2018.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        check_values("Decoder: ", {"config": TransformerConfig}, {"config": config})
        if config.decoder_layers < 1 or config.encoder_layers:
            raise ConfigError(
                f"encoder_layers is {config.encoder_layers} and decoder_layers "
                f"{config.decoder_layers}: a decoder-only model has 0 and at least 1"
            )
        self.config = config = config.decoder()
        D = config.d_model
        # Scaled embeddings start at unit size, whatever the scale.
        spread = D**-0.5 if config.embedding.scale is None else 0.02
        dtype = config.compute.dtype
        self.embedding = Embed(config.vocab_size, D, scale=spread, dtype=dtype, rngs=rngs)
        at_depth(self.embedding, 0)
        self.decoder = Stack(config, config.decoder_layers, decoder=True, cross=False, rngs=rngs)
        self.head = Head(config, rngs=rngs)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float32[Array, "B T V"]:
        """Returns logits of the token after each of ``tokens``."""
        inputs = {"segment_ids": segment_ids, "positions": positions}
        return self.logits(self.hidden(inputs, tokens, key=key))

    def hidden(
        self,
        inputs: Mapping[str, Int[Array, "B T"] | None] | None,
        tokens: Int[Array, "B T"],
        *,
        key: Key[Array, ""] | None = None,
        on_weights=None,
        on_hidden: OnHidden | None = None,
    ) -> Float[Array, "B T D"]:
        """The hidden state at each of ``tokens``.

        Args:
            inputs: For rows that hold several texts: ``segment_ids``, the text that each token
                belongs to (0 is padding), and ``positions`` within each text. Texts do not attend
                to each other. Without ``inputs``, or without either of them, each row is one text.
            tokens: The text.
            key: Random key of dropout; None is no dropout.
            on_weights: Called with the weights of each block's self-attention.
            on_hidden: Called with the first block's input and each block's output.
        """
        check_tokens(tokens)
        given = inputs or {}
        ids, positions = given.get("segment_ids"), given.get("positions")
        mask = None if ids is None else Mask(q_segments=ids, kv_segments=ids)
        return self.decoder(
            self.embed(tokens),
            mask,
            positions=positions,
            key=key,
            on_weights=on_weights,
            on_hidden=on_hidden,
        )

    def logits(self, hidden: Float[Array, "*rows D"]) -> Float32[Array, "*rows V"]:
        """Scores over the vocabulary, in float32."""
        return self.output_table().logits(hidden)

    def output_table(self) -> OutputTable:
        """The output projection, for losses that never hold all logits at once."""
        return self.head.output_table(self.embedding)

    def init_cache(self, inputs: None, rows: int, size: int, *, beams: int = 1) -> Cache:
        """An empty cache for up to ``size`` tokens of ``rows`` texts with ``beams`` beams each."""
        del inputs  # a language model has no condition
        return self.decoder.init_cache(rows, size, beams=beams)

    def prefill(
        self,
        tokens: Int[Array, "B T"],
        cache: Cache,
        starts: Int[Array, " B"] | None = None,
    ) -> tuple[Float32[Array, "B V"], Cache]:
        """Returns logits of the token after each prompt, and the cache filled with the prompts.

        Args:
            tokens: Prompts, left-padded.
            cache: Empty cache from :meth:`init_cache`.
            starts: Index of the first token of each prompt; earlier ones are padding.
        """
        hidden, cache = self.decoder.prefill(self.embed(tokens), cache, starts)
        return self.logits(hidden), cache

    def prefill_more(
        self, tokens: Int[Array, "B T"], count: Int[Array, ""], cache: Cache
    ) -> tuple[Float32[Array, "B V"], Cache]:
        """Returns logits of the token after ``count`` more tokens per row, and the extended cache.

        Args:
            tokens: The next tokens of each row; from ``count`` on they are padding.
            count: Number of non-padding tokens in each row, at least 1.
            cache: With room for ``T`` tokens; for a single beam and attention only.
        """
        B, T = tokens.shape
        before = cache.length
        hidden, cache = self.decoder.step(self.embed(tokens.reshape(-1)), cache)
        last = hidden.reshape(B, T, -1)[:, count - 1]
        return self.logits(last), cache.truncate(before + count)

    def step(self, tokens: Int[Array, " R"], cache: Cache) -> tuple[Float32[Array, "R V"], Cache]:
        """Returns logits of the token after ``tokens``, one per row, and the extended cache."""
        hidden, cache = self.decoder.step(self.embed(tokens), cache)
        return self.logits(hidden), cache

    def reorder(self, cache: Cache, parents: Int[Array, "B M"]) -> Cache:
        """Returns the cache in which beam ``m`` of text ``b`` continues beam ``parents[b, m]``."""
        return cache.reorder(parents)

    def take(self, cache: Cache, rows: Int[Array, " N"]) -> Cache:
        """Returns the cache of the texts ``rows``, with all their beams."""
        return cache.take(rows, self.decoder.cache_heads)

    def extend(
        self, tokens: Int[Array, "B T"], cache: Cache
    ) -> tuple[Float32[Array, "B T V"], Cache]:
        """Returns logits after each of ``T`` more tokens per row, and the extended cache.

        Equivalent to ``T`` steps with a cache without beams.
        """
        B, T = tokens.shape
        hidden, cache = self.decoder.step(self.embed(tokens.reshape(-1)), cache)
        return self.logits(hidden.reshape(B, T, -1)), cache

    def attention_maps(
        self,
        tokens: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"] | None = None,
        positions: Int[Array, "B T"] | None = None,
    ) -> Float32[Array, "L B N T T"]:
        """The attention weights of every layer and head, exact with any kernel."""
        maps: list[Array] = []
        see = lambda weights: maps.append(weights)
        inputs = {"segment_ids": segment_ids, "positions": positions}
        self.hidden(inputs, tokens, on_weights=(see, see))
        return stack_weights(maps)

    def embed(self, tokens: Int[Array, "*where"]) -> Float[Array, "*where D"]:
        """Returns scaled token vectors, without positions."""
        return self.embedding(tokens) * self.config.embedding_scale


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
