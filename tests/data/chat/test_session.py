"""Turns of a conversation: what is kept changes no token, and the oldest turns go first."""

import dataclasses

import pytest
from flax import nnx

from tests.data.chat.test_encoding import tokenizer  # noqa: F401  (a fixture)
from tests.drawing import drawn
from transformer_jax.core.errors import DataError
from transformer_jax.data.chat.encoding import ChatEncoder
from transformer_jax.data.chat.template import named_template
from transformer_jax.decoding.language import DecoderLanguageModel
from transformer_jax.decoding.options import BatchingConfig
from transformer_jax.decoding.partial_text import KeptContext
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.inference.chat_session import ChatModel, ChatSession, fit_messages
from transformer_jax.models.config import AttentionConfig, FeedForwardConfig, PositionConfig
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder

CONTEXT = 128
GREEDY = GenerationRequest("", max_new_tokens=9, temperature=0)
TALK = ["Hi there", "so", "hello hello user", "yes", "no no no", "chat between", "Hi"]


@pytest.fixture(scope="module")
def make(tokenizer):  # noqa: F811
    def config(kind):
        return dataclasses.replace(
            PRESETS["llama_style"] if kind == "rope" else PRESETS["nanogpt_char"],
            vocab_size=tokenizer.vocab_size,
            d_model=32,
            decoder_layers=2,
            attention=AttentionConfig(num_heads=4),
            feed_forward=FeedForwardConfig(d_ff=64),
            positions=PositionConfig(kind=kind, max_length=CONTEXT),
        )

    encoder = ChatEncoder(tokenizer, named_template("chatml"))
    loaded = {}

    def model(kind="rope", **shapes):
        if kind not in loaded:
            loaded[kind] = drawn(lambda: Decoder(config(kind), rngs=nnx.Rngs(0)), seed=3)
        few = {
            "rows": (1,),
            "lengths": (16, 32, 64, 128),
            "caches": (64, 256),
            "chunk": 4,
        }
        language = DecoderLanguageModel(
            loaded[kind],
            tokenizer,
            shapes=BatchingConfig(**few | shapes),
        )
        return ChatModel(language, encoder)

    return model


def talk(session, texts=TALK, request=GREEDY):
    return ["".join(session.ask(text, request)) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rows"),
    # Two rows are the fewest on a GPU.
    [("rope", 1), ("learned", 1), ("rope", 2)],
)
def test_a_kept_conversation_is_that_from_scratch(make, kind, rows):
    model, scratch = make(kind, rows=(rows,)), make(kind, rows=(1,))
    session, reads = ChatSession(model, "Be so."), []
    resume, begin = model.language.run.resume, model.language.run.begin
    model.language.run.resume = lambda *a, **k: (reads.append(int(a[2].length)), resume(*a, **k))[1]
    model.language.run.begin = lambda *a, **k: (reads.append(None), begin(*a, **k))[1]
    for number, text in enumerate(TALK):
        found = "".join(session.ask(text, GREEDY))
        # The same messages, of which nothing is kept.
        seen = session.messages[:1] + session.messages[1 + session.dropped : -1]
        scratch._kept = KeptContext()
        expected = scratch.answer(seen, dataclasses.replace(GREEDY, number=number))
        assert found == expected.text
        assert session.messages[-1] == {"role": "assistant", "content": expected.text}
    # Most turns read their own tokens alone: the end of the answer before, the message, the header.
    few = [count for count in reads if count is not None]
    assert len(few) >= 4
    assert max(few) < 64
    assert session.dropped


@pytest.mark.slow
def test_sampling_is_that_from_scratch_too(make):
    request = dataclasses.replace(GREEDY, temperature=1.0, top_k=20, seed=5)
    model = make()
    session = ChatSession(model)
    first = talk(session, TALK[:3], request)
    assert first == talk(ChatSession(model), TALK[:3], request)
    number = dataclasses.replace(request, number=2)
    model._kept = KeptContext()
    assert model.answer(session.messages[:-1], number).text == first[-1]
    assert first != talk(ChatSession(model), TALK[:3], dataclasses.replace(request, seed=6))


@pytest.mark.slow
def test_the_oldest_turns_are_left_out_and_the_system_prompt_stays(make):
    session = ChatSession(make(), "Be so.")
    talk(session, TALK * 2)
    assert session.dropped > 0
    assert session.dropped % 2 == 0
    assert len(session.messages) == 1 + 4 * len(TALK)
    seen = session.messages[:1] + session.messages[1 + session.dropped :]
    assert seen[1]["role"] == "user"
    assert len(session._model.encoder.prompt(seen)) <= CONTEXT


@pytest.mark.slow
def test_a_message_that_no_context_holds_is_refused_and_forgotten(make):
    session = ChatSession(make())
    talk(session, TALK[:1])
    before = list(session.messages)
    with pytest.raises(
        DataError, match=r"the message has .* tokens with its template and system prompt"
    ):
        talk(session, ["no " * 200])
    assert session.messages == before
    talk(session, TALK[1:2])
    assert len(session.messages) == 4


def test_what_fits_is_not_cut(make):
    encoder = make().encoder
    chat = [{"role": "user", "content": "Hi"}]
    ids = encoder.prompt(chat)
    assert fit_messages(encoder, chat, len(ids)) == (ids, 0)
    two = [*chat, {"role": "assistant", "content": "no"}, *chat]
    assert fit_messages(encoder, two, len(ids)) == (ids, 2)
    whole = encoder.prompt(two)
    assert fit_messages(encoder, two, len(whole), room=len(ids)) == (whole, 0)
    # More than the room that is wanted, or the limit, where nothing else could go.
    assert fit_messages(encoder, two, 3, most=len(ids)) == (ids, 2)
    assert fit_messages(encoder, two, len(ids), room=1) == (ids, 2)
    with pytest.raises(DataError, match=f"the message has {len(ids)} tokens .* allows 3"):
        fit_messages(encoder, two, 3)


@pytest.mark.slow
def test_an_answer_ends_at_the_end_token_of_the_template(make):
    model = make()
    [end, eos] = model.encoder.end_tokens
    request = dataclasses.replace(GREEDY, max_new_tokens=60, temperature=1.5)
    found = [
        model.answer([{"role": "user", "content": "Hi"}], dataclasses.replace(request, seed=seed))
        for seed in range(40)
    ]
    ended = [one for one in found if one.finish_reason == "end"]
    assert {one.tokens[-1] for one in ended} == {end, eos}
    assert all(token not in (end, eos) for one in found for token in one.tokens[:-1])


@pytest.mark.slow
def test_an_answer_that_is_stopped_belongs_to_the_conversation(make):
    model = make()
    session = ChatSession(model)
    part = session.ask("Hi there", dataclasses.replace(GREEDY, max_new_tokens=40))
    text = next(part)
    part.close()
    assert session.messages[-1]["role"] == "assistant"
    assert session.messages[-1]["content"].startswith(text)
    after = talk(session, ["so"])
    model._kept = KeptContext()
    fresh = model.answer(session.messages[:-1], dataclasses.replace(GREEDY, number=1))
    assert after == [fresh.text]


@pytest.mark.slow
def test_a_session_forgets_what_it_is_told_to(make):
    session = ChatSession(make(), "Be so.")
    [first] = talk(session, TALK[:1])
    talk(session, TALK[1:3])
    session.reset()
    assert session.messages == [{"role": "system", "content": "Be so."}]
    assert talk(session, TALK[:1]) == [first]
    session.set_system(None)
    assert session.messages == []
