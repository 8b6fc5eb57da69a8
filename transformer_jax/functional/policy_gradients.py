"""Policy gradients for texts: returns, advantages, clipped losses and KL estimators.

An action is a token, and an episode is one completion: ``rewards[b, t]`` follows token ``t``.
Tokens beyond the end of a completion are padding: ``mask`` is False there. Losses are per token,
to be weighted and summed by the caller.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from transformer_jax.functional.array_arguments import real_arguments

__all__ = [
    "discounted_returns",
    "generalized_advantages",
    "group_advantages",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "normalized_advantages",
    "ppo_policy_loss",
    "ppo_value_loss",
]


@real_arguments
def discounted_returns(
    rewards: Float[Array, "B T"], mask: Bool[Array, "B T"], discount: float = 1.0
) -> Float[Array, "B T"]:
    """The discounted sum of future rewards: ``R_t = r_t + γ R_{t+1}``; 0 at padding.

    Args:
        rewards: Reward after each token; ignored at padding.
        mask: True at tokens.
        discount: ``γ``.

    Source: Sutton and Barto 2018, formula (3.9).

    Example:
        >>> rewards, mask = jnp.array([[1.0, 0.0, 4.0, 9.0]]), jnp.array([[True] * 3 + [False]])
        >>> discounted_returns(rewards, mask, discount=0.5)
        Array([[2., 2., 4., 0.]], dtype=float32)
    """
    return _backward_sums(jnp.where(mask, rewards, 0), mask, discount)


@real_arguments
def generalized_advantages(
    rewards: Float[Array, "B T"],
    values: Float[Array, "B T"],
    mask: Bool[Array, "B T"],
    *,
    discount: float = 1.0,
    decay: float = 0.95,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Generalized advantage estimation (GAE), with the returns that values are fitted to.

    ``A_t = Σ_k (γ λ)^k δ_{t+k}`` with ``δ_t = r_t + γ V_{t+1} − V_t``; the value after the last
    token is 0. Returns are ``A_t + V_t``. Both are 0 at padding. ``λ = 1`` is the return minus the
    value, ``λ = 0`` the one-step error.

    Args:
        rewards: Reward after each token.
        values: Estimated before each token.
        mask: True at tokens, which are contiguous: a prompt before them counts as padding.
        discount: ``γ``.
        decay: ``λ``.

    Source: Schulman et al. 2015, https://arxiv.org/abs/1506.02438, formula (16).

    Example:
        >>> rewards, values = jnp.array([[0.0, 2.0]]), jnp.array([[1.0, 1.5]])
        >>> generalized_advantages(rewards, values, jnp.array([[True, True]]), decay=0.5)
        (Array([[0.75, 0.5 ]], dtype=float32), Array([[1.75, 2.  ]], dtype=float32))
    """
    values = jnp.where(mask, values, 0)
    following = jnp.pad(values[:, 1:], ((0, 0), (0, 1)))
    errors = jnp.where(mask, rewards + discount * following - values, 0)
    advantages = _backward_sums(errors, mask, discount * decay)
    return advantages, advantages + values


