"""A custom task: sorting a set of numbers in ascending order."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

import transformer_jax as tj
from transformer_jax.decoding.programs import generate
from transformer_jax.models.layers.basic import Embed
from transformer_jax.models.protocol import Encoded

PAD, BOS, EOS, V, SIZE = 0, 1, 2, 12, 3


class SetEncoder(nnx.Module):
    """The embedding of each element plus their mean."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.embedding = Embed(V, width, scale=1.0, rngs=rngs)

    def __call__(self, elements, *, key=None):
        """Returns states without padding, so without a mask."""
        x = self.embedding(elements)
        return Encoded(x + x.mean(1, keepdims=True), None)


def model(rngs):
    config = tj.TransformerConfig(V, 16, 0, 1, attention=tj.AttentionConfig(num_heads=2))
    decoder = tj.TransformerDecoder.from_config(config, rngs=rngs)
    return tj.EncoderDecoder(SetEncoder(16, rngs=rngs), decoder)


def predictor(model, tokenizer):
    config = tj.GenerationConfig(
        decoder_start_token_id=BOS, eos_token_id=(EOS,), max_new_tokens=SIZE + 1
    )
    return lambda sets: generate(model, {"elements": jnp.asarray(sets)}, config)[:, :SIZE]


def main(folder: str = "runs/own-task"):
    rng = np.random.default_rng(0)
    sets = rng.permuted(np.tile(np.arange(3, V, dtype=np.int32), (256, 1)), axis=1)[:, :SIZE]
    target = np.pad(np.sort(sets), ((0, 0), (0, 1)), constant_values=EOS)
    lengths = np.full(256, SIZE + 1, np.int32)
    make = lambda i: {"inputs": {"elements": sets[i]}, "target": target[i], "lengths": lengths[i]}
    data, objective = tj.Data(tj.ArrayPlan(256, 32), make), tj.objectives.sequence_to_sequence(BOS)
    task = tj.Task(model, data, objective, valid={"valid": data}, predictor=predictor)
    tj.Trainer(task, folder, tj.adamw(1e-2)).fit(steps=200)
    return tj.load(folder, task)([[7, 3, 5], [11, 4, 9]])


if __name__ == "__main__":
    print(main())
