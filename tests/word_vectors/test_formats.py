"""Files of word vectors: byte for byte, there and back, and with gensim."""

import gzip
import logging

import numpy as np
import pytest

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.word_vectors.embeddings import WordEmbeddings
from transformer_jax.word_vectors.formats import VECTORS, load_embeddings, save_embeddings


def made(words=50, size=7):
    rng = np.random.default_rng(0)
    names = ("the", "straße", "new_york", *(f"w{i}" for i in range(words - 3)))
    vectors = rng.normal(size=(words, size)).astype(np.float32)
    vectors[1, :3] = [0.0, -1e-30, 3.4e38]
    return WordEmbeddings(names, vectors)


SMALL = WordEmbeddings(("a", "é"), np.array([[1.0, -0.5], [0.1, 2e-8]], np.float32))
TEXT = "2 2\na 1.0 -0.5\né 0.1 2e-08\n".encode()
BINARY = (
    b"2 2\n"
    b"a \x00\x00\x80\x3f\x00\x00\x00\xbf\n"  # 1.0, -0.5, little-endian
    b"\xc3\xa9 \xcd\xcc\xcc\x3d\x77\xcc\xab\x32\n"  # é: 0.1, 2e-8
)


@pytest.mark.parametrize(("binary", "expected"), [(False, TEXT), (True, BINARY)])
def test_files_are_word2vecs_byte_for_byte(tmp_path, binary, expected):
    save_embeddings(SMALL, tmp_path / "v", binary=binary)
    assert (tmp_path / "v").read_bytes() == expected


@pytest.mark.parametrize("content", [TEXT, BINARY, BINARY.replace(b"\n\xc3", b"\xc3")[:-1]])
def test_both_formats_are_read_by_their_content(tmp_path, content):
    """The last one has no line ends behind vectors, as gensim writes it."""
    (tmp_path / "v").write_bytes(content)
    found = load_embeddings(tmp_path / "v")
    assert found.words == SMALL.words
    np.testing.assert_array_equal(found.vectors, SMALL.vectors)


@pytest.mark.parametrize("binary", [False, True])
def test_vectors_come_back_as_they_were(tmp_path, binary):
    embeddings = made()
    save_embeddings(embeddings, tmp_path / VECTORS, binary=binary)
    found = load_embeddings(tmp_path)  # the folder
    assert found.words == embeddings.words
    np.testing.assert_array_equal(found.vectors, embeddings.vectors)
    first = load_embeddings(tmp_path / VECTORS, limit=2)
    assert first.words == embeddings.words[:2]
    np.testing.assert_array_equal(first.vectors, embeddings.vectors[:2])
    (tmp_path / "v.gz").write_bytes(gzip.compress((tmp_path / VECTORS).read_bytes()))
    np.testing.assert_array_equal(load_embeddings(tmp_path / "v.gz").vectors, embeddings.vectors)


@pytest.mark.parity
@pytest.mark.parametrize("binary", [False, True])
def test_gensim_reads_ours_and_we_read_gensims(tmp_path, binary):
    gensim = pytest.importorskip("gensim.models", reason="gensim is not installed")
    embeddings = made()
    save_embeddings(embeddings, tmp_path / "ours", binary=binary)
    theirs = gensim.KeyedVectors.load_word2vec_format(str(tmp_path / "ours"), binary=binary)
    assert tuple(theirs.index_to_key) == embeddings.words
    np.testing.assert_array_equal(theirs.vectors, embeddings.vectors)
    theirs.save_word2vec_format(str(tmp_path / "theirs"), binary=binary)
    found = load_embeddings(tmp_path / "theirs")
    assert found.words == embeddings.words
    np.testing.assert_array_equal(found.vectors, embeddings.vectors)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"hello world\n", ":1: no file of word vectors"),
        (b"0 2\n", ":1: no file of word vectors"),
        (b"2\n", ":1: no file of word vectors"),
        (b"9999999 300\nab", ":1: 9,999,999 vectors of 300 numbers do not fit in 14 bytes"),
        (BINARY[:-4], "word 2 of 2: the file is cut or damaged"),
        (TEXT[:-6], ":3: 2 fields, and a word with 2 numbers has 3"),
        (TEXT.replace(b"0.1", b"0,1"), ":3: not a number"),
        (TEXT.replace(b"0.1", b"nan"), "'é' has NaN or infinity"),
        (BINARY.replace(b"\xc3\xa9", b"\xff\xff"), "word 2 of 2: the word is not UTF-8"),
    ],
)
def test_what_is_no_file_of_vectors_is_refused(tmp_path, content, says):
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(DataError) as error:
        load_embeddings(tmp_path / "v")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_files_and_words_with_blanks_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        load_embeddings(tmp_path / "none")
    spaced = WordEmbeddings(("new york",), np.ones((1, 2), np.float32))
    with pytest.raises(DataError, match="'new york': it has whitespace"):
        save_embeddings(spaced, tmp_path / "v", binary=True)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        save_embeddings(SMALL, tmp_path / "file" / "v", binary=True)


def test_of_a_word_that_comes_twice_the_first_vector_counts(tmp_path, caplog):
    (tmp_path / "v").write_bytes(b"3 1\na 1\nb 2\na 3\n")
    with caplog.at_level(logging.WARNING):
        found = load_embeddings(tmp_path / "v")
    assert found.words == ("a", "b")
    assert found.vectors.ravel().tolist() == [1, 2]
    assert "1 word comes again" in caplog.text
