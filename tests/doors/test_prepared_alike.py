"""Prepared alike: a text in any form of Unicode and of files arrives as the same tokens.

The forms are a decomposed text, a byte order mark, CRLF, and blanks of any kind at the ends. Where
blanks are what a model learns or continues, all forms without them hold.
"""

import dataclasses
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transformer_jax as tj
from tests.cli.conftest import Command
from tests.doors import table, uses
from tests.doors.readers import Form
from transformer_jax.data.preparation import compose
from transformer_jax.decoding.partial_text import truncate_at_stop
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.word_vectors.formats import load_embeddings

LAW = 1
KINDS = ("reader", "use")


@dataclasses.dataclass(frozen=True)
class Case:
    """A way to try a door.

    Attributes:
        content: Whether blanks at the ends of a text are a part of it.
        words: Whether a text is a single word.
        read: Reads a file, if not as the door does; the texts that were written are for lookups.
        same: What must be equal of the results of two calls.
    """

    content: bool = False
    words: bool = False
    read: Callable[[Path, Sequence[str]], list[str]] | None = None
    same: Callable[[Any], Any] = lambda result: result


def _find(path: Path, texts: Sequence[str]) -> list[str]:
    """Looks composed texts up among vectors, whose words stay as they are written."""
    vectors = load_embeddings(path)
    rows = [vectors.find(compose(text.strip())) for text in texts]
    assert rows == list(range(len(texts)))
    return list(map(compose, vectors.words))


_CONTENT = (
    "documents in lines",
    "documents between blank lines",
    "documents in files of a folder",
    "documents as JSONL",
    "documents as Parquet",
    "preferences",
    "preferences as CSV",
    "completions with a label",
    "prompts to learn from",
    "conversations",
    "prompts with completions",
    "completions as CSV",
    "generate",
    "chat",
    "fill masks",
    "tokenize",
)
_READERS = [door.name for door in table.of_kind("reader") if door.write]
CASES: dict[str, Case] = {
    **{name: Case() for name in (*_READERS, *uses.USES)},
    **{name: Case(content=True) for name in _CONTENT},
    "score texts": Case(content=True, same=lambda score: score.log_prob),
    "tag words": Case(same=lambda words: [(one.tag, one.probability) for one in words]),
    "tag tokens": Case(
        content=True, same=lambda tokens: [(one["entity"], one["score"]) for one in tokens]
    ),
    "text for word vectors": Case(words=True),
    "analogy questions": Case(words=True),
    "word vectors": Case(words=True, content=True, read=_find),
    "word vectors of GloVe": Case(words=True, content=True, read=_find),
}
EXEMPT = {
    "data sets of TensorFlow": "rows of a library, collected as the rows of a TSV file are",
    "demonstrations": "fields of a template, prepared as the prompt that they become",
    "rewards and rules of users": "code of the user, called with texts that are prepared",
    "prompts in lines or JSONL": "read as lines of text, or as prompts to learn from",
    "requests": "settings as JSON, whose prompt is prepared as that of generate",
    "results of benchmarks": "written by the package: no text of a user",
    "outputs with references": "compared as they stand, as sacreBLEU does",
    "compare samples": "samples of generate, which prepares the prompts",
    "few-shot prompts": "fills a template and generates: see demonstrations",
    "compare vectors of a word": "finds a word of a sentence in any spelling: see the law of words",
    "transcribe": "takes sound, no text",
    "caption": "takes pictures, no text",
    "classify pictures": "takes pictures, no text",
    "embed pictures": "takes pictures, no text",
    "match pictures and texts": "labels are lines, prepared as lines of text are",
    "words of word vectors": "looks words up: see word vectors",
}

# Composed, with marks that compose, that do not, and that are put in order.
TEXTS = ["été à Genève", "ḍ̇ et क़िताब", "가나다 ñandú", "ångström"]
PLAIN = Form()


def _apart(text: str) -> str:
    return unicodedata.normalize("NFD", text)


