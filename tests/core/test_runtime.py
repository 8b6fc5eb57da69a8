"""Compiled programs are kept for the next start, and only where they may be."""

import ast
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from transformer_jax.core import runtime
from transformer_jax.core.runtime import multiplies_bfloat16
from transformer_jax.models.config import ComputeConfig
from transformer_jax.recipes.driver import warn_slow_bfloat16


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """The state before JAX is imported, with a folder of its own."""
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_a_second_start_finds_what_the_first_compiled(tmp_path, late):
    compiled_before = "import jax\njax.jit(lambda x: x + 1)(1)\n" if late else ""
    code = (
        f"{compiled_before}import os\n"
        "os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'\n"
        "from transformer_jax.core.runtime import enable_compilation_cache\n"
        "folder = enable_compilation_cache()\n"
        "assert enable_compilation_cache() is None\n"
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


_CALL = """
import jax, transformer_jax as tj
compiled = []
jax.monitoring.register_event_listener(
    lambda event, **_: "cache_misses" in event and compiled.append(event)
)
tj.enable_compilation_cache()
text = tj.load("runs/packed").generate("the red dog", max_new_tokens=2)
print([text, len(compiled)])
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing_for_its_first_call(tmp_path):
    with tarfile.open(Path(__file__).parents[1] / "stored/runs.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    settings = os.environ | {
        "TRANSFORMER_JAX_CACHE": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(Path(runtime.__file__).parents[2]),
    }
    settings.pop("JAX_COMPILATION_CACHE_DIR", None)
    how = {"env": settings, "cwd": tmp_path, "capture_output": True, "text": True, "check": True}
    first, second = (
        ast.literal_eval(subprocess.run([sys.executable, "-c", _CALL], **how).stdout)
        for _ in range(2)
    )
    assert first[0] == second[0]
    assert first[1] > 0 == second[1]


def test_nothing_is_kept_where_it_is_not_wanted(fresh, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", "off")
    assert runtime.enable_compilation_cache() is None
    monkeypatch.setenv("TRANSFORMER_JAX_CACHE", str(fresh))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    assert runtime.enable_compilation_cache() is None
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    configured = SimpleNamespace(config=SimpleNamespace(jax_compilation_cache_dir="elsewhere"))
    monkeypatch.setitem(sys.modules, "jax", configured)
    assert runtime.enable_compilation_cache() is None
    assert not fresh.exists()


def test_a_folder_that_cannot_be_written_is_no_error(fresh):
    fresh.write_text("a file")
    assert runtime.enable_compilation_cache() is None
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_the_oldest_go_when_there_is_too_much(fresh, monkeypatch):
    folder = runtime.enable_compilation_cache()
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    for age, name in enumerate(("old", "middle", "new")):
        (folder / name).write_bytes(b"x" * 10)
        os.utime(folder / name, (age, age))
    monkeypatch.setattr(runtime, "_MOST", 25)
    assert runtime.enable_compilation_cache() == folder
    assert sorted(path.name for path in folder.iterdir()) == ["middle", "new"]


def test_programs_that_cannot_be_read_are_removed_so_that_the_next_start_says_nothing(
    tmp_path, monkeypatch
):
    names = ("jit_step-1-cache", "jit_step-2-cache", "jit_steps-1-cache", "f-1.program")
    for name in names:
        (tmp_path / name).touch()
    said = "Error reading persistent compilation cache entry for 'jit_step': error: bad"
    monkeypatch.setattr(runtime, "_programs", None)  # a cache of the user's
    assert runtime.remove_unreadable(said) == ""
    monkeypatch.setattr(runtime, "_programs", tmp_path)
    assert runtime.remove_unreadable("jit_step is slow") == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert str(tmp_path) in runtime.remove_unreadable(said)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[2:])


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [("fpu avx512_bf16", False), ("amx_bf16 amx_tile avx512_bf16", True), (None, None)],
)
def test_units_for_bfloat16_are_told_by_the_processor(tmp_path, flags, wanted, capsys):
    path = tmp_path / "cpuinfo"
    path.write_text("model name: a\n" + (f"flags\t: {flags}\n" * 2 if flags else ""))
    assert multiplies_bfloat16(path) is wanted
    assert multiplies_bfloat16(tmp_path / "none") is None
    narrow = ComputeConfig(dtype="bfloat16")
    warn_slow_bfloat16(narrow, "cpu", wanted)
    warn_slow_bfloat16(narrow, "gpu", wanted)
    warn_slow_bfloat16(ComputeConfig(), "cpu", wanted)
    said = capsys.readouterr().err
    assert said.count("\n") == said.count("this CPU has no amx_bf16") == (wanted is False)
