"""Files that commands read and write: pipes, links, devices, full disks, signals."""

import gzip
import io
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.cli.main import main
from transformer_jax.cli.output import TextOutput
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.output_files import Destination
from transformer_jax.data.text import check_readable, open_bytes, read_lines
from transformer_jax.inference.encoding.saving import VectorFile

LINE = b"x" * 99 + b"\n"


@pytest.fixture
def pipe():
    """The name of a pipe with a text in it, as the shell makes one of ``<(command)``."""
    handles = []

    def made(text):
        reader, writer = os.pipe()
        handles.append(reader)
        os.write(writer, text.encode())
        os.close(writer)
        return Path(f"/dev/fd/{reader}")

    yield made
    for handle in handles:
        os.close(handle)


@pytest.fixture
def full_disk():
    """No file grows beyond 5,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_text(path):
    with TextOutput(path) as out:
        out.write(b"one\n")


def write_vectors(path):
    with VectorFile(path) as file:
        file.add(np.ones((1, 2), np.float32))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def read_back(path):
    if path.suffix == ".npz":
        return np.load(path)["vectors"].sum()
    return gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()


# What is read


def test_what_is_checked_is_still_there(pipe, tmp_path):
    source = pipe("a\nb\n")
    check_readable(source)
    assert list(read_lines(source)) == ["a", "b"]
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    for path, says in (
        (tmp_path / "none", "--input .*: no such file"),
        (tmp_path, "--input .*: this is a folder"),
        (tmp_path / "latin", ":1: not UTF-8"),
        ("/dev/zero", "it is a device"),
    ):
        with pytest.raises(DataError, match=says):
            check_readable(path, "--input")


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["translate", "{run}", "--input", "{pipe}", "--num-beams", "1"], 3),
        (["embed", "{run}", "{pipe}", "--output", "{tmp}/vectors.npz"], None),
        (["semantic-search", "{run}", "{pipe}", "Lucas"], 3),
        (["score", "{run}", "--source", "{pipe}", "--target", "{other}"], 4),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
@pytest.mark.quick("translate-", "embed-")
def test_pipes_are_read_from_their_first_line(
    trained_run, lesson, run_command, pipe, tmp_path, arguments, lines
):
    sources, targets = ("".join(f"{pair[i]}\n" for pair in lesson[:2]) for i in (0, 1))
    names = {"run": trained_run, "pipe": pipe(sources), "other": pipe(targets), "tmp": tmp_path}
    code, out, err = run_command(*(word.format(**names) for word in arguments))
    assert code == 0, err
    if lines is None:
        assert np.load(tmp_path / "vectors.npz")["vectors"].shape[0] == 2
    else:
        assert len([line for line in out if line]) == lines - (arguments[0] == "translate")


def test_paths_that_cannot_be_looked_at_are_refused(tmp_path):
    long = Path(*["x" * 200] * 25)
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        open_bytes(long)
    with pytest.raises(ConfigError, match="cannot be written: File name too long"):
        write_text(tmp_path / long)
    with pytest.raises(ConfigError, match="cannot be written: File name too long"):
        write_vectors(tmp_path / long / "a.npz")


# What is written


@pytest.mark.parametrize(
    ("name", "write"),
    [("out", write_text), ("out.gz", write_text), ("out.npz", write_vectors),
     ("out.safetensors", write_vectors)],
    ids=["text", "gz", "npz", "safetensors"],
)  # fmt: skip
def test_links_stay_and_files_keep_their_permissions(tmp_path, name, write):
    held, link, dangling = tmp_path / "held" / name, tmp_path / name, tmp_path / f"x{name}"
    held.parent.mkdir()
    held.write_text("old")
    held.chmod(0o640)
    link.symlink_to(Path("held") / name)
    dangling.symlink_to(tmp_path / "new" / name)
    for path in (link, dangling):
        write(path)
        assert path.is_symlink()
    assert held.stat().st_mode & 0o777 == 0o640
    if name != "out.safetensors":
        assert read_back(held) == read_back(tmp_path / "new" / name) != b"old"
    assert names(held.parent) == names(tmp_path / "new") == [name]


def test_devices_pipes_and_open_files_are_written_directly(tmp_path, capfd):
    for name in ("stdout", "null", "full"):
        assert Destination(Path("/dev") / name).draft is None
    # Links as /dev/stdout is one: a mistake here must not replace those of the machine.
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to("/proc/self/fd/1")
    other.symlink_to("link")
    for path in (link, other):
        write_text(path)
        assert path.is_symlink()
    assert capfd.readouterr().out == "one\none\n"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    write_text(fifo)
    assert os.read(reader, 99) == b"one\n"
    os.close(reader)
    assert fifo.is_fifo()
    assert names(tmp_path) == ["fifo", "link", "other"]
    with pytest.raises(ConfigError, match="cannot be written: No space left"):
        write_text(Path("/dev/full"))


def test_an_open_file_goes_on_where_it_is(tmp_path):
    """Standard output appends like ``>>`` of a shell: the file and its content stay."""
    log = tmp_path / "log"
    log.write_text("before\n")
    with log.open("ab") as file:
        write_text(Path(f"/dev/fd/{file.fileno()}"))
        file.write(b"after\n")
    assert log.read_text() == "before\none\nafter\n"
    assert names(tmp_path) == ["log"]


def test_what_is_no_file_is_refused(tmp_path):
    loop = tmp_path / "loop.npz"
    loop.symlink_to(loop)
    (tmp_path / "folder.npz").mkdir()
    os.mkfifo(tmp_path / "fifo.npz")
    for name in ("loop.npz", "folder.npz", "fifo.npz"):
        with pytest.raises(ConfigError, match=r"--output .*: this is not a regular file"):
            VectorFile(tmp_path / name)
    with pytest.raises(ConfigError, match=r"--output .*: cannot be written: Too many levels"):
        write_text(loop)
    assert loop.is_symlink()


@pytest.mark.parametrize("count", [3, 200], ids=["when it is closed", "while lines are written"])
def test_a_full_disk_leaves_what_was_written(tmp_path, capsys, full_disk, count):
    def filled():
        with TextOutput(tmp_path / "out") as out:
            for _ in range(count):
                out.write(LINE * 20)

    with pytest.raises(ConfigError, match="cannot be written: File too large"):
        filled()
    assert names(tmp_path) == ["out.partial"]
    assert (tmp_path / "out.partial").read_bytes() == LINE * 50
    said = f"wrote {tmp_path}/out.partial: incomplete output\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
@pytest.mark.parametrize("rows", [800, 100_000])
def test_a_full_disk_leaves_no_vectors(tmp_path, full_disk, name, rows):
    with pytest.raises(ConfigError, match="cannot be written: File too large"):  # noqa: SIM117
        with VectorFile(tmp_path / name) as file:
            file.add(np.ones((rows, 2), np.float32))
    assert names(tmp_path) == []


def test_a_draft_that_cannot_be_renamed_is_named(tmp_path, capsys):
    (tmp_path / "out.partial").mkdir()

    def stopped():
        with TextOutput(tmp_path / "out") as out:
            out.write(b"one\n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    [draft] = set(names(tmp_path)) - {"out.partial"}
    assert f"wrote {tmp_path / draft}: 1 line, incomplete output" in capsys.readouterr().err


def test_a_reader_of_a_pipe_that_goes_away_is_no_mistake():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with pytest.raises(BrokenPipeError):
            write_text(Path(f"/dev/fd/{writer}"))
    finally:
        os.close(writer)


class Stopping(io.BytesIO):
    """Lines, before the second of which the process is told to stop."""

    def read1(self, size=-1):
        if self.tell():
            signal.raise_signal(signal.SIGTERM)
        return self.readline(size)


def test_a_command_that_is_stopped_keeps_what_it_wrote(
    trained_run, lesson, tmp_path, monkeypatch, capsysbinary
):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Stopping(f"{lesson[0][0]}\nb\n".encode())))
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # rather than the end of all tests
    ours = signal.getsignal(signal.SIGTERM)
    try:
        flags = ["--num-beams", "1", "--buffer-size", "1", "--output", str(tmp_path / "out")]
        code = main(["translate", str(trained_run), *flags])
        after = signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (code, after) == (143, ours)
    assert names(tmp_path) == ["out.partial"]
    assert (tmp_path / "out.partial").read_text() == f"{lesson[0][1]}\n"
    wrote, said = capsysbinary.readouterr().err.decode().splitlines()
    assert wrote.startswith(f"wrote {tmp_path}/out.partial: 1 line, incomplete output")
    assert said == "stopped by a signal"
