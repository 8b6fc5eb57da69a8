"""Integers where real numbers are declared: the result of the same floats, or one line."""

import importlib
import inspect
import pkgutil
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import functional
from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional import attention, layers, scores
from transformer_jax.functional.kernels import products
from transformer_jax.functional.losses import OutputTable
from transformer_jax.functional.recurrent import CELLS

SIZES = {"HJ": 8, "bins": 3, "O": 8, "9*I": 36}
# Of a mesh; or in tests/test_wrong_arguments.py; or of a list of arrays, which it converts.
WITHIN = {"unshard_fsdp", "unshard_fsdp_again", "reduce_scatter"} | {
    *("frame_signal", "power_spectrum", "stack_frames", "combine_layers")
}
GIVEN = {
    "attend": {"mask": None, "dropout": None, "score": scores.scaled_dot, "implementation": "auto"},
    "convolve": {"segments": None, "causal": True, "dilation": 1},
    "copies_needed": {},
    "dependence": {"layer": jnp.tanh},
    "gradient_norms": {"last": lambda x: x[:, -1]},
    "linear_cross_entropy": {
        "output": OutputTable(jnp.ones((4, 4))),
        "targets": jnp.arange(3),
        "chunk": None,
    },
    "recur": {
        "cell": CELLS["tanh"],
        "state": (jnp.zeros((4, 4)),),
        "lengths": None,
        "truncate": None,
        "begins": None,
    },
    "replace_taken": {"ids": (0, 1, 2, 3), "size": 4, "dtype": jnp.float32},
    "take_rows": {"dtype": jnp.float32},
    "frame_signal": {"length": 2, "shift": 1},
    "pool_hidden_states": {
        "batch": {
            "segments": jnp.ones((4, 4), int),
            "starts": jnp.zeros((4, 1), int),
            "lengths": jnp.full((4, 1), 4),
        },
        "pool": "mean",
        "skip": 0,
    },
    "power_spectrum": {"fft_size": 4},
    "matmul": {"i": 1, "j": 0},
    "rms_norm": {"eps": 0.5},
    "normalizer_and_top_k": {"k": 2},
    "top_k_two_stage": {"k": 2, "group": 2},
}
GIVEN["attend_heads_first"] = GIVEN["attention_weights"] = GIVEN["attend"]


def is_real(annotation):
    """Returns whether an annotation admits arrays of floats alone."""
    parts = typing.get_args(annotation) or (annotation,)
    shapes = [part for part in parts if hasattr(part, "dim_str")]
    if any(part.array_type is np.ndarray for part in shapes):
        return False
    return bool(shapes) and all("float" in str(list_of(part.dtypes)) for part in shapes)


def list_of(dtypes):
    """The names of dtypes; none of an annotation that admits any."""
    return list(dtypes) if isinstance(dtypes, list | tuple) else []


def public_functions():
    for module in pkgutil.iter_modules(functional.__path__):
        if module.ispkg:
            continue
        yield from functions_of(importlib.import_module(f"{functional.__name__}.{module.name}"))
    yield from functions_of(
        products, ("kernel_gradient", "matmul", "sum_rows", "transposed_matmul")
    )


def functions_of(found, names=()):
    """The functions of a module that take arrays of floats, with their names."""
    short = found.__name__.removeprefix(f"{functional.__name__}.")
    for name in names or getattr(found, "__all__", None) or vars(found):
        function = getattr(found, name)
        own = inspect.isfunction(function) and function.__module__ == found.__name__
        if own and not name.startswith("_") and name not in WITHIN:
            parameters = inspect.signature(function).parameters.values()
            if any(is_real(one.annotation) for one in parameters):
                yield f"{short}.{name}", function


def shape(dims):
    sizes = []
    for dim in dims.split():
        if dim.startswith("*"):
            sizes.append(3)
        elif dim == "...":
            sizes += [4, 4]
        else:
            sizes.append(SIZES.get(dim.lstrip("#"), 4))
    return tuple(sizes)


