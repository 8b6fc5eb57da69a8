"""Generation of texts by search: the common part of translators and language models."""

import abc
import collections
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import jax

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.decoding.generation_config import MOST_BEAMS, GenerationConfig
from transformer_jax.decoding.partial_text import GenerationSequence, stable_prefix
from transformer_jax.decoding.requests import Continuation, GenerationRequest, numbered
from transformer_jax.decoding.search_state import SearchResult
from transformer_jax.decoding.text_tokenizer import TextTokenizer

__all__ = [
    "CausalTextGenerator",
    "Found",
    "Pending",
    "TextGenerator",
    "beam_search_of",
    "read_hypotheses",
]

# Number of batches in flight: the device computes one while the next is prepared.
AHEAD = 2

# Factor of kept hypotheses if beam search finds repeated texts, and factor of beams if that is not
# enough.
_DEEPER, _WIDER = 16, 4

# Continuations by the index of their request, and their index among its samples or beams.
Found = dict[tuple[int, int], Continuation]

# A batch whose search has started; the call waits for its continuations.
Pending = Callable[[], Found]

Config = TypeVar("Config")


class TextGenerator(abc.ABC, Generic[Config]):
    """Turns sequences into texts: batches, several of them in flight, and results in order.

    A subclass defines which sequences form a batch and how it is searched. ``Config`` is the type
    of its search settings.

    Attributes:
        tokenizer: The model's tokenizer.
    """

    tokenizer: TextTokenizer

    @abc.abstractmethod
    def searches(
        self, sequences: Sequence[GenerationSequence], config: Config, kept: int | None = None
    ) -> Iterator[Pending]:
        """Starts the search of one batch at a time, whenever the iterator advances.

        Args:
            sequences: The sequences.
            config: The search settings.
            kept: Number of finished hypotheses of beam search to return; None is
                ``num_return_sequences``.
        """

    def beam_config(self, config: Config) -> GenerationConfig | None:
        """Returns a config's beam search if its texts must be distinct; None for any other search.

        Args:
            config: The search settings.
        """
        del config
        return None

    def with_beam_config(self, config: Config, search: GenerationConfig) -> Config:
        """Returns ``config`` with the given beam search."""
        raise NotImplementedError

    def final_text(self, text: Continuation) -> str:
        """Returns the text of a continuation in the form that the caller receives."""
        return text.text

    def search_texts(
        self, sequences: Sequence[GenerationSequence], config: Config
    ) -> dict[int, list[Continuation]]:
        """Returns the continuations of each sequence, best first, by its index.

        The ``num_return_sequences`` texts of beam search are distinct: a different segmentation of
        the same text does not count. If hypotheses repeat a text, the search keeps more of them,
        and then uses more beams; there are fewer texts if it finds no others.

        Raises:
            NumericsError: The model computed NaN or infinity.
        """
        texts = self._search_all(sequences, config)
        search = self.beam_config(config)
        if search is None or search.num_return_sequences == 1:
            return texts
        most, kept = search.num_return_sequences, _DEEPER * search.num_return_sequences
        returned = {index: len(row) for index, row in texts.items()}
        texts = {index: self._distinct(row) for index, row in texts.items()}
        # More may exist if as many came back as were kept, some of them repeated.
        full = [
            one
            for one in sequences
            if len(texts.get(one.index, ())) < most == returned.get(one.index)
        ]
        if full:
            deeper = self._search_all(full, config, kept)
            texts |= {index: self._distinct(row) for index, row in deeper.items()}
        wide = dataclasses.replace(search, num_beams=min(MOST_BEAMS, _WIDER * search.num_beams))
        for one in full:  # one by one: that many beams take memory
            if len(texts[one.index]) < most:
                found = self._search_all([one], self.with_beam_config(config, wide), kept)
                row = [*texts[one.index], *found.get(one.index, ())]
                texts[one.index] = sorted(self._distinct(row), key=lambda text: -text.score)
        return {index: row[:most] for index, row in texts.items()}

    def _distinct(self, texts: Sequence[Continuation]) -> list[Continuation]:
        """Returns the first continuation of each distinct text."""
        first: dict[str, Continuation] = {}
        for text in texts:
            first.setdefault(self.final_text(text), text)
        return list(first.values())

    def _search_all(
        self, sequences: Sequence[GenerationSequence], config: Config, kept: int | None = None
    ) -> dict[int, list[Continuation]]:
        """Returns the continuations of each sequence from one search, by its index."""
        found: Found = {}
        pending: collections.deque[Pending] = collections.deque()
        for started in self.searches(sequences, config, kept):
            pending.append(started)
            if len(pending) >= AHEAD:
                found |= pending.popleft()()
        while pending:
            found |= pending.popleft()()
        return _in_order(found)


