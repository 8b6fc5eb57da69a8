"""The common work of recipes: creates, reads and trains runs."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import optax

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.config_fields import UnregisteredError
from transformer_jax.core.errors import CheckpointError, ConfigError, DataError, command, plural
from transformer_jax.core.json_types import Json
from transformer_jax.core.runtime import multiplies_bfloat16
from transformer_jax.core.storage.reach import check_buckets, remember_buckets
from transformer_jax.core.storage.urls import with_urls
from transformer_jax.core.task_progress import log, show_progress
from transformer_jax.data.added_tokens import add_tokens
from transformer_jax.data.extension import extend_tokenizer
from transformer_jax.data.tokenizer import SPECIAL, Tokenizer, load_tokenizer, train_tokenizer
from transformer_jax.inference.facts import Facts
from transformer_jax.models.config import ComputeConfig
from transformer_jax.models.partition import EVERYTHING
from transformer_jax.parallel.mesh import devices_of, is_main_process, sync_global_devices
from transformer_jax.recipes import checks
from transformer_jax.recipes.explicit_settings import Given, normalization_of
from transformer_jax.recipes.freezing import (
    initial_of,
    load_pretrained,
    partition_for,
    with_new_tokens,
)
from transformer_jax.recipes.publishing import republished_run
from transformer_jax.recipes.recipe import Prepared, Recipe
from transformer_jax.recipes.registry import get_recipe, stored_recipe
from transformer_jax.recipes.settings import (
    AnyRun,
    ExampleBatches,
    RunSettings,
    TokenizerConfig,
    Trained,
    start_config,
)
from transformer_jax.recipes.sizing import (
    changed_settings,
    for_device,
    vocabulary_for,
    with_step_intervals,
)
from transformer_jax.recipes.start import Start
from transformer_jax.runs.config_guard import latest_manifest
from transformer_jax.runs.data_guard import content_checksum
from transformer_jax.runs.manifest import steps as checkpoint_steps
from transformer_jax.runs.run_directory import RunDirectory, describe_run, stored_settings
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.settings import check_warmup
from transformer_jax.training.task import Task
from transformer_jax.training.trainer import Trainer
from transformer_jax.word_vectors.initialization import vectors_of_tokens

__all__ = [
    "create_run",
    "describe_batches",
    "fit",
    "make_task",
    "make_trainer",
    "open_data",
    "optimizer_of",
    "read",
    "settings_in",
    "settings_of",
    "tokenizer_of",
    "train",
    "warn_slow_bfloat16",
    "with_start",
    "write_derived_settings",
]

MakeOptimizer = Callable[[int, Any], optax.GradientTransformation]


# --- A run begins --------------------------------------------------------------------------------


def create_run(run: AnyRun, given: Given[AnyRun]) -> tuple[AnyRun, RunDirectory, Any]:
    """Creates a run directory; returns the run with all settings, its directory, and its data.

    Args:
        run: The settings.
        given: What the command gave to the named run.

    Raises:
        ConfigError: Settings do not match each other, the start, the devices or the data.
    """
    recipe = get_recipe(run.recipe)
    remember_buckets(dataclasses.asdict(run))
    if isinstance(run, Trained) and isinstance(run.training, ExampleBatches):
        checks.check_rows(run)  # the user's number of rows is not rounded
    start = _load_start(recipe, run)
    prepared = recipe.prepare(run, start, given)
    if run.tokenizer is not None and run.tokenizer.extend_by and prepared.texts is None:
        raise ConfigError(
            f"tokenizer.extend_by: {recipe.title} does not learn subwords: leave it out"
        )
    vocab_given = start is None and _vocabulary(run) != _vocabulary(given.named)
    directory = _create_directory(recipe, prepared, start, vocab_given=vocab_given)
    prepared.files(directory)
    sync_global_devices("begun by a recipe")
    return cast(AnyRun, read(directory)), directory, prepared.data


def _vocabulary(run: RunSettings) -> int | None:
    return run.model.vocab_size if isinstance(run, Trained) else None


def _load_start(recipe: Recipe[Any, Any], run: RunSettings) -> Start | None:
    """Returns what a run starts from; None if it starts from scratch."""
    group = start_config(run)
    if group.init_from is None:
        if recipe.needs_start:
            raise ConfigError(
                f"{recipe.title} needs --init-from RUN_OR_FOLDER, a trained language "
                f"model to start from"
            )
        return None
    if not recipe.starts:
        raise ConfigError(
            f"{group.prefix}init_from: {recipe.title} cannot start from another model: leave it out"
        )
    return load_pretrained(group.init_from, recipe.starts)


def _create_directory(
    recipe: Recipe[Any, Any],
    prepared: Prepared[AnyRun, Any],
    start: Start | None,
    *,
    vocab_given: bool,
) -> RunDirectory:
    """Creates a run directory with everything except the training state.

    ``config.json`` stores the run with all settings.

    Args:
        recipe: The kind of training.
        prepared: The run.
        start: The start of the run, or None.
        vocab_given: Whether the user set the vocabulary size of the model.

    Raises:
        ConfigError: The tokenizer does not match the vocabulary size of the model, or no token is a
            word of ``model.embedding.init``.
    """
    run, output = prepared.run, prepared.run.output
    assert output is not None
    tokenizer = _first_tokenizer(prepared, start)
    if is_main_process():
        if isinstance(run, Trained):
            run = checks.with_batch_multiple(run)
        if tokenizer is not None:
            before, tokenizer = tokenizer, _complete_tokenizer(prepared, tokenizer)
            run = with_new_tokens(run, before, tokenizer)
            if vocab_given and (wanted := _vocabulary(run)) != tokenizer.vocab_size:
                raise ConfigError(
                    f"the tokenizer has {plural(tokenizer.vocab_size, 'token')}, but "
                    f"model.vocab_size is {wanted}: leave model.vocab_size out, to take "
                    f"the size of the tokenizer"
                )
            if isinstance(run, Trained):
                sized = checks.with_vocab if start is None else checks.with_rows_for
                run = sized(run, tokenizer)
            run = prepared.with_tokenizer(run, tokenizer)
            if run.tokenizer.vocab_size is None:
                size = dataclasses.replace(run.tokenizer, vocab_size=tokenizer.vocab_size)
                run = dataclasses.replace(run, tokenizer=size)
            if isinstance(run, Trained) and run.model.embedding.init is not None:
                vectors_of_tokens(run.model.embedding.init, tokenizer)  # refuses bad files early
        run = for_device(run, devices_of(run.distributed)[0])
        published = None
        if recipe.keeps_publication and start is not None and start.family == recipe.family:
            published = republished_run(start, run.model)
        directory = RunDirectory.create(output, overwrite=run.overwrite)
        # In this order, so that a run that is killed in between counts as empty.
        special = None if tokenizer is None else tokenizer.special or None
        records = {"special": special, "published": published}
        known = {name: value for name, value in records.items() if value is not None}
        directory.write(directory.config, describe_run(run) | known | {**prepared.records})
        if tokenizer is not None:
            tokenizer.save(directory.tokenizer)
    sync_global_devices("begun")
    return RunDirectory.open(output)


# --- Its tokenizer: trained, of a file or of the start, with added tokens -------------------------


def _first_tokenizer(prepared: Prepared[AnyRun, Any], start: Start | None) -> Tokenizer | None:
    """Returns the tokenizer of a file or of the start, or one trained on texts by process 0.

    Further tokens are not added yet. Without texts, and in other processes, there may be none.
    """
    settings = prepared.run.tokenizer
    if settings is None:
        return None
    if settings.path is not None:
        return load_tokenizer(settings.path)
    if start is not None:
        return start.tokenizer
    if not is_main_process():
        return None
    assert prepared.texts is not None, "a run without a start trains its tokenizer on texts"
    return _learned(prepared.run, prepared.texts(), prepared.special or SPECIAL)


def _learned(run: AnyRun, texts: Iterable[str], special: tuple[str, ...]) -> Tokenizer:
    """Returns a tokenizer trained on texts with the settings of a run; logs a summary line."""
    settings = run.tokenizer
    began, size, why = time.monotonic(), settings.vocab_size, ""
    with show_progress("training the tokenizer"):
        if size is None:
            texts = list(texts)
            size = vocabulary_for(texts, settings.kind)
            why = f" (tokenizer.vocab_size {size} chosen by the size of the text)"
        tokenizer = train_tokenizer(
            settings.kind, texts, size, special=special, normalization=normalization_of(run)
        )
    took = time.monotonic() - began
    log(
        f"tokenizer: {settings.kind}, {plural(tokenizer.vocab_size, 'token')}{why}, trained in "
        f"{took:.1f} s"
    )
    return tokenizer


def _complete_tokenizer(prepared: Prepared[AnyRun, Any], tokenizer: Tokenizer) -> Tokenizer:
    """Returns the tokenizer of a run with the tokens that its settings and its recipe add."""
    settings = prepared.run.tokenizer
    tokenizer = prepared.complete(_grown(tokenizer, settings))
    if not settings.extend_by:
        return tokenizer
    texts = prepared.extension or prepared.texts
    assert texts is not None
    # Last, so that no subword is one of the added tokens.
    return _extended(tokenizer, settings.extend_by, texts)


def _extended(tokenizer: Tokenizer, count: int, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """Returns the tokenizer with up to ``count`` characters and subwords; logs a summary line."""
    with show_progress("extending the tokenizer"):
        extended = extend_tokenizer(tokenizer, texts(), count)
    new = [extended.name(id) for id in range(tokenizer.vocab_size, extended.vocab_size)]
    letters = sum(len(name) == 1 for name in new)
    parts = [plural(letters, "character")] * bool(letters)
    parts.append(plural(len(new) - letters, "subword"))
    log(f"tokenizer: {' and '.join(parts)} learned in addition to {tokenizer.vocab_size:,}")
    return extended


def _grown(tokenizer: Tokenizer, settings: TokenizerConfig) -> Tokenizer:
    """Returns the tokenizer with the tokens that settings add, and a summary line."""
    grown = add_tokens(tokenizer, settings.add_tokens, settings.add_special_tokens)
    if asked := len(settings.add_tokens) + len(settings.add_special_tokens):
        new = grown.vocab_size - tokenizer.vocab_size
        there = f", {asked - new} already known" if new < asked else ""
        log(f"tokenizer: {plural(new, 'token')} added to {tokenizer.vocab_size:,}{there}")
    return grown


# --- A run is read -------------------------------------------------------------------------------


def read(directory: RunDirectory) -> Any:
    """Returns the settings of the run of a directory, see :func:`settings_of`.

    Raises:
        CheckpointError: ``config.json`` is damaged, or belongs to no recipe.
        ConfigError: See :func:`settings_of`.
    """
    return settings_in(directory.read_config(), directory.config)


def settings_of(facts: Facts) -> Any:
    """Returns the settings of a stored run.

    Raises:
        CheckpointError: They are damaged.
        ConfigError: They name an object store that no command of the user named.
    """
    return settings_in(facts.record, facts.file)


def settings_in(fields: Mapping[str, Json], file: Path) -> Any:
    """Returns the settings in the fields of a ``config.json``, see :func:`settings_of`."""
    recipe, settings = stored_recipe(fields, file), stored_settings(fields)
    check_buckets(settings, file)
    try:
        run = from_dict(recipe.config, settings)
    except UnregisteredError as error:
        raise CheckpointError(f"{file}: {error}") from None
    except (ConfigError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{file}: {error}: not the run of {recipe.title}, or of another version"
        ) from None
    return dataclasses.replace(run, output=str(file.parent))


def open_data(run: RunSettings) -> Any:
    """Returns the data of a run."""
    return get_recipe(run.recipe).data(run)


def tokenizer_of(run: Trained, directory: RunDirectory) -> Tokenizer:
    """Returns the tokenizer of a run that reads text.

    Raises:
        CheckpointError: The tokenizer has more tokens than the model.
    """
    tokenizer = directory.load_tokenizer()
    if tokenizer.vocab_size > run.model.vocab_size:
        raise CheckpointError(
            f"{directory.tokenizer}: has {plural(tokenizer.vocab_size, 'token')}, but the model "
            f"has {run.model.vocab_size}: it belongs to another run"
        )
    return tokenizer


# --- A run trains --------------------------------------------------------------------------------


def train(run: RunSettings, directory: RunDirectory, data: Any) -> int:
    """Trains a run to the end, and writes its results."""
    return get_recipe(run.recipe).train(run, directory, data, fit)


def make_task(run: Trained, directory: RunDirectory, tokenizer: Any, data: Any) -> Task:
    """Returns the task of a run, with its start, trained parameters and settings."""
    task = get_recipe(run.recipe).task(run, directory, tokenizer, data)
    sums = {}
    for name, part in getattr(data, "tests", {}).items():
        with contextlib.suppress(DataError):  # told at the end, so that no trained model is lost
            sums[f"the test data ({name})"] = content_checksum(part)
    return with_start(dataclasses.replace(task, tests=sums), run, tokenizer, directory)


def with_start(
    task: Task, run: Trained, tokenizer: Tokenizer | None, directory: RunDirectory
) -> Task:
    """Adds the start of a run, its trained parameters and settings to a task.

    A task keeps its own partition, such as one with a frozen reference, and its own function to the
    parameters of step 0.
    """
    own = task.partition is not EVERYTHING
    starts = get_recipe(run.recipe).starts
    return dataclasses.replace(
        task,
        partition=task.partition if own else partition_for(run, tokenizer),
        initial=task.initial or initial_of(run, starts, tokenizer, directory.allow_changed),
        settings=run.with_derived(task.settings),
    )


def optimizer_of(run: Trained) -> MakeOptimizer:
    """Returns a function from the number of steps and the parameters to the optimizer."""
    return lambda steps, params: make_optimizer(
        run.optimizer, run.model.d_model, steps, params=params
    )


def make_trainer(
    run: Trained, directory: RunDirectory, task: Task, optimizer: MakeOptimizer | None = None
) -> Trainer:
    """Returns the trainer of a run with complete settings."""
    training = run.training
    trainer = Trainer(
        task,
        directory.path,
        optimizer or optimizer_of(run),
        checks.mesh_of(run),
        training.seed,
        training.gradient_accumulation_steps,
        training.ema_decay,
        training.mode,
        run.loop,
    )
    trainer.run = directory
    return trainer


def fit(
    run: Trained,
    directory: RunDirectory,
    data: Any,
    *,
    optimizer: MakeOptimizer | None = None,
    batches: str | None = None,
) -> int:
    """Trains a run from its newest checkpoint, or from step 0, and writes results.

    Args:
        run: The settings.
        directory: Of the run.
        data: Of the run.
        optimizer: Another optimizer than that of the settings.
        batches: A description of the batches for the summary line; None is their size.
    """
    settings, tokenizer = run.tokenizer, None
    if settings is not None:
        tokenizer = tokenizer_of(run, directory).allowing(*settings.allowed)
    checks.check_rows(run)
    reading = "reading" if settings is None else "reading and tokenizing"
    with show_progress(f"{reading} the training data"):
        task = make_task(run, directory, tokenizer, data)
    per_epoch = task.train.plan.steps_per_epoch
    unsized, run = run, with_step_intervals(run.with_derived(task.settings), per_epoch)
    if run != unsized:
        log(f"from the data: {changed_settings(unsized, run)}")
    steps = run.training.steps or (run.training.epochs or 1) * per_epoch
    if latest_manifest(directory.path) is None:  # earlier versions allowed a longer warmup
        check_warmup(run.optimizer.schedule, steps)
    if max(checkpoint_steps(directory.checkpoints), default=0) >= steps:
        longer = command("resume", directory.path, "--training.steps", str(2 * steps))
        log(f"{directory.path}: has all of its {plural(steps, 'step')}; to train longer: {longer}")
    trainer = make_trainer(run, directory, task, optimizer)
    _log_summary(trainer, steps, batches or describe_batches(run, task.train.plan))
    platform = trainer.on.devices.flat[0].platform
    warn_slow_bfloat16(run.model.compute, platform, multiplies_bfloat16())
    write_derived_settings(directory, task)
    trainer.fit(steps=steps)
    if is_main_process():
        print(f"run: {with_urls(str(directory.path))}", flush=True)
    return 0


def describe_batches(run: Trained, plan: Any) -> str:
    """Describes the batches, for the summary line of the run."""
    size = f"{run.training.size} a batch"
    if not hasattr(plan, "shapes"):  # such as `ArrayPlan`, with rows of one shape
        return size
    return (
        f"{size}, {plural(len(plan.shapes), 'bucket shape')}, "
        f"{plan.non_padding_fraction:.0%} non-padding"
    )


def _log_summary(trainer: Trainer, steps: int, batches: str) -> None:
    """Logs a summary line about the model and the batches of a run."""
    log(
        f"model: {trainer.num_parameters / 1e6:.2f} M parameters{_trained(trainer)}; "
        f"{plural(steps, 'step')}, {trainer.task.train.plan.steps_per_epoch}/epoch, "
        f"{batches}; mesh {dict(trainer.on.shape)}"
    )


def _trained(trainer: Trainer) -> str:
    """Returns the number of trained parameters as text; empty if all are trained."""
    if trainer.task.partition is EVERYTHING:
        return ""
    count = trainer.num_trained
    return f", {count:,} trained" if count < 1e5 else f", {count / 1e6:.2f} M trained"


def write_derived_settings(directory: RunDirectory, task: Task) -> None:
    """Writes the settings derived from the data to ``config.json``.

    Called before any checkpoint is saved. Flags of a resumed run are not written.
    """
    if is_main_process() and latest_manifest(directory.path) is None:
        fields = directory.read_config()
        config = stored_recipe(fields, directory.config).config
        stored: Trained = from_dict(config, stored_settings(fields))
        per_epoch = task.train.plan.steps_per_epoch
        derived = with_step_intervals(stored.with_derived(task.settings), per_epoch)
        if derived != stored:
            directory.write(directory.config, fields | describe_run(derived))
    sync_global_devices("sized")


def warn_slow_bfloat16(compute: ComputeConfig, platform: str, fast: bool | None) -> None:
    """Warns if a run computes in bfloat16 on a CPU without units for it.

    Args:
        compute: Computation settings of the model.
        platform: Platform of the devices.
        fast: Whether the CPU has bfloat16 matrix units; None if unknown.
    """
    if compute.dtype == "bfloat16" and platform == "cpu" and fast is False:
        log(
            "warning: this CPU has no amx_bf16, so bfloat16 (model.compute.dtype in config.json) "
            "is slower than float32: start a run with --model.compute.dtype float32"
        )
