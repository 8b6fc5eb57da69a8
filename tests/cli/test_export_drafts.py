"""Exports are whole or not there: they are written beside their place, and renamed."""

import pytest

from tests.parity import layouts
from transformer_jax.cli.export import Export
from transformer_jax.cli.main import main as command
from transformer_jax.core.output_files import is_draft


class Killed(BaseException):
    """The place where a process is killed."""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return layouts.write("vit", tmp_path_factory.mktemp("export") / "vit")


def test_an_export_that_is_killed_leaves_the_earlier_one(folder, tmp_path, monkeypatch):
    output = tmp_path / "out"
    assert command(["export", str(folder), str(output)]) == 0
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    left = []

    def kill(export, draft):
        (draft / "config.json").write_text("half")
        left.extend(names(tmp_path))
        raise Killed

    monkeypatch.setattr(Export, "write", kill)
    with pytest.raises(Killed):
        Export(folder, output, overwrite=True)()
    assert left[-1] == "out"
    assert is_draft(left[0])
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before
    assert names(tmp_path) == ["out"]


def test_drafts_of_dead_processes_are_removed_by_the_next_export(folder, tmp_path):
    """Drafts of version 0.1 too, which had the number of the process alone."""
    for name in (".out.4194305", ".out.kept", ".other.4194305"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert command(["export", str(folder), str(tmp_path / "out")]) == 0
    assert names(tmp_path) == [".other.4194305", ".out.kept", "out"]
