"""Checks of settings against devices, memory, tokenizer, metrics and each other."""

import dataclasses
import math
import os
from typing import Any

import jax
from jax.sharding import Mesh

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.extension import check_extensible
from transformer_jax.data.tokenizer import Tokenizer, load_tokenizer
from transformer_jax.models.costs import accounting
from transformer_jax.parallel.mesh import devices_of, make_mesh, mesh_shape
from transformer_jax.recipes.explicit_settings import Given, with_normalization
from transformer_jax.recipes.freezing import check_layers
from transformer_jax.recipes.publishing import check_export
from transformer_jax.recipes.registry import get_recipe
from transformer_jax.recipes.settings import (
    Adapted,
    AnyRun,
    RowBatches,
    Run,
    RunSettings,
    SharedRowBatches,
    TokenBatches,
    Trained,
    start_config,
)
from transformer_jax.recipes.start import Start
from transformer_jax.training.settings import check_warmup
from transformer_jax.word_vectors.initialization import check_size

__all__ = [
    "check_extension",
    "check_room",
    "check_rows",
    "memory",
    "mesh_of",
    "row_parts",
    "validated",
    "validated_settings",
    "with_batch_multiple",
    "with_loaded_tokenizer",
    "with_rows_for",
    "with_vocab",
    "with_warmup",
]


def with_vocab(run: Run, tokenizer: Tokenizer) -> Run:
    """Returns the run with the tokenizer's vocabulary size in its model."""
    model = dataclasses.replace(run.model, vocab_size=tokenizer.vocab_size)
    return dataclasses.replace(run, model=model)


def with_rows_for(run: Run, tokenizer: Tokenizer) -> Run:
    """Returns the run with a model that has a row for each token; further rows are kept."""
    model, needed = run.model, tokenizer.vocab_size
    decoder_size = model.decoder_vocab_size
    model = dataclasses.replace(
        model,
        vocab_size=max(model.vocab_size, needed),
        decoder_vocab_size=None if decoder_size is None else max(decoder_size, needed),
    )
    return dataclasses.replace(run, model=model)


def mesh_of(run: Trained) -> Mesh:
    """Returns the mesh over the devices that the run may use."""
    return make_mesh(run.mesh, devices_of(run.distributed))


def row_parts(run: Trained, devices: int | None = None) -> int:
    """Returns the number that must divide the rows of a batch."""
    number = devices or len(devices_of(run.distributed))
    shape = mesh_shape(run.mesh, number)
    return shape["data"] * shape["fsdp"] * run.training.gradient_accumulation_steps


def with_batch_multiple(run: Run) -> Run:
    """Returns the run with batches whose rows can be divided over this mesh and later ones."""
    training = run.training
    if not isinstance(training, TokenBatches):
        return run
    multiple = math.lcm(training.required_batch_size_multiple, row_parts(run))
    return dataclasses.replace(
        run, training=dataclasses.replace(training, required_batch_size_multiple=multiple)
    )


def validated(
    run: Run, start: Start | None, given: Given[Run], layer_settings: Run | None = None
) -> Run:
    """Checks the settings of a run that begins, before its data are read.

    Args:
        run: The settings, with the model of the start.
        start: The start of the run, or None.
        given: What the command gave.
        layer_settings: The run with only the settings of its start that concern layers of
            ``run.model``, if the recipe checks the other ones; None is ``run``.

    Returns:
        The run with a warmup and a length that fit, and the text normalization of its tokenizer.

    Raises:
        ConfigError: Settings do not match each other, the start or the memory, or the trained model
            could not be exported to the family of its start.
        DataError: A file of settings cannot be read.
    """
    if start is not None:
        check_room(run)
        check_layers(run if layer_settings is None else layer_settings, start)
    run = validated_settings(run, given, start)
    check_export(get_recipe(run.recipe), run, start)
    check_extension(run, start)
    return run


