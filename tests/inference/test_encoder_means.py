"""Mean encoder states of sentences: of their own tokens alone, whatever stands beside them."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.decoding.test_translator import EOS, SEARCH, SHAPES, Letters, letter_model
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.languages import Direction, LanguageTags
from transformer_jax.decoding.translator import Translator
from transformer_jax.inference.encoder_means import EncoderMeans

SENTENCES = ["abcd", "p", "hgfedcba", "bbbb", "aceg"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [(("to",), (EOS,)), ((), (EOS,)), (("from",), (EOS, "to"))],
    ids=["source", "target", "behind"],
)
def test_means_leave_out_tags_ends_and_padding(before, after):
    tokenizer, model = Letters(), letter_model()
    tokenizer.languages = LanguageTags({"x": 17, "y": 18}, before, after, ("to",))
    translator = Translator(model, tokenizer, search=SEARCH, batching=SHAPES)
    means, direction = EncoderMeans(translator), Direction("x", "y")
    vectors = means(SENTENCES, direction)
    frame = tokenizer.languages.frame(direction)
    model = nnx.merge(translator.graph, translator.params)
    for sentence, vector in zip(SENTENCES[:2], vectors, strict=False):
        ids = [*frame.before, *tokenizer.encode_batch([sentence])[0], *frame.after]
        states = model.encode(jnp.array([ids]), jnp.array([len(ids)]))[0]
        inside = states[len(frame.before) : len(ids) - len(frame.after)]
        np.testing.assert_allclose(vector, inside.mean(0), rtol=1e-4, atol=1e-5)
    again = means(SENTENCES[::-1], direction)[::-1]
    np.testing.assert_allclose(again, vectors, atol=1e-5)
    with pytest.raises(ConfigError, match="w is not a target language"):
        means(SENTENCES, Direction("x", "w"))
