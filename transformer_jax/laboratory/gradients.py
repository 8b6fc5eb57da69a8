"""Gradients over distances: how they vanish and explode in recurrent networks.

Backpropagation through time multiplies one Jacobian per position. Their product decays or grows
exponentially with the distance (Pascanu et al. 2013); gates that stay open preserve it (Hochreiter
and Schmidhuber 1997). Attention has one step between any two positions.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PyTree

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.json_types import Json
from transformer_jax.functional.jacobian_paths import gradient_norms
from transformer_jax.laboratory.fitting import FitProgress, Say, Schedule, fit
from transformer_jax.laboratory.pictures import Line, Panel, draw_panels
from transformer_jax.laboratory.readers import Reader, nearest_sizes
from transformer_jax.laboratory.recall import GOAL, answers, cued_texts, make_reader
from transformer_jax.laboratory.settings import GradientSettings
from transformer_jax.training.state import split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["GradientFigures", "gradients", "with_scaled_kernels"]


@dataclasses.dataclass(frozen=True)
class GradientFigures:
    """Gradient norms by model, lag and seed; see :func:`.gradient_norms`."""

    settings: GradientSettings
    sizes: dict[str, int]  # size of a state
    untrained: dict[str, list[list[float]]]  # by model: a row per lag from 0, a value per seed
    trained: dict[str, list[list[float]]]
    accuracy: dict[str, list[float]]  # of recall at the end of training, per seed

    def to_dict(self) -> dict[str, Json]:
        """Returns the figures by name, for JSON."""
        return dataclasses.asdict(self)

    def table(self) -> list[list[str]]:
        """Returns a header, and a row for each model."""
        lags = [lag for lag in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256) if lag <= self.settings.lags]
        far = self.settings.trained_distance
        head = ["model", "size", *(f"lag {lag}" for lag in lags)]
        head += [f"trained, lag {far}", "recall"] if self.trained else []
        rows = []
        for name, norms in self.untrained.items():
            row = [name, str(self.sizes[name]), *(f"{np.mean(norms[lag]):.1e}" for lag in lags)]
            if name in self.trained:
                row += [f"{np.mean(self.trained[name][far]):.1e}"]
                row += [f"{np.mean(self.accuracy[name]):.2f}"]
            rows.append(row + [""] * (len(head) - len(row)))
        return [head, *rows]

    def draw(self, path: Path | None = None) -> "Figure":
        """Draws the picture, and saves it to ``path`` in the format of its suffix."""
        panels = [_panel("at initialization", self.untrained)]
        if self.trained:
            recalled = {
                name: f"recall {np.mean(found):.2f}" for name, found in self.accuracy.items()
            }
            title = f"after training to recall at distance {self.settings.trained_distance}"
            panels.append(_panel(title, self.trained, recalled))
        return draw_panels(panels, path, title="Norm of the gradient of the last state, by lag")


def _panel(
    title: str, norms: dict[str, list[list[float]]], notes: Mapping[str, str] | None = None
) -> Panel:
    lines = []
    for name, rows in norms.items():
        said = [notes[name]] if notes is not None else []
        # A logarithmic axis cannot show zeros: without a note, a line would be missing.
        said += [] if np.any(rows) else ["gradient 0 throughout"]
        label = f"{name} ({', '.join(said)})" if said else name
        lines.append(Line(name, range(len(rows)), rows, label))
    x, y = "lag: positions back to the input", "norm of the gradient"
    return Panel(title, x, y, lines, logarithmic="y", marks=False)


def gradients(
    settings: GradientSettings = GradientSettings(), *, say: Say | None = None
) -> GradientFigures:
    """Measures the gradient of each model's last state with respect to earlier inputs.

    Args:
        settings: The settings.
        say: Called with lines about the progress.

    Raises:
        ConfigError: No size of a model has this many parameters, or ``kernel_scale`` makes states
            overflow float32.
    """
    progress = FitProgress(say)
    length = max(settings.lags, settings.trained_distance) + 1
    make = functools.partial(make_reader, symbols=settings.symbols, length=length)
    begun = functools.partial(make, seed=settings.seed)
    sizes, _ = nearest_sizes(settings.models, begun, settings.parameters)
    runs = [
        (name, seed)
        for name in settings.models
        for seed in range(settings.seed, settings.seed + settings.seeds)
    ]
    untrained: dict[str, list[list[float]]] = {}
    trained: dict[str, list[list[float]]] = {}
    accuracy: dict[str, list[float]] = {}
    for name, seed in runs:
        progress(f"{name}, seed {seed}: gradients at initialization")
        model = make(name, sizes[name], seed=seed)
        _append(untrained, name, _norms(model, settings, settings.lags, seed))
        if name == "relu" and settings.kernel_scale != 1:
            scaled = with_scaled_kernels(model, settings.kernel_scale)
            other = f"relu × {settings.kernel_scale:g}"
            _append(untrained, other, _norms(scaled, settings, settings.lags, seed))
            sizes[other] = sizes[name]
    for name, seed in runs if settings.trained_distance else ():
        model = make(name, sizes[name], seed=seed)
        model, recalled = _trained(model, settings, seed, f"{name}, seed {seed}", progress)
        accuracy.setdefault(name, []).append(recalled)
        _append(trained, name, _norms(model, settings, settings.trained_distance, seed))
    return GradientFigures(settings, sizes, untrained, trained, accuracy)


def with_scaled_kernels(model: Reader, scale: float) -> Reader:
    """Returns the recurrent model with its recurrent kernels multiplied by ``scale``.

    Example:
        >>> model = make_reader("tanh", 8, symbols=2, length=4, seed=0)
        >>> scaled = with_scaled_kernels(model, 2.0)
        >>> layer, other = model.layers.forward[0], scaled.layers.forward[0]
        >>> bool((other.kernel[...] == 2 * layer.kernel[...]).all())
        True
    """
    graph, params = split(model)
    layers = params["layers"]["forward"]
    for number, layer in layers.items():
        layers[number] = layer | {"kernel": scale * layer["kernel"]}
    scaled: Reader = nnx.merge(graph, params)
    return scaled


def _append(rows: dict[str, list[list[float]]], name: str, norms: Float[np.ndarray, " T"]) -> None:
    """Appends the norms of one more seed, for lags from 0, to those of ``name``."""
    mine = rows.setdefault(name, [[] for _ in norms])
    for row, norm in zip(mine, norms.tolist(), strict=True):
        row.append(norm)


def _norms(
    model: Reader, settings: GradientSettings, lag: int, seed: int
) -> Float[np.ndarray, " T"]:
    """Root mean square over texts, at lags 0 to ``lag``."""
    graph, params = split(model)
    texts, directions = jax.random.split(jax.random.fold_in(jax.random.key(seed), 3))
    tokens = cued_texts(settings.texts, lag, settings.symbols)(texts)["tokens"]

    @jax.jit
    def program(params: PyTree, tokens: Int[Array, "B T"]) -> tuple[Array, Array]:
        reader = nnx.merge(graph, params)
        x = reader.embedding(tokens)
        return gradient_norms(reader.last_state, x, directions), reader.last_state(x)

    norms, state = (np.asarray(one, np.float64) for one in program(params, tokens))
    if not (np.isfinite(norms).all() and np.isfinite(state).all()):
        raise ConfigError(
            f"--kernel-scale {settings.kernel_scale:g}: states grow beyond float32 within "
            f"{plural(lag, 'position')}: choose a smaller one, or fewer --lags"
        )
    return np.sqrt(np.square(norms).mean(0))[::-1]


def _trained(
    model: Reader, settings: GradientSettings, seed: int, where: str, progress: FitProgress
) -> tuple[Reader, float]:
    """Returns the model trained on recall, and its accuracy over the last steps."""
    fitted = fit(
        model,
        answers,
        cued_texts(settings.batch_size, settings.trained_distance, settings.symbols),
        Schedule(settings.steps, settings.learning_rate, GOAL),
        seed=seed,
        progress=progress.within(f"{where}: training"),
    )
    recalled = fitted.metrics["accuracy"]
    progress(f"{where}: recalls {recalled:.2f} after {plural(fitted.steps, 'step')}", ends=True)
    return fitted.model, recalled