def validated_settings(run: Run, given: Given[Run], start: Start | None = None) -> Run:
    """Checks settings before any text is read; returns the run with a suitable warmup.

    A loaded tokenizer determines the normalization of text.

    Args:
        run: The settings.
        given: What the command gave.
        start: The start of the run, or None.

    Raises:
        ConfigError: The model reads features, but the run has text; the metric of checkpoints is
            unknown; word vectors have another size, or are given in addition to a start; texts
            exceed the model's positions, or cannot be divided over the devices along ``context``;
            the warmup is too long; or the recipe refuses a setting.
        DataError: The file of word vectors cannot be read.
    """
    recipe, features = get_recipe(run.recipe), run.model.features.num_features
    if features and not recipe.reads_features:
        raise ConfigError(
            f"model.features.num_features is {features}: this run reads text: leave it out"
        )
    best, allowed = run.loop.best_checkpoint_metric, ("valid_loss", *recipe.metrics_of(run))
    if best not in (None, *allowed):
        raise ConfigError(
            f"loop.best_checkpoint_metric is {best}: this run has {', '.join(allowed)}"
        )
    _check_word_vectors(run)
    _check_adapters(run)
    run = with_warmup(run, given.named)
    run = _within_positions(run, start, given)
    _check_length(run, start)
    recipe.check(run, given)
    return with_loaded_tokenizer(run, given)


def with_loaded_tokenizer(run: AnyRun, given: Given[AnyRun]) -> AnyRun:
    """Returns the run with the normalization of the tokenizer file that it names.

    Raises:
        DataError: The tokenizer cannot be loaded.
    """
    if run.tokenizer is None or run.tokenizer.path is None:
        return run
    return with_normalization(run, load_tokenizer(run.tokenizer.path).normalization, given)


def check_extension(run: RunSettings, start: Start | None = None) -> None:
    """Refuses ``tokenizer.extend_by`` without a tokenizer to extend.

    Raises:
        ConfigError: There is none, or one of another kind.
    """
    if run.tokenizer is None or not (count := run.tokenizer.extend_by):
        return
    if start is not None:
        check_extensible(start.tokenizer, count)
    elif run.tokenizer.path is not None:
        check_extensible(load_tokenizer(run.tokenizer.path), count)
    else:
        raise ConfigError(
            "tokenizer.extend_by: there is no tokenizer to extend: start from a run with "
            "--init-from RUN, or set --tokenizer.vocab-size"
        )


def _check_word_vectors(run: Trained) -> None:
    path = run.model.embedding.init
    if path is None:
        return
    if not path:
        raise ConfigError("model.embedding.init needs a file of word vectors")
    start = start_config(run)
    if start.init_from is not None:
        raise ConfigError(
            f"model.embedding.init {path} and {start.prefix}init_from {start.init_from}: "
            f"both initialize the embeddings: leave one out"
        )
    check_size(run.model)


def with_warmup(run: Run, named: Run) -> Run:
    """Returns the run with a tenth of its steps as warmup, if the preset's warmup is too long.

    Raises:
        ConfigError: The user set a warmup that is too long.
    """
    steps, schedule = run.training.steps, run.optimizer.schedule
    if steps is None:
        return run
    try:
        check_warmup(schedule, steps)
    except ConfigError:
        if schedule.warmup_steps != named.optimizer.schedule.warmup_steps:
            raise
        schedule = dataclasses.replace(schedule, warmup_steps=None)
        check_warmup(schedule, steps)
        log(f"warmup: a tenth of {plural(steps, 'step')}, since the named run's is longer")
    optimizer = dataclasses.replace(run.optimizer, schedule=schedule)
    return dataclasses.replace(run, optimizer=optimizer)


def _check_adapters(run: Trained) -> None:
    if not isinstance(run, Adapted):
        return
    adapters, start = run.lora, start_config(run)
    if not adapters.rank:
        if adapters != type(adapters)():
            raise ConfigError("lora: settings of adapters need lora.rank: add --lora.rank 8")
        return
    if start.init_from is None:
        raise ConfigError(
            f"lora.rank is given without {start.prefix}init_from: adapters need a trained model"
        )
    defaults = {"freeze": "none", "reinit_last": 0, "reinit_head": False}
    for name, default in defaults.items():
        value = getattr(start, name)
        if value != default:
            raise ConfigError(
                f"{start.prefix}{name} is {value} and lora.rank {adapters.rank}: with adapters, "
                f"the model itself is frozen: leave one of them out"
            )


