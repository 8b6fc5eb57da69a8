"""A traced program on disk is read for exactly the calls that it was traced for, or not at all."""

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.test_language import greedy, model, written
from tests.decoding.test_translator import Letters, letter_model
from transformer_jax.cli.commands import import_modules
from transformer_jax.core import runtime
from transformer_jax.decoding import stored_programs
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.decoding.stored_programs import stored
from transformer_jax.decoding.translator import Translator
from transformer_jax.functional import layers
from transformer_jax.functional.kernels.choice import recorded_choices
from transformer_jax.functional.partitioning import on_mesh
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.settings import MeshConfig

X, GAIN = jnp.arange(6.0).reshape(2, 3), jnp.ones(3)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of programs, for a process that has one device."""
    monkeypatch.setattr(stored_programs.runtime, "program_folder", lambda: tmp_path)
    monkeypatch.setattr(stored_programs, "_is_one_cpu", lambda: True)
    return tmp_path


@pytest.fixture
def traced(monkeypatch):
    """A list with an element for each program that was traced and written."""
    times = []
    made = stored_programs._exported
    counted = lambda *arguments: times.append(1) or made(*arguments)
    monkeypatch.setattr(stored_programs, "_exported", counted)
    return times


def norm(x=X, gain=GAIN, *, parts=(), eps=0.5, **options):
    """The program, as another process would run it: nothing of an earlier call is known."""
    program = jax.jit(stored(layers.rms_norm, *parts), static_argnames="eps", **options)
    return program(x, gain, eps=eps)


def test_another_process_reads_what_the_first_traced(folder, traced):
    first = norm()
    [path] = folder.iterdir()
    os.utime(path, (1, 1))
    second = norm()
    assert len(traced) == len(list(folder.iterdir())) == 1
    assert path.stat().st_mtime > 1  # else it would be removed before what nobody uses
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, jax.jit(layers.rms_norm, static_argnums=2)(X, GAIN, 0.5))


def test_a_copy_of_the_folder_serves_as_well(folder, traced):
    norm()
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", str(folder / "copy"))
        norm()
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert len(traced) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"x": X[:1]},
        {"x": X.astype(jnp.bfloat16)},
        {"eps": 0.25},
        {"parts": (1,)},
        {"parts": (1.0,)},
        {"parts": (True,)},
        {"parts": ({"a": (1, None)},)},
        {"parts": ([np.zeros(2)],)},
        {"parts": (jnp.float32, layers.relu, jax.tree.structure((1, [2])))},
    ],
    ids=["rows", "dtype", "static", "1", "1.0", "True", "mapping", "array", "types"],
)
def test_another_argument_is_another_program(folder, traced, change):
    norm()
    norm(**change)
    norm(**change)
    assert len(traced) == len(list(folder.iterdir())) == 2


def test_other_settings_are_another_program(folder, traced, monkeypatch):
    norm()
    with jax.default_matmul_precision("float32"):
        norm()
    with jax.numpy_dtype_promotion("strict"):
        norm()
    monkeypatch.setattr(stored_programs, "_VERSIONS", {"jax": "another"})
    norm()
    monkeypatch.setattr(stored_programs, "_source", lambda: "edited")
    norm()
    assert len(traced) == len(list(folder.iterdir())) == 5


def test_an_edit_of_the_package_is_another_source(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_programs, "_PACKAGE", tmp_path)
    file = tmp_path / "deep" / "one.py"
    file.parent.mkdir(parents=True)

    def digest():
        return stored_programs._source.__wrapped__()

    found = {digest()}
    for text in ("a = 1", "a = 2", ""):
        file.write_text(text)
        found.add(digest())
    file.rename(file.with_name("two.py"))
    assert len(found | {digest()}) == 5


class Own:
    """A class of the user's."""


@pytest.mark.parametrize(
    "part", [Own, Own(), norm, lambda: 0, object(), {1: [Own()]}],
    ids=["class", "object", "function", "lambda", "of Python", "nested"],
)  # fmt: skip
def test_what_depends_on_code_of_the_user_is_traced(folder, traced, part):
    np.testing.assert_array_equal(norm(parts=(part,)), norm())
    assert len(traced) == len(list(folder.iterdir())) == 1


