"""Benchmarks every registered attention kernel and the hot parts around it, or only compiles them.

    python -m benchmarks kernels
    python -m benchmarks kernels --only tokens --batch 1
    python -m benchmarks kernels --target v5e:2x4 --compile-only

Writes ``benchmarks/results/kernels_DEVICE.json`` and a roofline picture. For each case: the kernels
that ran, or the reason for their refusal; medians of the forward pass and of both passes, with
several calls inside one program, all ways to compute a case in turns; TFLOP/s and GB/s of the
required work; the fraction of the roofline; temporary bytes; the error relative to float32. Peers
that are not installed are skipped. On a CPU, CPU time of the process is measured, on one core if
``JAX_PLATFORMS`` is ``cpu``.
"""

import dataclasses
import json
import shlex
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from benchmarks import kernel_peers, roofline
from benchmarks.harness import environment
from benchmarks.kernel_cases import ATTENTION, LENGTHS, AttentionCase, Work, attention, others
from benchmarks.kernel_timing import passes, repeated, timer
from benchmarks.roofline import Peak
from transformer_jax.core.errors import ConfigError
from transformer_jax.parallel.device_catalog import DEVICES, Target, compile_only, find_target
from transformer_jax.parallel.program_report import report

__all__ = ["Settings", "main", "measure"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The cases to measure, and the device."""

    target: str | None = None  # devices to compile for, such as v5e:2x4 or h200:1
    compile_only: bool = False  # only report kernels and memory; with --target
    dtype: str | None = None  # None is bfloat16, or float32 on CPUs, as in training
    batch: int | None = None  # rows of attention; None is each case's own
    only: tuple[str, ...] = ()  # cases whose names contain one of these; empty is all
    rounds: int = 5  # measured rounds, after a warmup round
    peers: bool = True  # include torch, jax.nn and tokamax, if installed
    output: Path = Path("benchmarks/results")  # output folder


class Place(NamedTuple):
    """The device to measure or compile for."""

    name: str  # in names of files
    device: str  # JAX's name
    platform: str
    capability: float
    peak: Peak
    target: Target | None


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs ``python -m benchmarks kernels``."""
    settings = tyro.cli(Settings, args=arguments, description=__doc__)
    run(settings)


def run(settings: Settings) -> Path:
    """Measures or compiles all cases, and returns the file of results.

    Raises:
        ConfigError: Flags exclude each other, the target is unknown, or no case matches.
    """
    place = find_place(settings)
    dtype = settings.dtype or ("float32" if place.platform == "cpu" else "bfloat16")
    found: list[dict[str, Any]] = []
    chosen = cases(settings, place, dtype)
    for work in chosen:
        one = compiled(work, place) if place.target else measure(work, place, settings)
        found.append(one)
        _print(one)
    if not found:
        raise ConfigError(f"--only: no case has {' or '.join(settings.only)} in its name")
    settings.output.mkdir(parents=True, exist_ok=True)
    where = settings.output / f"kernels_{place.name}.json"
    facts = {
        "command": "python -m benchmarks kernels" + _flags(settings),
        "device": place.device,
        "compiled_only": place.target is not None,
        "peak": place.peak._asdict(),
        "dtype": dtype,
        "rounds": None if place.target else settings.rounds,
        "environment": environment(("jax", "jaxlib")) | {"peers": kernel_peers.versions()},
        "cases": found,
    }
    where.write_text(json.dumps(facts, indent=1) + "\n")
    if not place.target:
        roofline.draw(facts, where.with_suffix(".png"))
    print(f"wrote {where}")
    return where


def _flags(settings: Settings) -> str:
    told = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value != field.default and field.name != "output":
            name = field.name.replace("_", "-")
            value = shlex.join(value) if isinstance(value, tuple) else value
            told.append(
                f"--{'' if value else 'no-'}{name}" if isinstance(value, bool)
                else f"--{name} {value}"
            )  # fmt: skip
    return "".join(" " + flag for flag in told)


def find_place(settings: Settings) -> Place:
    """Returns the device to measure, or the target to compile for.

    Raises:
        ConfigError: Only one of ``--target`` and ``--compile-only`` is given, or the target is
            unknown.
    """
    if settings.target is None:
        if settings.compile_only:
            raise ConfigError(
                "--compile-only: name what to compile for: --target v5e:2x4 or h200:1"
            )
        device = jax.devices()[0]
        capability = float(getattr(device, "compute_capability", 9.0))
        kind = device.device_kind
        known = (name for name, one in DEVICES.items() if kind in one.kinds)
        name = next(known, kind.lower().replace(" ", "_"))
        return Place(name, kind, device.platform, capability, roofline.peak_of(device), None)
    if not settings.compile_only:
        raise ConfigError(f"--target {settings.target}: add --compile-only: it is not timed here")
    target = find_target(settings.target)
    peak = Peak(target.type.flops, target.type.bandwidth, "data sheet, bfloat16")
    name = settings.target.replace(":", "_")
    kind = target.devices[0].device_kind
    return Place(f"{name}_compiled", kind, target.type.platform, 9.0, peak, target)


def cases(settings: Settings, place: Place, dtype: str) -> Iterator[Work]:
    """Yields the requested cases, each created on demand."""
    of_lengths: tuple[AttentionCase, ...] = LENGTHS if place.platform == "cpu" else ()
    for case in ATTENTION + of_lengths:
        if _wanted(case.name, settings):
            batch = settings.batch or case.batch
            case = dataclasses.replace(case, batch=batch)
            work = attention(case, place.platform, place.capability, dtype)
            if settings.peers and not place.target:
                work = work._replace(peers=kernel_peers.attention(case, work, place.platform))
            yield work
    for name, make in others(dtype).items():
        if _wanted(name, settings):
            yield make()


def _wanted(name: str, settings: Settings) -> bool:
    return not settings.only or any(part in name for part in settings.only)


def measure(work: Work, place: Place, settings: Settings) -> dict[str, Any]:
    """Measures all ways to compute a case, in turns, with memory and error."""
    inputs = jax.tree.map(jnp.asarray, work.inputs)
    rows: list[dict[str, Any]] = []
    timed: list[tuple[dict[str, Any], str, Callable[[], float]]] = []
    floating = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32) if floating(x) else x, inputs)
    first = next(entry.run for entry in work.entries.values() if entry.run)
    with jax.default_matmul_precision("highest"):
        exact = np.asarray(jax.jit(first)(*wide), np.float64)
    for name, entry in work.entries.items():
        row: dict[str, Any] = {"name": name}
        rows.append(row)
        if entry.run is None:
            row["refused"] = entry.reason
            continue
        for which, function in passes(entry.run, work.differentiated).items():
            row[which] = {"temporary_bytes": _temporaries(function, inputs)}
            again = repeated(function, inputs, work.differentiated)
            timed.append((row[which], which, timer(again, inputs)))
        row["error"] = _error(jax.jit(entry.run)(*inputs), exact)
    for name, peer in work.peers.items():
        row = {"name": name, "peer": True}
        rows.append(row)
        if peer.reason is not None:
            row["refused"] = peer.reason
            continue
        row["error"] = _error(peer.result(), exact)
        for which, seconds_of in peer.timers.items():
            row[which] = {}
            timed.append((row[which], which, seconds_of))
    samples: list[list[float]] = [[] for _ in timed]
    for turn in range(settings.rounds + 1):
        order = range(len(timed))[:: 1 if turn % 2 else -1]
        for i in order:
            seconds = timed[i][2]()
            if turn:
                samples[i].append(seconds)
    for (row, which, _), taken in zip(timed, samples, strict=True):
        row |= _rates(work, which, statistics.median(taken), min(taken), place.peak)
    return {"case": work.name, "auto": work.auto, "ways": rows}