def _backward_sums(terms: Array, mask: Array, factor: float) -> Array:
    """``s_t = x_t + factor s_{t+1}`` along the last axis; 0 where the mask is False."""

    def step(after: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
        term, here = at
        total = jnp.where(here, term + factor * after, 0)
        return total, total

    zeros = jnp.zeros_like(terms[:, 0])
    return lax.scan(step, zeros, (terms.T, mask.T), reverse=True)[1].T


@real_arguments
def normalized_advantages(
    advantages: Float[Array, "B T"], mask: Bool[Array, "B T"], epsilon: float = 1e-8
) -> Float[Array, "B T"]:
    """Advantages with mean 0 and variance 1 over the tokens of a batch; 0 at padding.

    Equal advantages give exactly 0.

    Source: Huang et al. 2022, "The 37 implementation details of PPO", detail 7.

    Example:
        >>> mask = jnp.array([[True, True, False]])
        >>> normalized_advantages(jnp.array([[1.0, 3.0, 7.0]]), mask)
        Array([[-1.,  1.,  0.]], dtype=float32)
    """
    dtype = jnp.promote_types(advantages.dtype, jnp.float32)
    pivot = jnp.where(mask, advantages, -jnp.inf).max()
    size, centred = _centred(advantages.astype(dtype), pivot.astype(dtype), mask, axis=None)
    variance = jnp.square(centred).sum() / jnp.maximum(mask.sum(), 1)
    scaled = centred * lax.rsqrt(variance + epsilon / jnp.square(size))
    return jnp.where(mask & (size > 0), scaled, 0).astype(jnp.result_type(advantages, 1.0))


def _centred(x: Array, pivot: Array, mask: Array, axis: int | None) -> tuple[Array, Array]:
    """The largest distance from a pivot, and distances from the mean as fractions of it.

    The pivot is one of the values: subtracting it is exact for values close to it, so equal values
    have a distance of exactly 0. Working in sixteenths keeps the differences and the reciprocal of
    the largest within the range of floats.
    """
    away = jnp.where(mask, x / 16 - pivot / 16, 0)
    largest = jnp.abs(away).max(axis, keepdims=axis is not None)
    away = away / jnp.where(largest > 0, largest, 1)
    count = jnp.maximum(mask.sum(axis, keepdims=axis is not None), 1)
    mean = away.sum(axis, keepdims=axis is not None) / count
    return largest * 16, jnp.where(mask, away - mean, 0)


@real_arguments
def group_advantages(rewards: Float[Array, "B G"], epsilon: float = 1e-4) -> Float[Array, "B G"]:
    """Advantages within the group of completions of one prompt: ``(r − mean) / (std + ε)``.

    The standard deviation is the sample one, ``√(Σ (r − mean)² / (G − 1))``. Equal rewards, and a
    group of one, give exactly 0. No value function is needed (GRPO).

    Args:
        rewards: Rewards of ``G`` completions of each prompt.
        epsilon: Added to the standard deviation.

    Source: Shao et al. 2024 (DeepSeekMath), https://arxiv.org/abs/2402.03300, section 4.1.2.

    Example:
        >>> group_advantages(jnp.array([[1.0, 3.0], [2.0, 2.0]]), epsilon=0.0).round(3)[0]
        Array([-0.707,  0.707], dtype=float32)
    """
    dtype = jnp.promote_types(rewards.dtype, jnp.float32)
    wide = rewards.astype(dtype)
    size, centred = _centred(wide, wide[:, :1], jnp.ones(wide.shape, bool), axis=1)
    variance = jnp.square(centred).sum(1, keepdims=True) / max(rewards.shape[1] - 1, 1)
    spread = jnp.sqrt(variance) + epsilon / size
    found = jnp.where(size > 0, centred / spread, 0)
    return found.astype(jnp.result_type(rewards, 1.0))


@real_arguments
def ppo_policy_loss(
    log_probs: Float[Array, "*rows"],
    old_log_probs: Float[Array, "*rows"],
    advantages: Float[Array, "*rows"],
    clip: float = 0.2,
) -> Float[Array, "*rows"]:
    """The clipped surrogate of PPO: ``−min(ρ A, clip(ρ, 1 − ε, 1 + ε) A)``, ``ρ = π / π_old``.

    The gradient is 0 where an update has already moved ``ρ`` too far in the favored direction.

    Args:
        log_probs: ``log π`` of each token, under the policy that is trained.
        old_log_probs: The same under the policy that wrote the tokens.
        advantages: ``A``, constants.
        clip: ``ε``.

    Source: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, formula (7).

    Example:
        >>> now, old = jnp.log(jnp.array([1.5, 1.5])), jnp.zeros(2)
        >>> ppo_policy_loss(now, old, jnp.array([1.0, -1.0]), clip=0.25)
        Array([-1.25,  1.5 ], dtype=float32)
    """
    ratio = jnp.exp(log_probs - old_log_probs)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


@real_arguments
def ppo_value_loss(
    values: Float[Array, "*rows"],
    old_values: Float[Array, "*rows"],
    returns: Float[Array, "*rows"],
    clip: float = 0.2,
) -> Float[Array, "*rows"]:
    """The clipped loss of a value function: ``½ max((V − R)², (V_clipped − R)²)``.

    ``V_clipped`` is within ``clip`` of the value before the update.

    Args:
        values: Estimated before each token.
        old_values: The same when the tokens were written.
        returns: ``R``, the targets of the estimate; constants.
        clip: Largest change of a value by one batch.

    Source: the reference implementation of Schulman et al. 2017 (OpenAI Baselines, ``ppo2``).

    Example:
        >>> ppo_value_loss(jnp.array([1.0]), jnp.array([0.0]), jnp.array([1.0])).round(4)
        Array([0.32], dtype=float32)
    """
    clipped = jnp.clip(values, old_values - clip, old_values + clip)
    return 0.5 * jnp.maximum(jnp.square(values - returns), jnp.square(clipped - returns))


@real_arguments
def kl_k1(
    log_probs: Float[Array, "*rows"], reference: Float[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """``log(π / π_ref)`` of samples from ``π``: its mean is ``KL(π, π_ref)``, its variance high.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html.

    Example:
        >>> kl_k1(jnp.array([-1.0]), jnp.array([-3.0]))
        Array([2.], dtype=float32)
    """
    return log_probs - reference


@real_arguments
def kl_k2(
    log_probs: Float[Array, "*rows"], reference: Float[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """``½ log²(π / π_ref)``: low variance, and a small bias if the policies are close.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html.

    Example:
        >>> kl_k2(jnp.array([-1.0]), jnp.array([-3.0]))
        Array([2.], dtype=float32)
    """
    return 0.5 * jnp.square(log_probs - reference)


@real_arguments
def kl_k3(
    log_probs: Float[Array, "*rows"], reference: Float[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """``π_ref/π − 1 − log(π_ref/π)``: unbiased, never negative, low variance.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html; the penalty of GRPO.

    Example:
        >>> kl_k3(jnp.array([0.0]), jnp.log(jnp.array([2.0]))).round(4)
        Array([0.3069], dtype=float32)
    """
    away = reference - log_probs
    return jnp.expm1(away) - away
