"""Documents from files, folders, JSONL, TFDS and corpora; what is held out; what is refused."""

import gzip
import json
import os
import re

import numpy as np
import pytest
import tyro

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data import document_stream
from transformer_jax.data.corpora import in_context, python_docs
from transformer_jax.data.document_stream import DocumentStream, TextChunk, ValidationSplit
from transformer_jax.data.documents import TextData, TextOptions, open_texts, read_texts
from transformer_jax.data.tokenizer import train_tokenizer


@pytest.fixture
def write(tmp_path):
    def make(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return make


def documents(texts):
    """Whole documents, with every piece checked on the way."""
    found, parts = [], []
    for text, last in texts:
        assert 0 < len(text) <= document_stream._LIMIT
        parts.append(text)
        if last:
            found.append("".join(parts))
            parts = []
    assert not parts
    return found


def listed(*rows):
    return DocumentStream("example", "1", lambda: [TextChunk(row, True) for row in rows])


WORDS = "Ela gosta  de\n\nviajar, não é?\n  \n\nΔιόδος\x0bfim\n" * 40


@pytest.mark.parametrize("limit", [7, 64, 1000])
def test_a_file_is_one_document_whatever_the_blocks_and_pieces(write, monkeypatch, limit):
    monkeypatch.setattr(document_stream, "_LIMIT", limit)
    path = write("a.txt", WORDS)
    for block in (1, 13, 1 << 20):
        monkeypatch.setattr(document_stream, "_BLOCK", block)
        found = read_texts(path)
        assert documents(found) == [WORDS]
        assert list(found) == list(found)
        if block == 1:
            wanted = list(found)
        assert list(found) == wanted  # pieces are a function of the text alone
    assert len(wanted) >= len(WORDS) / limit


def test_words_are_the_same_in_pieces_as_in_the_whole(monkeypatch):
    bpe = train_tokenizer("bpe", [WORDS], 330)
    text = "um dois\n\ntrês\n    quatro cinco\nseis\n\n\nsete\n" * 90
    for limit in (100, 128, 201):
        monkeypatch.setattr(document_stream, "_LIMIT", limit)
        parts = [piece.text for piece in listed(text)]
        assert len(parts) > 10
        assert [id for row in bpe.encode_batch(parts) for id in row] == bpe.encode(text)


def test_packed_files_marks_and_line_ends_of_windows_are_undone(write, monkeypatch):
    monkeypatch.setattr(document_stream, "_BLOCK", 2)
    raw = b"\xef\xbb\xbfum\r\ndois\r\ntr\xc3\xaas\rquatro"
    wanted = ["um\ndois\ntrês\rquatro"]
    assert documents(read_texts(write("a.txt", raw))) == wanted
    assert documents(read_texts(write("a.txt.gz", gzip.compress(raw)))) == wanted


def test_documents_of_a_text_file_part_as_asked(write):
    path = write("a.txt", "um\ndois\n\n \ntrês\n\n\nquatro")

    def read(how):
        texts = read_texts(path, TextOptions(documents=how))
        return documents(texts), texts.counts

    assert read("file") == (["um\ndois\n\n \ntrês\n\n\nquatro"], {})
    assert read("blank") == (["um\ndois", "três", "quatro"], {})
    assert read("line") == (["um", "dois", "três", "quatro"], {"empty": 4})


def test_a_folder_is_read_in_sorted_order_and_nothing_else_of_it(write, tmp_path):
    write("f/b.txt", "two")
    write("f/a/z.md", "one")
    write("f/c.txt.gz", gzip.compress(b"three"))
    write("f/d.py", "no")
    write("f/e.txt", " \n")
    texts = read_texts(str(tmp_path / "f"))
    assert documents(texts) == ["one", "two", "three"]
    assert texts.counts == {"empty": 1}


def test_jsonl_keeps_line_breaks_and_takes_any_field(write):
    rows = [{"text": "a\nb", "body": "X"}, {"text": "", "body": "Y"}]
    path = write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows) + "\n")
    assert documents(read_texts(path)) == ["a\nb"]
    read = TextOptions(field="body", lowercase=True)
    data = TextData(jsonl=path, valid=path, read=read)
    splits = open_texts(data)
    assert documents(splits.train) == documents(splits.valid) == ["x", "y"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"ok\ncaf\xe9\n", r"a\.txt:2: not UTF-8 \(byte 0xe9 at column 4\)"),
        ("a.txt", b"ok\nx\0", r"a\.txt:2: a NUL character at column 2"),
        ("a.txt", b"caf\xc3", r"a\.txt:1: not UTF-8"),
        ("a.txt", b"", r"data\.text .*a\.txt: no text: it is empty"),
        ("a.txt", b"\n \n", r"a\.txt: no text: it is empty"),
        (
            "a.txt.gz",
            gzip.compress(os.urandom(999).hex().encode())[:-30],
            r"the \.gz is cut or damaged",
        ),
        ("a.jsonl", b'{"text": "a"}\n{', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", b"\n[]", r"a\.jsonl:2: a JSON object is needed, found a list"),
        ("a.jsonl", b'{"body": "a"}', r"a\.jsonl:1: no field 'text', only 'body': name it with"),
        ("a.jsonl", b'{"text": 5}', r"a\.jsonl:1: field 'text' is a number; text is needed"),
        ("a.jsonl", b'{"text": "\\ud800"}', r"a\.jsonl:1: field 'text' holds half a character"),
        ("a.jsonl", b'{"text": "\\u0000"}', r"a\.jsonl:1: field 'text' holds NUL"),
        ("a.jsonl", b'{"text": ""}\n{"text": " "}', r"all 2 of its documents are empty"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(write, name, content, message):
    with pytest.raises(DataError, match=message) as error:
        list(read_texts(write(name, content)))
    assert "\n" not in str(error.value)


def test_missing_files_and_folders_without_text_are_refused_at_once(write, tmp_path):
    with pytest.raises(DataError, match=r"data\.text .*none\.txt: no such file \(looked from"):
        open_texts(TextData(text=str(tmp_path / "none.txt")))
    write("f/a.py", "x")
    with pytest.raises(DataError, match=r"data\.text .*f: no \.txt, \.txt\.gz, \.md file in this"):
        open_texts(TextData(text=str(tmp_path / "f")))
    with pytest.raises(DataError, match=r"data\.jsonl .*f: this is a folder"):
        open_texts(TextData(jsonl=str(tmp_path / "f")))
    with pytest.raises(DataError, match=r"data\.valid .*none\.jsonl: no such file"):
        open_texts(TextData(text=write("a.txt", "x"), valid=str(tmp_path / "none.jsonl")))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corpus": "python-docs", "text": "x"}, r"more than one way \(data\.corpus, data\.text\)"),
        ({"jsonl": "x", "tfds": "x"}, r"more than one way \(data\.jsonl, data\.tfds\)"),
        ({"tfds_dir": "x"}, r"data\.tfds_dir is given without data\.tfds"),
        (
            {"read": {"validation_size": 0.6}},
            r"data\.read\.validation_size is 0\.6: at most 0\.5",
        ),
        ({"read": {"validation_size": -0.1}}, r"data\.read\.validation_size is -0\.1"),
        ({"read": {"corpus_size": 0}}, r"data\.read\.corpus_size is 0: at least 1"),
        ({"read": {"field": ""}}, r"data\.read\.field is empty"),
        ({}, "no training data: give data.text, data.jsonl, data.tfds or data.corpus"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        open_texts(TextData(**settings | {"read": TextOptions(**settings.get("read", {}))}))


def test_settings_come_from_the_command_line():
    data = tyro.cli(TextData, args=["--text", "a", "--read.documents", "line"])
    assert (data.text, data.read.documents) == ("a", "line")


@pytest.mark.parametrize("count", [1, 9, 10, 999, 12345])
def test_the_end_of_a_single_document_is_held_out_as_in_nanogpt(write, monkeypatch, count):
    monkeypatch.setattr(document_stream, "_LIMIT", 100)
    text = ("São Paulo é\nlonge. " * 1000)[:count].rstrip() + "."
    if count == 1:
        text = "ab"
    splits = open_texts(TextData(text=write("a.txt", text)))
    n = len(text)
    assert "".join(documents(splits.train)) == text[: int(n * 0.9)]
    assert "".join(documents(splits.valid)) == text[int(n * 0.9) :]


def test_documents_are_held_out_by_their_text_alone():
    rows = [f"document {i}" for i in range(200)]
    parts = ValidationSplit(listed(*rows), 0.1)
    train, valid = documents(parts.train), documents(parts.valid)
    assert (len(train), len(valid)) == (180, 20)
    assert sorted(train + valid) == sorted(rows)
    reordered = ValidationSplit(listed(*rows[::-1]), 0.1)
    assert set(documents(reordered.valid)) == set(valid)
    assert documents(reordered.train) == train[::-1]


def test_at_least_one_document_is_held_out_and_never_all():
    for count in (2, 3, 5):
        parts = ValidationSplit(listed(*map(str, range(count))), 0.01)
        assert (len(documents(parts.train)), len(documents(parts.valid))) == (count - 1, 1)
    parts = ValidationSplit(listed("a", "b", "b", "b", "b", "b"), 0.5)
    assert {*documents(parts.train), *documents(parts.valid)} == {"a", "b"}
    assert not {*documents(parts.train)} & {*documents(parts.valid)}
    with pytest.raises(DataError, match=r"all 3 documents begin alike.*data\.valid"):
        list(ValidationSplit(listed("a", "a", "a"), 0.1).train)


def test_nothing_is_held_out_where_that_is_asked_or_needless(write):
    path, other = write("a.txt", "um\n\ndois"), write("b.txt", "três")
    splits = open_texts(TextData(text=path, read=TextOptions(validation_size=0.0)))
    assert (documents(splits.train), splits.valid, splits.tests) == (["um\n\ndois"], None, {})
    splits = open_texts(TextData(text=path, valid=other, test=other))
    assert documents(splits.train) == ["um\n\ndois"]
    assert documents(splits.valid) == documents(splits.tests["test"]) == ["três"]


def test_the_identity_follows_the_file_and_the_options(write):
    path = write("a.txt", "um\n\ndois")
    seen = set()

    def identities(**options):
        splits = open_texts(TextData(text=path, read=TextOptions(**options)))
        found = {splits.train.identity, splits.valid.identity}
        assert len(found) == 2
        assert not found & seen
        seen.update(found)
        return found

    first = identities()
    for options in ({"documents": "blank"}, {"lowercase": True}, {"validation_size": 0.2}):
        identities(**options)
    assert {p.identity for p in (open_texts(TextData(text=path)).train,)} <= first
    os.utime(path, ns=(1, 1))
    identities()
    write("a.txt", "um\n\ntrês!")
    os.utime(path, ns=(1, 1))
    identities()


def test_python_docs_are_parted_by_topic():
    splits = open_texts(TextData(corpus="python-docs"))
    train, valid, test = map(documents, (splits.train, splits.valid, splits.tests["test"]))
    assert train == python_docs.generate("train")
    every = train + valid + test
    assert len(every) == len(set(every))
    assert len(test) == -(-len(every) // 10)
    assert abs(len(valid) - len(test)) <= 1
    assert any(text.startswith('The "assert" statement') for text in every)
    assert len({t.identity for t in (splits.train, splits.valid, splits.tests["test"])}) == 3


def test_in_context_documents_are_generated():
    splits = open_texts(TextData(corpus="in-context", read=TextOptions(corpus_size=7)))
    train, valid, test = map(documents, (splits.train, splits.valid, splits.tests["test"]))
    assert train == in_context.generate("train", 7, 0)
    assert (len(valid), len(test)) == (500, 1000)
    other = open_texts(TextData(corpus="in-context", read=TextOptions(corpus_size=8)))
    assert other.train.identity != splits.train.identity
    assert other.valid.identity == splits.valid.identity


def test_a_text_data_set_prepared_in_array_record_is_read(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("array_record.python.array_record_module")
    rows = [f"número {i}\nfim" for i in range(30)]

    class TinyText(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {"text": tfds.features.Text(), "label": tfds.features.Scalar(np.int64)}
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, manager):
            parts = {"train": rows[:24], "test": rows[24:]}
            return {name: self._generate_examples(part) for name, part in parts.items()}

        def _generate_examples(self, part):
            for i, text in enumerate(part):
                yield i, {"text": text, "label": i}

    TinyText(data_dir=str(tmp_path), file_format="array_record").download_and_prepare()
    data = TextData(tfds="tiny_text", tfds_dir=str(tmp_path))
    splits = open_texts(data)
    train, valid = documents(splits.train), documents(splits.valid)
    assert sorted(train + valid) == sorted(rows[:24])
    assert len(valid) == 2
    assert sorted(documents(splits.tests["test"])) == sorted(rows[24:])
    for field, message in (
        ("body", "data.read.field body: tiny_text has no such feature, only .*text"),
        ("label", "data.read.field label: not a text"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_texts(TextData(tfds="tiny_text", tfds_dir=str(tmp_path),
                                read=TextOptions(field=field)))  # fmt: skip
    shard = next((tmp_path / "tiny_text" / "1.0.0").glob("*train.array_record*"))
    before = splits.train.identity
    shard.write_bytes(shard.read_bytes()[:-200])
    again = open_texts(data).train
    assert again.identity != before
    with pytest.raises(DataError, match=re.compile("train.*prepare the data set again")):
        list(again)


def test_files_of_a_folder_that_are_not_read_are_counted(tmp_path, capsys):
    for name in ("a.txt", "sub/b.MD", "c.rst", "sub/d.rst", "e", ".hidden/f.rst", ".g"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [chunk.text for chunk in read_texts(str(tmp_path)) if chunk.text] == [
        "a.txt",
        "sub/b.MD",
    ]
    said = f"{tmp_path}: 3 other files not read (.rst 2, no suffix 1), such as c.rst"
    assert said in capsys.readouterr().err


def test_a_table_of_texts_is_read_alike_for_training_and_validation(write, capsys, monkeypatch):
    train, valid = (write(name, 'n,text\n1,"one, two"\n') for name in ("a.csv", "b.csv"))
    monkeypatch.chdir(os.path.dirname(train))  # whose other files are no data of the run
    texts = lambda part: ["".join(chunk.text for chunk in part)]
    table = open_texts(TextData(jsonl=train, valid=valid, test=valid))
    assert texts(table.train) == texts(table.valid) == texts(table.tests["test"]) == ["one, two"]
    assert "read as text" not in capsys.readouterr().err
    raw = open_texts(TextData(text=train, valid=valid, test=valid))
    assert texts(raw.train) == texts(raw.valid) == texts(raw.tests["test"])
    assert texts(raw.train)[0].startswith('n,text\n1,"one')
    assert capsys.readouterr().err.count("a table that is read as text") == 3
    other = write("c.csv", "n,body\n1,one\n")
    with pytest.raises(DataError, match=r"c\.csv:2: no field 'text', only 'n', 'body'"):
        texts(open_texts(TextData(jsonl=train, valid=other)).valid)


@pytest.mark.parametrize("text", ["one, two\n", '"Yes," he said.\n', '"one\n'])
def test_a_text_with_commas_is_no_table(write, capsys, text):
    assert "".join(chunk.text for chunk in read_texts(write("a.csv", text), where="--text")) == text
    assert "texts in a column are read if data.read.field names it" in capsys.readouterr().err
