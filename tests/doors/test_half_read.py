"""Nothing is half read: a row with more than its reader uses is used, refused or told."""

import json

import pytest

from tests.doors.rows import NO_ROWS, ROWS
from transformer_jax.core.errors import DataError, UserError
from transformer_jax.data.conversations import read_conversations

LAW = 5
KINDS = ("reader",)

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
CASES = ROWS
EXEMPT = NO_ROWS | {
    "questions": "keys of SQuAD that are not read are titles, and guesses of annotators",
    "demonstrations": "every field is a field of the template, which names those that it uses",
    "prompts in lines or JSONL": "read as prompts to learn from",
    "requests": "a key that is no setting is refused",
    "outputs with references": "lines; other columns of a table are those that evaluate writes",
    "pictures in class folders": "other files are counted: tests/data/images/test_folders.py",
    "pictures in arrays": "other arrays are named: tests/data/images/test_folders.py",
    "analogy questions": "four words in a line; other lines are refused",
    "similar words": "two words and a number in a line; other lines are refused",
}


@pytest.mark.parametrize("name", CASES)
def test_more_than_a_reader_uses_is_told_once_or_refused(name, tmp_path, capfd):
    case = CASES[name]
    alone = case.read(case.write(tmp_path, "gg"), "refuse")
    assert "not read" not in capfd.readouterr().err
    path = case.write(tmp_path, "m" if case.more_head != case.head else "mm")
    if "not read" in case.message:
        assert case.read(path, "refuse")[0] == alone[0]
        said = capfd.readouterr().err
        assert said.count("not read") == said.count(f"{path}: {case.message}\n") == 1
    else:
        with pytest.raises(UserError, match=case.message):
            case.read(case.write(tmp_path, "gm"), "refuse")


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.file.endswith(("tsv", "csv"))]
)
def test_a_row_with_more_columns_than_the_first_is_refused(name, tmp_path):
    case = CASES[name]
    path = tmp_path / case.file
    mark = "," if case.file.endswith("csv") else "\t"
    path.write_text(case.head + case.good + case.good.replace("\n", f"{mark}more\n", 1))
    (tmp_path / "a.wav").touch()
    with pytest.raises(DataError, match=r"column|cells"):
        case.read(str(path), "refuse")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tools": [{"name": "search"}]}, "has tools"),
        ({"prompt": "a"}, "has both 'messages' and 'prompt'"),
    ],
)
def test_what_a_conversation_cannot_do_without_is_refused(row, said, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": CHAT} | row))
    with pytest.raises(DataError, match=said):
        list(read_conversations(path))


def test_the_weight_of_a_message_is_refused_unless_it_is_learned(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": [CHAT[0], CHAT[1] | {"weight": 1}]}))
    assert len(list(read_conversations(path))) == 1
    path.write_text(json.dumps({"messages": [CHAT[0], CHAT[1] | {"weight": 0}]}))
    with pytest.raises(DataError, match="a message has a weight other than 1, and"):
        list(read_conversations(path))
