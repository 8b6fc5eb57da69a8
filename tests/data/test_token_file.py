"""Token files hold the ids of the texts, whole or not at all, in bounded memory."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.data import document_stream, token_file
from transformer_jax.data.document_stream import DocumentStream, TextChunk
from transformer_jax.data.documents import TextData, open_texts, read_texts
from transformer_jax.data.token_file import build_tokens, sample_texts
from transformer_jax.data.tokenizer import train_tokenizer

BYTES = train_tokenizer("bytes", [])
DOCUMENTS = [f"número {i}:\n" + "Lucas mora  no Rio.\n\n" * (i % 9) for i in range(60)]
BPE = train_tokenizer("bpe", DOCUMENTS, 330)


def listed(rows, identity="1"):
    return DocumentStream("example", identity, lambda: [TextChunk(row, True) for row in rows])


@pytest.fixture(params=["memory", "cache"])
def cache(request, tmp_path):
    return None if request.param == "memory" else tmp_path


@pytest.mark.parametrize("tokenizer", [BYTES, BPE])
def test_the_stream_is_the_concatenated_documents(cache, tokenizer, monkeypatch):
    monkeypatch.setattr(document_stream, "_LIMIT", 50)
    monkeypatch.setattr(token_file, "_CHARACTERS", 120)
    plain = build_tokens(listed(DOCUMENTS), tokenizer, cache=cache, ends=False)
    assert tokenizer.decode(plain.ids.tolist()) == "".join(DOCUMENTS)
    ended = build_tokens(listed(DOCUMENTS), tokenizer, cache=cache, ends=True)
    assert len(ended) == len(plain) == len(DOCUMENTS)
    for i, text in enumerate(DOCUMENTS):
        assert plain[i].tolist() == tokenizer.encode(text)
        assert ended[i].tolist() == [*tokenizer.encode(text), tokenizer.eos]
    assert ended.ids.dtype == np.uint16
    assert ended.lengths.sum() == ended.offsets[-1] == len(ended.ids)


def test_what_was_read_is_counted(cache):
    tokenizer = train_tokenizer("characters", ["abc"], 7)
    store = build_tokens(listed(["abé", " ", "cxx"]), tokenizer, cache=cache, ends=True)
    assert store.counts == {
        "documents": 2, "characters": 6, "bytes": 7, "unknown": 3, "empty": 1,
    }  # fmt: skip
    assert store[0].tolist() == [4, 5, 1, 3]
    wide = build_tokens(listed(["hi"]), BYTES, cache=cache, ends=False)
    assert wide.counts["unknown"] == 0


def test_large_vocabularies_have_wider_ids(cache, monkeypatch):
    monkeypatch.setattr(type(BYTES), "encode_batch", lambda self, texts: [[70_000] for _ in texts])
    monkeypatch.setattr(BYTES, "vocab_size", 70_001)
    store = build_tokens(listed(["a", "b"]), BYTES, cache=cache, ends=False)
    assert (store.ids.dtype, store.ids.tolist()) == (np.int32, [70_000, 70_000])


def test_a_cache_is_opened_without_reading_the_text_again(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("".join(DOCUMENTS))
    cache = tmp_path / "cache"

    def build(tokenizer=BYTES, ends=True):
        texts = read_texts(str(tmp_path / "a.txt"))
        return build_tokens(texts, tokenizer, cache=cache, ends=ends), len(list(cache.iterdir()))

    store, folders = build()
    assert (isinstance(store.ids, np.memmap), folders) == (True, 1)
    assert build(tokenizer=BPE)[1] == 2
    assert build(ends=False)[1] == 3
    with monkeypatch.context() as patch:
        patch.setattr(type(BYTES), "encode_batch", lambda self, texts: pytest.fail("encoded"))
        patch.setattr(document_stream, "open_bytes", lambda *args: pytest.fail("read"))
        again, folders = build()
    assert again.ids.tolist() == store.ids.tolist()
    assert (again.counts, folders) == (store.counts, 3)
    (tmp_path / "a.txt").write_text("".join(DOCUMENTS[::-1]))
    changed, folders = build()
    assert BYTES.decode(changed.ids.tolist()) == "".join(DOCUMENTS[::-1])
    assert folders == 4


@pytest.mark.parametrize("file", ["ids.npy", "offsets.npy", "store.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "delete"])
def test_a_damaged_cache_is_made_anew(tmp_path, file, damage):
    plain = build_tokens(listed(DOCUMENTS), BYTES, ends=True)
    build_tokens(listed(DOCUMENTS), BYTES, cache=tmp_path, ends=True)
    path = next(tmp_path.glob(f"*/{file}"))
    data = bytearray(path.read_bytes())
    if damage == "delete":
        path.unlink()
    else:
        data[len(data) // 3] ^= 16
        path.write_bytes(data[:-9] if damage == "cut" else data)
    for _ in range(2):
        store = build_tokens(listed(DOCUMENTS), BYTES, cache=tmp_path, ends=True)
        assert store.ids.tolist() == plain.ids.tolist()
        assert store.offsets.tolist() == plain.offsets.tolist()
        assert store.counts == plain.counts
    assert len(list(tmp_path.iterdir())) == 1


def test_nothing_is_left_of_texts_that_fail_half_way(tmp_path):
    def read():
        yield TextChunk("fine", True)
        raise DataError("a.txt:2: not UTF-8")

    with pytest.raises(DataError, match=r"^a\.txt:2: not UTF-8$"):
        build_tokens(DocumentStream("a.txt", "1", read), BYTES, cache=tmp_path, ends=True)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"file/.*: cannot be written"):
        build_tokens(listed(["a"]), BYTES, cache=tmp_path / "file", ends=True)


@pytest.mark.parametrize("limit", [10, 100, 1000, 10_000])
def test_a_sample_is_bounded_and_spread_evenly(limit):
    rows = [f"{i:05}-{i % 7}" for i in range(1000)]  # 7 characters each
    kept = sample_texts(listed(rows), limit)
    assert sum(map(len, kept)) <= limit
    if limit >= 7000:
        assert kept == rows
        return
    assert sum(map(len, kept)) >= limit // 2 - 7
    steps = {int(b[:5]) - int(a[:5]) for a, b in itertools.pairwise(kept)}
    assert len(steps) <= 1
    assert (kept[0], len(sample_texts(listed(["x" * 500]), 100)[0])) == (rows[0], 100)


MEASURE = """
import sys
from benchmarks.resident import peak
from transformer_jax.data.documents import TextData, open_texts
from transformer_jax.data.token_file import build_tokens, sample_texts
from transformer_jax.data.tokenizer import train_tokenizer