def test_where_nothing_may_be_stored_nothing_is(tmp_path, traced, monkeypatch):
    mesh, alone = make_mesh(MeshConfig()), jax.devices()[:1]
    monkeypatch.setattr(runtime, "_programs", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "devices", lambda: alone)
        norm()  # a program of the user's, which may have replaced functions of the package
    monkeypatch.setattr(runtime, "_package_alone", True)
    norm()  # tests have eight devices
    monkeypatch.setattr(jax, "devices", lambda: alone)
    with recorded_choices():
        norm()
    with on_mesh(mesh):
        norm()
    import_modules(["--import", "json"])
    norm()
    monkeypatch.setattr(runtime, "_package_alone", True)
    monkeypatch.setattr(runtime, "_programs", None)
    norm()
    assert not traced
    monkeypatch.setattr(runtime, "_programs", tmp_path)
    norm()
    assert traced


def damaged(path, kind):
    data = path.read_bytes()
    if kind == "shortened":
        path.write_bytes(data[:-1])
    elif kind == "changed":
        path.write_bytes(data[:99] + bytes([data[99] ^ 1]) + data[100:])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "of another program":
        norm(eps=0.125)
        [other] = set(path.parent.iterdir()) - {path}
        path.write_bytes(other.read_bytes())
    elif kind == "too large":
        with path.open("r+b") as file:
            file.truncate(stored_programs._LARGEST + 1)
    else:
        path.unlink()
        {
            "a pipe": os.mkfifo,
            "a folder": Path.mkdir,
            "a link": lambda path: path.symlink_to(path.with_name("target")),
        }[kind](path)


@pytest.mark.parametrize(
    "kind",
    ["shortened", "changed", "empty", "of another program", "too large", "a pipe", "a folder",
     "a link"],
)  # fmt: skip
def test_a_damaged_file_is_traced_again_and_replaced(folder, traced, kind):
    first = norm()
    [path] = folder.iterdir()
    good = path.read_bytes()
    target = folder / "target"
    target.write_bytes(b"precious")
    target.unlink() if kind != "a link" else None
    damaged(path, kind)
    traced.clear()
    np.testing.assert_array_equal(norm(), first)
    assert len(traced) == 1
    if kind != "a folder":
        assert path.is_file()
        assert not path.is_symlink()
        assert len(path.read_bytes()) == len(good)
        norm()
        assert len(traced) == 1
    if kind == "a link":
        assert target.read_bytes() == b"precious"


def test_a_file_that_no_program_can_be_read_from_is_harmless(folder, traced, monkeypatch):
    """Its digest is right, so a malicious user of the folder made it."""
    first = norm()
    [path] = folder.iterdir()
    seen = []
    digest = stored_programs._digest
    keep = lambda text, content: seen.append(text) or digest(text, content)
    monkeypatch.setattr(stored_programs, "_digest", keep)
    norm()
    for content in (b"x", b"\xff" * 64, bytes(4096)):
        path.write_bytes(digest(seen[0], content) + content)
        np.testing.assert_array_equal(norm(), first)


def test_a_folder_that_cannot_be_written_is_no_error(folder, traced, monkeypatch):
    monkeypatch.setattr(stored_programs.runtime, "program_folder", lambda: folder / "missing")
    np.testing.assert_array_equal(norm(), norm())
    assert len(traced) == 2


