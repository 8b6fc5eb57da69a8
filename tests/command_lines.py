"""Command lines as text: which dataclasses their flags are of, and whether they parse."""

import re
import shlex

from transformer_jax.cli import laboratory, train_word_vectors, training
from transformer_jax.cli.commands import COMMANDS, PROGRAM, PROGRAMS, load_command
from transformer_jax.cli.run_flags import asked_run, parse_flags

OUTSIDE = ("config", "plan", "plan-json", "resume")  # flags of training that are no settings
_MODULES = {"laboratory": "laboratory ", "word_vectors": "word-vectors "}


def current(code):
    """A command line as ``transformer-jax`` has it, without pipes, variables and comments."""
    code = re.sub(r"^(?:[A-Z_]+=\S* )+", "", code.split("  #")[0])
    code = re.sub(r" --import[ =]\S+", "", code)
    code = next((part for part in re.split(r" \| ", code) if "transformer-jax " in part), code)
    module = re.match(r"python -m experiments\.(\w+)\b ?", code)
    if module:
        code = f"{PROGRAM} {_MODULES.get(module[1], '')}{code[module.end() :]}"
    return re.sub(r" (2?>>?|<) ?\S+", "", code).strip()


def flags_after(words):
    """The dataclasses whose flags may follow words of a command line; None without a command."""
    name, second = words[0], words[1] if len(words) > 1 else ""
    if name == "laboratory":
        return [laboratory.COMMANDS[second]] if second in laboratory.COMMANDS else None
    if name == "word-vectors" and second in train_word_vectors.COMMANDS:
        return [train_word_vectors.COMMANDS[second]]
    if name not in COMMANDS:
        return None
    if PROGRAMS.get(name) != "training":
        return [load_command(name)]
    runs = training.training_runs(name)
    if not runs:
        return list(training.flag_kinds(name).values())
    if second.islower() and not second.startswith("-") and second not in runs:
        return None
    return [type(runs[second][1])] if second in runs else [type(run) for _, run in runs.values()]


def parse(code):
    """Parses a command line; raises ``ConfigError`` for what its command would refuse."""
    words = shlex.split(current(code), comments=True)[1:]
    if words[:1] == ["launch"] and "--" in words:
        end = words.index("--")
        inner = [*words[end + 1 :]]
        if inner[0] in COMMANDS or inner[0] == PROGRAM:
            parse(shlex.join([PROGRAM, *inner[inner[0] == PROGRAM :]]))
    name = words[0]
    if name in training.STARTS:
        _, _, rest = training.take_plan(words[1:])
        rest = [word for word in rest if word != "--resume"]
        if "--config" in rest:  # whose file is not there
            return None
        return asked_run(f"{PROGRAM} {name}", training.EVERY.commands, rest)
    kinds = flags_after(words)
    assert kinds, code
    skipped = 2 if name == "laboratory" or " ".join(words[:2]) in PROGRAMS else 1
    errors = []
    for kind in kinds:  # one of which is that of the run
        try:
            return parse_flags(kind, f"{PROGRAM} {name}", words[skipped:])
        except Exception as error:
            errors.append(error)
    raise errors[0]
