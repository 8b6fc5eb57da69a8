"""A streamed text is the generated text, for every kind of tokenizer, wherever its tokens end."""

import dataclasses
import random
import unicodedata

import pytest

from tests.conftest import SWEEP_SEED
from tests.tokenizer_kinds import KINDS, TRAINED, tokenizer_of
from transformer_jax.data.tokenizer_parts import repair_byte_runs
from transformer_jax.data.words import spellings
from transformer_jax.decoding.ngram import NgramLanguageModel
from transformer_jax.decoding.partial_text import truncate_at_stop
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.decoding.text_generation import CausalTextGenerator
from transformer_jax.inference.chat_session import ChatModel, ChatSession, PendingAnswer

# Their decoders restore every text, so that what is written is known.
LOSSLESS = ("bpe", "unigram", "bytes", "llama", "metaspace", "gemma", "sentencepiece")
# Letters of several bytes, several code points to a letter, blanks, and what looks like a token.
PARTS = ["日本", "日", "😀", "é", "👩\u200d👩\u200d👧", "…", "naïve", "क्षि", "한", "יוֹם", "𝔘"]
PARTS += ["e\u0301", "\ufffd", "\u200d"]
PARTS += ["Hi", "hello ", " no", ".", ", ", "  ", "\n", "0x", "<0xE6>", "don't", "'s", " ?"]


class Recital(CausalTextGenerator):
    """Writes given tokens, some at a time."""

    def __init__(self, tokenizer, tokens, step):
        self.tokenizer, self.tokens, self.step = tokenizer, tokens, step

    def prompt_tokens(self, prompt):
        raise AssertionError("prompts are given as tokens")

    def batches(self, sequences):
        return ([sequence] for sequence in sequences)

    def search(self, batch, config):
        raise AssertionError("there are no beams")

    def extend(self, batch, streaming=False):
        [sequence] = batch
        while sequence.remaining:
            first = len(sequence.tokens)
            last = min(first + self.step, sequence.request.max_new_tokens)
            sequence.add(self.tokens[first:last], -0.1)
            yield


def written(tokenizer, ids, known, stop=(), step=1):
    """The generated text behind the first ``known`` ids and the parts of the streamed one."""
    model = Recital(tokenizer, ids[known:], step)
    request = GenerationRequest(
        "", prompt_ids=tuple(ids[:known]), max_new_tokens=len(ids) - known, stop=stop
    )
    return model.generate([request])[0][0], list(model.stream(request))


def texts(kind, count):
    draw = random.Random(f"{SWEEP_SEED} {kind}")
    return ["".join(draw.choices(PARTS, k=draw.randint(1, 7))).strip(" ") for _ in range(count)]


# The first texts of each kind are quick, all 200 slow.
@pytest.mark.quick("bytes-20", "metaspace-20")
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        *((kind, 20) for kind in KINDS),
        *(pytest.param(kind, 200, marks=pytest.mark.slow) for kind in KINDS),
    ],
)
def test_streamed_is_generated_for_every_text_cut_at_every_token(kind, count):
    tokenizer, draw = tokenizer_of(kind), random.Random(f"{SWEEP_SEED} {kind} cuts")
    for text in texts(kind, count):
        ids = tokenizer.encode(text)
        if not ids:
            continue
        before = ""
        for end in range(1, len(ids) + 1):
            known = draw.choice([0, draw.randrange(end)])
            step = draw.choice([1, 1, 2, 5])
            answer, parts = written(tokenizer, ids[:end], known, step=step)
            assert "".join(parts) == answer.text, (text, known, end)
            assert all(parts)
            # The text grows: nothing that it had is lost.
            shown = tokenizer.decode(ids[:end])
            assert shown.startswith(before), (text, end)
            before = shown.rstrip("\ufffd")
        if kind in LOSSLESS and "<0x" not in text:
            # Tokenizers that are trained here read composed characters.
            read = unicodedata.normalize("NFC", text) if kind in TRAINED else text
            assert tokenizer.decode(ids) == read


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in LOSSLESS])
def test_complete_characters_are_kept_where_a_text_is_cut_at_any_byte(kind):
    tokenizer = tokenizer_of(kind)
    for text in ["日本😀", "日😀é", "本本本", "é日 Hi 😀 no"]:
        ids, shown = tokenizer.encode(text), []
        for end in range(len(ids) + 1):
            found = tokenizer.decode(ids[:end])
            kept = found.rstrip("\ufffd")
            assert text.startswith(kept)
            assert len(found) - len(kept) <= 1
            shown.append(kept)
        # Each character is there as soon as its last byte is.
        assert shown[-1] == text
        assert len(set(shown)) >= len(set(text) - set("Hino "))
        for known in range(len(ids)):
            answer, parts = written(tokenizer, ids, known)
            assert "".join(parts) == answer.text
            if known:
                rest = tokenizer.decode(ids[:known]).rstrip("\ufffd")
                assert rest + answer.text == text, known


