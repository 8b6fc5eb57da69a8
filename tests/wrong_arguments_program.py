"""Calls the library with arguments that it must refuse; prints the messages as JSON."""

import json
import sys

import jax.numpy as jnp
import numpy as np
from flax import nnx

import transformer_jax as tj
from transformer_jax.core.errors import ArgumentError, ConfigError
from transformer_jax.functional import spectrogram
from transformer_jax.inference.base import listed
from transformer_jax.inference.images import pixels_of
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.presets import bert, vit
from transformer_jax.models.recurrent_config import RECURRENT_PRESETS, RecurrentConfig
from transformer_jax.models.recurrent_translator import RecurrentEncoderDecoder
from transformer_jax.models.vision import VisionEncoder

SMALL = {"vocab_size": 8, "d_model": 8, "attention": tj.AttentionConfig(2)}
DECODER = TransformerConfig(encoder_layers=0, decoder_layers=1, **SMALL)
BOTH = TransformerConfig(encoder_layers=1, decoder_layers=1, **SMALL)
TOKENS = jnp.ones((3,), jnp.int32)
decoder = tj.Decoder(DECODER, rngs=nnx.Rngs(0))
encoder = tj.Encoder(bert(8, 1, vocab_size=8), rngs=nnx.Rngs(0))


def signals():
    """Integers of these give what floats give; their checks of types come first in tests."""
    for function, sizes in (
        (lambda x: spectrogram.frame_signal(x, 2, 1), (4,)),
        (lambda x: spectrogram.power_spectrum(x, x[0], 4), (3, 4)),
        (lambda x: spectrogram.stack_frames(x, 2), (3, 4)),
    ):
        x = np.arange(np.prod(sizes)).reshape(sizes)
        wanted = function(jnp.asarray(x, jnp.float32))
        np.testing.assert_allclose(function(jnp.asarray(x)), wanted, rtol=1e-6)


CALLS = {
    "signals": signals,
    "decoder rngs": lambda: tj.Decoder(DECODER, rngs=0),
    "encoder rngs": lambda: tj.Encoder(bert(8, 1, vocab_size=8), rngs=0),
    "translator rngs": lambda: tj.TransformerEncoderDecoder(BOTH, rngs=0),
    "recurrent rngs": lambda: RecurrentEncoderDecoder(RecurrentConfig(vocab_size=8), rngs=0),
    "vision rngs": lambda: VisionEncoder(vit(8, 1, image_size=4, patch_size=2), rngs=0),
    "decoder tokens": lambda: decoder(TOKENS),
    "encoder tokens": lambda: encoder(TOKENS, jnp.array([3])),
    "preset": lambda: tj.presets["vaswani"],
    "recurrent preset": lambda: RECURRENT_PRESETS["loung2015"],
    "number": lambda: listed(5),
    "numbers": lambda: listed(["a", 5]),
    "bytes": lambda: listed(b"a"),
    "mapping": lambda: listed({"a": 1}),
    "set": lambda: listed({"a", "b"}),
    "path": lambda: pixels_of("cat.png"),
    "none": lambda: pixels_of(None),
    "texts": lambda: pixels_of([["a"]]),
    "ragged": lambda: pixels_of([[1], [1, 2]]),
    "uint16": lambda: pixels_of(np.full((2, 2, 1), 999, np.uint16)),
    "negative": lambda: pixels_of(np.full((2, 2, 1), -1)),
    "complex": lambda: pixels_of(np.full((2, 2, 1), 1j)),
    "truth": lambda: pixels_of(np.ones((2, 2, 1), bool)),
    "nan": lambda: pixels_of(np.full((2, 2, 1), np.nan)),
    "flat": lambda: pixels_of(np.ones((2, 2))),
}


def said(call):
    try:
        call()
    except (ArgumentError, ConfigError) as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


if __name__ == "__main__":
    json.dump({name: said(call) for name, call in CALLS.items()}, sys.stdout)
