"""The start of a run: its tokenizer, its directory, and settings derived from both."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import log, show_progress
from transformer_jax.data.added_tokens import add_tokens
from transformer_jax.data.extension import extend_tokenizer
from transformer_jax.data.tokenizer import SPECIAL, Tokenizer, load_tokenizer, train_tokenizer
from transformer_jax.models.recurrent_config import ModelConfig
from transformer_jax.parallel.mesh import devices_of, is_main_process, sync_global_devices
from transformer_jax.recipes.freezing import with_new_tokens
from transformer_jax.recipes.given import normalization_of
from transformer_jax.recipes.sizing import vocabulary_for
from transformer_jax.runs.run_directory import RunDirectory, describe_run
from transformer_jax.word_vectors.initialization import vectors_of_tokens

__all__ = [
    "begin",
    "dtype_of",
    "for_device",
    "learn_tokenizer",
    "no_record",
    "with_dtype",
]


def learn_tokenizer(
    run: Any, texts: Iterable[str], special: tuple[str, ...] = SPECIAL
) -> Tokenizer:
    """Returns a tokenizer trained on texts with the settings of a run; logs a summary line."""
    settings = run.tokenizer
    began, size, why = time.monotonic(), settings.vocab_size, ""
    with show_progress("training the tokenizer"):
        if size is None:
            texts = list(texts)
            size = vocabulary_for(texts, settings.kind)
            why = f" (tokenizer.vocab_size {size} chosen by the size of the text)"
        tokenizer = train_tokenizer(
            settings.kind,
            texts,
            size,
            special=special,
            normalization=normalization_of(run),
        )
    took = time.monotonic() - began
    log(
        f"tokenizer: {settings.kind}, {plural(tokenizer.vocab_size, 'token')}{why}, trained in "
        f"{took:.1f} s"
    )
    return tokenizer


def no_record(run: Any) -> None:
    """Returns nothing: a run without a published start keeps no record."""


def begin(
    run: Any,
    learn: Callable[[], Tokenizer | None],
    new_texts: Callable[[], Iterable[str]],
    resolve: Callable[[Any, Tokenizer | None], Any],
    *,
    vocab_given: bool,
    complete: Callable[[Any, Tokenizer], Tokenizer],
    published: Callable[[Any], dict[str, Any] | None] = no_record,
) -> RunDirectory:
    """Creates a run directory with everything except the training state.

    ``config.json`` stores the run with all settings.

    Args:
        run: The settings.
        learn: Function that trains the tokenizer, unless the run names one; returns None for a run
            without texts.
        new_texts: Function that returns the texts of ``tokenizer.extend_by``.
        resolve: Function that fills in settings derived from the tokenizer and the texts, such as
            the vocabulary size of the model.
        vocab_given: Whether the user set the vocabulary size of the model.
        complete: Function that adds the recipe's tokens to the tokenizer.
        published: The record of the published model that the run starts from, or None.

    Raises:
        ConfigError: The tokenizer does not match the vocabulary size of the model, or no token is a
            word of ``model.embedding.init``.
    """
    output = run.output
    assert output is not None
    tokenizer: Tokenizer | None = None
    if run.tokenizer is not None and run.tokenizer.path is not None:
        tokenizer = load_tokenizer(run.tokenizer.path)
    elif is_main_process():
        tokenizer = learn()
    if is_main_process():
        device = devices_of(run.distributed)[0]
        if tokenizer is None:
            run = for_device(resolve(run, None), device)
        else:
            before, tokenizer = tokenizer, complete(run, _grown(tokenizer, run.tokenizer))
            # Last, so that no subword is one of the added tokens.
            tokenizer = _extended(tokenizer, run.tokenizer.extend_by, new_texts)
            run = _with_tokenizer(run, before, tokenizer, vocab_given)
            run = for_device(resolve(run, tokenizer), device)
            if run.tokenizer.vocab_size is None:
                size = dataclasses.replace(run.tokenizer, vocab_size=tokenizer.vocab_size)
                run = dataclasses.replace(run, tokenizer=size)
            if isinstance(run.model, ModelConfig) and run.model.embedding.init is not None:
                vectors_of_tokens(run.model.embedding.init, tokenizer)  # refuses bad files early
        directory = RunDirectory.create(output, overwrite=run.overwrite)
        # In this order, so that a run that is killed in between counts as empty.
        special = None if tokenizer is None else tokenizer.special or None
        kept = {"special": special, "published": published(run)}
        known = {name: value for name, value in kept.items() if value is not None}
        directory.write(directory.config, describe_run(run) | known)
        if tokenizer is not None:
            tokenizer.save(directory.tokenizer)
    sync_global_devices("begun")
    return RunDirectory.open(output)


def _with_tokenizer(run: Any, before: Tokenizer, tokenizer: Tokenizer, vocab_given: bool) -> Any:
    """Returns the run with its tokenizer, which may have tokens that ``before`` lacks.

    Raises:
        ConfigError: The user set a different vocabulary size of the model.
    """
    run = with_new_tokens(run, before, tokenizer)
    wanted = run.model.vocab_size if isinstance(run.model, ModelConfig) else None
    if vocab_given and wanted != tokenizer.vocab_size:
        raise ConfigError(
            f"the tokenizer has {plural(tokenizer.vocab_size, 'token')}, but "
            f"model.vocab_size is {wanted}: leave model.vocab_size out, to take "
            f"the size of the tokenizer"
        )
    return run


def _extended(tokenizer: Tokenizer, count: int, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """Returns the tokenizer with up to ``count`` characters and subwords; logs a summary line."""
    if not count:
        return tokenizer
    with show_progress("extending the tokenizer"):
        extended = extend_tokenizer(tokenizer, texts(), count)
    new = [extended.name(id) for id in range(tokenizer.vocab_size, extended.vocab_size)]
    letters = sum(len(name) == 1 for name in new)
    parts = [plural(letters, "character")] * bool(letters)
    parts.append(plural(len(new) - letters, "subword"))
    log(f"tokenizer: {' and '.join(parts)} learned in addition to {tokenizer.vocab_size:,}")
    return extended


def _grown(tokenizer: Tokenizer, settings: Any) -> Tokenizer:
    """Returns the tokenizer with the tokens that settings add, and a summary line."""
    grown = add_tokens(tokenizer, settings.add_tokens, settings.add_special_tokens)
    if asked := len(settings.add_tokens) + len(settings.add_special_tokens):
        new = grown.vocab_size - tokenizer.vocab_size
        there = f", {asked - new} already known" if new < asked else ""
        log(f"tokenizer: {plural(new, 'token')} added to {tokenizer.vocab_size:,}{there}")
    return grown


def for_device(run: Any, device: Any) -> Any:
    """Returns the run with unset settings chosen by the kind of device.

    These are the compute dtype (:func:`with_dtype`), and ``training.pad_to_multiple_of``: fused
    kernels need multiples of 128 on TPUs, and are fastest at multiples of 64 on GPUs.

    Args:
        run: A run of any family.
        device: One of the devices of the run.
    """
    made: Any = with_dtype(run, device)
    training: Any = getattr(made, "training", None)
    if device.platform == "cpu" or getattr(training, "pad_to_multiple_of", 0) is not None:
        return made
    unit = 128 if device.platform == "tpu" else 64
    return dataclasses.replace(
        made, training=dataclasses.replace(training, pad_to_multiple_of=unit)
    )


def with_dtype(run: Any, device: Any) -> Any:
    """Returns the run with the compute dtype of a device (:func:`dtype_of`) in place of ``auto``.

    Args:
        run: A run of any family.
        device: One of the devices of the run.
    """
    model: Any = run.model
    if not isinstance(model, ModelConfig) or model.compute.dtype != "auto":
        return run
    compute = dataclasses.replace(model.compute, dtype=dtype_of(device))
    made: Any = run
    return dataclasses.replace(made, model=dataclasses.replace(model, compute=compute))


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
