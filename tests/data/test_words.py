"""Words and sentence ends of every script (Unicode Standard Annex 29)."""

import itertools
import re
import time

import pytest

from transformer_jax.data.sentences import sentences
from transformer_jax.data.words import blank_words, find_word, letter_words, word_spans

# A sentence of words between blanks, in scripts with marks, and without punctuation.
TEXTS = {
    "Hindi": "यह किताब बहुत अच्छी है",
    "Bengali": "আমি বাংলায় গান গাই",
    "Tamil": "நான் ஒரு புத்தகம் படிக்கிறேன்",
    "Sinhala": "මම පොතක් කියවමි",
    "Urdu": "یہ کِتاب بہت اچھی ہے",
    "Persian": "می\u200cخواهم به خانه بروم",
    "Arabic": "هٰذَا كِتَابٌ جَدِيدٌ",
    "Hebrew": "זֶה סֵפֶר טוֹב",
    "Thai": "ผม ไม่ รู้ เรื่อง นี้",
    "Khmer": "ខ្ញុំ ចូលចិត្ត សៀវភៅ",
    "decomposed": "Un e\u0301te\u0301 tre\u0300s ensoleille\u0301",
}
# Two sentences with the marks of their script, with and without a blank between them.
ENDS = {
    "Hindi": ("वह घर गया।", "मैं भी गया।"),
    "Sanskrit": ("धर्मक्षेत्रे कुरुक्षेत्रे॥", "मामकाः॥"),
    "Urdu": ("وہ گھر گیا۔", "میں بھی گیا۔"),
    "Arabic": ("هل ذهبت؟", "نعم ذهبت."),
    "Armenian": ("Նա գնաց տուն։", "Ես նույնպես։"),
    "Amharic": ("ወደ ቤት ሄደ።", "እኔም ሄድኩ።"),
    "Burmese": ("သူအိမ်ပြန်သွားသည်။", "ငါလည်းသွားသည်။"),
    "Khmer": ("គាត់ទៅផ្ទះ។", "ខ្ញុំក៏ទៅដែរ។"),
    "Chinese": ("他回家了。", "我也回家了！"),
    "Japanese": ("「帰った。」", "私も帰った｡"),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_combining_marks_stay_with_their_letters(text):
    words = text.split(" ")
    assert letter_words(text) == blank_words(text) == words
    assert letter_words(f"{', '.join(words)}!") == words
    assert [text[start:stop] for start, stop in word_spans(text)] == words
    assert all(find_word(text, word) for word in words)
    # No part of a word before a mark is a word.
    cut = next(m.end() for m in re.finditer(r"\w+(?=[^\w\s])", text))
    start = text.rfind(" ", 0, cut) + 1
    assert not find_word(text, text[start:cut])


def test_words_without_marks_are_runs_of_letters_as_ever():
    text = "A dog's ball—cost 3.50 €; snake_case, L’été, 猫在GPU上, Ünï, naïve² don''t"
    assert letter_words(text) == re.findall(r"\w+(?:['’]\w+)*", text)
    found = [text[start:stop] for start, stop in word_spans(text)]
    assert found == re.findall(r"\w+|[^\w\s]", text)
    assert blank_words(f" {text}\u3000\u2003a\n") == [*text.split(), "a"]


def test_a_blank_that_forbids_a_line_break_joins_a_word():
    assert blank_words("10\u00a0000 \u202f a\u2007b") == ["10\u00a0000", "a\u2007b"]


@pytest.mark.parametrize("texts", ENDS.values(), ids=list(ENDS))
def test_sentences_end_at_the_marks_of_their_script(texts):
    assert sentences("".join(texts)) == [*texts]
    assert sentences(" ".join(texts), blanks=True) == [texts[0], f" {texts[1]}"]


def test_sentences_of_europe_and_china_end_where_they_did():
    before = re.compile(r"[.!?…]+[\"'”’)\]]*\s+|[。！？]+[」』”’）]*|\n+")
    text = (
        'He said: "No." It is 3.5 mm (e.g. this).\nEnd? Yes!! … And “so.” Z.B. «Oui.» Non.\n\n'
        "他说：“不。”我走了！真的？是的（好。）今天\nfin"
    )
    ends = [0, *(match.end() for match in before.finditer(text)), len(text)]
    parts = [text[a:b].strip() for a, b in itertools.pairwise(ends)]
    assert sentences(text) == [part for part in parts if any(map(str.isalnum, part))]


@pytest.mark.parametrize(
    "text",
    ["." * 20_000, "?!" * 10_000 + "x", "…" * 20_000 + "''"],
    ids=["dots", "marks", "ellipses"],
)
def test_long_runs_of_stops_take_time_in_proportion(text):
    begun = time.process_time()
    assert sentences(f"It rains. {text}") == ["It rains.", *([text] if "x" in text else [])]
    assert time.process_time() - begun < 1
