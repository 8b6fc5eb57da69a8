"""Models of every kind that decodes, for laws: how each is made, and what it is conditioned on."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.decoding import test_decodable
from tests.drawing import drawn, normals
from tests.models import (
    test_captioner,
    test_composed,
    test_decoder,
    test_encoder_decoder,
    test_features,
)
from tests.models import test_recurrent_modules as test_recurrent
from transformer_jax.core.trees import flatten_dict, with_leaves
from transformer_jax.models.build import make_model
from transformer_jax.models.captioner import Captioner
from transformer_jax.models.config import ComputeConfig
from transformer_jax.models.transformer.models import Decoder, TransformerEncoderDecoder

B, S, T = 3, 7, 6
LENGTHS = np.array([S, 3, 3], np.int32)  # a program for each
# Where the vectors of decoder inputs are, the first that a model has.
TABLES = ("decoder_embedding/table", "decoder/embedding/table", "embedding/table")


class Kind(NamedTuple):
    """A kind of model; its vocabulary and inputs, None for language models."""

    make: Callable[[], Any]
    vocab: int
    inputs: dict[str, Any] | None
    forced: Callable = lambda model, *args: model.logits(model.hidden(*args))


def source(vocab, lengths=LENGTHS, length=S):
    tokens = np.random.default_rng(1).integers(3, vocab, (B, length)).astype(np.int32)
    return {"source": tokens, "source_lengths": lengths}


def scanned(variants):
    """The variants, and one of them whose layers are scanned."""
    compute = ComputeConfig(scan_layers=True)
    return variants | {"scanned": dataclasses.replace(variants["window"], compute=compute)}


def kinds():
    """Every kind by its name."""
    rngs = lambda: nnx.Rngs(0)
    for name, config in scanned(test_decoder.VARIANTS).items():
        make = lambda config=config: Decoder(config, rngs=rngs())
        yield f"decoder {name}", Kind(make, test_decoder.V, None)
    for name, config in scanned(test_encoder_decoder.VARIANTS).items():
        make = lambda config=config: TransformerEncoderDecoder(config, rngs=rngs())
        yield f"translator {name}", Kind(make, config.decoder_vocab_size or 23, source(19))
    frames = {"source": normals((B, S, 12))[0], "source_lengths": LENGTHS}
    for name, config in test_features.CONFIGS.items():
        make = lambda config=config: make_model("encoder-decoder", config, rngs=rngs())
        yield f"speech {name}", Kind(make, test_features.V, frames)
    for score in (*test_recurrent.SCORES, None):
        for kind in ("all at once", "hidden", "context"):
            make = functools.partial(test_recurrent.make, score, kind=kind, layers=2)
            lengths = np.array([6, 2, 2], np.int32)  # the places of a location-based score
            inputs = source(test_recurrent.V, lengths, test_recurrent.S)
            yield f"recurrent {score} {kind}", Kind(make, test_recurrent.V, inputs)
    yield "bag of embeddings", Kind(test_composed.toy, test_composed.V, source(test_composed.V))
    gru, _, forced = test_decodable.MODELS["gru"]
    inputs = {"source": source(test_decodable.V)["source"]}
    yield "gru", Kind(gru, test_decodable.V, inputs, forced)
    images = {"images": normals((B, 8, 8, 3))[0]}
    make = lambda: Captioner(test_captioner.ENCODER, test_captioner.CONFIG, rngs=rngs())
    yield "captioner", Kind(make, test_captioner.V, images)


KINDS = dict(kinds())


class Compiled:
    """A drawn model whose methods are programs."""

    def __init__(self, name: str):
        self.kind = KINDS[name]
        self.inputs = self.kind.inputs
        self.graph, self.params = drawn(self.kind.make)
        draw = np.random.default_rng(0)
        self.tokens = draw.integers(3, self.kind.vocab, (B, T)).astype(np.int32)
        self.beams = draw.integers(3, self.kind.vocab, (B, 2, 3)).astype(np.int32)
        self.prefill, self.step, self.reorder = map(self.method, ("prefill", "step", "reorder"))

    def program(self, function):
        """``function(model, ...)`` of arrays as one program."""
        run = jax.jit(lambda params, *args: function(nnx.merge(self.graph, params), *args))
        return functools.partial(run, self.params)

    def method(self, name):
        return self.program(lambda model, *args: getattr(model, name)(*args))

    @functools.cached_property
    def forced(self):
        """Logits of whole texts under inputs."""
        return self.program(self.kind.forced)

    def whole(self, tokens):
        """Logits of whole texts."""
        return self.forced(self.inputs, tokens)

    def cache(self, beams=1, inputs=None):
        begin = lambda model, inputs: model.init_cache(inputs, B, T + 2, beams=beams)
        return self.program(begin)(self.inputs if inputs is None else inputs)

    def hidden_of_vectors(self):
        """Hidden states of the first row as a function of the vectors of its tokens."""
        leaves = flatten_dict(self.params)
        table = next(name for name in TABLES if name in leaves)
        tokens = jnp.arange(3, 3 + T)[None]  # of which none is in the source
        first = jax.tree.map(lambda x: jnp.asarray(x[:1]), self.inputs)
        inputs = jax.tree.map(lambda x: x if x.shape != (1, S) else jnp.ones_like(x), first)

        def hidden(vectors):
            found = leaves | {table: leaves[table].at[tokens[0]].set(vectors[0])}
            return nnx.merge(self.graph, with_leaves(self.params, found)).hidden(inputs, tokens)

        return hidden, leaves[table][tokens]
