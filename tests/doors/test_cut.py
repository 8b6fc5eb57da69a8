"""Cut is told: a text of which a model reads only a part is counted in one line, or refused.

So are texts that a limit ends, whose ``finish_reason`` says so, and examples with an empty text,
which no reader drops without a word.
"""

import contextlib
import io
import sys
import warnings

import numpy as np
import pytest

import transformer_jax as tj
from tests.doors import table, uses
from tests.doors.readers import Form
from tests.doors.test_unknown import LETTERS
from tests.doors.test_unknown import READERS as TRAINED
from transformer_jax.cli.main import main
from transformer_jax.core.errors import UserError
from transformer_jax.data.documents import TextOptions, read_texts
from transformer_jax.data.tagged_examples import encode_tagged
from transformer_jax.inference.decoding_comparison import write_varieties
from transformer_jax.inference.pretrained import read_facts
from transformer_jax.recipes.tasks.batching import TokenCache
from transformer_jax.recipes.tasks.language_model_task import build_text_store

LAW = 3
KINDS = ("reader", "use")

TOLD = "1 text was longer than the model reads, and truncated"
# What happens to a text that is too long, if it is not truncated and counted.
REFUSED = {
    "fill masks": "at most 44 are possible: shorten it",
    "chat": "the context of the model allows 44: shorten it",
    "look at attention": "has more than 44 tokens: shorten it",
}
WHOLE = ("score texts", "tag words", "tokenize")  # in windows, or in further rows
USES: dict[str, str] = {name: REFUSED.get(name, TOLD) for name in uses.USES}


def _documents(kind):
    options = TextOptions(documents=kind)
    return lambda path: build_text_store(read_texts(str(path), options), LETTERS, TokenCache())


