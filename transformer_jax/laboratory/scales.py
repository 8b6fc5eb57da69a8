"""Attention scores with and without scaling: their variance, and the gradient of their softmax.

The product of independent queries and keys has variance D. Large scores make the softmax select one
key, and its gradient vanishes, so nothing is learned any more. Divided by the square root of D,
they have variance 1 at every size. Vaswani et al. 2017, section 3.2.1.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer_jax.core.json_types import Json
from transformer_jax.functional.attention import attention_weights
from transformer_jax.functional.scores import ScaledDot
from transformer_jax.laboratory.fitting import Say
from transformer_jax.laboratory.pictures import Line, Panel, draw_panels
from transformer_jax.laboratory.settings import ScaleSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ScaleFigures", "scales", "softmax_gradient_norm"]

_LABELS = {"scaled": "divided by √D", "plain": "plain dot product"}


@dataclasses.dataclass(frozen=True)
class ScaleFigures:
    """Variances and norms by score, size and seed."""

    settings: ScaleSettings
    variance: dict[str, list[list[float]]]  # of scores: a row for each size, with a value per seed
    gradient: dict[str, list[list[float]]]  # mean of softmax_gradient_norm

    def to_dict(self) -> dict[str, Json]:
        """Returns the figures by name, for JSON."""
        return dataclasses.asdict(self)

    def table(self) -> list[list[str]]:
        """Returns a header, and two rows for each score."""
        rows = [["score", "of", *(f"D={size}" for size in self.settings.sizes)]]
        for name in self.gradient:
            for what in ("variance", "gradient"):
                values = getattr(self, what)[name]
                rows.append([name, what, *(f"{np.mean(value):.3g}" for value in values)])
        return rows

    def draw(self, path: Path | None = None) -> "Figure":
        """Draws the picture, and saves it to ``path`` in the format of its suffix."""
        sizes, across = self.settings.sizes, "D: size of queries and keys"
        lines = lambda found: [
            Line(name, sizes, rows, _LABELS[name]) for name, rows in found.items()
        ]
        norm = "mean norm of its Jacobian"
        panels = [
            Panel("variance of scores", across, "variance", lines(self.variance), "both"),
            Panel("gradient of the softmax", across, norm, lines(self.gradient), "both"),
        ]
        return draw_panels(panels, path, title="Attention scores with and without their scale")


def softmax_gradient_norm(weights: Float[Array, "*rows S"]) -> Float[Array, "*rows"]:
    """Returns the Frobenius norm of the Jacobian of a softmax, ``diag(a) - a aᵀ``.

    Args:
        weights: ``a``, whose last axis sums to one.

    Example:
        >>> softmax_gradient_norm(jnp.array([[0.5, 0.5], [1.0, 0.0]]))
        Array([0.5, 0. ], dtype=float32)
    """
    # Entry by entry, since sums of powers would cancel if one weight is nearly one.
    beside = weights[..., :, None] * weights[..., None, :]
    diagonal = (weights * (1 - weights))[..., None]
    own = jnp.broadcast_to(jnp.eye(weights.shape[-1], dtype=bool), beside.shape)
    jacobian = jnp.where(own, diagonal, beside)
    return jnp.sqrt((jacobian**2).sum((-2, -1)))


def scales(settings: ScaleSettings = ScaleSettings(), *, say: Say | None = None) -> ScaleFigures:
    """Measures scores of random queries and keys, and the gradient of their softmax.

    Args:
        settings: The settings.
        say: Called with lines about the progress.
    """
    scores = {"scaled": ScaledDot(), "plain": ScaledDot(1.0)}
    variance: dict[str, list[list[float]]] = {name: [] for name in scores}
    gradient: dict[str, list[list[float]]] = {name: [] for name in scores}
    for size in settings.sizes:
        if say is not None:
            say(f"D = {size}")
        for name, score in scores.items():
            seeds = range(settings.seed, settings.seed + settings.seeds)
            found = [_measured(settings, size, score, seed) for seed in seeds]
            variance[name].append([value for value, _ in found])
            gradient[name].append([norm for _, norm in found])
    return ScaleFigures(settings, variance, gradient)


def _measured(
    settings: ScaleSettings, size: int, score: ScaledDot, seed: int
) -> tuple[float, float]:
    """Returns the variance of scores, and the mean norm of the Jacobian of their softmax."""
    keys = jax.random.split(jax.random.key(seed))
    q = jax.random.normal(keys[0], (1, settings.queries, 1, size))
    k = jax.random.normal(keys[1], (1, settings.keys, 1, size))
    scores = score(q.swapaxes(1, 2), k.swapaxes(1, 2))
    weights = attention_weights(q, k, None, score=score)[0, 0]
    return float(scores.var()), float(softmax_gradient_norm(weights).mean())
