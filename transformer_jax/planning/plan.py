"""Pre-flight checks: the memory of a run on devices that need not be present."""

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeVar, cast

import jax
from flax import nnx
from jax import stages
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.jacobian_paths import product_flops
from transformer_jax.functional.kernels.choice import Choice
from transformer_jax.functional.partitioning import on_mesh
from transformer_jax.models.layers.parameters import values
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.models.partition import merging
from transformer_jax.models.recurrent_config import RecurrentConfig
from transformer_jax.parallel.device_catalog import Target, assumed_utilization, compile_only
from transformer_jax.parallel.program_report import ProgramReport, report
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.parallel.sharding import num_batch_shards, replicated
from transformer_jax.planning.memory_estimate import Estimate, estimate
from transformer_jax.planning.planned_kernels import attention_kernels
from transformer_jax.planning.run_programs import (
    STEPS,
    Shape,
    buckets,
    check_planned,
    decoding_program,
    decoding_shape,
    mesh_on,
    parts_of,
)
from transformer_jax.recipes.registry import get_recipe
from transformer_jax.recipes.settings import Trained
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.state import abstract_parts, abstract_state
from transformer_jax.training.step import compile_eval, compile_step, make_eval_step, make_step

__all__ = [
    "MARGIN", "Program", "What", "compile_program", "estimate_program", "fits", "kernels",
    "measure", "nearest_that_fits", "programs", "training_speed",
]  # fmt: skip

Run = TypeVar("Run", bound=Trained)

MARGIN = 0.2  # fraction of an estimate by which a compiled program may exceed it
What = Literal["training", "evaluation", "decoding"]


class Program(NamedTuple):
    """One program of a run, compiled for a target or estimated.

    Attributes:
        what: Its purpose: training, evaluation or decoding.
        shape: Rows and tokens of a batch; for decoding, all beams and the maximum number of tokens.
        memory: Bytes that a device needs while it runs, including the optimizer's state, which
            stays in memory.
        report: Report about the compiled program; None for an estimate, or if compilation ran out
            of memory.
        seconds: Compilation time.
        estimate: The parts of the memory, if not compiled.
    """

    what: What
    shape: Shape
    memory: int
    report: ProgramReport | None
    seconds: float
    estimate: Estimate | None = None


def training_speed(run: Trained, target: Target) -> dict[str, float]:
    """Estimates the speed of training by :func:`.assumed_utilization`; tokens include padding.

    Empty for devices of unknown speed, and in float32; without hours if the data decide the steps.
    """
    peak = target.number * target.type.flops
    if not peak or run.model.compute.dtype != "bfloat16":
        return {}
    mesh = mesh_on(run, target)
    shape = buckets(run, mesh.shape)[0]
    parts = parts_of(run, mesh, shape)
    graph = nnx.graphdef(with_attention_kernels(nnx.eval_shape(parts.model), None))

    def loss(trained: PyTree, frozen: PyTree, batch: PyTree) -> Array:
        model = parts.partition.merge(graph, trained, frozen, None)
        return parts.objective(model, batch, None)["loss"][0]

    params = map(values, abstract_parts(parts.model, parts.partition))
    flops = product_flops(jax.grad(loss), *params, parts.batch)
    mfu = assumed_utilization(run.model.d_model).fraction
    seconds, steps = flops / peak / mfu, run.training.steps
    found = {"assumed_mfu": mfu, "step_flops": flops, "step_seconds": seconds}
    found["tokens_per_second"] = shape.rows * shape.length / seconds
    return found | ({"hours": steps * seconds / 3600} if steps else {})


def programs(run: Trained, target: Target) -> list[tuple[What, Shape]]:
    """Returns the programs of a run: training, evaluation of every bucket, and decoding."""
    check_planned(run)
    mesh = mesh_on(run, target)
    shapes = buckets(run, mesh.shape)
    found: list[tuple[What, Shape]] = [("training", shape) for shape in shapes]
    found += [("evaluation", shape) for shape in shapes]
    shape = decoding_shape(run, num_batch_shards(mesh))
    if shape is not None:
        found.append(("decoding", Shape(shape.rows * shape.beams, shape.read + shape.written)))
    return found


