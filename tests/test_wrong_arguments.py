"""Arguments that cannot be are refused in one line that says what is needed.

A process of its own has no checks of types, which refuse the same arguments first.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.inference.images import pixels_of

PROGRAM = Path(__file__).parent / "wrong_arguments_program.py"
SAID = {
    "signals": "accepted",
    "decoder rngs": "rngs is 0: random streams are needed, flax.nnx.Rngs(0)",
    "encoder rngs": "rngs is 0: random streams are needed, flax.nnx.Rngs(0)",
    "translator rngs": "rngs is 0: random streams are needed, flax.nnx.Rngs(0)",
    "recurrent rngs": "rngs is 0: random streams are needed, flax.nnx.Rngs(0)",
    "vision rngs": "rngs is 0: random streams are needed, flax.nnx.Rngs(0)",
    "decoder tokens": "tokens have shape (3,): [B T] is needed",
    "encoder tokens": "tokens have shape (3,): [B T] is needed",
    "preset": "no preset 'vaswani': there are vaswani_base, ",
    "recurrent preset": "no preset 'loung2015': there are cho2014, ",
    "number": "5 is int: a text or a list of texts is needed",
    "numbers": "text 2 is int: text is needed",
    "bytes": "is bytes: a text or a list of texts is needed",
    "mapping": "is dict: a text or a list of texts is needed",
    "set": "is set: a text or a list of texts is needed",
    "path": "images is str: paths of pictures, or an array of pixels [B, height,",
    "none": "images is NoneType: paths of pictures, or an array of pixels",
    "texts": "images have type <U1: integers from 0 to 255 or floating-point numbers are needed",
    "ragged": "images are lists of several lengths",
    "uint16": "images hold integers from 999 to 999: pixels are 0 to 255",
    "negative": "images hold integers from -1 to -1: pixels are 0 to 255",
    "complex": "images have type complex128: integers from 0 to 255 or",
    "truth": "images have type bool: integers from 0 to 255 or",
    "nan": "images hold NaN or infinity",
    "flat": "images have shape [2, 2]: must be [B, height, width, channels] or",
    "mask true": "attend: mask is True: a Mask or a boolean array [B N T S] is needed, True where ",
    "mask list": "attend: mask is [[True]]: a Mask or a boolean array [B N T S] is needed, True wh",
    "mask text": "attend: mask is 'causal': a Mask or a boolean array [B N T S] is needed, True wh",
    "mask numbers": "attend: mask: an array of float32, not bool: True where a query may attend",
    "bias of truth": "attend: bias holds True and False, and would add 1 and 0: numbers are needed",
    "bias of a list": "attend: bias holds True and False, and would add 1 and 0: numbers are neede",
    "bias of weights": "attention_weights: bias holds True and False, and would add 1 and 0: numbe",
    "bias heads first": "attend: bias holds True and False, and would add 1 and 0: numbers are nee",
    "score": "attend: score is 2: a function is needed",
    "dropout": "attend: dropout is 0.1: a rate and a key, (0.1, jax.random.key(0)), or None is nee",
    "dropout rate": "attend: dropout: rate is 1.5: allowed are 0 up to, not including, 1",
    "soft cap": "ScaledDot: softcap is -1.0: above 0, or None",
    "scale": "ScaledDot: scale is 'big': a number or None is needed",
    "mask causal": "Mask: causal is 'yes': true or false is needed",
    "mask window": "Mask: window is 2.5: a whole number or None is needed",
    "mask no window": "Mask: window is 0: at least 1, or None",
    "mask lengths": "Mask: kv_lengths is an array of float32 [2]: an array of whole numbers [B] or",
    "mask lengths list": "Mask: kv_lengths is [2]: an array of whole numbers [B] or None is needed",
    "mask dense": "Mask: dense: an array of float32, not bool: True where a query may attend",
    "mask rank": "Mask: dense: an array with 2 dimensions instead of the four of [B N T S]: use ar",
    "mask segments": "Mask: q_segments and kv_segments are given together, or neither",
    "mask offset": "Mask: offset is 0.5: a whole number or a scalar is needed",
    "padding of numbers": "padding_mask: which is an array of float32 [2]: an array of whole numbe",
    "padding of rows": "padding_mask: which is an array of bool [2]: an array of whole numbers [B]",
    "padding of integers": "padding_mask: which is an array of int32 [1, 2]: an array of whole num",
    "padding of a list": "padding_mask: which is [2]: an array of whole numbers [B] or an array of",
    "plan count": "ArrayPlan: count is 8.5: a whole number is needed",
    "plan rows": "ArrayPlan: rows is 0: at least 1",
    "plan shuffle": "ArrayPlan: shuffle is 'no': true or false is needed",
    "plan seed": "ArrayPlan: seed is -1: at least 0",
    "metric": "metric.better is upper: allowed are lower, higher",
    "metric name": "metric.name is 3: text is needed",
    "task objective": "Task: objective is 'loss': a function is needed",
    "task metrics": "Task: metrics is (('valid_loss', 'lower'),): ('valid_loss', 'lower') in it: a",
    "task without metrics": 'metrics is empty: give tj.Metric("valid_loss", "lower") or others',
    "task data": "Task: train is [1, 2]: a Data is needed",
    "task valid": "Task: valid is [1]: a Data is needed",
    "task plan": "Task: train: plan is 8: a Plan is needed",
    "task batches": "Task: train: make_batch is a dict: a function is needed",
    "task threads": "Task: train: threads is 0: at least 1",
    "fit steps": "Trainer.fit: steps is 2.5: a whole number or None is needed",
    "fit no steps": "Trainer.fit: steps is 0: at least 1, or None",
    "fit truth": "Trainer.fit: steps is True: a whole number or None is needed",
    "fit epochs": "Trainer.fit: epochs is -1: at least 1, or None",
    "fit text": "Trainer.fit: steps is '2': a whole number or None is needed",
    "batch none": "make_batch returned NoneType: a dictionary of arrays, with rows as first axis, ",
    "batch list": "make_batch returned list: a dictionary of arrays, with rows as first axis, is n",
    "step accumulation": "make_step: accumulation is 1.5: a whole number is needed",
    "step optimizer": "make_step: tx is 'adam': a GradientTransformation is needed",
    "step decay": "make_step: ema_decay is 1.0: allowed are 0 up to, not including, 1, or None",
    "mesh config": "make_mesh: config is 2: a MeshConfig is needed",
    "load mesh": "load: mesh is 2: a Mesh or None is needed",
    "load place": "load: path is 5: text or a PathLike is needed",
    "pipeline task": "task is int: allowed are translation, summarization, text2text-generation,",
    "load changed": "load: allow_changed_config is 'no': true or false is needed",
    "adamw": "adamw: learning_rate is '1e-3': a number is needed",
    "smoothing": "language_model: label_smoothing is 1.0: allowed are 0 up to, not including, 1",
    "smoothing of classes": "image_classification: label_smoothing is -0.1: allowed are 0 up to, n",
    "mixup": "image_classification: mixup is -1.0: at least 0",
    "loss": "contrastive: loss is 'triplet': allowed are softmax, sigmoid",
    "bos": "sequence_to_sequence: bos is 1.5: a whole number is needed",
    "chunk": "sequence_to_sequence: chunk is 2.5: a whole number or None is needed",
    "sentence objective": "masked_lm: sentence_objective is 'mlm': allowed are nsp, sop, none",
    "accuracy": "masked_lm: accuracy is 'yes': true or false is needed",
    "lm weight": "with_language_model: lm_weight is -0.5: at least 0",
    "weights of floats": "length_weights: lengths is an array of float32 [2]: an array of whole nu",
    "task of a text": "language_model: data is 'hello': a TextSplits or a list is needed",
    "task config": "language_model: config is 'gpt2': a TransformerConfig is needed",
    "task tokenizer": "language_model: tokenizer is 'gpt2': a Tokenizer is needed",
    "task length": "masked_lm: length is 0: at least 1",
    "task smoothing": "translation: label_smoothing is 1: allowed are 0 up to, not including, 1",
    "law of one token": "laws: the inputs have shape [2, 1], without a later position to read: giv",
    "law of a row": "causality: tokens is an array of int64 [4]: an array [B T *F] is needed",
    "law tolerance": "causality: tolerance is -1: at least 0",
    "law not a number": "causality: tolerance is nan: at least 0",
    "law function": "causality: outputs is 5: a function is needed",
    "law gradient": "laws: the inputs have shape [1, 1, 2], without a later position to read: give",
    "law vectors": "causality_by_gradient: vectors is an array of float32 [1, 2]: an array of floa",
    "law permutation": "permutation: inputs is an array of int64 [4]: an array [B T *F] is needed",
    "law padding": "padding: real is an array of float64 [3, 4]: an array of True and False [B T] ",
    "law cache": "laws: the texts have shape [2, 1]: give texts of two tokens or more, which need ",
    "law prompt": "laws: the prompt has length 3, the text 3: give a prompt of at least 1 that",
    "law beams": "laws: one beam has no others to continue from: give two or more",
    "law parts": "loss_split: parts is 1.5: a whole number is needed",
    "law packing": "laws: documents of 3 tokens in a row of 2: give documents with tokens, and a r",
    "law documents": "laws: documents of 0 tokens in a row of 2: give documents with tokens, and a",
    "law of nothing": "laws: the results are empty: there is nothing to compare",
    "law weights": "weights_sum_to_one: weights is an array of float64 [3]: an array of floating-p",
    "law mask": "mask_polarity: q is an array of float64 [2, 3]: an array of floating-point number",
    "task of numbers": "texts: text 0 is 1: text is needed",
    "task of texts": "translation: pair 0 is 'ab': a list is needed",
    "trainer mesh": "Trainer: mesh is 2: a Mesh or None is needed",
    "state average": "TrainState.create: ema is 'yes': true or false is needed",
    "state optimizer": "optimizer: no state for the parameters of a model ('str' object has no att",
    "split": "split: model is 5: a Module is needed",
    "decoder config": "Decoder: config is 'gpt2': a TransformerConfig is needed",
    "encoder config": "Encoder: config is None: a TransformerConfig is needed",
    "translator config": "TransformerEncoderDecoder: config is 't5': a TransformerConfig is needed",
    "decoder of floats": "tokens are float32: an array of whole numbers [B T] is needed",
    "decoder of a list": "tokens are list: an array of whole numbers [B T] is needed",
    "mesh of nothing": "devices is empty: give some of jax.devices(), or leave it out",
    "warmup": "optimizer.schedule.warmup_steps is -1: at least 0, or None",
    "law stops": "laws: stops has (-1,): tuples of steps from 1 on, as [(2,)]",
    "law stop": "laws: stops has 2: tuples of steps from 1 on, as [(2,)]",
    "law visible": "laws: visible has shape [1, 2, 2]: [1, 3, 3] is needed",
    "law real": "laws: the mask has shape [1, 2], an input [3, 4]: the leading axes must be equal",
    "law rows": "laws: the inputs have no rows: give arrays [B ...]",
}


@pytest.fixture(scope="module")
def found():
    made = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=300, check=False
    )
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)


@pytest.mark.parametrize("name", SAID)
def test_what_cannot_be_is_refused_in_one_line(found, name):
    assert SAID[name] in found[name]
    assert "\n" not in found[name]
    assert "Error: " not in found[name]


def test_the_nearest_preset_is_named(found):
    assert found["preset"].endswith("; did you mean vaswani_base?")
    assert found["recurrent preset"].endswith("; did you mean luong2015?")
    assert set(found) == set(SAID)


def test_pixels_of_every_integer_dtype_and_lists_are_read():
    pixels = np.arange(12).reshape(2, 2, 3)
    for dtype in (np.uint8, np.int16, np.uint16, np.int64):
        np.testing.assert_array_equal(pixels_of(pixels.astype(dtype)), pixels)
    np.testing.assert_array_equal(pixels_of(pixels.tolist()), pixels)
    assert pixels_of((pixels / 255).astype(np.float32)[None]).shape == (1, 2, 2, 3)
