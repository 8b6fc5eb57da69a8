"""Compiles programs of named runs for GPUs and TPUs, without a device; writes figures as JSON.

    python -m benchmarks programs
    python -m benchmarks programs --only "gpt2-small, fsdp, 2 layers" --what training
    python -m benchmarks programs --only "gpt2-small, decoding, 1 text"

Needs the extra ``aot``. For each case: memory of a device, communication, fused kernels, and on
TPUs the cycles that the compiler expects; for a decoding loop and a step of the benchmark of a GPU,
kernels and bytes of a token or step. Updates the requested cases in
``benchmarks/results/programs.json``.
"""

import dataclasses
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.decoding_programs import DECODING, DecodingCase
from benchmarks.harness import environment
from benchmarks.training_programs import STEPS, StepCase
from transformer_jax.core.errors import ConfigError
from transformer_jax.parallel.device_catalog import Target, find_target
from transformer_jax.parallel.program_report import ProgramReport
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.planning.plan import Program, compile_program
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.sizing import for_device
from transformer_jax.recipes.translation import Run as TranslationRun

PRETRAIN_RUNS = named_runs("masked_lm")
RUNS = named_runs("language_model", "ngram")
TRANSLATION_RUNS = named_runs("translation", "recurrent_translation")
PICTURE_RUNS = named_runs("images", "captions", "clip")

__all__ = ["CASES", "NAMED", "Case", "Settings", "main"]

NAMED = {**TRANSLATION_RUNS, **PRETRAIN_RUNS, **RUNS, **PICTURE_RUNS}


@dataclasses.dataclass(frozen=True)
class Case:
    """A named run on a mesh of a target.

    Attributes:
        run: Its name.
        target: Devices, such as ``h200:8``.
        mesh: Sizes of the axes data, fsdp, tensor and context; missing ones are 1.
        layers: Maximum number of layers of an encoder and of a decoder; None keeps the run's.
        rows: Rows per batch over all devices; None keeps the run's.
        length: Tokens per row; None keeps the run's.
        changes: Further settings of the run, by dotted name.
    """

    run: str
    target: str
    mesh: tuple[int, ...]
    layers: int | None = None
    rows: int | None = None
    length: int | None = None
    changes: tuple[tuple[str, Any], ...] = ()

    def planned(self) -> tuple[Any, Target]:
        """Returns the run with these settings, and the devices to compile for."""
        target = find_target(self.target)
        return self.run_on(target), target

    def run_on(self, target: Target) -> Any:
        """Returns the run with these settings, and settings derived from devices."""
        run: Any = NAMED[self.run][1]
        changes: dict[str, Any] = {"mesh": MeshConfig(*self.mesh), **dict(self.changes)}
        if self.layers is not None:
            parts = [part for part in ("model", "encoder") if hasattr(run, part)]
            for part, side in itertools.product(parts, ("encoder_layers", "decoder_layers")):
                layers = getattr(getattr(run, part), side)
                changes[f"{part}.{side}"] = min(self.layers, layers)
        translates = isinstance(run, TranslationRun)
        length = self.length
        if length is not None:
            changes["data.read.max_length" if translates else "training.sequence_length"] = length
        if self.rows is not None:
            if hasattr(run.training, "max_tokens"):
                if length is None:
                    raise ConfigError(f"{self.run}: rows are set together with a length")
                changes["training.max_tokens"] = self.rows * length
            else:
                changes["training.batch_size"] = self.rows
        for name, value in changes.items():
            run = _replaced(run, name.split("."), value)
        return for_device(run, target.device)


def _replaced(settings: Any, path: Sequence[str], value: Any) -> Any:
    first, *rest = path
    inner = _replaced(getattr(settings, first), rest, value) if rest else value
    return dataclasses.replace(settings, **{first: inner})


_UNPACKED = (("training.layout", "contiguous"),)

