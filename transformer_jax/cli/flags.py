"""Flags of commands; the error for an unknown flag suggests the nearest."""

import contextlib
import dataclasses
import difflib
import io
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from transformer_jax.cli.streams import as_help
from transformer_jax.core.config_fields import Flag, field_types
from transformer_jax.core.errors import ConfigError

__all__ = [
    "check_flags",
    "flag_of",
    "flag_types",
    "flags_of",
    "in_one_line",
    "own_flag",
    "positional",
    "refuse_flags",
    "together",
]

T = TypeVar("T")


def positional(field: "dataclasses.Field[Any]") -> bool:
    """Returns whether a field of a command is a positional argument."""
    import tyro

    marker = typing.get_args(tyro.conf.Positional[int])[-1]
    return marker in typing.get_args(field.type)


def flags_of(kind: type, prefix: str = "") -> list[str]:
    """Returns the flags of a dataclass without dashes; flags of nested dataclasses are dotted.

    Example:
        >>> from transformer_jax.models.config import ComputeConfig
        >>> flags_of(ComputeConfig)
        ['dtype', 'scan-layers', 'no-scan-layers', 'remat', 'no-remat']
    """
    found: list[str] = []
    for flag, hint in flag_types(kind, prefix):
        found.append(flag)
        if hint is bool:
            path, _, name = flag.rpartition(".")
            found.append(f"{path}.no-{name}" if path else f"no-{name}")
    return found


def flag_of(kind: type, name: str, prefix: str = "") -> str:
    """Returns the flag of a field without dashes.

    Args:
        kind: The dataclass.
        name: The field.
        prefix: The groups around it, each with a dot.
    """
    return own_flag(kind, name).name or prefix + name.replace("_", "-")


def own_flag(kind: type, name: str) -> Flag:
    """Returns the ``Flag`` that a field declares.

    Args:
        kind: The dataclass.
        name: The field.
    """
    parts = typing.get_args(field_types(kind)[name])
    return next((part for part in parts if isinstance(part, Flag)), Flag())