kind, path, cache = sys.argv[1:]
texts = open_texts(TextData(text=path)).train
small = open_texts(TextData(text=path + ".small.txt")).train
tokenizer = train_tokenizer(kind, sample_texts(texts, 100_000), 400)
build_tokens(small, tokenizer, cache=cache, ends=False)
before = peak()
store = build_tokens(texts, tokenizer, cache=cache, ends=False)
print(store.counts["bytes"], peak() - before)
"""


def memory_growth(tmp_path, kind, megabytes):
    line = "".join(f"{i} " + "Lucas irá viajar ao Rio em Dezembro. " * (i % 5) for i in range(999))
    path = tmp_path / "large.txt"
    path.write_text((line + "\n") * (megabytes * 1_000_000 // len(line.encode())))
    # As large as one group of pieces, so that its memory is not counted twice.
    path.with_name("large.txt.small.txt").write_text((line + "\n") * (2_000_000 // len(line)))
    command = [sys.executable, "-c", MEASURE, kind, str(path), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    size, growth = map(int, done.stdout.split())
    assert size > megabytes * 800_000
    return growth / 1e6  # MB


tells = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is not told")


@pytest.mark.slow
@tells
def test_memory_does_not_grow_with_the_text(tmp_path):
    assert memory_growth(tmp_path, "characters", 20) < 40


@tells
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_memory_does_not_grow_with_a_large_text(tmp_path, kind):
    assert memory_growth(tmp_path, kind, 60) < 60


def test_text_comes_back_from_the_ids_of_a_real_corpus(tmp_path):
    splits = open_texts(TextData(corpus="python-docs"))
    tokenizer = train_tokenizer("bpe", sample_texts(splits.train, 50_000), 500)
    valid = "".join(piece.text for piece in splits.valid)
    store = build_tokens(splits.valid, tokenizer, cache=tmp_path, ends=True)
    assert tokenizer.decode(store.ids.tolist()) == valid
    assert "".join(tokenizer.decode_batch(store[i].tolist() for i in range(len(store)))) == valid


def test_characters_are_looked_up_as_the_library_would():
    texts = ["a<eos> b\n\r\u2028é😀e\u0301<unk>", "", "".join(map(chr, range(1, 400)))]
    tokenizer = train_tokenizer("characters", [texts[0], "\U0010ffff"], 18)
    wanted = [e.ids for e in tokenizer._backend.encode_batch(texts, add_special_tokens=False)]
    assert tokenizer._characters is not None
    assert tokenizer.encode_batch(texts) == wanted
    assert {tokenizer.unk, 4} <= {id for row in wanted for id in row}
    assert BYTES._characters is BPE._characters is None
