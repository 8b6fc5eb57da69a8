"""Bad rows of a file are reported at once, or left out and counted, by every reader of text."""

import json

import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.conversations import ChatOptions, read_conversations
from transformer_jax.data.documents import TextOptions, read_texts
from transformer_jax.data.labeled import LabeledOptions, read_labeled
from transformer_jax.data.preferences import PreferenceOptions, read_preferences
from transformer_jax.data.sources import Files, ReadOptions, read_pairs
from transformer_jax.data.summaries import SummaryOptions, read_summaries


def labeled(task, **options):
    def read(path, bad_rows):
        part = read_labeled(path, task, LabeledOptions(bad_rows=bad_rows, **options))
        return part.questions if task == "qa" else part.words if task == "tag" else part.texts

    return read


def preferences(kind):
    return lambda path, bad_rows: read_preferences(path, kind, PreferenceOptions(bad_rows)).prompts


def documents(path, bad_rows):
    texts = read_texts(path, TextOptions(bad_rows=bad_rows))
    return [chunk.text for chunk in texts]


def tagged(word, tag):
    return f"1\t{word}\t_\t{tag}" + "\t_" * 6 + "\n"


def squad(rows):
    """A SQuAD file with the questions of one paragraph."""
    questions = [
        {"id": str(i), "question": text, "answers": [{"text": answer, "answer_start": 0}]}
        for i, (text, answer) in enumerate(rows)
    ]
    paragraph = {"context": "one two", "qas": questions}
    return json.dumps({"data": [{"paragraphs": [paragraph]}]})


def lines(*rows):
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
# The file, how it is read, the text of good rows and of bad ones; two good rows are in a file.
READERS = {
    "pairs.tsv": (
        lambda path, bad: read_pairs(Files(pairs=path), ReadOptions(bad_rows=bad)).sources,
        lines("one\tun"),
        lines("two\tdeux\tzwei"),
    ),
    "pairs.jsonl": (
        lambda path, bad: read_pairs(Files(pairs=path), ReadOptions(bad_rows=bad)).sources,
        lines({"source": "one", "target": "un"}),
        lines("{"),
    ),
    "summaries.jsonl": (
        lambda path, bad: read_summaries(path, SummaryOptions(bad_rows=bad)).parts,
        lines({"source": "one", "target": "un"}),
        lines({"source": "one"}),
    ),
    "documents.jsonl": (documents, lines({"text": "one"}), lines({"text": 1})),
    "classes.tsv": (
        labeled("classify", text="1", label="2"),
        lines("one\ta"),
        lines("two"),
    ),
    "classes.jsonl": (labeled("classify"), lines({"text": "one", "label": 1}), lines([])),
    "numbers.jsonl": (
        labeled("regress"),
        lines({"text": "one", "label": 1}),
        lines({"text": "one", "label": "much"}),
    ),
    "tags.conllu": (
        labeled("tag"),
        lines(tagged("one", "NUM")),
        lines(tagged("two", "_")),
    ),
    "tags.conll": (labeled("tag"), lines("one NUM", ""), lines("a NUM", "two", "b NUM", "")),
    "tags.jsonl": (
        labeled("tag", tag="tags"),
        lines({"text": ["one"], "tags": ["NUM"]}),
        lines({"text": ["one"], "tags": []}),
    ),
    "pairs-of-answers.jsonl": (
        preferences("pairs"),
        lines({"prompt": "one", "chosen": "a", "rejected": "b"}),
        lines({"prompt": "one", "chosen": "a", "rejected": "a"}),
    ),
    "labels.jsonl": (
        preferences("labels"),
        lines({"prompt": "one", "completion": "a", "label": True}),
        lines({"prompt": "one", "completion": "a", "label": "good"}),
    ),
    "prompts.jsonl": (preferences("prompts"), lines({"prompt": "one"}), lines({"prompt": 1})),
    "chats.jsonl": (
        lambda path, bad: [one.messages for one in read_conversations(path, "", ChatOptions(bad))],
        lines({"messages": CHAT}),
        lines({"messages": CHAT[:1]}),
    ),
}


