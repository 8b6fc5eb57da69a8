"""Settings derived from the data or the device, if they are None."""

import collections
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from transformer_jax.data.words import blank_words
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.recurrent_config import ModelConfig
from transformer_jax.recipes.settings import AnyRun, Run
from transformer_jax.training.settings import num_warmup_steps

__all__ = [
    "changed_settings",
    "dtype_of",
    "epochs_for",
    "for_device",
    "vocabulary_for",
    "with_defaults",
    "with_dtype",
    "with_step_intervals",
    "without_attention_dropout",
]

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


def with_step_intervals(run: Run, steps_per_epoch: int) -> Run:
    """Returns the run with values for settings that are None: epochs, warmup, intervals.

    Args:
        run: The settings.
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


def changed_settings(before: Run, after: Run) -> str:
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
        self._makers, self._runs = runs, dict[str, Run]()

    def __contains__(self, name: object) -> bool:
        return name in self._makers  # without making the run

    def __getitem__(self, name: str) -> tuple[str, Run]:
        about, make = self._makers[name]
        if name not in self._runs:
            self._runs[name] = _with_defaults(make())
        return about, self._runs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


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
    compute = dataclasses.replace(run.model.compute, dtype="auto")
    vocab = 0 if run.tokenizer is None else run.tokenizer.vocab_size or VOCABULARY
    model = dataclasses.replace(run.model, vocab_size=vocab, compute=compute)
    return dataclasses.replace(run, model=model)


def without_attention_dropout(config: TransformerConfig) -> TransformerConfig:
    """Returns the model without attention dropout, which fused kernels do not support."""
    attention = dataclasses.replace(config.attention, dropout=0.0)
    return dataclasses.replace(config, attention=attention)


def for_device(run: AnyRun, device: Any) -> AnyRun:
    """Returns the run with unset settings chosen by the kind of device.

    These are the compute dtype (:func:`with_dtype`), and ``training.pad_to_multiple_of``: fused
    kernels need multiples of 128 on TPUs, and are fastest at multiples of 64 on GPUs.

    Args:
        run: A run of any family.
        device: One of the devices of the run.
    """
    run = with_dtype(run, device)
    training: Any = getattr(run, "training", None)
    if device.platform == "cpu" or getattr(training, "pad_to_multiple_of", 0) is not None:
        return run
    unit = 128 if device.platform == "tpu" else 64
    changed: Any = {"training": dataclasses.replace(training, pad_to_multiple_of=unit)}
    return dataclasses.replace(run, **changed)


def with_dtype(run: AnyRun, device: Any) -> AnyRun:
    """Returns the run with the compute dtype of a device (:func:`dtype_of`) in place of ``auto``.

    Args:
        run: A run of any family.
        device: One of the devices of the run.
    """
    model = run.model
    if not isinstance(model, ModelConfig) or model.compute.dtype != "auto":
        return run
    compute = dataclasses.replace(model.compute, dtype=dtype_of(device))
    changed: Any = {"model": dataclasses.replace(model, compute=compute)}
    return dataclasses.replace(run, **changed)


def dtype_of(device: Any) -> Literal["float32", "bfloat16"]:
    """Returns the default compute dtype of a device.

    bfloat16 on TPUs and on GPUs of compute capability 8.0 (Ampere) or later, whose matrix units are
    several times faster in it; float32 on CPUs and on earlier GPUs, which emulate bfloat16.

    Example:
        >>> import jax
        >>> dtype_of(jax.devices("cpu")[0])
        'float32'
    """
    capability = getattr(device, "compute_capability", None) or "8.0"
    # AMD's names, such as gfx90a, are not numbers.
    early = capability.replace(".", "").isdecimal() and float(capability) < 8.0
    return "float32" if device.platform == "cpu" or early else "bfloat16"
