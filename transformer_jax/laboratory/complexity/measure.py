"""Layers measured and drawn: FLOPs by XLA, times, depth and path length.

Source: Vaswani et al. 2017, section 4.
"""

import dataclasses
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from transformer_jax.core.json_types import Json
from transformer_jax.core.trees import default_device
from transformer_jax.functional.attention import attend
from transformer_jax.functional.convolution import convolve
from transformer_jax.functional.jacobian_paths import (
    copies_needed,
    dependence,
    path_length,
    sequential_depth,
)
from transformer_jax.functional.local_attention import local_attention
from transformer_jax.functional.recurrent import CELLS, recur
from transformer_jax.laboratory.complexity.layer_formulas import ATTENTION, KINDS, Layer
from transformer_jax.visual.figures import new_figure, save

__all__ = [
    "LONGEST_PATH", "Clock", "Measured", "Passes", "Program", "count_flops", "function_of",
    "inputs_of", "measure", "measured_path", "plot_layers", "program_flops", "recurrent_step",
    "seconds_of_nothing",
]  # fmt: skip

Program = Callable[..., Array]  # inputs and parameters -> [n d]


def function_of(layer: Layer, dilation: int | None = None) -> Program:
    """The layer as a function of ``q, k, v``, of ``x, W, U``, or of ``x, kernel``.

    Attention keeps all weights in memory, as in its formula.

    Args:
        layer: A layer.
        dilation: Dilation of another layer in a dilated stack; None is that of ``layer``.

    Example:
        >>> layer = Layer("self-attention", 5, 2)
        >>> function_of(layer)(*inputs_of(layer)).shape
        (5, 2)
    """
    if layer.kind == "recurrent":
        return _recurrent
    if layer.kind in ATTENTION:
        heads = lambda x: x[None, :, None]
        if layer.kind == "self-attention":
            mixed = lambda q, k, v: attend(q, k, v, implementation="xla")
        else:
            mixed = lambda q, k, v: local_attention(q, k, v, layer.reach)
        return lambda q, k, v: mixed(heads(q), heads(k), heads(v))[0, :, 0]
    step = dilation or layer.dilation
    return lambda x, kernel: convolve(x[None], kernel, dilation=step, causal=True)[0]


def inputs_of(layer: Layer, seed: int = 0) -> tuple[Array, ...]:
    """Random inputs and parameters of the layer, which preserve the variance of the vectors.

    Example:
        >>> [x.shape for x in inputs_of(Layer("convolution", 5, 2, 3))]
        [(5, 2), (3, 2, 2)]
    """
    n, d, k = layer.n, layer.d, layer.extent or 1
    shapes: list[tuple[int, ...]] = [(n, d)] * 3
    if layer.kind == "recurrent":
        shapes = [(n, d), (d, d), (d, d)]
    elif layer.kind not in ATTENTION:
        shapes = [(n, d), (k, d, d)]
    draw = np.random.default_rng(seed)
    arrays = [draw.standard_normal(shape, np.float32) for shape in shapes]
    scale = 1 if layer.kind in ATTENTION else (d * k) ** -0.5
    return tuple(jnp.asarray(x * (scale if i else 1)) for i, x in enumerate(arrays))


def _recurrent(
    x: Float[Array, "n d"], W: Float[Array, "d d"], U: Float[Array, "d d"]
) -> Float[Array, "n d"]:
    """``h_t = tanh(x_t W + h_{t-1} U)``."""
    start = (jnp.zeros((1, x.shape[1])),)
    return recur(CELLS["tanh"], (x @ W)[None], U, start)[0][0]


def recurrent_step(
    x: Float[Array, "n d"], W: Float[Array, "d d"], U: Float[Array, "d d"]
) -> Float[Array, "n d"]:
    """One step of the recurrence at all positions: each reads itself and the previous one.

    The path length is the number of such steps that connect the first position with the last.

    Example:
        >>> x = jnp.array([[1.0], [2.0]])
        >>> recurrent_step(x, jnp.zeros((1, 1)), jnp.ones((1, 1)))[:, 0]
        Array([0.       , 0.7615942], dtype=float32)
    """
    before = jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])
    return recur(CELLS["tanh"], (x @ W)[:, None], U, (before,))[0][:, 0]


