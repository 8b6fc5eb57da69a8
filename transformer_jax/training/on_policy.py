"""Learning from a policy's own samples: PPO and GRPO inside the compiled step.

Schulman et al. 2017, arXiv:1707.06347; Shao et al. 2024, arXiv:2402.03300.

A batch has prompts. The step samples completions with the same search as generation, computes their
rewards, and takes several updates on them; only tokens for a Python reward function leave the
devices.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from transformer_jax.core.errors import ConfigError
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.programs import SearchPrompts, search_prompts
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.decoding.search_state import row_keys
from transformer_jax.functional import policy_gradients as gradients
from transformer_jax.functional.partitioning import constrain_rows
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.heads import ValuedDecoder
from transformer_jax.models.partition import Merge
from transformer_jax.models.protocol import Decodable
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.training.preference_objectives import Policies, token_log_probs
from transformer_jax.training.settings import OnPolicy
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import Batch, MakeStep, Objective, Step, Sums, make_step, means

__all__ = [
    "Adaptive",
    "KLControl",
    "Samples",
    "adaptive_kl",
    "collect",
    "evaluation",
    "grpo",
    "kl_coefficient",
    "on_policy",
    "ppo",
    "sample",
]


class Samples(NamedTuple):
    """Prompts with completions sampled from a policy; padding is on the right.

    Attributes:
        tokens: The start token, the prompt, the completion, and padding.
        starts: Index of the first token of each completion.
        lengths: Number of tokens of each row without padding.
        finished: Whether a completion ends with an end token.
        numbers: Index of each row's prompt among all prompts.
    """

    tokens: Int[Array, "B T"]
    starts: Int[Array, " B"]
    lengths: Int[Array, " B"]
    finished: Bool[Array, " B"]
    numbers: Int[Array, " B"]

    @property
    def inside(self) -> Bool[Array, "B T"]:
        """True at tokens of completions."""
        at = jnp.arange(self.tokens.shape[1])[None]
        return (at >= self.starts[:, None]) & (at < self.lengths[:, None])


# (model, prompts, key, weight of the KL penalty) -> a batch, and sums for metrics
Collecting = Callable[
    [Policies, dict[str, Array], Key[Array, ""], Float[Array, ""]], tuple[dict[str, Array], Sums]
]
# The reward of each sample.
Reward = Callable[[Policies, Samples], Float[Array, " B"]]


class KLControl(NamedTuple):
    """The weight of the KL penalty, adapted to a KL budget.

    Attributes:
        initial: The weight at the first step; 0 is no penalty.
        target: Target of the mean KL divergence from the reference, in nats per completion; None
            keeps the weight constant.
        horizon: Rate of adaptation.
    """

    initial: float = 0.05
    target: float | None = None
    horizon: float = 0.1

    def next(self, coefficient: Float[Array, ""], kl: Float[Array, ""]) -> Float[Array, ""]:
        """Returns ``β (1 + K clip(kl / target − 1, −0.2, 0.2))``: Ziegler et al. 2019, section 2.2.

        Example:
            >>> KLControl(0.1, target=2.0).next(jnp.float32(0.1), jnp.float32(9.0)).round(4)
            Array(0.102, dtype=float32)
        """
        if self.target is None:
            return coefficient
        error = jnp.clip(kl / self.target - 1, -0.2, 0.2)
        return coefficient * (1 + self.horizon * jnp.where(jnp.isfinite(error), error, 0))


FIXED = KLControl()


class Adaptive(NamedTuple):
    """The state of an optimizer with the weight of the KL penalty."""

    inner: PyTree
    kl_coefficient: Float[Array, ""]


def adaptive_kl(tx: optax.GradientTransformation, initial: float) -> optax.GradientTransformation:
    """Adds the weight of the KL penalty to the state of ``tx``, so that checkpoints store it.

    Args:
        tx: An optimizer.
        initial: The weight at the first step.

    Example:
        >>> state = adaptive_kl(optax.sgd(0.1), 0.5).init({"w": jnp.ones(2)})
        >>> kl_coefficient(state)
        Array(0.5, dtype=float32)
    """
    wide = optax.with_extra_args_support(tx)

    def update(
        updates: PyTree, state: Adaptive, params: PyTree = None, **more: PyTree
    ) -> tuple[PyTree, Adaptive]:
        updates, inner = wide.update(updates, state.inner, params, **more)
        return updates, state._replace(inner=inner)

    start = lambda params: Adaptive(tx.init(params), jnp.asarray(initial, jnp.float32))
    return optax.GradientTransformationExtraArgs(start, update)


def kl_coefficient(opt_state: Adaptive) -> Float[Array, ""]:
    """Returns the weight of the KL penalty in the state of :func:`adaptive_kl`."""
    return opt_state.kl_coefficient


@runtime_checkable
class SampledModel(Decodable, Protocol):
    """A language model to sample from."""

    @property
    def config(self) -> TransformerConfig:
        """Its configuration."""


def sample(
    model: SampledModel,
    prompts: dict[str, Array],
    key: Key[Array, ""],
    special: SpecialTokens,
    *,
    length: int,
    group: int = 1,
) -> Samples:
    """Samples completions of prompts from the policy, ``group`` per prompt in adjacent rows.

    Args:
        model: A language model for decoding.
        prompts: ``tokens`` ``[B P]``, padded on the left, ``starts`` ``[B]``, the index of each
            prompt's first token, and ``numbers`` ``[B]``, the index of the prompt; by default, the
            index of the row.
        key: Key of this batch; the sample of a row depends on it and on the row's number.
        special: Ids of end tokens, of padding and of suppressed tokens.
        length: Maximum number of new tokens, including the end.
        group: Number of completions per prompt.
    """
    given = {"numbers": jnp.arange(len(prompts["starts"]), dtype=jnp.int32)} | prompts
    tokens, begins, numbers = constrain_rows(
        tuple(jnp.repeat(given[name], group, axis=0) for name in ("tokens", "starts", "numbers"))
    )
    B, P = tokens.shape
    config = GenerationConfig(normalization="none")
    vocab = model.config.vocab_size
    settings = search_settings(config, special, vocab=vocab, length=length, sampled=True)
    asked = SearchPrompts(tokens, begins, None, keys=row_keys(key, jnp.arange(B)))
    out = search_prompts(model, asked, *settings, length=length)
    whole = jnp.concatenate([tokens, out.tokens[:, 0]], axis=1)
    at = jnp.arange(P + length)[None]
    lengths = P - begins + out.lengths[:, 0]
    # Shifts left by each prompt's padding.
    moved = jnp.take_along_axis(whole, jnp.minimum(at + begins[:, None], P + length - 1), axis=1)
    moved = jnp.where(at < lengths[:, None], moved, special.pad)
    starts, lengths = (P - begins).astype(jnp.int32), lengths.astype(jnp.int32)
    return Samples(moved, starts, lengths, out.ended[:, 0], numbers)


def collect(
    model: Policies,
    prompts: dict[str, Array],
    key: Key[Array, ""],
    coefficient: Float[Array, ""],
    *,
    how: OnPolicy,
    reward: Reward,
    special: SpecialTokens,
) -> tuple[dict[str, Array], Sums]:
    """Samples a batch from the policy, and computes advantages and metrics.

    For PPO, the penalty ``−β log(π/π_ref)`` of each token is part of its reward; for GRPO, it is
    part of the loss. Sums: ``reward``, ``kl`` (nats per completion, estimator k1),
    ``completion_length`` and ``finished``.

    Args:
        model: The policy and its reference.
        prompts: See :func:`sample`; rows whose ``counted``, if given, is 0 are excluded from sums.
        key: Key of this batch.
        coefficient: ``β``.
        how: The method and its settings.
        reward: The reward of samples.
        special: See :func:`sample`.
    """
    samples = sample(model.policy, prompts, key, special, length=how.length, group=how.group_size)
    mask = samples.inside
    hidden = model.policy.hidden(None, samples.tokens)
    # Log-probabilities of the sampling distribution; otherwise the probability of suppressed tokens
    # would escape the penalty.
    never = special.suppress_tokens
    old = token_log_probs(model.policy, samples.tokens, hidden=hidden, suppressed=never)
    reference = token_log_probs(model.reference, samples.tokens, suppressed=never)
    earned = reward(model, samples).astype(jnp.float32)
    away = jnp.where(mask, gradients.kl_k1(old, reference), 0)
    made = {"tokens": samples.tokens, "mask": mask, "old": old, "reference": reference}
    if how.method == "grpo":
        scores = gradients.group_advantages(earned.reshape(-1, how.group_size)).reshape(-1)
        made["advantages"] = jnp.where(mask, scores[:, None], 0)
        made["coefficient"] = jnp.broadcast_to(coefficient, earned.shape)
    else:
        last = jnp.arange(mask.shape[1])[None] == samples.lengths[:, None] - 1
        rewards = jnp.where(last & mask, earned[:, None], 0) - coefficient * away
        values = _before(cast(ValuedDecoder, model.policy).values(hidden))
        found, returns = gradients.generalized_advantages(
            rewards, values, mask, discount=how.discount, decay=how.gae_decay
        )
        made["advantages"] = gradients.normalized_advantages(found, mask)
        made |= {"returns": returns, "values": values}
    counted = jnp.repeat(prompts.get("counted", jnp.ones(len(prompts["starts"]))), how.group_size)
    total = lambda x: ((x * counted).sum().astype(jnp.float32), counted.sum())
    sums = {
        "reward": total(earned),
        "kl": total(away.sum(1)),
        "completion_length": total(mask.sum(1)),
        "finished": total(samples.finished),
    }
    return jax.lax.stop_gradient(made), sums


def _before(values: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Returns the value before each token, which is the output at the previous token."""
    return jnp.pad(values[:, :-1], ((0, 0), (1, 0)))


