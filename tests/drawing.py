"""Numbers for tests, and models of such: NumPy draws them, so nothing is compiled for it."""

import functools
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


def normals(*shapes, seed=0, dtype=jnp.float32):
    """Arrays of independent standard normal numbers."""
    draw = np.random.default_rng(seed)
    return [jnp.asarray(draw.standard_normal(shape), dtype) for shape in shapes]


def drawn(make, *, spread=0.3, seed=0):
    """Graph and parameters of the model that ``make`` makes, each parameter drawn from its name.

    Gains lie about 1 and all else about 0, and none of them is either: zeros and ones hide
    mistakes.
    """
    graph, state = nnx.split(nnx.eval_shape(make))

    def fill(path, leaf):
        name = jax.tree_util.keystr(path)
        draw = np.random.default_rng([zlib.crc32(name.encode()), seed])
        noise = spread * draw.standard_normal(leaf.shape)
        return jnp.asarray(1 + 2 / 3 * noise if "gain" in name else noise, leaf.dtype)

    return graph, jax.tree_util.tree_map_with_path(fill, nnx.to_pure_dict(state))


def value_and_pullback(function, cotangent, *args):
    """``function(*args)`` and the pullback of ``cotangent``, computed by one program."""

    @jax.jit
    def both(cotangent, *args):
        y, back = jax.vjp(function, *args)
        return y, back(cotangent)

    return both(cotangent, *args)


def compiled(module, function=lambda module, *args: module(*args)):
    """``function(module, *args)`` as one program: quicker than a program for every operation."""
    graph, state = nnx.split(module)
    program = jax.jit(lambda state, *args: function(nnx.merge(graph, state), *args))
    return functools.partial(program, state)
