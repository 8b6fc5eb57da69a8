"""Whatever value a flag takes, a command ends soon with one line and a code that says why."""

import dataclasses
import io
import sys
import tempfile
import time
import typing
from pathlib import Path

import pytest

from tests.data.speech.synthetic import write_speech
from tests.data.speech.test_speech_runs import TINY, manifests
from tests.parity import layouts
from tests.recipes import captioners
from transformer_jax.cli import decoder_only, seq2seq
from transformer_jax.cli.commands import with_flags
from transformer_jax.cli.flags import positional
from transformer_jax.cli.main import main
from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.interop.hf_run_directory import convert
from transformer_jax.models.config import TransformerConfig

COMMANDS = dict(with_flags())
NUMBERS = [
    "-1",
    "0",
    "-3",
    "1000000000",
    "99999999999999999999999",
    "nan",
    "inf",
    "-inf",
    "",
    "1e400",
]
TEXTS = ["", " ", "\ud800", "\udcff", "a\0b", "x" * 5000, "-", "²", "{}", "é\n\t"]
SECONDS = 120  # of a busy machine; a command that hangs takes for ever


def kinds_of(hint):
    """The simple types among those that a field can have."""
    parts = typing.get_args(hint)
    return set().union(*map(kinds_of, parts)) if parts else {hint} & {int, float, str, Path}


def cases():
    """Every flag of every command with every value that its kind may be hurt by."""
    for name, command in COMMANDS.items():
        hints = typing.get_type_hints(command)
        for field in dataclasses.fields(command):
            kinds = kinds_of(hints[field.name])
            if positional(field) or not kinds:
                continue
            for value in NUMBERS if kinds & {int, float} else TEXTS:
                yield name, field.name.replace("_", "-"), value


CASES = list(cases())
FIRST = {name: i for i, (name, *_) in reversed(list(enumerate(CASES)))}


def quick(i):
    """The quick tests: the first of each command, and of all of them every 37th."""
    return i % 37 == 0 or i in FIRST.values()


# The model that each command for encoders is for.
READERS = {
    "classify": "bert_cls", "threshold": "bert_multi", "tag": "bert_tag", "answer": "bert_qa",
    "fill-mask": "bert",
}  # fmt: skip


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """Runs of encoders with the heads that commands ask for, and a Hugging Face folder."""
    root, made = tmp_path_factory.mktemp("readers"), {}
    tokenizer = train_tokenizer("wordpiece", ["a cab fed cafe"] * 3, 90, special=BERT_SPECIAL)
    for use, layout in READERS.items():
        folder = layouts.write(layout, root / layout)
        tokenizer.save(folder / "tokenizer.json")
        convert(folder, root / use, overwrite=False)
        made[use] = root / use
    return made | {"folder": root / "bert"}


# What a flag needs beside it to have a part in the work.
BESIDE = {
    **{("translate", flag): ["--sample"]
       for flag in ("temperature", "top-k", "top-p", "min-p", "seed")},
    ("generate", "num_return_sequences"): ["--num-beams", "4"],
    ("generate", "prompt-lookup-num-tokens"): ["--temperature", "0"],
    ("export", "length"): ["--format", "stablehlo"],
}  # fmt: skip


