"""Contextual embeddings of texts, tokens and words."""

import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.core.trees import device_of
from transformer_jax.data.coverage import unknown_texts
from transformer_jax.data.examples import (
    EncodedExamples,
    collate,
    default_template,
    encode_sentences,
)
from transformer_jax.data.row_offsets import ragged_indices
from transformer_jax.data.tagged_examples import encode_tagged
from transformer_jax.data.tokenizer import SpecialTokensTemplate, Tokenizer
from transformer_jax.data.vocabulary_check import check_vocabulary
from transformer_jax.data.words import find_word, word_spans
from transformer_jax.decoding.stored_programs import stored
from transformer_jax.functional.masks import segment_mask
from transformer_jax.functional.pooling import combine_layers, pool_hidden_states
from transformer_jax.functional.pools import Layers, Pool, Pools
from transformer_jax.inference.encoding.batching import (
    PackedBatches,
    default_tokens,
    length_buckets,
)
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.models.partition import Graph
from transformer_jax.models.transformer.layers import stack_weights
from transformer_jax.models.transformer.models import TransformerEncoderDecoder
from transformer_jax.parallel.placement import MeshProgram
from transformer_jax.visual.word_contexts import WordVectors

__all__ = [
    "Embedder",
    "EmbeddingBatch",
    "Layers",
    "Pool",
    "Pools",
    "combine_layers",
    "pool_hidden_states",
]


class EmbeddingBatch(NamedTuple):
    """The vectors of a batch of texts.

    Attributes:
        vectors: A row per text, or without pooling a row per token of all texts in order. With all
            layers, the second-last axis is layers.
        lengths: Number of tokens of each text, with [CLS] and [SEP], after truncation.
        ids: The ids of these tokens, of all texts in order.
    """

    vectors: Float[np.ndarray, "rows *layers D"]
    lengths: Int[np.ndarray, " texts"]
    ids: Int[np.ndarray, " total"]


