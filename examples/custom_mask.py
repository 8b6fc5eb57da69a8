"""A custom mask: two documents in a row, whose first tokens every query may see."""

import jax
import jax.numpy as jnp

import transformer_jax as tj


def main():
    # Masks combine with &: causal, windows, padding, any array of booleans.
    document = jnp.array([0, 0, 0, 0, 1, 1, 1, 1])
    start = jnp.arange(8) % 4 == 0
    same = document[:, None] == document[None]
    mask = tj.Mask(causal=True) & tj.Mask(dense=(same | start[None])[None, None])  # [B N T S]
    mask = mask & tj.Mask.padding(jnp.array([8, 6]))  # the second row has 6 tokens

    q, k, v = (
        jax.random.normal(key, (2, 8, 4, 16)) for key in jax.random.split(jax.random.key(0), 3)
    )
    y = tj.attend(q, k, v, mask)
    print(mask.array(8, 8)[1, 0].astype(int))  # keys visible to each query of the second row

    # Masked keys are invisible: changing their values changes nothing.
    hidden = v.at[1, 6:].set(1e6)
    assert jnp.array_equal(tj.attend(q, k, hidden, mask)[1, :6], y[1, :6])
    return mask, y


if __name__ == "__main__":
    main()
