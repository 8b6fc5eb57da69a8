"""Settings that follow from the size of the data, where none are given."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from transformer_jax.config import TransformerConfig
from transformer_jax.training.schedules import num_warmup_steps

__all__ = ["epochs_for", "from_size", "said_of", "vocabulary_for", "with_vocabulary_shown"]

VOCABULARY = 8000  # most tokens of a vocabulary that follows from the text

# Where the numbers come from: a run of a thousand steps learns something, passes beyond the
# fiftieth over the same text do not, and a token that comes 200 characters apart on average, or
# more rarely, is learnt from its parts.
_STEPS, _FEWEST_EPOCHS, _MOST_EPOCHS = 1000, 10, 50
_CHARACTERS_A_TOKEN, _FEWEST_TOKENS = 200, 500


def vocabulary_for(texts: Sequence[str], kind: str) -> int:
    """How many tokens to learn from ``texts``: one for each 200 characters, 500 to 8000.

    Whole hundreds. A vocabulary of characters has all of them; one of WordPiece has room for
    each, at the beginning of a word and within.

    Example:
        >>> vocabulary_for(["word "] * 50_000, "bpe")
        1200
    """
    characters = sum(map(len, texts))
    size = min(VOCABULARY, characters // _CHARACTERS_A_TOKEN) // 100 * 100
    if kind in ("bpe", "unigram", "bytes"):
        return max(_FEWEST_TOKENS, size)
    alphabet: set[str] = set()
    for text in texts:
        alphabet.update(text)
    if kind == "characters":
        return len(alphabet) + 100
    return max(_FEWEST_TOKENS, size, 2 * len(alphabet) + 100)


def epochs_for(steps_per_epoch: int) -> int:
    """Passes over the data: as many as give a thousand steps, 10 to 50.

    Example:
        >>> [epochs_for(steps) for steps in (13, 40, 5000)]
        [50, 25, 10]
    """
    return min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, math.ceil(_STEPS / steps_per_epoch)))


def from_size(run: Any, steps_per_epoch: int) -> Any:
    """The run with numbers for the settings that are None: epochs, warmup, intervals.

    Args:
        run: Of any family.
        steps_per_epoch: Of its data.
    """
    training, schedule = run.training, run.optimizer.schedule
    if training.steps is None and training.epochs is None:
        training = dataclasses.replace(training, epochs=epochs_for(steps_per_epoch))
    steps = training.steps or training.epochs * steps_per_epoch
    if schedule.warmup_steps is None:
        schedule = dataclasses.replace(schedule, warmup_steps=num_warmup_steps(schedule, steps))
    return dataclasses.replace(
        run,
        training=training,
        optimizer=dataclasses.replace(run.optimizer, schedule=schedule),
        loop=run.loop.for_steps(steps),
    )


def said_of(before: Any, after: Any) -> str:
    """What :func:`from_size` chose, as ``setting value`` pairs; nothing if it chose nothing."""
    names = (
        "training.epochs",
        "optimizer.schedule.warmup_steps",
        "loop.evaluate_every",
        "loop.checkpoint_every",
    )
    found = []
    for name in names:
        old, new = before, after
        for part in name.split("."):
            old, new = getattr(old, part), getattr(new, part)
        if old != new:
            found.append(f"{name} {new}")
    return ", ".join(found)


def with_vocabulary_shown(runs: dict[str, tuple[str, Any]]) -> dict[str, tuple[str, Any]]:
    """Named runs whose models have the vocabulary that will be learnt, or the most of it."""

    def shown(run: Any) -> Any:
        if not isinstance(run.model, TransformerConfig):
            return run  # an n-gram model has no such setting
        vocab = run.tokenizer.vocab_size or VOCABULARY
        return dataclasses.replace(run, model=dataclasses.replace(run.model, vocab_size=vocab))

    return {name: (about, shown(run)) for name, (about, run) in runs.items()}
