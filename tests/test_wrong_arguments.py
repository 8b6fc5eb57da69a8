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
