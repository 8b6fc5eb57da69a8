"""Preparation of text: ends of lines, canonically equal characters, what a run says of it."""

import json
import sys
import unicodedata

import pytest

from transformer_jax.data.documents import TextOptions
from transformer_jax.data.labeled import LabeledOptions
from transformer_jax.data.labeled_files import read_sentences, read_tagged
from transformer_jax.data.preparation import Preparation, compose
from transformer_jax.data.sources import ReadOptions
from transformer_jax.data.speech.recordings import read_manifest
from transformer_jax.data.squad import read_questions
from transformer_jax.data.summaries import SummaryOptions, read_summaries
from transformer_jax.data.words import mark_groups

LINE = "O livro está em cima da mesa."
ENDS = [" ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2003", "\u2028", "\x0b", "\x85",
        "\ufeff", "\u200b", " \u00a0\n"]  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_blanks_at_the_ends_of_a_line_are_no_text(end):
    for text in (LINE + end, end + LINE, end + LINE + end):
        assert Preparation().line(text) == LINE
        assert Preparation(source_prefix="en: ").source(text) == f"en: {LINE}"
    assert Preparation(source_prefix="en: ").source(end) == ""


def test_blanks_inside_a_line_stay():
    text = "a  b\u00a0c\u3000d"
    assert Preparation().line(text) == text
    assert Preparation.of(ReadOptions()).source(text) == text


def test_a_source_is_one_line_and_a_text_to_summarize_has_single_blanks():
    assert Preparation.of(ReadOptions()).source("a\r\nb  c\n") == "a b  c"
    assert Preparation.of(SummaryOptions()).source("a\n\nb  c\u00a0d\n") == "a b c d"
    assert Preparation.of(TextOptions()).line("a\nb") == "a\nb"


def test_only_a_model_of_lines_reads_no_line_end():
    assert Preparation.of(TextOptions(documents="line")).text(" a \n") == " a "
    assert Preparation.of(TextOptions()).text(" a \n") == " a \n"


def test_a_file_of_settings_without_normalization_leaves_characters():
    apart = unicodedata.normalize("NFD", LINE)
    assert Preparation.of({"lowercase": True}).line(apart) == apart.lower()
    assert Preparation.of({"normalization": "nfc"}).line(apart) == LINE
    assert Preparation.of(LabeledOptions()).text(apart) == LINE


def test_labels_and_tags_are_compared_in_composed_characters(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text(unicodedata.normalize("NFD", "É bom\tÁgua\u00a0\nmau\tFogo\n"))
    options = LabeledOptions(text="1", label="2", lowercase=True)
    found = read_sentences(str(file), "classify", options)
    assert (found.texts, found.labels) == (["é bom", "mau"], ["Água", "Fogo"])
    row = "1\té\t_\tNÔUN\t_\t_\t_\t_\t_\t_\n\n"
    (tmp_path / "a.conllu").write_text(unicodedata.normalize("NFD", row))
    tagged = read_tagged(str(tmp_path / "a.conllu"))
    assert (tagged.words, tagged.tags) == ([["é"]], [["NÔUN"]])
    plain = read_tagged(str(tmp_path / "a.conllu"), LabeledOptions(normalization="none"))
    assert plain.tags == [[unicodedata.normalize("NFD", "NÔUN")]]


def test_summaries_and_transcripts_are_composed(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"source": "e\u0301 bom.", "target": "e\u0301"}\n')
    texts = read_summaries(str(file))
    assert (texts.parts, texts.references) == ([["é bom."]], [["é"]])
    (tmp_path / "0.npy").write_bytes(b"")
    (tmp_path / "a.tsv").write_text("0.npy\te\u0301\u3000\n")
    assert read_manifest(str(tmp_path / "a.tsv")).texts == ["é"]


def test_white_space_of_every_script_is_blank():
    spaces = filter(str.isspace, map(chr, range(sys.maxunicode + 1)))
    assert Preparation().line("".join(spaces) + LINE) == LINE


@pytest.mark.parametrize(
    "text",
    [
        "cafe\u0301 au lait\n e\u0323\u0301e",
        "\u0915\u093c\u093e \u09c7\u09be \u304b\u3099",
        "\u1112\u1161\u11ab\u1100\u1173\u11af",  # Hangul
        "\u0301a",
        "\u0906\u0935\u093e\u095b\u0939 x\ufb2cab",  # letters that become two and three
        "plain",
        "",
    ],
    ids=ascii,
)
def test_places_of_a_prepared_text_are_those_of_the_original(text):
    placed = Preparation().placed(text)
    assert placed.text == compose(text)
    for at, group in mark_groups(text):
        start, stop = placed.prepared(at, at + len(group))
        assert (start, placed.text[start:stop]) == (len(compose(text[:at])), compose(group))
        assert placed.original(start, stop) == (at, at + len(group))
    assert Preparation("none").placed(text).text == text
    assert Preparation(lowercase=True).placed("İE\u0301").text == "İé"


@pytest.mark.parametrize("lowercase", [False, True])
def test_answers_stay_at_their_places_in_a_prepared_paragraph(tmp_path, lowercase):
    paragraph = unicodedata.normalize("NFD", "Élan vital à São Paulo, İzmir und Genève. ")
    answers = [unicodedata.normalize("NFD", text) for text in ("Élan", "São Paulo", "Genève")]
    listed = [{"text": text, "answer_start": paragraph.index(text)} for text in answers]
    question = {"id": "1", "question": " Où\u00a0", "answers": listed}
    paragraphs = [{"context": paragraph, "qas": [question]}]
    (tmp_path / "a.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    prepare = Preparation(lowercase=lowercase)
    found = read_questions(str(tmp_path / "a.json"), prepare)
    assert found.questions == [prepare.text("Où")]
    texts = ["Élan", "São Paulo", "Genève"]
    assert [one.text for one in found.answers[0]] == list(map(prepare.text, texts))
    for one in found.answers[0]:
        assert found.contexts[0].startswith(one.text, one.start)
