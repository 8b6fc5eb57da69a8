"""Timing of functions: many calls inside one program, to exclude the cost of starting it."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["clock_of", "passes", "per_call", "repeated", "timer"]

ENOUGH = 0.03  # seconds per measurement, which determines the number of calls


def passes(function: Callable[..., Any], differentiated: int) -> dict[str, Callable[..., Any]]:
    """Returns the forward pass, and both passes if the case has gradients."""

    def both(*inputs: Any) -> Any:
        real, rest = inputs[:differentiated], inputs[differentiated:]
        y, back = jax.vjp(lambda *real: function(*real, *rest), *real)
        return y, back(jnp.ones_like(y))

    found = {"forward": function}
    return found | ({"forward+backward": both} if differentiated else {})


def repeated(
    function: Callable[..., Any], inputs: tuple[Any, ...], differentiated: int
) -> Callable[..., Any]:
    """Returns a program that calls ``function`` ``n`` times in sequence.

    A value of each differentiated input, or of the last input if there is none, depends on the
    previous result, so no call can be skipped or moved out of the loop.

    Example:
        >>> repeated(lambda x: x + 1, (jnp.zeros(2),), 1)(3, (jnp.zeros(2),))
        Array([1., 1.], dtype=float32)
    """
    chained = range(differentiated) if differentiated else [len(inputs) - 1]

    def run(n: Any, inputs: tuple[Any, ...]) -> Any:
        def body(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            now, last = list(carry[0]), jax.tree.leaves(carry[1])[0]
            nothing = last.ravel()[0] * 0 if last.ndim else last * 0
            for i in chained:
                first = (0,) * now[i].ndim
                now[i] = now[i].at[first].add(nothing.astype(now[i].dtype))
            return tuple(now), function(*now)

        shapes = jax.eval_shape(function, *inputs)
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return lax.fori_loop(0, n, body, (inputs, empty))[1]

    return jax.jit(run)


def timer(function: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[[], float]:
    """Returns a function that measures the seconds per call of a :func:`repeated` function."""
    clock = clock_of(jax.devices()[0].platform)

    def seconds(n: int) -> float:
        began = clock()
        jax.block_until_ready(function(n, inputs))
        return clock() - began

    return per_call(seconds)


def clock_of(platform: str) -> Callable[[], float]:
    """Returns CPU time on a CPU, which other programs hardly affect, or else the wall clock.

    Example:
        >>> clock_of("gpu") is time.perf_counter
        True
    """
    return time.process_time if platform == "cpu" else time.perf_counter


def per_call(seconds: Callable[[int], float]) -> Callable[[], float]:
    """Returns the seconds per call, over as many calls as take :data:`ENOUGH`.

    Args:
        seconds: Function that measures the time of a number of calls.
    """
    seconds(1)  # compiles
    times = max(1, min(1000, round(ENOUGH / max(seconds(1), 1e-6))))
    return lambda: seconds(times) / times
