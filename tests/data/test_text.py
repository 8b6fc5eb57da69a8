"""Lines agree with ``wc -l``, and what is not text is refused with file and line."""

import gzip
import subprocess
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.data.text import decode_lines, read_lines
from transformer_jax.errors import DataError

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


def test_a_line_without_an_end_is_refused_before_it_fills_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_jax.data.text._LONGEST_LINE", 1 << 20)
    with gzip.open(tmp_path / "zeros.gz", "wb", compresslevel=1) as file:
        for _ in range(32):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"zeros\.gz:1: longer than 1 MiB: this is no text of"):
            list(read_lines(tmp_path / "zeros.gz"))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    (tmp_path / "long").write_bytes(b"a\n" + b"b" * (1 << 20) + b"\n")
    with pytest.raises(DataError, match=r"long:2: longer than"):
        list(read_lines(tmp_path / "long"))
