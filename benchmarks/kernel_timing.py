"""Times of functions: many calls inside one program, so that starting it costs nothing."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["clock_of", "passes", "per_call", "repeated", "timer"]

ENOUGH = 0.03  # seconds of a measurement, which takes as many calls as that needs


def passes(function: Callable[..., Any], differentiated: int) -> dict[str, Callable[..., Any]]:
    """The forward pass, and both passes if the case has gradients."""

    def both(*inputs: Any) -> Any:
        real, rest = inputs[:differentiated], inputs[differentiated:]
        y, back = jax.vjp(lambda *real: function(*real, *rest), *real)
        return y, back(jnp.ones_like(y))

    found = {"forward": function}
    return found | ({"forward+backward": both} if differentiated else {})


def repeated(
    function: Callable[..., Any], inputs: tuple[Any, ...], differentiated: int
) -> Callable[..., Any]:
    """``function`` called ``n`` times in one program, each time after the one before it.

    A number of each differentiated input, or of the last input if there is none, comes from the
    last result: no call can be left out or moved out of the loop.

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
    """A function that takes the seconds of one call of what is :func:`repeated`."""
    clock = clock_of(jax.devices()[0].platform)

    def seconds(n: int) -> float:
        began = clock()
        jax.block_until_ready(function(n, inputs))
        return clock() - began

    return per_call(seconds)


def clock_of(platform: str) -> Callable[[], float]:
    """On a CPU the process's time, which other programs hardly disturb; elsewhere the wall clock.

    Example:
        >>> clock_of("gpu") is time.perf_counter
        True
    """
    return time.process_time if platform == "cpu" else time.perf_counter


def per_call(seconds: Callable[[int], float]) -> Callable[[], float]:
    """Seconds of one call, of as many together as take :data:`ENOUGH`.

    Args:
        seconds: Takes the time of so many calls.
    """
    seconds(1)  # compiles
    times = max(1, min(1000, round(ENOUGH / max(seconds(1), 1e-6))))
    return lambda: seconds(times) / times
