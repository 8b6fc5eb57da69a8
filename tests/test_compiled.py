"""Compiled programs are kept for the next start, and only where they may be."""

import os
import subprocess
import sys

import pytest

from transformer_jax import compiled


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """As before JAX is imported, with a folder of its own."""
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_second_start_finds_what_the_first_compiled(tmp_path):
    code = (
        "from transformer_jax.compiled import keep_compiled\n"
        "folder = keep_compiled()\n"
        "import os; os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'\n"
        "import jax\n"
        "print(jax.jit(lambda x: jax.numpy.sin(x @ x).sum())(jax.numpy.ones((9, 9))))\n"
        "print(sorted((p.name, p.stat().st_mtime_ns) for p in folder.glob('jit__lambda*-cache')))\n"
    )
    settings = os.environ | {"TRANSFORMER_JAX_CACHE": str(tmp_path)}
    settings.pop("JAX_COMPILATION_CACHE_DIR", None)
    how = {"env": settings, "capture_output": True, "text": True, "check": True}
    first, second = (subprocess.run([sys.executable, "-c", code], **how) for _ in range(2))
    assert first.stdout == second.stdout
    assert "jit__lambda" in first.stdout


def test_nothing_is_kept_where_it_is_not_wanted(fresh, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", "off")
    assert compiled.keep_compiled() is None
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(fresh))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    assert compiled.keep_compiled() is None
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setitem(sys.modules, "jax", os)
    assert compiled.keep_compiled() is None
    assert not fresh.exists()


def test_a_folder_that_cannot_be_written_is_no_error(fresh):
    fresh.write_text("a file")
    assert compiled.keep_compiled() is None
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_the_oldest_go_when_there_is_too_much(fresh, monkeypatch):
    folder = compiled.keep_compiled()
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    for age, name in enumerate(("old", "middle", "new")):
        (folder / name).write_bytes(b"x" * 10)
        os.utime(folder / name, (age, age))
    monkeypatch.setattr(compiled, "_MOST", 25)
    assert compiled.keep_compiled() == folder
    assert sorted(path.name for path in folder.iterdir()) == ["middle", "new"]
