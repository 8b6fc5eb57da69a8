"""Rewards of samples: the purpose of the KL penalty.

A policy writes short texts and is rewarded for each "a" in them. PPO and GRPO raise the reward.
With a penalty that is adapted to a budget, the policy stays within this many nats of the initial
one; without it, it writes only "a": the reward is hacked (Ziegler et al. 2019, section 2).
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float

from transformer_jax.core.errors import plural
from transformer_jax.core.json_types import Json
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.laboratory.fitting import FitProgress, Say
from transformer_jax.laboratory.pictures import Line, Panel, draw_panels
from transformer_jax.laboratory.settings import MethodName, RewardSettings
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    TransformerConfig,
)
from transformer_jax.models.heads import ValuedDecoder
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.training import on_policy
from transformer_jax.training.on_policy import KLControl, Samples
from transformer_jax.training.preference_objectives import Policies, beside_reference
from transformer_jax.training.settings import OnPolicy
from transformer_jax.training.state import TrainState, split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RewardFigures", "rewards"]

_PAD, _START, _END, _A = range(4)  # tokens; letters begin at _A
_SPECIAL = SpecialTokens(_END, _PAD, (_PAD, _START))
_MEASURED = 40  # final steps to average
_SMOOTHED = 5  # steps per point of the picture


@dataclasses.dataclass(frozen=True)
class RewardFigures:
    """Rewards and KL divergences by method: a row for each step, with a value per seed."""

    settings: RewardSettings
    reward: dict[str, list[list[float]]]  # number of letters "a" per text
    kl: dict[str, list[list[float]]]  # nats per text, from the initial policy

    def to_dict(self) -> dict[str, Json]:
        """Returns the figures by name, for JSON."""
        return dataclasses.asdict(self)

    def ends(self, rows: list[list[float]]) -> list[float]:
        """Returns the mean over the last 40 steps of each seed."""
        found: list[float] = np.mean(rows[-_MEASURED:], axis=0).tolist()
        return found

    def table(self) -> list[list[str]]:
        """Returns a header, and a row for each method with and without the penalty."""
        head = ["policy", "reward at step 1", "reward", "KL in nats"]
        span = lambda values: f"{min(values):.2f} to {max(values):.2f}"
        rows = [
            [name, span(rows[0]), span(self.ends(rows)), span(self.ends(self.kl[name]))]
            for name, rows in self.reward.items()
        ]
        return [head, *rows]

    def draw(self, path: Path | None = None) -> "Figure":
        """Draws the picture, and saves it to ``path`` in the format of its suffix."""
        asked = self.settings
        title = f'Letters "a" of {plural(asked.length, "token")}'
        panels = [
            Panel(
                title, "step", "reward", _lines(self.reward),
                level=(asked.length, "all"), limits=(0.0, asked.length * 1.07), marks=False,
            ),
            Panel(
                "Distance from the policy of step 0", "step", "KL divergence (nats)",
                _lines(self.kl), level=(asked.budget, "budget"), marks=False,
            ),
        ]  # fmt: skip
        return draw_panels(
            panels, path, title="A reward with and without a budget of KL divergence"
        )


def _lines(values: dict[str, list[list[float]]]) -> list[Line]:
    """Averages consecutive steps."""
    lines = []
    for name, rows in values.items():
        whole = len(rows) // _SMOOTHED * _SMOOTHED or len(rows)
        size = min(_SMOOTHED, whole)
        means = np.reshape(rows[:whole], (-1, size, len(rows[0]))).mean(1)
        lines.append(Line(name, range(size, whole + 1, size), means))
    return lines


def rewards(
    settings: RewardSettings = RewardSettings(), *, say: Say | None = None
) -> RewardFigures:
    """Trains a policy by each method, with the budget and without a penalty.

    Args:
        settings: The settings.
        say: Called with lines about the progress.
    """
    progress = FitProgress(say)
    reward: dict[str, list[list[float]]] = {}
    kl: dict[str, list[list[float]]] = {}
    seeds = range(settings.seed, settings.seed + settings.seeds)
    for method in settings.methods:
        within = KLControl(settings.kl_coefficient, settings.budget)
        for name, control in ((method, within), (f"{method} without penalty", KLControl(0.0))):
            progress(f"{name}: compiling")
            train = _trainer(settings, method, control)
            curves = []
            for seed in seeds:
                curves.append(train(seed))
                last = {
                    key: float(np.mean(curve[-_MEASURED:])) for key, curve in curves[-1].items()
                }
                progress(
                    f"{name}, seed {seed}: reward {last['reward']:.2f}, KL {last['kl']:.2f} nats",
                    ends=True,
                )
            stacked = {
                key: np.stack([one[key] for one in curves], 1).astype(float).round(4)
                for key in curves[0]
            }
            reward[name], kl[name] = stacked["reward"].tolist(), stacked["kl"].tolist()
    return RewardFigures(settings, reward, kl)


Curves = Callable[[int], dict[str, Float[np.ndarray, " steps"]]]


def _trainer(settings: RewardSettings, method: MethodName, control: KLControl) -> Curves:
    """Returns a function from a seed to rewards and KL divergences of all steps, compiled once."""
    how = OnPolicy(method, length=settings.length, group_size=settings.group_size)
    kind, objective = Decoder, on_policy.grpo(how.clip, _SPECIAL.suppress_tokens)
    if method == "ppo":
        kind = ValuedDecoder
        objective = on_policy.ppo(
            how.clip, how.value_weight, how.value_clip, _SPECIAL.suppress_tokens
        )
    collecting = functools.partial(on_policy.collect, how=how, reward=_count_of_a, special=_SPECIAL)
    partition = beside_reference()
    tx = on_policy.adaptive_kl(optax.adam(settings.learning_rate), control.initial)
    config = _config(settings)
    make = on_policy.on_policy(collecting, control, updates=2)

    @jax.jit
    def program(seed: Array) -> dict[str, Float[Array, " steps"]]:
        root = jax.random.key(seed)
        graph, params = split(kind(config, rngs=nnx.Rngs(root)))
        trainable, frozen = partition.split(params, nnx.Rngs(root))
        step = make(objective, tx, functools.partial(partition.merge, graph))

        def one(state: TrainState, number: Array) -> tuple[TrainState, dict[str, Array]]:
            key = jax.random.fold_in(root, number)
            state, metrics = step(state, frozen, _prompts(settings, key), key)
            return state, {name: metrics[name] for name in ("reward", "kl")}

        state = TrainState.create(trainable, tx)
        return jax.lax.scan(one, state, jnp.arange(settings.steps))[1]

    return lambda seed: jax.device_get(program(jnp.uint32(seed)))


def _config(settings: RewardSettings) -> TransformerConfig:
    # Embeddings of scale 1: with a larger one, a new model repeats the previous token, also "a".
    return TransformerConfig(
        vocab_size=_A + settings.letters,
        d_model=settings.d_model,
        encoder_layers=0,
        decoder_layers=1,
        embedding=EmbeddingConfig(scale=1.0),
        attention=AttentionConfig(num_heads=2, dropout=0.0),
        feed_forward=FeedForwardConfig(d_ff=2 * settings.d_model),
    )


def _prompts(settings: RewardSettings, key: Array) -> dict[str, Array]:
    """Returns random words of 4 letters after the start token."""
    words = jax.random.randint(key, (settings.batch_size, 4), _A, _A + settings.letters)
    tokens = jnp.pad(words, ((0, 0), (1, 0)), constant_values=_START)
    return {"tokens": tokens, "starts": jnp.zeros(settings.batch_size, jnp.int32)}


def _count_of_a(model: Policies, samples: Samples) -> Float[Array, " B"]:
    del model
    return (samples.inside & (samples.tokens == _A)).sum(1).astype(jnp.float32)
