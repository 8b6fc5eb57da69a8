"""Long conversations: time and memory grow with their messages, and the tokens are the same."""

import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import SWEEP_SEED
from tests.data.chat.test_template import conversation
from tests.tokenizer_kinds import KINDS, tokenizer_of
from transformer_jax.core.errors import DataError
from transformer_jax.data.chat import encoding
from transformer_jax.data.chat.conversation_store import build_chats
from transformer_jax.data.chat.encoding import ChatEncoder, MarkedRenderer, PartTokenizer
from transformer_jax.data.chat.template import ChatTemplate, built_in, named_template
from transformer_jax.inference.chat_session import fit_messages

WORDS = {"bos_token": "<bos>", "eos_token": "<eos>"}
# A template of each kind: special tokens around messages, or after answers alone.
TEMPLATES = {name: named_template(name, WORDS) for name in built_in()} | {
    f"{name} without tags": ChatTemplate(
        re.sub(r"\{% (end)?generation \+?%\}", "", named_template(name).text), WORDS
    )
    for name in built_in()
}
FLAGS = {"plain": {}, "rstrip": {"rstrip": True}, "lstrip": {"lstrip": True, "rstrip": True}}
FLAGS["normalized"] = {"normalized": True}


def directly(encoder, chat):
    """Ids and answers by rendering and tokenizing the text before each answer."""
    rendered = encoder._renderer.render(chat)

    def ids_of(end):
        cuts = [0, *(cut for cut in rendered.cuts if cut < end), end]
        pieces = [rendered.text[a:b] for a, b in itertools.pairwise(cuts)]
        encode = encoder._texts._backend.encode
        return [id for piece in pieces for id in encode(piece, add_special_tokens=False).ids]

    ids = ids_of(len(rendered.text))
    found = []
    if encoder.template.marks_answers:
        spans = rendered.answers
    else:
        starts = encoder._finder._starts_one_by_one(chat, rendered.text)
        spans = [(start, None) for start in starts]
    for start, end in spans:
        before = ids_of(start)
        if ids[: len(before)] != before:
            raise DataError("the tokens before it change without it")
        if end is None:
            special = set(encoder._texts.special.values()) - {encoder.tokenizer.unk}
            ends = (i + 1 for i in range(len(before), len(ids)) if ids[i] in special)
            if (stop := next(ends, None)) is None:
                raise DataError("nothing ends the answer")
        else:
            [tokens] = encoder._texts.encode([rendered])
            stop = int((tokens.spans[:, 0] < end).sum())
        found.append((len(before), stop))
    return ids, found


def runs(answers):
    return np.flatnonzero(np.diff(answers.astype(int), prepend=0, append=0)).reshape(-1, 2)


CASES = [(kind, "plain") for kind in KINDS]
CASES += [(kind, flags) for kind in ("llama", "metaspace", "bpe") for flags in FLAGS if flags != "plain"]  # fmt: skip # noqa: E501


@pytest.mark.quick("bpe plain", "llama normalized")
@pytest.mark.parametrize(("kind", "flags"), CASES, ids=[" ".join(case) for case in CASES])
def test_tokens_and_answers_are_those_of_each_prefix(monkeypatch, kind, flags):
    monkeypatch.setattr(encoding, "_MOST", 8)
    monkeypatch.setattr(encoding, "_CHUNK", 40)
    monkeypatch.setattr(encoding, "_TOGETHER", 90)
    monkeypatch.setattr(encoding, "_AT_ONCE", 3)
    tokenizer, draw = tokenizer_of(kind, **FLAGS[flags]), random.Random(f"{SWEEP_SEED} {kind}")
    refused = 0
    for number, (name, template) in enumerate(sorted(TEMPLATES.items())):
        encoder = ChatEncoder(tokenizer, template)
        for turn in range(3):
            chat = conversation(draw, system=turn == 1 and name.split()[0] not in "gemma mistral")
            for _ in range(2 + number % 3):
                chat += conversation(draw, system=False)[: 2 * draw.randint(0, 3)]
            said = draw.choice(["x <eos> y", "é <|im_end|>", "Hi", "日 so"])
            system = chat[:1] if chat[0]["role"] == "system" else []
            roles = [one for one in chat if one["role"] != "system"]
            chat = [*system, *alternate(roles), {"role": "assistant", "content": said}]
            try:
                ids, spans = directly(encoder, chat)
            except DataError:
                refused += 1
                with pytest.raises(DataError):
                    encoder.encode([chat])
                continue
            [encoded] = encoder.encode([chat])
            assert encoded.ids == ids
            marked = np.zeros(len(ids), bool)
            for start, stop in spans:
                marked[start:stop] = True
            np.testing.assert_array_equal(encoded.answers, marked)
    assert refused < 40


def alternate(messages):
    """The messages with roles that take turns, the last of the user."""
    kept = messages[: len(messages) - 1 + len(messages) % 2]
    return [
        {**one, "role": ("user", "assistant")[i % 2], "content": one["content"].lstrip("\n") or "x"}
        for i, one in enumerate(kept)
    ]


