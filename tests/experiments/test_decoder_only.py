"""The training commands of language models: from any text to scores, and no traceback."""

import contextlib
import dataclasses
import functools
import io
import json
import logging
import math
import re
import shutil

import chex
import numpy as np
import pytest

from tests.opened import load_language
from transformer_jax.cli import decoder_only
from transformer_jax.cli.main import main
from transformer_jax.core.config_dict import from_dict
from transformer_jax.data.tokenizer import load_tokenizer
from transformer_jax.models.ngram import NgramModel
from transformer_jax.recipes.driver import read
from transformer_jax.recipes.language_model import LanguageRun
from transformer_jax.recipes.registry import named_runs
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_directory import RunDirectory

RUNS = named_runs("language_model", "ngram")

WORDS = ["um", "dois", "três", "quatro", "cinco", "seis", "sete", "oito", "nove", "dez"]
TINY = [
    "--model.d-model", "16", "--model.decoder-layers", "1", "--model.attention.num-heads", "2",
    "--model.feed-forward.d-ff", "32", "--model.positions.max-length", "32",
    "--training.steps", "6", "--training.batch-size", "16", "--training.sequence-length", "16",
    "--optimizer.schedule.warmup-steps", "2", "--loop.evaluate-every", "3",
    "--loop.checkpoint-every", "3", "--evaluation.sample", "8", "--evaluation.ngram-orders", "1",
    "3",
]  # fmt: skip


@pytest.fixture(autouse=True)
def do_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="module")
def texts(shared):
    return shared("decoder_only_texts", write_texts)


def write_texts(folder):
    """The same 40 paragraphs as a file, a folder of files, and JSONL; and a test text."""
    folder.mkdir()
    paragraphs = [f"{a} {b}\n{b} {a}." for a in WORDS for b in WORDS[:4]]
    (folder / "all.txt").write_text("\n\n".join(paragraphs) + "\n")
    (folder / "many").mkdir()
    for number, text in enumerate(paragraphs):
        (folder / f"many/{number:02}.txt").write_text(text)
    (folder / "all.jsonl").write_text(
        "".join(f"{json.dumps({'body': text})}\n" for text in paragraphs)
    )
    (folder / "test.txt").write_text("um dois três\nquatro não\n")


FROM = {
    "file": ["--data.text", "{texts}/all.txt", "--tokenizer.kind", "characters"],
    "blank": ["--data.text", "{texts}/all.txt", "--data.read.documents", "blank",
              "--tokenizer.kind", "bytes", "--training.layout", "packed"],
    "folder": ["--data.text", "{texts}/many", "--tokenizer.kind", "bpe",
               "--tokenizer.vocab-size", "280"],
    "jsonl": ["--data.jsonl", "{texts}/all.jsonl", "--data.read.field", "body",
              "--data.test", "{texts}/test.txt", "--tokenizer.kind", "characters",
              "--training.layout", "packed", "--training.gradient-accumulation-steps", "2"],
}  # fmt: skip


def train(texts, run, name, *more):
    given = [word.format(texts=texts) for word in FROM[name]]
    code = decoder_only.main(
        ["train", "char-cpu", *TINY, *given, "--distributed.num-local-devices", "1",
         "--output", str(run), *more]
    )  # fmt: skip
    assert code == 0
    return run


@pytest.fixture(scope="module")
def runs(texts, shared):
    """A run from each kind of data, trained when it is asked for, without a word."""

    @functools.cache
    def made(name):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            return shared(f"decoder_only_{name}", lambda run: train(texts, run, name))

    return made


@pytest.mark.slow
def test_resume_of_train_refuses_what_contradicts_the_run(runs, texts, capsys):
    given = [word.format(texts=texts) for word in FROM["file"]]
    command = ["train", "char-cpu", *TINY, *given, "--output", str(runs("file")), "--resume"]
    for more, said in (
        (["--training.seed", "5"], "--training.seed 5: the run "),
        (["--overwrite"], "--resume and --overwrite"),
    ):
        assert decoder_only.main([*command, *more]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith(f"error: {said}")


@pytest.mark.slow
def test_train_with_resume_continues_a_run_or_begins_it(texts, tmp_path, capsys):
    flags = ["--resume", "--loop.checkpoint-every", "2"]
    train(texts, tmp_path / "run", "file", *flags)
    sha = (tmp_path / "run" / "results.json").read_text()
    for step in (4, 6):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step_{step:08d}")
    capsys.readouterr()
    train(texts, tmp_path / "run", "file", *flags)
    assert "resumed from step" in capsys.readouterr().err
    again = (tmp_path / "run" / "results.json").read_text()
    assert json.loads(again)["state_sha256"] == json.loads(sha)["state_sha256"]


@pytest.fixture(scope="module")
def ngram_run(texts, tmp_path_factory):
    """N-gram models, each smoothed in its way."""
    folder, made = tmp_path_factory.mktemp("ngram_run"), {}
    for name, order, smoothing in (("bag", 1, "add-k"), ("five", 5, "kneser-ney")):
        made[name] = folder / name
        given = [word.format(texts=texts) for word in FROM["file"]]
        code = decoder_only.main(
            ["train", "ngram", *given, "--model.order", str(order), "--model.smoothing", smoothing,
             "--evaluation.ngram-orders", "2", "--output", str(made[name])]
        )  # fmt: skip
        assert code == 0
    return made


def losses_of(run):
    return [record["loss"] for record in read_metrics(run / "metrics.jsonl") if "loss" in record]


def rows_of(text):
    """A printed table, by the names of its models."""
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("text "))
    assert re.split(r"  +", lines[head])[2:] == ["loss", "perplexity", "bits/character",
                                                 "bits/byte"]  # fmt: skip
    rows = {}
    for line in lines[head + 1 :]:
        cells = re.split(r"  +", line)
        if len(cells) != 6:
            break
        rows[cells[1]] = [float(cell) for cell in cells[2:]]
    return rows


