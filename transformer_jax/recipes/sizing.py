"""Settings derived from the data, if they are None."""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from transformer_jax.data.words import blank_words
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.recurrent_config import ModelConfig
from transformer_jax.training.settings import num_warmup_steps

if TYPE_CHECKING:
    from transformer_jax.training.task import Task

__all__ = [
    "changed_settings",
    "epochs_for",
    "from_size",
    "from_task",
    "vocabulary_for",
    "with_defaults",
    "without_attention_dropout",
]

Run = TypeVar("Run")

VOCABULARY = 8000  # maximum size of a vocabulary chosen by the text

# A run needs about a thousand steps; more than fifty epochs over the same text do not help; a token
# that occurs less than once per 200 characters is better split into its parts.
_STEPS, _FEWEST_EPOCHS, _MOST_EPOCHS = 1000, 10, 50
_CHARACTERS_A_TOKEN, _FEWEST_TOKENS = 200, 500


def vocabulary_for(texts: Sequence[str], kind: str) -> int:
    """Returns the vocabulary size for ``texts``: one token per 200 characters, 500 to 8000.

    It is a multiple of 100. A vocabulary of characters includes all of them; WordPiece has room for
    each character at the beginning of a word and within; a vocabulary of words includes words that
    occur twice, so that the remaining words train the unknown token.

    Example:
        >>> vocabulary_for(["word "] * 50_000, "bpe")
        1200
    """
    characters = sum(map(len, texts))
    size = min(VOCABULARY, characters // _CHARACTERS_A_TOKEN) // 100 * 100
    if kind in ("bpe", "unigram", "bytes"):
        return max(_FEWEST_TOKENS, size)
    if kind == "words":
        words = collections.Counter(word for text in texts for word in blank_words(text))
        repeated = sum(times > 1 for times in words.values())
        return min(VOCABULARY, max(_FEWEST_TOKENS, repeated // 100 * 100))
    alphabet: set[str] = set()
    for text in texts:
        alphabet.update(text)
    if kind == "characters":
        return len(alphabet) + 100
    return max(_FEWEST_TOKENS, size, 2 * len(alphabet) + 100)


def epochs_for(steps_per_epoch: int) -> int:
    """Returns the number of epochs for about a thousand steps, 10 to 50.

    Example:
        >>> [epochs_for(steps) for steps in (13, 40, 5000)]
        [50, 25, 10]
    """
    return min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, math.ceil(_STEPS / steps_per_epoch)))


def from_size(run: Any, steps_per_epoch: int) -> Any:
    """Returns the run with values for settings that are None: epochs, warmup, intervals.

    Args:
        run: The settings of a run of any family.
        steps_per_epoch: Steps per epoch on its data.
    """
    training, schedule = run.training, run.optimizer.schedule
    if training.steps is None and training.epochs is None:
        training = dataclasses.replace(training, epochs=epochs_for(steps_per_epoch))
    steps = training.steps or (training.epochs or 1) * steps_per_epoch
    if schedule.warmup_steps is None:
        schedule = dataclasses.replace(schedule, warmup_steps=num_warmup_steps(schedule, steps))
    return dataclasses.replace(
        run,
        training=training,
        optimizer=dataclasses.replace(run.optimizer, schedule=schedule),
        loop=run.loop.for_steps(steps),
    )


def from_task(run: Any, task: "Task") -> Any:
    """Returns the run with evaluation settings that are None derived from the data by its task.

    Args:
        run: The settings of a run of any family.
        task: The task, with complete settings.
    """
    learned: Any = getattr(task.settings, "evaluation", None)
    own = getattr(run, "evaluation", None)
    if own is None or type(own) is not type(learned):
        return run
    values = {
        field.name: getattr(learned, field.name)
        for field in dataclasses.fields(own)
        if getattr(own, field.name) is None
    }
    return dataclasses.replace(run, evaluation=dataclasses.replace(own, **values))


def changed_settings(before: Any, after: Any) -> str:
    """Returns the settings derived from the data, as ``setting value`` pairs; may be empty."""
    names = (
        "training.epochs",
        "optimizer.schedule.warmup_steps",
        "loop.evaluate_every",
        "loop.checkpoint_every",
        "evaluation.max_len_a",
        "evaluation.max_len_b",
        "evaluation.max_length",
        "evaluation.tokenize",
    )
    found = []
    for name in names:
        old: object = before
        new: object = after
        for part in name.split("."):
            old, new = getattr(old, part, None), getattr(new, part, None)
        if old != new:
            found.append(f"{name} {new}")
    return ", ".join(found)


class _NamedRuns(Mapping[str, tuple[str, Run]]):
    """Named runs with one-line descriptions; a run is made when it is asked for."""

    def __init__(self, runs: Mapping[str, tuple[str, Callable[[], Run]]]):
        self._runs = {name: (about, functools.cache(make)) for name, (about, make) in runs.items()}

    def __getitem__(self, name: str) -> tuple[str, Run]:
        about, make = self._runs[name]
        return about, _with_defaults(make())

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)


def with_defaults(
    runs: Mapping[str, tuple[str, Callable[[], Run]]],
) -> Mapping[str, tuple[str, Run]]:
    """Returns named runs whose models have the vocabulary size of their tokenizer, or its maximum.

    The compute dtype depends on the platform.

    Args:
        runs: A one-line description for each run, and a function that makes it when it is asked
            for.
    """
    return _NamedRuns(runs)


def _with_defaults(run: Run) -> Run:
    settings: Any = run
    if not isinstance(settings.model, ModelConfig):
        return run  # an n-gram model has no such settings
    compute = dataclasses.replace(settings.model.compute, dtype="auto")
    vocab = 0 if settings.tokenizer is None else settings.tokenizer.vocab_size or VOCABULARY
    model = dataclasses.replace(settings.model, vocab_size=vocab, compute=compute)
    completed: Run = dataclasses.replace(settings, model=model)
    return completed


def without_attention_dropout(config: TransformerConfig) -> TransformerConfig:
    """Returns the model without attention dropout, which fused kernels do not support."""
    attention = dataclasses.replace(config.attention, dropout=0.0)
    return dataclasses.replace(config, attention=attention)
