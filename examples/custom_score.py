"""A custom attention score: additive attention, with parameters, and its gradient."""

import jax
import jax.numpy as jnp

import transformer_jax as tj


def additive(w):
    """``w · tanh(q + k)`` of each query and key; Bahdanau et al. 2015."""

    def score(q, k):  # [B N T H], [B N S H] -> [B N T S]
        return jnp.einsum("bntsh,h->bnts", jnp.tanh(q[:, :, :, None] + k[:, :, None]), w)

    return score


def main():
    q, k, v, w = (
        jax.random.normal(key, shape)
        for key, shape in zip(
            jax.random.split(jax.random.key(0), 4), [(2, 5, 4, 8)] * 3 + [(8,)], strict=True
        )
    )

    def loss(w):
        return (tj.attend(q, k, v, tj.Mask(causal=True), score=additive(w)) ** 2).mean()

    before, gradient = jax.value_and_grad(loss)(w)
    after = loss(w - 0.1 * gradient)
    print(f"loss {before:.4f} -> {after:.4f} after a step down the gradient")
    return before, after


if __name__ == "__main__":
    main()