LONGEST_PATH = 512  # longest text for which Jacobians are computed
ENOUGH = 0.01  # seconds per measurement, of as many calls as this takes
MOST_CALLS = 1000


class Passes(NamedTuple):
    """Seconds of the passes of a layer.

    Attributes:
        forward: Computation of the output.
        backward: Gradients of all inputs and parameters, from the values that the forward pass
            kept.
    """

    forward: float
    backward: float


@dataclasses.dataclass(frozen=True)
class Measured:
    """A layer with its measurements.

    Attributes:
        layer: The layer.
        flops: FLOPs counted by XLA.
        depth: Length of the longest chain of products.
        path: Layers of the longest path; None if the text is longer than :data:`LONGEST_PATH`.
        times: Medians; None if not timed.
    """

    layer: Layer
    flops: float | int
    depth: int
    path: int | None
    times: Passes | None = None

    def to_dict(self) -> dict[str, Json]:
        """Returns sizes, formulas and measurements by name, with times in seconds."""
        layer, times = self.layer, self.times
        return {
            "layer": layer.kind,
            "n": layer.n,
            "d": layer.d,
            "k": layer.extent if "convolution" in layer.kind else None,
            "r": layer.extent if layer.kind in ATTENTION else None,
            "dilation": layer.dilation if "convolution" in layer.kind else None,
            "multiply_adds": layer.multiply_adds,
            "flops": layer.flops,
            "counted_flops": self.flops,
            "forward_seconds": None if times is None else times.forward,
            "backward_seconds": None if times is None else times.backward,
            "sequential_depth": layer.sequential_depth,
            "measured_sequential_depth": self.depth,
            "path_length": layer.path_length,
            "measured_path_length": self.path,
        }


def measure(layer: Layer) -> Measured:
    """Measures FLOPs, depth and path of a layer.

    Example:
        >>> found = measure(Layer("recurrent", 9, 4))
        >>> found.depth, found.path, found.flops == found.layer.flops
        (9, 8, True)
    """
    depth = sequential_depth(function_of(layer), *inputs_of(layer))
    path = measured_path(layer) if layer.n <= LONGEST_PATH else None
    return Measured(layer, count_flops(layer), depth, path)


def count_flops(layer: Layer) -> float:
    """Counts FLOPs of the forward pass, as XLA counts them in its program.

    XLA counts the body of a loop only once. For a recurrent layer, the products of all inputs and
    one step are separate programs, and the step counts ``n`` times.

    Example:
        >>> count_flops(Layer("convolution", 8, 2, 2))  # 8 n multiply-adds
        128.0
    """
    inputs = inputs_of(layer)
    if layer.kind != "recurrent":
        return program_flops(function_of(layer), *inputs)
    x, W, U = inputs
    step = lambda now, U, before: recur(CELLS["tanh"], now[None], U, (before,))[0]
    return program_flops(jnp.matmul, x, W) + layer.n * program_flops(step, x[:1], U, x[:1])


def program_flops(function: Program, *inputs: Array | jax.ShapeDtypeStruct) -> float:
    """Counts the FLOPs of the compiled program.

    For GPUs and TPUs, XLA compiles products to library calls, which it does not count: there the
    program is counted before it is compiled.

    Args:
        function: A function of arrays.
        inputs: The arrays, or their shapes.

    Example:
        >>> program_flops(jnp.matmul, jnp.ones((2, 3)), jnp.ones((3, 4)))
        48.0
    """
    lowered = jax.jit(function).lower(*inputs)
    stage = lowered.compile() if default_device().platform == "cpu" else lowered
    analysis = stage.cost_analysis()
    assert analysis is not None
    return float((analysis[0] if isinstance(analysis, list) else analysis)["flops"])


