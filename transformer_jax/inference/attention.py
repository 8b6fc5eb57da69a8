"""The attention weights of a model for a text, with their tokens."""

import dataclasses
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float

from transformer_jax.core.errors import ArgumentError, ConfigError, DataError, plural
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.partial_text import Source
from transformer_jax.decoding.text_tokenizer import TextTokenizer
from transformer_jax.decoding.translator import Translator
from transformer_jax.decoding.windowed_generation import TextStart
from transformer_jax.inference.base import warn_of_texts
from transformer_jax.inference.generation_settings import changes_of
from transformer_jax.visual.attention import (
    AttentionMaps,
    attention_html,
    plot_attention,
    translation_maps,
)

if TYPE_CHECKING:
    from transformer_jax.inference.pretrained import Pretrained

__all__ = [
    "DecoderAttention",
    "TextAttention",
    "TranslatorAttention",
    "decoder_attention",
    "encoder_attention",
    "one_text",
    "pieces",
    "read_pair",
    "readable_tokens",
    "translation_attention",
]


@dataclasses.dataclass(frozen=True)
class TextAttention:
    """The attention weights of every layer and head for one text.

    Attributes:
        title: The input text, prepared as in training, or the name of the recording.
        text: The translation or transcript; empty for a model that only reads.
        maps: The weights of each kind of attention, with the tokens of rows and columns.

    Example:
        >>> weights = np.full((2, 4, 1, 1), 1.0, np.float32)
        >>> attention = TextAttention("a", "", (AttentionMaps("encoder", ("a",), ("a",), weights),))
        >>> attention.tokens, attention.weights["encoder"].shape
        (('a',), (2, 4, 1, 1))
    """

    title: str
    text: str
    maps: tuple[AttentionMaps, ...]

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens of the input; for a recording, the first frames of positions."""
        first = self.maps[0]
        return first.rows if len(self.maps) == 1 and first.kind != "cross" else self._source()

    @property
    def target_tokens(self) -> tuple[str, ...]:
        """The tokens of the translation or transcript, including the end; empty without one."""
        return next((each.rows for each in self.maps if each.kind == "cross"), ())

    @property
    def weights(self) -> dict[str, Float[np.ndarray, "L N T S"]]:
        """The weights by kind: ``encoder``, ``decoder``, ``cross``.

        Shape ``[layer, head, row, column]``: the attention of a row's token to a column's token.
        Rows of a decoder are the predicted tokens; its columns are the input tokens before them.
        """
        return {each.kind: each.weights for each in self.maps}

    def __getitem__(self, kind: str) -> AttentionMaps:
        """Returns the maps of a kind: tokens ``rows`` and ``columns``, and an array ``weights``.

        Raises:
            ArgumentError: The model has no such attention.
        """
        found = next((each for each in self.maps if each.kind == kind), None)
        if found is None:
            there = ", ".join(self.weights)
            raise ArgumentError(f"attention of {kind!r}: this model has {there}")
        return found

    def html(self, path: str | Path | None = None) -> str:
        """Returns a self-contained HTML page of every layer and head.

        Args:
            path: File to write the page to, if given.

        Raises:
            ConfigError: The file cannot be written.
        """
        page = attention_html(self.maps, title=self.title, subtitle=self.text)
        if path is not None:
            _written(path, page.encode())
        return page

    def png(
        self, path: str | Path | None = None, *, kind: str | None = None, layer: int | None = -1
    ) -> bytes:
        """Returns a picture of the heads of a layer, as PNG.

        Args:
            path: File to write the picture to, if given.
            kind: ``encoder``, ``decoder`` or ``cross``; None is ``cross`` if available.
            layer: The layer, from 0, or from the last one, -1; None is all layers.

        Raises:
            ArgumentError: The model has no such attention or layer.
            ConfigError: The file cannot be written.
        """
        shown = self[kind or ("cross" if len(self.maps) > 1 else self.maps[0].kind)]
        L = shown.weights.shape[0]
        if layer is not None and not -L <= layer < L:
            raise ArgumentError(f"layer is {layer}: the layers are 0 to {L - 1}")
        title = f"{self.title} → {self.text}" if self.text else self.title
        with tempfile.TemporaryDirectory() as folder:
            draft = Path(folder) / "attention.png"
            plot_attention(shown, draft, layer=layer, title=title)
            picture = draft.read_bytes()
        if path is not None:
            _written(path, picture)
        return picture

    def _source(self) -> tuple[str, ...]:
        return next(each.columns for each in self.maps if each.kind in ("encoder", "cross"))


def _written(path: str | Path, content: bytes) -> None:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def translation_attention(
    translator: Translator,
    source: Any,
    target: str | None = None,
    search: GenerationConfig | None = None,
    direction: Direction = DEFAULT_DIRECTION,
) -> TextAttention:
    """Returns the attention of a translator for a sentence and its translation.

    The weights come from the forward pass that scores the translation.

    Args:
        translator: A model and its tokenizer.
        source: The sentence; for a transcriber, a recording.
        target: The translation; None is the result of the search.
        search: Settings of beam search; None is the translator's.
        direction: The languages, for a multilingual translator.

    Raises:
        ConfigError: A language is unknown or missing.
        DataError: The target exceeds the model's context.
    """
    tokenizer = translator.tokenizer
    read, text, ids, written = read_pair(translator, source, target, search, direction)
    inputs = [tokenizer.bos, *written[:-1]]

    filled, lengths = translator.fill_sources([ids], 1, len(ids))
    maps = translator.attend(translator.params, filled, np.asarray([inputs], np.int32), lengths)
    weights = {kind: np.asarray(array) for kind, array in maps.items()}
    start = pieces(tokenizer, [tokenizer.bos])[0]
    columns = readable_tokens(translator.source_names(ids))
    shown = translation_maps(columns, pieces(tokenizer, written), weights, start=start)
    return TextAttention(str(read), text, shown)


def read_pair(
    translator: Translator,
    source: Any,
    target: str | None = None,
    search: GenerationConfig | None = None,
    direction: Direction = DEFAULT_DIRECTION,
) -> tuple[Any, str, Source, list[int]]:
    """Returns a source and its target as they are read, and the ids of both, the end included.

    The arguments are those of :func:`translation_attention`.

    Raises:
        ConfigError: A language is unknown or missing.
        DataError: The target exceeds the model's context.
    """
    [frame] = translator.frames(direction, 1)
    read = translator.prepared(source)
    with warn_of_texts(translator.counts):
        [ids], _ = translator.encode([read], [frame])
    if target is None:
        [found] = translator.translate([source], search, direction)
        text, written = found.text, [*frame.begins, *found.tokens]
    else:
        text = translator.prepared_target(target)
        [written] = translator.encode_targets([text], [frame])
    if len(written) > translator.longest:
        raise DataError(
            f"the target has {plural(len(written), 'token')}: at most {translator.longest} are "
            f"possible: shorten it"
        )
    return read, text, ids, written


def decoder_attention(
    model: tuple[Any, Any], tokenizer: TextTokenizer, text: str, *, start: TextStart
) -> TextAttention:
    """Returns the attention of a decoder for a text.

    Args:
        model: A decoder's graph and parameters.
        tokenizer: Tokenizer used in training.
        text: The text.
        start: The tokens before a text.

    Raises:
        DataError: The text exceeds the model's context.
    """
    graph, params = model
    [ids] = tokenizer.encode_batch([text])
    longest = nnx.merge(graph, params).config.positions.max_length
    read = [*start.read(()), *ids]  # as for scores: each token of the text has a row
    if len(read) - 1 > longest:
        raise DataError(
            f"the text has {plural(len(read) - 1, 'token')}: at most {longest} are shown; shorten "
            f"it"
        )
    run = lambda params, tokens: nnx.merge(graph, params).attention_maps(tokens)
    weights = jax.jit(run)(params, np.asarray([read[:-1]], np.int32))
    begin, *written = pieces(tokenizer, read)
    maps = translation_maps([], written, {"decoder": np.asarray(weights)}, start=begin)
    return TextAttention(text, "", maps)


class TranslatorAttention:
    """Mixin: the attention of an encoder-decoder."""

    _usual: Any
    _direction: Any

    def _refuse_engine(self) -> Translator:
        raise NotImplementedError

    def attention(
        self,
        text: str,
        target: str | None = None,
        *,
        from_: str | None = None,
        to: str | None = None,
        **settings: Any,
    ) -> TextAttention:
        """Returns the attention weights of every layer and head for a sentence.

        Args:
            text: The sentence.
            target: The translation; None is the result of beam search.
            from_: Language of the sentence, for a multilingual translator.
            to: Language of the translation, for a multilingual translator.
            **settings: Settings of the search, as in a call.

        Raises:
            ArgumentError: The sentence is not a string, or empty.
            ConfigError: The model runs on CTranslate2, or has no attention.
            DataError: The target is longer than the model's positions.
        """
        translator, source = self._refuse_engine(), one_text(text)
        given = None if target is None else one_text(target, "target")
        search = TRANSLATION.changed(**self._usual | changes_of(None, settings))
        return translation_attention(translator, source, given, search, self._direction(from_, to))


class DecoderAttention:
    """Mixin: the attention of a decoder."""

    opened: "Pretrained"

    def attention(self, text: str) -> TextAttention:
        """Returns the attention weights of every layer and head for a text.

        Raises:
            ArgumentError: The text is not a string, or empty.
            ConfigError: The model is an n-gram model, or runs on CTranslate2.
            DataError: The text is longer than the model's context.
        """
        opened, facts = self.opened, self.opened.facts
        if not opened.on_jax:
            raise ConfigError(f"{facts.source}: attention needs a decoder that runs on JAX")
        read, start = facts.preparation.text(one_text(text)), facts.text_start(opened.tokenizer)
        return decoder_attention(opened.model, opened.tokenizer, read, start=start)


def encoder_attention(vectors: Any, texts: Sequence[str]) -> TextAttention:
    """Returns the attention of an encoder for a text or a pair of texts.

    Args:
        vectors: The encoder, an :class:`.Embedder`.
        texts: One or two texts.

    Raises:
        DataError: The texts exceed the model's context.
    """
    tokens, weights = vectors.attention(*texts)
    maps = translation_maps(readable_tokens(tokens), [], {"encoder": weights})
    return TextAttention("\t".join(map(vectors.prepared, texts)), "", maps)


def one_text(text: Any, what: str = "text", use: str = "attention") -> str:
    """Checks that a call of ``use`` has one text, and returns it.

    Raises:
        ArgumentError: The text is not a string, or empty.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"{use}: {what} is {type(text).__name__}: give one string")
    if not text.strip():
        raise ArgumentError(f"{use}: the {what} is empty: give a text")
    return text


def pieces(tokenizer: TextTokenizer, ids: Iterable[int]) -> list[str]:
    """Returns a readable name for each id."""
    return readable_tokens(tokenizer.convert_ids_to_tokens(ids))


def readable_tokens(tokens: Iterable[str]) -> list[str]:
    """Returns the names of tokens with visible blanks and line ends."""
    return [token.replace(" ", "▁").replace("\n", "⏎") for token in tokens]
