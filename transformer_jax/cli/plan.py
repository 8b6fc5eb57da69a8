"""``train NAME --plan TARGET``: whether a run fits devices that need not be there."""

import json
from collections.abc import Sequence
from typing import Any

from transformer_jax.cli.describe import plain_table
from transformer_jax.cli.output import say
from transformer_jax.errors import ConfigError

__all__ = ["plan_run", "take_plan"]

_HEAD = ("program", "batch", "fused kernels", "arguments", "temporaries", "memory", "exchanged")


def take_plan(arguments: Sequence[str]) -> tuple[str | None, bool, list[str]]:
    """The target of ``--plan``, whether ``--plan-json`` is given, and the other arguments.

    Raises:
        ConfigError: ``--plan`` without a target, or ``--plan-json`` without ``--plan``.

    Example:
        >>> take_plan(["gpt2-small", "--plan", "h200:8", "--mesh.fsdp", "8"])
        ('h200:8', False, ['gpt2-small', '--mesh.fsdp', '8'])
    """
    rest, target, as_json, words = [], None, False, iter(arguments)
    for word in words:
        if word == "--plan-json":
            as_json = True
        elif word == "--plan" or word.startswith("--plan="):
            target = word.partition("=")[2] or next(words, "")
            if not target or target.startswith("-"):
                raise ConfigError(
                    "--plan needs devices: --plan h200:8, or a TPU slice such as --plan v5e:2x4"
                )
        else:
            rest.append(word)
    if as_json and target is None:
        raise ConfigError("--plan-json is how --plan writes: give --plan h200:8 too")
    return target, as_json, rest


def plan_run(name: str, run: Any, target: str, as_json: bool) -> int:
    """Compiles a run for a target and prints what it needs; nothing is trained or written.

    Args:
        name: Of the run.
        run: Its settings.
        target: Devices, such as ``h200:8``.
        as_json: Whether to print JSON instead of a table.

    Raises:
        ConfigError: The run is of a kind without a plan, or does not fit. Then the message has the
            nearest settings that do.
    """
    from transformer_jax.parallel.target import find_target
    from transformer_jax.runs import plan
    from transformer_jax.runs.begin import with_dtype

    if not isinstance(run, plan.PlannedRun):
        raise ConfigError(f"--plan: {name} has no plan: there are plans of pre-training runs")
    found = find_target(target)
    run = with_dtype(run, found.type.platform)
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan.mesh_on(run, found).shape.items())
    say(f"{name} on {target}, mesh {mesh}, {run.model.compute.dtype}: compiling")
    programs = []
    for program in plan.plan(run, found):
        say(f"{program.what}: compiled in {program.seconds:.0f} s")
        programs.append(program)
    fits = all(plan.fits(program, found) for program in programs)
    print(_as_json(programs, found, fits) if as_json else plain_table(_HEAD, _rows(programs)))
    if not fits:
        raise ConfigError(_advice(run, found, programs))
    limit = found.type.memory
    most = max(program.report.memory for program in programs)
    say(f"fits: {_size(most)} of the {_size(limit)} of a device")
    return 0


def _advice(run: Any, found: Any, programs: list[Any]) -> str:
    from transformer_jax.runs import plan

    most = max(program.report.memory for program in programs)
    problem = (
        f"{found.name}: a device has {_size(found.type.memory)}, and the run needs {_size(most)}"
    )
    tried = lambda flags, program: say(f"with {flags}: {_size(program.report.memory)}")
    if (nearest := plan.nearest_that_fits(run, found, tried)) is None:
        return f"{problem}: no mesh, accumulation or rematerialization fits; use more devices"
    return f"{problem}: it fits with {nearest[0]}"


def _rows(programs: Sequence[Any]) -> list[tuple[str, ...]]:
    rows = []
    for what, (batch, length), found, _ in programs:
        kernels = ", ".join(f"{name} x{count}" for name, count in sorted(found.kernels.items()))
        exchanged = sum(found.communicated().values())
        sizes = (found.arguments, found.temporaries, found.memory, exchanged)
        rows.append((what, f"{batch} x {length}", kernels or "none", *map(_size, sizes)))
    return rows


def _as_json(programs: Sequence[Any], found: Any, fits: bool) -> str:
    described = [
        {
            "program": program.what,
            "batch": list(program.shape),
            "kernels": program.report.kernels,
            "arguments_bytes": program.report.arguments,
            "temporaries_bytes": program.report.temporaries,
            "memory_bytes": program.report.memory,
            "collectives_bytes": program.report.communicated(),
            "compile_seconds": round(program.seconds, 1),
        }
        for program in programs
    ]
    return json.dumps(
        {
            "target": found.name,
            "device_memory_bytes": found.type.memory,
            "fits": fits,
            "programs": described,
        },
        indent=1,
    )


def _size(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size < 10 * 2**30 else f"{size / 2**30:.1f} GiB"
