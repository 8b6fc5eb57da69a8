"""Training of a run of any family, from its settings and its task."""

import dataclasses
from collections.abc import Callable
from typing import Any

from transformer_jax.compilation_cache import multiplies_bfloat16
from transformer_jax.config import ComputeConfig
from transformer_jax.config_dict import from_dict
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import CheckpointError, plural
from transformer_jax.parallel.mesh import is_main_process, sync_global_devices
from transformer_jax.runs.alignment_settings import PolicyRun
from transformer_jax.runs.any_run import AnyRun, RunType
from transformer_jax.runs.checks import check_rows, mesh_of
from transformer_jax.runs.language_settings import LanguageTraining
from transformer_jax.runs.sizing import changed_settings, from_size, from_task
from transformer_jax.storage.urls import with_urls
from transformer_jax.tasks.fit import allowing
from transformer_jax.training.activity import log, working
from transformer_jax.training.on_policy import adaptive_kl
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.partition import EVERYTHING
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.schedules import check_warmup
from transformer_jax.training.sealed import sealed
from transformer_jax.training.task import Task
from transformer_jax.training.trainer import Trainer

__all__ = ["load_tokenizer", "make_trainer", "train"]


def load_tokenizer(run: AnyRun, directory: RunDirectory) -> Tokenizer:
    """The tokenizer of a run.

    Raises:
        CheckpointError: It has more tokens than the model's vocabulary.
    """
    tokenizer = directory.load_tokenizer()
    if tokenizer.vocab_size > run.model.vocab_size:
        raise CheckpointError(
            f"{directory.tokenizer}: has {plural(tokenizer.vocab_size, 'token')}, but the model "
            f"{run.model.vocab_size}: it belongs to another run"
        )
    return tokenizer


def make_trainer(run: AnyRun, directory: RunDirectory, task: Task) -> Trainer:
    """The trainer of a run whose settings all have values."""
    training = run.training

    def make(steps: int, params: Any) -> Any:
        if not isinstance(run, PolicyRun):
            return make_optimizer(run.optimizer, run.model.d_model, steps, params=params)
        # Each step takes several updates, which the schedule counts.
        updates = steps * run.align.updates
        tx = make_optimizer(run.optimizer, run.model.d_model, updates, params=params)
        return adaptive_kl(tx, run.align.kl_coefficient)

    return Trainer(
        task,
        directory.path,
        make,
        mesh_of(run),
        training.seed,
        training.gradient_accumulation_steps,
        training.ema_decay,
        training.mode,
        run.loop,
    )


def train(
    run: RunType,
    directory: RunDirectory,
    make_task: Callable[[RunType, RunDirectory, Tokenizer], Task],
) -> int:
    """Train a run from its newest checkpoint, or from step 0, and write results.

    Args:
        run: The settings.
        directory: The run directory.
        make_task: Function from settings, directory and tokenizer to the task.
    """
    tokenizer = load_tokenizer(run, directory)
    check_rows(run)
    settings = run.tokenizer
    allowed = allowing(unknown=settings.allow_unknown, lossy=settings.allow_lossy)
    with working("reading and tokenizing the training data"), allowed:
        task = make_task(run, directory, tokenizer)
    per_epoch = task.train.plan.steps_per_epoch
    unsized, run = run, from_size(from_task(run, task), per_epoch)
    if run != unsized:
        log(f"from the data: {changed_settings(unsized, run)}")
    steps = run.training.steps or run.training.epochs * per_epoch
    if sealed(directory.path) is None:  # earlier code began runs whose warmup is longer
        check_warmup(run.optimizer.schedule, steps)
    trainer = make_trainer(run, directory, task)
    log_summary(trainer, run, steps)
    advise(run.model.compute, trainer.on.devices.flat[0].platform, multiplies_bfloat16())
    keep_learned(run, directory, task)
    with allowing(unknown=True):  # the texts of scores at the end are no reason to lose the model
        trainer.fit(steps=steps)
    if is_main_process():
        print(f"run: {with_urls(str(directory.path))}", flush=True)
    return 0


def log_summary(trainer: Trainer, run: AnyRun, steps: int) -> None:
    """A line about the model and the batches of a run."""
    plan = trainer.task.train.plan
    if isinstance(run, PolicyRun):
        align = run.align
        size = (
            f"{plural(align.group_size, 'sample')} of each of "
            f"{plural(run.training.batch_size, 'prompt')} and {plural(align.updates, 'update')} a "
            f"step"
        )
    else:
        training = run.training
        rows = (
            f"{training.batch_size} x {plural(training.sequence_length, 'token')}"
            if isinstance(training, LanguageTraining)
            else f"at most {plural(training.max_tokens, 'token')}"
        )
        size = (
            f"{rows} a batch, {plural(len(plan.shapes), 'bucket shape')}, "
            f"{plan.non_padding_fraction:.0%} non-padding"
        )
    log(
        f"model: {trainer.num_parameters / 1e6:.2f} M parameters{_trained(trainer)}; "
        f"{plural(steps, 'step')}, "
        f"{plan.steps_per_epoch}/epoch, {size}; mesh {dict(trainer.on.shape)}"
    )


def _trained(trainer: Trainer) -> str:
    """How many parameters are trained, where not all of them are."""
    if trainer.task.partition is EVERYTHING:
        return ""
    count = trainer.num_trained
    return f", {count:,} trained" if count < 1e5 else f", {count / 1e6:.2f} M trained"


def keep_learned(run: AnyRun, directory: RunDirectory, task: Task) -> None:
    """Write the settings that follow from the data to ``config.json``.

    This comes before any checkpoint. Flags of a resumed run are not written.
    """
    if is_main_process() and sealed(directory.path) is None:
        kept = from_dict(type(run), directory.settings())
        learned = from_size(from_task(kept, task), task.train.plan.steps_per_epoch)
        if learned != kept:
            fields = directory.read_config() | dataclasses.asdict(learned)
            directory.write(directory.config, fields)
    sync_global_devices("sized")


def advise(compute: ComputeConfig, platform: str, fast: bool | None) -> None:
    """Warns if a run computes in bfloat16 on a CPU without units for it.

    Args:
        compute: Computation settings of the model.
        platform: Platform of the devices.
        fast: Whether the CPU has units for bfloat16 matrices; None if unknown.
    """
    if compute.dtype == "bfloat16" and platform == "cpu" and fast is False:
        log(
            "warning: this CPU has no amx_bf16, so bfloat16 (model.compute.dtype in config.json) "
            "trains more slowly than float32: begin a run with --model.compute.dtype float32"
        )