def _temporaries(function: Callable[..., Any], inputs: tuple[Any, ...]) -> int:
    return report(jax.jit(function).lower(*inputs).compile()).temporaries


def _error(found: Any, exact: np.ndarray) -> float:
    """Returns the largest difference, relative to the largest value."""
    difference = np.abs(np.asarray(found, np.float64) - exact).max()
    return float(f"{difference / max(np.abs(exact).max(), 1e-30):.2e}")


def _rates(work: Work, which: str, seconds: float, least: float, peak: Peak) -> dict[str, Any]:
    at = 0 if which == "forward" else 1
    flops, size = work.flops[at], work.bytes[at]
    return {
        "ms": round(seconds * 1e3, 4),
        "low_ms": round(least * 1e3, 4),
        "tflops": round(flops / seconds / 1e12, 4),
        "gb_per_s": round(size / seconds / 1e9, 3),
        "intensity": round(flops / size, 2),
        "roofline_share": round(peak.least_seconds(flops, size) / seconds, 4),
    }


def compiled(work: Work, place: Place) -> dict[str, Any]:
    """Compiles a case for a target; returns fused kernels and temporary bytes."""
    assert place.target is not None
    mesh = jax.sharding.Mesh(np.array(place.target.devices[:1]), ("x",))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole)
    shapes = jax.tree.map(shape, work.inputs)
    rows: list[dict[str, Any]] = []
    for name, entry in work.entries.items():
        row: dict[str, Any] = {"name": name}
        rows.append(row)
        if entry.run is None:
            row["refused"] = entry.reason
            continue
        for which, function in passes(entry.run, work.differentiated).items():
            with compile_only(place.target):
                traced = jax.jit(function).trace(*shapes)
                lowered = traced.lower(lowering_platforms=(place.target.lowering,))
                try:
                    said = report(lowered.compile())
                except jax.errors.JaxRuntimeError as error:
                    row[which] = {"failed": str(error).splitlines()[0][:200]}
                    continue
            row[which] = {"temporary_bytes": said.temporaries, "fused_kernels": said.kernels}
    return {"case": work.name, "auto": work.auto, "ways": rows}


def _print(one: dict[str, Any]) -> None:
    print(f"{one['case']}{': auto is ' + one['auto'] if one['auto'] else ''}")
    for way in one["ways"]:
        if "refused" in way:
            print(f"  {way['name']:26} refused: {way['refused']}")
            continue
        told = []
        for which in ("forward", "forward+backward"):
            found = way.get(which, {})
            if "ms" in found:
                share = 100 * found["roofline_share"]
                told.append(f"{found['ms']:9.2f} ms {found['tflops']:7.3f} TFLOP/s {share:5.1f} %")
            elif "temporary_bytes" in found:
                fused = "+".join(f"{n} {name}" for name, n in found["fused_kernels"].items())
                told.append(f"{found['temporary_bytes'] / 1e6:9.1f} MB {fused or 'XLA alone':18}")
            elif found:
                told.append(f"failed: {found['failed']}")
        print(f"  {way['name']:26} {'  |  '.join(told)}", flush=True)