class Embedder:
    """Embeds any number of texts of any length with an encoder.

    Args:
        model: Graph and parameters of an encoder with any head, or of an encoder-decoder, whose
            encoder is used.
        tokenizer: The tokenizer used in training.
        length: Maximum length in tokens, to which texts are truncated; None is the model's
            positions.
        tokens: Maximum number of tokens per batch, with padding.
        template: The special tokens around texts; None is the default of training here.
        prepare: Prepares a text, put after a prompt, as in training.

    Attributes:
        layers: Number of layers L; vectors have L + 1 layers, of which the first is the embeddings.
        counts: Number of texts so far (``lines``), of truncated ones (``cut``), and of those with
            text that the tokenizer does not know (``unknown``).
        dense: Function applied to pooled vectors of the last layer, or None.
    """

    def __init__(
        self,
        model: tuple[Any, Any],
        tokenizer: Tokenizer,
        *,
        length: int | None = None,
        tokens: int | None = None,
        template: SpecialTokensTemplate | None = None,
        prepare: Callable[[str, str], str] = lambda text, prompt: prompt + text,
    ):
        self.params, self._prepare = model[1], prepare
        device = device_of(self.params)
        whole = with_attention_kernels(nnx.merge(*model), device)
        self._graph = nnx.graphdef(whole)
        check_vocabulary(tokenizer, whole.config.vocab_size)
        self._seq2seq = isinstance(whole, TransformerEncoderDecoder)
        self._tokenizer, self._tokens = tokenizer, tokens or default_tokens(device.platform)
        if template is None and self._seq2seq:
            template = SpecialTokensTemplate(
                tokenizer.prefix_ids, (tokenizer.eos,), tokenizer.suffix_ids
            )
        self._template = template or default_template(tokenizer)
        self.layers, self.width = whole.config.encoder_layers, whole.config.d_model
        self.length = length or whole.config.positions.max_length
        self.counts: collections.Counter[str] = collections.Counter()
        self.dense: Callable[[Any], Any] | None = None
        self._runs: dict[tuple[Layers, Pools, int], PackedBatches] = {}
        self._attend = MeshProgram(functools.partial(_maps, self._graph))

    def embed(
        self,
        texts: Iterable[str],
        *,
        layers: Layers = "last",
        pool: Pools = "mean",
        prompt: str = "",
        skip: int = 0,
        block: int = 4096,
    ) -> Iterator[EmbeddingBatch]:
        """Yields the vectors of texts, ``block`` texts at a time to limit memory.

        Args:
            texts: The texts, or lines of a file of any size.
            layers: ``last``; ``all``, with the embeddings first; a layer from 0 (the embeddings) to
                L; ``sum4`` or ``concat4``, the sum or the concatenation of the last four (Devlin et
                al. 2019, table 7), or of all layers if there are fewer, without the embeddings.
            pool: ``mean`` over all tokens of a text, with [CLS] and [SEP]; ``cls``, the vector of
                [CLS]; ``max``; ``mean_sqrt_len_tokens``, the sum divided by the square root of the
                length; ``weightedmean``, weighted by position, from 1; ``lasttoken``; ``none``, one
                vector per token. Vectors of several poolings are concatenated.
            prompt: Text to put before each text.
            skip: Number of tokens at the start of each text to exclude.
            block: Number of texts to read before the first vectors are computed.

        Raises:
            ConfigError: A layer or pooling is unknown.
        """
        self.check(layers, pool)
        remaining = (self.prepared(text, prompt) for text in texts)
        while chunk := list(itertools.islice(remaining, block)):
            examples, cut = self._encode(chunk)
            store = examples.store
            unknown = unknown_texts(chunk, self._tokenizer, store.ids)
            self.counts.update(lines=len(chunk), cut=cut, unknown=unknown)
            made = self._rows(examples, layers, pool, skip)
            if self.dense is not None and layers == "last" and pool != "none":
                made = self.dense(made)
            yield EmbeddingBatch(made, store.lengths, np.asarray(store.ids))

    def prepared(self, text: str, prompt: str = "") -> str:
        """Returns a text as the encoder reads it, after a prompt."""
        return self._prepare(text, prompt)

    def check(self, layers: Layers, pool: Pools) -> None:
        """Refuses unknown layers and poolings.

        Raises:
            ConfigError: The message names the allowed ones.
        """
        named = ("last", "all", "sum4", "concat4")
        if layers not in named and not (isinstance(layers, int) and 0 <= layers <= self.layers):
            raise ConfigError(
                f"layers {layers}: allowed are {', '.join(named)} and a number from 0 (the "
                f"embeddings) to {self.layers}"
            )
        pools, allowed = (pool if isinstance(pool, tuple) else (pool,)), get_args(Pool)
        if not pools or not {*pools} <= {*allowed} or (len(pools) > 1 and "none" in pools):
            raise ConfigError(f"pool {pool}: allowed are {', '.join(allowed)}")

    def prompt_length(self, prompt: str) -> int:
        """Returns the number of tokens of a prompt before a text, including special ones."""
        examples, _ = self._encode([prompt])
        return int(examples.store.lengths[0]) - bool(self._template.suffix_ids)

    def tagged(self, words: Sequence[Sequence[str]]) -> Float[np.ndarray, "words layers D"]:
        """Returns the vectors of every layer for the first token of each word, in order."""
        tagged = encode_tagged(words, self._tokenizer, self.length, self._template)
        unknown = unknown_texts(list(map(" ".join, words)), self._tokenizer)
        self.counts.update(lines=len(words), cut=tagged.cut, unknown=unknown)
        rows = self._rows(tagged.examples, "all", "none")
        # Examples are in the order of sentences, and so are their words.
        example, _ = ragged_indices(tagged.word_starts.lengths)
        return rows[tagged.examples.store.offsets[example] + tagged.word_starts.ids]

    def word(self, sentence: str, word: str) -> list[WordVectors]:
        """Yields the vectors of each occurrence of a word in a sentence.

        Args:
            sentence: The sentence.
            word: The word, as the encoder reads it.

        Raises:
            DataError: The word is not in the sentence, or in its truncated part.
        """
        sentence = self.prepared(sentence)
        found = find_word(sentence, word)
        if not found:
            raise DataError(f'"{word}" is not a word of the sentence "{sentence}"')
        examples, _ = self._encode([sentence])
        [(_, spans)] = self._tokenizer.encode_spans([sentence])
        lead = len(self._template.prefix_ids)
        special = lead + len(self._template.suffix_ids)
        read = np.array(spans[: len(examples.store.ids) - special], int).reshape(-1, 2)
        layers = self._rows(examples, "all", "none")
        maps = self._maps(examples)[:, 0].mean(1)  # [L T T]
        words = tuple(word_spans(sentence))
        within = lambda begin, end: lead + np.flatnonzero((read[:, 0] < end) & (read[:, 1] > begin))
        out = []
        for begin, end in found:
            at = within(begin, end)
            if not len(at):
                most = plural(self.length, "token")
                raise DataError(f'"{word}" is beyond the length limit, {most}')
            ids = examples.store.ids[at]
            reads = maps[:, at].mean(1)
            shares = [reads[:, within(*span)].sum(-1) for span in words]
            out.append(
                WordVectors(
                    sentence,
                    begin,
                    tuple(self._tokenizer.convert_ids_to_tokens(ids.tolist())),
                    np.asarray(self._table()[ids]).mean(0),
                    layers[at].mean(0),
                    words,
                    np.stack(shares, 1),
                )
            )
        return out

    def _encode(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None
    ) -> tuple[EncodedExamples, int]:
        """Returns the ids, tokenized as in training, and the number of truncated texts."""
        return encode_sentences(texts, seconds, self._tokenizer, self.length, self._template)

    def _rows(
        self, examples: EncodedExamples, layers: Layers, pool: Pools, skip: int = 0
    ) -> np.ndarray:
        """Returns the vectors of examples, in order."""
        store, out = examples.store, None
        run = self._program(layers, pool, skip)
        total = len(store.ids) if pool == "none" else len(store)
        for (numbers, _), made in run(self.params, examples):
            if out is None:
                out = np.zeros((total, *made.shape[2:]), np.float32)
            row, place = np.nonzero(numbers >= 0)
            if pool != "none":
                out[numbers[row, place]] = made[row, place]
                continue
            for each, texts in zip(made, numbers.tolist(), strict=True):
                start = 0
                for begin, end in (store.offsets[n : n + 2] for n in texts if n >= 0):
                    out[begin:end] = each[start : start + end - begin]
                    start += end - begin
        assert out is not None
        refuse_nonfinite(out)
        return out

    def _program(self, layers: Layers, pool: Pools, skip: int) -> PackedBatches:
        """Returns the program that computes the vectors of one batch."""
        if (layers, pool, skip) not in self._runs:
            program = stored(functools.partial(_pooled, self._graph, layers, pool, skip))
            run = PackedBatches(program, tokens=self._tokens, pad=self._tokenizer.pad)
            self._runs[layers, pool, skip] = run
        return self._runs[layers, pool, skip]

    def attention(
        self, text: str, second: str | None = None
    ) -> tuple[list[str], Float[np.ndarray, "L 1 N T T"]]:
        """Returns the tokens of a text or a pair, and the attention weights of every head.

        Raises:
            DataError: The texts are longer than the model's length.
        """
        examples = self.one_example(text, second)
        return self._tokenizer.convert_ids_to_tokens(examples.store.ids.tolist()), self._maps(
            examples
        )

    def one_example(self, text: str, second: str | None = None) -> EncodedExamples:
        """Returns the ids of a text or a pair, with special tokens.

        Raises:
            DataError: The texts are longer than the model's length.
        """
        seconds = None if second is None else [self.prepared(second)]
        examples, cut = self._encode([self.prepared(text)], seconds)
        if cut:
            raise DataError(f"the text has more than {plural(self.length, 'token')}: shorten it")
        return examples

    def _maps(self, examples: EncodedExamples) -> Float[np.ndarray, "L 1 N T T"]:
        """Returns the attention weights of one example in every head."""
        [(rows, T)] = length_buckets(examples.store.lengths, 1)
        batch = collate(examples, rows, T, self._tokenizer.pad)
        real = int(examples.store.lengths[0])
        return np.asarray(self._attend(self.params, batch))[..., :real, :real]

    def _table(self) -> Array:
        return self.params["embedding"]["table"]


