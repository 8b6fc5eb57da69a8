"""Any end token ends a text, in every search."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.finding import SearchRows, find
from tests.decoding.test_beam import random_trees, tree_reorder, tree_step
from tests.decoding.test_language import FEW, model, parts, tokenizer
from transformer_jax.core.errors import DataError
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.exhaustive import exhaustive_search
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.language import DecoderLanguageModel
from transformer_jax.decoding.options import BatchingConfig, SpecialTokens, special_tokens
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.decoding.search_state import Steps

V, LENGTH = 4, 4
SEVERAL = SpecialTokens(0, -1, end_tokens=(2,))


@pytest.mark.quick("3")
@pytest.mark.parametrize("beams", [3, V**LENGTH])
def test_beams_end_by_any_end_token(beams):
    trees = random_trees(5, 6, V, LENGTH)
    step, state = tree_step(jnp.asarray(trees), beams)
    config = TRANSLATION.changed(num_beams=beams, num_return_sequences=min(beams, 3))
    rows, model = SearchRows(jnp.zeros(6, jnp.int32)), Steps(step, tree_reorder)
    found = find(model, state, rows, SEVERAL, config, vocab=V, length=LENGTH)
    texts = [
        [row[:n] for row, n in zip(*pair, strict=True)]
        for pair in zip(found.tokens.tolist(), found.lengths.tolist(), strict=True)
    ]
    for tree, each, scores in zip(trees, texts, np.asarray(found.scores), strict=True):
        for text in each:
            assert text[-1] in (0, 2)
            assert not {0, 2} & set(text[:-1])
        assert len({tuple(text[:-1]) for text in each}) == len(each)  # distinct texts
        if beams < V**LENGTH:
            continue

        def scorer(inputs, tree=tree):
            nodes = np.zeros(inputs.shape, int)
            for t in range(1, inputs.shape[1]):
                nodes[:, t] = V * nodes[:, t - 1] + 1 + inputs[:, t]
            return tree[nodes]

        exact = exhaustive_search(scorer, SEVERAL, config, start=0, vocab_size=V, length=LENGTH)
        assert [tuple(text) for text in each] == [one.tokens for one in exact]
        np.testing.assert_allclose(scores, [one.score for one in exact], atol=1e-4)


def ending(*tokens):
    """The tokenizer with further ends."""
    names = [tokenizer().name(token) for token in tokens]
    return Tokenizer(tokenizer().text, {"ends": names})


GREEDY = GenerationRequest("abc", max_new_tokens=24, temperature=0)


def texts(language, request=GREEDY):
    return language.generate([request])[0], "".join(language.stream(request))


@pytest.mark.slow
@pytest.mark.parametrize("draft", [0, 4])
def test_greedy_text_ends_with_the_first_of_any_end(draft):
    """Also by prompt lookup, whose drafts may run over an end."""
    [free], _ = texts(model())
    assert free.finish_reason == "length"
    end = free.tokens[10]
    at = free.tokens.index(end)
    shapes = BatchingConfig(**FEW, num_draft_tokens=draft)
    language = DecoderLanguageModel(parts(), ending(end), shapes=shapes)
    [found], streamed = texts(language)
    assert found.tokens == free.tokens[: at + 1]
    assert found.finish_reason == "end"
    assert streamed == found.text
    # Conversations have ends of their own beside those of the model.
    chat = language.ending_at((language.tokenizer.eos,))
    assert chat.generate([GREEDY])[0][0].tokens == found.tokens
    [best, *_], _ = texts(language, GenerationRequest("abc", max_new_tokens=24, num_beams=3))
    assert not {end, language.tokenizer.eos} & set(best.tokens[:-1])


def test_an_end_is_generated_where_texts_end_and_never_otherwise():
    several = ending(5, 6)
    assert several.end_tokens == (several.eos, 5, 6)
    found = special_tokens(several, several.vocab_size)
    assert found.ends == several.end_tokens
    assert not set(found.ends) & set(found.suppress_tokens)
    found = special_tokens(several, several.vocab_size, ends=False)
    assert found.end_tokens == ()
    assert {several.eos, 5, 6} <= set(found.suppress_tokens)


def test_an_end_that_the_tokenizer_lacks_is_refused():
    with pytest.raises(DataError, match="has no token '<stop>' to end a text"):
        Tokenizer(tokenizer().text, {"ends": ["<stop>"]})
