"""Runs on preferences and rewards: ``decoder_only align``."""

import dataclasses
import functools
import logging
import os
import zipfile
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from flax import nnx

from transformer_jax.chat.template import copy_template, find_template
from transformer_jax.data.preferences import PreferenceSplits, open_preferences
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import ConfigError, DataError, plural
from transformer_jax.keys import key_for
from transformer_jax.models.decoder import Decoder
from transformer_jax.models.heads import DecoderSequenceClassifier
from transformer_jax.parallel.mesh import is_main_process, sync_global_devices
from transformer_jax.predictors.alignment import aligned_method
from transformer_jax.predictors.chats import encoder_of
from transformer_jax.predictors.runs import first_token, model_config, open_directory, task_of
from transformer_jax.runs import begin as beginning
from transformer_jax.runs import checks
from transformer_jax.runs.alignment_settings import PolicyRun, PreferenceRun, RewardConfig, read
from transformer_jax.runs.freezing import check_layers, initial_of, partition_for
from transformer_jax.runs.initial import Initial, load_pretrained
from transformer_jax.runs.settings import batching_of, was_given
from transformer_jax.runs.train import train as train_run
from transformer_jax.tasks.on_policy_task import Learning, PromptRows, from_samples
from transformer_jax.tasks.preference_task import (
    CompletionRows,
    Encoded,
    encode_splits,
    preference,
    reference_log_probs,
    reward_config,
    reward_model,
)
from transformer_jax.tasks.rewards import PythonReward, load_reward, model_reward
from transformer_jax.training.activity import log
from transformer_jax.training.on_policy import Reward
from transformer_jax.training.preference_objectives import FrozenModel
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.task import Task

__all__ = ["begin", "make_task", "open_run", "train"]

AlignRun: TypeAlias = PreferenceRun | PolicyRun


class RewardSource(NamedTuple):
    """What rewards samples, and the frozen model that it needs."""

    reward: Reward
    model: FrozenModel | None = None


FAMILIES = ("decoder",)
LONGEST = 512  # tokens of a row, where the run does not say
REFERENCE = "reference.npz"  # in the run directory: log-probabilities of the reference


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
        _check_reward(run, start)
    else:
        _check_whole_batches(run)
        _check_precision(run)
    splits = open_run(run)
    conversational = _check_conversations(run, splits, start)
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
    if isinstance(run, PolicyRun):
        raise ConfigError(
            f"data.train {run.data.train}: holds conversations, and {run.align.method} is not for "
            f"them: give prompts that are texts"
        )
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


def _check_reward(run: PolicyRun, start: Initial) -> None:
    """Refuses rewards that cannot be used, before anything is written."""
    reward = run.reward
    if (reward.file is None) == (reward.run is None):
        raise ConfigError(
            "samples are rewarded by one of --reward.file FILE.py and --reward.run RUN: give one"
        )
    if reward.file is not None:
        load_reward(reward.file)
        return
    directory = _reward_directory(reward)
    if directory.load_tokenizer().sha256 != start.tokenizer.sha256:
        raise ConfigError(
            f"--reward.run {reward.run}: has another tokenizer than {start.directory.path}: train "
            f"a reward model that starts from that run or one like it"
        )
    first = _first(run, start)
    theirs = directory.read_config().get("first", first)
    if theirs != first:
        raise ConfigError(
            f"--reward.run {reward.run}: its texts begin with {theirs}, and those of this run with "
            f"{first}: train both with one --first"
        )
    most, (setting, length) = model_config(directory).max_length, checks.length_limit(run)
    if length > most:
        raise ConfigError(
            f"--reward.run {reward.run}: has positions for {plural(most, 'token')}, and {setting} "
            f"is {length}: lower one of them"
        )


def _reward_directory(reward: RewardConfig) -> RunDirectory:
    assert reward.run is not None
    directory = open_directory(reward.run)
    known = "task" in directory.read_config() or aligned_method(directory) == "reward"
    if not known or task_of(directory).get("kind") != "regress":
        raise ConfigError(
            f"--reward.run {reward.run}: no reward model: train one with `python -m "
            f"experiments.decoder_only align reward`"
        )
    return directory


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
        source = reward or _reward(run, tokenizer)
        task = _policy_task(run, directory, tokenizer, splits, source)
    else:
        task = _preference_task(run, directory, tokenizer, splits)
    return dataclasses.replace(task, initial=initial_of(run, FAMILIES, tokenizer), settings=run)


