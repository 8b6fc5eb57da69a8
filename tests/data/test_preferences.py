"""Preferences from JSONL, and their token ids, row B40."""

import json

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.plan import BatchPlan
from transformer_jax.data.preference_examples import encode_preferences
from transformer_jax.data.preferences import (
    PreferenceData,
    PreferenceOptions,
    Preferences,
    open_preferences,
    read_preferences,
)
from transformer_jax.data.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer("characters", ["abcdef"], 10)
PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}


def write(path, *rows):
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


def text(ids):
    return "".join(TOKENIZER.convert_ids_to_tokens(ids.tolist()))


def test_each_kind_has_its_fields(tmp_path):
    pairs = read_preferences(write(tmp_path / "a.jsonl", PAIR, "", PAIR | {"id": 3}), "pairs")
    assert (pairs.completions, pairs.lines) == ([("b", "c")] * 2, [1, 3])
    judged = {"prompt": "A", "completion": "B", "label": False}
    path = write(tmp_path / "b.jsonl", judged)
    labels = read_preferences(path, "labels", PreferenceOptions(lowercase=True))
    assert (labels.prompts, labels.completions, labels.labels) == (["a"], [("b",)], [False])
    assert read_preferences(write(tmp_path / "c.jsonl", PAIR), "prompts").completions == [()]


ASKED = [{"role": "user", "content": "A?"}]
CHAT = {"messages": ASKED, "chosen": "B", "rejected": "C"}


def test_a_prompt_may_be_a_conversation_in_two_forms(tmp_path):
    said = lambda text: [{"role": "assistant", "content": text}]
    theirs = {"prompt": ASKED, "chosen": said("B"), "rejected": said("C")}
    path = write(tmp_path / "a.jsonl", CHAT, theirs)
    pairs = read_preferences(path, "pairs", PreferenceOptions(lowercase=True))
    assert pairs.conversational
    assert pairs.prompts == [[{"role": "user", "content": "a?"}]] * 2
    assert pairs.completions == [("b", "c")] * 2
    with pytest.raises(ConfigError, match="holds conversations: give prompts that are texts"):
        pairs.texts  # noqa: B018


def test_conversations_are_held_out_together_and_encoded_by_their_template(tmp_path):
    rows = [
        CHAT | {"messages": [ASKED[0] | {"content": c}], "chosen": d} for c in "abcd" for d in "ef"
    ]
    data = PreferenceData(
        write(tmp_path / "a.jsonl", *rows), read=PreferenceOptions(validation_size=0.25)
    )
    found = open_preferences(data, "pairs")
    assert found.valid is not None
    assert (len(found.train), len(found.valid)) == (6, 2)
    assert found.valid.prompts[0] == found.valid.prompts[1]
    ids = lambda text: TOKENIZER.encode_batch([text])[0]
    encode = lambda asked, texts: [
        ([*ids(chat[-1]["content"])], [*ids(text.lower()), 9])
        for chat, text in zip(asked, texts, strict=True)
    ]
    store = encode_preferences(found.valid, TOKENIZER, TOKENIZER.bos, 8, encode)
    prompt = found.valid.prompts[0][0]["content"]
    assert [row.tolist() for row in store.store][:2] == [
        [*ids(prompt), *ids("e"), 9],
        [*ids(prompt), *ids("c"), 9],
    ]
    assert store.starts.tolist() == [1] * 4

    def refuse(asked, texts):
        if len(texts) > 1 or texts[0] == "f":
            raise DataError("the template refuses it")
        return encode(asked, texts)

    line = found.valid.lines[1]
    with pytest.raises(DataError, match=f"a.jsonl:{line}: the template refuses it"):
        encode_preferences(found.valid, TOKENIZER, TOKENIZER.bos, 8, refuse)


