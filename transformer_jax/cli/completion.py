"""``transformer-jax completion``: a script that completes commands, runs and flags in a shell."""

import dataclasses
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import tyro

from transformer_jax.cli.commands import COMMANDS, PROGRAMS, load_command
from transformer_jax.cli.flags import flag_types, flags_of
from transformer_jax.core.config_fields import Configuration, Registered

__all__ = ["Completion", "flag_choices"]


@dataclasses.dataclass(frozen=True)
class Completion(Configuration, group="--"):
    """Print a script for bash, zsh or fish that completes commands, named runs and flags.

    Write it to a file that the shell reads when it starts: for bash in
    ~/.local/share/bash-completion/completions, for fish in ~/.config/fish/completions, for zsh
    anywhere, and source it in ~/.zshrc after compinit.
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """Shell that reads the script."""

    def __call__(self) -> int:
        """Prints the script. It contains all words, so that completion does not start Python."""
        write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[self.shell]
        print(write(_tables()))
        return 0


class _Tables(NamedTuple):
    """The words of a script.

    Attributes:
        commands: All first words.
        seconds: Words that may follow a command, by command.
        flags: Flags, with the words that they follow: a command, or a command and a second word.
        values: Values of flags with choices.
    """

    commands: list[str]
    seconds: dict[str, list[str]]
    flags: dict[tuple[str, ...], list[str]]
    values: dict[str, list[str]]


def _tables() -> _Tables:
    commands = list(dict.fromkeys(name.partition(" ")[0] for name in COMMANDS))
    seconds: dict[str, list[str]] = {}
    flags: dict[str, dict[str, None]] = {}
    values: dict[str, dict[str, None]] = {}
    for words, kind, extra in _flagged():
        first, _, second = words.partition(" ")
        if second:
            seconds.setdefault(first, []).append(second)
        each = flags.setdefault(words, {})
        each |= dict.fromkeys(f"--{flag}" for flag in (*flags_of(kind), *extra, "import", "help"))
        for flag, choices in flag_choices(kind).items():
            values[flag] = values.get(flag, {}) | dict.fromkeys(choices)
    alike: dict[tuple[str, ...], list[str]] = {}
    for words, each in flags.items():
        alike.setdefault(tuple(each), []).append(words)
    return _Tables(
        commands,
        seconds,
        {tuple(words): list(each) for each, words in alike.items()},
        {flag: list(each) for flag, each in values.items()},
    )


def _flagged() -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yields command words, the dataclass of their flags, and further flags."""
    from transformer_jax.cli import laboratory, train_word_vectors
    from transformer_jax.cli.training import flag_kinds, training_runs

    for name in COMMANDS:
        if name not in PROGRAMS:
            yield name, load_command(name), ()
        elif PROGRAMS[name] == "training":
            for run, (_, settings) in training_runs(name).items():
                yield f"{name} {run}", type(settings), ("config", "plan", "plan-json", "resume")
            for kind in flag_kinds(name).values():
                yield name, kind, ()
    for name, kind in laboratory.COMMANDS.items():
        yield f"laboratory {name}", kind, ()
    for name, kind in train_word_vectors.COMMANDS.items():
        yield f"word-vectors {name}", kind, ()


def flag_choices(kind: Any) -> dict[str, list[str]]:
    """Returns the choices of a dataclass's flags, for flags that have choices.

    Args:
        kind: The dataclass.

    Example:
        >>> from transformer_jax.models.config import ComputeConfig
        >>> flag_choices(ComputeConfig)
        {'--dtype': ['auto', 'float32', 'bfloat16'], '--logits-dtype': ['float32', 'bfloat16']}
    """
    flags = {f"--{flag}": list(_choices(hint)) for flag, hint in flag_types(kind)}
    return {flag: choices for flag, choices in flags.items() if choices}


def _choices(hint: Any) -> Iterator[str]:
    if typing.get_origin(hint) is Literal:
        yield from map(str, typing.get_args(hint))
        return
    for part in typing.get_args(hint):
        yield from _choices(part.choices() if isinstance(part, Registered) else part)