def measured_path(layer: Layer) -> int | None:
    """The path length from the layer's :func:`.dependence`, with vectors of size 1; None if never.

    Every output must depend on every input, or for causal layers on every earlier one.

    Example:
        >>> measured_path(Layer("dilated convolution", 27, 512, 3))
        3
    """
    return _path_of(dataclasses.replace(layer, d=1))


@functools.cache
def _path_of(layer: Layer) -> int | None:
    """Computes it for vectors of size 1: the path does not depend on the size."""
    x, *rest = inputs_of(layer)
    earlier = np.tri(layer.n, dtype=bool)

    def depends(function: Program) -> Bool[np.ndarray, "n n"]:
        return dependence(lambda x: function(x, *rest), x)

    if layer.kind in ATTENTION:
        mixed = function_of(layer)
        return copies_needed(dependence(lambda x: mixed(x, x, x), x))
    if layer.kind == "dilated convolution":
        dilations = ((layer.extent or 2) ** i for i in itertools.count())
        inside = itertools.takewhile(lambda step: step < max(layer.n, 2), dilations)
        return path_length((depends(function_of(layer, step)) for step in inside), earlier)
    function = recurrent_step if layer.kind == "recurrent" else function_of(layer)
    return copies_needed(depends(function), earlier)


class Clock:
    """Times of layers whose repetitions alternate, so that a disturbance affects all of them.

    Times are wall-clock seconds, and include the start of a program.

    Args:
        layers: The layers to time.
        done: Called whenever a layer is compiled and whenever a repetition is done.
    """

    def __init__(self, layers: Sequence[Layer], done: Callable[[], None] = lambda: None):
        self._timers: list[tuple[Callable[[], float], Callable[[], float]]] = []
        for layer in layers:
            function, inputs = function_of(layer), inputs_of(layer)
            y, pull = jax.jit(lambda *inputs, f=function: jax.vjp(f, *inputs))(*inputs)
            backward = jax.jit(lambda pull, slope: pull(slope))
            self._timers.append(
                (_timer(jax.jit(function), *inputs), _timer(backward, pull, jnp.ones_like(y)))
            )
            done()
        self._done = done

    def medians(self, repetitions: int) -> list[Passes]:
        """Returns the medians over repetitions, for each layer."""
        taken = []
        for _ in range(repetitions):
            taken.append([(forward(), backward()) for forward, backward in self._timers])
            self._done()
        of_layers = zip(*taken, strict=True)
        return [Passes(*map(statistics.median, zip(*each, strict=True))) for each in of_layers]


def seconds_of_nothing(repetitions: int) -> float:
    """The median time of an empty program: the cost of its start."""
    timer = _timer(jax.jit(lambda x: x + 1), jnp.zeros(()))
    return statistics.median(timer() for _ in range(repetitions))


