"""Word vectors on the command line: trained, asked, drawn; mistakes end in one line. Row B20."""

import json

import numpy as np
import pytest

from tests.word_vectors.planted import planted_text
from transformer_jax.cli import train_word_vectors
from transformer_jax.cli.main import main
from transformer_jax.word_vectors.embeddings import WordEmbeddings
from transformer_jax.word_vectors.formats import VECTORS, load_embeddings, save_embeddings

WORDS = ("france", "paris", "italy", "rome", "germany", "berlin")


@pytest.fixture
def vectors(tmp_path):
    rng = np.random.default_rng(0)
    countries, capital = rng.normal(size=(3, 16)), 2 * rng.normal(size=16)
    rows = np.array([x for one in countries for x in (one, one + capital)], np.float32)
    save_embeddings(WordEmbeddings(WORDS, rows), tmp_path / "vectors.txt", binary=False)
    return tmp_path / "vectors.txt"


def test_train_and_resume(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(planted_text(1500))
    small = ["--training.size", "8", "--training.epochs", "2", "--training.sample", "0"]
    assert train_word_vectors.main(["train", "text.txt", "--output", "out", *small]) == 0
    said = capfd.readouterr().err
    assert "7,500 words" in said
    assert "words/s" in said
    assert f"wrote out/{VECTORS}" in said
    made = load_embeddings(tmp_path / "out")
    assert made.size == 8
    assert main(["most-similar", "out", made.words[0], "--top", "2"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 2
    assert train_word_vectors.main(["resume", "out"]) == 0
    assert "out: all epochs are done" in capfd.readouterr().err
    assert train_word_vectors.main(["train", "text.txt", "--output", "out", *small]) == 2
    assert "--overwrite" in capfd.readouterr().err
    assert json.loads((tmp_path / "out/config.json").read_text())["training"]["epochs"] == 2


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        (["trian"], 2, "unknown command trian: did you mean train?"),
        (["train"], 2, "no text files: name one or more"),
        (["train", "none.txt"], 3, "none.txt: no such file"),
        (["train", "x", "--training.siez", "3"], 2, "did you mean --training.size"),
        (["train", "x", "--training.size", "0"], 2, "training.size is 0: at least 1"),
        (["train", "x", "--text.min-count", "0"], 2, "--text.min-count is 0: at least 1"),
        (["resume", "nowhere"], 4, "nothing to resume"),
    ],
)
def test_mistakes_of_training_end_in_one_line(tmp_path, capfd, monkeypatch, given, code, says):
    monkeypatch.chdir(tmp_path)
    assert train_word_vectors.main(given) == code
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert says in last
    assert not list(tmp_path.iterdir())


def test_an_analogy_is_answered_and_drawn(tmp_path, vectors, capfd):
    picture = tmp_path / "new" / "map.svg"
    given = ["analogy", str(vectors), "paris", "france", "italy", "--top", "2"]
    assert main([*given, "--output", str(picture)]) == 0
    rows = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert rows[0][0] == "rome"
    assert float(rows[0][1]) > float(rows[1][1])
    drawn = picture.read_text()
    assert all(f"<!-- {word} -->" in drawn for word in ("france", "paris", "italy", "rome"))


def test_a_file_of_questions_is_answered_by_section(tmp_path, vectors, capfd):
    questions = tmp_path / "questions.txt"
    questions.write_text(
        ": capitals\nFrance Paris Italy Rome\nItaly Rome Germany Berlin\nitaly rome spain madrid\n"
        ": wrong\nfrance paris italy berlin\n"
    )
    given = ["analogy", str(vectors), "--questions", str(questions)]
    assert main(given) == 0
    shown = capfd.readouterr()
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows[1:] == [
        ["capitals", "100.00%", "2", "2", "3"],
        ["wrong", "0.00%", "0", "1", "1"],
        ["total", "66.67%", "2", "3", "4"],
    ]
    assert "1 question not answered" in shown.err
    picture = tmp_path / "map.png"
    assert main([*given, "--section", "wrong", "--output", str(picture)]) == 0
    assert picture.stat().st_size > 1000
    assert len(capfd.readouterr().out.splitlines()) == 2


def test_similarity_files_are_answered(tmp_path, vectors, capfd):
    (tmp_path / "pairs.txt").write_text("paris\trome\t9\nparis\titaly\t1\nberlin\trome\t8\nx\ty\t1")
    assert main(["most-similar", str(vectors), "--pairs", str(tmp_path / "pairs.txt")]) == 0
    name, *numbers, _, _ = capfd.readouterr().out.splitlines()[1].split()
    assert name == "pairs.txt"
    assert float(numbers[0]) >= 0.5
    assert numbers[2] == "3"


def test_words_can_be_added_and_subtracted(vectors, capfd):
    assert main(["most-similar", str(vectors), "paris", "italy", "--without", "france"]) == 0
    assert capfd.readouterr().out.split()[0] == "rome"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["analogy", "V", "pariss", "france", "italy"], "did you mean paris?"),
        (["analogy", "V", "france", "paris"], "2 words: give three"),
        (["analogy", "V", "a", "b", "c", "--questions", "q"], "3 words: give three"),
        (["analogy", "V", "a", "b", "c", "--section", "s"], "add --questions"),
        (["analogy", "V", "a", "b", "c", "--top", "0"], "--top is 0: at least 1"),
        (["analogy", "V", "a", "b", "c", "--output", "x.pdf"], "the name ends in"),
        (["analogy", "none.bin", "a", "b", "c"], "none.bin: no such file"),
        (["analogy", "V", "--questions", "none.txt"], "none.txt: no such file"),
        (["most-similar", "V", "berlim"], "did you mean berlin?"),
        (["most-similar", "V"], "give either words"),
        (["most-similar", "V", "rome", "--pairs", "p"], "give either words"),
        (["most-similar", "V", "rome", "--limit", "0"], "--limit is 0: at least 1"),
        (["most-similar", "V", "--pairs", "p", "--without", "rome"], "--without needs words"),
    ],
)
def test_mistakes_end_in_one_line(vectors, capfd, given, says):
    code = main([str(vectors) if one == "V" else one for one in given])
    error = capfd.readouterr().err.strip()
    assert code in (2, 3)
    assert says in error
    assert "\n" not in error
