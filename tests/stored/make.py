"""Writes ``runs.tar.xz``: runs of every kind as version 0.1.0 stored them, and what they lead to.

    git worktree add ../old 9818fef
    cp -r tests/stored ../old/tests && cd ../old
    python -m tests.stored.make && cp tests/stored/runs.tar.xz .../tests/stored

It runs with the code of that commit, whose flags and settings have the names of that time. Each run
is stopped after its third step of six, as by a signal; then a copy is resumed to its end. The
archive has the stopped runs, their data, and ``expected.json``: the losses of all steps, the digest
of the final state, and what commands print about the stopped and the finished run.
"""

import contextlib
import io
import json
import os
import platform
import re
import shutil
import signal
import sys
import tarfile
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    " --xla_cpu_use_fusion_emitters=false"
)

import jax

from experiments import decoder_only, encoder_only, seq2seq
from transformer_jax.cli.main import main
from transformer_jax.training.signals import StopSignals

jax.config.update("jax_num_cpu_devices", 8)
HERE = Path(__file__).parent
PROGRAMS = {
    "seq2seq": seq2seq.main, "decoder_only": decoder_only.main, "encoder_only": encoder_only.main,
    "transformer-jax": main,
}  # fmt: skip

NUMBERS = ["one", "two", "three", "four", "five", "six"]
THINGS = ["dog", "cat", "bird", "fish"]
COLORS = ["red", "blue", "green"]
GOOD, BAD = ("good", "fine", "warm"), ("bad", "poor", "cold")


def write_data(folder: Path) -> None:
    """Aligned sentences, documents, JSON lines, prompts, and labelled examples of every task."""
    folder.mkdir()
    write = lambda name, lines: (folder / name).write_text("".join(f"{line}\n" for line in lines))
    pairs = [(f"{a} {b} {c}", f"{c[::-1]} {a}") for a in NUMBERS for b in COLORS for c in THINGS]
    write("train.en", (source for source, _ in pairs))
    write("train.xx", (target for _, target in pairs))
    write("test.en", (source for source, _ in pairs[::9]))
    write("test.xx", (target for _, target in pairs[::9]))
    write("pairs.jsonl", (json.dumps({"en": a, "xx": b}) for a, b in pairs))
    write("pairs.tsv", (f"{i}\t{a}\t{b}" for i, (a, b) in enumerate(pairs)))
    documents = [
        [f"the {a} {b} sees a {c}.", f"a {c} sees the {a} {b}.", f"the {b} is {a}."]
        for a in COLORS for b in THINGS for c in THINGS if b != c
    ]  # fmt: skip
    write("text.txt", ("\n".join(lines) + "\n" for lines in documents))
    write("text.jsonl", (json.dumps({"body": " ".join(lines)}) for lines in documents))
    write("lines.txt", [lines[0] for lines in documents[:5]])
    rows = [(f"a {a} {b}", side) for side, some in (("no", BAD), ("yes", GOOD)) for a in some
            for b in THINGS]  # fmt: skip
    write("classify.tsv", ["text\tlabel", *("\t".join(row) for row in rows)])
    write(
        "pair.tsv",
        ["left\tright\tclass"]
        + 2 * [f"the {a}\ta {b}\t{'same' if a == b else 'other'}" for a in THINGS for b in THINGS],
    )
    write("regress.jsonl", (json.dumps({"words": text, "score": 0.5 + (label == "yes")})
                            for text, label in rows))  # fmt: skip
    write("tag.conllu", (
        "\n".join(f"{i}\t{word}\t_\t{tag}\t{tag[:2]}" + "\t_" * 5 for i, word, tag in
                  ((1, "the", "DET"), (2, a, "ADJ"), (3, f"{b}s", "NOUN"))) + "\n"
        for a in COLORS for b in THINGS))  # fmt: skip
    context = "the red dog sees a blue bird"
    asked = [("red", "dog"), ("blue", "bird")] * 6
    paragraphs = [
        {"context": before + context, "qas": [
            {"id": f"{before}{i}", "question": f"who is {color}?", "answers": [
                {"text": thing, "answer_start": len(before) + context.index(thing)}]}
            for i, (color, thing) in enumerate(asked)]}
        for before in ("", "and ", "there ")
    ]  # fmt: skip
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    (folder / "span.json").write_text(json.dumps(squad))
    requests = [
        {"prompt": "the ", "tokens": 5, "temperature": 0},
        {"prompt": "the ", "tokens": 4, "beams": 3, "nbest": 2},
        {"prompt": "a ", "tokens": 6, "samples": 2, "seed": 3, "top_k": 5, "no_repeat_ngram": 2},
    ]
    write("requests.jsonl", map(json.dumps, requests))