@pytest.mark.parametrize("name", FROM)
@pytest.mark.quick("file")
def test_a_run_says_all_about_itself(runs, name):
    run = runs(name)
    for file in ("config.json", "tokenizer.json", "metrics.jsonl", "curves.png", "results.json"):
        assert (run / file).stat().st_size > 0
    results = json.loads((run / "results.json").read_text())
    assert results["steps"] == 6
    assert results["recompilations"] == 0
    assert len(results["state_sha256"]) == 64
    [(where, scores)] = results["scores"].items()
    assert where == ("test" if name == "jsonl" else "valid")
    assert list(scores) == ["this model", "unigram, add-1", "3-gram, Kneser-Ney"]
    for row in scores.values():
        assert row["perplexity"] == pytest.approx(math.exp(row["loss"]))
        assert 0 < row["bits_per_byte"] <= row["bits_per_character"]
        assert row["tokens"] == scores["this model"]["tokens"]
    # Six steps are nothing: what counts knows more (row B24).
    assert scores["3-gram, Kneser-Ney"]["loss"] < scores["this model"]["loss"]
    config = read(RunDirectory.open(run))
    assert config.model.vocab_size == load_tokenizer(run / "tokenizer.json").vocab_size
    assert config.first == {"file": "newline", "folder": "eos"}.get(name, "bos")
    lines = read_metrics(run / "metrics.jsonl")
    assert [r["step"] for r in lines if "loss" in r] == [1, 2, 3, 4, 5, 6]
    valid = [r for r in lines if "valid_loss" in r]
    assert [r["step"] for r in valid] == [3, 6]
    assert valid[1]["valid_loss"] < valid[0]["valid_loss"]


@pytest.mark.parametrize("name", ["file", "folder"])
@pytest.mark.quick("file")
def test_a_run_can_be_used(runs, name, tmp_path, capfd):
    (tmp_path / "text").write_text("um dois\n")
    assert main(["generate", str(runs(name)), "um", "--max-new-tokens", "3"]) == 0
    assert capfd.readouterr().out.startswith("um")
    assert main(["score", str(runs(name)), str(tmp_path / "text")]) == 0
    assert capfd.readouterr().out.splitlines()[1].startswith("1\t-")
    assert main(["verify", str(runs(name))]) == 0


def test_ngram_models_end_in_the_same_table(ngram_run, texts, tmp_path, capfd):
    for name, order, smoothing in (("bag", 1, "add-k"), ("five", 5, "kneser-ney")):
        results = json.loads((ngram_run[name] / "results.json").read_text())
        assert list(results["scores"]["valid"]) == [
            f"{order}-gram, {smoothing}", "2-gram, Kneser-Ney"
        ]  # fmt: skip
        assert NgramModel.load(ngram_run[name] / "ngram.npz").order == order
    assert main(["generate", str(ngram_run["five"]), "um", "--max-new-tokens", "5"]) == 0
    assert capfd.readouterr().out.startswith("um")
    assert main(["score", str(ngram_run["five"]), str(texts / "test.txt")]) == 0
    capfd.readouterr()
    assert decoder_only.main(["resume", str(ngram_run["five"])]) == 2
    do_one_line(capfd.readouterr().err, "trained in one pass: there is nothing to resume")