def arguments_of(name, flag, runs, folder):
    """Each command with the least that it needs for ``flag`` to have a part in its work."""
    decoder, translator, readers, own = runs
    adapters = own.get("adapters", decoder)
    text, table, output = folder / "in.txt", folder / "in.tsv", folder / "out"
    text.write_text("a cab\n")
    vectors = folder / "vectors.txt"
    vectors.write_text("4 2\na 1 2\nb 2 1\nc 3 1\nd 1 1\n")
    (folder / "questions.txt").write_text("a b c d\n")
    rule = folder / "rule.py"
    rule.write_text("def reward(prompt, completion):\n    return len(completion)\n")
    rows = (f"a {'cab ' * i}\tx\nfed {'cafe ' * i}\ty\n" for i in range(1, 7))
    table.write_text("text\tlabel\n" + "".join(rows))
    fields = ["--template", "{text} ", "--answer-template", "{label}\\n"]
    given = {
        "translate": [translator],
        "generate": [decoder, "a cab"],
        "prompt": [decoder, "--examples", table, "--queries", table, *fields, "--limit", "1",
                   "--num-shots", "0"],
        "score": [decoder, text],
        "prefer": [decoder, text] if flag == "output" else [decoder, text, "--output", output],
        "win-rate": [decoder, decoder, text, *([] if flag == "rule" else ["--rule", rule])],
        "chat": [decoder] if flag == "template" else [decoder, "--template", "mistral"],
        "transcribe": own.get("transcribe", [translator, text]),
        "caption": own.get("caption", [translator, text]),
        "diversity": [decoder, text],
        "score-file": [text, text],
        "compare": [text, text, text],
        "fill-mask": [readers["fill-mask"], "a [MASK]"],
        "classify": [readers["threshold" if flag == "threshold" else "classify"], "a cab"],
        "tag": [readers["tag"], "a cab"],
        "answer": [readers["answer"], "cafe", "--context", text],
        "embed": [translator, text],
        "semantic-search": [translator, text, "a cab"],
        "probe": [translator, table],
        "word-vectors": [translator, "cab", "a cab", "cab a"],
        "analogy": [vectors, "--questions", "questions.txt"]
                   if flag in ("section", "questions") else [vectors, *"abc"],
        "most-similar": [vectors] if flag == "pairs" else [vectors, "a"],
        "attention": [translator, "a cab"],
        "explore": [translator],
        "complexity": ["--lengths", "4", "--sizes", "2", "--repetitions", "0"],
        "report": ["bleu"],
        "describe": [] if flag == "preset" else [translator],
        "verify": [translator],
        "lecture": ["B33"],
        "check": ["shift_right", str(Path(__file__).parents[2] / "course/transformer.py")],
        "bpe-merges": ["a cab"],
        "tokenize": [decoder, "a cab"],
        "compare-tokenizers": [text],
        "doctor": [own.get("doctor", decoder)],
        "export": [translator, output],
        "convert": [readers["folder"], output],
        "merge": [adapters] if flag == "output" else [adapters, "--output", output],
        "spectrum": [adapters],
        "launch": ["true"],
        "completion": ["bash"],
    }[name]  # fmt: skip
    if name == "score" and flag in ("source", "target"):
        given = [translator, "--source", text, "--target", text]
    if name == "generate" and flag in ("prompts", "requests"):
        given = [decoder]
    return [*map(str, given), *BESIDE.get((name, flag), [])]


@pytest.fixture
def own(request, decoder_run, ngram_run, shared):
    """Runs of single commands, which slow tests train; others refuse a run of another kind."""
    name = request.node.callspec.params["name"]
    if name == "doctor":
        return {"doctor": ngram_run}  # nothing is compiled for it
    if not request.node.get_closest_marker("slow"):
        return {}
    if name in ("merge", "spectrum"):
        return {"adapters": shared("hostile_adapters", lambda run: _adapters(decoder_run, run))}
    if name == "transcribe":
        folder = shared("hostile_speech", _speech)
        return {"transcribe": [folder / "run", folder / "test0.npy"]}
    if name == "caption":
        pictures = shared("pictures of colors", captioners.table)
        run = shared("run of captions", lambda run: captioners.train(run, pictures))
        return {"caption": [run, pictures / "0.png"]}
    return {}


def _adapters(base, run):
    text = run.parent / "hostile.txt"
    text.write_text("a cab\nfed cafe\n" * 40)
    flags = ["--init-from", base, "--lora.rank", 1, "--data.text", text, "--training.steps", 1]
    flags += ["--training.sequence-length", 8, "--training.batch-size", 2, "--evaluation.sample", 0]
    flags += ["--optimizer.schedule.warmup-steps", 0, "--distributed.num-local-devices", 1]
    assert decoder_only.main(["train", "char-cpu", *map(str, flags), "--output", str(run)]) == 0


def _speech(folder):
    for seed, part in enumerate(("train", "valid", "test")):
        write_speech(folder, part, 12, seed=seed)
    flags = ["train-speech", "luong", *manifests(folder), *TINY]
    assert seq2seq.main([*flags, "--output", str(folder / "run")]) == 0


@pytest.fixture
def place(decoder_run, trained_run, readers, own, tmp_path, monkeypatch):
    """Makes a folder where a command can work; gives its arguments for a flag."""

    def make(name, flag):
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a cab\n")))
        return arguments_of(name, flag, (decoder_run, trained_run, readers, own), folder)

    return make


