"""``evaluate`` has the names of ``train`` for its data."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from transformer_jax.cli.evaluation import evaluation_flags
from transformer_jax.cli.flags import flags_of
from transformer_jax.cli.main import main
from transformer_jax.core.errors import ConfigError
from transformer_jax.recipes.registry import RECIPES, get_recipe
from transformer_jax.runs.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    pairs = [("o gato", "the cat"), ("a casa", "the house")]
    (folder / "s").write_text("".join(f"{source}\n" for source, _ in pairs))
    (folder / "t").write_text("".join(f"{target}\n" for _, target in pairs))
    (folder / "p.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    rows = (json.dumps({"source": source, "target": target}) for source, target in pairs)
    (folder / "p.jsonl").write_text("".join(f"{row}\n" for row in rows))
    return folder


def evaluate(run, capfd, *flags):
    code = main(["evaluate", str(run), "--num-beams", "1", *map(str, flags)])
    out, err = capfd.readouterr()
    return code, out, err


@pytest.mark.parametrize("recipe", [name for name in RECIPES if get_recipe(name).evaluation])
def test_a_wrong_value_is_refused_with_a_flag_of_the_command(recipe):
    kind = evaluation_flags(recipe)
    for name in {field.name for field in dataclasses.fields(kind)} - {"run", "mesh"}:
        with pytest.raises(ConfigError) as refused:
            kind(run="run", **{name: object()})
        flag = str(refused.value).partition(" ")[0]
        assert flag.removeprefix("--") in flags_of(kind)


def test_an_output_that_cannot_be_written_is_refused_before_any_work(
    trained_run, files, capfd, tmp_path
):
    for output in (tmp_path, files / "p.tsv" / "scores.txt", ""):
        with_output = ["--data.pairs", files / "p.tsv", "--output", output]
        code, out, err = evaluate(trained_run, capfd, *with_output)
        assert (code, out) == (2, "")
        assert err.startswith("error: --output ")


@pytest.mark.slow
def test_one_file_of_pairs_scores_as_two_files_do(trained_run, files, capfd):
    two = evaluate(trained_run, capfd, "--source", files / "s", "--target", files / "t")
    assert two[0] == 0
    assert "sacreBLEU" in two[1] or "BLEU" in two[1]
    for flags in (
        ["--data.source", files / "s", "--data.target", files / "t"],
        ["--data.pairs", files / "p.tsv"],
        ["--data.pairs", files / "p.jsonl"],
    ):
        assert evaluate(trained_run, capfd, *flags)[:2] == two[:2]


@pytest.mark.slow
def test_several_references_are_scored_as_by_sacrebleu(trained_run, files, tmp_path, capfd):
    # sacrebleu#28, fairseq#709; an empty line is no reference.
    metrics = pytest.importorskip("sacrebleu.metrics")
    out = tmp_path / "out.txt"
    (files / "s4").write_text("o gato\na casa\no gato\na casa\n")
    (files / "t4").write_text("the cat sits\nthe house\na tom cat\nmy home\n")
    evaluate(trained_run, capfd, "--source", files / "s4", "--target", files / "t4",
             "--output", out)  # fmt: skip
    texts = out.read_text().splitlines()
    second = [texts[0], "a building", "", texts[3]]
    (files / "u4").write_text("".join(f"{text}\n" for text in second))
    flags = ["--source", files / "s4", "--target", files / "t4", files / "u4"]
    code, shown, err = evaluate(trained_run, capfd, *flags)
    assert code == 0, err
    streams = [(files / "t4").read_text().splitlines(), second]
    bleu = metrics.BLEU()
    expected = bleu.corpus_score(texts, streams).score
    chrf = metrics.CHRF().corpus_score(texts, streams).score
    assert shown.startswith(f"sacreBLEU {expected:.1f} ({bleu.get_signature()}) chrF {chrf:.1f} ")
    (files / "short").write_text("one\n")
    code, _, err = evaluate(trained_run, capfd, *flags, files / "short")
    assert code == 3
    assert "aligned files must have equally many" in err


def test_pairs_come_in_one_way(trained_run, files, capfd):
    code, _, err = evaluate(
        trained_run, capfd, "--data.pairs", files / "p.tsv", "--source", files / "s"
    )
    assert code == 2
    assert "--data.pairs is one file of both sides: leave --source out" in err


def test_without_files_the_test_files_of_the_run_are_read(trained_run, files, tmp_path, capfd):
    given = evaluate(trained_run, capfd, "--source", files / "s", "--target", files / "t")
    code, _, err = evaluate(trained_run, capfd)
    assert code == 2
    assert "--source is missing" in err
    run = RunDirectory(shutil.copytree(trained_run, tmp_path / "run"))
    test = {"source": str(files / "s"), "target": str(files / "t")}
    run.write(run.config, run.read_config() | {"data": {"test": test}})
    assert evaluate(run.path, capfd) == given


@pytest.mark.parametrize("name", ["source", "target"])
def test_a_missing_file_is_named_by_its_flag(trained_run, files, name, capfd):
    flags = {"source": files / "s", "target": files / "t", name: "none.txt"}
    words = [word for flag, file in flags.items() for word in (f"--{flag}", file)]
    code, _, err = evaluate(trained_run, capfd, *words)
    assert code == 3
    assert f"error: --{name} none.txt: no such file" in err


@pytest.mark.slow
def test_sources_that_are_not_read_to_their_end_are_counted(trained_run, files, capfd):
    (files / "long").write_text("o gato\n" + "o gato " * 400 + "\n")
    code, _, err = evaluate(trained_run, capfd, "--source", files / "long", "--target", files / "t")
    assert code == 0
    assert err.count("1 of 2 lines exceeded ") == err.count(" tokens; end truncated") == 1
    code = main(["score", str(trained_run), "--source", str(files / "long"), "--target",
                 str(files / "t")])  # fmt: skip
    assert code == 0
    assert "1 of 2 lines exceeded " in capfd.readouterr().err


@pytest.mark.slow
def test_columns_fields_and_bad_rows_are_flags_of_evaluate_as_messages_advise(
    trained_run, files, capfd
):
    two = evaluate(trained_run, capfd, "--source", files / "s", "--target", files / "t")
    three, other = files / "three.tsv", files / "other.jsonl"
    rows = list(zip(*((files / name).read_text().splitlines() for name in "st"), strict=True))
    three.write_text("".join(f"{target}\tnote\t{source}\n" for source, target in rows) + "x\n")
    other.write_text("".join(json.dumps({"pt": s, "en": t}) + "\n" for s, t in rows))
    code, _, err = evaluate(trained_run, capfd, "--data.pairs", three)
    assert code == 3
    assert "choose two with data.read.columns" in err
    columns = ["--data.pairs", three, "--data.read.columns", "3", "1"]
    code, _, err = evaluate(trained_run, capfd, *columns)
    assert code == 3
    assert err.endswith("or leave out bad rows with --data.read.bad-rows skip\n")
    skipped = evaluate(trained_run, capfd, *columns, "--data.read.bad-rows", "skip")
    assert skipped[:2] == two[:2]
    assert "three.tsv: 1 bad row left out, such as" in skipped[2]
    assert "three.tsv: column not read: 2" in skipped[2]
    named = ["--data.pairs", other, "--data.read.fields", "pt", "en"]
    assert evaluate(trained_run, capfd, *named)[:2] == two[:2]


def test_evaluate_has_each_reading_option_that_a_message_of_its_readers_names():
    """Options that a run has, and that errors in its files advise, are flags."""
    option = re.compile(
        r"(?:name \w+ (?:with|by)|choose two with|give) (?:--)?data\.read\.([\w-]+)"
    )
    sources = "".join(path.read_text() for path in (ROOT / "transformer_jax/data").glob("*.py"))
    advised = {name.replace("-", "_") for name in option.findall(sources)}
    advised |= {"bad_rows", "text", "text_pair", "label", "tag", "image"}
    assert {"columns", "fields", "field", "format"} <= advised
    for recipe in map(get_recipe, RECIPES):
        read = getattr(getattr(recipe.config, "data", None), "read", None)
        # Recordings are scored all, or none.
        if recipe.evaluation is not None and read is not None and not recipe.reads_features:
            options = {field.name for field in dataclasses.fields(read)} & advised
            flags = {flag.replace("-", "_") for flag in flags_of(evaluation_flags(recipe.name))}
            assert {f"data.read.{one}" for one in options} <= flags, recipe.name
