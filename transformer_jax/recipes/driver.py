"""The common work of recipes: creates, reads and trains runs."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.config_fields import UnregisteredError
from transformer_jax.core.errors import CheckpointError, ConfigError, DataError, command, plural
from transformer_jax.core.json_types import Json
from transformer_jax.core.runtime import multiplies_bfloat16
from transformer_jax.core.storage.reach import check_buckets, remember_buckets
from transformer_jax.core.storage.urls import with_urls
from transformer_jax.core.task_progress import log, show_progress
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.inference.facts import Facts
from transformer_jax.models.config import ComputeConfig
from transformer_jax.models.partition import EVERYTHING
from transformer_jax.parallel.mesh import is_main_process, sync_global_devices
from transformer_jax.recipes import begin as beginning
from transformer_jax.recipes import checks
from transformer_jax.recipes.freezing import check_layers, initial_of, partition_for
from transformer_jax.recipes.initial import load_pretrained
from transformer_jax.recipes.publishing import check_export, republished_run
from transformer_jax.recipes.recipe import Recipe
from transformer_jax.recipes.registry import get_recipe, recipe_of, stored_recipe
from transformer_jax.recipes.settings import ExampleBatches, TokenizerConfig, Trained, start_config
from transformer_jax.recipes.sizing import changed_settings, from_size
from transformer_jax.recipes.tasks.fit import allowing, by_evaluate
from transformer_jax.runs.config_guard import latest_manifest
from transformer_jax.runs.data_guard import content_checksum
from transformer_jax.runs.manifest import steps as checkpoint_steps
from transformer_jax.runs.run_directory import RunDirectory, describe_run, stored_settings
from transformer_jax.training.settings import check_warmup
from transformer_jax.training.task import Task
from transformer_jax.training.trainer import Trainer

__all__ = [
    "advise",
    "begin",
    "evaluate",
    "fit",
    "keep_learned",
    "load_tokenizer",
    "make_task",
    "make_trainer",
    "open_data",
    "read",
    "reset_derived",
    "settings_of",
    "train",
]


# --- A run begins --------------------------------------------------------------------------------


def begin(run: Any, named: Any) -> tuple[Any, RunDirectory, Any]:
    """Creates a run directory; returns the run with all settings, its directory, and its data.

    Args:
        run: The settings.
        named: The settings before flags changed them.

    Raises:
        ConfigError: Settings do not match each other, the start, the devices or the data.
    """
    recipe = get_recipe(run.recipe)
    remember_buckets(dataclasses.asdict(run))
    start, vocab_given = None, False
    if isinstance(run, Trained):
        vocabulary = run.model.vocab_size
        run, start = _prepared(recipe, run, named)
        vocab_given = start is None and vocabulary != named.model.vocab_size
    else:
        run = checks.with_loaded_tokenizer(run)
    checks.check_extension(recipe, run, start)
    data = recipe.open_data(run)
    run = recipe.with_data(run, data, named, start)

    def learn() -> Tokenizer | None:
        if not recipe.reads_text:
            return None
        if start is not None:
            return start.tokenizer
        texts = recipe.tokenizer_texts(run, data)
        return beginning.learn_tokenizer(run, texts, recipe.special_tokens(run))

    def resolve(run: Any, tokenizer: Tokenizer | None) -> Any:
        if isinstance(run, Trained):
            run = checks.with_batch_multiple(run)
        if tokenizer is None:
            return run
        if isinstance(run, Trained):
            sized = checks.with_vocab if start is None else checks.with_rows_for
            run = sized(run, tokenizer)
        return recipe.with_tokenizer(run, data, tokenizer, start)

    published: Callable[[Any], dict[str, Any] | None] = beginning.no_record
    if recipe.keeps_publication and start is not None and start.family == recipe.family:
        published = functools.partial(republished_run, start)
    directory = beginning.begin(
        run,
        learn,
        lambda: recipe.extension_texts(run, data, start),
        resolve,
        vocab_given=vocab_given,
        complete=recipe.complete_tokenizer,
        published=published,
    )
    recipe.write_files(run, directory, data, start)
    sync_global_devices("begun by a recipe")
    return read(directory), directory, data


def _prepared(recipe: Recipe, run: Any, named: Any) -> tuple[Any, Any]:
    """Returns the run with the settings derived from its start, and the start."""
    if isinstance(run.training, ExampleBatches):  # the user's number of rows is not rounded
        checks.check_rows(run)
    group, start = start_config(run), None
    if group.init_from is not None:
        if not recipe.starts:
            raise ConfigError(
                f"{group.prefix}init_from: {recipe.title} cannot start from another model: "
                f"leave it out"
            )
        start = load_pretrained(group.init_from, recipe.starts)
        run = start.settings(run, named, recipe.start_model(run, start))
    elif recipe.needs_start:
        raise ConfigError(
            f"{recipe.title} needs --init-from RUN_OR_FOLDER, a trained language "
            f"model to start from"
        )
    run = recipe.prepare(run, named, start)
    if start is not None:  # counts tokens added by the recipe
        check_layers(recipe.in_layers(run), start)
    run = checks.checked(run, named, start)
    check_export(recipe, run, start)
    return run, start


# --- A run is read -------------------------------------------------------------------------------


def read(directory: RunDirectory) -> Any:
    """Returns the settings of the run of a directory, see :func:`settings_of`.

    Raises:
        CheckpointError: ``config.json`` is damaged, or belongs to no recipe.
        ConfigError: See :func:`settings_of`.
    """
    return _settings(directory.read_config(), directory.config)


def settings_of(facts: Facts) -> Any:
    """Returns the settings of a stored run.

    Raises:
        CheckpointError: They are damaged.
        ConfigError: They name an object store that no command of the user named.
    """
    return _settings(facts.record, facts.file)


def _settings(fields: Mapping[str, Json], file: Path) -> Any:
    """Returns the settings in the fields of a ``config.json``."""
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


def open_data(run: Any) -> Any:
    """Returns the data of a run."""
    return get_recipe(run.recipe).open_data(run)


def reset_derived(run: Any) -> Any:
    """Returns the run without settings that were derived from its data, for other data."""
    return get_recipe(run.recipe).reset_derived(run)


def load_tokenizer(run: Any, directory: RunDirectory) -> Any:
    """Returns the tokenizer of a run; None if the recipe reads no text.

    Raises:
        CheckpointError: The tokenizer has more tokens than the model.
    """
    if not get_recipe(run.recipe).reads_text:
        return None
    tokenizer = directory.load_tokenizer()
    if tokenizer.vocab_size > run.model.vocab_size:
        raise CheckpointError(
            f"{directory.tokenizer}: has {plural(tokenizer.vocab_size, 'token')}, but the model "
            f"has {run.model.vocab_size}: it belongs to another run"
        )
    return tokenizer


# --- A run trains --------------------------------------------------------------------------------


def train(run: Any, directory: RunDirectory, data: Any) -> int:
    """Trains a run to the end, and writes its results."""
    recipe = get_recipe(run.recipe)
    return recipe.train(run, directory, data, functools.partial(fit, recipe))


def make_task(run: Any, directory: RunDirectory, tokenizer: Any, data: Any) -> Task:
    """Returns the task of a run, with its start, trained parameters and settings."""
    task = get_recipe(run.recipe).make_task(run, directory, tokenizer, data)
    sums = {}
    for name, part in getattr(data, "tests", {}).items():
        with contextlib.suppress(DataError):  # told at the end, so that no trained model is lost
            sums[f"the test data ({name})"] = content_checksum(part)
    return with_start(dataclasses.replace(task, tests=sums), run, tokenizer)


def with_start(task: Task, run: Any, tokenizer: Any) -> Task:
    """Adds the start of a run, its trained parameters and settings to a task."""
    recipe = get_recipe(run.recipe)
    initial = initial_of(run, recipe.starts, tokenizer)
    has_partition = task.partition is not EVERYTHING  # such as with a frozen reference
    return dataclasses.replace(
        task,
        partition=task.partition if has_partition else partition_for(run, tokenizer),
        initial=recipe.with_starts(run, initial) or task.initial,
        settings=recipe.with_task(run, task),
    )


def make_trainer(run: Any, directory: RunDirectory, task: Task) -> Trainer:
    """Returns the trainer of a run with complete settings."""
    training = run.training
    return Trainer(
        task,
        directory.path,
        get_recipe(run.recipe).make_optimizer(run),
        checks.mesh_of(run),
        training.seed,
        training.gradient_accumulation_steps,
        training.ema_decay,
        training.mode,
        run.loop,
    )


def evaluate(request: Any, facts: Facts) -> int:
    """Evaluates a stored run, prints the results, and returns the exit code."""
    # Score texts even if they have unknown words.
    with allowing(unknown=True), by_evaluate():
        return get_recipe(facts.recipe).evaluate(request, facts)


def fit(recipe: Recipe, run: Any, directory: RunDirectory, data: Any) -> int:
    """Trains a run from its newest checkpoint, or from step 0, and writes results.

    Args:
        recipe: The kind of training.
        run: The settings.
        directory: Of the run.
        data: Of the run.
    """
    tokenizer = load_tokenizer(run, directory)
    checks.check_rows(run)
    settings = run.tokenizer or TokenizerConfig()
    allowed = allowing(unknown=settings.allow_unknown, lossy=settings.allow_lossy)
    reading = "reading and tokenizing" if recipe.reads_text else "reading"
    with show_progress(f"{reading} the training data"), allowed:
        task = make_task(run, directory, tokenizer, data)
    per_epoch = task.train.plan.steps_per_epoch
    unsized, run = run, from_size(recipe.with_task(run, task), per_epoch)
    if run != unsized:
        log(f"from the data: {changed_settings(unsized, run)}")
    steps = run.training.steps or run.training.epochs * per_epoch
    if latest_manifest(directory.path) is None:  # earlier versions allowed a longer warmup
        check_warmup(run.optimizer.schedule, steps)
    if max(checkpoint_steps(directory.checkpoints), default=0) >= steps:
        longer = command("resume", directory.path, "--training.steps", str(2 * steps))
        log(f"{directory.path}: has all of its {plural(steps, 'step')}; to train longer: {longer}")
    trainer = make_trainer(run, directory, task)
    _log_summary(recipe, trainer, run, steps)
    advise(run.model.compute, trainer.on.devices.flat[0].platform, multiplies_bfloat16())
    keep_learned(directory, task)
    # Bad test texts at the end must not lose the trained model.
    with allowing(unknown=True):
        trainer.fit(steps=steps)
    if is_main_process():
        print(f"run: {with_urls(str(directory.path))}", flush=True)
    return 0


def _log_summary(recipe: Recipe, trainer: Trainer, run: Any, steps: int) -> None:
    """Logs a summary line about the model and the batches of a run."""
    plan = trainer.task.train.plan
    log(
        f"model: {trainer.num_parameters / 1e6:.2f} M parameters{_trained(trainer)}; "
        f"{plural(steps, 'step')}, {plan.steps_per_epoch}/epoch, "
        f"{recipe.describe_batches(run, plan)}; mesh {dict(trainer.on.shape)}"
    )


def _trained(trainer: Trainer) -> str:
    """Returns the number of trained parameters as text; empty if all are trained."""
    if trainer.task.partition is EVERYTHING:
        return ""
    count = trainer.num_trained
    return f", {count:,} trained" if count < 1e5 else f", {count / 1e6:.2f} M trained"


def keep_learned(directory: RunDirectory, task: Task) -> None:
    """Writes the settings derived from the data to ``config.json``.

    Called before any checkpoint is saved. Flags of a resumed run are not written.
    """
    if is_main_process() and latest_manifest(directory.path) is None:
        recipe = recipe_of(directory)
        stored = from_dict(recipe.config, stored_settings(directory.read_config()))
        learned = from_size(recipe.with_task(stored, task), task.train.plan.steps_per_epoch)
        if learned != stored:
            directory.write(directory.config, directory.read_config() | describe_run(learned))
    sync_global_devices("sized")


def advise(compute: ComputeConfig, platform: str, fast: bool | None) -> None:
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
