"""Runs on preferences and rewards: ``decoder_only align``."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from transformer_jax.chat.encoding import ChatEncoder
from transformer_jax.chat.template import copy_template, find_template
from transformer_jax.data.preferences import PreferenceSplits, open_preferences
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import ConfigError, DataError, plural
from transformer_jax.parallel.mesh import is_main_process, sync_global_devices
from transformer_jax.predictors.chats import encoder_of
from transformer_jax.predictors.text_starts import first_token
from transformer_jax.runs import begin as beginning
from transformer_jax.runs import checks
from transformer_jax.runs.alignment_settings import PolicyRun, PreferenceRun, read
from transformer_jax.runs.freezing import check_layers, initial_of, partition_for
from transformer_jax.runs.initial import Initial, load_pretrained
from transformer_jax.runs.reference import FAMILIES, kept_reference
from transformer_jax.runs.rewarding import RewardSource, check_form, check_reward, reward_source
from transformer_jax.runs.settings import batching_of, was_given
from transformer_jax.runs.train import train as train_run
from transformer_jax.tasks.on_policy_task import Learning, PromptRows, from_samples
from transformer_jax.tasks.preference_task import (
    CompletionRows,
    Encoded,
    encode_splits,
    preference,
    reward_config,
    reward_model,
)
from transformer_jax.training.activity import log
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.task import Task

__all__ = [
    "AlignRun",
    "begin",
    "make_task",
    "open_run",
    "policy_task",
    "preference_task",
    "rewarding",
    "train",
]

AlignRun: TypeAlias = PreferenceRun | PolicyRun
# Log-probabilities of the reference by part: of the run, its directory and tokenizer, its examples
# and how they become batches.
Reference: TypeAlias = Callable[
    [PreferenceRun, RunDirectory, Tokenizer, Encoded, CompletionRows], dict[str, Any]
]


LONGEST = 512  # tokens of a row, where the run does not say


def begin(run: AlignRun, named: AlignRun) -> tuple[AlignRun, RunDirectory, PreferenceSplits]:
    """Create a run directory; returns the run with all settings, its directory, and its data."""
    if run.init_from is None:
        raise ConfigError(
            "align needs --init-from RUN_OR_FOLDER, a trained language model to start from"
        )
    start = load_pretrained(run.init_from, FAMILIES)
    is_reward = isinstance(run, PreferenceRun) and run.align.method == "reward"
    run = start.settings(run, named, reward_config(start.model) if is_reward else None)
    check_layers(run, start)
    if isinstance(run, PreferenceRun) and run.align.max_length is None:
        align = dataclasses.replace(run.align, max_length=min(LONGEST, run.model.max_length))
        run = dataclasses.replace(run, align=align)
    if isinstance(run, PolicyRun) and isinstance(named, PolicyRun):
        run = _within_positions(run, named)
    run = checks.checked(run, named)  # type: ignore[type-var]
    if isinstance(run, PolicyRun):
        checks.check_rows(run)
        check_reward(run, start, _first(run, start))
    else:
        _check_whole_batches(run)
        _check_precision(run)
    splits = open_run(run)
    conversational = _check_conversations(run, splits, start)
    if isinstance(run, PolicyRun):
        check_form(run, start, splits.train)
    resolve = functools.partial(_resolved, start)
    directory = beginning.begin(run, lambda: start.tokenizer, resolve, vocab_given=False)
    if is_main_process() and (conversational or not is_reward):
        copy_template(start.directory.path, directory.path)  # it answers conversations still
    sync_global_devices("template")
    return read(directory), directory, splits


def _within_positions(run: PolicyRun, named: PolicyRun) -> PolicyRun:
    """The run with prompts and completions that its start has positions for.

    A length that was asked for stays. Completions get at most half of the positions.
    """
    align, most = run.align, run.model.max_length
    prompt, new = align.max_prompt_length, align.max_new_tokens
    if prompt + new <= most:
        return run
    if not _asked(run, named, "max_new_tokens"):
        asked = _asked(run, named, "max_prompt_length")
        new = min(new, most - prompt if asked else most // 2)
    if not _asked(run, named, "max_prompt_length"):
        prompt = min(prompt, most - new)
    if min(prompt, new) < 1 or prompt + new > most:
        return run  # refused, with both numbers
    log(
        f"prompts of at most {plural(prompt, 'token')} and completions of at most {new}, which "
        f"{run.init_from} has positions for"
    )
    align = dataclasses.replace(align, max_prompt_length=prompt, max_new_tokens=new)
    return dataclasses.replace(run, align=align)


def _asked(run: PolicyRun, named: PolicyRun, name: str) -> bool:
    changed: bool = getattr(run.align, name) != getattr(named.align, name)
    return changed or was_given(f"align.{name}")


def _check_whole_batches(run: PreferenceRun) -> None:
    """Refuses to divide batches of KTO, whose rows are compared with each other."""
    training = run.training
    if run.align.method != "kto":
        return
    if training.gradient_accumulation_steps > 1:
        raise ConfigError(
            f"training.gradient_accumulation_steps is {training.gradient_accumulation_steps}: kto "
            f"compares all rows of a batch with each other: leave it out"
        )
    if training.mode == "pmap":
        raise ConfigError(
            "training.mode is pmap: kto compares all rows of a batch with each other: use jit"
        )


def _check_conversations(run: AlignRun, splits: PreferenceSplits, start: Initial) -> bool:
    """Whether prompts are conversations; refuses those that the run cannot learn from."""
    parts = [part for part in (splits.train, splits.valid) if part is not None]
    forms = {part.conversational for part in parts}
    if len(forms) > 1:
        raise ConfigError(
            f"data.train {run.data.train} and data.valid {run.data.valid}: one has conversations "
            f"and the other texts: give both one form"
        )
    if forms == {False}:
        return False
    if find_template(start.directory.path) is None:
        raise ConfigError(
            f"data.train {run.data.train}: holds conversations, and {run.init_from} has no chat "
            f"template: start from a run of instruct, or from a Hugging Face folder with one"
        )
    encoder_of(start.directory.path, start.tokenizer)
    return True


def _check_precision(run: PreferenceRun) -> None:
    """Refuses a reference of another precision than the policy begins with."""
    if run.precomputes_reference and run.lora.narrows:
        raise ConfigError(
            f"lora.base_dtype is {run.lora.base_dtype}, and the reference is computed from the "
            f"float32 weights: add --align.reference frozen, which shares the base"
        )


def _resolved(start: Initial, run: Any, tokenizer: Tokenizer) -> Any:
    run = checks.with_rows_for(run, tokenizer)
    if isinstance(run, PreferenceRun):
        run = checks.with_rows(run)
    return dataclasses.replace(run, first=_first(run, start))


def _first(run: AlignRun, start: Initial) -> Any:
    """What texts begin with: that of the start, where none is asked for."""
    if run.first != "auto":
        return run.first
    return start.directory.read_config().get("first", "bos")


def open_run(run: AlignRun) -> PreferenceSplits:
    """The preferences or prompts of a run."""
    return open_preferences(
        run.data, run.align.kind if isinstance(run, PreferenceRun) else "prompts"
    )


def make_task(
    run: AlignRun,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    splits: PreferenceSplits,
    reward: RewardSource | None = None,
) -> Task:
    """The task of a run.

    Args:
        run: The settings.
        directory: Of the run.
        tokenizer: Of the run.
        splits: The data of the run.
        reward: What samples are rewarded by; None is that of the settings.
    """
    if isinstance(run, PolicyRun):
        source = reward or reward_source(run, tokenizer, splits)
        task = policy_task(run, directory, tokenizer, splits, source)
    else:
        task = preference_task(run, directory, tokenizer, splits)
    return dataclasses.replace(task, initial=initial_of(run, FAMILIES, tokenizer), settings=run)


def preference_task(
    run: PreferenceRun,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    splits: PreferenceSplits,
    reference: Reference = kept_reference,
) -> Task:
    """The task of a run on preferences, without its parameters of step 0.

    Args:
        run: The settings.
        directory: Of the run.
        tokenizer: Of the run.
        splits: The preferences.
        reference: Where log-probabilities of the reference come from, if they are not computed in
            every step.
    """
    align, partition = run.align, partition_for(run, tokenizer)
    first, length = first_token(directory, tokenizer), align.max_length or LONGEST
    chats = _chats(directory, tokenizer, splits)
    answers = None if chats is None else chats.encode_answers
    batching = batching_of(run.training)
    rows = CompletionRows(first, length, batching, answers, align.truncation)
    encoded = encode_splits(splits, tokenizer, rows)
    if align.method == "reward":
        return reward_model(encoded, run.model, tokenizer, rows, partition=partition)
    if run.precomputes_reference:
        encoded = encoded.with_reference(reference(run, directory, tokenizer, encoded, rows))
    how = {"method": align.method, "partition": partition, **align.numbers}
    return preference(encoded, run.model, tokenizer, rows, **how)  # type: ignore[arg-type]


def _chats(
    directory: RunDirectory, tokenizer: Tokenizer, splits: PreferenceSplits
) -> ChatEncoder | None:
    """The encoder of the run's conversations; None of texts."""
    return encoder_of(directory.path, tokenizer) if splits.train.conversational else None


