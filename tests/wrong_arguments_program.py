"""Calls the library with arguments that it must refuse; prints the messages as JSON."""

import json
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import transformer_jax as tj
from transformer_jax.core.errors import ArgumentError, ConfigError
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.functional import spectrogram
from transformer_jax.functional.attention import attend_heads_first, attention_weights
from transformer_jax.functional.scores import ScaledDot, Scores
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
TOKENIZER = train_tokenizer("characters", ["abc"], 8)
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


X = jnp.ones((1, 3, 1, 4))
MASK = jnp.ones((1, 1, 3, 3), bool)
ROWS = np.arange(12.0).reshape(3, 4)
DATA = tj.Data(tj.ArrayPlan(4, 2), lambda rows: {"x": rows})


def task(**changed):
    usual = {"model": lambda rngs: None, "train": DATA, "objective": lambda *_: {}}
    return tj.Task(**usual | changed)


def trained(made):
    """Trains a task whose batches are of another kind."""
    data = tj.Data(tj.ArrayPlan(8, 8), lambda rows: made)
    linear = lambda rngs: nnx.Linear(2, 2, rngs=rngs)
    with tempfile.TemporaryDirectory() as folder:
        tj.Trainer(task(model=linear, train=data), folder, optax.sgd(1)).fit(steps=1)