def _timer(function: Callable[..., PyTree], *inputs: PyTree) -> Callable[[], float]:
    """Returns a function that measures the seconds of one call, averaged over consecutive calls."""

    def seconds(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            jax.block_until_ready(function(*inputs))  # otherwise calls would run concurrently
        return (time.perf_counter() - began) / calls

    seconds(1)  # compiles
    calls = max(1, min(MOST_CALLS, round(ENOUGH / max(seconds(1), 1e-6))))
    return lambda: seconds(calls)


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


# Colors that do not depend on telling red from green (Okabe and Ito 2008).
COLORS = dict(zip(KINDS, ("#0072b2", "#56b4e9", "#d55e00", "#009e73", "#cc79a7"), strict=True))
MARKERS = dict(zip(KINDS, ("o", "s", "^", "D", "X"), strict=True))
MOST_TICKS = 8
Panel = Callable[[Measured], float | int | None]


def plot_layers(measured: Sequence[Measured], path: Path | None = None, *, device: str) -> "Figure":
    """Draws curves by length: FLOPs, times if there are any, and path lengths.

    For FLOPs, points are counted and lines follow the formula; for path lengths, points are
    measured. Both axes are logarithmic. Each size ``d`` has a row of panels.

    Args:
        measured: The layers.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.
        device: Device on which times were measured.

    Raises:
        ConfigError: An unsupported suffix.
    """
    sizes = sorted({one.layer.d for one in measured})
    panels: list[tuple[str, Panel, Panel]] = [
        ("FLOPs of the forward pass", lambda one: one.flops, lambda one: one.layer.flops)
    ]
    if all(one.times is not None for one in measured):
        panels.append((f"milliseconds on {device}", _forward, _backward))
    panels.append(("path length", lambda one: one.path, lambda one: one.layer.path_length))
    figure = new_figure(4.1 * len(panels), 3.4 * len(sizes) + 1.15)
    grid = figure.subplots(len(sizes), len(panels), squeeze=False, sharex=True)
    lengths = sorted({one.layer.n for one in measured})
    for d, row in zip(sizes, grid, strict=True):
        for ax, (title, points, line) in zip(row, panels, strict=True):
            _panel(ax, [one for one in measured if one.layer.d == d], points, line)
            ax.set_title(title if len(sizes) == 1 else f"{title}, d = {d}", fontsize=10)
            if len(lengths) <= MOST_TICKS:
                ax.set_xticks(lengths, [str(n) for n in lengths], fontsize=8)
                ax.set_xticks([], minor=True)
    for ax in grid[-1]:
        ax.set_xlabel("length n")
    handles = _legend([one.layer for one in measured])
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    about = "FLOPs: points are counted by XLA, lines the formula"
    if len(panels) == 3:
        about += "; times: solid forward, dashed backward"
    size = f" of size {sizes[0]}" if len(sizes) == 1 else ""
    figure.suptitle(f"Layers over n vectors{size}\n{about}", fontsize=11)
    return save(figure, path, title=f"Costs of layers{size}")


def _forward(one: Measured) -> float | None:
    return None if one.times is None else 1e3 * one.times.forward


def _backward(one: Measured) -> float | None:
    return None if one.times is None else 1e3 * one.times.backward


def _panel(ax: "Axes", measured: Sequence[Measured], points: Panel, line: Panel) -> None:
    """Draws one quantity of each layer by its length; backward passes are dashed."""
    timed = points is _forward
    for name in dict.fromkeys(one.layer.name for one in measured):
        curve = [one for one in measured if one.layer.name == name]
        lengths = [one.layer.n for one in curve]
        color, marker = _style(curve[0].layer, [one.layer for one in measured])
        ys = np.array([points(one) for one in curve], float)
        ax.plot(lengths, ys, "-" if timed else "", color=color, marker=marker, markersize=5)
        ax.plot(
            lengths,
            np.array([line(one) for one in curve], float),
            "--" if timed else "-",
            color=color,
        )
    ax.set(xscale="log", yscale="log")
    ax.grid(which="major", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)


def _legend(layers: Sequence[Layer]) -> "list[Line2D]":
    """Returns a line with its marker for each layer."""
    from matplotlib.lines import Line2D

    found = {layer.name: _style(layer, layers) for layer in layers}
    return [
        Line2D([], [], color=color, marker=marker, markersize=5, label=name)
        for name, (color, marker) in found.items()
    ]


def _style(layer: Layer, layers: Sequence[Layer]) -> tuple[tuple[float, float, float], str]:
    """Color and marker by kind; wider kernels and windows are darker."""
    extents = sorted({one.extent or 0 for one in layers if one.kind == layer.kind})
    dark = extents.index(layer.extent or 0) / max(len(extents) - 1, 1)
    shade = lambda i: int(COLORS[layer.kind][i : i + 2], 16) / 255 * (1 - 0.6 * dark)
    return (shade(1), shade(3), shade(5)), MARKERS[layer.kind]