def flag_types(kind: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the flags of a dataclass and of nested ones, without dashes, with types of values."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if positional(field):
            continue
        flag, hint = flag_of(kind, field.name, prefix), hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from flag_types(typing.cast(type, hint), f"{flag}.")
        else:
            yield flag, hint
            yield from ((other, hint) for other in own_flag(kind, field.name).also)


def together(kind: type, arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with repeated flags of several values merged into one.

    Otherwise only the last occurrence would count. Merged flags come last, before a lone ``--``.

    Args:
        kind: The dataclass of the command; flags of nested dataclasses are dotted.
        arguments: The arguments on the command line.

    Example:
        >>> kind = dataclasses.make_dataclass("Ask", [("stop", tuple[str, ...]), ("seed", int)])
        >>> together(kind, ["run", "--stop", "a", "b", "--seed", "1", "--stop=c"])
        ['run', '--seed', '1', '--stop', 'a', 'b', 'c']
    """
    # For a flag with a fixed number of values, the last occurrence counts.
    several = {
        flag
        for flag, hint in flag_types(kind)
        if any(typing.get_args(one)[-1:] == (...,) for one in (hint, *typing.get_args(hint)))
    }
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept: list[str] = []
    found: dict[str, list[list[str]]] = {}
    open_flag: list[str] | None = None  # the values of the current flag
    for argument in arguments[:end]:
        name, equals, value = argument.partition("=")
        flag = name[2:].replace("_", "-") if name.startswith("--") else ""
        if flag in several:
            values = [value] if equals else []
            found.setdefault(flag, []).append(values)
            open_flag = None if equals else values
        elif open_flag is not None and not argument.startswith("--"):
            open_flag.append(argument)
        else:
            open_flag = None
            kept.append(argument)
    if all(len(times) == 1 for times in found.values()):
        return list(arguments)
    for flag, times in found.items():
        kept += [f"--{flag}", *(value for values in times for value in values)]
    return [*kept, *arguments[end:]]


def check_flags(
    command: str,
    allowed: Iterable[str],
    arguments: Sequence[str],
    see: str,
    elsewhere: Callable[[str], str] = lambda flag: "",
) -> None:
    """Refuses flags that a command does not have.

    Args:
        command: Name of the command for the message.
        allowed: Flags without their dashes.
        arguments: The arguments on the command line.
        see: The command that shows all flags.
        elsewhere: Function from a flag to what has it instead, or to nothing.

    Raises:
        ConfigError: A flag is unknown; the message suggests the nearest.

    Example:
        >>> check_flags("score", ["num-beams"], ["--num-beam", "4"], "transformer-jax score")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: score has no flag --num-beam: did you mean ...

        >>> check_flags("train", ["data.valid.source"], ["--data.valid", "a"], "transformer-jax")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: train has no flag --data.valid: there are ...
    """
    known = ["help", *allowed]
    # Arguments after a lone -- are positional.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for argument in arguments[:end]:
        flag = argument[2:].partition("=")[0].replace("_", "-")
        if not argument.startswith("--") or not flag or flag in known:
            continue
        near = " or ".join(f"--{one}" for one in nearest_flags(flag, known))
        if group := [f"--{name}" for name in known if name.startswith(f"{flag}.")]:
            hint = f": there are {', '.join(group)}"
        elif other := elsewhere(flag):
            hint = f", which is for {other}"
        else:
            hint = f": did you mean {near}?" if near else ""
        raise ConfigError(f"{command} has no flag --{flag}{hint} (see {see} --help)")


# Names of settings in other libraries, and the last names of flags that have this meaning here.
_ELSEWHERE = {
    "batch-size": "max-tokens",
    "per-device-train-batch-size": "max-tokens",
    "lr": "learning-rate",
    "num-train-epochs": "epochs",
    "max-steps": "steps",
    "max-seq-length": "max-length",
    "model-name-or-path": "init-from",
}


def nearest_flags(flag: str, known: Sequence[str]) -> list[str]:
    """Returns the known flags that an unknown one may stand for, at most two.

    Flags with the same last name come first, in the order of ``known``, then a flag that is spelled
    nearly the same, then flags of which one last name begins with the other, then the flag that is
    spelled most alike.

    Example:
        >>> known = ["model.dropout", "data.read.text", "training.seed", "mesh.context"]
        >>> nearest_flags("text", known), nearest_flags("seeds", known), nearest_flags("x", known)
        (['data.read.text'], ['training.seed'], [])
    """
    last = lambda one: one.rpartition(".")[2]
    word = last(flag)
    if all(last(one) != word for one in known):
        word = _ELSEWHERE.get(word, word)
    close = difflib.get_close_matches(flag, known, 1, 0.8)
    for fits in (
        lambda one: last(one) == word,
        lambda one: one in close,
        lambda one: last(one).startswith(f"{word}-"),
        lambda one: word.startswith(f"{last(one)}-"),
    ):
        if alike := [one for one in known if fits(one)]:
            group = flag.rpartition(".")[0]
            return [one for one in alike if group and one.startswith(group)][:1] or alike[:2]
    by_name = {last(one): one for one in reversed(known)}
    near = [by_name[one] for one in difflib.get_close_matches(word, by_name, 1, 0.6)]
    return near or difflib.get_close_matches(flag, known, 1, 0.5)


def in_one_line(parse: Callable[[], T], see: str) -> T:
    """Returns the result of ``parse``; reduces an error message that it prints to one line.

    Args:
        parse: A parser that prints a framed message and raises ``SystemExit``, as tyro does.
        see: The command that shows all flags.

    Raises:
        ConfigError: A flag or a value is invalid.
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), as_help():
            return parse()
    except SystemExit as end:
        if not end.code:
            raise
        raise ConfigError(_one_line(complaint.getvalue(), see)) from None


def _one_line(box: str, see: str) -> str:
    """Returns the text of a framed message up to its first rule, as one line."""
    words: list[str] = []
    for line in box.splitlines():
        text = line.strip().strip("│╭╮╰╯─ ")
        if words and set(line.strip()) <= set("│╭╮╰╯─ "):
            break
        words.append(text + ":" if line.startswith("╭") and text else text)
    if words[1:] and words[0] and words[1].startswith(words[0]):  # repeats the frame's title
        del words[0]
    return f"{_plain(' '.join(word for word in words if word))} (see {see} --help)"


def _plain(complaint: str) -> str:
    """Returns the complaint of the parser as one sentence.

    Example:
        >>> _plain("Required options: Missing from export: PATH Output folder. (required)")
        'export needs PATH (Output folder)'
        >>> _plain("Missing argument: Missing value for argument '--output'. Expected 1 values.")
        '--output needs a value'
    """
    if missing := re.fullmatch(r"Required options: Missing from (.+?): (.+)", complaint):
        parts = missing[2].removesuffix(" (required)").split(" (required) ")
        form = r"^((?:--\S+ )?(?:{.*?}|\S+)) (.+?)\.?$"  # flag and kind of value, then help
        named = [re.sub(form, r"\1 (\2)", part) for part in parts]
        return f"{missing[1]} needs {' and '.join(named)}"
    if value := re.search(r"Missing value for argument '(.+?)'. Expected (\S+) values", complaint):
        return f"{value[1]} needs {'a value' if value[2] == '1' else f'{value[2]} values'}"
    if loose := re.fullmatch(r"Unrecognized options: (.+)", complaint):
        return (
            f"no flag stands before {loose[1]}: name the flag, and put quotes around a text of "
            f"several words"
        )
    return complaint


def refuse_flags(command: Any, allowed: Sequence[str]) -> None:
    """Refuses flags that do not go with ``--generation-config hf``.

    Raises:
        ConfigError: It names the flag.
    """
    for field in dataclasses.fields(command):
        if field.name in (*allowed, "run", "generation_config", "allow_changed_config"):
            continue
        if getattr(command, field.name) != field.default:
            flag = field.name.replace("_", "-")
            said = ", ".join(f"--{name.replace('_', '-')}" for name in allowed if name != "prompt")
            raise ConfigError(
                f"--{flag} does not go with --generation-config hf, which takes {said}"
            )
