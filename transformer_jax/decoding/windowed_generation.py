"""Text generation with a limited context: prompts cut to fit, and texts that outgrow it."""

import abc
import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.coverage import unknown_texts
from transformer_jax.data.store import TokenStore
from transformer_jax.decoding.batching import batch_by_length
from transformer_jax.decoding.options import BatchingConfig
from transformer_jax.decoding.partial_text import GenerationSequence
from transformer_jax.decoding.requests import TextScore
from transformer_jax.decoding.text_generation import CausalTextGenerator
from transformer_jax.decoding.windows import Window, windows
from transformer_jax.models.layers.basic import check_indices

__all__ = ["ContextTextGenerator", "TextStart"]


class TextStart(NamedTuple):
    """The tokens that a model reads before a text."""

    before: tuple[int, ...]  # before every prompt
    alone: int  # if the model would otherwise read nothing

    @classmethod
    def of(cls, token: int) -> "TextStart":
        """Every text begins with one token, as in models trained here."""
        return cls((token,), token)

    def read(self, ids: Sequence[int]) -> list[int]:
        """Returns the tokens that the model reads for a prompt.

        Example:
            >>> TextStart((), 9).read([4, 5]), TextStart((), 9).read([]), TextStart.of(9).read([4])
            ([4, 5], [9], [9, 4])
        """
        return [*self.before, *ids] or [self.alone]


class ContextTextGenerator(CausalTextGenerator):
    """Generates texts of any length in segments that fit into the model's context.

    Attributes:
        context: Largest number of tokens that the model reads at once.
        start: The tokens before a text.
        vocab: Size of the model's vocabulary.
        shapes: Rows of a batch, and the treatment of long prompts and full contexts.
        counts: Numbers so far: ``prompts``, those that are ``cut``, and prompts and scored texts
            with text that the tokenizer does not know, ``unknown``.
    """

    context: int
    start: TextStart
    vocab: int
    shapes: BatchingConfig
    counts: collections.Counter[str]

    @abc.abstractmethod
    def window_log_probs(
        self, texts: Sequence[Sequence[int] | np.ndarray], asked: list[tuple[int, Window]]
    ) -> Iterator[tuple[tuple[int, Window], np.ndarray]]:
        """Returns the log-probability of each token but the first, for each window of each text."""

    @abc.abstractmethod
    def segment(self, sequences: list[GenerationSequence], streaming: bool) -> Iterator[None]:
        """Reads all current tokens and writes until a context is full or all texts have ended."""

    def score(self, texts: Sequence[str], prompts: Sequence[str] | None = None) -> list[TextScore]:
        """Returns the log-probability of each text, given its prompt if there are prompts.

        In a text longer than the context, each token still sees at least half a context before it.

        Raises:
            ConfigError: The numbers of prompts and texts differ.
        """
        if prompts is not None and len(prompts) != len(texts):
            raise ConfigError(
                f"{plural(len(texts), 'text')} but {plural(len(prompts), 'prompt')}: "
                f"give one per text"
            )
        texts, prompts = [self.prepare(text) for text in texts], prompts or [""] * len(texts)
        ids = self.tokenizer.encode_batch(texts)
        before = self.tokenizer.encode_batch([self.prepare(prompt) for prompt in prompts])
        self.counts["unknown"] += unknown_texts(texts, self.tokenizer)
        known = [self.start.read(context) for context in before]
        values = self.log_probs(ids, known)
        return [
            TextScore(float(sum(worth)), tuple(tokens), tuple(worth), len(text), len(text.encode()))
            for text, tokens, worth in zip(texts, ids, values, strict=True)
        ]

    def document_log_probs(self, store: TokenStore) -> np.ndarray:
        """Returns the log-probability of every token of tokenized documents, in order."""
        documents = [store[i] for i in range(len(store))]
        found = self.log_probs(documents, [self.start.read(())] * len(store))
        return np.concatenate([np.array(values) for values in found])

    def log_probs(
        self, texts: Sequence[Sequence[int] | np.ndarray], known: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Returns the log-probability of each token of each text, after the ``known`` tokens.

        Raises:
            DataError: A token is not in the model's vocabulary.
        """
        wholes = [
            np.concatenate([np.asarray(before, np.int64), np.asarray(ids, np.int64)])
            for before, ids in zip(known, texts, strict=True)
        ]
        for whole in wholes:
            check_indices(whole, self.vocab, "token")
        out: list[list[float]] = [[] for _ in wholes]
        asked = [
            (i, window)
            for i, whole in enumerate(wholes)
            for window in windows(len(known[i]), len(whole), self.context)
        ]
        found = dict(self.window_log_probs(wholes, asked))
        for i, window in asked:
            out[i] += np.asarray(found[i, window])[window.at - window.start :].tolist()
        return out

    def prompt_tokens(self, prompt: str) -> list[int]:
        """Returns the start tokens and the tokens of the prompt, even if they exceed the context.

        Raises:
            DataError: The prompt is too long, and ``shapes.too_long`` is ``error``.
        """
        [ids] = self.tokenizer.encode_batch([prompt])
        self.counts["prompts"] += 1
        self.counts["unknown"] += unknown_texts([prompt], self.tokenizer, ids)
        room = self.context - len(self.start.before)
        if len(ids) > room:
            if self.shapes.too_long == "error":
                raise DataError(
                    f"the prompt has {plural(len(ids), 'token')}, the context allows "
                    f"{room}: shorten it, or truncate its start"
                )
            self.counts["cut"] += 1
        return self.start.read(ids)

    def batches(
        self, sequences: Sequence[GenerationSequence]
    ) -> Iterator[list[GenerationSequence]]:
        """Groups sequences of similar length that are all greedy, or all not."""
        alone = self.shapes.num_draft_tokens > 0
        return batch_by_length(sequences, self.shapes.rows[-1], alone=alone)

    def extend(self, batch: list[GenerationSequence], streaming: bool = False) -> Iterator[None]:
        """Generates to the end of each sequence; yields when a text is shown or may stop."""
        streaming = streaming or any(sequence.request.stop for sequence in batch)
        while unfinished := [sequence for sequence in batch if sequence.remaining]:
            yield from self.segment(unfinished, streaming)
            self.end_full(unfinished)

    def end_full(self, sequences: Iterable[GenerationSequence]) -> None:
        """Ends the texts whose context is full, if ``full`` is ``stop``."""
        for sequence in sequences:
            if self.shapes.full == "stop" and sequence.length > self.context:
                sequence.finish_reason = sequence.finish_reason or "length"

    def context_tokens(self, sequence: GenerationSequence) -> list[int]:
        """Returns the tokens to read next: all, or the latter half once the context is full."""
        ids = sequence.prompt_ids + sequence.tokens
        if sequence.length > self.context:
            # A prompt that is too long fills the context; tokens written later make room.
            keep = max(1, self.context // 2) if sequence.tokens else self.context
            sequence.origin = len(ids) - keep
        return ids[sequence.origin :]