def measure(run: Trained, target: Target, what: What, shape: Shape) -> Program:
    """Returns one program of a run: compiled, or estimated without a compiler.

    Raises:
        ConfigError: The mesh does not match the devices, rows cannot be divided over it, or a
            setting is not supported.
    """
    if target.compiles:
        return compile_program(run, target, what, shape)
    return estimate_program(run, target, what, shape)


def estimate_program(run: Trained, target: Target, what: What, shape: Shape) -> Program:
    """Estimates one program of a run without compilation."""
    found = estimate(run, target, what, shape)
    return Program(what, shape, found.memory, None, 0.0, found)


def compile_program(
    run: Trained, target: Target, what: What, shape: Shape | None = None
) -> Program:
    """Compiles one program of a run for a target.

    Args:
        run: The run.
        target: Devices to compile for.
        what: The purpose of the program.
        shape: Shape of its batch; None is the longest bucket.

    Raises:
        ConfigError: The mesh does not match the devices, rows cannot be divided over it, a setting
            is not supported, or a kernel does not fit into on-chip memory.
    """
    began = time.monotonic()
    check_planned(run)
    mesh = mesh_on(run, target)
    assert isinstance(mesh, Mesh)
    if shape is None:
        shape = next(found for kind, found in programs(run, target) if kind == what)
    lower, beside = _decoding(run, mesh) if what == "decoding" else _step(run, mesh, what, shape)
    with compile_only(target), on_mesh(mesh):
        lowered = lower(target.lowering)
        try:
            found = report(lowered.compile())
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            if "vmem" in str(error):
                raise ConfigError(
                    f"{target.name}: a kernel of {what} does not fit into on-chip memory "
                    f"(vmem): try --model.attention.implementation chunked"
                ) from None
            # The message may name only the available memory.
            needed = max([*_sizes(str(error)), target.usable + 1])
            return Program(what, shape, needed + beside, None, time.monotonic() - began)
    return Program(what, shape, found.memory + beside, found, time.monotonic() - began)


Lower = Callable[[str], stages.Lowered]  # platform -> lowered program


def _step(run: Trained, mesh: Mesh, what: What, shape: Shape) -> tuple[Lower, int]:
    """Returns a step of training or evaluation, and the bytes of state that it does not use."""
    parts = parts_of(run, mesh, shape)
    trained = abstract_parts(parts.model, parts.partition)[0]
    tx = make_optimizer(run.optimizer, run.model.d_model, STEPS, params=trained)
    ema = run.training.ema_decay
    graph, shapes, placed, frozen = abstract_state(
        parts.model, tx, mesh, ema=ema is not None, partition=parts.partition
    )
    fixed = jax.tree.map(lambda leaf: leaf.sharding, frozen)
    if what == "evaluation":
        evaluate = make_eval_step(parts.evaluation, merging(graph))
        step = compile_eval(evaluate, mesh, placed.params, frozen=fixed)
        beside = _device_bytes(shapes) - _device_bytes(shapes.params)
        return _lowering(step, shapes.params, frozen, parts.batch), beside
    raw = make_step(
        parts.objective,
        tx,
        merging(graph),
        accumulation=run.training.gradient_accumulation_steps,
        ema_decay=ema,
    )
    kind = jax.eval_shape(lambda: jax.random.key(0)).dtype
    key = jax.ShapeDtypeStruct((), kind, sharding=replicated(mesh))
    step = cast(stages.Wrapped, compile_step(raw, mesh, placed, frozen=fixed))
    return _lowering(step, shapes, frozen, parts.batch, key), 0


def _decoding(run: Trained, mesh: Mesh) -> tuple[Lower, int]:
    """Returns the decoding program of a run, and the bytes of the training state next to it."""
    made = decoding_program(run, mesh)
    if made is None:
        raise ConfigError("--plan: this run does not generate texts")
    parts = parts_of(run, mesh, buckets(run, mesh.shape)[0])
    trained = abstract_parts(parts.model)[0]
    tx = make_optimizer(run.optimizer, run.model.d_model, STEPS, params=trained)
    ema = run.training.ema_decay is not None
    shapes = abstract_state(parts.model, tx, mesh, ema=ema)[1]
    # Before compilation, assume that each device has the complete cache.
    outgrown = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(made.outgrown))
    beside = _device_bytes(shapes) + outgrown
    return _lowering(made.jitted, *made.arguments, **made.settings), beside


def _lowering(step: stages.Wrapped, *arguments: PyTree, **settings: object) -> Lower:
    traced = lambda: step.trace(*arguments, **settings)
    return lambda platform: traced().lower(lowering_platforms=(platform,))