@pytest.mark.slow
def test_evaluate_puts_models_beside_each_other(runs, ngram_run, texts, tmp_path, capfd):
    output = tmp_path / "figures.json"
    asked = ["evaluate", str(runs("file")), "--text", str(texts / "test.txt"), "--compare",
             str(ngram_run["five"]), str(runs("folder")), "--ngrams", "2",
             "--output", str(output)]  # fmt: skip
    assert decoder_only.main(asked) == 0
    rows = rows_of(capfd.readouterr().out)
    names = [str(runs("file")), str(ngram_run["five"]), str(runs("folder"))]
    assert list(rows) == [*names, "2-gram, Kneser-Ney"]
    figures = json.loads(output.read_text())["text"]
    for name, row in rows.items():
        found = [figures[name][key] for key in ("loss", "perplexity", "bits_per_character",
                                                "bits_per_byte")]  # fmt: skip
        assert found == pytest.approx(row, abs=1e-4)


def test_evaluate_repeats_the_scores_of_training(runs, ngram_run, capfd):
    for run, name in ((runs("file"), "this model"), (ngram_run["five"], "5-gram, kneser-ney")):
        results = json.loads((run / "results.json").read_text())["scores"]["valid"]
        assert decoder_only.main(["evaluate", str(run)]) == 0
        rows = rows_of(capfd.readouterr().out)
        expected = list(results.values())
        assert [row[0] for row in rows.values()] == pytest.approx(
            [row["loss"] for row in expected][: len(rows)], abs=1e-4
        )
        assert rows[str(run)][0] == pytest.approx(results[name]["loss"], abs=1e-4)


@pytest.mark.slow
def test_evaluate_and_score_agree_on_a_text(runs, ngram_run, texts, capfd):
    """Bits of a single text; documents also pay for the token that ends them."""
    text = texts / "test.txt"
    for run, ends in ((runs("file"), False), (runs("folder"), True), (ngram_run["five"], True)):
        assert main(["score", str(run), str(text), "--as-one-text"]) == 0
        whole = capfd.readouterr().out.splitlines()[1].split("\t")
        read = ["--ngrams"] if not ends else []
        assert decoder_only.main(["evaluate", str(run), "--text", str(text), *read]) == 0
        rows = rows_of(capfd.readouterr().out)
        told = rows[str(run)]
        count, tokenizer = int(whole[2]), load_tokenizer(run / "tokenizer.json")
        # The loss is a mean over the tokens that were counted.
        nats = told[0] * (count + ends)
        end = nats + float(whole[1])
        if ends:
            assert end > 0.01
            [score] = load_language(run).score([tokenizer.decode([tokenizer.eos])])
            assert not score.tokens  # the end is no text, so that score never counts it
        else:
            assert end == pytest.approx(0, abs=0.02)
            assert told[3] == pytest.approx(float(whole[5]), abs=2e-3)


@pytest.mark.slow
def test_resuming_a_finished_run_changes_nothing(runs, tmp_path):
    """On another mesh too, which also shows that a run may resume on other devices.

    Sums of a validation are rounded otherwise there.
    """
    run = tmp_path / "run"
    shutil.copytree(runs("file"), run)
    before = json.loads((run / "results.json").read_text())
    mesh = ["--mesh.data", "2", "--mesh.fsdp", "2", "--mesh.tensor", "2"]
    assert decoder_only.main(["resume", str(run), *mesh]) == 0
    after = json.loads((run / "results.json").read_text())
    assert after["state_sha256"] == before["state_sha256"]
    chex.assert_trees_all_close(after["scores"], before["scores"], rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        pytest.param([], marks=pytest.mark.slow),
        ["--mesh.data", "2", "--mesh.fsdp", "2", "--mesh.tensor", "2"],
        pytest.param(["--training.mode", "pmap"], marks=pytest.mark.slow),
        pytest.param(["--training.gradient-accumulation-steps", "2"], marks=pytest.mark.slow),
    ],
    ids=["data", "mesh", "pmap", "accumulation"],
)
def test_any_devices_and_parts_give_the_loss_of_one_device(runs, texts, tmp_path, how):
    many = train(texts, tmp_path / "run", "file", "--distributed.num-local-devices", "8", *how)
    np.testing.assert_allclose(losses_of(many), losses_of(runs("file")), rtol=1e-5)


def do_one_line(err, said):
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, err
    assert said in errors[0]
    assert "Traceback" not in err


