"""Sentences of documents: nothing lost but blanks, and a cache that is whole or made anew."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_jax.core.errors import DataError
from transformer_jax.data import document_stream, token_file
from transformer_jax.data.document_stream import DocumentStream, TextChunk
from transformer_jax.data.sentences import build_sentences, sentences
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer

BYTES = train_tokenizer("bytes", [], special=BERT_SPECIAL)
DOCUMENTS = [
    f"Número {i}. Lucas mora no Rio!\n" + "E depois? Não sei.\n" * (i % 5) for i in range(40)
]


def listed(rows, identity="1"):
    return DocumentStream("example", identity, lambda: [TextChunk(row, True) for row in rows])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("a line\nanother\r\n\r\n  a third  ", ["a line", "another", "a third"]),
        ("It costs 3.50 at example.org.", ["It costs 3.50 at example.org."]),
        ('He said "no." She left.', ['He said "no."', "She left."]),
        ("Wait... what?! Yes.", ["Wait...", "what?!", "Yes."]),
        ("(One.) Two", ["(One.)", "Two"]),
        ("今日は。「はい。」明日", ["今日は。", "「はい。」", "明日"]),
        ("e.g. this", ["e.g.", "this"]),
        ("one\n-----\n***\ntwo", ["one", "two"]),
        ("no end", ["no end"]),
        (" \n\t ", []),
        ("...", []),
        ("", []),
    ],
)
def test_sentences_end_with_their_mark_or_line(text, wanted):
    assert sentences(text) == wanted


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(alphabet="aB1é。.!?…\"')」 \n\t-", max_size=40))
@example("a.\u2028b. c")
def test_nothing_is_lost_but_blanks_and_what_has_no_letter(text):
    parts = sentences(text)
    squeezed = lambda text: "".join(c for c in text if c.isalnum())
    assert squeezed("".join(parts)) == squeezed(text)
    position = 0
    for part in parts:
        assert part == part.strip()
        assert any(map(str.isalnum, part))
        assert "\n" not in part
        position = text.index(part, position) + len(part)


@pytest.fixture(params=["memory", "cache"])
def cache(request, tmp_path):
    return None if request.param == "memory" else tmp_path


def test_documents_are_their_sentences_in_order(cache, monkeypatch):
    monkeypatch.setattr(token_file, "_CHARACTERS", 120)  # several groups
    store = build_sentences(listed(DOCUMENTS), BYTES, cache=cache)
    assert len(store.documents) == len(DOCUMENTS) + 1
    for i, text in enumerate(DOCUMENTS):
        rows = range(store.documents[i], store.documents[i + 1])
        assert [BYTES.decode(store[row].tolist()) for row in rows] == sentences(text)
    assert store.documents[-1] == len(store) == store.counts["sentences"]
    assert store.ids.dtype == np.uint16
    assert not np.isin(store.ids, list(BYTES.special_ids)).any()
    assert store.counts["bytes"] == sum(len(text.encode()) for text in DOCUMENTS)
    assert store.counts["characters"] == sum(map(len, DOCUMENTS))
    assert store.counts["documents"] == len(DOCUMENTS)


def test_a_document_in_pieces_is_one_document(monkeypatch):
    whole = build_sentences(listed(DOCUMENTS), BYTES)
    monkeypatch.setattr(document_stream, "_LIMIT", 40)
    cut = build_sentences(listed(DOCUMENTS), BYTES)
    for found, wanted in ((cut.ids, whole.ids), (cut.documents, whole.documents)):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(cut.offsets, whole.offsets)


def test_documents_without_words_are_left_out_and_unknowns_counted(cache):
    tokenizer = train_tokenizer("characters", ["abc"], 8, special=BERT_SPECIAL)
    store = build_sentences(listed(["ab.", "---", " ", "cx. b"]), tokenizer, cache=cache)
    assert store.documents.tolist() == [0, 1, 3]
    assert store.lengths.tolist() == [3, 3, 1]
    assert store.counts == {
        "documents": 2, "sentences": 3, "characters": 11, "bytes": 11, "unknown": 3, "empty": 1,
    }  # fmt: skip


def test_a_cache_is_opened_without_reading_the_text_again(tmp_path, monkeypatch):
    store = build_sentences(listed(DOCUMENTS), BYTES, cache=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(type(BYTES), "encode_batch", lambda self, texts: pytest.fail("encoded"))
        texts = DocumentStream("example", "1", lambda: pytest.fail("read"))
        again = build_sentences(texts, BYTES, cache=tmp_path)
    assert isinstance(again.ids, np.memmap)
    for name in ("ids", "offsets", "documents"):
        np.testing.assert_array_equal(getattr(again, name), getattr(store, name))
    assert again.counts == store.counts
    build_sentences(listed(DOCUMENTS[:3], "2"), BYTES, cache=tmp_path)
    build_sentences(listed(DOCUMENTS), train_tokenizer("bytes", []), cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("file", ["ids.npy", "offsets.npy", "documents.npy", "store.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "delete"])
def test_a_damaged_cache_is_made_anew(tmp_path, file, damage):
    plain = build_sentences(listed(DOCUMENTS), BYTES)
    build_sentences(listed(DOCUMENTS), BYTES, cache=tmp_path)
    path = next(tmp_path.glob(f"*/{file}"))
    data = bytearray(path.read_bytes())
    if damage == "delete":
        path.unlink()
    else:
        data[len(data) // 3] ^= 16
        path.write_bytes(data[:-9] if damage == "cut" else data)
    for _ in range(2):
        store = build_sentences(listed(DOCUMENTS), BYTES, cache=tmp_path)
        for name in ("ids", "offsets", "documents"):
            np.testing.assert_array_equal(getattr(store, name), getattr(plain, name))
        assert store.counts == plain.counts
    assert len(list(tmp_path.iterdir())) == 1


def test_nothing_is_left_of_texts_that_fail_half_way(tmp_path):
    def read():
        yield TextChunk("Fine.", True)
        raise DataError("a.txt:2: not UTF-8")

    with pytest.raises(DataError, match=r"^a\.txt:2: not UTF-8$"):
        build_sentences(DocumentStream("a.txt", "1", read), BYTES, cache=tmp_path)
    assert not list(tmp_path.iterdir())
