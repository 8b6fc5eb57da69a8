"""A custom training loop: a model is a graph and a nested dict of arrays."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import transformer_jax as tj

TEXT = "the quick brown fox jumps over the lazy dog. " * 20
LETTERS = sorted(set(TEXT))


def batches(key, size=16, length=32):
    """Yields random pieces of the text, as ids."""
    ids = jnp.array([LETTERS.index(letter) for letter in TEXT])
    starts = jax.random.randint(key, (size,), 0, len(ids) - length)
    return ids[starts[:, None] + jnp.arange(length)[None]]


def main(steps=60):
    config = tj.TransformerConfig(
        vocab_size=len(LETTERS),
        d_model=32,
        encoder_layers=0,
        decoder_layers=1,
        attention=tj.AttentionConfig(num_heads=4),
        feed_forward=tj.FeedForwardConfig(d_ff=64),
    )
    graph, params = tj.split(tj.Decoder(config, rngs=nnx.Rngs(0)))
    tx = optax.adam(3e-3)

    def loss_of(params, tokens, key):
        logits = nnx.merge(graph, params)(tokens[:, :-1], key=key)  # a key means dropout
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    @jax.jit
    def step(params, state, key):
        draw, dropout = jax.random.split(key)
        loss, gradients = jax.value_and_grad(loss_of)(params, batches(draw), dropout)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    state, losses = tx.init(params), []
    for i in range(steps):
        params, state, loss = step(params, state, jax.random.fold_in(jax.random.key(1), i))
        losses.append(float(loss))
    print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}")
    return losses


if __name__ == "__main__":
    main()
