"""A tokenizer file from anybody takes time and memory in proportion to its text, or is refused."""

import json
import subprocess
import sys
import time

import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from transformer_jax.data.tokenizer_files import opening, trial_process
from transformer_jax.data.tokenizer_files.limits import check_parts
from transformer_jax.data.tokenizer_files.patterns import examine
from transformer_jax.interop.vocabularies import find_tokenizer

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
KNOWN = [GPT2, LLAMA3, GPT4O, DEEPSEEK, BLOOM, "[0-9][0-9][0-9]", "[一-龥぀-ゟ゠-ヿ]+", r"[\s\S]",
         r"\A +| +\z", " {2,}", "▁+\\z", "^##", r"<(?=s>|unk>)|\[(?=MASK\])"]  # fmt: skip
# GPT-4's own form, which is harmless but has possessive repetitions of counts.
GPT4 = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
BACKTRACKING = [
    "(a+)+$",
    "a*a*a*a*$",
    "(a|aa)+$",
    "(x+x+)+y",
    r"^(\d|\d\d)+$",
    r"(\s*\s*)*,",
    r"(a|aa)+bc",
]


def file(**parts):
    vocab = {"a": 0, "[UNK]": 1, "</s>": 2}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model, **parts})


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def sequence(*steps, kind="normalizers"):
    return {"type": "Sequence", kind: [*steps]}


def added_token(content, id, **flags):
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": id, "content": content, **flags}


def template(single, ids):
    text = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    token = {"SpecialToken": {"id": "x", "type_id": 0}}
    tokens = {"x": {"id": "x", "ids": [0] * ids, "tokens": ["a"] * ids}}
    pieces = [{"A": text[0], "x": token}[name] for name in single]
    return {"type": "TemplateProcessing", "single": pieces, "pair": text, "special_tokens": tokens}


TOO_MUCH = {
    "replacements": ({"normalizer": sequence(*[replace("a", 900 * "a")] * 2)},
                     "normalizer: its replacements make a text more than 100 times as long"),
    "many replacements": ({"normalizer": sequence(*[replace("a", "aa")] * 30)}, "normalizer: its"),
    "expressions": ({"normalizer": {"type": "Replace", "pattern": {"Regex": "a*"},
                                    "content": 200 * "b"}}, "normalizer: its"),
    "decoder": ({"decoder": sequence(*[replace("a", "aa")] * 30, kind="decoders")}, "decoder: its"),
    "long": ({"normalizer": replace("a", 2000 * "a")}, r"normalizer\.content has 2,000 characters"),
    "prefix": ({"normalizer": {"type": "Prepend", "prepend": 10**6 * "x"}}, r"normalizer\.prepend"),
    "longer": ({"normalizer": {"type": "Prepend", "prepend": 10**7 * "x"}}, "longer than 8,0"),
    "steps": ({"normalizer": sequence(*[{"type": "NFC"}] * 100)}, "has more than 64 steps"),
    "nested": ({"normalizer": json.loads('{"type": "Sequence", "normalizers": [' * 80 + "]}" * 80)},
               "has more than 64 steps"),
    "texts": ({"post_processor": template("AA", 1)}, r"post_processor\.single repeats a text"),
    "tokens": ({"post_processor": template("Axxx", 500)}, "more than 1,000 tokens around"),
    "suffix": ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [],
                          "end_of_word_suffix": 10**4 * "x"}}, r"model\.end_of_word_suffix"),
    "words": ({"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a",
                         "continuing_subword_prefix": "##", "max_input_chars_per_word": 10**9}},
              r"model\.max_input_chars_per_word is 1000000000"),
    "added": ({"added_tokens": [added_token(10**4 * "x", 3)]}, r"added_tokens\.content has 10,000"),
    "all added": ({"added_tokens": [added_token(f"{i:900}", 3 + i) for i in range(6000)]},
                  "added_tokens have 5,400,000 characters"),
    "id": ({"model": {"type": "WordLevel", "vocab": {"</s>": 0, "a": 2**32 - 1}, "unk_token": "a"}},
           "last id is 4,294,967,295: 0 to 16,777,215 are allowed"),
    "pattern": ({"pre_tokenizer": split("(?:a|b)*" * 600)}, "4,800 characters"),
    "table": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "!"}}, "is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("how", TOO_MUCH)
