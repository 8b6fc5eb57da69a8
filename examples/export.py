"""A model that runs without this package: StableHLO, compiled by JAX, loadable anywhere.

Train a translator first, see translator.py. ``pip install transformer-jax[export]`` for StableHLO.
"""

import sys

import jax
import jax.export
import jax.numpy as jnp

import transformer_jax as tj


def main(path="runs/pt-en", output="translator.stablehlo"):
    translate = tj.load(path)
    model, tokenizer = translate.model, translate.tokenizer
    length = jnp.array([3])

    # Weights are constants of this program; `transformer-jax export` stores them separately.
    def forward(source, target):
        return model(source, target, jnp.full(source.shape[:1], source.shape[1]))

    shape = jax.ShapeDtypeStruct((1, int(length[0])), jnp.int32)
    exported = jax.export.export(jax.jit(forward), platforms=("cpu",))(shape, shape)
    with open(output, "wb") as file:
        file.write(exported.serialize())

    with open(output, "rb") as file:
        again = jax.export.deserialize(file.read())
    source = jnp.full((1, 3), tokenizer.eos, jnp.int32)
    logits, expected = again.call(source, source), forward(source, source)
    print("shape", logits.shape, "largest difference", float(jnp.abs(logits - expected).max()))
    return logits, expected


if __name__ == "__main__":
    main(*sys.argv[1:])
