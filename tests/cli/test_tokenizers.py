"""Commands about tokens: rows B21 and B22."""

import json

import pytest

from transformer_jax.cli.main import main
from transformer_jax.data.tokenizer import train_tokenizer

TEXT = "the cat sat on the mat\nthe dog sat on the log\n\nthe cat met the dog\n"
PETER = "Peter Piper picked a peck of pickled peppers"


@pytest.fixture
def file(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def test_tokens_of_texts_are_printed_with_their_ids(tmp_path, capfd):
    tokenizer = train_tokenizer("words", TEXT.splitlines(), 20)
    tokenizer.save(tmp_path / "tokenizer.json")
    assert main(["tokenize", str(tmp_path / "tokenizer.json"), "the cat", "a dog"]) == 0
    out = capfd.readouterr().out
    ids = [*tokenizer.encode("the cat"), *tokenizer.encode("a dog")]
    names = ("the", "cat", "<unk>", "dog")
    texts = (1, 1, 2, 2)
    rows = [f"{n}\t{id}\t{name}" for n, id, name in zip(texts, ids, names, strict=True)]
    assert out.splitlines() == ["text\tid\ttoken", *rows]


def test_texts_of_a_run_have_its_tokens(decoder_run, capfd):
    assert main(["tokenize", str(decoder_run), "ab"]) == 0
    assert [row.split("\t")[2] for row in capfd.readouterr().out.splitlines()[1:]] == ["a", "b"]


def test_b21_kinds_of_tokenizers_are_compared_on_a_text(file, tmp_path, capfd):
    (tmp_path / "test.txt").write_text("the cat met a frog\n")
    train_tokenizer("bytes", []).save(tmp_path / "tokenizer.json")
    assert main([
        *("compare-tokenizers", str(file), "--test", str(tmp_path / "test.txt")),
        *("--vocab-size", "300", "--json", str(tmp_path / "all.json")),
        *("--tokenizers", str(tmp_path / "tokenizer.json")),
    ]) == 0  # fmt: skip
    rows = json.loads((tmp_path / "all.json").read_text())
    out = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[1:]] == list(rows)
    assert rows["bytes"] == rows[str(tmp_path / "tokenizer.json")]
    assert {rows[kind]["tokens_per_byte"] for kind in ("bytes", "characters")} == {1.0}
    words = rows["words"]
    assert (words["tokens"], words["unknown"], words["restored"]) == (5, 2, 0)
    assert words["tokens_per_word"] == 1.0
    assert words["unknown_rate"] == 0.4
    assert (words["characters"], words["unknown_characters"]) == (14, 5)
    assert words["unknown_character_rate"] == 5 / 14
    assert "unknown tokens" in out[0]
    assert "unknown characters" in out[0]
    lossless = ("bpe", "unigram", "bytes")
    assert all(rows[kind]["unknown"] == 0 and rows[kind]["restored"] == 1 for kind in lossless)


def test_b22_merges_are_printed(capfd):
    assert main(["bpe-merges", PETER]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line[7:20].split() for line in lines[2:]] == [
        *(["p", "e", "4"], ["c", "k", "3"], ["e", "d", "2"], ["i", "ck", "2"], ["p", "ick", "2"]),
    ]
    assert lines[-1].endswith("P e t e r  P i pe r  pick ed  a  pe ck  o f  pick l ed  pe p pe r s")


@pytest.mark.slow
def test_b22_merges_are_drawn(tmp_path, capfd):
    for name in ("once", "twice"):
        assert main(["bpe-merges", PETER, "--output", str(tmp_path / f"{name}.svg")]) == 0
        assert f"wrote {tmp_path / name}.svg" in capfd.readouterr().err
    assert (tmp_path / "once.svg").read_bytes() == (tmp_path / "twice.svg").read_bytes()


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        (["tokenize", "nowhere", "a"], 4, "nowhere"),
        (["bpe-merges", "  "], 3, "the text is empty"),
        (["bpe-merges", "a", "--output", "a.bmp"], 2, "--output a.bmp: the name ends in .png"),
        (["compare-tokenizers", "none.txt"], 3, "none.txt"),
        (["compare-tokenizers", "{file}", "--vocab-size", "100"], 2, "260 to 16777216 are allowed"),
        (["compare-tokenizers", "{file}", "--kinds", "wordss"], 2, "did you mean words?"),
    ],
)
def test_mistakes_are_one_line(file, capfd, given, code, says):
    assert main([word.replace("{file}", str(file)) for word in given]) == code
    assert says in capfd.readouterr().err
