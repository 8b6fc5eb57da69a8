"""The collector of bad rows; its use by every reader is a border law, see ``tests/doors``."""

import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.documents import TextOptions, read_texts
from transformer_jax.data.images.picture_tables import read_images
from transformer_jax.data.labeled_files import LabeledOptions, read_sentences, read_tagged
from transformer_jax.data.sources import Files, ReadOptions, read_pairs
from transformer_jax.data.summaries import read_summaries


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


@pytest.mark.parametrize("lead", [0, 1, 2, 3])
def test_rows_after_a_line_that_is_not_text_are_read(tmp_path, monkeypatch, lead):
    """Whatever part of the line is read first."""
    monkeypatch.setattr("transformer_jax.data.text._BLOCK", 4)
    (tmp_path / "pairs.tsv").write_bytes(lead * b" " + b"one\tun\n\0\0\0\0\0\0\0\0\0\ntwo\tdeux\n")
    read = ReadOptions(bad_rows="skip")
    assert read_pairs(Files(pairs=str(tmp_path / "pairs.tsv")), read).sources == ["one", "two"]


ROWS = {
    "pairs": ('{"source": "a", "target": "b"}', lambda path: read_pairs(Files(pairs=path)).targets),
    "labels": ('{"text": "a", "label": "b"}', lambda path: read_sentences(path, "classify").labels),
    "tags": ('{"text": ["a"], "upos": ["b"]}', lambda path: read_tagged(path).tags[0]),
    "summaries": (
        '{"source": "a", "target": "b"}',
        lambda path: [one for [one] in read_summaries(path).references],
    ),
    "documents": ('{"text": "b"}', lambda path: [one.text for one in read_texts(path) if one.text]),
    "pictures": ('{"image": "a.png", "label": "b"}', lambda path: read_images(path).texts),
}


@pytest.mark.parametrize(("row", "read"), ROWS.values(), ids=list(ROWS))
def test_a_line_of_blanks_is_an_empty_one(tmp_path, row, read):
    (tmp_path / "a.jsonl").write_text(f"  \n{row}\n \t\n")
    assert read(str(tmp_path / "a.jsonl")) == ["b"]


@pytest.mark.parametrize("blank", ["", "  ", "\t", "\t\t"])
def test_an_empty_row_of_a_spreadsheet_is_an_empty_line(tmp_path, blank):
    (tmp_path / "a.tsv").write_text(f"text\tlabel\tnote\none\tx\t\n{blank}\ntwo\ty\t\n{blank}\n")
    assert read_sentences(str(tmp_path / "a.tsv"), "classify").texts == ["one", "two"]
    for suffix, mark in (("tsv", "\t"), ("csv", ",")):
        empty = blank.replace("\t", mark)
        rows = [f"file_name{mark}label{mark}", empty, f"a.png{mark}x{mark}", empty]
        (tmp_path / f"p.{suffix}").write_text("\n".join(rows))
        assert read_images(str(tmp_path / f"p.{suffix}")).texts == ["x"]


def test_lines_of_columns_and_tables_that_are_not_text_are_bad_rows(tmp_path):
    path = tmp_path / "a.conll"
    path.write_bytes(b"a X\nb Y\n\ncaf\xe9 X\nc Y\n\nd X\ne\n\nf X\n\0 Y\n\ng X\n")
    with pytest.raises(DataError, match=r"3 bad lines(.|\n)*:4: not(.|\n)*:8: 1(.|\n)*:11: a NUL"):
        read_tagged(str(path))
    found = read_tagged(str(path), LabeledOptions(bad_rows="skip"))
    assert found.words == [["a", "b"], ["g"]]
    assert found.lines == [[1, 2], [13]]
    table = tmp_path / "a.tsv"
    table.write_bytes(b"image\tlabel\na.png\tcaf\xe9\nb.png\nc.png\tx\n")
    with pytest.raises(DataError, match=r"2 bad rows(.|\n)*:2: not UTF-8(.|\n)*:3: 1 column"):
        read_images(str(table))


def test_a_setting_that_the_command_lacks_is_not_advised():
    bad = BadRows("a.tsv")
    with bad:
        raise DataError("a.tsv:1: empty")
    with pytest.raises(DataError, match=r"^a\.tsv:1: empty$"):
        bad.check(1)


def test_errors_of_other_kinds_are_no_bad_rows():
    with pytest.raises(KeyError), BadRows("a.tsv", "skip"):
        raise KeyError
