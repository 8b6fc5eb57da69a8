"""``train NAME --plan TARGET``: whether a run fits devices that need not be present."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.cli.output import say
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import duration
from transformer_jax.core.text_tables import aligned

if TYPE_CHECKING:
    from transformer_jax.functional.kernels.choice import Choice
    from transformer_jax.recipes.settings import TokenizerConfig, Trained

__all__ = ["plan_run"]

_HEAD = ("program", "batch", "fused kernels", "arguments", "temporaries", "memory", "exchanged")


def plan_run(name: str, run: "Trained", named: "Trained", target: str, as_json: bool) -> int:
    """Prints the needs of a run on a target, without training or writing anything.

    The run's programs are compiled; without a compiler for the target, their memory is estimated.

    Args:
        name: The name of the run.
        run: The settings of the run.
        named: The settings before flags changed them.
        target: Devices, such as ``h200:8``, or the memory of one, such as ``80GiB``.
        as_json: Whether to print JSON instead of a table.

    Raises:
        ConfigError: This kind of run has no plan, or the run does not fit; then the message
            suggests the nearest settings that do.
    """
    from transformer_jax.parallel.device_catalog import assumed_utilization, plan_target
    from transformer_jax.planning import plan
    from transformer_jax.planning.run_programs import mesh_on
    from transformer_jax.recipes.checks import validated_settings
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.registry import get_recipe
    from transformer_jax.recipes.sizing import for_device

    recipe = get_recipe(run.recipe)
    if not recipe.has_plan:
        raise ConfigError(
            f"--plan: not available for {name}: only for translators, language models, encoders "
            f"and models of pictures"
        )
    if run.distributed != named.distributed:
        raise ConfigError(
            "--plan: the number of devices is that of the target, such as h200:8: leave the "
            "--distributed flags out"
        )
    found = plan_target(target)
    if not found.compiles and not recipe.has_estimate:
        raise ConfigError(
            f"--plan {target}: the memory of {recipe.title} is not estimated, and {found.why}"
        )
    run, vocabulary = _with_vocabulary(validated_settings(run, Given(named)), named)
    run = for_device(run, found.device)
    mesh = mesh_on(run, found).shape
    sizes = " x ".join(f"{axis} {size}" for axis, size in mesh.items())
    how = "compiling" if found.compiles else f"estimated, not compiled: {found.why}"
    say(f"{name} on {target}, mesh {sizes}, {run.model.compute.dtype}, {vocabulary}: {how}")
    programs = []
    for what, batch in plan.programs(run, found):
        program = plan.measure(run, found, what, batch)
        if program.estimate is None:
            shape = f"{program.shape.rows} x {program.shape.length}"
            say(f"{program.what} {shape}: compiled in {program.seconds:.0f} s")
        programs.append(program)
    kernels, speed = plan.kernels(run, found), plan.training_speed(run, found)
    fits = all(plan.fits(program, found) for program in programs)
    if as_json:
        settings = {
            "mesh": dict(mesh),
            "dtype": run.model.compute.dtype,
            "vocabulary": run.model.vocab_size,
            "speed": speed,
        }
        print(_as_json(programs, kernels, found, settings))
    else:
        print(aligned([_HEAD, *_rows(programs)], left=3))
        for line in _notes(kernels, speed, assumed_utilization(run.model.d_model).model):
            print(line)
    if not fits:
        raise ConfigError(_advice(run, found, programs))
    most = max(program.memory for program in programs)
    free = f", by an estimate, which leaves {1 - most / found.usable:.0%} free"
    say(f"fits: {_size(most)} of the {_usable(found)}{'' if found.compiles else free}")
    return 0


def _notes(
    kernels: "Mapping[str, Choice]", speed: dict[str, float], measured: str
) -> Iterator[str]:
    """Yields the lines below the table: the kernels of attention, and the speed, if known."""
    if kernels:
        yield "attention of training, in the longest batches:"
    for attention, chosen in kernels.items():
        yield f"  {attention}: {chosen.kernel}{f' ({chosen.why})' if chosen.why else ''}"
    if not speed:
        return
    whole = f", {duration(3600 * speed['hours'])} in all" if "hours" in speed else ""
    yield (
        f"training, at {speed['assumed_mfu']:.0%} of the peak in bfloat16, as measured with "
        f"{measured} on an H200: {speed['step_seconds']:.3g} s a step, "
        f"{speed['tokens_per_second']:,.0f} tokens/s with padding{whole}"
    )


def _with_vocabulary(run: "Trained", named: "Trained") -> "tuple[Trained, str]":
    """Returns the run with the vocabulary size of its tokenizer, unless the model's size was given.

    Added tokens count, including the tokens of a chat template. The text tells the source of the
    size: for a tokenizer still to be trained, it is the upper limit.
    """
    if run.tokenizer is None:
        return run, "no vocabulary"
    size, source = run.model.vocab_size, "as given"
    if size == named.model.vocab_size:
        before, size, source = _vocabulary(run.planned_tokenizer)
        if more := size - before:
            source += f", and {plural(more, 'token')} that the run adds"
    model = dataclasses.replace(run.model, vocab_size=size)
    return dataclasses.replace(run, model=model), f"a vocabulary of {size:,} ({source})"


def _vocabulary(settings: "TokenizerConfig") -> tuple[int, int, str]:
    """Returns the size before and after the run adds tokens, and the source of the first."""
    from transformer_jax.data.added_tokens import add_tokens
    from transformer_jax.data.tokenizer import load_tokenizer
    from transformer_jax.recipes.sizing import VOCABULARY

    added = (settings.add_tokens, settings.add_special_tokens)
    if settings.path is not None:
        tokenizer = load_tokenizer(settings.path)
        size, grown = tokenizer.vocab_size, add_tokens(tokenizer, *added).vocab_size
        return size, grown + settings.extend_by, f"of {settings.path}"
    size = settings.vocab_size or VOCABULARY
    more = settings.extend_by + sum(map(len, added))
    return size, size + more, "at most, learned from the text"


def _usable(found: Any) -> str:
    if found.usable == found.type.memory:
        return f"{_size(found.usable)} of the device"
    return (
        f"{_size(found.usable)} that JAX uses of the device's {_size(found.type.memory)} "
        f"(XLA_PYTHON_CLIENT_MEM_FRACTION)"
    )


def _advice(run: "Trained", found: Any, programs: list[Any]) -> str:
    from transformer_jax.planning import plan

    most = max(program.memory for program in programs)
    less = "more than" if most > found.usable else f"which leaves less than {plan.MARGIN:.0%} of"
    problem = f"{found.name}: the run needs {_size(most)}, {less} the {_usable(found)}"
    say("searching for settings that fit")
    tried = lambda flags, program: say(f"with {flags}: {program.what} {_size(program.memory)}")
    if (nearest := plan.nearest_that_fits(run, found, tried)) is None:
        return (
            f"{problem}: no mesh, accumulation or rematerialization fits: take more devices or "
            f"smaller batches"
        )
    return f"{problem}: it fits with {nearest[0]}"


def _rows(programs: Sequence[Any]) -> list[tuple[str, ...]]:
    from transformer_jax.planning.planned_kernels import FUSED

    rows: list[tuple[str, ...]] = []
    for program in programs:
        place = (program.what, f"{program.shape.rows} x {program.shape.length}")
        memory, found, guessed = program.memory, program.report, program.estimate
        if guessed is not None:
            fused = {chosen.kernel for chosen in guessed.kernels.values()} & set(FUSED.values())
            decodes = program.what == "decoding"
            named = "not estimated" if decodes else ", ".join(sorted(fused)) or "none"
            sizes = map(_size, (round(guessed.arguments), guessed.temporaries, memory))
            rows.append((*place, named, *sizes, "not estimated"))
        elif found is None:
            rows.append((*place, "", "", "", f"over {_size(memory)}", ""))
        else:
            kernels = ", ".join(f"{name} x{count}" for name, count in sorted(found.kernels.items()))
            exchanged = sum(found.communicated().values())
            bytes_of = (found.arguments, found.temporaries, memory, exchanged)
            rows.append((*place, kernels or "none", *map(_size, bytes_of)))
    return rows


def _as_json(programs: Sequence[Any], kernels: Any, found: Any, settings: dict[str, Any]) -> str:
    from transformer_jax.planning.plan import fits

    described = [
        {
            "program": program.what,
            "batch": list(program.shape),
            "memory_bytes": program.memory,
            "fits": fits(program, found),
        }
        | _details(program)
        for program in programs
    ]
    return json.dumps(
        {
            "target": found.name,
            "estimated": not found.compiles,
            "device_memory_bytes": found.type.memory,
            "usable_memory_bytes": found.usable,
            "fits": all(program["fits"] for program in described),
            **settings,
            "attention": {name: chosen._asdict() for name, chosen in kernels.items()},
            "programs": described,
        },
        indent=1,
    )


def _details(program: Any) -> dict[str, Any]:
    report = program.report
    if program.estimate is not None:
        parts = dataclasses.asdict(program.estimate)
        parts = {name: round(size) for name, size in parts.items() if name != "kernels" and size}
        return {"temporaries_bytes": program.estimate.temporaries, "parts_bytes": parts}
    seconds = {"compile_seconds": round(program.seconds, 1)}
    if report is None:
        return seconds
    return seconds | {
        "kernels": report.kernels,
        "arguments_bytes": report.arguments,
        "temporaries_bytes": report.temporaries,
        "outputs_bytes": report.outputs,
        "collectives_bytes": report.communicated(),
    }


def _size(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size < 10 * 2**30 else f"{size / 2**30:.1f} GiB"
