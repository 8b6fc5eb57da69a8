"""Pre-flight: a run compiled for devices that need not be there, before anything is begun."""

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from transformer_jax.errors import ConfigError
from transformer_jax.models.making import make_model
from transformer_jax.modules.parameters import parameters
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.parallel.program_report import ProgramReport, report
from transformer_jax.parallel.sharding import batch_sharding, num_batch_shards, replicated
from transformer_jax.parallel.target import Target, compile_only
from transformer_jax.runs.encoder_settings import PretrainRun
from transformer_jax.runs.language_settings import LanguageRun
from transformer_jax.runs.translation_settings import Run as TranslationRun
from transformer_jax.training import objectives
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.partition import merging
from transformer_jax.training.state import abstract_state
from transformer_jax.training.step import (
    Batch,
    Objective,
    compile_eval,
    compile_step,
    make_eval_step,
    make_step,
)

__all__ = [
    "PlannedRun",
    "Program",
    "compile_program",
    "fits",
    "mesh_on",
    "nearest_that_fits",
    "plan",
]

PlannedRun = TranslationRun | LanguageRun | PretrainRun

_BOS = 1  # of programs that are compiled only, any token will do
_STEPS = 100_000  # of schedules, which do not change the size of a program
_UNIT = 8  # lengths of batches are multiples of it

What = Literal["training", "evaluation"]


class Program(NamedTuple):
    """One program of a run, compiled for a target.

    Attributes:
        what: What it does.
        shape: Rows and tokens of a batch.
        memory: Bytes that a device needs while it runs; in evaluation with the optimizer's state.
        report: What the compiled program does; None where the compiler found no room for it.
        seconds: Of compilation.
    """

    what: What
    shape: tuple[int, int]
    memory: int
    report: ProgramReport | None
    seconds: float


class _Parts(NamedTuple):
    model: Callable[[], nnx.Module]
    objective: Objective
    evaluation: Objective
    batch: Batch  # of shapes
    shape: tuple[int, int]


def mesh_on(run: PlannedRun, target: Target) -> Mesh:
    """The mesh of a run over the devices of a target.

    Raises:
        ConfigError: The sizes do not fit the number of devices.
    """
    return make_mesh(run.mesh, target.devices)


def plan(run: PlannedRun, target: Target) -> Iterator[Program]:
    """The programs of a run, compiled one after another: training, then evaluation.

    Batches have the largest shape that settings allow: data are not read.

    Raises:
        ConfigError: The mesh does not fit the devices, rows do not divide over it, or a setting
            that a plan does not follow.
    """
    kinds: tuple[What, ...] = ("training", "evaluation")
    for what in kinds:
        yield compile_program(run, target, what)


def compile_program(run: PlannedRun, target: Target, what: What) -> Program:
    """One program of a run, compiled for a target.

    Raises:
        ConfigError: The mesh does not fit the devices, rows do not divide over it, or a setting
            that a plan does not follow.
    """
    began = time.monotonic()
    _check(run)
    mesh = mesh_on(run, target)
    parts = _parts(run, mesh)
    declared = parameters(nnx.eval_shape(parts.model))
    tx = make_optimizer(run.optimizer, run.model.d_model, _STEPS, params=declared)
    ema = run.training.ema_decay
    graph, shapes, shardings, frozen = abstract_state(parts.model, tx, mesh, ema=ema is not None)
    beside = 0
    if what == "training":
        raw = make_step(
            parts.objective,
            tx,
            merging(graph),
            accumulation=run.training.gradient_accumulation_steps,
            ema_decay=ema,
        )
        step = compile_step(raw, mesh, shardings)
        kind = jax.eval_shape(lambda: jax.random.key(0)).dtype
        key = jax.ShapeDtypeStruct((), kind, sharding=replicated(mesh))
        arguments: tuple[Any, ...] = (shapes, frozen, parts.batch, key)
    else:
        evaluate = make_eval_step(parts.evaluation, merging(graph))
        step = compile_eval(evaluate, mesh, shardings.params)
        arguments = (shapes.params, frozen, parts.batch)
        beside = _device_bytes(shapes) - _device_bytes(shapes.params)
    with compile_only(target):
        lowered = step.trace(*arguments).lower(lowering_platforms=(target.lowering,))
        try:
            found = report(lowered.compile())
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            needed = max(_sizes(str(error)), default=target.type.memory + 1)
            return Program(what, parts.shape, needed + beside, None, time.monotonic() - began)
    return Program(what, parts.shape, found.memory + beside, found, time.monotonic() - began)


def _check(run: PlannedRun) -> None:
    if run.training.mode != "jit":
        raise ConfigError(f"--plan: there is no plan with training.mode {run.training.mode}")
    if isinstance(run, TranslationRun) and run.init_from is not None:
        raise ConfigError("--plan: there is no plan with init_from: leave it out")


def _device_bytes(shapes: Any) -> int:
    """Bytes of a device's part of arrays."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(shapes)
    )


def _sizes(message: str) -> list[int]:
    """The sizes in a message of the compiler, such as ``48.00G``, in bytes."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    return [int(float(n) * units[unit]) for n, unit in re.findall(r"([\d.]+)([KMGT])\b", message)]


