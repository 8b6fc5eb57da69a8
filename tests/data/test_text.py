"""Lines agree with ``wc -l``, and what is not text is refused with file and line."""

import gzip
import io
import itertools
import os
import subprocess
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.core.errors import DataError
from transformer_jax.data.text import decode_lines, read_lines

# At each of these str.splitlines would cut; none of them ends a line here.
SEPARATORS = {
    "CR": "\r",
    "VT": "\x0b",
    "FF": "\x0c",
    "FS": "\x1c",
    "GS": "\x1d",
    "RS": "\x1e",
    "NEL": "\x85",
    "LS": "\u2028",
    "PS": "\u2029",
}
OTHERS = {"TAB": "\t", "BEL": "\x07", "US": "\x1f", "NBSP": "\xa0", "BOM inside": "\ufeff"}


def wc(path):
    return int(
        subprocess.run(["wc", "-l", path], capture_output=True, check=True).stdout.split()[0]
    )


@pytest.mark.parametrize("name", [*SEPARATORS, *OTHERS])
def test_no_odd_character_splits_a_line(tmp_path, name):
    for place in ("a{}b", "{}a", "a{}", "{}", "{0}{0}"):
        text = place.format({**SEPARATORS, **OTHERS}[name])
        path = tmp_path / "text"
        path.write_bytes(f"before\n{text}\nafter\n".encode())
        lines = list(read_lines(path))
        assert len(lines) == wc(path) == 3, place
        kept = text.removesuffix("\r")  # CRLF
        assert lines == ["before", kept, "after"], place


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"))))
def test_reading_is_the_inverse_of_writing(texts):
    raw = [f"{text}\n".encode() for text in texts]
    wanted = [text.removesuffix("\r") for text in texts]
    if wanted:
        wanted[0] = wanted[0].removeprefix("\ufeff")
    assert list(decode_lines(raw, "example")) == wanted


def test_a_last_line_without_an_end_counts(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"one\ntwo\r")
    assert list(read_lines(path)) == ["one", "two"]
    path.write_bytes(b"")
    assert list(read_lines(path)) == []
    path.write_bytes(b"\n")
    assert list(read_lines(path)) == [""]


def test_crlf_and_a_byte_order_mark_leave_no_trace(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\xef\xbb\xbftwo\r\r\n")
    assert list(read_lines(path)) == ["one", "\ufefftwo\r"]


@pytest.mark.parametrize(
    ("line", "column"),
    [
        (b"caf\xe9", 4),  # Latin-1
        (b"\xff\xfea", 1),
        (b"ok \xed\xa0\x80", 4),  # a surrogate
        (b"ok \xc0\xaf", 4),  # an over-long form
        (b"cut \xf0\x9f\x98", 5),
        (b"\xf5\x80\x80\x80", 1),  # beyond U+10FFFF
    ],
)
def test_invalid_utf8_is_named_by_file_and_line(tmp_path, line, column):
    path = tmp_path / "text"
    path.write_bytes(b"fine\n\n" + line + b"\nfine\n")
    with pytest.raises(DataError, match=rf"text:3: not UTF-8 .* column {column}\)") as error:
        list(read_lines(path))
    assert "\n" not in str(error.value)


def test_nul_is_refused_by_file_and_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"fine\na\0b\n")
    with pytest.raises(DataError, match="text:2: a NUL"):
        list(read_lines(path))
    path.write_bytes("UTF-16\n".encode("utf-16-be"))
    with pytest.raises(DataError, match="text:1: a NUL"):
        list(read_lines(path))


