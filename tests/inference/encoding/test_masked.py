"""Laws of masked-token predictions (row H18)."""

import jax
import numpy as np
import pytest
from flax import nnx

from tests.drawing import drawn
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.tokenizer import BERT_SPECIAL, SpecialTokensTemplate, train_tokenizer
from transformer_jax.inference.encoding.masked import MaskFiller
from transformer_jax.models.heads import EncoderForMaskedLM
from transformer_jax.models.presets import bert

TEXTS = ["the brown dog sat", "a lazy fox ran over the dog", "playful foxes"]


def tokenizer_of(kind, size=300):
    return train_tokenizer(kind, TEXTS * 5, size, special=BERT_SPECIAL)


def model_for(tokenizer):
    """Graph and parameters of an untrained model with as many tokens as a tokenizer."""
    config = bert(16, 2, vocab_size=tokenizer.vocab_size, max_length=12, dropout=0.0)
    return drawn(lambda: EncoderForMaskedLM(config, next_sentence=False, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def wordpiece():
    tokenizer = tokenizer_of("wordpiece")
    graph, params = model_for(tokenizer)
    # Far from uniform, so that there is something to mistake.
    params = jax.tree.map(lambda leaf: leaf * 4 if leaf.ndim > 1 else leaf, params)
    return (graph, params), tokenizer


def full(model, ids, place):
    """The softmax of the whole head at one place, by the model itself."""
    graph, params = model

    def logits(params, tokens, lengths):
        net = nnx.merge(graph, params)
        return net.mlm_logits(super(EncoderForMaskedLM, net).__call__(tokens, lengths))

    found = jax.jit(logits)(params, np.array([ids]), np.array([len(ids)]))
    return np.asarray(jax.nn.softmax(found[0, place]))


@pytest.mark.slow
def test_probabilities_are_those_of_the_whole_head(wordpiece):
    model, tokenizer = wordpiece
    fill = MaskFiller(*wordpiece)
    text = "the [MASK] dog sat over [MASK]"
    ids = fill.encode(text)
    places = [i for i, id in enumerate(ids) if id == tokenizer.mask]
    assert len(places) == 2
    [masks] = fill([text], top=4)
    plain = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids]
    for place, words in zip(places, masks, strict=True):
        shares = full(model, ids, place)
        order = sorted(plain, key=lambda i: -shares[i])[:4]
        assert [word.text for word in words] == tokenizer.convert_ids_to_tokens(order)
        np.testing.assert_allclose([w.probability for w in words], shares[order], rtol=1e-4)


@pytest.mark.slow
def test_what_one_text_gets_does_not_depend_on_the_others(wordpiece):
    fill = MaskFiller(*wordpiece)
    texts = ["[MASK] dog", "a [MASK] fox [MASK] over [MASK]", "the dog sat [MASK]"]
    together = fill(texts, top=3)
    assert [len(masks) for masks in together] == [1, 3, 1]
    for text, masks in zip(texts, together, strict=True):
        [alone] = fill([text], top=3)
        for a, b in zip(alone, masks, strict=True):
            assert [word.text for word in a] == [word.text for word in b]
            np.testing.assert_allclose(
                [word.probability for word in a], [word.probability for word in b], atol=1e-5
            )
    assert fill([]) == []


def test_all_words_but_special_ones_are_in_the_list(wordpiece):
    _, tokenizer = wordpiece
    plain = tokenizer.vocab_size - len(tokenizer.special_ids)
    [[words]] = MaskFiller(*wordpiece)(["the [MASK]"], top=plain)
    assert len({word.text for word in words}) == plain
    assert not {word.text for word in words} & set(BERT_SPECIAL)
    shares = [word.probability for word in words]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "bytes", "characters"])
def test_the_text_around_a_mask_is_what_it_is_without(kind):
    tokenizer = tokenizer_of(kind, 400)
    ids = MaskFiller(model_for(tokenizer), tokenizer, length=64).encode("the [MASK] dog")
    assert (ids[0], ids[-1]) == (tokenizer.bos, tokenizer.eos)
    whole = tokenizer.encode("the brown dog")
    before = ids[1 : ids.index(tokenizer.mask)]
    after = ids[ids.index(tokenizer.mask) + 1 : -1]
    assert whole[: len(before)] == before
    assert whole[-len(after) :] == after
    # Where words bring their blank along, none is left over; where a blank is a token, it stays.
    between = tokenizer.decode(whole[len(before) : -len(after)])
    assert between == (" brown" if kind == "bpe" else "brown")


def test_around_a_text_stands_what_the_frame_says(wordpiece):
    _, tokenizer = wordpiece
    plain = MaskFiller(*wordpiece).encode("the [MASK] dog")
    framed = MaskFiller(
        *wordpiece, template=SpecialTokensTemplate((), (), (tokenizer.eos, tokenizer.unk))
    )
    assert framed.encode("the [MASK] dog") == [*plain[1:], tokenizer.unk]


def test_the_text_around_masks_is_prepared_and_they_are_not(wordpiece):
    fill = MaskFiller(*wordpiece, prepare=str.lower)
    assert fill.encode("The [MASK] DOG") == fill.encode("the [MASK] dog")


def test_mistakes_say_what_to_do(wordpiece):
    fill = MaskFiller(*wordpiece)
    with pytest.raises(DataError, match=r'text 2 has no \[MASK\]: .* "the \[MASK\] dog"'):
        fill(["[MASK]", "a dog"])
    with pytest.raises(DataError, match="at most 12 are possible: shorten it"):
        fill(["the dog " * 6 + "[MASK]"])
    with pytest.raises(ConfigError, match="top is 0: from 1 to"):
        fill(["[MASK]"], top=0)
    model, _ = wordpiece
    with pytest.raises(ConfigError, match=r"no \[MASK\]"):
        MaskFiller(model, train_tokenizer("characters", TEXTS, 40))
