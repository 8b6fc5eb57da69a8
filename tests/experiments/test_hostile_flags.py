"""Whatever value a flag of a training program takes, it is refused in one line or can be used."""

import dataclasses
import json
import logging
import tempfile
import typing
from typing import NamedTuple

import numpy as np
import pytest

from tests.cli.conftest import language_run
from transformer_jax.cli import decoder_only, encoder_only, seq2seq
from transformer_jax.cli.flags import positional
from transformer_jax.recipes.ngram import Ngram
from transformer_jax.recipes.registry import named_runs
from transformer_jax.training.loop import FitResult
from transformer_jax.training.state import TrainState
from transformer_jax.training.trainer import Trainer

NOTHING = FitResult(TrainState(0, {}, {}), 0, None, None, False, 0)
NUMBERS = ["nan", "inf", "-inf", str(10**30), "-1", "", "9" * 300]
MEANINGLESS = {"nan", "inf", "-inf", str(10**30), "", "9" * 300}
TEXTS = ["", "\ud800", "a\0b", "9" * 300, "-1"]
SIZES = [
    "--model.d-model", "8", "--model.attention.num-heads", "2", "--model.feed-forward.d-ff", "16",
    "--model.positions.max-length", "32", "--distributed.num-local-devices", "1",
    "--training.steps", "4", "--optimizer.schedule.warmup-steps", "2",
]  # fmt: skip
ENCODER = [*SIZES, "--model.encoder-layers", "1", "--training.max-tokens", "256"]
DECODER = [
    *SIZES,
    "--model.decoder-layers",
    "1",
    "--training.batch-size",
    "2",
    "--training.sequence-length",
    "16",
]
ALIGN = ["--distributed.num-local-devices", "1", "--training.steps", "4"]


class Program(NamedTuple):
    """A command with the least that it needs to begin a run."""

    module: typing.Any
    command: str
    name: str
    given: list[str]


PROGRAMS = [
    Program(seq2seq, "train", "small",
            ["--data.pairs", "{folder}/pairs.tsv", "--data.read.format", "tsv",
             "--data.read.max-length", "30", *ENCODER, "--model.decoder-layers", "1"]),
    Program(seq2seq, "train", "luong",
            ["--data.pairs", "{folder}/pairs.tsv", "--data.read.format", "tsv",
             "--data.read.max-length", "30", "--model.d-model", "16"]),
    Program(seq2seq, "pretrain", "bart-mini",
            ["--data.text", "{folder}/text.txt", *ENCODER, "--model.decoder-layers", "1",
             "--training.sequence-length", "24"]),
    Program(seq2seq, "finetune", "summarize",
            ["--data.train", "{folder}/texts.jsonl", "--data.read.max-length", "30",
             "--evaluation.max-length", "8", *ENCODER, "--model.decoder-layers", "1"]),
    Program(seq2seq, "train-speech", "luong",
            ["--data.train", "{folder}/speech.tsv", "--data.read.max-length", "30",
             "--model.d-model", "16"]),
    Program(decoder_only, "train", "char-cpu", ["--data.text", "{folder}/text.txt", *DECODER]),
    Program(decoder_only, "train", "ngram", ["--data.text", "{folder}/text.txt"]),
    Program(decoder_only, "instruct", "sft-cpu",
            ["--data.train", "{folder}/chats.jsonl", "--chat.template", "chatml", *DECODER]),
    Program(encoder_only, "pretrain", "small",
            ["--data.text", "{folder}/text.txt", *ENCODER, "--training.sequence-length", "24"]),
    Program(encoder_only, "finetune", "classify",
            ["--data.train", "{folder}/classify.tsv", *ENCODER, "--task.max-length", "24"]),
    Program(decoder_only, "align", "dpo",
            ["--init-from", "{folder}/base", "--data.train", "{folder}/pairs.jsonl", *ALIGN]),
    Program(decoder_only, "align", "ppo",
            ["--init-from", "{folder}/base", "--data.train", "{folder}/pairs.jsonl",
             "--reward.file", "{folder}/reward.py", "--align.max-prompt-length", "8",
             "--align.max-new-tokens", "8", *ALIGN]),
]  # fmt: skip


def hf_name(program):
    """The name of a program in the names of tests."""
    return f"{program.module.__name__.rpartition('.')[2]} {program.name}"


def hf_kinds(hint):
    """The simple types among those that a field can have."""
    if typing.get_origin(hint) is typing.Literal:
        return set()
    parts = typing.get_args(hint)
    return set().union(*map(hf_kinds, parts)) if parts else {hint} & {int, float, str}