class CausalTextGenerator(TextGenerator[GenerationConfig]):
    """Turns requests into texts: samples, beams, streaming, stop strings and finish reasons.

    A subclass defines which tokens its model reads for a prompt, which sequences form a batch, and
    how a batch is generated or searched.

    Attributes:
        end_tokens: Tokens that end a text; None uses the tokenizer's.
        adapters: Names of the adapters that a request may choose.
        prepare: Prepares a prompt or a text to score as in training; by default they come prepared.
    """

    prepare: Callable[[str], str] = staticmethod(str)
    end_tokens: tuple[int, ...] | None = None
    adapters: tuple[str, ...] = ()

    @abc.abstractmethod
    def prompt_tokens(self, prompt: str) -> list[int]:
        """Returns the tokens that the model reads for a prompt."""

    @abc.abstractmethod
    def batches(
        self, sequences: Sequence[GenerationSequence]
    ) -> Iterator[list[GenerationSequence]]:
        """Groups sequences for generation; all have the same ``num_beams``."""

    @abc.abstractmethod
    def extend(self, batch: list[GenerationSequence], streaming: bool = False) -> Iterator[None]:
        """Generates the tokens of a batch to their ends.

        Args:
            batch: Sampled or greedy sequences.
            streaming: Whether the caller reads the texts whenever this yields.
        """

    @abc.abstractmethod
    def search(
        self, batch: list[GenerationSequence], config: GenerationConfig, kept: int | None
    ) -> Pending:
        """Starts beam search of a batch.

        Args:
            batch: The sequences.
            config: The beam search.
            kept: Number of continuations per sequence; None is ``num_return_sequences``.
        """

    def searches(
        self,
        sequences: Sequence[GenerationSequence],
        config: GenerationConfig,
        kept: int | None = None,
    ) -> Iterator[Pending]:
        """Starts the search of one batch at a time."""
        return (self.search(batch, config, kept) for batch in self.batches(sequences))

    def beam_config(self, config: GenerationConfig) -> GenerationConfig:
        """Returns the config, which is itself a beam search."""
        return config

    def with_beam_config(
        self, config: GenerationConfig, search: GenerationConfig
    ) -> GenerationConfig:
        """Returns the given beam search."""
        del config
        return search

    def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Continuation]]:
        """Returns the continuations of each prompt: samples, or beam search results, best first.

        Samples depend on the seed, and on the indices of request and sample.

        Raises:
            DataError: The model refuses a prompt.
            NumericsError: The model computed NaN or infinity.
        """
        sampled, searched = [], collections.defaultdict(list)
        for index, request in enumerate(numbered(requests)):
            for sequence in self.sequences(request, index):
                if request.num_beams == 1:
                    sampled.append(sequence)
                else:
                    searched[beam_search_of(request)].append(sequence)
        found: Found = {}
        for batch in self.batches(sampled):
            collections.deque(self.extend(batch), maxlen=0)
            found |= {(one.index, one.sample): one.done() for one in batch}
        texts = _in_order(found)
        for config, alike in searched.items():
            texts |= self.search_texts(alike, config)
        return [texts.get(index, []) for index in range(len(requests))]

    def stream(self, request: GenerationRequest) -> Iterator[str]:
        """Yields the first continuation in parts, each once it is final.

        Beam search yields its best text at the end.
        """
        sequence = next(self.sequences(request, 0))
        if request.num_beams > 1:
            yield self.search_texts([sequence], beam_search_of(request))[0][0].text
            return
        yield from self.stream_sequence(sequence)

    def stream_sequence(self, sequence: GenerationSequence) -> Iterator[str]:
        """Yields the text of a sampled or greedy sequence in parts, each once it is final."""
        sent = 0
        for _ in self.extend([sequence], streaming=True):
            text = stable_prefix(sequence.text, sequence.request.stop_spellings)
            if len(text) > sent:
                yield text[sent:]
                sent = len(text)
        if len(sequence.text) > sent:
            yield sequence.text[sent:]

    def sequences(self, request: GenerationRequest, index: int) -> Iterator[GenerationSequence]:
        """Returns one sequence per sample of a request, before its first generated token.

        Raises:
            DataError: The model refuses the prompt.
            ConfigError: The model has no such adapter.
        """
        if request.adapter is not None and request.adapter not in self.adapters:
            known = ", ".join(self.adapters) or "none: see with_adapters"
            raise ConfigError(f"adapter is {request.adapter}: there are {known}")
        given = request.prompt_ids
        read = self.prompt_tokens(self.prepare(request.prompt)) if given is None else list(given)
        shown = self.tokenizer.decode(read)
        for sample in range(request.num_return_sequences if request.num_beams == 1 else 1):
            yield GenerationSequence(
                request,
                index,
                sample,
                list(read),
                self.tokenizer,
                shown,
                end_tokens=self.end_tokens,
                limit=request.new_tokens(len(read)),
            )


def read_hypotheses(batch: Sequence[GenerationSequence], output: SearchResult) -> Found:
    """Returns the continuations of a batch from a search; waits for the device.

    Args:
        batch: Sequences of the first rows; further rows are padding.
        output: The result of the search.

    Raises:
        NumericsError: The model computed NaN or infinity.
    """
    refuse_nonfinite(output.log_probs[: len(batch)])
    columns = [part.tolist() for part in jax.device_get(output)]
    return {
        (sequence.index, place): sequence.completed(ids[:n], log_prob, score, cut=not ended)
        for row, sequence in enumerate(batch)
        for place, (ids, n, log_prob, score, ended) in enumerate(
            zip(*(column[row] for column in columns), strict=True)
        )
        if n
    }


def beam_search_of(request: GenerationRequest) -> GenerationConfig:
    """Returns beam search by the log-probability of the complete text, which a limit may cut.

    Args:
        request: Request with ``num_beams`` and ``num_return_sequences``.

    Example:
        >>> beam_search_of(GenerationRequest("a", num_beams=3)).at_limit
        'cut'
    """
    return GenerationConfig(
        num_beams=request.num_beams,
        num_return_sequences=request.num_return_sequences,
        normalization="none",
    )


def _in_order(found: Found) -> dict[int, list[Continuation]]:
    """Continuations by the index of their request, ordered by their second index."""
    texts: dict[int, list[Continuation]] = collections.defaultdict(list)
    for index, place in sorted(found):
        texts[index].append(found[index, place])
    return dict(texts)