def trainer():
    return tj.Trainer(task(), "unused", optax.sgd(1))


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
    "mask true": lambda: tj.attend(X, X, X, True),
    "mask list": lambda: tj.attend(X, X, X, [[True]]),
    "mask text": lambda: tj.attend(X, X, X, "causal"),
    "mask numbers": lambda: tj.attend(X, X, X, jnp.ones((1, 1, 3, 3))),
    "bias of truth": lambda: tj.attend(X, X, X, bias=MASK),
    "bias of a list": lambda: tj.attend(X, X, X, bias=[[[[True] * 3] * 3]]),
    "bias of weights": lambda: attention_weights(X, X, bias=MASK),
    "bias heads first": lambda: attend_heads_first(X, X, X, Scores(bias=MASK)),
    "score": lambda: tj.attend(X, X, X, score=2),
    "dropout": lambda: tj.attend(X, X, X, dropout=0.1),
    "dropout rate": lambda: tj.attend(X, X, X, dropout=(1.5, jax.random.key(0))),
    "soft cap": lambda: ScaledDot(softcap=-1.0),
    "scale": lambda: ScaledDot(scale="big"),
    "mask causal": lambda: tj.Mask(causal="yes"),
    "mask window": lambda: tj.Mask(window=2.5),
    "mask no window": lambda: tj.Mask(window=0),
    "mask lengths": lambda: tj.Mask(kv_lengths=jnp.ones(2)),
    "mask lengths list": lambda: tj.Mask(kv_lengths=[2]),
    "mask dense": lambda: tj.Mask(dense=jnp.ones((1, 1, 3, 3))),
    "mask rank": lambda: tj.Mask(dense=jnp.ones((3, 3), bool)),
    "mask segments": lambda: tj.Mask(q_segments=jnp.ones((1, 2), jnp.int32)),
    "mask offset": lambda: tj.Mask(causal=True, offset=0.5),
    "padding of numbers": lambda: tj.Mask.padding(jnp.array([0.5, 1.0])),
    "padding of rows": lambda: tj.Mask.padding(jnp.array([True, False])),
    "padding of integers": lambda: tj.Mask.padding(jnp.ones((1, 2), jnp.int32)),
    "padding of a list": lambda: tj.Mask.padding([2]),
    "plan count": lambda: tj.ArrayPlan(8.5, 2),
    "plan rows": lambda: tj.ArrayPlan(8, 0),
    "plan shuffle": lambda: tj.ArrayPlan(8, 2, shuffle="no"),
    "plan seed": lambda: tj.ArrayPlan(8, 2, seed=-1),
    "metric": lambda: tj.Metric("valid_loss", "upper"),
    "metric name": lambda: tj.Metric(3, "lower"),
    "task objective": lambda: task(objective="loss"),
    "task metrics": lambda: task(metrics=(("valid_loss", "lower"),)),
    "task without metrics": lambda: task(metrics=()),
    "task data": lambda: task(train=[1, 2]),
    "task valid": lambda: task(valid={"valid": [1]}),
    "task plan": lambda: task(train=tj.Data(8, lambda rows: {})),
    "task batches": lambda: task(train=tj.Data(tj.ArrayPlan(4, 2), {"x": 1})),
    "task threads": lambda: task(train=DATA._replace(threads=0)),
    "fit steps": lambda: trainer().fit(steps=2.5),
    "fit no steps": lambda: trainer().fit(steps=0),
    "fit truth": lambda: trainer().fit(steps=True),
    "fit epochs": lambda: trainer().fit(epochs=-1),
    "fit text": lambda: trainer().fit(steps="2"),
    "batch none": lambda: trained(None),
    "batch list": lambda: trained([1]),
    "step accumulation": lambda: tj.make_step(len, optax.sgd(1), len, accumulation=1.5),
    "step optimizer": lambda: tj.make_step(lambda *_: {}, "adam", lambda *_: None),
    "step decay": lambda: tj.make_step(lambda *_: {}, optax.sgd(1), lambda *_: 0, ema_decay=1.0),
    "mesh config": lambda: tj.make_mesh(2),
    "load mesh": lambda: tj.load("run", mesh=2),
    "load place": lambda: tj.load(5),
    "pipeline task": lambda: tj.pipeline(5),
    "load changed": lambda: tj.load("run", allow_changed_config="no"),
    "adamw": lambda: tj.adamw("1e-3"),
    "smoothing": lambda: tj.objectives.language_model(label_smoothing=1.0),
    "smoothing of classes": lambda: tj.objectives.image_classification(-0.1),
    "mixup": lambda: tj.objectives.image_classification(mixup=-1.0),
    "loss": lambda: tj.objectives.contrastive("triplet"),
    "bos": lambda: tj.objectives.sequence_to_sequence(1.5),
    "chunk": lambda: tj.objectives.sequence_to_sequence(1, chunk=2.5),
    "sentence objective": lambda: tj.objectives.masked_lm(sentence_objective="mlm"),
    "accuracy": lambda: tj.objectives.masked_lm(accuracy="yes"),
    "lm weight": lambda: tj.objectives.with_language_model(-0.5),
    "weights of floats": lambda: tj.objectives.length_weights(jnp.ones(2), 3),
    "task of a text": lambda: tj.tasks.language_model("hello", DECODER, TOKENIZER),
    "task config": lambda: tj.tasks.language_model(["hello"], "gpt2", TOKENIZER),
    "task tokenizer": lambda: tj.tasks.language_model(["hello"], DECODER, "gpt2"),
    "task length": lambda: tj.tasks.masked_lm(["hello"], DECODER, TOKENIZER, length=0),
    "task smoothing": lambda: tj.tasks.translation(
        [("a", "b")], BOTH, TOKENIZER, label_smoothing=1
    ),
    "law of one token": lambda: tj.laws.causality(lambda x: x, np.array([[1], [2]])),
    "law of a row": lambda: tj.laws.causality(lambda x: x, np.arange(4)),
    "law tolerance": lambda: tj.laws.causality(lambda x: x, ROWS, tolerance=-1),
    "law not a number": lambda: tj.laws.causality(lambda x: x, ROWS, tolerance=float("nan")),
    "law function": lambda: tj.laws.causality(5, ROWS),
    "law gradient": lambda: tj.laws.causality_by_gradient(lambda x: x, np.ones((1, 1, 2), "f4")),
    "law vectors": lambda: tj.laws.causality_by_gradient(lambda x: x, np.ones((1, 2), "f4")),
    "law permutation": lambda: tj.laws.permutation(lambda x: x, np.arange(4)),
    "law padding": lambda: tj.laws.padding(lambda x, real: x, ROWS, np.ones((3, 4))),
    "law cache": lambda: tj.laws.cached(len, len, None, np.ones((2, 1), int)),
    "law prompt": lambda: tj.laws.prefilled(len, len, len, None, np.ones((2, 3), int), 3),
    "law beams": lambda: tj.laws.reordered(len, len, len, None, np.ones((2, 1, 3), int)),
    "law parts": lambda: tj.laws.loss_split(len, ROWS, parts=1.5),
    "law packing": lambda: tj.laws.packing(len, len, [np.ones(3, int)], length=2),
    "law documents": lambda: tj.laws.packing(len, len, [], length=2),
    "law of nothing": lambda: tj.laws.repeatability(lambda x: x, np.zeros((0, 3))),
    "law weights": lambda: tj.laws.weights_sum_to_one(np.ones(3)),
    "task of numbers": lambda: tj.tasks.language_model([1, 2], DECODER, TOKENIZER),
    "task of texts": lambda: tj.tasks.translation(["ab"], BOTH, TOKENIZER),
    "trainer mesh": lambda: tj.Trainer(task(), "unused", optax.sgd(1), mesh=2),
    "state average": lambda: tj.TrainState.create({}, optax.sgd(1), ema="yes"),
    "state optimizer": lambda: tj.TrainState.create({}, "adam"),
    "split": lambda: tj.split(5),
    "decoder config": lambda: tj.Decoder("gpt2", rngs=nnx.Rngs(0)),
    "encoder config": lambda: tj.Encoder(None, rngs=nnx.Rngs(0)),
    "translator config": lambda: tj.TransformerEncoderDecoder("t5", rngs=nnx.Rngs(0)),
    "decoder of floats": lambda: decoder(jnp.ones((1, 3))),
    "decoder of a list": lambda: decoder([[1, 2]]),
    "mesh of nothing": lambda: tj.make_mesh(devices=[]),
    "warmup": lambda: tj.ScheduleConfig("cosine", -1),
    "law stops": lambda: tj.laws.resumed(lambda stops: 1.0, [(-1,)]),
    "law stop": lambda: tj.laws.resumed(lambda stops: 1.0, [2]),
    "law visible": lambda: tj.laws.visibility(
        len, np.ones((1, 3, 2), "f4"), np.ones((1, 2, 2), bool)
    ),
    "law real": lambda: tj.laws.padding(lambda x, real: x, ROWS, np.array([[True, False]])),
    "law rows": lambda: tj.laws.batch_mates(lambda x: x, 5),
    "law mask": lambda: tj.laws.mask_polarity(len, np.ones((2, 3)), np.ones((2, 3)), None),
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
