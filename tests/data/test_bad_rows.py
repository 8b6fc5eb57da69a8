"""The collector of bad rows; its use by every reader is a border law, see ``tests/doors``."""

import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.documents import TextOptions, read_texts
from transformer_jax.data.sources import Files, ReadOptions, read_pairs


def test_the_count_of_skipped_documents_is_in_the_summary_of_a_stream(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{\n[]\n')
    texts = read_texts(str(path), TextOptions(bad_rows="skip"))
    for _ in range(2):
        assert len(list(texts)) == 1
        assert texts.counts == {"bad": 2}


def test_nothing_follows_a_row_of_a_stream_that_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{\n{"text": "two"}\n[]\n')
    read = iter(read_texts(str(path)))
    assert next(read).text == "one"
    with pytest.raises(DataError, match="2 bad rows"):
        next(read)


def test_lines_that_are_not_text_are_bad_rows(tmp_path, capfd):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"one\tun\ncaf\xe9\tx\ntwo\tdeux\nthree\0\ttrois\n")
    with pytest.raises(DataError, match=r"2 bad rows(.|\n)*:2: not UTF-8(.|\n)*:4: a NUL"):
        read_pairs(Files(pairs=str(path)))
    pairs = read_pairs(Files(pairs=str(path)), ReadOptions(bad_rows="skip"))
    assert pairs.sources == ["one", "two"]
    assert "pairs.tsv: 2 bad rows left out, such as" in capfd.readouterr().err


def test_a_setting_that_the_command_lacks_is_not_advised():
    bad = BadRows("a.tsv")
    with bad:
        raise DataError("a.tsv:1: empty")
    with pytest.raises(DataError, match=r"^a\.tsv:1: empty$"):
        bad.check(1)


def test_errors_of_other_kinds_are_no_bad_rows():
    with pytest.raises(KeyError), BadRows("a.tsv", "skip"):
        raise KeyError
