"""The most tokens of the texts of an encoder-decoder, by its run."""

import contextlib
import os
import warnings
from collections.abc import Iterator

from transformer_jax.decoding.generation_config import GenerationConfig, LengthLimit
from transformer_jax.decoding.line_translator import LineTranslator
from transformer_jax.predictors.runs import open_directory

__all__ = ["length_limit", "warn_if_limited"]


def length_limit(
    path: str | os.PathLike[str], max_len_a: float | None = None, max_len_b: int | None = None
) -> LengthLimit:
    """The limit of a run, which follows from its training data unless its settings gave one.

    A run without a limit, such as a Hugging Face folder or that of an earlier version, has
    :class:`.LengthLimit`'s.

    Args:
        path: The run directory or Hugging Face folder.
        max_len_a: Tokens for each source token; None is that of the run.
        max_len_b: Tokens beside these; None is that of the run.

    Raises:
        CheckpointError: There is no such run, or its ``config.json`` is damaged.
    """
    fields = open_directory(path).read_config().get("evaluation")
    evaluation = fields if isinstance(fields, dict) else {}
    limit = LengthLimit()
    if isinstance(longest := evaluation.get("max_length"), int):  # of summaries, any source
        limit = LengthLimit(0.0, longest)
    kept = (evaluation.get("max_len_a"), evaluation.get("max_len_b"))
    return limit.changed(*kept).changed(max_len_a, max_len_b)


@contextlib.contextmanager
def warn_if_limited(translator: LineTranslator, search: GenerationConfig) -> Iterator[None]:
    """Warns afterwards if texts reached their length limit.

    Args:
        translator: Of the texts.
        search: Of these texts.
    """
    before = translator.counts["limited"], translator.counts["lines"]
    yield
    limited, lines = (
        translator.counts[name] - count
        for name, count in zip(("limited", "lines"), before, strict=True)
    )
    if limited:
        note = translator.limit_note(limited, lines, search.limit)
        warnings.warn(f"{note}: raise max_len_a or max_len_b", stacklevel=4)
