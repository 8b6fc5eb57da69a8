"""Objectives of preferences: DPO, IPO, KTO, SimPO and reward models.

Rafailov et al. 2023; Azar et al. 2023; Ethayarajh et al. 2024; Meng et al. 2024; Ouyang et al.
2022.

Batches come from :class:`~transformer_jax.data.preference_examples.CompletionStore`: two rows of
tokens per example, along one axis, so that both are on one device.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Key, PyTree

from transformer_jax.core.errors import ConfigError
from transformer_jax.functional import preference_losses as losses
from transformer_jax.functional.kernels.vocabulary import PADDING
from transformer_jax.functional.losses import OutputTable, token_cross_entropy
from transformer_jax.models.heads import DecoderSequenceClassifier
from transformer_jax.models.layers.parameters import parameters
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.models.partition import EVERYTHING, Graph, Partition
from transformer_jax.models.protocol import ArrayModel, Scorer
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.training.step import Batch, Objective, Sums

__all__ = [
    "FrozenModel",
    "Policies",
    "PreferenceMethod",
    "beside_reference",
    "completion_log_probs",
    "preference",
    "reference_log_probs",
    "reward_model",
    "rewards",
    "token_log_probs",
]

PairLoss = Callable[[Array, Array, Array, Array], Array]
PreferenceMethod = Literal["dpo", "ipo", "kto", "simpo"]


class Policies(NamedTuple):
    """The model argument of objectives with a reference."""

    policy: Decoder
    reference: Decoder
    reward: DecoderSequenceClassifier | None = None  # a frozen reward model


class FrozenModel(NamedTuple):
    """A frozen model in addition to the trained one, such as a reward model."""

    make: Callable[[nnx.Rngs], nnx.Module]
    params: PyTree  # in host memory
    device: jax.Device  # one of its devices


def beside_reference(
    trained: Partition = EVERYTHING, reward: FrozenModel | None = None
) -> Partition:
    """A partition into the policy (split by ``trained``) and the reference, its frozen first copy.

    Only trained parameters are copied: with adapters, both policies share the base.

    Args:
        trained: The partition of the policy.
        reward: A reward model, also frozen.
    """

    def split(params: PyTree, rngs: nnx.Rngs) -> tuple[PyTree, PyTree]:
        trainable, frozen = trained.split(params, rngs)
        # The state is donated to each step, so the reference needs its own arrays.
        copy = lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf
        parts = {"policy": frozen, "reference": jax.tree.map(copy, trainable)}
        if reward is not None:
            declared = parameters(nnx.eval_shape(lambda: reward.make(nnx.Rngs(0))))
            is_param = lambda node: isinstance(node, nnx.Variable)
            fill = lambda param, value: param.replace(np.asarray(value))
            parts["reward"] = jax.tree.map(fill, declared, reward.params, is_leaf=is_param)
        return trainable, parts

    def merge(
        graph: Graph, trainable: PyTree, frozen: PyTree, key: Key[Array, ""] | None = None
    ) -> Policies:
        base = frozen.get("policy", {})  # stored trees have no empty parts
        reference, grader = jax.lax.stop_gradient(frozen["reference"]), None
        if reward is not None:
            model = nnx.eval_shape(lambda: reward.make(nnx.Rngs(0)))
            grader = nnx.merge(
                nnx.graphdef(with_attention_kernels(model, reward.device)), frozen["reward"]
            )
        policy = trained.merge(graph, trainable, base, key)
        return Policies(policy, trained.merge(graph, reference, base, None), grader)

    stored = None if trained.stored is None else {"policy": trained.stored}
    return Partition(split, merge, stored)


def token_log_probs(
    model: Scorer,
    tokens: Int[Array, "B T"],
    key: Key[Array, ""] | None = None,
    *,
    hidden: Float[Array, "B T D"] | None = None,
    suppressed: tuple[int, ...] = (),
) -> Float[Array, "B T"]:
    """Returns the log-probability of each token given the preceding ones; 0 for the first.

    If the logits of all positions take more than the model's table says, they are computed for a
    part of the positions at a time, and recomputed in the backward pass.

    Args:
        model: A language model.
        tokens: Rows of one text each.
        key: Dropout, if given.
        hidden: The hidden states of ``tokens``, if already known.
        suppressed: Tokens that are never sampled, whose probability is redistributed.
    """
    hidden = model.hidden(None, tokens, key=key) if hidden is None else hidden
    hidden, output, targets = hidden[:, :-1], model.output_table(), tokens[:, 1:]
    log_probs = functools.partial(_log_probs, output, suppressed)
    B, T = targets.shape
    count = min(T, output.storage.least_chunks(B * T, output.table.shape[0]))
    if count == 1:
        found = log_probs(hidden, targets)
    else:
        size = -(-T // count)

        def cut(x: Array) -> Array:
            x = jnp.pad(x, ((0, 0), (0, count * size - T)) + ((0, 0),) * (x.ndim - 2))
            return jnp.moveaxis(x.reshape(B, count, size, *x.shape[2:]), 1, 0)

        part = jax.checkpoint(lambda at: log_probs(*at))
        found = jnp.moveaxis(jax.lax.map(part, (cut(hidden), cut(targets))), 0, 1)
        found = found.reshape(B, count * size)[:, :T]
    return jnp.pad(found, ((0, 0), (1, 0)))


def _log_probs(
    output: OutputTable, suppressed: tuple[int, ...], hidden: Array, targets: Array
) -> Array:
    logits = output.stored_logits(hidden)
    if suppressed:
        never = np.isin(np.arange(logits.shape[-1]), suppressed)[None, None]
        logits = jnp.where(never, PADDING, logits)
    return -token_cross_entropy(logits, targets)


def completion_log_probs(
    model: Scorer, batch: Batch, key: Key[Array, ""] | None = None
) -> tuple[Float[Array, "B 2"], Float[Array, "B 2"]]:
    """Returns the log-probability of each completion, including the end, and its number of tokens.

    Args:
        model: The policy.
        batch: ``tokens`` ``[B 2 T]``, ``starts`` and ``lengths`` ``[B 2]``.
        key: Dropout, if given.
    """
    tokens = jnp.asarray(batch["tokens"])
    B, sides, T = tokens.shape
    found = token_log_probs(model, tokens.reshape(B * sides, T), key).reshape(tokens.shape)
    positions = jnp.arange(T)[None, None]
    starts, lengths = (jnp.asarray(batch[name])[..., None] for name in ("starts", "lengths"))
    inside = (positions >= starts) & (positions < lengths)
    return jnp.where(inside, found, 0).sum(-1), inside.sum(-1).astype(jnp.float32)


def reference_log_probs(model: Scorer, batch: Batch) -> Float[Array, "B 2"]:
    """Returns ``log π_ref`` of the completions of a batch, for the batch's ``reference``."""
    return completion_log_probs(model, batch)[0]


