"""Files are read to their end; what has none is refused, soon."""

import os
import subprocess
import sys
import threading
import time

import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.data.documents import TextOptions, read_texts
from transformer_jax.data.files import open_file, read_file
from transformer_jax.data.sources import Files, PairData, ReadOptions, read_pairs, with_languages
from transformer_jax.data.text import read_lines
from transformer_jax.word_vectors.run import train_word_vectors


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("read", [open_file, read_file, lambda p: list(read_lines(p))])
def test_a_pipe_that_nobody_writes_to_is_refused_soon(pipe, read, monkeypatch):
    monkeypatch.setattr("transformer_jax.data.files._PATIENCE", 0.2)
    began = time.monotonic()
    with pytest.raises((OSError, DataError), match="it is a pipe"):
        read(pipe)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("size", [0, 3, 1 << 20])
@pytest.mark.parametrize("late", [0.0, 0.2])
def test_a_pipe_is_read_to_its_end_however_slow_its_writer(pipe, size, late):
    text = (b"abcdefg\n" * (size // 8 + 1))[:size]

    def write():
        time.sleep(late)
        with open(pipe, "wb") as out:
            time.sleep(late)
            out.write(text)

    thread = threading.Thread(target=write)
    thread.start()
    with open_file(pipe) as file:
        assert file.read() == text
    thread.join()


def test_what_a_shell_substitutes_is_a_file_like_any_other():
    code = "import sys; from transformer_jax.data.text import read_lines as r; [p] = sys.argv[1:]; "
    code += "print(*r(p), sep='+')"
    line = f"{sys.executable} -c \"{code}\" <(printf 'a\\nb\\n')"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("a+b\n", "")


def test_devices_folders_and_what_is_too_large_are_refused(tmp_path):
    for path, said in (("/dev/zero", "device"), (tmp_path, "directory")):
        with pytest.raises(OSError, match=said):
            open_file(path)
    assert read_file(os.devnull) == b""
    (tmp_path / "file").write_bytes(b"12345")
    assert read_file(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes, but at most 4 are allowed"):
        read_file(tmp_path / "file", 4)


def test_nothing_is_left_open(tmp_path):
    import gzip

    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a\nb\n"))
    before = len(os.listdir("/proc/self/fd"))
    assert list(read_lines(tmp_path / "a.gz")) == ["a", "b"]
    assert len(os.listdir("/proc/self/fd")) == before


def _word_vectors(path, folder):
    train_word_vectors([path], folder / "vectors")


def _lines(path, folder):
    read_texts(str(path), TextOptions(documents="line"))


def _named(path, folder):
    read_pairs(Files(pairs=(f"de-en={path}",)), ReadOptions(format="jsonl"))


def _both_ways(path, folder):
    read_pairs(Files(pairs=(f"de-en={path}", f"en-de={path}")), ReadOptions(format="tsv"))


def _languages(path, folder):
    with_languages(PairData(pairs=str(path), read=ReadOptions(format="jsonl")))


@pytest.mark.parametrize("read", [_word_vectors, _lines, _named, _both_ways, _languages])
def test_a_pipe_is_refused_where_a_file_is_read_more_than_once(tmp_path, read):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out:
        out.write("a\tb\n" * 9)
    with pytest.raises(DataError, match="a pipe or a device, and this is read more than once: cop"):
        read(f"/dev/fd/{reader}", tmp_path)
    os.close(reader)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("read", [open_file, read_file])
@pytest.mark.parametrize(("name", "reason"), [("\ud800", "half a character"), ("a\0b", "NUL")])
def test_a_name_that_no_file_has_is_refused(read, name, reason):
    with pytest.raises(OSError, match=f"the name holds {reason}"):
        read(name)
