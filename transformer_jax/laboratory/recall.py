"""Recall over distances: why long dependencies are hard for recurrence.

A text is a cue, then other symbols, then a question; the answer is the cue. A recurrent network has
to carry the cue through every state in between, and its gradient has to travel back the same way.
Attention reads it in one step from any distance. Hochreiter and Schmidhuber 1997, section 5.2, is a
task of this kind.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Key

from transformer_jax.core.errors import plural
from transformer_jax.core.json_types import Json
from transformer_jax.functional.losses import cross_entropy
from transformer_jax.laboratory.fitting import FitProgress, Say, Schedule, evaluated, fit
from transformer_jax.laboratory.pictures import Line, Panel, draw_panels
from transformer_jax.laboratory.readers import Reader, nearest_sizes
from transformer_jax.laboratory.settings import ReaderName, RecallSettings
from transformer_jax.training.step import Batch, Sums

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RecallFigures", "answers", "cued_texts", "make_reader", "recall"]

GOAL = 0.999  # accuracy over 50 steps at which training ends


@dataclasses.dataclass(frozen=True)
class RecallFigures:
    """Accuracies by model, distance and seed."""

    settings: RecallSettings
    sizes: dict[str, int]  # size of a state
    parameters: dict[str, int]
    accuracy: dict[str, list[list[float]]]  # by model: a row per distance, a value per seed
    steps: dict[str, list[list[int]]]  # number of training steps

    def mean(self, model: str) -> list[float]:
        """Returns the accuracy at each distance, averaged over seeds."""
        return [sum(row) / len(row) for row in self.accuracy[model]]

    def to_dict(self) -> dict[str, Json]:
        """Returns the figures by name, for JSON."""
        return {"chance": 1 / self.settings.symbols, **dataclasses.asdict(self)}

    def table(self) -> list[list[str]]:
        """Returns a header, and a row for each model."""
        head = ["model", "parameters", *(f"D={D}" for D in self.settings.distances)]
        rows = [
            [name, f"{self.parameters[name]:,}", *(f"{mean:.2f}" for mean in self.mean(name))]
            for name in self.accuracy
        ]
        return [head, *rows]

    def draw(self, path: Path | None = None) -> "Figure":
        """Draws the picture, and saves it to ``path`` in the format of its suffix."""
        asked = self.settings
        lines = [Line(name, asked.distances, self.accuracy[name]) for name in self.accuracy]
        panel = Panel(
            f"Recall of one of {asked.symbols} symbols",
            "positions since the symbol was seen",
            "accuracy",
            lines,
            logarithmic="x",
            level=(1 / asked.symbols, "chance"),
            limits=(0.0, 1.05),
        )
        return draw_panels([panel], path)


def recall(settings: RecallSettings = RecallSettings(), *, say: Say | None = None) -> RecallFigures:
    """Trains each model at each distance, and measures how well it recalls.

    All models see the same texts in the same order. A new model is trained for each distance.

    Args:
        settings: The settings.
        say: Called with lines about the progress.

    Raises:
        ConfigError: No size of a model has this many parameters.
    """
    progress = FitProgress(say)
    make = functools.partial(make_reader, symbols=settings.symbols)
    longest = functools.partial(make, length=max(settings.distances) + 1, seed=settings.seed)
    sizes, count = nearest_sizes(settings.models, longest, settings.parameters)
    accuracy: dict[str, list[list[float]]] = {name: [] for name in sizes}
    steps: dict[str, list[list[int]]] = {name: [] for name in sizes}
    for distance in settings.distances:
        texts = cued_texts(settings.batch_size, distance, settings.symbols)
        for name in settings.models:
            accuracy[name].append([])
            steps[name].append([])
            for seed in range(settings.seed, settings.seed + settings.seeds):
                where = f"{name}, distance {distance}, seed {seed}"
                progress(f"{where}: compiling")
                model = make(name, sizes[name], length=distance + 1, seed=seed)
                schedule = Schedule(settings.steps, settings.learning_rate, GOAL)
                say_there = progress.within(where)
                fitted = fit(model, answers, texts, schedule, seed=seed, progress=say_there)
                batches = -(-settings.eval_texts // settings.batch_size)
                found = evaluated(fitted.model, answers, texts, batches=batches, seed=seed)
                accuracy[name][-1].append(found["accuracy"])
                steps[name][-1].append(fitted.steps)
                said = f"accuracy {found['accuracy']:.3f} after {plural(fitted.steps, 'step')}"
                progress(f"{where}: {said}", ends=True)
    return RecallFigures(settings, sizes, count, accuracy, steps)


def make_reader(name: ReaderName, size: int, *, symbols: int, length: int, seed: int) -> Reader:
    """Makes a new model for texts from :func:`cued_texts`.

    Args:
        name: Kind of its layer.
        size: Size of a state.
        symbols: Number of different cues.
        length: Length of the longest text.
        seed: Random seed of the parameters.
    """
    return Reader(
        name, size, vocab_size=2 * symbols + 1, classes=symbols, length=length, rngs=nnx.Rngs(seed)
    )


def cued_texts(rows: int, distance: int, symbols: int) -> Callable[[Key[Array, ""]], Batch]:
    """Returns a function from a key to ``tokens [B D+1]`` and ``answers [B]``, the first tokens.

    Cues are 0 up to ``symbols``, the fillers are as many symbols after them, and the question is
    the last.

    Args:
        rows: Number of texts.
        distance: Number of positions from cue to question.
        symbols: Number of different cues.

    Example:
        >>> batch = cued_texts(2, 4, 3)(jax.random.key(0))
        >>> batch["tokens"].shape, batch["tokens"][:, -1], batch["tokens"][:, 1:-1].min() >= 3
        ((2, 5), Array([6, 6], dtype=int32), Array(True, dtype=bool))
        >>> bool((batch["tokens"][:, 0] == batch["answers"]).all())
        True
    """

    def make(key: Key[Array, ""]) -> Batch:
        first, others = jax.random.split(key)
        cues = jax.random.randint(first, (rows, 1), 0, symbols)
        between = jax.random.randint(others, (rows, distance - 1), symbols, 2 * symbols)
        question = jnp.full((rows, 1), 2 * symbols)
        tokens = jnp.concatenate([cues, between, question], axis=1)
        return {"tokens": tokens, "answers": cues[:, 0]}

    return make


def answers(
    model: Callable[[Array], Array], batch: Batch, key: Key[Array, ""] | None = None
) -> Sums:
    """Returns the cross-entropy of the answers, in nats, and ``accuracy``.

    Args:
        model: Maps tokens ``[B T]`` to a score for each answer, like a :class:`.Reader`.
        batch: A batch from :func:`cued_texts`.
        key: Unused: there is no dropout.
    """
    del key
    logits = model(batch["tokens"])
    total, weight = cross_entropy(logits, batch["answers"])
    correct = (logits.argmax(-1) == batch["answers"]).sum().astype(jnp.float32)
    return {"loss": (total, weight), "accuracy": (correct, weight)}