def _within_positions(run: Run, start: Start | None, given: Given[Run]) -> Run:
    """Returns the run with a default length that fits the positions of its start.

    A length that was given is kept, and refused if it does not fit.
    """
    setting, length = run.length_limit
    group, _, name = setting.partition(".")
    most = run.model.max_length
    if start is None or length <= most or not hasattr(getattr(run, group, None), name):
        return run
    if setting in given or length != given.named.length_limit[1]:
        return run
    log(f"{setting} is {most} in place of {length}: the positions of {start_config(run).init_from}")
    changed: Any = {group: dataclasses.replace(getattr(run, group), **{name: most})}
    return dataclasses.replace(run, **changed)


def _check_length(run: Trained, start: Start | None) -> None:
    setting, length = run.length_limit
    most = run.model.max_length
    if length > most:
        raising = f" or raise model.{'positions.' * hasattr(run.model, 'positions')}max_length"
        # The table of a start has as many rows as it has positions.
        positions: Any = getattr(run.model, "positions", run.model)
        fixed = start is not None and positions.kind.startswith("learned")
        raise ConfigError(
            f"{setting} is {length}, but the model has positions for {plural(most, 'token')}: "
            + ("lower it" if fixed else f"lower the one{raising}")
        )
    # Batches of other runs are padded to divisible lengths.
    if isinstance(run.training, RowBatches) and length % run.mesh.context:
        raise ConfigError(
            f"{setting} is {length}: with mesh.context {run.mesh.context} it must be a multiple of "
            f"{run.mesh.context}"
        )


def check_rows(run: Trained, devices: int | None = None) -> None:
    """Refuses batches whose rows cannot be divided over devices and micro-batches.

    Rows that are shared by examples are as many as needed.

    Args:
        run: The settings.
        devices: Number of devices that the run will have; None is those of this machine.

    Raises:
        ConfigError: The rows cannot be divided; the message has the divisor.
    """
    if isinstance(run.training, SharedRowBatches):
        return
    needed, unit = row_parts(run, devices), run.training.row_unit
    if unit % needed:
        raise ConfigError(
            f"the batches of this run have a multiple of {plural(unit, 'row')}, not divisible by "
            f"{needed} (mesh data x fsdp x gradient_accumulation_steps): choose another mesh, or "
            f"start a new run with other batches"
        )


_FLOAT_BYTES = 4


def memory(devices: list[Any]) -> int | None:
    """Returns the total memory of all devices in bytes; None if they do not report it.

    CPU devices share the memory of their machine.
    """
    if any(device.platform == "cpu" for device in devices):
        try:
            pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            return None
        return pages * len({device.process_index for device in devices})
    # A process knows only its own devices; remote devices are assumed to be equal.
    here = jax.process_index()
    own = next((device for device in devices if device.process_index == here), None)
    limit = None if own is None else (own.memory_stats() or {}).get("bytes_limit")
    return None if limit is None else limit * len(devices)


def check_room(run: RunSettings) -> None:
    """Refuses a run whose parameters and gradients, or whose batches, exceed the total memory.

    This is a lower bound: a run that passes may still be too large. Frozen parameters have no
    gradients.

    Raises:
        ConfigError: The memory is too small; the message has both sizes.
    """
    if not isinstance(run, Trained):
        return  # an n-gram model
    limit = memory(devices_of(run.distributed))
    if limit is None:
        return
    count = accounting.count_parameters(run.model)
    frozen = start_config(run).freeze != "none" or (isinstance(run, Adapted) and run.lora.rank > 0)
    _refuse_memory(
        limit,
        (1 if frozen else 2) * count * _FLOAT_BYTES,
        f"the model has {plural(count, 'parameter')}, which "
        f"{'alone' if frozen else 'with their gradients'} take",
        "lower model.d_model, the layers or the vocabulary",
    )
    training, tokens = run.training, run.batch_tokens
    _refuse_memory(
        limit,
        2 * tokens * run.model.d_model * _FLOAT_BYTES // training.gradient_accumulation_steps,
        f"a batch of {plural(tokens, 'token')} takes, for a single layer,",
        "lower training.max_tokens (batch_size, sequence_length), or raise "
        "training.gradient_accumulation_steps",
    )


def _refuse_memory(limit: int, needed: int, what: str, advice: str) -> None:
    if needed > limit:
        raise ConfigError(
            f"{what} {needed / 2**30:,.0f} GiB, but the devices have {limit / 2**30:,.0f}: {advice}"
        )