def _maps(graph: Any, params: Any, batch: dict[str, Any]) -> Float[Array, "L B N T T"]:
    """Returns the attention weights of every head."""
    model = nnx.merge(graph, params)
    if not isinstance(model, TransformerEncoderDecoder):
        return model.attention_maps(batch["tokens"], batch["lengths"], batch["types"])
    maps: list[Array] = []
    see = lambda weights: maps.append(weights)
    model.encode(batch["tokens"], batch["lengths"], on_weights=(see, see))
    return stack_weights(maps)


def _pooled(
    graph: Graph, layers: Layers, pool: Pools, skip: int, params: Any, batch: dict[str, Any]
) -> Array:
    every = _layers(nnx.merge(graph, params), batch)
    return pool_hidden_states(combine_layers(every, layers), batch, pool, skip)


def _layers(model: Any, batch: dict[str, Any]) -> list[Array]:
    """Returns the input of the first block of an encoder and the output of each block.

    Texts of a row do not attend to each other, and have separate positions.
    """
    found: list[Array] = []
    seq2seq, tokens = isinstance(model, TransformerEncoderDecoder), batch["tokens"]
    x = model.embedding(tokens) * model.config.embedding_scale
    model.encoder(
        x,
        segment_mask(batch["segments"], batch["segments"]),
        positions=batch["positions"],
        segments=None if seq2seq else batch["types"],
        on_hidden=found.append,
    )
    return found