def policy_task(
    run: PolicyRun,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    splits: PreferenceSplits,
    source: RewardSource,
) -> Task:
    """The task of a run on rewards, without its parameters of step 0."""
    align, training, first = run.align, run.training, first_token(directory, tokenizer)
    chats = _chats(directory, tokenizer, splits)
    rows = PromptRows(first, training.batch_size, align.max_prompt_length, training.seed, chats)
    learning = Learning(align.sampled, source.reward, align.control, align.updates, source.model)
    made = functools.partial(from_samples, splits, run.model, tokenizer, rows, learning)
    return made(partition=partition_for(run, tokenizer))


def train(run: AlignRun, directory: RunDirectory, splits: PreferenceSplits) -> int:
    """Train, from the newest checkpoint or from step 0.

    Raises:
        DataError: The reward function raised, or returned no finite number.
    """
    source = None
    if isinstance(run, PolicyRun):
        source = reward_source(run, directory.load_tokenizer(), splits)
    make = functools.partial(make_task, splits=splits, reward=source)
    with rewarding(source):
        return train_run(run, directory, make)  # type: ignore[type-var]


@contextlib.contextmanager
def rewarding(source: RewardSource | None) -> Iterator[None]:
    """Context of steps that reward samples.

    Raises:
        DataError: The reward function raised, or returned no finite number.
    """
    # JAX would print the traceback of a reward function, beside the line that says what it did.
    callbacks = logging.getLogger("jax._src.callback")
    quiet, callbacks.disabled = callbacks.disabled, True
    try:
        yield
    except Exception:
        failure = getattr(source.reward, "failure", None) if source else None
        if failure is None:
            raise
        raise DataError(failure) from None
    finally:
        callbacks.disabled = quiet
