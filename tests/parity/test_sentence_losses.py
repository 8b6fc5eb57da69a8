"""The stored losses of sentence-transformers are what it computes."""

import json

import numpy as np
import pytest

from tests.parity.sentence_losses import CASES, STORED, theirs

pytest.importorskip("sentence_transformers")

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", CASES)
def test_stored_losses_are_those_of_sentence_transformers(name):
    value, slope = theirs(name)
    expected, gradient = json.loads(STORED.read_text("utf-8"))[name]
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(slope, gradient, atol=1e-7)
