"""Cut is told: a text of which a model reads only a part is counted in one line, or refused.

So are texts that a limit ends, whose ``finish_reason`` says so.
"""

import contextlib
import io
import sys
import warnings

import numpy as np
import pytest

import transformer_jax as tj
from tests.doors import uses
from transformer_jax.cli.main import main
from transformer_jax.core.errors import UserError

LAW = 3
KINDS = ("use",)

TOLD = "1 text was longer than the model reads, and truncated"
# What happens to a text that is too long, if it is not truncated and counted.
REFUSED = {
    "fill masks": "at most 44 are possible: shorten it",
    "chat": "the context of the model allows 44: shorten it",
    "look at attention": "has more than 44 tokens: shorten it",
}
WHOLE = ("score texts", "tag words", "tokenize")  # in windows, or in further rows
CASES: dict[str, str] = {name: REFUSED.get(name, TOLD) for name in uses.USES}
EXEMPT = {
    "compare samples": "samples of generate, whose prompts must fit, or are counted by prefer",
    "few-shot prompts": "counts prompts that lose examples itself, in each line of its output",
    "compare vectors of a word": "refuses a word that is not in the part that is read",
    "transcribe": "refuses a recording that is longer than the model reads",
    "caption": "takes pictures, which are resized and not cut by length",
    "classify pictures": "takes pictures, which are resized and not cut by length",
    "embed pictures": "takes pictures, which are resized and not cut by length",
    "match pictures and texts": "a model of its own: tests/recipes/test_clip.py",
    "words of word vectors": "looks words up, however long",
}

LONG = " ".join([uses.TEXT] * 20)


@contextlib.contextmanager
def heard():
    """The messages of the warnings inside."""
    messages = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield messages
    messages += [str(one.message) for one in seen]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_model_tells_of_a_text_that_it_does_not_read_to_its_end(name, tmp_path):
    use = uses.USES[name]
    model = tj.load(use.write(tmp_path / "model"))
    if name in REFUSED:
        with pytest.raises(UserError, match=CASES[name]):
            use.call(model, LONG)
        return
    with heard() as short:
        use.call(model, "un café")
    with heard() as said:
        result = use.call(model, LONG)
    assert TOLD not in short
    if name not in WHOLE:
        assert TOLD in said
        return
    assert said == short
    other = use.call(model, LONG.removesuffix("vu") + "la")
    assert np.shape(result) == np.shape(other) or result != other
    assert str(result) != str(other)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, use in uses.USES.items() if use.command])
def test_a_command_counts_texts_that_it_does_not_read_to_their_end(
    name, tmp_path, monkeypatch, capfd
):
    use = uses.USES[name]
    folder = use.write(tmp_path / "model")
    for text, expected in ((LONG, name not in WHOLE), ("un café", False)):
        arguments, given = use.command(folder, text)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        assert main(arguments) == 0
        said = [line for line in capfd.readouterr().err.splitlines() if "truncated" in line]
        assert len(said) == expected


@pytest.mark.slow
def test_the_reason_for_which_a_text_ends_is_true(tmp_path):
    """A limit is the reason if and only if no end token was written."""
    model = tj.load(uses.USES["generate"].write(tmp_path / "model"))
    settings = {"max_new_tokens": 9, "temperature": 2.0, "num_return_sequences": 64, "seed": 1}
    text = model.generate(uses.TEXT, **settings)
    texts = [text, *text.alternatives]
    ended = [model.tokenizer.eos in one.tokens for one in texts]
    assert [one.finish_reason for one in texts] == ["end" if one else "length" for one in ended]
    assert {*ended} == {True, False}
