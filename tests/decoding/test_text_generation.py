"""The common behaviour of language models: samples, beams, batches, streams, stop strings."""

import dataclasses

import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.decoding.ngram import NgramLanguageModel
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.decoding.text_generation import CausalTextGenerator

TEXTS = ["the dog sees the cat", "a fox reads a book", "the sea is cold", "to run to the sea"] * 6


class Counting(CausalTextGenerator):
    """Writes the samples' own numbers, and finds beams by theirs; two sequences a batch."""

    def __init__(self, tokenizer):
        self.tokenizer, self.sizes = tokenizer, []

    def prompt_tokens(self, prompt):
        return self.tokenizer.encode(prompt)

    def batches(self, sequences):
        for at in range(0, len(sequences), 2):
            yield sequences[at : at + 2]

    def extend(self, batch, streaming=False):
        self.sizes.append(len(batch))
        while left := [one for one in batch if one.remaining]:
            for one in left:
                one.add(self.tokenizer.encode("abcdef"[one.sample]), -1.0)
            yield

    def search(self, batch, config, kept):
        assert {(one.request.num_beams, one.request.num_return_sequences) for one in batch} == {
            (config.num_beams, config.num_return_sequences)
        }
        found = {}
        for start in batch:
            for place in range(config.num_return_sequences):
                beam = dataclasses.replace(start, tokens=[])
                beam.add(self.tokenizer.encode("uvwxyz"[place]), -2.0)
                found[start.index, place] = beam.done()
        return lambda: found


@pytest.fixture(scope="module")
def letters():
    return train_tokenizer("characters", ["abcdefuvwxyz "], 20)


def test_each_request_gets_its_samples_or_beams_in_its_place(letters):
    model = Counting(letters)
    beams = {"num_beams": 3, "max_new_tokens": 2}
    requests = [
        GenerationRequest("a", num_return_sequences=3, max_new_tokens=2),
        GenerationRequest("b", num_return_sequences=2, **beams),
        GenerationRequest("", max_new_tokens=4, stop=("aa",)),
        GenerationRequest("c", num_return_sequences=3, **beams),
    ]
    found = model.generate(requests)
    assert [[one.text for one in texts] for texts in found] == [
        ["aa", "bb", "cc"], ["u", "v"], [""], ["u", "v", "w"],
    ]  # fmt: skip
    assert [one.finish_reason for one in found[0]] == ["length"] * 3
    assert (found[2][0].finish_reason, found[2][0].log_prob) == ("stop", -2.0)
    assert model.sizes == [2, 2]
    assert list(model.stream(requests[3])) == ["u"]
    # What may begin a stop string is held back.
    assert list(model.stream(GenerationRequest("", max_new_tokens=3, stop=("ab",)))) == ["a"] * 3
    assert list(model.stream(GenerationRequest("", max_new_tokens=3, stop=("aa",)))) == []


def test_a_batch_is_prepared_while_another_is_searched(letters):
    """Two batches are in flight; the first is waited for when the second has started."""
    events = []

    class Watched(Counting):
        def search(self, batch, config, kept):
            wait, first = super().search(batch, config, kept), batch[0].index
            events.append(("start", first))
            return lambda: events.append(("wait", first)) or wait()

    requests = [GenerationRequest("a", num_beams=2, max_new_tokens=2)] * 7
    found = Watched(letters).generate(requests)
    assert [[one.text for one in texts] for texts in found] == [["u"]] * 7
    assert events == [
        ("start", 0), ("start", 2), ("wait", 0), ("start", 4), ("wait", 2), ("start", 6),
        ("wait", 4), ("wait", 6),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def ngram():
    tokenizer = train_tokenizer("wordpiece", TEXTS, 40, special=BERT_SPECIAL)
    return NgramLanguageModel.train(TEXTS, tokenizer, order=3)


def test_the_text_of_an_ngram_model_is_that_of_its_tokens(ngram):
    """Also where one word consists of several tokens, of which the prompt may hold the first."""
    decode, encode = ngram.tokenizer.decode, ngram.tokenizer.encode
    prompts = ["", "the ", "a fox"]
    requests = [
        GenerationRequest(prompt, max_new_tokens=30, seed=seed, num_return_sequences=2)
        for prompt in prompts
        for seed in range(4)
    ]
    for request, texts in zip(requests, ngram.generate(requests), strict=True):
        read = encode(request.prompt)
        for one in texts:
            assert decode(read) + one.text == decode([*read, *one.tokens])
            assert "##" not in one.text
    for request in requests[::3]:
        first = ngram.generate([dataclasses.replace(request, num_return_sequences=1)])[0][0]
        assert "".join(ngram.stream(request)) == first.text


def test_a_stop_string_that_begins_with_a_blank_ends_the_text(ngram):
    """The text begins with the blank after the last word of the prompt."""
    request = GenerationRequest("the", temperature=0.0, max_new_tokens=12)
    [[whole]] = ngram.generate([request])
    assert whole.text.startswith(" ")
    stop = whole.text[:3]
    [[cut]] = ngram.generate([dataclasses.replace(request, stop=(stop,))])
    assert (cut.text, cut.finish_reason) == ("", "stop")
    assert len(cut.tokens) < len(whole.tokens)


def test_a_request_of_another_prompt_checks_the_prompt_alone():
    request = GenerationRequest("a", number=1, top_k=3, stop=("x",))
    assert request.with_prompt("b", 2) == GenerationRequest("b", number=2, top_k=3, stop=("x",))
    assert request.prompt == "a"
    for prompt, number in (("\0", 1), ("b", -1)):
        with pytest.raises(ConfigError) as given:
            GenerationRequest(prompt, number=number)
        with pytest.raises(ConfigError) as found:
            request.with_prompt(prompt, number)
        assert str(found.value) == str(given.value)