@pytest.mark.parametrize(
    ("kind", "line", "message"),
    [
        ("pairs", CHAT, ":2: the lines before have texts, and this one conversations"),
        ("pairs", CHAT | {"prompt": "a"}, ":2: has both 'messages' and 'prompt'"),
        ("pairs", CHAT | {"messages": []}, ":2: the conversation has no messages"),
        (
            "pairs",
            CHAT | {"messages": [{"role": "assistant", "content": "a"}]},
            ":2: the last message is from the assistant",
        ),
        ("pairs", "{", ":2: not JSON"),
        ("pairs", '["a"]', ":2: a JSON object is needed, found a list"),
        ("pairs", {"prompt": "a", "chosen": "b"}, ":2: no field 'rejected', only 'prompt'"),
        ("pairs", PAIR | {"rejected": "b"}, ":2: 'chosen' and 'rejected' are equal"),
        ("pairs", PAIR | {"chosen": ""}, ":2: the field 'chosen' is empty"),
        ("pairs", PAIR | {"prompt": 3}, ":2: field 'prompt' is a number; text is needed"),
        ("labels", {"prompt": "a", "completion": "b"}, ":2: no field 'label'"),
        ("labels", {"prompt": "a", "completion": "b", "label": "yes"}, ":2: the label is 'yes'"),
        ("labels", {"prompt": "a", "completion": "b", "label": 2}, ":2: the label is '2'"),
    ],
)
def test_a_line_that_cannot_be_used_is_one_line_with_its_place(tmp_path, kind, line, message):
    good = PAIR if kind == "pairs" else {"prompt": "a", "completion": "b", "label": True}
    path = write(tmp_path / "bad.jsonl", good, line)
    with pytest.raises(DataError) as error:
        read_preferences(path, kind)
    assert f"{path}{message}" in str(error.value)
    assert "\n" not in str(error.value)


def test_empty_files_missing_files_and_shares_out_of_range_are_refused(tmp_path):
    with pytest.raises(DataError, match="empty"):
        read_preferences(write(tmp_path / "empty.jsonl", ""), "pairs")
    with pytest.raises(DataError, match=r"data\.train"):
        open_preferences(PreferenceData(str(tmp_path / "none.jsonl")), "pairs")
    with pytest.raises(ConfigError, match='"prompt", "completion", "label"'):
        open_preferences(PreferenceData(), "labels")
    with pytest.raises(ConfigError, match="validation_size"):
        PreferenceOptions(validation_size=0.7)


def test_pairs_of_one_prompt_are_held_out_together_whatever_their_order(tmp_path):
    rows = [
        {"prompt": f"p{i % 10}", "chosen": f"c{i}", "rejected": "no", "i": i} for i in range(40)
    ]
    one, two = (
        open_preferences(PreferenceData(write(tmp_path / name, *part)), "pairs")
        for name, part in (("a.jsonl", rows), ("b.jsonl", rows[::-1]))
    )
    assert set(one.valid.prompts) == set(two.valid.prompts)
    assert not set(one.valid.prompts) & set(one.train.prompts)
    assert sorted([*one.valid.completions, *one.train.completions]) == sorted(
        (row["chosen"], row["rejected"]) for row in rows
    )
    path = write(tmp_path / "c.jsonl", PAIR, PAIR)
    with pytest.raises(DataError, match="all 2 lines have one prompt"):
        open_preferences(PreferenceData(path), "pairs")


def test_a_pair_that_is_too_long_loses_the_beginning_of_its_one_prompt():
    data = Preferences("x", "pairs", ["abc"], [("d", "defabc")], [], [1])
    found = encode_preferences(data, TOKENIZER, TOKENIZER.bos, 6)
    assert [text(row) for row in found.store] == ["<bos>cd<eos>", "<bos>cdefa"]
    assert (found.starts.tolist(), found.truncated, found.skipped) == ([2, 2], 2, 0)
    with pytest.raises(ConfigError, match=r"align\.max_length is 3"):
        encode_preferences(data, TOKENIZER, TOKENIZER.bos, 3)
    data = Preferences("x", "pairs", ["abcdef"], [("ab", "abcd")], [], [1])
    found = encode_preferences(data, TOKENIZER, TOKENIZER.bos, 10)
    assert [text(row) for row in found.store] == ["<bos>cdefab<eos>", "<bos>cdefabcd<eos>"]


