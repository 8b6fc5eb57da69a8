"""Training on eight devices with parameters sharded over four; the loss equals one device's.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/sharded_training.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import transformer_jax as tj
from transformer_jax.models.layers.parameters import parameters
from transformer_jax.parallel.mesh import shard_batch
from transformer_jax.parallel.sharding import shardings


def main(steps=3):
    config = tj.TransformerConfig(
        vocab_size=64,
        d_model=32,
        encoder_layers=0,
        decoder_layers=2,
        attention=tj.AttentionConfig(num_heads=4),
        feed_forward=tj.FeedForwardConfig(d_ff=64),
    )
    model = tj.Decoder(config, rngs=nnx.Rngs(0))
    graph, params = tj.split(model)
    tx = optax.adam(1e-3)

    def loss_of(params, tokens):
        logits = nnx.merge(graph, params)(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    @jax.jit
    def step(params, state, tokens):
        loss, gradients = jax.value_and_grad(loss_of)(params, tokens)
        updates, state = tx.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss

    def train(params, put):
        state, losses = tx.init(params), []
        for i in range(steps):
            tokens = np.random.default_rng(i).integers(0, 64, (16, 12)).astype(np.int32)
            params, state, loss = step(params, state, put(tokens))
            losses.append(float(loss))
        return losses, params

    alone, _ = train(params, jnp.asarray)
    mesh = tj.make_mesh(data=2, fsdp=4)
    # Each parameter declares its axes; the rules place them on the mesh.
    sharded = jax.device_put(params, shardings(parameters(model), mesh))
    losses, trained = train(sharded, lambda tokens: shard_batch({"tokens": tokens}, mesh)["tokens"])
    print(f"one device {alone}, eight devices {losses}")
    return alone, losses, trained


if __name__ == "__main__":
    main()