def test_parts_out_of_proportion_are_refused_at_once_with_file_and_field(how, tmp_path):
    parts, what = TOO_MUCH[how]
    (tmp_path / "tokenizer.json").write_text(file(**parts))
    begun = time.process_time()
    for read in (lambda: load_tokenizer(tmp_path / "tokenizer.json"),
                 lambda: Tokenizer(find_tokenizer(tmp_path)[0])):  # fmt: skip
        with pytest.raises(DataError, match=what) as caught:
            read()
        assert "\n" not in str(caught.value)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "decoder"])
@pytest.mark.parametrize("pattern", BACKTRACKING)
@pytest.mark.quick("(a+)+$-pre_tokenizer", "(a+)+$-decoder", "(x+x+)+y-normalizer")
def test_an_expression_that_backtracks_is_refused_before_it_is_used(part, pattern, tmp_path, capfd):
    step = split(pattern)
    if part != "pre_tokenizer":
        step = {"type": "Replace", "pattern": {"Regex": pattern}, "content": ""}
    (tmp_path / "tokenizer.json").write_text(file(**{part: step}))
    with pytest.raises(DataError, match=r"tokenizer\.json: .* take too long for a short text"):
        load_tokenizer(tmp_path / "tokenizer.json")
    assert capfd.readouterr() == ("", "")


def test_expressions_of_published_tokenizers_need_no_other_process(monkeypatch):
    monkeypatch.setattr(opening, "subprocess", None)
    for pattern in KNOWN:
        assert not check_parts(file(pre_tokenizer=split(pattern))).try_first, pattern
    for kind in ("bpe", "wordpiece", "unigram", "words", "bytes", "characters"):
        text = train_tokenizer(kind, ["low lower, lowest"] * 3, 300).text
        assert not check_parts(text).try_first, kind


def test_an_unusual_but_harmless_expression_is_tried_once(monkeypatch):
    calls, run = [], subprocess.run
    monkeypatch.setattr(opening.subprocess, "run", lambda *a, **k: calls.append(1) or run(*a, **k))
    for _ in range(2):
        assert opening.open_backend(file(pre_tokenizer=split(GPT4))).encode("a").ids == [0]
        assert opening.open_backend(file(pre_tokenizer=split(GPT4), decoder=None)) is not None
    assert len(calls) == 1


@pytest.mark.parametrize(
    "pattern",
    [
        *BACKTRACKING,
        "(?:a{1,99}){1,99}",
        "a**",
        "(?<x>a)",
        "[a",
        r"(a)\1",
        r"\g<0>",
        "(?~a)",
        "a)",
        "(?x)a",
        "a*a*b",
        "a{,9}",
        "(" * 9 + "a" + ")" * 9,
        "a{2}{3}",
        "a{1000}a{1000}a{1000}b",
    ],
)
def test_other_expressions_are_not_taken_for_quick_ones(pattern):
    assert not examine(pattern).safe


def test_what_only_fails_on_a_text_is_one_line_too():
    # The trial does not know this text.
    tokenizer = Tokenizer(file(pre_tokenizer=split("(?:q7|q7q7)+$")))
    with pytest.raises(DataError, match=r"the tokenizer fails on a text: .*retry-limit"):
        tokenizer.encode("q7" * 40 + "x")


def test_a_process_that_cannot_start_is_named(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/none/python")
    with pytest.raises(ConfigError, match="cannot be started with /none/python: No such file"):
        opening.open_backend(file(pre_tokenizer=split("(?:ab?)*c")))


@pytest.mark.slow
def test_the_process_is_limited_by_the_system():
    parts = json.dumps({"pre_tokenizer": split(r"(([a-z])+.)+[A-Z]([a-z])+$")})
    begun = time.monotonic()
    with pytest.raises(DataError, match="take too long"):
        opening.try_parts.__wrapped__(parts)
    assert trial_process.SECONDS == 2
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("text", [
    '{"model": {}, "model": {}}', '{"model": {"vocab": {}, "vocab": {}}}', '{"model": {}} x',
    '{"normalizer": {"a": 1, "a": 2}, "model": {}}', '{"normalizer": []', '{"normalizer": [1]}',
    '{"model": 3}', '{"a": ' + "[" * 100_000, "[]", "", '{"model": {"vocab": {"a": {"b": 1}}}',
])  # fmt: skip
def test_what_the_library_could_read_in_two_ways_is_refused(text):
    with pytest.raises(DataError, match=r"repeated|not JSON|not an object|deeply nested"):
        check_parts(text)
