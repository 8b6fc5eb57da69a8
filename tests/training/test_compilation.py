"""A step compiled in the background is the one that its caller would have compiled."""

import os
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.training.compilation import CompiledStep
from transformer_jax.training.state import TrainState

SETTINGS = {
    "jax_default_matmul_precision": lambda: jax.default_matmul_precision("highest"),
    "jax_default_prng_impl": lambda: jax.default_prng_impl("rbg"),
    "jax_debug_nans": lambda: jax.debug_nans(True),
    "jax_enable_x64": lambda: jax.enable_x64(True),
    "jax_numpy_dtype_promotion": lambda: jax.numpy_dtype_promotion("strict"),
    "jax_numpy_rank_promotion": lambda: jax.numpy_rank_promotion("warn"),
    "jax_default_device": lambda: jax.default_device(jax.devices()[-1]),
}


def cp_batch(width):
    return {"x": np.zeros((2, width), np.float32)}


def cp_state():
    return TrainState(jnp.zeros((), jnp.int32), {"w": jnp.zeros((), jnp.float32)}, ())


def cp_traced(look):
    """A step that remembers what ``look`` says where it is traced, and that."""
    seen = []

    @jax.jit
    def step(state, frozen, batch, key):
        seen.append((threading.current_thread(), look()))
        return state._replace(params={"w": state.params["w"] + batch["x"].sum()}), {}

    return step, seen


def cp_take(prepared, batch):
    state = cp_state()
    prepared.prepare(state, [batch])
    assert prepared.wait(batch)
    return prepared(state, batch)[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_thread_that_asks_hold_where_it_is_compiled(name):
    look = lambda: getattr(jax.config, name)
    step, seen = cp_traced(look)
    before = look()
    with SETTINGS[name]():
        wanted = look()
        assert wanted != before
        prepared = CompiledStep(step)
        cp_take(prepared, cp_batch(3))
        prepared.close()
    [(thread, found)] = seen
    assert thread is not threading.current_thread()
    assert found == wanted


def test_the_mesh_of_the_thread_that_asks_holds_where_it_is_compiled():
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    step, seen = cp_traced(jax.sharding.get_abstract_mesh)
    with jax.set_mesh(mesh):
        prepared = CompiledStep(step)
        cp_take(prepared, cp_batch(3))
        prepared.close()
    [(_, found)] = seen
    assert found == mesh.abstract_mesh


def test_the_first_shape_is_traced_before_other_work_goes_on(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # one at a time
    step, seen = cp_traced(lambda: time.sleep(0.02))
    prepared = CompiledStep(step)
    prepared.prepare(cp_state(), [cp_batch(2), cp_batch(3)])
    assert seen
    prepared.close()


class Compiled:
    """Stands for a step; of some widths the program comes late, or never."""

    def __init__(self, held=(), failing=()):
        self.held, self.failing = {width: threading.Event() for width in held}, failing

    def __call__(self, state, frozen, batch, key):
        raise AssertionError("compiled twice")

    def lower(self, state, frozen, batch, key):
        return types.SimpleNamespace(compile=lambda: self.compile(batch["x"].shape[1]))

    def compile(self, width):
        if width in self.failing:
            raise ZeroDivisionError
        if width in self.held:
            assert self.held[width].wait(60)
        return lambda state, frozen, batch, key: (state, {"width": jnp.int32(width)})


def cp_done(prepared, width):
    until = time.monotonic() + 60
    while not prepared.wait(cp_batch(width), lambda: time.monotonic() > until):
        raise AssertionError("no program")


def test_programs_are_counted_of_the_shapes_that_were_announced():
    held = Compiled(held=[5], failing=[4])
    prepared = CompiledStep(held)
    prepared.prepare(cp_state(), [cp_batch(width) for width in (3, 4, 5)])
    cp_done(prepared, 3)
    cp_done(prepared, 4)
    assert prepared(cp_state(), cp_batch(9))[1]["width"] == 9
    assert (prepared.ready, prepared.announced, len(prepared.late)) == (1, 3, 1)
    began = prepared.seconds
    held.held[5].set()
    cp_done(prepared, 5)
    assert prepared.seconds > began  # told by the time the program is there
    assert (prepared.ready, prepared.announced) == (2, 3)
    with pytest.raises(ZeroDivisionError):
        prepared(cp_state(), cp_batch(4))
    prepared.close()


def test_an_error_in_the_background_is_raised_by_the_step_that_needs_its_program(monkeypatch):
    def refuse(*_):
        raise TypeError("refused before it began")

    step, _ = cp_traced(lambda: None)
    monkeypatch.setattr(CompiledStep, "_compile", refuse)
    prepared = CompiledStep(step)
    with pytest.raises(TypeError, match="refused before it began"):
        cp_take(prepared, cp_batch(2))
    prepared.close()


def test_a_closed_step_is_refused_and_leaves_nobody_waiting(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # one at a time
    held = Compiled(held=[3])
    prepared = CompiledStep(held)
    prepared.prepare(cp_state(), [cp_batch(3), cp_batch(4)])
    prepared.close()
    for use in (
        lambda: prepared.wait(cp_batch(4)),
        lambda: prepared(cp_state(), cp_batch(4)),
        lambda: prepared.prepare(cp_state(), [cp_batch(5)]),
    ):
        with pytest.raises(RuntimeError, match="is closed"):
            use()
    held.held[3].set()
    assert all(future.cancelled() or future.result(60) for future in prepared._programs.values())
