"""Losses of preferences between two texts, or of texts labelled desirable or undesirable.

Policies are compared by the log-probability of a completion, summed over its tokens; SimPO uses the
mean over its tokens. All losses are per pair or per completion, in nats, to be summed by the
caller, and are computed in the dtype of the log-probabilities.

``log σ`` is ``-softplus(-x)``: no loss overflows, however much the completions differ.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.functional.array_arguments import real_arguments

__all__ = [
    "bradley_terry_loss",
    "dpo_loss",
    "implicit_reward",
    "ipo_loss",
    "kto_loss",
    "kto_reference_kl",
    "simpo_loss",
]


@real_arguments
def bradley_terry_loss(
    chosen: Float[Array, "*pairs"], rejected: Float[Array, "*pairs"]
) -> Float[Array, "*pairs"]:
    """The loss of a reward model on a pair: ``−log σ(r_chosen − r_rejected)``.

    ``σ(r_a − r_b)`` is the probability that a is preferred to b, so only differences of rewards
    are learned.

    Source: Bradley and Terry 1952; Ouyang et al. 2022, https://arxiv.org/abs/2203.02155, formula
    (1).

    Example:
        >>> bradley_terry_loss(jnp.array([1.0, 3.0]), jnp.array([1.0, 1.0])).round(4)
        Array([0.6931, 0.1269], dtype=float32)
    """
    return jax.nn.softplus(rejected - chosen)


@real_arguments
def implicit_reward(
    log_prob: Float[Array, "*rows"], reference: Float[Array, "*rows"], beta: float
) -> Float[Array, "*rows"]:
    """The reward for which a policy is optimal: ``β log(π/π_ref)``, up to a per-prompt constant.

    Args:
        log_prob: ``log π`` of a completion.
        reference: ``log π_ref`` of the same completion.
        beta: Weight of the KL divergence from the reference.

    Source: Rafailov et al. 2023, https://arxiv.org/abs/2305.18290, formula (5).

    Example:
        >>> implicit_reward(jnp.array([-1.0]), jnp.array([-3.0]), beta=0.5)
        Array([1.], dtype=float32)
    """
    return beta * (log_prob - reference)


@real_arguments
def dpo_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    reference_chosen: Float[Array, "*pairs"],
    reference_rejected: Float[Array, "*pairs"],
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Float[Array, "*pairs"]:
    """Direct preference optimization: ``−log σ(β h)``, h the margin beyond the reference's.

    ``h = log(π/π_ref)(chosen) − log(π/π_ref)(rejected)``, of log-probabilities summed over tokens.
    With label smoothing ``ε`` the loss is ``−(1 − ε) log σ(β h) − ε log σ(−β h)``, for
    preferences that are wrong with probability ``ε``.

    Args:
        chosen: ``log π`` of the preferred completion.
        rejected: ``log π`` of the rejected completion.
        reference_chosen: ``log π_ref`` of the preferred completion.
        reference_rejected: ``log π_ref`` of the rejected completion.
        beta: Weight of the KL divergence from the reference.
        label_smoothing: ``ε``, below 0.5.

    Source: Rafailov et al. 2023, https://arxiv.org/abs/2305.18290, formula (7); label smoothing
    as in its authors' "conservative DPO", https://ericmitchell.ai/cdpo.pdf.

    Example:
        >>> same = jnp.array([-2.0])
        >>> dpo_loss(same, same, same, same) == jnp.log(2.0)
        Array([ True], dtype=bool)
    """
    scaled = beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
    loss = jax.nn.softplus(-scaled)
    return loss + label_smoothing * scaled if label_smoothing else loss


@real_arguments
def ipo_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    reference_chosen: Float[Array, "*pairs"],
    reference_rejected: Float[Array, "*pairs"],
    *,
    beta: float = 0.1,
) -> Float[Array, "*pairs"]:
    """Identity preference optimization: ``(h − 1 / (2 β))²``, h as in :func:`dpo_loss`.

    The margin has a target, so certain preferences do not push the policy ever further away. The
    paper sums log-probabilities over tokens; TRL takes their mean, which changes the meaning of
    ``β``.

    Args:
        chosen: ``log π`` of the preferred completion.
        rejected: ``log π`` of the rejected completion.
        reference_chosen: ``log π_ref`` of the preferred completion.
        reference_rejected: ``log π_ref`` of the rejected completion.
        beta: ``τ`` in the paper.

    Source: Azar et al. 2023, https://arxiv.org/abs/2310.12036, formula (17).

    Example:
        >>> same = jnp.array([-2.0])
        >>> ipo_loss(same + 1, same, same, same, beta=0.25)
        Array([1.], dtype=float32)
    """
    margin = (chosen - reference_chosen) - (rejected - reference_rejected)
    return jnp.square(margin - 1 / (2 * beta))


@real_arguments
def simpo_loss(
    chosen: Float[Array, "*pairs"],
    rejected: Float[Array, "*pairs"],
    *,
    beta: float = 2.0,
    margin: float = 1.0,
) -> Float[Array, "*pairs"]:
    """Simple preference optimization, without a reference: ``−log σ(β (c − r) − γ)``.

    Args:
        chosen: Mean of ``log π`` over the tokens of the preferred completion.
        rejected: The same for the rejected completion.
        beta: Scale of the implicit reward.
        margin: ``γ``, the margin by which the preferred completion should be better.

    Source: Meng et al. 2024, https://arxiv.org/abs/2405.14734, formula (6).

    Example:
        >>> simpo_loss(jnp.array([-1.0]), jnp.array([-1.5])) == jnp.log(2.0)
        Array([ True], dtype=bool)
    """
    return jax.nn.softplus(margin - beta * (chosen - rejected))


@real_arguments
def kto_reference_kl(
    log_prob: Float[Array, " n"],
    reference: Float[Array, " n"],
    weights: Float[Array, " n"] | None = None,
) -> Float[Array, ""]:
    """KTO's reference point: ``max(0, mean of log(π/π_ref))`` over mismatched completions.

    It estimates the KL divergence of the policy from the reference, using completions of other
    prompts in the batch, and has no gradient.

    Args:
        log_prob: ``log π`` of each completion after another completion's prompt.
        reference: ``log π_ref`` of the same completions.
        weights: 1 for a completion, 0 for an empty row; None is all 1.

    Source: Ethayarajh et al. 2024, https://arxiv.org/abs/2402.01306, section 4.1.

    Example:
        >>> kto_reference_kl(jnp.array([-1.0, -2.0]), jnp.array([-2.0, -1.5]))
        Array(0.25, dtype=float32)
    """
    weights = jnp.ones_like(log_prob) if weights is None else weights
    ratios = jnp.where(weights > 0, log_prob - reference, 0)
    mean = (ratios * weights).sum() / jnp.maximum(weights.sum(), 1)
    return jax.lax.stop_gradient(jnp.maximum(mean, 0))


@real_arguments
def kto_loss(
    log_prob: Float[Array, "*rows"],
    reference: Float[Array, "*rows"],
    desirable: Bool[Array, "*rows"],
    reference_kl: Float[Array, ""],
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Float[Array, "*rows"]:
    """Kahneman-Tversky optimization: ``λ (1 − σ(±β (log(π/π_ref) − z)))``.

    The sign is + for desirable completions and − for undesirable ones: gains and losses are
    measured from the reference point ``z``, and each saturates.

    Args:
        log_prob: ``log π`` of a completion.
        reference: ``log π_ref`` of the same completion.
        desirable: The label of the completion.
        reference_kl: ``z`` of :func:`kto_reference_kl`.
        beta: Aversion to risk.
        desirable_weight: ``λ`` of desirable completions.
        undesirable_weight: ``λ`` of undesirable completions.

    Source: Ethayarajh et al. 2024, https://arxiv.org/abs/2402.01306, section 4.1.

    Example:
        >>> same = jnp.array([-2.0, -2.0])
        >>> kto_loss(same, same, jnp.array([True, False]), jnp.float32(0), undesirable_weight=2.0)
        Array([0.5, 1. ], dtype=float32)
    """
    gain = log_prob - reference - reference_kl
    loss = jax.nn.sigmoid(beta * jnp.where(desirable, -gain, gain))
    return jnp.where(desirable, desirable_weight, undesirable_weight).astype(loss.dtype) * loss