def _device_bytes(shapes: PyTree) -> int:
    """Returns the bytes of a device's part of arrays."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(shapes)
    )


def _sizes(message: str) -> list[int]:
    """Returns the sizes in a compiler's message, such as ``48.00G``, in bytes."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    return [int(float(n) * units[unit]) for n, unit in re.findall(r"([\d.]+)([KMGT])\b", message)]


def kernels(run: Trained, target: Target) -> dict[str, Choice]:
    """Returns the kernel of each attention in training, for the longest bucket, with the reason."""
    shape = next(shape for what, shape in programs(run, target) if what == "training")
    part = Shape(shape.rows // run.training.gradient_accumulation_steps, shape.length)
    return attention_kernels(run, target, part, training=True)


def fits(program: Program, target: Target) -> bool:
    """Returns whether a program fits into the memory of a device of the target.

    Without a compiler, a margin of :data:`MARGIN` times the estimate must be free.
    """
    margin = 0.0 if target.compiles else MARGIN
    return program.memory * (1 + margin) <= target.usable


def nearest_that_fits(
    run: Run, target: Target, tried: Callable[[str, Program], None] = lambda *_: None
) -> tuple[str, Run] | None:
    """Returns the smallest change of settings with which a run fits: flags, and the run.

    Candidates are tried in order of their cost: 2 to 64 times as many micro-batches, with the same
    gradients (with buckets, the number of rows per batch may decrease); rematerialization, for
    a third more work; and parameters sharded over more devices, which must be gathered. If the
    estimate of a candidate fits and there is a compiler, the largest program of each kind is
    compiled.

    Args:
        run: The run that does not fit.
        target: The target.
        tried: Called with each candidate's flags and program.
    """
    for flags, candidate in _candidates(run, target):
        try:
            wanted = programs(candidate, target)
        except ConfigError:
            continue  # micro-batches do not divide the rows
        if get_recipe(run.recipe).has_estimate:
            estimates = list(_fitting(candidate, target, wanted))
            if len(estimates) < len(wanted):
                continue
            by_memory = sorted(estimates, key=lambda program: program.memory)
            wanted = [(program.what, program.shape) for program in by_memory]
        for what, shape in dict(wanted).items():  # the largest program of each kind
            needed = measure(candidate, target, what, shape)
            tried(flags, needed)
            if not fits(needed, target):
                break
        else:
            return flags, candidate
    return None


def _fitting(run: Trained, target: Target, wanted: list[tuple[What, Shape]]) -> Iterator[Program]:
    """Estimates programs up to the first that does not fit."""
    for one in wanted:
        program = estimate_program(run, target, *one)
        if not fits(program, target):
            return
        yield program


def _candidates(run: Run, target: Target) -> Iterator[tuple[str, Run]]:
    for mesh_flags, on in _meshes(run, target):
        # Recurrent translators do not support rematerialization.
        again_too = not isinstance(run.model, RecurrentConfig)
        for remat in sorted({run.model.compute.remat, again_too}):
            compute = dataclasses.replace(run.model.compute, remat=remat)
            model = dataclasses.replace(run.model, compute=compute)
            again = "--model.compute.remat" if remat and not run.model.compute.remat else ""
            for times in (1, 2, 4, 8, 16, 32, 64):
                steps = run.training.gradient_accumulation_steps * times
                training = dataclasses.replace(run.training, gradient_accumulation_steps=steps)
                parts = f"--training.gradient-accumulation-steps {steps}" if times > 1 else ""
                flags = " ".join(word for word in (parts, again, mesh_flags) if word)
                if flags:
                    yield flags, dataclasses.replace(run, mesh=on, model=model, training=training)


def _meshes(run: Trained, target: Target) -> Iterator[tuple[str, MeshConfig]]:
    """Yields the mesh of a run, then meshes that shard parameters over more devices."""
    yield "", run.mesh
    inner = run.mesh.tensor * run.mesh.context
    fsdp = run.mesh.fsdp * 2
    while fsdp * inner <= target.number:
        if target.number % (fsdp * inner) == 0:
            mesh = dataclasses.replace(run.mesh, data=-1, fsdp=fsdp)
            yield f"--mesh.data -1 --mesh.fsdp {fsdp}", mesh
        fsdp *= 2
