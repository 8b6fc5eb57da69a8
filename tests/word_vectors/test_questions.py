"""Nearest words, analogies and similarity files: row B20."""

import numpy as np
import pytest
from scipy import stats

from transformer_jax.core.errors import DataError
from transformer_jax.core.numerics import cosine
from transformer_jax.word_vectors.embeddings import WordEmbeddings
from transformer_jax.word_vectors.questions import (
    answer_analogies,
    correlate_similarities,
    read_analogies,
    read_similarities,
)

WORDS = ("france", "paris", "italy", "rome", "germany", "berlin", "zero")


@pytest.fixture
def embeddings():
    """Capitals differ from their countries by one vector, nearly; lengths differ."""
    rng = np.random.default_rng(0)
    countries, capital = rng.normal(size=(3, 16)), 2 * rng.normal(size=16)
    rows = [x for country in countries for x in (country, country + capital)]
    rows = [row / np.linalg.norm(row) * (i + 1) for i, row in enumerate(rows)]
    return WordEmbeddings(WORDS, np.array([*rows, np.zeros(16)], np.float32))


def test_an_analogy_is_the_highest_cosine_with_the_sum(embeddings):
    unit = embeddings.vectors / np.maximum(
        np.linalg.norm(embeddings.vectors, axis=1, keepdims=True), 1e-9
    )
    query = unit[1] - unit[0] + unit[2]
    cosines = unit @ query / np.linalg.norm(query)
    order = [i for i in np.argsort(-cosines) if i not in (0, 1, 2)]
    found = embeddings.analogy("paris", "france", "italy", top=9)
    assert [word for word, _ in found] == [WORDS[i] for i in order]
    np.testing.assert_allclose([value for _, value in found], cosines[order], atol=1e-6)
    assert found[0][0] == "rome"


def test_the_nearest_words_do_not_depend_on_lengths(embeddings):
    scaled = WordEmbeddings(WORDS, embeddings.vectors * np.arange(1, 8, dtype=np.float32)[:, None])
    near = embeddings.most_similar(["rome"], top=3)
    assert [word for word, _ in near] == [word for word, _ in scaled.most_similar(["rome"], top=3)]
    assert "rome" not in dict(embeddings.most_similar(["rome"], top=100))
    assert embeddings.similarity("rome", "rome") == pytest.approx(1)
    assert embeddings.similarity("rome", "zero") == 0


@pytest.mark.parametrize(
    ("word", "says"),
    [("pariss", "did you mean paris?"), ("Rome", "did you mean rome?"), ("xyzzy", "no word is")],
)
def test_unknown_words_are_refused_with_suggestions(embeddings, word, says):
    with pytest.raises(DataError) as error:
        embeddings.analogy(word, "france", "italy")
    assert f"no vector for {word!r} among 7 words" in str(error.value)
    assert says in str(error.value)


def test_sections_are_answered_each(tmp_path, embeddings):
    path = tmp_path / "questions.txt"
    path.write_text(
        ": capitals\nFrance Paris Italy Rome\nItaly Rome Germany Berlin\nItaly Rome Spain Madrid\n"
        ": wrong\nfrance paris italy berlin\n"
    )
    capitals, wrong = answer_analogies(embeddings, read_analogies(path))
    assert (capitals.name, capitals.correct, capitals.answered, capitals.questions) == (
        "capitals", 2, 2, 3,
    )  # fmt: skip
    assert (wrong.correct, wrong.answered, wrong.accuracy) == (0, 1, 0.0)


def test_the_words_of_a_question_are_no_answers():
    """The sum ``b − a + c`` is often nearest to ``c``."""
    rows = [[1, 0, 0], [1, 0.2, 0], [0, 1, 0], [0, 1, 0.4]]
    made = WordEmbeddings(("a", "b", "c", "d"), np.array(rows, np.float32))
    assert made.similarity("c", "b") < made.similarity("c", "d")
    [one] = answer_analogies(made, {"one": [("a", "b", "c", "d")]})
    assert (one.correct, one.answered) == (1, 1)


def test_words_beyond_the_limit_take_no_part(embeddings):
    sections = {"one": [("france", "paris", "italy", "rome")]}
    [few] = answer_analogies(embeddings, sections, limit=3)
    assert (few.answered, few.questions) == (0, 1)
    assert np.isnan(few.accuracy)


def test_of_words_that_differ_by_case_the_first_takes_part(embeddings):
    vectors = np.concatenate([embeddings.vectors, embeddings.vectors[3:4] * 2])
    more = WordEmbeddings((*WORDS, "ROME"), vectors)
    [one] = answer_analogies(more, {"one": [("france", "paris", "italy", "rome")]})
    assert one.correct == 1


def test_correlations_are_those_of_scipy(tmp_path, embeddings):
    rng = np.random.default_rng(1)
    pairs = [(a, b, float(rng.random())) for a in WORDS[:5] for b in WORDS[:5] if a < b]
    path = tmp_path / "pairs.txt"
    lines = [f"{a.title()}\t{b}\t{value}" for a, b, value in pairs]
    path.write_text("word1\tword2\tsimilarity\n# a comment\n" + "\n".join([*lines, "x\ty\t1"]))
    found = correlate_similarities(embeddings, read_similarities(path))
    cosines = [embeddings.similarity(a, b) for a, b, _ in pairs]
    values = [value for *_, value in pairs]
    assert found.spearman == pytest.approx(stats.spearmanr(cosines, values)[0])
    assert found.pearson == pytest.approx(stats.pearsonr(cosines, values)[0])
    assert (found.answered, found.pairs) == (len(pairs), len(pairs) + 1)


@pytest.mark.parametrize("mark", [" ", "\t", ", "])
def test_columns_are_divided_by_blanks_tabs_or_commas(tmp_path, mark):
    (tmp_path / "p").write_text(mark.join(["tiger", "cat", "7.35", "more"]) + "\n")
    assert read_similarities(tmp_path / "p") == [("tiger", "cat", 7.35)]


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (read_analogies, ": s\na b c\n", ":2: 3 words: a question is four words"),
        (read_analogies, ": s\n", "no questions"),
        (read_similarities, "a b 1\na b\n", ":2: a pair is two words and a number"),
        (read_similarities, "a b nan\n", ":1: nan is not a similarity"),
        (read_similarities, "# only\n", "no pairs"),
    ],
)
def test_lines_that_are_no_questions_are_refused(tmp_path, read, text, says):
    (tmp_path / "file").write_text(text)
    with pytest.raises(DataError) as error:
        read(tmp_path / "file")
    assert says in str(error.value)


@pytest.mark.parametrize("size", [3e38, 1e-30, 1e-44, 1.0])
def test_cosines_do_not_depend_on_the_size_of_vectors(size):
    vectors = np.array([[1, 1], [1, 0], [-1, 1], [0, 0]], np.float32) * np.float32(size)
    made = WordEmbeddings(("a", "b", "c", "zero"), vectors)
    assert made.similarity("a", "b") == pytest.approx(0.5**0.5, abs=1e-6)
    assert made.similarity("a", "c") == pytest.approx(0, abs=1e-6)
    assert made.similarity("a", "zero") == 0
    assert [word for word, _ in made.most_similar(["a"])] == ["b", "c", "zero"]
    assert cosine(vectors, vectors[:1]) == pytest.approx([1, 0.5**0.5, 0, 0], abs=1e-6)
