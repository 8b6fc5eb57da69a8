"""One line is prepared alike by every door: commands, Python, evaluation, scores, attention."""

import json
import unicodedata

import pytest

import transformer_jax as tj
from transformer_jax.data.pairs import Pairs
from transformer_jax.data.sources import ReadOptions, Splits
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.inference.pretrained import read_facts
from transformer_jax.recipes.tasks.translation_task import translation
from transformer_jax.runs.run_directory import RunDirectory

ENDS = {
    "blanks": "   ",
    "line end": "\n",
    "CRLF": "\r\n",
    "NBSP": "\u00a0",
    "ideographic": "\u3000",
    "all": "\t\u3000 \u00a0\u2003\n",
}


def apart(text):
    return unicodedata.normalize("NFD", text)


@pytest.fixture(scope="module")
def predictor(learnt_run):
    return tj.load(learnt_run)


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS.values(), ids=list(ENDS))
def test_python_reads_a_line_as_the_command_does(learnt_run, predictor, lesson, run_command, end):
    sources = [source for source, _ in lesson]
    given = [apart(source) + end for source in sources]
    wanted = [target for _, target in lesson]
    text = "".join(line.rstrip("\r\n") + "\n" for line in given)
    code, lines, _ = run_command("translate", learnt_run, "--num-beams", 1, text=text)
    assert (code, lines) == (0, [*wanted, ""])
    assert predictor(given, num_beams=1) == wanted
    assert predictor(given[1], num_beams=1) == wanted[1]
    hf = predictor(given, num_beams=1, generation_config="hf")
    assert hf == wanted
    scores = predictor.score(given, [apart(target) + end for target in wanted])
    assert scores == pytest.approx(predictor.score(sources, wanted), abs=1e-6)
    assert (predictor.embed(given) == predictor.embed(sources)).all()


@pytest.mark.slow
def test_evaluation_and_scores_of_files_read_lines_alike(learnt_run, lesson, run_command, tmp_path):
    files = {}
    for name, end, form in (("clean", "", "NFC"), ("blanks", "  \u3000\u00a0", "NFD")):
        for side, column in (("source", 0), ("target", 1)):
            path = files[name, side] = tmp_path / f"{name}.{side}"
            lines = [unicodedata.normalize(form, pair[column]) + end + "\n" for pair in lesson]
            path.write_text("".join(lines), "utf-8")
    made = {}
    for name in ("clean", "blanks"):
        flags = ("--source", files[name, "source"], "--target", files[name, "target"])
        out = tmp_path / f"{name}.out"
        evaluated = run_command("evaluate", learnt_run, *flags, "--num-beams", 1, "--output", out)
        scored = run_command("score", learnt_run, *flags)
        assert (evaluated[0], scored[0]) == (0, 0), (evaluated, scored)
        made[name] = evaluated[1], scored[1], out.read_text("utf-8")
    assert made["blanks"] == made["clean"]


@pytest.mark.slow
def test_attention_reads_lines_alike(learnt_run, lesson, run_command, tmp_path):
    source, target = lesson[1]
    said = []
    for i, change in enumerate((str, lambda text: f" \u3000{apart(text)}\u00a0")):
        page = tmp_path / f"{i}.html"
        flags = ("--target", change(target), "--output", page, "--json")
        assert run_command("attention", learnt_run, change(source), *flags)[0] == 0
        said.append(json.loads(page.with_suffix(".json").read_text()))
    assert said[0] == said[1]


def test_a_run_says_how_its_text_is_prepared(tmp_path):
    def directory(name, **fields):
        run = RunDirectory.create(tmp_path / name)
        run.write(run.config, {"model": {}, **fields})
        run.tokenizer.write_text("{}")
        return run.path

    text = " este\u0301 \u3000"
    new = directory("new", data={"read": {"normalization": "nfc", "source_prefix": "en: "}})
    assert read_facts(new).preparation.source(text) == "en: esté"
    old = directory("old", data={"read": {"lowercase": True}})
    assert read_facts(old).preparation.source(text) == "este\u0301"
    lines = directory("lines", data={"read": {"documents": "line", "lowercase": False}})
    assert read_facts(lines).preparation.text(" a \r\n") == " a "


def test_pairs_of_python_are_prepared_as_files_are():
    texts = ["este\u0301 aqui\u3000", "um"]
    pairs = [(texts[0], " here\n"), (texts[1], "one"), ("", "empty")]
    tokenizer = train_tokenizer("characters", [*texts, "here one é"], 40)
    config = tj.TransformerConfig(vocab_size=tokenizer.vocab_size, d_model=8)
    task = translation(pairs, config, tokenizer, read=ReadOptions())
    clean = Pairs(["esté aqui", "um"], ["here", "one"], "clean")
    wanted = translation(Splits(clean, None, {}), config, tokenizer)
    assert task.train.fingerprint == wanted.train.fingerprint
    assert task.settings.data.read.normalization == "nfc"
    plain = train_tokenizer("characters", [*texts, "here one"], 40, normalization="none")
    kept = translation(pairs, config, plain, read=ReadOptions())
    assert kept.settings.data.read.normalization == "none"