def arguments(function, dtype):
    """A value of each argument; those of declared floats have a dtype."""
    draw, found = np.random.default_rng(0), {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, given = parameter.annotation, GIVEN.get(function.__name__, {})
        parts = [part for part in typing.get_args(kind) or (kind,) if hasattr(part, "dim_str")]
        if typing.get_args(kind) and parameter.default is None and not is_real(kind):
            found[name] = given.get(name)
        elif name in given:
            found[name] = given[name]
        elif is_real(kind):
            found[name] = jnp.asarray(draw.integers(1, 4, shape(parts[0].dim_str)), dtype)
        elif parts and "key" in str(parts[0].dtypes):
            found[name] = jax.random.key(0)
        elif parts:
            ones = jnp.asarray(draw.integers(0, 2, shape(parts[0].dim_str)))
            found[name] = ones.astype(bool) if "bool" in str(parts[0].dtypes) else ones
        elif parameter.default is not inspect.Parameter.empty:
            found[name] = parameter.default
        else:
            found[name] = {float: 0.25, int: 1, str: "auto"}.get(kind)
    return found


def called(function, given):
    positional, named = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            named[name] = given[name]
        else:
            positional.append(given[name])
    return function(*positional, **named)


@pytest.mark.parametrize("dtype", ["int32", pytest.param("uint8", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", [
    pytest.param(function, id=name, marks=[pytest.mark.slow] if place % 4 else [])
    for place, (name, function) in enumerate(public_functions())
])  # fmt: skip
def test_integers_give_what_floats_give_or_are_refused(function, dtype):
    try:
        found = called(function, arguments(function, jnp.dtype(dtype)))
    except ArgumentError:
        return
    wanted = called(function, arguments(function, jnp.float32))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_numbers_of_a_slide_are_attended():
    x = jnp.array([[[[1, 0]], [[0, 2]], [[3, 1]]]])
    found, wanted = attention.attend(x, x, x), attention.attend(*[x.astype(jnp.float32)] * 3)
    np.testing.assert_array_equal(found, wanted)
    assert np.asarray(found).any()
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(attention.attend(x, x, x.tolist()), wanted)


X = jnp.ones((1, 3, 2, 4))


class Foreign:
    """An array of another library."""

    dtype = object()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention.attend(X[0], X, X), r"attend: q has shape \(3, 2, 4\): \[B T N H\]"),
        (lambda: attention.attend(X, X, X * 1j), "attend: v holds complex64: real numbers"),
        (lambda: attention.attend(X, "k", X), "attend: k is str: an array is needed"),
        (lambda: attention.attend(5, X, X), r"attend: q is 5: \[B T N H\] is needed"),
        (lambda: attention.attend(X, None, X), "attend: k is NoneType: an array is needed"),
        (lambda: attention.attend(X, X, X, bias=1.0), r"attend: bias is 1.0: \[B N T S\] is"),
        (lambda: attention.attend(X, X, Foreign()), "attend: v is Foreign: a NumPy or"),
        (lambda: attention.attend(X, X, [[1], [2, 3]]), "attend: v: lists must have equal"),
        (
            lambda: attention.attend(X, X, X, bias=jnp.zeros((3, 3))),
            r"attend: bias has shape \(3, 3\): \[B N T S\] is needed",
        ),
        (
            lambda: attention.check_bias("attend", (1, 2, 3, 4), (1, 2, 3, 4), X[:, :1, :, :3]),
            r"attend: bias has T = 2: 1 or 3 is needed",
        ),
        (
            lambda: attention.check_bias("attend", (1, 2, 3, 4), (1, 2, 3, 4), X[:, :1, :1, :1]),
            r"attend: bias has S = 1: 3 is needed",
        ),
        (
            lambda: layers.layer_norm(X, jnp.ones((2, 2)), None, 1e-5),
            r"layer_norm: gain has shape \(2, 2\): \[D\] is needed",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_named_with_their_dimension(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