def _parts(run: PlannedRun, mesh: Mesh) -> _Parts:
    """What a step is made of, with a batch of the largest shape of the run."""
    config = run.model
    rows, length = _largest_shape(run, mesh)

    def array(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=batch_sharding(mesh))

    made = lambda kind, **heads: lambda: make_model(kind, config, rngs=nnx.Rngs(0), **heads)
    shape = rows, length
    if isinstance(run, TranslationRun):
        batch: Batch = {
            "inputs": {"source": array(length), "source_lengths": array()},
            "target": array(length),
            "lengths": array(),
        }
        smoothed = objectives.sequence_to_sequence(_BOS, run.training.label_smoothing)
        plain = objectives.sequence_to_sequence(_BOS)
        return _Parts(made("encoder-decoder"), smoothed, plain, batch, shape)
    if isinstance(run, LanguageRun):
        names = ["tokens", "targets"]
        names += ["segments", "positions"] * (run.training.layout == "packed")
        batch = {name: array(length) for name in names}
        batch["weights"] = array(length, dtype=jnp.float32)
        objective = objectives.language_model()
        return _Parts(made("decoder"), objective, objective, batch, shape)
    masked = max(1, round(run.masking.mlm_probability * length))
    batch = {
        "tokens": array(length),
        "types": array(length),
        "lengths": array(),
        "next_sentence_label": array(),
        "masked_positions": array(masked),
        "targets": array(masked),
        "weights": array(masked, dtype=jnp.float32),
    }
    pairs = run.masking.sentence_objective
    of = lambda accuracy: objectives.masked_lm(accuracy=accuracy, sentence_objective=pairs)
    model = made("encoder", next_sentence=pairs != "none")
    return _Parts(model, of(False), of(True), batch, shape)


def _largest_shape(run: PlannedRun, mesh: Mesh) -> tuple[int, int]:
    """Rows and tokens of the batch with the longest texts.

    Raises:
        ConfigError: Rows that the mesh and accumulation do not divide.
    """
    parts = num_batch_shards(mesh) * run.training.gradient_accumulation_steps
    if isinstance(run, LanguageRun):
        rows, length = run.training.batch_size, run.training.sequence_length
        if rows % parts:
            raise ConfigError(
                f"training.batch_size is {rows}: with mesh.data x mesh.fsdp "
                f"{num_batch_shards(mesh)} and training.gradient_accumulation_steps "
                f"{run.training.gradient_accumulation_steps} it must be a multiple of {parts}"
            )
        return rows, length
    length = (
        run.training.sequence_length if isinstance(run, PretrainRun) else run.data.read.max_length
    )
    length = -(-length // _UNIT) * _UNIT
    multiple = math.lcm(run.training.required_batch_size_multiple, parts)
    return max(run.training.max_tokens // length // multiple, 1) * multiple, length


def fits(program: Program, target: Target) -> bool:
    """Whether a device of the target has the memory that a program needs."""
    return program.memory <= target.usable


def nearest_that_fits(
    run: PlannedRun, target: Target, tried: Callable[[str, Program], None] = lambda *_: None
) -> tuple[str, PlannedRun] | None:
    """The least change of settings with which training and evaluation fit: its flags, and the run.

    Candidates are compiled in this order: parameters split over all devices, twice to 64 times as
    many micro-batches, and activations computed again in the backward pass.

    Args:
        run: What does not fit.
        target: Where it has to.
        tried: Called with each candidate's flags and program.
    """
    evaluated: dict[MeshConfig, bool] = {}

    def fitting(flags: str, candidate: PlannedRun, what: What) -> bool:
        program = compile_program(candidate, target, what)
        tried(flags, program)
        return fits(program, target)

    for flags, candidate in _candidates(run, target):
        mesh = candidate.mesh  # alone decides over the memory of evaluation
        if mesh not in evaluated:
            evaluated[mesh] = fitting(flags, candidate, "evaluation")
        if evaluated[mesh] and fitting(flags, candidate, "training"):
            return flags, candidate
    return None


def _candidates(run: PlannedRun, target: Target) -> Iterator[tuple[str, PlannedRun]]:
    flags, base = "", run
    inner, devices = run.mesh.tensor * run.mesh.context, len(target.devices)
    if run.mesh.fsdp * inner < devices:
        mesh = dataclasses.replace(run.mesh, data=-1, fsdp=devices // inner)
        flags, base = (
            f"--mesh.data -1 --mesh.fsdp {mesh.fsdp} ",
            dataclasses.replace(run, mesh=mesh),
        )
        yield flags.strip(), base
    for remat in (False, True):
        if remat:
            compute = dataclasses.replace(base.model.compute, remat=True)
            base = dataclasses.replace(base, model=dataclasses.replace(base.model, compute=compute))
            flags += "--model.compute.remat "
            yield flags.strip(), base
        for times in (2, 4, 8, 16, 32, 64):
            steps = base.training.gradient_accumulation_steps * times
            training: Any = base.training
            training = dataclasses.replace(training, gradient_accumulation_steps=steps)
            candidate = dataclasses.replace(base, training=training)
            try:
                _largest_shape(candidate, mesh_on(candidate, target))
            except ConfigError:
                break
            yield f"{flags}--training.gradient-accumulation-steps {steps}", candidate