CASES = {
    "base, one GPU": Case("base", "h200:1", (1,), rows=384, length=64),
    "base, data": Case("base", "h200:8", (8,), rows=384, length=64),
    "base, fsdp": Case("base", "h200:8", (1, 8), rows=384, length=64),
    "base, all": Case("base", "h200:8", (2, 2, 2), 2, rows=384, length=64),
    "gpt2-small, fsdp, as named": Case("gpt2-small", "h200:8", (1, 8)),
    "gpt2-small, fsdp, unpacked": Case("gpt2-small", "h200:8", (1, 8), changes=_UNPACKED),
    "gpt2-small, fsdp, 2 layers": Case("gpt2-small", "h200:8", (1, 8), 2, 64),
    "gpt2-small, fsdp, 2 layers, unpacked": Case(
        "gpt2-small", "h200:8", (1, 8), 2, 64, changes=_UNPACKED
    ),
    "gpt2-small, fsdp and tensor": Case("gpt2-small", "h200:8", (1, 4, 2), 2, 64),
    "gpt2-small, all": Case("gpt2-small", "h200:8", (2, 2, 2), 2, 64),
    "bert-base, fsdp, as named": Case("bert-base", "h200:8", (1, 8)),
    "bert-base, all": Case("bert-base", "h200:8", (2, 2, 2), 1),
    "base, one TPU": Case("base", "v5e:1x1", (1,), rows=24, length=128),
    "base, data, TPU": Case("base", "v5e:2x4", (8,), rows=192, length=128),
    "base, fsdp, TPU": Case("base", "v5e:2x4", (1, 8), rows=192, length=128),
    "base, data, TPU, short": Case("base", "v5e:2x4", (8,), 2, rows=384, length=64),
    "gpt2-small, fsdp, TPU": Case("gpt2-small", "v5e:2x4", (1, 8), 2),
    "gpt2-small, all, TPU": Case("gpt2-small", "v5e:2x4", (2, 2, 2), 1, 64),
    "modern, all, TPU": Case("modern", "v5e:2x4", (2, 2, 2), 1, 64),
    "gpt2-small, one TPU, 2 layers": Case("gpt2-small", "v5e:1x1", (1,), 2, 8),
    "gpt2-small, fsdp, TPU, 2 layers": Case("gpt2-small", "v5e:2x4", (1, 8), 2, 64),
    "gpt2-small, data, TPU, 2 layers": Case("gpt2-small", "v5e:2x4", (8,), 2, 64),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The programs to compile, and the output file."""

    only: tuple[str, ...] = ()  # names of cases; empty is all
    what: tuple[Literal["training", "evaluation"], ...] = ("training",)  # programs per case
    output: Path = Path("benchmarks/results/programs.json")  # output file


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs ``python -m benchmarks programs``."""
    settings = tyro.cli(Settings, args=arguments, description=__doc__)
    _run(settings)


def _run(settings: Settings) -> None:
    every = [*CASES, *DECODING, *STEPS]
    if unknown := [name for name in settings.only if name not in every]:
        raise ConfigError(f"--only: there is no case {unknown[0]!r}: there are {'; '.join(every)}")
    found: dict[str, Any] = {}
    if settings.output.exists():
        found = json.loads(settings.output.read_text())["cases"]
    facts = environment(("jax", "jaxlib"))
    for name in settings.only or every:
        one = _planned(name, settings) if name in CASES else _of_counts(name)
        one["environment"] = facts
        found[name] = found.get(name, {}) | one
        # Written after each case, since a compiler may run out of memory.
        settings.output.parent.mkdir(parents=True, exist_ok=True)
        told = {"command": "python -m benchmarks programs", "cases": found}
        settings.output.write_text(json.dumps(told, indent=1) + "\n")


def _of_counts(name: str) -> dict[str, Any]:
    case: DecodingCase | StepCase = DECODING[name] if name in DECODING else STEPS[name]
    began = time.monotonic()
    figures = case.figures()
    print(f"{name}: {figures} ({time.monotonic() - began:.0f} s)", flush=True)
    return dataclasses.asdict(case) | {"decoding" if name in DECODING else "step": figures}


def _planned(name: str, settings: Settings) -> dict[str, Any]:
    case = CASES[name]
    run, target = case.planned()
    one: dict[str, Any] = {"run": case.run, "target": case.target, "mesh": case.mesh}
    for what in settings.what:
        began = time.monotonic()
        one[what] = _figures(compile_program(run, target, what))
        print(f"{name}, {what}: {one[what]} ({time.monotonic() - began:.0f} s)", flush=True)
    return one


def _figures(program: Program) -> dict[str, Any]:
    found: dict[str, Any] = {
        "shape": program.shape,
        "memory_GiB": round(program.memory / 2**30, 2),
    }
    if program.report is None:
        return found | {"fits": False}
    return (
        found
        | {
            "arguments_GiB": round(program.report.arguments / 2**30, 3),
            "temporaries_GiB": round(program.report.temporaries / 2**30, 3),
            "collectives_MB": {
                kind: round(size / 1e6, 1) for kind, size in program.report.communicated().items()
            },
            "kernels": program.report.kernels,
        }
        | _schedule(program.report)
    )


def _schedule(report: ProgramReport) -> dict[str, Any]:
    """Returns what XLA:TPU expects of a program in its order; empty for other devices."""
    if not report.cycles:
        return {}
    awaited = sum(one.bytes for one in report.collectives if not one.started)
    return {
        "estimated_cycles_M": {
            kind: round(n / 1e6, 2)
            for kind, n in {**report.cycles, "all": sum(report.cycles.values())}.items()
        },
        "awaited_at_once_MB": round(awaited / 1e6, 1),
    }
