"""A custom encoder: Fourier transforms instead of attention (Lee-Thorp et al. 2021)."""

import sys

import jax.numpy as jnp
import numpy as np
from flax import nnx

import transformer_jax as tj
from transformer_jax.models.layers.basic import Embed, Linear, Norm
from transformer_jax.models.protocol import Encoded
from transformer_jax.models.transformer.layers import FeedForward

BOS, EOS, WAVES, SIZE = 0, 1, 8, 32


class FourierEncoder(nnx.Module):
    """Blocks of a Fourier transform over positions and axes, and a feed-forward network."""

    def __init__(self, config: tj.TransformerConfig, *, rngs: nnx.Rngs):
        self.inputs = Linear(1, config.d_model, (None, "embed"), rngs=rngs)
        self.positions = Embed(SIZE, config.d_model, scale=0.02, rngs=rngs)
        blocks = range(config.encoder_layers)
        self.feed_forwards = nnx.List([FeedForward(config, rngs=rngs) for _ in blocks])
        self.norms = nnx.List([Norm(config.norm, config.d_model) for _ in (*blocks, *blocks)])

    def __call__(self, signal, *, key=None):
        """Mixes ``[B S]`` numbers into ``[B S D]`` states without padding, so without a mask."""
        x = self.inputs(signal[..., None]) + self.positions(jnp.arange(SIZE))[None]
        for i, feed_forward in enumerate(self.feed_forwards):
            x = self.norms[2 * i](x + jnp.fft.fft2(x, norm="ortho").real)
            x = self.norms[2 * i + 1](x + feed_forward(x))
        return Encoded(x, None)


def model(rngs):
    heads, wide = tj.AttentionConfig(num_heads=2), tj.FeedForwardConfig(d_ff=32)
    config = tj.TransformerConfig(2 + WAVES, 32, 1, 1, attention=heads, feed_forward=wide)
    decoder = tj.TransformerDecoder.from_config(config, rngs=rngs)
    return tj.EncoderDecoder(FourierEncoder(config, rngs=rngs), decoder)


def main(folder: str = "runs/own-encoder") -> float:
    # Noisy waves; the token after BOS is the number of periods.
    rng = np.random.default_rng(0)
    periods, shifts = rng.integers(1, WAVES + 1, 256), rng.uniform(0, 1, 256)
    turns = periods[:, None] * np.arange(SIZE) / SIZE + shifts[:, None]
    noisy = np.sin(2 * np.pi * turns) + rng.normal(scale=0.1, size=turns.shape)
    target = np.stack([1 + periods, np.full(256, EOS)], axis=1).astype(np.int32)
    signal, lengths = noisy.astype(np.float32), np.full(256, 2, np.int32)
    make = lambda i: {"inputs": {"signal": signal[i]}, "target": target[i], "lengths": lengths[i]}
    data = tj.Data(tj.ArrayPlan(256, 64), make)
    task = tj.Task(model, data, tj.objectives.sequence_to_sequence(BOS), {"valid": data})
    return tj.Trainer(task, folder, tj.adamw(1e-2)).fit(steps=200).best.value


if __name__ == "__main__":
    print(f"loss {main(*sys.argv[1:]):.3f}")