def preference(
    method: PreferenceMethod,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    margin: float = 1.0,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Objective:
    """The loss of a method, in nats per pair (for KTO, per completion).

    Sums besides ``loss``: ``accuracy``, the fraction of pairs whose chosen completion has the
    higher implicit reward (for KTO, the fraction of completions on the correct side of the
    reference point), and ``reward_margin``, the difference. The implicit rewards of SimPO are
    mean log-probabilities.

    Args:
        method: The loss, of :mod:`~transformer_jax.functional.preference_losses`.
        beta: Weight of the KL divergence from the reference; scale of SimPO's reward.
        label_smoothing: Probability that a preference is wrong (DPO).
        margin: ``γ`` of SimPO.
        desirable_weight: ``λ`` of desirable completions (KTO).
        undesirable_weight: ``λ`` of undesirable completions (KTO).

    Returns:
        ``objective(model, batch, key)``. The reference is ``batch["reference"]``, or else in the
        model, :class:`Policies`; SimPO has none. KTO compares the rows of a batch.

    Raises:
        ConfigError: A value is out of range.
    """
    if not beta > 0 or not 0 <= label_smoothing < 0.5 or margin < 0:
        raise ConfigError(
            f"align.beta is {beta}, align.label_smoothing {label_smoothing} and align.margin "
            f"{margin}: allowed are above 0, from 0 to below 0.5, and at least 0"
        )
    if method == "kto":
        return _kto(beta, desirable_weight, undesirable_weight)
    if method == "simpo":
        return functools.partial(_simpo, beta, margin)
    loss: PairLoss = functools.partial(losses.ipo_loss, beta=beta)
    if method == "dpo":
        loss = functools.partial(losses.dpo_loss, beta=beta, label_smoothing=label_smoothing)
    return functools.partial(_pairs, loss, beta)


def _ratios(
    model: Scorer | Policies, batch: Batch, key: Key[Array, ""] | None
) -> tuple[Array, Array]:
    """Returns log-probabilities under the policy and under the reference."""
    policy = model.policy if isinstance(model, Policies) else model
    found, _ = completion_log_probs(policy, batch, key)
    if "reference" in batch:
        return found, jnp.asarray(batch["reference"])
    if not isinstance(model, Policies):
        raise ConfigError(
            "this objective needs a reference: batches with 'reference', or the partition "
            "beside_reference(...)"
        )
    return found, jax.lax.stop_gradient(reference_log_probs(model.reference, batch))


def _row_weights(batch: Batch) -> Float[Array, " B"]:
    return (jnp.asarray(batch["lengths"])[:, 0] > 0).astype(jnp.float32)


def _sums(loss: Array, gain: Array, weights: Array) -> Sums:
    total, gain = weights.sum(), jax.lax.stop_gradient(gain)
    sum_ = lambda x: jnp.where(weights > 0, x, 0).sum()
    return {
        "loss": (sum_(loss), total),
        "accuracy": (sum_((gain > 0).astype(jnp.float32)), total),
        "reward_margin": (sum_(gain), total),
    }


def _pairs(
    loss: PairLoss,
    beta: float,
    model: Scorer | Policies,
    batch: Batch,
    key: Key[Array, ""] | None = None,
) -> Sums:
    policy, reference = _ratios(model, batch, key)
    found = loss(policy[:, 0], policy[:, 1], reference[:, 0], reference[:, 1])
    reward = losses.implicit_reward(policy, reference, beta)
    return _sums(found, reward[:, 0] - reward[:, 1], _row_weights(batch))


def _simpo(
    beta: float,
    margin: float,
    model: Scorer | Policies,
    batch: Batch,
    key: Key[Array, ""] | None = None,
) -> Sums:
    policy = model.policy if isinstance(model, Policies) else model
    total, count = completion_log_probs(policy, batch, key)
    mean = total / jnp.maximum(count, 1)
    found = losses.simpo_loss(mean[:, 0], mean[:, 1], beta=beta, margin=margin)
    return _sums(found, beta * (mean[:, 0] - mean[:, 1]), _row_weights(batch))


def _kto(beta: float, desirable_weight: float, undesirable_weight: float) -> Objective:
    def objective(
        model: Scorer | Policies, batch: Batch, key: Key[Array, ""] | None = None
    ) -> Sums:
        policy, reference = _ratios(model, batch, key)
        weights, desirable = _row_weights(batch), jnp.asarray(batch["labels"])
        point = losses.kto_reference_kl(policy[:, 1], reference[:, 1], weights)
        own = policy[:, 0], reference[:, 0], desirable
        found = losses.kto_loss(
            *own,
            point,
            beta=beta,
            desirable_weight=desirable_weight,
            undesirable_weight=undesirable_weight,
        )
        gain = losses.implicit_reward(own[0], own[1], beta) - beta * point
        return _sums(found, jnp.where(desirable, gain, -gain), weights)

    objective.whole_batch = True  # type: ignore[attr-defined]
    return objective


def rewards(
    model: ArrayModel, batch: Batch, key: Key[Array, ""] | None = None
) -> Float[Array, "B 2"]:
    """Returns the reward of each completion: the scalar output at its last token."""
    tokens, lengths = jnp.asarray(batch["tokens"]), jnp.asarray(batch["lengths"])
    B, sides, T = tokens.shape
    found = model(tokens.reshape(B * sides, T), lengths.reshape(B * sides), key=key)
    return found.reshape(B, sides)


def reward_model() -> Objective:
    """The Bradley-Terry loss of pairs, in nats; sums as in :func:`preference`."""

    def objective(model: ArrayModel, batch: Batch, key: Key[Array, ""] | None = None) -> Sums:
        found = rewards(model, batch, key)
        gain = found[:, 0] - found[:, 1]
        return _sums(losses.bradley_terry_loss(*found.T), gain, _row_weights(batch))

    return objective