@pytest.fixture(params=READERS)
def reader(request, tmp_path):
    """Writes a file of rows by their kind, good or bad, and reads it."""
    read, good, bad = READERS[request.param]

    def write(kinds, bad_rows):
        path = tmp_path / request.param
        path.write_text("".join({"g": good, "b": bad}[kind] for kind in kinds))
        return read(str(path), bad_rows)

    return write


def test_all_bad_rows_are_in_one_error_with_a_way_to_leave_them_out(reader):
    with pytest.raises(DataError) as refused:
        reader("gbgb", "refuse")
    head, *rows = str(refused.value).splitlines()
    assert "2 bad " in head
    assert head.endswith("with --data.read.bad-rows skip")
    places = [int(row.split(":")[1]) for row in rows]
    assert len(places) == 2
    assert places == sorted(set(places))


def test_skipped_rows_are_counted_in_one_line_and_no_other_row_is_lost(reader, request, capfd):
    good = reader("gg", "refuse")
    assert capfd.readouterr().err == ""
    assert reader("gbgb", "skip") == good
    said = capfd.readouterr().err
    if request.node.callspec.id not in ("documents.jsonl", "chats.jsonl"):  # read several times
        assert said.count("\n") == said.count(": 2 bad ") == 1


def test_the_count_of_skipped_documents_is_in_the_summary_of_a_stream(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{\n[]\n')
    texts = read_texts(str(path), TextOptions(bad_rows="skip"))
    for _ in range(2):
        assert len(list(texts)) == 1
        assert texts.counts == {"bad": 2}


def test_nothing_follows_a_row_of_a_stream_that_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{\n{"text": "two"}\n[]\n')
    read = iter(read_texts(str(path)))
    assert next(read).text == "one"
    with pytest.raises(DataError, match="2 bad rows"):
        next(read)


def test_all_bad_questions_are_in_one_error(tmp_path):
    path = tmp_path / "squad.json"
    path.write_text(squad([("Which?", "one"), ("", "one"), ("What?", "two")]))
    with pytest.raises(DataError, match=r"2 bad questions(.|\n)*question 1: (.|\n)*question 2: "):
        labeled("qa")(str(path), "refuse")
    assert labeled("qa")(str(path), "skip") == ["Which?"]


def test_a_file_without_a_good_row_is_refused_though_rows_are_skipped(reader):
    with pytest.raises(DataError, match="all 2 bad"):
        reader("bb", "skip")


def test_twenty_rows_are_listed_and_the_others_counted(reader):
    with pytest.raises(DataError) as refused:
        reader("g" + 25 * "b", "refuse")
    head, *rows = str(refused.value).splitlines()
    assert "25 bad" in head
    assert len(rows) == 21
    assert rows[-1].strip() == "and 5 more"


def test_lines_that_are_not_text_are_bad_rows(tmp_path, capfd):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"one\tun\ncaf\xe9\tx\ntwo\tdeux\nthree\0\ttrois\n")
    with pytest.raises(DataError, match=r"2 bad rows(.|\n)*:2: not UTF-8(.|\n)*:4: a NUL"):
        read_pairs(Files(pairs=str(path)))
    pairs = read_pairs(Files(pairs=str(path)), ReadOptions(bad_rows="skip"))
    assert pairs.sources == ["one", "two"]
    assert "pairs.tsv: 2 bad rows left out, such as" in capfd.readouterr().err


def test_a_setting_that_the_command_lacks_is_not_advised():
    bad = BadRows("a.tsv")
    with bad:
        raise DataError("a.tsv:1: empty")
    with pytest.raises(DataError, match=r"^a\.tsv:1: empty$"):
        bad.check(1)


def test_errors_of_other_kinds_are_no_bad_rows():
    with pytest.raises(KeyError), BadRows("a.tsv", "skip"):
        raise KeyError