def test_runs_of_version_0_1_cut_each_row_by_itself():
    data = Preferences("x", "pairs", ["abc"], [("d", "defabc")], [], [1])
    found = encode_preferences(data, TOKENIZER, TOKENIZER.bos, 6, truncation="row")
    assert [text(row) for row in found.store] == ["<bos>abcd<eos>", "<bos>cdefa"]
    assert (found.starts.tolist(), found.truncated) == ([4, 2], 1)


def test_pairs_whose_rows_are_equal_are_skipped_and_counted():
    """Beyond the cut, by unknown characters, or in lower case."""
    sides = [("abcdea", "abcdeb"), ("a", "b"), ("xa", "ya")]
    data = Preferences("x", "pairs", ["ff", "f", "f"], sides, [], [1, 2, 3])
    found = encode_preferences(data, TOKENIZER, TOKENIZER.bos, 6)
    assert [text(row) for row in found.store] == ["<bos>fa<eos>", "<bos>fb<eos>"]
    assert (len(found), found.skipped, found.starts.tolist()) == (1, 2, [2, 2])
    alike = data.select([0, 2])
    with pytest.raises(DataError, match="x: all 2 examples have two equal rows"):
        encode_preferences(alike, TOKENIZER, TOKENIZER.bos, 6)


def test_a_label_and_the_completion_beside_it_have_one_prompt():
    data = Preferences("x", "labels", ["abc", "f"], [("d",), ("defa",)], [True, False], [1, 2])
    found = encode_preferences(data, TOKENIZER, TOKENIZER.bos, 7)
    rows = ["<bos>cd<eos>", "<bos>cdefa<eos>", "<bos>fdefa<eos>", "<bos>fd<eos>"]
    assert [text(row) for row in found.store] == rows
    # Equal beyond the cut; equal texts are an answer to two prompts, which is no fault.
    texts = [("abcdea",), ("abcdeb",), ("abcdeb",)]
    data = Preferences("x", "labels", ["f", "e", "d"], texts, [True, False, True], [1, 2, 3])
    found = encode_preferences(data, TOKENIZER, TOKENIZER.bos, 6)
    assert found.labels.tolist() == [False]
    assert [text(row) for row in found.store] == ["<bos>eabcd"] * 2
    assert found.skipped == 2


def test_a_labelled_completion_has_another_beside_it_that_follows_the_same_prompt():
    data = Preferences("x", "labels", ["a", "b"], [("c",), ("de",)], [True, False], [1, 2])
    found = encode_preferences(data, TOKENIZER, TOKENIZER.bos, 8)
    rows = ["<bos>ac<eos>", "<bos>ade<eos>", "<bos>bde<eos>", "<bos>bc<eos>"]
    assert [text(row) for row in found.store] == rows
    batch = found.batch(BatchPlan(np.array([1, -1]), 5, 5), TOKENIZER.pad)
    assert batch["labels"].tolist() == [False, False]
    assert batch["lengths"].tolist() == [[5, 4], [0, 0]]
    assert text(batch["tokens"][0, 0]) == rows[2]
    assert (batch["tokens"][1] == TOKENIZER.pad).all()


@pytest.mark.parametrize("prompts", ["aab", "abb", "aabbb", "abca", "aabbaa", "ab"])
def test_a_completion_beside_a_labelled_one_is_of_another_prompt(prompts):
    """KTO's estimate of the KL divergence is of mismatched completions, good and bad alike."""
    completions = [(chr(ord("d") + i),) for i in range(len(prompts))]
    labels = [i % 2 == 0 for i in range(len(prompts))]
    numbers = list(range(1, 1 + len(prompts)))
    data = Preferences("x", "labels", list(prompts), completions, labels, numbers)
    wide = train_tokenizer("characters", ["abcdefghi"], 13)
    found = encode_preferences(data, wide, wide.bos, 8)
    rows = [wide.convert_ids_to_tokens(row.tolist()) for row in found.store]
    beside = [row[2] for row in rows][1::2]  # behind the start token and the prompt
    of_prompt = {one: prompt for prompt, (one,) in zip(prompts, completions, strict=True)}
    for prompt, other in zip(prompts, beside, strict=True):
        assert of_prompt[other] != prompt
    if prompts == "aabbaa":  # the last ones and the first are of one prompt
        assert beside == ["f", "g", "h", "i", "f", "g"]