def grpo(clip: float = 0.2, suppressed: tuple[int, ...] = ()) -> Objective:
    """Group-relative policy optimization: the clipped surrogate plus ``β`` KL (estimator k3).

    The loss is averaged over the tokens of a completion, then over completions. Batches come from
    :func:`collect`. Shao et al. 2024, formula (3).

    Args:
        clip: ``ε``.
        suppressed: Tokens that are never sampled.
    """

    def objective(
        model: Decoder | Policies, batch: dict[str, Array], key: Key[Array, ""] | None = None
    ) -> Sums:
        now = token_log_probs(_policy(model), batch["tokens"], key, suppressed=suppressed)
        mask = batch["mask"]
        surrogate = gradients.ppo_policy_loss(now, batch["old"], batch["advantages"], clip)
        kl = gradients.kl_k3(now, batch["reference"])
        loss = jnp.where(mask, surrogate + batch["coefficient"][:, None] * kl, 0)
        rows = (loss.sum(1) / jnp.maximum(mask.sum(1), 1)).sum()
        return {"loss": (rows, jnp.float32(len(mask)))} | _clipped(now, batch, clip)

    return objective


def ppo(
    clip: float = 0.2,
    value_weight: float = 0.5,
    value_clip: float = 0.2,
    suppressed: tuple[int, ...] = (),
) -> Objective:
    """Proximal policy optimization: the clipped surrogate plus the loss of the value head.

    Losses are averaged over the tokens of completions. The policy is a
    :class:`~transformer_jax.models.heads.ValuedDecoder`; batches come from :func:`collect`.
    Schulman et al. 2017; Ziegler et al. 2019.

    Args:
        clip: ``ε``.
        value_weight: Weight of the loss of the value head.
        value_clip: Maximum change of a value per batch.
        suppressed: Tokens that are never sampled.
    """

    def objective(
        model: Decoder | Policies, batch: dict[str, Array], key: Key[Array, ""] | None = None
    ) -> Sums:
        policy, mask = cast(ValuedDecoder, _policy(model)), batch["mask"]
        hidden = policy.hidden(None, batch["tokens"], key=key)
        now = token_log_probs(policy, batch["tokens"], hidden=hidden, suppressed=suppressed)
        surrogate = gradients.ppo_policy_loss(now, batch["old"], batch["advantages"], clip)
        values = _before(policy.values(hidden))
        errors = gradients.ppo_value_loss(values, batch["values"], batch["returns"], value_clip)
        total = lambda x: jnp.where(mask, x, 0).sum()
        weight = mask.sum().astype(jnp.float32)
        return {
            "loss": (total(surrogate + value_weight * errors), weight),
            "value_loss": (total(errors), weight),
        } | _clipped(now, batch, clip)

    return objective