@pytest.mark.parametrize("kind", ["bytes", "llama", "wordpiece", "characters"])
@pytest.mark.quick("bytes", "llama")
def test_stop_strings_end_streamed_and_generated_texts_alike(kind):
    tokenizer, draw = tokenizer_of(kind), random.Random(f"{SWEEP_SEED} {kind} stops")
    stopped = 0
    for text in texts(kind, 60):
        ids = tokenizer.encode(text)
        shown = tokenizer.decode(ids)
        if len(ids) < 2 or len(shown) < 3:
            continue
        at = draw.randrange(len(shown) - 1)
        stop = (shown[at : at + 2], shown[at + 1 : at + 2], shown[max(0, at - 1) :], "never")
        found = {written(tokenizer, ids, 0, stop, step)[0].text for step in (1, 2, 3, 99)}
        assert len(found) == 1, (shown, stop)
        for step in (1, 3):
            answer, parts = written(tokenizer, ids, 0, stop, step)
            spelled = [form for one in stop for form in spellings(one)]
            assert "".join(parts) == answer.text == truncate_at_stop(shown, spelled)[0]
            stopped += answer.finish_reason == "stop"
    assert stopped > 20


def test_bytes_are_what_python_makes_of_them():
    draw = random.Random(SWEEP_SEED)
    decoder = tokenizer_of("gemma")._backend.decoder
    for _ in range(300):
        data = bytes(draw.choice(b"a\xe6\x97\xa5\xf0\x9f\x98\x80\xc3\xa9\xff") for _ in range(9))
        tokens = [f"<0x{byte:02X}>" for byte in data]
        assert decoder.decode(repair_byte_runs(tokens)) == data.decode(errors="replace")


@pytest.mark.parametrize("kind", ["bytes", "characters", "wordpiece"])
@pytest.mark.quick("bytes")
def test_an_n_gram_model_streams_what_it_generates(kind):
    tokenizer = tokenizer_of(kind)
    model = NgramLanguageModel.train(texts(kind, 60), tokenizer, order=3)
    for seed in range(20):
        for stop in ((), ("no",), ("\ufffd", "日")):
            request = GenerationRequest("日", max_new_tokens=11, seed=seed, stop=stop)
            parts = list(model.stream(request))
            assert "".join(parts) == model.generate([request])[0][0].text


class ChatReciting(ChatModel):
    """A chat model whose answer is given."""

    def __init__(self, tokenizer, tokens):
        self.language = Recital(tokenizer, tokens, 1)

    def sequence(self, messages, request):
        request = dataclasses.replace(request, prompt_ids=())
        return PendingAnswer(self.language, next(self.language.sequences(request, 0)), 0)


@pytest.mark.parametrize("kind", ["bytes", "llama", "sentencepiece"])
def test_a_turn_is_kept_as_it_was_shown(kind):
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("日本😀")
    for most in range(1, len(ids) + 1):
        session = ChatSession(ChatReciting(tokenizer, ids))
        request = GenerationRequest("", max_new_tokens=most)
        shown = "".join(session.ask("Hi", request))
        assert session.messages[-1]["content"] == shown
        assert (session.finish_reason, session.context_full) == ("length", False)
        assert "日本😀".startswith(shown.rstrip("\ufffd"))
    # One byte short, and stopped by the user there.
    session = ChatSession(ChatReciting(tokenizer, ids[:-1]))
    parts = session.ask("Hi", GenerationRequest("", max_new_tokens=len(ids) - 1))
    assert "".join(parts) == "日本\ufffd"
    session = ChatSession(ChatReciting(tokenizer, ids))
    parts = session.ask("Hi", GenerationRequest("", max_new_tokens=99))
    assert next(parts) == "日"
    parts.close()
    assert session.messages[-1]["content"] == "日"
