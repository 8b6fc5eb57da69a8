"""Decoders: language models, and decoders that attend to encoded states."""

from collections.abc import Mapping

from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from transformer_jax.core.arguments import check_values
from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.losses import OutputTable
from transformer_jax.functional.masks import Mask, padding_mask
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.attention import OnWeights, stack_weights
from transformer_jax.models.layers.block import Memory
from transformer_jax.models.layers.cache import Cache
from transformer_jax.models.layers.embedding import (
    Embed,
    Head,
    check_tokens,
    token_embedding,
)
from transformer_jax.models.layers.stack import OnHidden, Stack
from transformer_jax.models.layers.summary import Summarized
from transformer_jax.models.protocol import Encoded

__all__ = ["Autoregressive", "Decoder", "TransformerDecoder"]


class Autoregressive(Summarized):
    """The common part of decoders: a table of tokens, a stack of blocks, a head, and a cache.

    It is ``Decodable`` with ``init_cache``, and a ``Scorer`` with ``hidden``, which subclasses
    have. They keep the :meth:`parts` under the names of their checkpoints.
    """

    def parts(self) -> tuple[Embed, Stack, Head]:
        """The table of the tokens, the stack and the head."""
        raise NotImplementedError

    def embed(self, tokens: Int[Array, "*where"]) -> Float[Array, "*where D"]:
        """Scaled token vectors, without positions: section 3.4."""
        table, stack, _ = self.parts()
        return table(tokens) * stack.config.embedding_scale

    def output_table(self) -> OutputTable:
        """The output projection, for losses that never hold all logits at once."""
        table, _, head = self.parts()
        return head.output_table(table)

    def logits(self, hidden: Float[Array, "*rows D"]) -> Float32[Array, "*rows V"]:
        """Scores over the vocabulary, in float32."""
        return self.output_table().logits(hidden)

    def prefill(
        self, tokens: Int[Array, "B T"], cache: Cache, starts: Int[Array, " B"] | None = None
    ) -> tuple[Float32[Array, "B V"], Cache]:
        """Returns logits of the token after each prompt, and the cache filled with the prompts.

        Args:
            tokens: Prompts, left-padded.
            cache: Empty cache from ``init_cache``.
            starts: Index of the first token of each prompt; earlier ones are padding.
        """
        _, stack, _ = self.parts()
        hidden, cache = stack.prefill(self.embed(tokens), cache, starts)
        return self.logits(hidden), cache

    def step(self, tokens: Int[Array, " R"], cache: Cache) -> tuple[Float32[Array, "R V"], Cache]:
        """Returns logits of the token after ``tokens``, one per row, and the extended cache."""
        _, stack, _ = self.parts()
        hidden, cache = stack.step(self.embed(tokens), cache)
        return self.logits(hidden), cache

    def reorder(self, cache: Cache, parents: Int[Array, "B M"]) -> Cache:
        """Returns the cache in which beam ``m`` of text ``b`` continues beam ``parents[b, m]``."""
        return cache.reorder(parents)

    def take(self, cache: Cache, rows: Int[Array, " N"]) -> Cache:
        """Returns the cache of the texts ``rows``, with all their beams."""
        _, stack, _ = self.parts()
        return cache.take(rows, stack.cache_heads)


class Decoder(Autoregressive):
    """A language model: scores each token of a text, given the tokens before it.

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
        self.embedding = token_embedding(config, rngs)
        self.decoder = Stack(config, config.decoder_layers, decoder=True, cross=False, rngs=rngs)
        self.head = Head(config, rngs=rngs)

    def parts(self) -> tuple[Embed, Stack, Head]:
        """The table of the tokens, the stack and the head."""
        return self.embedding, self.decoder, self.head

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
        on_weights: tuple[OnWeights, OnWeights] | None = None,
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

    def init_cache(self, inputs: None, rows: int, size: int, *, beams: int = 1) -> Cache:
        """An empty cache for up to ``size`` tokens of ``rows`` texts with ``beams`` beams each."""
        del inputs  # a language model has no condition
        return self.decoder.init_cache(rows, size, beams=beams)

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


class TransformerDecoder(Autoregressive):
    """A decoder with cross-attention to encoded states: Vaswani et al. 2017, section 3.1.

    It is a ``Scorer`` and ``Decodable`` whose inputs are :class:`Encoded` states of its width.
    """

    def __init__(self, embedding: Embed, stack: Stack, head: Head):
        self.embedding, self.stack, self.head = embedding, stack, head

    @classmethod
    def from_config(cls, config: TransformerConfig, *, rngs: nnx.Rngs) -> "TransformerDecoder":
        """A decoder with new parameters."""
        config = config.decoder()
        embedding = token_embedding(config, rngs)
        stack = Stack(config, config.decoder_layers, decoder=True, cross=True, rngs=rngs)
        return cls(embedding, stack, Head(config, rngs=rngs))

    def parts(self) -> tuple[Embed, Stack, Head]:
        """The table of the tokens, the stack and the head."""
        return self.embedding, self.stack, self.head

    def hidden(
        self,
        inputs: Encoded,
        tokens: Int[Array, "B T"],
        *,
        lengths: Int[Array, " B"] | Bool[Array, "B T"] | None = None,
        key: Key[Array, ""] | None = None,
        on_weights: tuple[OnWeights, OnWeights] | None = None,
        on_hidden: OnHidden | None = None,
    ) -> Float[Array, "B T D"]:
        """The hidden state at each token, from the tokens up to it and the encoded states.

        Args:
            inputs: Encoded states.
            tokens: Target tokens, shifted right.
            lengths: Number of non-padding tokens in each row, or a mask of them; None is all.
                Padding after the last token needs no lengths: no earlier token attends to it.
            key: Random key of dropout; None is no dropout.
            on_weights: Called with the weights of each block's self- and cross-attention.
            on_hidden: Called with the first block's input and each block's output.

        Raises:
            ConfigError: The encoded states have a different width.
        """
        _, stack, _ = self.parts()
        check_width(inputs, stack)
        padding = lambda real: None if real is None else padding_mask(real)
        return stack(
            self.embed(tokens),
            padding(lengths),
            memory=Memory(inputs.states, padding(inputs.mask)),
            key=key,
            on_weights=on_weights,
            on_hidden=on_hidden,
        )

    def init_cache(self, inputs: Encoded, rows: int, size: int, *, beams: int = 1) -> Cache:
        """An empty cache; each block's keys and values of the encoded states are computed once.

        Args:
            inputs: Encoded states.
            rows: B, the number of sequences.
            size: Largest number of target tokens.
            beams: M, the beams of each sequence.

        Raises:
            ConfigError: The encoded states have a different width.
        """
        _, stack, _ = self.parts()
        check_width(inputs, stack)
        memory, mask = inputs.states, inputs.mask
        visible = None if mask is None else padding_mask(mask).array(1, memory.shape[1])
        return stack.init_cache(rows, size, beams=beams, memory=memory, memory_mask=visible)


def check_width(inputs: Encoded, stack: Stack) -> None:
    """Refuses encoded states of another width than the decoder's."""
    given, needed = inputs.states.shape[-1], stack.config.d_model
    if given != needed:
        raise ConfigError(
            f"encoded states have width {given}, the decoder {needed}: give EncoderDecoder a "
            f'bridge, such as Linear({given}, {needed}, (None, "embed"), rngs=rngs)'
        )