def _preference_task(
    run: PreferenceRun, directory: RunDirectory, tokenizer: Tokenizer, splits: PreferenceSplits
) -> Task:
    align, partition = run.align, partition_for(run)
    first, length = first_token(directory, tokenizer), align.max_length or LONGEST
    answers = encoder_of(directory.path, tokenizer).answers if splits.train.conversational else None
    rows = CompletionRows(first, length, batching_of(run.training), answers)
    encoded = encode_splits(splits, tokenizer, rows)
    if align.method == "reward":
        return reward_model(encoded, run.model, tokenizer, rows, partition=partition)
    if run.precomputes_reference:
        encoded = encoded.with_reference(_reference(run, directory, tokenizer, encoded, rows))
    how = {"method": align.method, "partition": partition, **align.numbers}
    return preference(encoded, run.model, tokenizer, rows, **how)  # type: ignore[arg-type]


def _reference(
    run: PreferenceRun,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    encoded: Encoded,
    rows: CompletionRows,
) -> dict[str, np.ndarray]:
    """Log-probabilities of the reference, computed when the run begins and kept in its directory.

    Raises:
        DataError: Those that are kept are of other data, or damaged.
    """
    path = Path(directory.path) / REFERENCE
    stores = encoded.parts().values()
    identity = " ".join(rows.data(store, tokenizer.pad).fingerprint for store in stores)
    if path.exists():
        return _stored(path, identity, encoded)
    make = lambda rngs: Decoder(run.model, rngs=rngs)
    drawn = make(nnx.Rngs(key_for(run.training.seed, "initialization")))
    initial, mesh = initial_of(run, FAMILIES, tokenizer), checks.mesh_of(run)
    assert initial is not None
    params = initial(nnx.to_pure_dict(nnx.state(drawn)))
    parts: tuple[tuple[Literal["train", "valid"], Any], ...] = (
        ("train", encoded.train), ("valid", encoded.valid)
    )  # fmt: skip
    found: dict[str, np.ndarray] = {
        name: reference_log_probs(make, params, store, rows, tokenizer.pad, mesh, name=name)
        for name, store in parts
        if store is not None
    }
    if is_main_process():
        written = path.with_suffix(".tmp.npz")
        np.savez(written, identity=np.array(identity), **found)  # type: ignore[arg-type]
        os.replace(written, path)
    sync_global_devices("reference is stored")
    log(f"log-probabilities of the reference: {path}")
    return found


def _stored(path: Path, identity: str, encoded: Encoded) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as raw, np.load(raw) as file:
            kept = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: damaged ({error}): begin the run anew") from None
    sizes = {name: (len(store), 2) for name, store in encoded.parts().items()}
    if str(kept.pop("identity", "")) != identity or {k: v.shape for k, v in kept.items()} != sizes:
        raise DataError(f"{path}: the preferences are not those that the run began with")
    return kept


def _policy_task(
    run: PolicyRun,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    splits: PreferenceSplits,
    source: RewardSource,
) -> Task:
    align, first = run.align, first_token(directory, tokenizer)
    rows = PromptRows(first, run.training.batch_size, align.max_prompt_length, run.training.seed)
    learning = Learning(align.sampled, source.reward, align.control, align.updates, source.model)
    made = functools.partial(from_samples, splits, run.model, tokenizer, rows, learning)
    return made(partition=partition_for(run))


def _reward(run: PolicyRun, tokenizer: Tokenizer) -> RewardSource:
    if run.reward.file is not None:
        path = run.reward.file
        return RewardSource(PythonReward(load_reward(path), tokenizer, path))
    directory = _reward_directory(run.reward)
    config: Any = model_config(directory)
    compute = dataclasses.replace(config.compute, dtype=run.model.compute.dtype)
    config = dataclasses.replace(config, compute=compute)
    make = lambda rngs: DecoderSequenceClassifier(config, labels=1, rngs=rngs)
    device = checks.mesh_of(run).devices.flat[0]
    params = directory.load_params("best").params
    return RewardSource(model_reward, FrozenModel(make, params, device))


def train(run: AlignRun, directory: RunDirectory, splits: PreferenceSplits) -> int:
    """Train, from the newest checkpoint or from step 0.

    Raises:
        DataError: The reward function raised, or returned no finite number.
    """
    source = _reward(run, directory.load_tokenizer()) if isinstance(run, PolicyRun) else None
    make = functools.partial(make_task, splits=splits, reward=source)
    # JAX would print the traceback of a reward function, beside the line that says what it did.
    callbacks = logging.getLogger("jax._src.callback")
    quiet, callbacks.disabled = callbacks.disabled, True
    try:
        return train_run(run, directory, make)  # type: ignore[type-var]
    except Exception:
        failure = getattr(source.reward, "failure", None) if source else None
        if failure is None:
            raise
        raise DataError(failure) from None
    finally:
        callbacks.disabled = quiet
