"""Drafts name their process, and the next writer removes the drafts of dead processes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.core.output_files import (
    Destination,
    draft_file,
    draft_folder,
    draft_path,
    is_draft,
    remove_dead_drafts,
    replace_folder,
    restore_folder,
)
from transformer_jax.core.processes import process_started

LEAVE = """
import os, signal
from pathlib import Path
from transformer_jax.core.output_files import Destination, draft_file, draft_folder
os.chdir({folder!r})
with draft_folder(Path("model")) as folder, draft_file(Path("text")) as file:
    (folder / "part").write_bytes(b"x" * 4096)
    file.write_bytes(b"half")
    with Destination(Path("table")).open() as table:
        table.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """A folder in which a process was killed while it wrote a folder and two files."""
    folder = tmp_path_factory.mktemp("left")
    done = subprocess.run([sys.executable, "-c", LEAVE.format(folder=str(folder))], check=False)
    assert done.returncode == -9
    assert len(names(folder)) == 3
    assert all(map(is_draft, names(folder)))
    return folder


def test_the_next_writer_of_a_target_removes_what_a_killed_one_left(left, tmp_path):
    shutil.copytree(left, tmp_path, dirs_exist_ok=True)
    with draft_folder(tmp_path / "model") as draft:
        draft.rename(tmp_path / "model")
    assert sum(map(is_draft, names(tmp_path))) == 2
    with draft_file(tmp_path / "text") as draft:
        draft.write_text("all")
    with Destination(tmp_path / "table").open():
        pass
    [own] = filter(is_draft, names(tmp_path))
    assert own.startswith(".table.")


def test_all_that_dead_processes_left_in_a_folder_goes_at_once(left, tmp_path):
    shutil.copytree(left, tmp_path, dirs_exist_ok=True)
    (tmp_path / ".kept.draft").write_text("the user's own")
    living = draft_path(tmp_path / "text")
    living.write_text("half")
    remove_dead_drafts(tmp_path)
    assert names(tmp_path) == sorted([".kept.draft", living.name])
    remove_dead_drafts(tmp_path / "missing")


def test_processes_of_other_machines_count_as_dead_after_a_day_without_a_write(tmp_path):
    own = draft_path(tmp_path / "a")
    parts = re.fullmatch(r"\.a\.([0-9a-f]{12})\.([0-9]+)\.(.*)\.[0-9]+\.draft", own.name)
    assert int(parts[2]) == os.getpid()
    assert parts[3] == process_started(os.getpid())
    drafts = {
        "reused number": f".a.{parts[1]}.{parts[2]}.12.0.draft",
        "parent": f".a.{parts[1]}.{os.getppid()}.{process_started(os.getppid())}.0.draft",
        "elsewhere": ".a.0123456789ab.7.12.0.draft",
        "elsewhere, silent": ".a.0123456789ab.8.12.0.draft",
        "elsewhere, written": ".a.0123456789ab.9.12.0.draft",
    }
    for name in drafts.values():
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "part").write_bytes(b"")
    for kind in ("elsewhere, silent", "elsewhere, written"):
        at = tmp_path / drafts[kind]
        for path in (at / "inner" / "part", at / "inner", at):
            os.utime(path, (1e9, 1e9))
    os.utime(tmp_path / drafts["elsewhere, written"] / "inner" / "part")
    remove_dead_drafts(tmp_path, "b")
    assert len(names(tmp_path)) == 5
    remove_dead_drafts(tmp_path, "a")
    kept = ("parent", "elsewhere", "elsewhere, written")
    assert names(tmp_path) == sorted(drafts[name] for name in kept)


def test_an_error_leaves_the_old_file_and_no_draft(tmp_path):
    (tmp_path / "text").write_text("old")

    def fail(draft):
        with draft as path:
            path.is_dir() or path.write_text("half")
            raise ValueError

    for draft in (draft_file(tmp_path / "text"), draft_folder(tmp_path / "model")):
        with pytest.raises(ValueError, match=r"^$"):
            fail(draft)
    assert names(tmp_path) == ["text"]
    assert (tmp_path / "text").read_text() == "old"


@pytest.mark.parametrize("name", ["x" * 255, "\udcff" * 200, "line\nend", "a.b.c"])
def test_any_name_that_a_file_can_have_has_drafts(name, tmp_path):
    with draft_file(Path(tmp_path, name)) as draft:
        draft.write_text("all")
        assert is_draft(draft.name)
        gone = draft.name.replace(f".{os.getpid()}.", ".4194305.", 1)
        (tmp_path / gone).write_text("half")
    assert len(names(tmp_path)) == 2
    with draft_file(Path(tmp_path, name)) as draft:
        draft.write_text("all")
    assert len(names(tmp_path)) == 1


REPLACE = """
import os, signal, sys
from pathlib import Path
from transformer_jax.core import output_files
os.chdir({folder!r})
kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
if {when!r} == "between":  # the old folder is away, the new one is not there yet
    rename = Path.rename
    Path.rename = lambda path, to: kill() if str(to) == "model" else rename(path, to)
else:
    output_files.shutil.rmtree = kill
with output_files.draft_folder(Path("model")) as draft:
    (draft / "weights").write_text("new")
    output_files.replace_folder(draft, Path("model"))
"""


@pytest.mark.parametrize(("when", "text"), [("between", "old"), ("after", "new")])
def test_a_folder_that_was_being_replaced_is_whole_again(tmp_path, when, text):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_text("old")
    program = REPLACE.format(folder=str(tmp_path), when=when)
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert (when == "after") == (tmp_path / "model").exists()
    restore_folder(tmp_path / "model")
    remove_dead_drafts(tmp_path)
    assert names(tmp_path) == ["model"]
    assert (tmp_path / "model/weights").read_text() == text


def test_a_folder_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    with draft_folder(tmp_path / "model") as draft:
        shutil.rmtree(draft)
        with pytest.raises(OSError, match="No such file"):
            replace_folder(draft, tmp_path / "model")
    assert names(tmp_path) == ["model"]