def hf_flags(kind, prefix=""):
    """Flags that take numbers or texts, dotted."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        flag, hint = prefix + field.name.replace("_", "-"), hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from hf_flags(hint, f"{flag}.")
        elif not positional(field) and hf_kinds(hint):
            yield flag, hf_kinds(hint)


def named_run(program):
    """The named run that a program begins."""
    return named_runs(*program.module.FAMILY.commands[program.command])[program.name][1]


def hf_cases():
    for program in PROGRAMS:
        run = named_run(program)
        for flag, kinds in hf_flags(type(run)):
            for value in NUMBERS if kinds & {int, float} else TEXTS:
                yield program, flag, value


CASES = list(hf_cases())
# Where each value is met first.
FIRST = {value: i for i, (*_, value) in reversed(list(enumerate(CASES)))}


def hf_quick(i):
    """The quick tests: a prime step meets every program, and every value is among them."""
    return i % 137 == 0 or i in FIRST.values()


@pytest.fixture(autouse=True)
def hf_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A few lines of everything."""
    folder = tmp_path_factory.mktemp("data")
    lines = [f"{a} {b}" for a in ("um", "dois", "três", "dez") for b in ("sete", "oito", "nove")]
    (folder / "pairs.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in lines))
    (folder / "text.txt").write_text("".join(f"{line}. {line}.\n\n" for line in lines))
    (folder / "texts.jsonl").write_text(
        "".join(f'{{"source": "{line}.", "target": "{line[:3]}"}}\n' for line in lines)
    )
    roles = ("user", "assistant")
    chats = [[{"role": role, "content": line} for role in roles] for line in lines]
    (folder / "chats.jsonl").write_text(
        "".join(json.dumps({"messages": chat}) + "\n" for chat in chats)
    )
    for i in range(len(lines)):
        np.save(folder / f"{i}.npy", np.full((8, 3), float(i)))
    speech = [f"{i}.npy\t{line}\n" for i, line in enumerate(lines)]
    (folder / "speech.tsv").write_text("".join(speech))
    rows = [f"{line}\t{i % 2}\n" for i, line in enumerate(lines)]
    (folder / "classify.tsv").write_text("text\tlabel\n" + "".join(rows))
    pairs = [{"prompt": line, "chosen": " a", "rejected": f" {line}"} for line in lines]
    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in pairs))
    (folder / "reward.py").write_text(
        "def reward(prompt, completion):\n    return len(completion)\n"
    )
    language_run(folder / "base", "characters", "rope", "bos")
    return folder


@pytest.fixture
def begin(folder, tmp_path, monkeypatch, capfdbinary):
    """Begins a run with a flag set, and checks how that ends.

    Up to the first step, which is not taken: all that is made of the run is made.
    """
    monkeypatch.setattr(Trainer, "_fit", lambda *_: NOTHING)
    monkeypatch.setattr(Trainer, "_write_results", lambda *_: None)
    monkeypatch.setattr(Ngram, "train", lambda *_: 0)

    def check(program, flag, value):
        monkeypatch.chdir(tempfile.mkdtemp(dir=tmp_path))
        hf_check(program, flag, value, folder, capfdbinary)

    return check


def hf_check(program, flag, value, folder, capfdbinary):
    given = [word.format(folder=folder) for word in program.given]
    if f"--{flag}" in given:
        at = given.index(f"--{flag}")
        del given[at : at + 2]
    code = program.module.main([program.command, program.name, *given, f"--{flag}={value}"])
    err = capfdbinary.readouterr().err.decode(errors="replace")
    case = (program, flag, value, err)
    assert code in (0, 2, 3, 4), case
    assert "Traceback" not in err, case
    assert "unexpected" not in err, case
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == (code != 0), case
    kinds = dict(hf_flags(type(named_run(program))))
    if value in MEANINGLESS and kinds[flag] & {int, float} and str not in kinds[flag]:
        assert code == 2, case


@pytest.mark.quick(
    "seq2seq small",
    "seq2seq luong0",
    "decoder_only char-cpu",
    "encoder_only small",
    "decoder_only ppo",
)
@pytest.mark.parametrize("program", PROGRAMS, ids=hf_name)
def test_a_value_is_used_or_refused_in_one_line(begin, program):
    for i, (named, flag, value) in enumerate(CASES):
        if named is program and hf_quick(i):
            begin(program, flag, value)


@pytest.mark.slow
@pytest.mark.apart
@pytest.mark.parametrize("flag", sorted({flag for _, flag, _ in CASES}))
def test_every_value_of_a_flag_is_used_or_refused_in_one_line(begin, flag):
    for program, named, value in CASES:
        if named == flag:
            begin(program, flag, value)


def test_every_program_and_value_is_among_the_quick_ones():
    some = [case for i, case in enumerate(CASES) if hf_quick(i)]
    assert {program.command for program, *_ in some} == {
        *("train", "train-speech", "pretrain", "finetune", "instruct", "align")
    }
    assert {value for *_, value in some} == {*NUMBERS, *TEXTS}
    flags = {flag for _, flag, _ in CASES}
    assert flags >= {
        "training.max-tokens",
        "data.read.corpus-size",
        "model.d-model",
        "task.max-length",
        "output",
    }
