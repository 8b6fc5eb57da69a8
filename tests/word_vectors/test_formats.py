"""Files of word vectors: byte for byte, there and back, and with gensim."""

import gzip
import logging
import tracemalloc

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.word_vectors.embeddings import WordEmbeddings
from transformer_jax.word_vectors.formats import (
    VECTORS,
    load_embeddings,
    save_embeddings,
    size_of_vectors,
)


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
        (b"hello world\n", ":1: not a file of word vectors"),
        (b"0 2\n", ":1: not a file of word vectors"),
        (b"2\n", ":1: not a file of word vectors"),
        (b"tiger cat 7.35\nold new 1.5\n", ":1: not a file of word vectors"),  # pairs of words
        (b"a 1 2\nb 1 2\nc 1", ":3: 2 fields, but a word with 2 values has 3: the file is cut"),
        (b"9999999 300\nab", ":1: 9,999,999 vectors of size 300 do not fit in 14 bytes"),
        (BINARY[:-4], "word 2 of 2: the file is cut or damaged"),
        (TEXT[:-6], ":3: 2 fields, but a word with 2 values has 3"),
        (TEXT[:-15], ":3: 1 word, and the first line has 2: the file is cut"),
        (b"1 2\nnew york 1 2\n", ":2: 4 fields, but a word with 2 values has 3: 1 of 1 word"),
        (b"3 1\na 1\nb\nc\n", ":3: 1 field, but a word with 1 values has 2: 2 of 3 words are"),
        (b"1 1048577\n" + b"0" * 4_000_000, ":1: vectors of size 1,048,577: at most 1,048,576"),
    ],
)
def test_what_is_no_file_of_vectors_is_refused(tmp_path, content, says):
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(DataError) as error:
        load_embeddings(tmp_path / "v")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


LINES = [b"4 2\n", b"a 1 2\n", b"b 3 4\n", b"c 5 6\n", b"d 7 8\n"]
WORDS = [b"4 1\n", b"a \x00\x00\x80\x3f", b"b \x00\x00\x00\x40", b"c \x00\x00\x40\x40",
         b"d \x00\x00\x80\x40"]  # fmt: skip


def test_a_word_with_a_blank_in_a_binary_file_gives_no_vector(tmp_path, caplog):
    """Its second half would be read as numbers, and the numbers as the next word."""
    words = [
        b"6 2\n",
        b"a \x00\x00\x80\x3f\x00\x00\x80\x3f",
        b"new york \x00\x00\x80\x3f\x00\x00\x80\x3f",
    ]
    words += [letter + b" \x00\x00\x80\x3f\x00\x00\x80\x3f" for letter in (b"b", b"c", b"d", b"e")]
    (tmp_path / "v.bin").write_bytes(b"".join(words))
    found = load_embeddings(tmp_path / "v.bin")
    assert found.words == ("a", "c", "d", "e")
    assert (found.vectors == 1).all()
    assert "2 of 6 words left out as broken" in caplog.text


@pytest.mark.parametrize(
    ("parts", "at", "broken", "says"),
    [
        (LINES, 1, b"new york 1 2\n", ":2: 4 fields, but a word with 2 values has 3"),
        (LINES, 1, b"1 2\n", ":2: 2 fields"),
        (LINES, 2, b"b 0,3 4\n", ":3: the vector has a value that"),
        (LINES, 2, b"b 3_0 4\n", ":3: the vector has a value that"),
        (LINES, 4, b"new york 7 8", ":5: 4 fields, but a word with 2 values has 3"),
        (LINES, 3, b"c nan 6\n", ":4: the vector of 'c' has NaN or infinity"),
        (LINES, 3, b"c 1e39 6\n", ":4: the vector of 'c' has NaN or infinity"),
        (LINES, 3, b"\n\n\xff 5 6\n", ":6: the word is not UTF-8"),
        (LINES, 4, b"d\0 7 8\n", ":5: the word 'd\\x00' has whitespace or NUL"),
        (WORDS, 1, b"\xe2\x82 \x00\x00\x80\x3f", ": word 1 of 4: the word is not UTF-8"),
        (WORDS, 2, b" \x00\x00\x80\x3f", ": word 2 of 4: the word is empty"),
        (WORDS, 3, b"c \x00\x00\x80\x7f", ": word 3 of 4: the vector of 'c' has NaN"),
        (WORDS, 4, b"d\n \x00\x00\x80\x40", ": word 4 of 4: the word 'd\\n' has whitespace"),
    ],
)
def test_one_broken_word_is_left_out_and_counted(tmp_path, caplog, parts, at, broken, says):
    content = [*parts[:at], broken, *parts[at + 1 :]]
    (tmp_path / "v").write_bytes(b"".join(content))
    with caplog.at_level(logging.WARNING):
        found = load_embeddings(tmp_path / "v")
    assert found.words == tuple(word for i, word in enumerate("abcd", 1) if i != at)
    width = found.vectors.shape[1]
    expected = np.arange(1, 4 * width + 1, dtype=np.float32).reshape(4, width)
    np.testing.assert_array_equal(found.vectors, np.delete(expected, at - 1, 0))
    (message,) = caplog.messages
    assert f"{tmp_path}/v: 1 of 4 words left out as broken, first {tmp_path}/v{says}" in message


