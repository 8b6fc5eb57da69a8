"""Text decoded by the rules that a checkpoint was published with, as ``generate()`` decodes it."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from transformer_jax.errors import CheckpointError

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.decoding.hf_config import HFGenerationConfig
    from transformer_jax.training.run_directory import RunDirectory

__all__ = ["HFGeneratedText", "HFTextGenerator"]


class HFGeneratedText(NamedTuple):
    """One text that was written."""

    text: str
    tokens: tuple[int, ...]  # without those that were given, and without padding
    score: float


class HFTextGenerator:
    """A run's model and rules, as a function of texts.

    Attributes:
        rules: What holds.
        tokenizer: Of the run.
    """

    def __init__(
        self,
        path: Path,
        checkpoint: str,
        kind: Literal["decoder", "encoder-decoder"],
        *,
        batch: int,
        changes: dict[str, Any],
    ):
        """Loads the run at ``path``; ``changes`` go before its rules.

        Raises:
            ConfigError: Another family, or rules that cannot be kept.
            CheckpointError: There is no such run, or it is damaged.
        """
        from transformer_jax.decoding.hf_generate import HFGenerator
        from transformer_jax.predictors.runs import as_trained, first_token, load, refuse_others
        from transformer_jax.training.run_directory import RunDirectory

        run = RunDirectory.open(path)
        refuse_others(run, (kind,))
        model, self.tokenizer = load(path, checkpoint, kind=kind)
        self.rules = _rules(run, self.tokenizer, changes)
        rows = tuple(sorted({n for n in (1, 2, 4, 8, 16, 32) if n < batch} | {batch}))
        self._generator = HFGenerator(model, self.rules, rows=rows)
        self._encodes, self._batch = kind == "encoder-decoder", batch
        self._prepare = as_trained(path, trim=self._encodes)
        # A text of a model trained here begins with a token of its own.
        trained = "published" not in run.read_config()
        self._first = first_token(run, self.tokenizer)
        self._before = (self._first,) if trained else self.tokenizer.prefix_ids

    def __call__(self, texts: Iterable[str]) -> Iterator[list[HFGeneratedText]]:
        """What is written for each text, best first; nothing for an empty one to be translated."""
        remaining = iter(texts)
        while chunk := list(itertools.islice(remaining, self._batch)):
            rows = [self._ids(text) for text in chunk]
            real = [row for row in rows if row]
            found = iter(self._written(real))
            for row in rows:
                yield next(found) if row else [HFGeneratedText("", (), 0.0)]

    def _ids(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(self._prepare(text))
        if not self._encodes:
            return [*self._before, *ids] or [self._first]
        return [*self.tokenizer.prefix_ids, *ids, *self.tokenizer.suffix_ids] if ids else []

    def _written(self, rows: Sequence[list[int]]) -> Iterator[list[HFGeneratedText]]:
        if not rows:
            return
        import numpy as np

        width = max(map(len, rows))
        ids = np.full((len(rows), width), self.tokenizer.pad, np.int32)
        mask = np.zeros(ids.shape, np.int32)
        for i, row in enumerate(rows):
            where = slice(0, len(row)) if self._encodes else slice(width - len(row), width)
            ids[i, where], mask[i, where] = row, 1
        tokens, scores = self._generator.generate(ids, mask)
        known = 1 if self._encodes else width
        each = self.rules.num_return_sequences
        for i, read in enumerate(rows):
            found = slice(i * each, (i + 1) * each)
            before = [] if self._encodes else read
            yield [
                self._text(before, row[known:].tolist(), score)
                for row, score in zip(tokens[found], scores[found], strict=True)
            ]

    def _text(self, read: list[int], ids: list[int], score: Any) -> HFGeneratedText:
        from transformer_jax.decoding.requests import GenerationRequest
        from transformer_jax.decoding.writing import GenerationSequence

        ends = [i for i, token in enumerate(ids) if token in self.rules.eos_token_id]
        ids = ids[: ends[0] + 1] if ends else ids
        shown = self.tokenizer.decode(read)
        draft = GenerationSequence(
            GenerationRequest(""), 0, 0, read, self.tokenizer, shown, written=ids
        )
        return HFGeneratedText(draft.text, tuple(ids), float(score))


def _rules(
    run: "RunDirectory", tokenizer: "Tokenizer", changes: dict[str, Any]
) -> "HFGenerationConfig":
    from transformer_jax.decoding.hf_config import HFGenerationConfig, from_generation_config

    published = run.read_config().get("published")
    if published is None:
        return HFGenerationConfig(
            eos_token_id=(tokenizer.eos,),
            pad_token_id=tokenizer.pad,
            decoder_start_token_id=tokenizer.bos,
            **{"max_length": run.read_config()["model"]["positions"]["max_length"], **changes},
        )
    if not isinstance(published, dict) or not isinstance(published.get("generation"), dict):
        raise CheckpointError(f"{run.config}: published is no record of a checkpoint: damaged?")
    return dataclasses.replace(from_generation_config(published["generation"]), **changes)
