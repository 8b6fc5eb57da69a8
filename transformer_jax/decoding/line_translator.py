"""Translation of lines of text, in order, by any search."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.coverage import unknown_texts
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction, Frame
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.vocabulary_check import check_vocabulary
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig, LengthLimit
from transformer_jax.decoding.options import SpecialTokens, TranslationBatching
from transformer_jax.decoding.partial_text import GenerationSequence, Source
from transformer_jax.decoding.requests import Continuation, GenerationRequest, Translation
from transformer_jax.decoding.text_generation import TextGenerator
from transformer_jax.decoding.text_tokenizer import TextTokenizer, frame_of
from transformer_jax.models.recurrent_config import ModelConfig

__all__ = ["TRANSLATOR_SETTINGS", "Directions", "LineTranslator", "each_direction", "sampled"]

Directions: TypeAlias = Direction | Iterable[Direction]  # of all lines, or one per line
Find: TypeAlias = Callable[[GenerationSequence], list[Continuation]]


_REQUEST = GenerationRequest("")

# Settings of translators; all others need generation_config hf.
TRANSLATOR_SETTINGS = (
    *("max_new_tokens", "min_new_tokens", "max_length", "min_length", "num_beams"),
    *("num_return_sequences", "do_sample", "length_penalty", "temperature", "top_k", "top_p"),
    *("min_p", "at_limit", "normalization", "max_len_a", "max_len_b", "allow_unk", "seed"),
    "early_stopping",  # for CTranslate2
)


def sampled(config: GenerationConfig) -> bool:
    """Returns whether translations are sampled instead of searched for.

    Example:
        >>> [sampled(TRANSLATION.changed(num_beams=1, do_sample=it)) for it in (None, True)]
        [False, True]
    """
    return bool(config.do_sample) and config.num_beams == 1


def each_direction(directions: Directions) -> Iterator[Direction]:
    """Yields the direction of each line.

    Example:
        >>> list(itertools.islice(each_direction(Direction("de", "en")), 2))
        [Direction(source='de', target='en'), Direction(source='de', target='en')]
    """
    if isinstance(directions, Direction):
        return itertools.repeat(directions)
    return iter(directions)


class LineTranslator(TextGenerator[GenerationConfig]):
    """Encodes sentences as sources, and decodes the texts that a search finds.

    A subclass implements the search: see :meth:`searches`. A multilingual translator takes the
    direction of each line: lines of one batch may be translated into different languages.

    Attributes:
        vocab: Number of tokens that translations consist of.
        given: Number of fixed first tokens of every target, which never occur in its text.
        most: Largest number of tokens in a translation after these, including EOS.
        longest: Largest number of tokens in a source, including its special tokens, such as EOS.
        room: Largest number of tokens in its text.
        counts: Numbers of lines so far: ``lines``, ``empty``, ``cut``, ``unknown``, which hold text
            that the tokenizer does not know (of scored targets, too), and ``limited``, whose best
            text reached its length limit.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        config: ModelConfig,
        *,
        search: GenerationConfig = TRANSLATION,
        batching: TranslationBatching | None = None,
        preparation: Preparation | None = None,
    ):
        """Takes a tokenizer and the configuration of a model.

        Args:
            tokenizer: The tokenizer of the model.
            config: The configuration of the model.
            search: Usual settings of the search.
            batching: Batch sizes.
            preparation: The preparation of texts in training; None if they come prepared.

        Raises:
            ConfigError: The tokenizer has more tokens than the model.
        """
        self.vocab = config.decoder_vocab_size or config.vocab_size
        check_vocabulary(tokenizer, self.vocab, config.vocab_size)
        self.tokenizer = tokenizer
        self.search, self._preparation = search, preparation
        self.batching = batching or TranslationBatching()
        languages = tokenizer.languages
        own = len(tokenizer.prefix_ids) + len(tokenizer.suffix_ids)
        self.given = languages.size_of_begins if languages else len(tokenizer.target_prefix_ids)
        self.most = config.max_length - self.given
        self.longest = min(self.batching.source_lengths[-1], config.max_length)
        self.room = self.longest - (languages.size_of_sides if languages else own)
        self.counts: collections.Counter[str] = collections.Counter()

    def prepared(self, line: str) -> str:
        """Returns a source as in training."""
        return line if self._preparation is None else self._preparation.source(line)

    def prepared_target(self, line: str) -> str:
        """Returns a target as in training."""
        return line if self._preparation is None else self._preparation.line(line)

    def frames(self, directions: Directions, count: int) -> list[Frame]:
        """Returns the special tokens of the next ``count`` lines.

        Raises:
            ConfigError: The translator does not know a language, or needs one that is missing.
        """
        each = itertools.islice(each_direction(directions), count)
        return [frame_of(self.tokenizer, direction) for direction in each]

    def translate(
        self,
        lines: Iterable[str],
        search: GenerationConfig | None = None,
        directions: Directions = DEFAULT_DIRECTION,
    ) -> list[Translation]:
        """Returns a translation of each line, in order. An empty line stays empty.

        Raises:
            ConfigError: A language of the directions is unknown or missing.
            DataError: A line is too long, and ``batching.too_long`` is ``error``.
            NumericsError: The model computed NaN or infinity.
        """
        return list(self.stream(lines, search, directions))

    def stream(
        self,
        lines: Iterable[str],
        search: GenerationConfig | None = None,
        directions: Directions = DEFAULT_DIRECTION,
        find: Find | None = None,
    ) -> Iterator[Translation]:
        """Yields translations window by window, as soon as each is read and translated: for pipes.

        With ``do_sample`` and one beam, translations are sampled instead of searched for. A
        translation then depends only on ``seed``, the line and its index.

        Args:
            lines: Sentences.
            search: The settings; None uses the translator's.
            directions: The direction of all lines, or one per line.
            find: Maps a sequence without tokens to its texts, best first; None is the search of the
                settings.

        Raises:
            ConfigError: A setting does not apply to translators; a language is unknown or missing.
        """
        config = search or self.search
        self.check(config)
        remaining, number, each = map(self.prepared, lines), 0, each_direction(directions)
        while window := list(itertools.islice(remaining, self.batching.window)):
            yield from self._translations(window, config, number, each, find)
            number += len(window)

    def check(self, config: GenerationConfig) -> None:
        """Refuses settings that do not apply to translators.

        Raises:
            ConfigError: Names the setting.
        """
        reason = "only generation_config hf (the search of transformers) supports it: leave it out"
        config.refuse_settings(TRANSLATOR_SETTINGS, reason)
        if not sampled(config):
            drawn = {"top_k", "top_p", "min_p"} | ({"temperature"} if config.temperature else set())
            taken = [name for name in TRANSLATOR_SETTINGS if name not in drawn]
            config.refuse_settings(taken, "it is for sampling: set do_sample and num_beams 1")
        elif config.num_return_sequences > 1:
            raise ConfigError(
                f"num_return_sequences is {config.num_return_sequences}: a line has one sample: "
                f"repeat the line, or leave do_sample out"
            )

    def beam_config(self, config: GenerationConfig) -> GenerationConfig | None:
        """Returns the beam search of a config; None if it samples."""
        return None if sampled(config) else config

    def with_beam_config(
        self, config: GenerationConfig, search: GenerationConfig
    ) -> GenerationConfig:
        """Returns the given beam search."""
        del config
        return search

    def final_text(self, text: Continuation) -> str:
        """Returns a text on one line."""
        return text.text.replace("\r", " ").replace("\n", " ")

    def encode(
        self, lines: Sequence[str], frames: Sequence[Frame] | None = None, earlier: int = 0
    ) -> tuple[Sequence[Source], list[bool]]:
        """Returns each line's framed ids, and whether it was cut; ``earlier`` lines precede them.

        Args:
            lines: Prepared sentences.
            frames: The special tokens of each; None uses the default direction.
            earlier: Number of earlier lines, for messages.

        Raises:
            DataError: A line is too long, and ``batching.too_long`` is ``error``.
        """
        frames = self.frames(DEFAULT_DIRECTION, len(lines)) if frames is None else frames
        room, encoded = self.room, self.tokenizer.encode_batch(list(lines))
        cut = [len(ids) > room for ids in encoded]
        if any(cut) and self.batching.too_long == "error":
            i = cut.index(True)
            raise DataError(
                f"line {earlier + i + 1} has {plural(len(encoded[i]), 'token')}: at most {room} "
                f"are read; split it, or let it be cut"
            )
        self.counts["cut"] += sum(cut)
        read = frozenset(itertools.chain.from_iterable(encoded))
        self.counts["unknown"] += unknown_texts(lines, self.tokenizer, read)
        framed = zip(frames, encoded, strict=True)
        return [[*frame.before, *ids[:room], *frame.after] for frame, ids in framed], cut

    def cut_note(self, count: int, lines: int) -> str:
        """Returns the beginning of a message about sources that were not read to their end.

        Args:
            count: Number of such sources.
            lines: Number of all sources.
        """
        return (
            f"{count:,} of {plural(lines, 'line')} exceeded {plural(self.room, 'token')}; end "
            f"truncated"
        )

    def limit_note(self, count: int, lines: int, limit: LengthLimit | None = None) -> str:
        """Returns the beginning of a message about texts that reached their length limit.

        Args:
            count: Number of such texts.
            lines: Number of all texts.
            limit: Limit of the search; None uses the translator's.
        """
        limit = self.search.limit if limit is None else limit
        tokens = str(limit) if limit.max_len_a else plural(int(limit.max_len_b), "token")
        tokens += " tokens" * bool(limit.max_len_a)
        return (
            f"{count:,} of {plural(lines, 'text')} reached the length limit ({tokens}, at most "
            f"{self.most:,}) and may be cut"
        )

    def special_tokens(self, allow_unk: bool = True) -> SpecialTokens:
        """Returns ends, padding, and tokens never written: padding, BOS, tags, and unused ids."""
        out = {self.tokenizer.pad, self.tokenizer.bos}
        out |= self.tokenizer.languages.ids if self.tokenizer.languages else set()
        out |= set(range(self.tokenizer.vocab_size, self.vocab))
        if not allow_unk and self.tokenizer.unk is not None:
            out.add(self.tokenizer.unk)
        eos, *more = self.tokenizer.end_tokens
        suppressed = tuple(sorted(out - {eos, *more}))
        return SpecialTokens(eos, self.tokenizer.pad, suppressed, tuple(more))

    def _translations(
        self,
        lines: list[str],
        config: GenerationConfig,
        number: int,
        directions: Directions,
        find: Find | None,
    ) -> Iterator[Translation]:
        """Translates one window of prepared lines; ``number`` lines precede it."""
        frames = self.frames(directions, len(lines))
        sources, cut = self.encode(lines, frames, self.counts["lines"])
        framing = self.longest - self.room  # an empty line has no other tokens, and stays empty
        sequences = [
            self._sequence(line, source, frame, config, index=i, number=number + i)
            for i, (line, source, frame) in enumerate(zip(lines, sources, frames, strict=True))
            if len(source) > framing
        ]
        self.counts.update(lines=len(lines), empty=len(lines) - len(sequences))
        found = (
            self.search_texts(sequences, config)
            if find is None
            else {sequence.index: find(sequence) for sequence in sequences}
        )
        best = [texts[0] for texts in found.values() if texts]
        self.counts["limited"] += sum(text.finish_reason == "length" for text in best)
        empty = {*range(len(lines))} - {sequence.index for sequence in sequences}
        found |= {i: [Continuation("", (), 0.0, "end", 0.0)] for i in empty}
        for i, line in enumerate(lines):
            texts = tuple(
                dataclasses.replace(text, text=self.final_text(text)) for text in found[i]
            )
            yield Translation(line, texts, cut[i])

    def sequence(
        self,
        line: str,
        config: GenerationConfig,
        direction: Direction = DEFAULT_DIRECTION,
        number: int = 0,
    ) -> GenerationSequence:
        """Returns the sequence for a line, before its first generated token.

        Args:
            line: A sentence.
            config: Config of its search.
            direction: Its languages.
            number: Number of earlier lines, for messages.

        Raises:
            ConfigError: A language is unknown or missing.
            DataError: The line is too long, and ``batching.too_long`` is ``error``.
        """
        line, [frame] = self.prepared(line), self.frames(direction, 1)
        [source], _ = self.encode([line], [frame], number)
        return self._sequence(line, source, frame, config, number=number)

    def _sequence(
        self,
        line: str,
        source: Source,
        frame: Frame,
        config: GenerationConfig,
        *,
        index: int = 0,
        number: int = 0,
    ) -> GenerationSequence:
        return GenerationSequence(
            _REQUEST.with_prompt(line, number),
            index=index,
            sample=0,
            prompt_ids=[],
            tokenizer=self.tokenizer,
            prompt_text="",
            source=source,
            begins=frame.begins,
            limit=config.target_tokens(len(source), self.most),
        )
