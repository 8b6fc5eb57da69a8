"""Texts of runs: opening, caching, and batching by length."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from transformer_jax.core.config_fields import Amount, Configuration, Count
from transformer_jax.core.errors import plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.document_stream import DocumentStream, TextChunk
from transformer_jax.data.documents import TextData, TextSplits, open_texts
from transformer_jax.recipes.settings import TokenBatches
from transformer_jax.recipes.tasks.batching import TokenCache
from transformer_jax.runs.run_directory import RunDirectory

__all__ = [
    "LanguageEvaluation",
    "LengthBatches",
    "TextEvaluation",
    "TextRun",
    "WithCache",
    "open_texts_of",
    "token_cache",
]


@dataclasses.dataclass(frozen=True)
class LengthBatches(TokenBatches):
    """Training settings: duration, tokens per batch, seed."""

    num_buckets: Count = 4  # number of bucket shapes
    sequence_length: Count = 128  # maximum length of a text in tokens, with [CLS] and [SEP]

    cpu_multiple: ClassVar[int] = 8  # default multiple of padded lengths


@dataclasses.dataclass(frozen=True)
class TextEvaluation(Configuration, group="evaluation"):
    """Evaluation settings."""

    characters: Count = 1_000_000  # maximum length of validation and test texts


@dataclasses.dataclass(frozen=True)
class LanguageEvaluation(Configuration, group="evaluation"):
    """Settings of the evaluation at the end of a run."""

    ngram_orders: tuple[Count, ...] = (1, 5)  # orders of the n-gram baselines; empty is none
    ngram_tokens: Count = 4_000_000  # maximum number of training tokens for the n-gram baselines
    sample: Amount = 200  # tokens of a sample text to print at the end; 0 is none
    characters: Count = 5_000_000  # maximum length of validation and test texts, from their start


@runtime_checkable
class WithCache(Protocol):
    """The settings of a run with a cache."""

    @property
    def cache(self) -> str | None:
        """Shared folder for tokenized text; None is the run directory."""


@runtime_checkable
class TextRun(WithCache, Protocol):
    """The settings of a run on texts."""

    @property
    def data(self) -> TextData:
        """The source of the texts."""

    @property
    def evaluation(self) -> TextEvaluation | LanguageEvaluation:
        """Settings of the evaluation."""


def open_texts_of(run: TextRun) -> TextSplits:
    """Returns the texts of a run; evaluation texts are truncated as its settings specify."""
    texts, limit = open_texts(run.data), run.evaluation.characters
    valid = None if texts.valid is None else _beginning(texts.valid, limit)
    tests = {name: _beginning(test, limit) for name, test in texts.tests.items()}
    return TextSplits(texts.train, valid, tests)


def _beginning(texts: DocumentStream, characters: int) -> DocumentStream:
    """Returns the first documents, up to a number of characters."""

    def chunks() -> Iterator[TextChunk]:
        left, begun = characters, False
        for text, last in texts:
            if len(text) > left:
                log(f"{texts.name}: only the first {plural(characters, 'character')} are evaluated")
                if left or begun:
                    yield TextChunk(text[:left], True)
                return
            left, begun = left - len(text), not last
            yield TextChunk(text, last)

    identity = f"{texts.identity} beginning={characters}"
    return DocumentStream(texts.name, identity, chunks, counts=texts.counts)


def token_cache(run: WithCache, directory: RunDirectory) -> TokenCache:
    """Returns the cache of the token ids of a run's texts.

    It is in the run directory, unless the run has a cache. For a run that is only read, missing ids
    are kept in memory.
    """
    if run.cache is not None:
        return TokenCache(Path(run.cache))
    store = directory.path / "store"
    there = store.exists()
    writes = os.access(store if there else directory.path, os.W_OK)
    return TokenCache(store if there or writes else None, writes)