def test_several_may_write_at_once(folder, traced):
    results = []
    both = [threading.Thread(target=lambda: results.append(norm())) for _ in range(4)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(list(folder.iterdir())) == 1
    before = len(traced)
    for result in results:
        np.testing.assert_array_equal(result, norm())
    assert len(traced) == before


def test_what_a_trace_says_is_said_by_every_process(folder, traced, monkeypatch, caplog):
    def warns(x, gain, eps):
        logging.getLogger("transformer_jax.functional").warning("slow kernel")
        return x * gain[None]

    warns.__module__, warns.__qualname__ = layers.__name__, "rms_norm"
    monkeypatch.setattr(layers, "rms_norm", warns)
    for _ in range(3):
        caplog.clear()
        norm()
        assert "slow kernel" in caplog.text


def test_a_function_that_the_user_puts_into_a_table_is_called(folder, traced, monkeypatch):
    def active(x, gain, eps):
        return layers.ACTIVATIONS["relu"](x) * gain[None]

    active.__module__, active.__qualname__ = layers.__name__, "rms_norm"
    monkeypatch.setattr(layers, "rms_norm", active)
    np.testing.assert_array_equal(norm(), X)
    monkeypatch.setitem(layers.ACTIVATIONS, "relu", lambda x: -x)
    np.testing.assert_array_equal(norm(), -X)
    assert len(traced) == len(list(folder.iterdir())) == 1


def test_a_donated_argument_is_reused(folder, traced):
    for _ in range(2):
        x = X + 1
        norm(x, donate_argnums=0)
        assert x.is_deleted()
    assert len(traced) == 1


# --- Programs of models ---------------------------------------------------------------------------


def translator():
    return Translator(letter_model(), Letters())


def searches(made):
    lines = ["abc", "bcdefgh", "c"]
    yield [one.hypotheses for one in made.translate(lines)]
    yield [one.hypotheses for one in made.translate(lines, TRANSLATION.changed(num_beams=1))]
    yield [
        one.hypotheses
        for one in made.translate(lines, TRANSLATION.changed(do_sample=True, num_beams=1))
    ]
    yield made.score(lines, lines)


def texts(made):
    yield written(made.generate(greedy(12)))
    yield made.generate([GenerationRequest("abc", max_new_tokens=6, seed=3)])
    yield made.generate([GenerationRequest("abc", max_new_tokens=6, num_beams=2)])
    yield "".join(made.stream(greedy(30)[0]))
    yield made.score(["abcde", "jello"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "use"), [(translator, searches), (model.__wrapped__, texts)], ids=["texts", "lines"]
)
def test_texts_are_the_same_to_the_bit_and_every_program_is_stored(
    folder, traced, monkeypatch, make, use
):
    first = list(use(make()))
    count = len(traced)
    assert count == len(list(folder.iterdir())) > 3
    assert all(path.stat().st_size > 1000 for path in folder.iterdir())
    assert list(use(make())) == first
    assert len(traced) == count
    monkeypatch.undo()
    assert list(use(make())) == first


@pytest.mark.slow
def test_the_cache_of_a_search_is_changed_in_place(folder, traced):
    def sizes():
        found = []
        lm = model.__wrapped__()
        decode = lm.run.decode
        whole = decode.jitted

        def measured(*arguments, **settings):
            memory = whole.lower(*arguments, **settings).compile().memory_analysis()
            found.append((memory.alias_size_in_bytes, memory.temp_size_in_bytes))
            return whole(*arguments, **settings)

        decode.jitted = measured
        lm.generate(greedy(12))
        return found

    first, again = sizes(), sizes()
    stored_programs.runtime.program_folder = lambda: None
    plain = sizes()
    assert first == again == plain
    assert plain[0][0] > 1000


PROGRAM = """
import sys
from jax import monitoring
hits = []
monitoring.register_event_listener(
    lambda name, **_: hits.append(name) if name.endswith(("cache_hits", "cache_misses")) else None
)
from transformer_jax.core.runtime import prepare_process, run_package_alone
prepare_process()
run_package_alone()
from tests.decoding import test_stored_programs as tests
from transformer_jax.decoding import stored_programs
traced = []
made = stored_programs._exported
stored_programs._exported = lambda *arguments: traced.append(1) or made(*arguments)
print([one.text for one in tests.translator().translate(["abc", "bcd"])])
print("REPORT", len(traced), sum(name.endswith("hits") for name in hits) > 0)
"""


@pytest.mark.slow
def test_the_next_process_neither_traces_nor_compiles(tmp_path):
    settings = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    settings |= {"JAX_PLATFORMS": "cpu", "TRANSFORMER_JAX_CACHE": str(tmp_path)}
    how = {"env": settings, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([sys.executable, "-c", PROGRAM], **how) for _ in range(2)]
    first, second = (process.communicate(timeout=300)[0] for process in both)
    third = subprocess.run([sys.executable, "-c", PROGRAM], check=True, **how).stdout
    assert first.splitlines()[0] == second.splitlines()[0] == third.splitlines()[0]
    assert "REPORT 0 True" in third
