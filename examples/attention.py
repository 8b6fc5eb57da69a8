"""Scaled dot-product attention, by its formula and by the library: softmax(q kᵀ / √H) v."""

import jax
import jax.numpy as jnp

import transformer_jax as tj


def attention(q, k, v, visible):
    """The formula, with ``visible [T S]`` True where a query may attend."""
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(visible[None, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


def main():
    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (2, 6, 4, 8)) for key in keys)  # [B T N H]
    by_hand = attention(q, k, v, jnp.tril(jnp.ones((6, 6), bool)))
    by_library = tj.attend(q, k, v, tj.Mask(causal=True))
    print("largest difference:", float(jnp.abs(by_hand - by_library).max()))
    return by_hand, by_library


if __name__ == "__main__":
    main()