COUNTED, KEPT = ", 1 empty, ", ""
# What is said of an example with an empty text, the second of three: the line of a log, the error,
# or nothing if it is kept.
READERS = {
    "pairs in two aligned files": COUNTED,
    "pairs as TSV": COUNTED,
    "pairs as CSV": COUNTED,
    "pairs as JSONL": COUNTED,
    "pairs as Parquet": COUNTED,
    "pairs by language": COUNTED,
    "table of pairs by language": COUNTED,
    "texts with summaries": COUNTED,
    "texts with summaries as CSV": COUNTED,
    "documents in lines": COUNTED,
    "documents in files of a folder": COUNTED,
    "documents as JSONL": COUNTED,
    "documents as Parquet": COUNTED,
    "labeled texts as TSV": "data.tsv:3: the text is empty",
    "labeled texts as CSV": "data.csv:3: the text is empty",
    "labeled texts as JSONL": "data.jsonl:2: the text is empty",
    "labeled texts as Parquet": "data.parquet:2: the text is empty",
    "data set of Hugging Face": "data:2: the text is empty",
    "texts in a table as CSV": "data.csv:3: the text is empty",
    "labeled pairs as TSV": "data.tsv:3: the text_pair is empty",
    "classes of labeled texts": "data.tsv:3: the label is empty",
    "numbered texts": "data.tsv:3: the text is empty",
    "pairs with scores": "data.csv:3: the text_pair is empty",
    "texts with positives as CSV": "data.csv:3: the text_pair is empty",
    "texts with positives as JSONL": "data.jsonl:2: the text_pair is empty",
    "tagged words as CoNLL-U": "data.conllu:5: the word '' is empty",
    "tagged words in columns": "data.conll:5: a word or its tag is blank",
    "tagged words as GermEval": "data.tsv:7: a word or its tag is blank",
    "tagged words as CoNLL-2012": "data.conll:6: a word or its tag is blank",
    "tagged words as JSONL": "data.jsonl:2: field 'words, item 2' is empty",
    "questions": "data.json: question 1: the question is empty",
    "questions in rows": "data.jsonl: question 2: the question is empty",
    "preferences": KEPT,
    "preferences as CSV": KEPT,
    "completions with a label": KEPT,
    "prompts to learn from": KEPT,
    "conversations": KEPT,
    "prompts with completions": KEPT,
    "completions as CSV": KEPT,
    "recordings as TSV": "data.tsv:2: no text",
    "recordings as CSV": "data.csv:3: no text",
    "recordings as JSONL": "data.jsonl:2: no text",
    "pictures in class folders": "pictures: 1 other file not read (.png 1), such as 0.png",
    "pictures in a CSV table": "data.csv:3: no text for 1.png",
    "pictures in a TSV table": "data.tsv:3: no text for 1.png",
    "captions of Flickr8k": "data.txt:2: no text for 1.png",
    "captions of COCO": "data.json: annotation 2: no text for 1.png",
    "pictures in a JSONL table": "data.jsonl:2: no text for 1.png",
    "pictures in arrays": "data.txt: the text of picture 1 is empty",
    "word vectors": "1 of 3 words left out as broken",
    "word vectors of GloVe": "1 of 3 words left out as broken",
    "analogy questions": "data.txt:2: 3 words: a question is four words",
    "similar words": "data.tsv:2: a word is empty",
    "lines of text": KEPT,
}
# Documents are counted where they become tokens, and pairs where their task is made.
PREPARED = TRAINED | {
    "documents in lines": _documents("line"),
    "documents in files of a folder": _documents("file"),
    "documents as JSONL": _documents("file"),
    "documents as Parquet": _documents("file"),
}
CASES = READERS | USES
EXEMPT = {
    "documents between blank lines": "a text without characters is a blank line between documents",
    "text for word vectors": "an empty line has no words: texts are not told apart",
    "data sets of TensorFlow": "rows of a library, collected as the rows of a TSV file are",
    "demonstrations": "fields may be empty, and rows are kept: tests/cli/test_prompt.py",
    "rewards and rules of users": "code of the user",
    "prompts in lines or JSONL": "prompts to learn from, or lines of text",
    "requests": "each has a line of output: an empty prompt begins a text",
    "results of benchmarks": "written by the package",
    "outputs with references": "an empty output counts: tests/evaluation/test_output_scores.py",
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


@pytest.mark.parametrize("name", READERS)
def test_no_reader_drops_an_empty_text_without_a_word(name, tmp_path, capfd, caplog):
    door, expected = table.by_name(name), READERS[name]
    path = door.write(tmp_path, ["one", "", "two"], Form())
    read = PREPARED[name] if expected == COUNTED else door.read
    try:
        found = read(path)
    except UserError as error:
        said = str(error)
    else:
        said = capfd.readouterr().err + caplog.text
        assert said.count("1 empty") == (expected == COUNTED)
        assert expected != KEPT or len(found) == 3
    assert expected in said


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
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


def test_a_sentence_with_a_word_that_is_longer_than_a_row_is_counted():
    long, short = "word" * 20, ["a", "word"]
    tagged = encode_tagged([short, [long, long, "a"], [], ["a", long]], LETTERS, 12)
    assert tagged.cut == 2
    assert encode_tagged([short, []], LETTERS, 12).cut == 0


@pytest.mark.slow
def test_a_word_that_is_longer_than_the_model_reads_is_told(tmp_path, monkeypatch, capfd):
    use = uses.USES["tag words"]
    folder = use.write(tmp_path / "model")
    with heard() as said:
        use.call(tj.load(folder), "un a" + "z" * 90)
    assert TOLD in said
    arguments, given = use.command(folder, "un a" + "z" * 90)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    assert main(arguments) == 0
    assert "1 sentence with a word that is longer than the model reads" in capfd.readouterr().err


@pytest.mark.slow
def test_samples_of_long_prompts_are_counted_once_for_all_ways(tmp_path, capfd):
    folder = uses.USES["generate"].write(tmp_path / "model")
    ways = {"greedy": {"temperature": 0.0}, "sampled": {"num_return_sequences": 2}}
    write_varieties(read_facts(folder), [LONG, "un café", "caféω"], ways, max_new_tokens=2)
    said = capfd.readouterr().err
    assert said.count("1 of 3 lines was longer than the model reads, and truncated") == 1
    assert said.count("1 of 3 lines holds text that the tokenizer does not know") == 1


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