FORMS = {
    "decomposed": (_apart, PLAIN),
    "byte order mark": (str, Form(bom=True)),
    "CRLF": (str, Form(end="\r\n")),
    "all": (_apart, Form(bom=True, end="\r\n")),
}
BLANKS = {
    "blanks": lambda text: f"  {text} ",
    "no-break": lambda text: f"\u00a0{text}\u202f",
    "wide": lambda text: f"\u3000{text}\u2003",
    "zero-width": lambda text: f"\ufeff{text}\u200b",
}


def _read(name: str, folder: Path, change: Callable[[str], str], form: Form) -> list[str]:
    """The texts of a file in some form, as they arrive; classes come in their order."""
    door, case = table.by_name(name), CASES[name]
    texts = [change(text.replace(" ", "") if case.words else text) for text in TEXTS]
    path = door.write(folder, texts, form)
    return door.read(path) if case.read is None else case.read(path, texts)


def _expected(name: str) -> list[str]:
    texts = list(map(compose, TEXTS))
    return [text.replace(" ", "") for text in texts] if CASES[name].words else texts


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", _READERS)
def test_readers_compose_texts_of_every_form_of_file(name, form, tmp_path):
    assert sorted(_read(name, tmp_path, *FORMS[form])) == sorted(_expected(name))


@pytest.mark.parametrize("blank", BLANKS)
@pytest.mark.parametrize("name", [name for name in _READERS if not CASES[name].content])
def test_readers_leave_out_blanks_at_the_ends(name, blank, tmp_path):
    assert sorted(_read(name, tmp_path, BLANKS[blank], PLAIN)) == sorted(_expected(name))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:1 of 1 text reached the length limit")
@pytest.mark.parametrize("name", uses.USES)
def test_models_read_texts_of_every_form_alike(name, tmp_path):
    use, case = uses.USES[name], CASES[name]
    model = tj.load(use.write(tmp_path / "model"))
    result = lambda text: case.same(use.call(model, text))
    changes = {"decomposed": _apart} | ({} if case.content else BLANKS)
    expected = result(compose(uses.TEXT))
    for change in changes.values():
        np.testing.assert_equal(result(change(uses.TEXT)), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:1 of 1 text reached the length limit")
@pytest.mark.parametrize("name", [name for name, use in uses.USES.items() if use.command])
def test_commands_read_texts_of_every_form_alike(name, tmp_path, monkeypatch, capsysbinary):
    use, run = uses.USES[name], Command(monkeypatch, capsysbinary)
    folder = use.write(tmp_path / "model")
    changes = [_apart, *(() if CASES[name].content else BLANKS.values())]

    def printed(text: str) -> list[str]:
        arguments, lines = use.command(folder, text)
        code, out, err = run(*arguments, text=lines)
        assert code == 0, err
        return list(map(compose, out))  # words are printed as they are written

    expected = printed(compose(uses.TEXT))
    for change in changes:
        assert printed(change(uses.TEXT)) == expected


@pytest.mark.slow
def test_answers_are_found_alike_and_spelled_as_the_paragraph_spells_them(tmp_path):
    model = tj.load(uses.USES["answer questions"].write(tmp_path / "model"))
    found = [model("un café", context, top_k=5) for context in (uses.TEXT, _apart(uses.TEXT))]
    for one, other in zip(*found, strict=True):
        assert (compose(other.text), other.score) == (one.text, pytest.approx(one.score, abs=1e-4))
        assert other.start < 0 or _apart(uses.TEXT)[other.start :].startswith(other.text)


def test_a_stop_string_ends_a_text_in_any_spelling():
    request = GenerationRequest("un", stop=(_apart("é"), "ö"))
    for text in ("caf\u00e9 là", _apart("café là")):
        assert truncate_at_stop(text, request.stop_spellings)[1]
    assert truncate_at_stop(_apart("schöne"), request.stop_spellings) == ("sch", True)