def flags(text: str) -> list[str]:
    return text.split()


SHORT = flags(
    "--training.steps 6 --loop.evaluate-every 2 --loop.checkpoint-every 2 --loop.keep-last 1"
    " --loop.max-skipped 7 --distributed.local-devices 1 --distributed.heartbeat 20"
)
TINY = flags("--model.width 8 --model.attention.heads 2 --model.feed-forward.width 12")
ENCODER = flags(
    "--training.tokens 256 --training.buckets 1 --training.rows-multiple 4"
    " --model.embedding.dropout 0.05 --model.norm.dropout 0.05"
)
TRANSLATE = flags(
    "--model.encoder-layers 1 --model.decoder-layers 1 --training.tokens 256"
    " --training.rows-multiple 4 --evaluation.sentences 2 --evaluation.shown 1"
    " --evaluation.beams 2 --data.read.holdout 10 --data.read.size 500"
)
TEST = flags("--data.test.source data/test.en --data.test.target data/test.xx")
PRETRAIN = flags("--data.text data/text.txt --tokenizer.vocab-size 60")

# Name: the program, and the command that begins the run.
RUNS: dict[str, tuple[str, list[str]]] = {
    "translation": ("seq2seq", flags(
        "train small --data.source data/train.en --data.target data/train.xx"
        " --tokenizer.kind wordpiece --tokenizer.vocab-size 60 --data.read.over-long cut"
        " --data.read.max-length 8 --data.read.lowercase --training.buckets 2"
        " --training.accumulation 2 --training.smoothing 0.2 --training.average-decay 0.8"
        " --training.seed 3 --optimizer.name adamw --optimizer.learning-rate 0.01"
        " --optimizer.weight-decay 0.02 --optimizer.clip 0.5 --optimizer.layer-decay 0.9"
        " --optimizer.schedule.kind cosine --optimizer.schedule.warm-up 2"
        " --optimizer.schedule.final 0.2 --loop.best sacrebleu --loop.patience 5"
        " --model.positions.kind relative --model.positions.buckets 8"
        " --model.positions.max-distance 16 --model.attention.kv-heads 1"
        " --model.decoder-heads 4 --model.decoder-feed-forward 16 --model.feed-forward.dropout 0.1"
        " --model.scores.softcap 20 --model.scores.window 4 --model.scores.window-every 2"
        " --model.head.softcap 15 --model.norm.place sandwich"
    ) + TRANSLATE + TEST),
    "translation-scanned": ("seq2seq", flags(
        "train small --data.pairs data/pairs.tsv --data.read.columns 2 3"
        " --tokenizer.kind characters"
        " --tokenizer.vocab-size 60 --training.buckets 1 --training.smoothing 0"
        " --optimizer.name adafactor --optimizer.schedule.warm-up 0.5"
        " --optimizer.schedule.kind linear --optimizer.learning-rate 0.02"
        " --model.compute.scan --model.compute.remat --model.embedding.norm"
        " --model.embedding.no-shared --model.head.no-tied --model.head.bias"
        " --model.positions.kind rotary --model.positions.rotary-base 500"
        " --model.positions.rotary-interpolation 2 --model.positions.rotary-scaling 2 1 4 16"
        " --model.feed-forward.gated --model.norm.kind rms --training.mode pmap"
    ) + TRANSLATE),
    "contiguous": ("decoder_only", flags(
        "train char-cpu --data.text data/text.txt --data.read.documents blank"
        " --tokenizer.kind characters --training.layout blocks --training.rows 4"
        " --training.length 16 --training.accumulation 2 --model.decoder-layers 2"
        " --model.positions.max-length 24 --optimizer.name muon --optimizer.learning-rate 0.02"
        " --optimizer.schedule.warm-up 2 --optimizer.schedule.final 0.1 --evaluation.sample 0"
        " --evaluation.ngrams 1 2 --evaluation.characters 2000 --data.read.holdout 0.2"
        " --model.attention.kv-heads 1 --model.positions.kind rotary"
    )),
    "packed": ("decoder_only", flags(
        "train modern --data.jsonl data/text.jsonl --data.read.field body"
        " --tokenizer.kind bpe --tokenizer.vocab-size 265 --training.layout packed"
        " --training.rows 4 --training.length 32 --training.average-decay 0.9"
        " --model.decoder-layers 1 --model.positions.max-length 40 --model.attention.kv-heads 1"
        " --optimizer.name lion --optimizer.learning-rate 0.005 --optimizer.schedule.warm-up None"
        " --evaluation.sample 3 --evaluation.ngrams --evaluation.characters 2000"
        " --training.seed 4"
    )),
    "pretraining": ("encoder_only", flags(
        "pretrain small --training.length 24 --masking.share 0.2 --masking.whole-words"
        " --masking.pairs next --model.encoder-layers 2 --model.positions.max-length 32"
        " --optimizer.learning-rate 0.01 --optimizer.schedule.warm-up 2"
        " --evaluation.characters 900 --loop.best valid_masked_accuracy"
    ) + PRETRAIN + ENCODER),
    "pretraining-order": ("encoder_only", flags(
        "pretrain modern --training.length 32 --masking.pairs order --model.encoder-layers 1"
        " --model.embedding.width 6 --model.embedding.segments 3 --model.norm.place pre"
        " --optimizer.learning-rate 0.01 --optimizer.schedule.warm-up 2 --training.accumulation 2"
        " --training.average-decay 0.9 --model.positions.max-length 40"
    ) + PRETRAIN + ENCODER),
    "classification": ("encoder_only", flags(
        "finetune classify --data.train data/classify.tsv --data.valid data/classify.tsv"
        " --task.init runs/pretraining --task.freeze 1 --task.reinit-last 1 --task.length 16"
        " --loop.best valid_matthews --optimizer.schedule.warm-up 0.1"
    ) + ENCODER),
    "pairs": ("encoder_only", flags(
        "finetune pair --data.train data/pair.tsv --data.read.text left --data.read.second right"
        " --data.read.label class --data.read.holdout 0.2 --task.init runs/pretraining"
        " --task.freeze embeddings --optimizer.layer-decay 0.5 --task.length 16"
    ) + ENCODER),
    "regression": ("encoder_only", flags(
        "finetune regress --data.train data/regress.jsonl --data.valid data/regress.jsonl"
        " --data.read.text words"
        " --data.read.label score --task.init runs/pretraining --task.freeze encoder"
        " --task.length 12 --loop.best valid_pearson"
    ) + ENCODER),
    "tagging": ("encoder_only", flags(
        "finetune tag --data.train data/tag.conllu --data.read.tag xpos --task.length 16"
        " --tokenizer.vocab-size 60 --model.encoder-layers 1 --model.positions.max-length 32"
    ) + TINY + ENCODER),
    "answers": ("encoder_only", flags(
        "finetune span --data.train data/span.json --task.stride 4 --task.length 20"
        " --task.init runs/pretraining --training.average-decay 0.9 --loop.best valid_f1"
    ) + ENCODER),
}  # fmt: skip
for _name, (_, _command) in RUNS.items():
    _command += [*SHORT, "--output", f"runs/{_name}"]
    if "--task.init" not in _command and _name != "tagging":
        _command += TINY
    if _name in ("pretraining-order", "pairs", "regression", "tagging", "translation-scanned"):
        _command += flags("--loop.evaluate-every 0 --loop.checkpoint-every 0")  # one is enough