MISTAKES = [
    (["train", "char-cpuu"], 2, "did you mean char-cpu?"),
    (["train", "char-cpu"], 2, "no training data: give data.text"),
    (["train", "ngram"], 2, "no training data"),
    (["train", "char-cpu", "--data.text", "{texts}/none"], 3, "no such file"),
    (["train", "char-cpu", "--data.text", "{texts}"], 2, "choose another --output"),
    (["train", "python-docs", "--data.text", "{texts}/all.txt"], 2, "more than one way"),
    (["train", "char-cpu", "{data}", "--training.sequence-length", "128"], 2,
     "model has positions for 64 tokens"),
    (["train", "char-cpu", "{data}", "--training.batch-size", "0"], 2,
     "--training.batch-size is 0"),
    (["train", "char-cpu", "{data}", "--training.gradient-accumulation-steps", "4"], 2,
     "not divisible by 32"),
    (["train", "char-cpu", "{data}", "--mesh.context", "8", "--training.sequence-length", "20"], 2,
     "with mesh.context 8 it must be a multiple of 8"),
    (["train", "char-cpu", "{data}", "--model.vocab-size", "500"], 2, "leave model.vocab_size out"),
    (["train", "char-cpu", "{data}", "--evaluation.ngram-orders", "0"], 2, "0 in it: at least 1"),
    (["train", "char-cpu", "{data}", "--evaluation.characters", "0"], 2, "at least 1"),
    (["train", "char-cpu", "{data}", "--output", "{run}"], 2, "has a run already: continue"),
    (["train", "ngram", "{data}", "--output", "{ngram}"], 2, "has a run already: choose another"),
    (["train", "ngram", "{data}", "--model.order", "0"], 2, "model.order is 0"),
    (["train", "ngram", "{data}", "--model.smoothing", "add-k", "--model.k", "-1"], 2,
     "model.k is -1"),
    (["train", "char-cpu", "--data.jsonl", "one.jsonl"], 3, "one.jsonl:1: no field 'text'"),
    (["resume", "{texts}"], 4, "not a run directory"),
    (["resume", "{run}", "--mesh.tensor", "3"], 2, "there are 8: write --mesh.tensor 2"),
    (["evaluate", "{texts}"], 4, "not a run directory"),
    (["evaluate", "{run}", "--text", "{texts}/none"], 3, "--text {texts}/none: no such file"),
    (["evaluate", "{run}", "--checkpoint", "5"], 4, "no checkpoint of step 5"),
    (["evaluate", "{run}", "--compare", "{texts}"], 4, "not a run directory"),
    (["evaluate", "{run}", "--output", "{texts}/all.txt/f", "--ngrams"], 2, "cannot be written"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "code", "said"), MISTAKES, ids=[m[2] for m in MISTAKES])
def test_a_mistake_is_one_line_and_an_exit_code(
    runs, ngram_run, texts, tmp_path, monkeypatch, capfd, given, code, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.jsonl").write_text('{"body": "a"}\n')
    places = {"texts": texts, "run": runs("file"), "ngram": ngram_run["five"]}
    filled = []
    for word in given:
        if word == "{data}":
            filled += ["--data.text", f"{texts}/all.txt", "--tokenizer.kind", "characters"]
        else:
            filled.append(word.format(**places))
    if filled[:2] == ["train", "char-cpu"] and "--training.batch-size" not in filled:
        filled += ["--training.batch-size", "16"]  # for the 8 devices
    if said == "choose another --output":
        filled += ["--output", str(texts)]
    assert decoder_only.main(filled) == code
    do_one_line(capfd.readouterr().err, said.format(**places))


def test_other_text_is_not_gone_on_with(runs, texts, tmp_path, capfd):
    run = tmp_path / "run"
    shutil.copytree(runs("file"), run)
    config = json.loads((run / "config.json").read_text())
    words = (texts / "all.txt").read_text()
    (tmp_path / "other.txt").write_text(words.replace("um", "mu"))
    config["data"]["text"] = str(tmp_path / "other.txt")
    (run / "config.json").write_text(json.dumps(config))
    assert decoder_only.main(["resume", str(run)]) == 4
    do_one_line(capfd.readouterr().err, "data.text is")
    assert decoder_only.main(["resume", str(run), "--allow-changed-config"]) == 3
    do_one_line(capfd.readouterr().err, "the training data have changed since the run began")


def test_long_texts_are_evaluated_on_their_beginning(texts, tmp_path, capfd):
    given = [word.format(texts=texts) for word in FROM["file"]]
    more = ["--data.test", f"{texts}/all.txt", "--evaluation.characters", "100"]
    run = tmp_path / "run"
    assert decoder_only.main(["train", "ngram", *given, *more, "--output", str(run)]) == 0
    assert "only the first 100 characters are evaluated" in capfd.readouterr().err
    scores = json.loads((run / "results.json").read_text())["scores"]
    assert scores["test"]["5-gram, kneser-ney"]["tokens"] == 101  # and its end


def test_every_named_run_can_be_written_and_read_back():
    for _, run in RUNS.values():
        assert from_dict(type(run), json.loads(json.dumps(dataclasses.asdict(run)))) == run
        assert isinstance(run, LanguageRun) or run.model.kind == "ngram"


@pytest.mark.parametrize("given", [["--help"], ["train", "--help"], ["train", "ngram", "--help"]])
def test_help_helps(given, capsys):
    assert decoder_only.main(given) == 0
    assert "experiments.decoder_only" in capsys.readouterr().out
