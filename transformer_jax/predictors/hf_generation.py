"""Text generation by a checkpoint's generation config, as ``generate()`` of transformers does."""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from transformer_jax.decoding.hf_config import HFGenerationConfig, from_generation_config
from transformer_jax.decoding.hf_generate import HFGenerator
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.decoding.writing import GenerationSequence
from transformer_jax.errors import CheckpointError
from transformer_jax.predictors.runs import as_trained, first_token, open_directory

__all__ = ["HFGeneratedText", "HFTextGenerator"]


class HFGeneratedText(NamedTuple):
    """One generated text."""

    text: str
    tokens: tuple[int, ...]  # without the prompt and padding
    score: float


class HFTextGenerator:
    """A run's model and generation config, as a function of texts.

    Attributes:
        tokenizer: Tokenizer of the run.
    """

    def __init__(
        self,
        path: Path,
        kind: Literal["decoder", "encoder-decoder"],
        loaded: Any,
        *,
        batch: int,
        changes: Mapping[str, Any] | None = None,
    ):
        """Takes what :func:`~transformer_jax.predictors.runs.load` loaded of the run at ``path``.

        Args:
            path: The run.
            kind: Its family.
            loaded: Graph and parameters, and the tokenizer.
            batch: Most texts at once.
            changes: Settings that replace those of the generation config.
        """
        run = open_directory(path)
        # The run is read now; weights are prepared and its generation config checked at first use.
        self._fields, self._where, self._changes = run.read_config(), run.config, changes or {}
        self._model, self.tokenizer = loaded
        self._encodes, self._batch = kind == "encoder-decoder", batch
        self._prepare = as_trained(path, trim=self._encodes)
        self._first = first_token(run, self.tokenizer)
        # A text of a model trained here begins with a token of its own.
        trained = "published" not in self._fields
        self._before = (self._first,) if trained else self.tokenizer.prefix_ids

    @functools.cached_property
    def rules(self) -> HFGenerationConfig:
        """The generation config.

        Raises:
            ConfigError: A setting that cannot be, or that is not supported.
            CheckpointError: The generation config is damaged.
        """
        published, changes = self._fields.get("published"), self._changes
        if published is None:
            longest = self._fields["model"]["positions"]["max_length"]
            return HFGenerationConfig(
                eos_token_id=(self.tokenizer.eos,),
                pad_token_id=self.tokenizer.pad,
                decoder_start_token_id=self.tokenizer.bos,
                **{"max_length": longest, **changes},
            )
        if not isinstance(published, dict) or not isinstance(published.get("generation"), dict):
            raise CheckpointError(
                f"{self._where}: published is no record of a checkpoint: damaged?"
            )
        return dataclasses.replace(from_generation_config(published["generation"]), **changes)

    @functools.cached_property
    def _generator(self) -> HFGenerator:
        sizes = (1, 2, 4, 8, 16, 32)
        rows = tuple(sorted({n for n in sizes if n < self._batch} | {self._batch}))
        return HFGenerator(self._model, self.rules, rows=rows)

    def __call__(
        self, texts: Iterable[str], changes: Mapping[str, Any] | None = None
    ) -> Iterator[list[HFGeneratedText]]:
        """The texts generated for each input, best first; an empty input to translate stays empty.

        Args:
            texts: Prompts, or sentences to translate.
            changes: Settings of this call that replace those of the generation config.
        """
        rules = dataclasses.replace(self.rules, **changes) if changes else self.rules
        remaining = iter(texts)
        while chunk := list(itertools.islice(remaining, self._batch)):
            rows = [self._ids(text) for text in chunk]
            real = [row for row in rows if row]
            found = iter(self._generated(real, rules))
            for row in rows:
                yield next(found) if row else [HFGeneratedText("", (), 0.0)]

    def _ids(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(self._prepare(text))
        if not self._encodes:
            return [*self._before, *ids] or [self._first]
        return [*self.tokenizer.prefix_ids, *ids, *self.tokenizer.suffix_ids] if ids else []

    def _generated(
        self, rows: Sequence[list[int]], rules: HFGenerationConfig
    ) -> Iterator[list[HFGeneratedText]]:
        if not rows:
            return
        width = max(map(len, rows))
        ids = np.full((len(rows), width), self.tokenizer.pad, np.int32)
        mask = np.zeros(ids.shape, np.int32)
        for i, row in enumerate(rows):
            where = slice(0, len(row)) if self._encodes else slice(width - len(row), width)
            ids[i, where], mask[i, where] = row, 1
        tokens, scores = self._generator.generate(ids, mask, rules)
        known = 1 if self._encodes else width
        each = rules.num_return_sequences
        for i, read in enumerate(rows):
            found = slice(i * each, (i + 1) * each)
            before = [] if self._encodes else read
            yield [
                self._text(before, row[known:].tolist(), score)
                for row, score in zip(tokens[found], scores[found], strict=True)
            ]

    def _text(self, read: list[int], ids: list[int], score: Any) -> HFGeneratedText:
        ends = [i for i, token in enumerate(ids) if token in self.rules.eos_token_id]
        ids = ids[: ends[0] + 1] if ends else ids
        shown = self.tokenizer.decode(read)
        draft = GenerationSequence(
            GenerationRequest(""), 0, 0, read, self.tokenizer, shown, written=ids
        )
        return HFGeneratedText(draft.text, tuple(ids), float(score))