NGRAM = flags(
    "train ngram --data.text data/text.txt --tokenizer.kind characters --evaluation.ngrams 2"
)
COUNTED = {
    "ngram": flags("--model.order 3 --model.smoothing kneser-ney"),
    "bigram": flags("--model.order 2 --model.smoothing add-k --model.k 0.5"),
}

LANGUAGE = [
    flags("transformer-jax score {run} data/lines.txt --whole"),
    ["transformer-jax", "generate", "{run}", "the ", *flags("--tokens 6 --temperature 0"), "--tsv"],
    ["transformer-jax", "generate", "{run}", "the ",
     *flags("--tokens 5 --beams 2 --nbest 2 --json --batch 4 --too-long cut --full stop")],
    flags("transformer-jax generate {run} --requests data/requests.jsonl --json"),
]  # fmt: skip
TRANSLATING = [
    flags("transformer-jax translate {run} --input data/test.en --scores --beams 3 --nbest 2"
          " --alpha 0.7 --batch 4 --read-ahead 8 --length-ratio 1 --length-extra 3"),
    flags("transformer-jax score {run} --source data/test.en --target data/test.xx"),
    flags("seq2seq evaluate {run} --source data/test.en --target data/test.xx --beams 2"),
]  # fmt: skip
# What is asked of each run, as it was stored and once more in the end.
COMMANDS: dict[str, list[list[str]]] = {
    "translation": TRANSLATING,
    "translation-scanned": TRANSLATING[:2],
    "contiguous": [*LANGUAGE, flags(
        "decoder_only evaluate {run} --text data/lines.txt --beside runs/ngram --ngrams 2")],
    "packed": [*LANGUAGE[:2], [*LANGUAGE[1], "--speculate", "2", "--checkpoint", "last"]],
    "ngram": LANGUAGE[:2],
    "bigram": LANGUAGE[:2],
    "pretraining": [
        ["transformer-jax", "fill-mask", "{run}", "the red [MASK] sees a bird.", "--top", "3"],
        flags("encoder_only evaluate {run} --data data/text.txt"),
        flags("transformer-jax similar {run} data/lines.txt dog --top 2 --pool first"),
        ["transformer-jax", "words", "{run}", "dog", "the dog.", "a dog sees", "--top", "2"],
    ],
    "pretraining-order": [flags("encoder_only evaluate {run}")],
    "classification": [["transformer-jax", "classify", "{run}", "a good dog", "--all"],
                       flags("encoder_only evaluate {run} --data data/classify.tsv")],
    "pairs": [flags("encoder_only evaluate {run}")],
    "regression": [flags("encoder_only evaluate {run}")],
    "tagging": [["transformer-jax", "tag", "{run}", "the red dogs"]],
    "answers": [["transformer-jax", "answer", "{run}", "who is red?", "--context",
                 "data/lines.txt", "--best", "2", "--longest", "3"]],
}  # fmt: skip


