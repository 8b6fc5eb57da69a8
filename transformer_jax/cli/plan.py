"""``train NAME --plan TARGET``: whether a run fits devices that need not be there."""

import dataclasses
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


def plan_run(name: str, run: Any, named: Any, target: str, as_json: bool) -> int:
    """Compiles a run for a target and prints what it needs; nothing is trained or written.

    Args:
        name: Of the run.
        run: Its settings.
        named: The settings before flags changed them.
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
        raise ConfigError(
            f"--plan: {name} has no plan: there are plans of translators, language models and the "
            f"pre-training of encoders"
        )
    found = find_target(target)
    run = with_dtype(_with_vocabulary(run, named), found.devices[0])
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
    most = max(program.memory for program in programs)
    say(f"fits: {_size(most)} of the {_usable(found)}")
    return 0


def _with_vocabulary(run: Any, named: Any) -> Any:
    """The run with the vocabulary of its tokenizer, unless the model's size was given."""
    from transformer_jax.data.tokenizer import load_tokenizer
    from transformer_jax.runs.sizing import VOCABULARY

    if run.model.vocab_size != named.model.vocab_size:
        return run
    settings = run.tokenizer
    size = settings.vocab_size or VOCABULARY
    if settings.path is not None:
        size = load_tokenizer(settings.path).vocab_size
    return dataclasses.replace(run, model=dataclasses.replace(run.model, vocab_size=size))


def _usable(found: Any) -> str:
    if found.usable == found.type.memory:
        return f"{_size(found.usable)} of a device"
    return (
        f"{_size(found.usable)} that JAX takes of a device's {_size(found.type.memory)} "
        f"(XLA_PYTHON_CLIENT_MEM_FRACTION)"
    )


def _advice(run: Any, found: Any, programs: list[Any]) -> str:
    from transformer_jax.runs import plan

    most = max(program.memory for program in programs)
    problem = f"{found.name}: the run needs {_size(most)}, more than the {_usable(found)}"
    tried = lambda flags, program: say(f"with {flags}: {program.what} {_size(program.memory)}")
    if (nearest := plan.nearest_that_fits(run, found, tried)) is None:
        return (
            f"{problem}: no mesh, accumulation or rematerialization fits: take more devices or "
            f"smaller batches"
        )
    return f"{problem}: it fits with {nearest[0]}"


def _rows(programs: Sequence[Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for what, (batch, length), memory, found, _ in programs:
        place = (what, f"{batch} x {length}")
        if found is None:
            rows.append((*place, "", "", "", f"over {_size(memory)}", ""))
            continue
        kernels = ", ".join(f"{name} x{count}" for name, count in sorted(found.kernels.items()))
        exchanged = sum(found.communicated().values())
        sizes = (found.arguments, found.temporaries, memory, exchanged)
        rows.append((*place, kernels or "none", *map(_size, sizes)))
    return rows


def _as_json(programs: Sequence[Any], found: Any, fits: bool) -> str:
    described = [
        {
            "program": program.what,
            "batch": list(program.shape),
            "memory_bytes": program.memory,
            "compile_seconds": round(program.seconds, 1),
        }
        | ({} if program.report is None else _details(program.report))
        for program in programs
    ]
    return json.dumps(
        {
            "target": found.name,
            "device_memory_bytes": found.type.memory,
            "usable_memory_bytes": found.usable,
            "fits": fits,
            "programs": described,
        },
        indent=1,
    )


def _details(report: Any) -> dict[str, Any]:
    return {
        "kernels": report.kernels,
        "arguments_bytes": report.arguments,
        "temporaries_bytes": report.temporaries,
        "collectives_bytes": report.communicated(),
    }


def _size(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size < 10 * 2**30 else f"{size / 2**30:.1f} GiB"