def test_gzip_is_unpacked_and_a_cut_one_refused(tmp_path):
    lines = [f"line {i} \u2028 x" for i in range(5000)]
    whole = gzip.compress("\n".join(lines).encode())
    path = tmp_path / "text.gz"
    path.write_bytes(whole)
    assert list(read_lines(path)) == lines
    for cut in (len(whole) // 2, len(whole) - 1, 15):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"text\.gz: the \.gz is cut or damaged"):
            list(read_lines(path))
    contents = [b"not gzip at all"]
    for place in range(10, len(whole), len(whole) // 40):
        damaged = bytearray(whole)
        damaged[place] ^= 0x55
        contents.append(bytes(damaged))
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"text\.gz"):
            list(read_lines(path))


def test_a_missing_file_or_a_folder_names_the_setting(tmp_path):
    with pytest.raises(DataError, match=r"data\.source .*absent: no such file"):
        list(read_lines(tmp_path / "absent", "data.source"))
    with pytest.raises(DataError, match=r"data\.source .*: this is a folder"):
        list(read_lines(tmp_path, "data.source"))


@pytest.mark.parametrize(
    ("byte", "message"), [(b"a", "longer than 1 MiB: this is not text in"), (b"\0", "a NUL")]
)
def test_a_line_without_an_end_is_refused_before_it_fills_memory(
    tmp_path, monkeypatch, byte, message
):
    monkeypatch.setattr("transformer_jax.data.text._LONGEST_LINE", 1 << 20)
    with gzip.open(tmp_path / "same.gz", "wb", compresslevel=1) as file:
        for _ in range(32):
            file.write(byte * (1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=rf"same\.gz:1: {message}"):
            list(read_lines(tmp_path / "same.gz"))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_the_longest_line_is_read_and_no_longer_one(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_jax.data.text._LONGEST_LINE", 1 << 20)
    path = tmp_path / "long"
    for end in (b"", b"\n", b"\nc\n"):
        path.write_bytes(b"a\n" + b"b" * (1 << 20) + end)
        assert list(read_lines(path))[:2] == ["a", "b" * (1 << 20)]
        path.write_bytes(b"a\n" + b"b" * ((1 << 20) + 1) + end)
        lines = read_lines(path)
        assert next(lines) == "a"
        with pytest.raises(DataError, match=r"long:2: longer than"):
            next(lines)


def test_a_corpus_of_one_line_is_read(tmp_path):
    """text8 has 100 MB without a line end."""
    path = tmp_path / "text8"
    path.write_bytes(b" anarchism originated" * 5_000_000)
    [line] = read_lines(path)
    assert len(line) == 105_000_000


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1 << 16])
def test_lines_do_not_depend_on_the_blocks_that_are_read(monkeypatch, size):
    monkeypatch.setattr("transformer_jax.data.text._BLOCK", size)
    raw = b"\xef\xbb\xbfone\r\n\n\nte\xc3\xa9\r\r\n\xe6\x97\xa5 \xe2\x80\xa8x\n\r\nlast\r"
    wanted = ["one", "", "", "te\xe9\r", "\u65e5 \u2028x", "", "last"]
    assert list(decode_lines(io.BytesIO(raw), "example")) == wanted
    for bad, message in ((b"a\xff", "not UTF-8 .* column 2"), (b"ab\0", "a NUL .* column 3")):
        lines = decode_lines(io.BytesIO(raw + b"\n" + bad + b"\nmore\n"), "example")
        assert list(itertools.islice(lines, 7)) == wanted
        with pytest.raises(DataError, match=rf"example:8: {message}"):
            next(lines)


def test_a_line_of_a_pipe_is_read_when_it_is_complete():
    reader, writer = os.pipe()
    with open(reader, "rb") as file, open(writer, "wb", buffering=0) as out:
        lines = decode_lines(file, "<stdin>")
        out.write(b"one\ntw")
        assert next(lines) == "one"
        out.write(b"o\nthree")
        assert next(lines) == "two"
        out.close()
        assert list(lines) == ["three"]


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (gzip.compress(b"one\n"), r"a \.gz archive: give it a name that ends in \.gz"),
        (b"PK\x03\x04\x14\0\0\0xl/workbook.xml\n", "a zip archive or a workbook"),
        (
            "one\ntwo\n".encode("utf-16"),
            r"UTF-16: convert it to UTF-8 \(iconv -f utf-16 -t utf-8\)",
        ),
        (b"\xfe\xff\0o", "UTF-16: convert it to UTF-8"),
    ],
    ids=["gzip", "zip", "utf-16-le", "utf-16-be"],
)
def test_a_file_that_is_no_plain_text_is_called_what_it_is(raw, kind):
    with pytest.raises(DataError, match=rf"^a\.tsv:1: not text in UTF-8, but {kind}"):
        list(decode_lines(io.BytesIO(raw), "a.tsv"))