def ask(program: str, arguments: list[str], *, code: int = 0) -> str:
    """The standard output of a command."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = PROGRAMS[program](arguments)
    assert found == code, (found, arguments, err.getvalue())
    out.flush()
    return out.buffer.getvalue().decode()  # type: ignore[attr-defined]


def answers(name: str) -> list[str]:
    return [ask(command[0], [word.format(run=f"runs/{name}") for word in command[1:]])
            for command in COMMANDS[name]]  # fmt: skip


@contextlib.contextmanager
def stopped_after(step: int):
    """Training finds after ``step`` that SIGINT has come."""
    reached = StopSignals.reached
    StopSignals.reached = lambda self, number: signal.SIGINT if number == step else None
    try:
        yield
    finally:
        StopSignals.reached = reached


def losses(run: Path) -> dict[str, dict[str, float]]:
    """The measurements that keep their names, by step."""
    kept: dict[str, dict[str, float]] = {"loss": {}, "valid_loss": {}}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name in kept.keys() & record.keys():
            kept[name][str(record["step"])] = record[name]
    return kept


def make_run(name: str) -> dict:
    program, command = RUNS[name]
    run = Path("runs") / name
    with stopped_after(3):
        ask(program, command, code=130)
    kept = Path("kept") / name
    shutil.copytree(run, kept)
    before = answers(name)
    ask(program, ["resume", str(run), "--distributed.local-devices", "1"])
    results = json.loads((run / "results.json").read_text())
    return {
        "program": program, "command": command, "commands": COMMANDS[name], "before": before,
        "after": answers(name), "losses": losses(run), "results": results,
    }  # fmt: skip


def cpu() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found.group(1) if found else platform.processor()


def make(folder: Path) -> None:
    os.chdir(folder)
    write_data(Path("data"))
    expected: dict = {"made_with": {"jax": jax.__version__, "cpu": cpu()}, "runs": {}}
    for name, more in COUNTED.items():
        ask("decoder_only", [*NGRAM, *more, "--output", f"runs/{name}"])
        shutil.copytree(f"runs/{name}", f"kept/{name}")
        expected["runs"][name] = {
            "program": "decoder_only", "command": [*NGRAM, *more, "--output", f"runs/{name}"],
            "commands": COMMANDS[name], "before": answers(name),
        }  # fmt: skip
    for name in RUNS:
        print(name, file=sys.stderr, flush=True)
        expected["runs"][name] = make_run(name)
    # A run that has ended, too.
    shutil.copytree("runs/translation", "kept/translation-finished")
    for path in [*Path("kept").rglob("*.png"), *Path("kept").rglob("*.log")]:
        path.unlink()
    shutil.rmtree("runs")
    Path("kept").rename("runs")
    Path("expected.json").write_text(json.dumps(expected, indent=1))


def pack(folder: Path) -> None:
    def plain(info):
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(HERE / "runs.tar.xz", "w:xz", preset=9) as archive:
        for name in ("data", "runs", "expected.json"):
            archive.add(folder / name, name, filter=plain)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        make(Path(place))
        pack(Path(place))