@pytest.mark.parametrize("name", ["chatml", "llama-3", "phi-3", "zephyr"])
def test_answers_are_found_in_parts_in_whatever_order_roles_speak(monkeypatch, name):
    monkeypatch.setattr(encoding, "_MOST", 8)
    encoder = ChatEncoder(tokenizer_of("bpe"), TEMPLATES[f"{name} without tags"])
    draw, parts = random.Random(f"{SWEEP_SEED} {name} roles"), 0
    for number in range(12):
        # In the first one nobody answers.
        roles = draw.choices("uas", [4, number, number % 3], k=draw.randint(9, 40))
        chat = [
            {"role": {"u": "user", "a": "assistant", "s": "system"}[role], "content": f"so {i}"}
            for i, role in enumerate(roles)
        ]
        text = encoder._renderer.render(chat).text
        starts = encoder._finder._starts_one_by_one(chat, text)
        assert encoder._finder.starts(chat, text) == starts, roles
        parts += encoder._finder._starts_by_parts(chat, text) == starts
    assert parts == 12


def talk(count, roles=("user", "assistant")):
    return [{"role": roles[i % len(roles)], "content": f"hello there {i}"} for i in range(count)]


@pytest.fixture
def work(monkeypatch):
    """Characters that were rendered and tokenized."""
    counts = {"rendered": 0, "tokenized": 0}
    render, encode = MarkedRenderer.render, encoding.open_backend

    def counting(self, messages, **variables):
        counts["rendered"] += sum(len(message["content"]) for message in messages)
        return render(self, messages, **variables)

    class Backend:
        def __init__(self, text):
            self._backend = encode(text)

        def __getattr__(self, name):
            return getattr(self._backend, name)

        def encode_batch(self, texts, **how):
            counts["tokenized"] += sum(map(len, texts))
            return self._backend.encode_batch(texts, **how)

        encode_batch_fast = encode_batch

    monkeypatch.setattr(MarkedRenderer, "render", counting)
    made = PartTokenizer.__init__

    def begin(self, tokenizer):
        made(self, tokenizer)
        self._backend = Backend(tokenizer.text)

    monkeypatch.setattr(PartTokenizer, "__init__", begin)
    return counts


def grows(work, act):
    """The growth of work when messages double."""
    totals = []
    for count in (200, 400):
        work.update(rendered=0, tokenized=0)
        act(count)
        totals.append(dict(work))
    return max(totals[1][name] / totals[0][name] for name in work)


@pytest.mark.quick("bpe-chatml", "llama-llama-2 without tags")
@pytest.mark.parametrize("name", ["chatml", "chatml without tags", "llama-2 without tags"])
@pytest.mark.parametrize("kind", ["bpe", "llama"])
def test_twice_the_messages_are_twice_the_work(work, tmp_path, name, kind):
    encoder = ChatEncoder(tokenizer_of(kind), TEMPLATES[name])
    assert grows(work, lambda count: encoder.encode([talk(count)])) < 2.2
    assert grows(work, lambda count: encoder.prompt(talk(count + 1))) < 2.2
    assert grows(work, lambda count: encoder.encode_answers([talk(count + 1)], ["yes"])) < 2.2
    if name == "chatml without tags":
        for roles in (["assistant"], ["user"] * 7 + ["assistant"], ["user", *["assistant"] * 9]):
            assert grows(work, lambda count: encoder.encode([talk(count, roles)])) < 2.3  # noqa: B023
    # Only the room that there is has to be filled.
    assert grows(work, lambda count: fit_messages(encoder, talk(count + 1), 300, 100)) < 2.2
    file = tmp_path / "chats.jsonl"

    def build(count):
        file.write_text(json.dumps({"messages": talk(count)}))
        build_chats(str(file), encoder, limit=10**6)

    assert grows(work, build) < 2.2


def test_the_fewest_turns_are_left_out():
    encoder = ChatEncoder(tokenizer_of("bpe"), TEMPLATES["chatml"])
    chat = [{"role": "system", "content": "so"}, *talk(41)]
    sizes = {2 * n: len(encoder.prompt([chat[0], *chat[1 + 2 * n :]])) for n in range(21)}
    for limit in range(20, sizes[0] + 20, 7):
        fits = [dropped for dropped, size in sizes.items() if size <= limit]
        ids, dropped = fit_messages(encoder, chat, limit, most=10**6)
        assert dropped == (min(fits) if fits else 40)
        assert len(ids) == sizes[dropped]


@pytest.mark.slow
def test_ten_thousand_messages_take_seconds_and_little_memory():
    program = """
import time
from pathlib import Path
from tests.data.chat.test_long_chats import TEMPLATES, talk
from tests.tokenizer_kinds import tokenizer_of
from transformer_jax.data.chat.encoding import ChatEncoder
status = Path("/proc/self/status")
most = lambda: int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
encoder, chat = ChatEncoder(tokenizer_of("bpe"), TEMPLATES["NAME"]), talk(10_000)
encoder.encode([chat[:9]])
before, began = most(), time.process_time()
encoder.encode([chat])
print(most() - before, time.process_time() - began)
"""
    for name in ("chatml", "chatml without tags"):
        command = [sys.executable, "-c", program.replace("NAME", name)]
        root = Path(__file__).parents[3]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        megabytes, seconds = map(float, done.stdout.split())
        assert megabytes < 100
        assert seconds < 20