def _policy(model: Decoder | Policies) -> Decoder:
    return model.policy if isinstance(model, Policies) else model


def _clipped(now: Array, batch: dict[str, Array], clip: float) -> Sums:
    """Returns the fraction of tokens whose probability ratio exceeds the clip."""
    mask = batch["mask"]
    far = jnp.abs(jnp.exp(now - batch["old"]) - 1) > clip
    return {"clipped": ((far & mask).sum().astype(jnp.float32), mask.sum().astype(jnp.float32))}


def on_policy(collecting: Collecting, control: KLControl = FIXED, updates: int = 1) -> MakeStep:
    """Returns ``make_step`` for learning from the model's own samples.

    ``state.step`` grows by one per step, regardless of the number of updates; the samples of a step
    depend only on the state, the prompts and the step, so that runs resume exactly. The optimizer
    must come from :func:`adaptive_kl`.

    Args:
        collecting: :func:`collect` with its keyword arguments.
        control: Controller of the KL weight.
        updates: Optimizer updates per step of samples.

    Raises:
        ConfigError: ``updates`` is below 1; or, when traced, the step is compiled by ``pmap``.
    """
    if updates < 1:
        raise ConfigError(f"align.updates is {updates}: at least 1")

    def make(
        objective: Objective,
        tx: optax.GradientTransformation,
        merge: Merge,
        *,
        accumulation: int = 1,
        ema_decay: float | None = None,
    ) -> Step:
        inner = make_step(objective, tx, merge, accumulation=accumulation, ema_decay=ema_decay)

        def step(
            state: TrainState,
            frozen: PyTree,
            batch: Batch,
            key: Key[Array, ""] | None = None,
            *,
            axis_name: str | None = None,
            shardings: PyTree | None = None,
        ) -> tuple[TrainState, dict[str, Array]]:
            if axis_name is not None:
                raise ConfigError("training.mode is pmap, but samples need all rows: use jit")
            assert key is not None, "samples need a key"
            begun, coefficient = state.step, kl_coefficient(state.opt_state)
            keys = jax.random.split(jax.random.fold_in(key, begun), updates + 1)
            policies = merge(state.params, frozen, None)
            written, sums = collecting(policies, batch, keys[0], coefficient)
            measured = means(sums) | {"kl_coefficient": coefficient}
            metrics: dict[str, Array] = {}
            for i in range(updates):
                state = state._replace(step=begun)
                state, metrics = inner(state, frozen, written, keys[i + 1], shardings=shardings)
            after = control.next(coefficient, measured["kl"])
            changed = state.opt_state._replace(kl_coefficient=after)
            return state._replace(opt_state=changed), metrics | measured

        return step

    return make


def evaluation(collecting: Collecting, seed: int = 0) -> Objective:
    """Returns the metrics of validation: ``reward``, ``kl`` and ``loss``, the negative reward.

    Args:
        collecting: :func:`collect` with its keyword arguments.
        seed: Seed of the samples, which are the same at each evaluation.
    """

    def objective(model: Policies, batch: Batch, key: Key[Array, ""] | None = None) -> Sums:
        del key
        drawn = jax.random.key(seed)
        _, sums = collecting(model, batch, drawn, jnp.float32(0))
        value, weight = sums["reward"]
        return {"loss": (-value, weight), **sums}

    return objective
