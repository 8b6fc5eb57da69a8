"""``evaluate`` has the names of ``train`` for its data."""

import json
import shutil

import pytest

from transformer_jax.cli.main import main
from transformer_jax.runs.run_directory import RunDirectory


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