def sound():
    """A command with each set of arguments that it has: one of its flags for each."""
    for name in COMMANDS:
        flags = [flag for command, flag, value in CASES if command == name and not value]
        special = {("classify", "threshold"), ("score", "source"), *BESIDE}
        if name != "glue":  # needs runs of its tasks, and has no flags
            yield name, None
        yield from ((name, flag) for flag in flags if (name, flag) in special)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flag"),
    [pytest.param(*case, marks=() if case in {("tag", None), ("convert", None), ("describe", None),
                                              ("classify", "threshold")} else pytest.mark.slow)
     for case in sound()],
)  # fmt: skip
def test_without_the_value_the_command_does_its_work(place, name, flag, capsysbinary):
    code = main([name, *place(name, flag)])
    assert code == 0, capsysbinary.readouterr().err


@pytest.fixture
def check(place, capsysbinary):
    """Runs a command with a flag set, and checks how that ends."""

    def run(name, flag, value):
        given = place(name, flag)
        began = time.monotonic()
        code = main([name, *given, f"--{flag}={value}"])
        took = time.monotonic() - began
        err = capsysbinary.readouterr().err.decode(errors="replace")
        case = (name, flag, value, err)
        assert code in (0, 2, 3, 4, 5), case
        assert "Traceback" not in err, case
        assert "unexpected" not in err, case
        if code:
            assert err.count("error: ") == 1, case
            assert err.rstrip("\n").rpartition("\n")[2].startswith("error: "), case
        assert took < SECONDS, case

    return run


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] if name == "diversity" else []) for name in FIRST
])  # fmt: skip
def test_a_value_is_used_or_refused_in_one_line(check, name):
    for i, (command, flag, value) in enumerate(CASES):
        if command == name and quick(i):
            check(name, flag, value)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flag"), sorted({case[:2] for case in CASES}))
def test_every_value_of_a_flag_is_used_or_refused_in_one_line(check, name, flag):
    for command, named, value in CASES:
        if (command, named) == (name, flag):
            check(name, flag, value)


def test_every_command_and_kind_is_among_the_quick_ones():
    some = [case for i, case in enumerate(CASES) if quick(i)]
    assert len(CASES) > 500
    assert {name for name, *_ in some} == {name for name, *_ in CASES}
    values = {value for *_, value in some}
    assert len(values & {*NUMBERS}) > 5
    assert len(values & {*TEXTS}) > 5


def test_what_is_no_flag_has_no_dashes(capsys):
    assert main(["classify", "run", "a", "b\0"]) == 2
    assert capsys.readouterr().err.startswith("error: texts is ('a', 'b\\x00'): ")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"length_penalty": float("nan")}, "length_penalty is nan"),
        ({"length_penalty": float("inf")}, "length_penalty is inf"),
        ({"max_len_a": float("inf")}, "max_len_a is inf: a finite number is needed"),
        ({"max_len_a": float("nan")}, "max_len_a is nan"),
        ({"max_len_b": 0}, "max_len_b is 0: at least 1"),
        ({"min_length": -3}, "min_length is -3: at least 0"),
        ({"max_len_a": "2"}, "max_len_a is '2': a number is needed"),
        ({"max_len_b": 2.5}, "max_len_b is 2.5: a whole number or None is needed"),
        ({"length_penalty": [1.0]}, r"length_penalty is \[1.0\]: a number is needed"),
    ],
)
def test_a_search_that_cannot_be_is_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        TRANSLATION.changed(**settings)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"d_model": "128"}, 'd_model is "128": a whole number is needed'),
        ({"d_model": True}, "d_model is true: a whole number"),
        (
            {"decoder_vocab_size": "9"},
            'decoder_vocab_size is "9": a whole number or null is needed',
        ),
        ({"norm": {"eps": float("nan")}}, "norm.eps is NaN: at least 0"),
        ({"norm": 3}, "norm is 3: an object \\(NormConfig\\) is needed"),
        (
            {"compute": {"dtype": "int8"}},
            'compute.dtype is "int8": allowed are auto, float32, bfloat16',
        ),
        (
            {"scores": {"sliding_window_layers": 3}},
            "scores.sliding_window_layers is 3: a list or null is needed",
        ),
    ],
)
def test_a_setting_of_another_type_is_refused(fields, says):
    with pytest.raises(ConfigError, match=says):
        from_dict(TransformerConfig, fields)
    from_dict(TransformerConfig, {"norm": {"eps": 1}, "decoder_vocab_size": None})


def test_numbers_that_no_model_can_have_are_refused_by_name():
    scaled = lambda *numbers: {"positions": {"kind": "rope", "rope_scaling": [*numbers, 8192]}}
    with pytest.raises(ConfigError, match=r"positions.rope_scaling is .*: the second number"):
        from_dict(TransformerConfig, scaled(8.0, 4.0, 4.0))
    from_dict(TransformerConfig, scaled(8.0, 1.0, 4.0))