def test_a_binary_file_that_is_shifted_is_refused_where_it_begins(tmp_path):
    sound, shifted = b"a \x00\x00\x80\x3f", b"\xff \x00\x00\x80\x3f"
    (tmp_path / "v").write_bytes(b"60 1\n" + sound * 50 + shifted * 10)
    with pytest.raises(DataError, match=r"v: words 51 to 60 of 60 are broken: from there on"):
        load_embeddings(tmp_path / "v")


@pytest.mark.parametrize("content", [TEXT, BINARY])
def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path, content):
    (tmp_path / "v").write_bytes(b"\xef\xbb\xbf" + content)
    assert load_embeddings(tmp_path / "v").words == SMALL.words
    assert size_of_vectors(tmp_path / "v") == 2


@pytest.mark.parametrize("content", [TEXT + b"more 1 2\n", BINARY + b"more 12345678"])
def test_words_beyond_the_number_of_the_first_line_are_told(tmp_path, caplog, content):
    (tmp_path / "v").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert load_embeddings(tmp_path / "v").words == SMALL.words
    assert "there is more than the 2 words of its first line" in caplog.text
    caplog.clear()
    load_embeddings(tmp_path / "v", limit=1)
    assert not caplog.messages


def test_words_of_a_limit_keep_their_numbers_in_messages(tmp_path, caplog):
    (tmp_path / "v").write_bytes(b"".join([WORDS[0], WORDS[1], b"\xff" + WORDS[2][1:]]))
    with caplog.at_level(logging.WARNING):
        load_embeddings(tmp_path / "v", limit=2)
    assert "word 2 of 4: the word is not UTF-8" in caplog.text


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"", ":1: not a file of word vectors"),
        (b"50000 300\n", "word 1 of 50,000: the file is cut or damaged, or in another format"),
        (b"3 2\na 1 2\n", ":3: longer than a word and 2 values"),
        (b"999999999 300\n", ":1: 999,999,999 vectors of size 300 do not fit"),
    ],
)
def test_a_packed_file_of_zeros_takes_no_memory(tmp_path, head, says):
    with gzip.open(tmp_path / "v.gz", "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(64):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as error:
            load_embeddings(tmp_path / "v.gz")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert says in str(error.value)


def test_a_packed_file_of_more_words_than_memory_is_first_taken_for(tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_jax.word_vectors.formats._FIRST_ROWS", 3)
    save_embeddings(made(), tmp_path / "v", binary=True)
    (tmp_path / "v.gz").write_bytes(gzip.compress((tmp_path / "v").read_bytes()))
    np.testing.assert_array_equal(load_embeddings(tmp_path / "v.gz").vectors, made().vectors)


@pytest.mark.parametrize("cut", [1, 30])
def test_a_cut_packed_file_is_refused(tmp_path, cut):
    save_embeddings(made(), tmp_path / "v", binary=True)
    (tmp_path / "v.gz").write_bytes(gzip.compress((tmp_path / "v").read_bytes())[:-cut])
    with pytest.raises(DataError, match=r"v\.gz: the \.gz is cut or damaged"):
        load_embeddings(tmp_path / "v.gz")


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


def lines_of(embeddings):
    return "".join(
        f"{word} {' '.join(map(str, vector))}\n"
        for word, vector in zip(embeddings.words, embeddings.vectors, strict=True)
    )


@pytest.mark.parametrize(
    ("head", "end"), [("", ""), ("50 7\n", ""), ("50 7\n", " ")], ids=["GloVe", "word2vec", ".vec"]
)
def test_a_header_is_recognized_and_may_be_missing(tmp_path, capfd, head, end):
    embeddings = made()
    content = (head + lines_of(embeddings).replace("\n", f"{end}\n")).encode()
    (tmp_path / "a.vec").write_bytes(content)
    (tmp_path / "a.vec.gz").write_bytes(gzip.compress(content))
    for name in ("a.vec", "a.vec.gz"):
        found = load_embeddings(tmp_path / name)
        assert found.words == embeddings.words
        np.testing.assert_array_equal(found.vectors, embeddings.vectors)
        assert size_of_vectors(tmp_path / name) == embeddings.size
        assert load_embeddings(tmp_path / name, 3, {"the", "w9"}).words == ("the",)
    said = capfd.readouterr().err.count("has no header, as GloVe's files: words with 7 values")
    assert said == (0 if head else 4)


def test_words_of_glove_may_have_blanks_but_never_take_a_number(tmp_path, caplog):
    """GloVe#150: ". . ." and "at name@domain.com" among the words of Common Crawl."""
    rows = [". . .", "at name@domain.com", "a_b c_d", "5", "one 2.5", "the"]
    lines = [f"{word} {i} .5 -1\n" for i, word in enumerate(rows)]
    (tmp_path / "glove.840B.txt").write_text("".join([lines[-1], *lines]))
    with caplog.at_level(logging.WARNING):
        found = load_embeddings(tmp_path / "glove.840B.txt")
    assert found.words == ("the", ". . .", "at name@domain.com", "a_b c_d", "5")
    assert found.vectors[:, 0].tolist() == [5, 0, 1, 2, 3]
    assert "1 of 7 words left out as broken" in caplog.text
    assert ":6: 5 fields" in caplog.text
    assert "1 word comes again" in caplog.text