def _arms(tables: _Tables, command: str, second: str) -> list[tuple[list[str], list[str]]]:
    """Yields patterns of a shell case statement with their completions.

    Args:
        tables: The words.
        command: The pattern for one word; ``{}`` is the word.
        second: The pattern for two words.
    """
    arms = []
    for before, flags in tables.flags.items():
        patterns = [
            (second if " " in words else command).format(*words.split(" ")) for words in before
        ]
        arms.append((patterns, flags))
    return arms


def _case(arms: Iterable[tuple[list[str], list[str]]], variable: str) -> list[str]:
    """Returns the lines of a case statement for bash and zsh that sets a variable."""
    return [
        f"    {'|'.join(patterns)}) {variable}='{' '.join(words)}' ;;" for patterns, words in arms
    ]


_SH = """# {shell}: completion of transformer-jax
_transformer_jax_words() {{  # cur prev first second number
  local flags= values=
  if [ "$5" -le 1 ]; then echo '{commands}'; return; fi
  case "$1" in
    -*) case "$3 $4" in
{flags}
    esac
    echo "$flags"; return ;;
  esac
  case "$2" in
{values}
  esac
  if [ -n "$values" ]; then echo "$values"; return; fi
  if [ "$5" -eq 2 ]; then case "$3" in
{seconds}
  esac; echo "$values"; fi
}}
"""

_BASH = """_transformer_jax() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} found
  found=$(_transformer_jax_words "$cur" "$prev" "${COMP_WORDS[1]}" "${COMP_WORDS[2]}" $COMP_CWORD)
  COMPREPLY=($(compgen -W "$found" -- "$cur"))
}
complete -o default -F _transformer_jax transformer-jax"""

_ZSH = """_transformer_jax() {
  local cur=$words[CURRENT] prev=$words[CURRENT-1] found
  found=$(_transformer_jax_words "$cur" "$prev" "$words[2]" "$words[3]" $((CURRENT - 1)))
  [[ -n $found ]] && compadd -- ${=found}
  [[ $cur == -* || $CURRENT -le 2 ]] || _files
}
compdef _transformer_jax transformer-jax"""


def _posix(tables: _Tables, shell: str) -> str:
    flags = _case(_arms(tables, "'{} '*", "'{} {}'"), "flags")
    seconds = _case((([name], words) for name, words in tables.seconds.items()), "values")
    values = _case((([flag], words) for flag, words in tables.values.items()), "values")
    return _SH.format(
        shell=shell,
        commands=" ".join(tables.commands),
        flags="\n".join(flags),
        seconds="\n".join(seconds),
        values="\n".join(values),
    )


def _bash(tables: _Tables) -> str:
    return _posix(tables, "bash") + _BASH


def _zsh(tables: _Tables) -> str:
    return _posix(tables, "zsh") + _ZSH


_FISH = """# fish: completion of transformer-jax
function __transformer_jax_words
  set -l words (commandline -opc)
  set -l cur (commandline -ct)
  if test (count $words) -le 1
    string split ' ' '{commands}'; return
  end
  if string match -q -- '-*' $cur
    switch "$words[2] $words[3]"
{flags}
    end
    return
  end
  switch $words[-1]
{values}
  end
  if test (count $words) -eq 2
    switch $words[2]
{seconds}
    end
  end
end
complete -c transformer-jax -a '(__transformer_jax_words)'"""


def _fish(tables: _Tables) -> str:
    say = lambda words: f"string split ' ' -- '{' '.join(words)}'"
    line = lambda patterns, words, after="": (
        f"      case {' '.join(patterns)}\n        {say(words)}{after}"
    )
    flags = [line(*arm) for arm in _arms(tables, "'{} *'", "'{} {}'")]
    values = [line([flag], words, "; return") for flag, words in tables.values.items()]
    seconds = [line([name], words) for name, words in tables.seconds.items()]
    return _FISH.format(
        commands=" ".join(tables.commands),
        flags="\n".join(flags),
        values="\n".join(values),
        seconds="\n".join(seconds),
    )
