"""The field's words are used, each with its definition in the glossary, and no private ones."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
FOLDERS = ("transformer_jax", "experiments", "benchmarks", "examples", "tests", "docs")
# The old names of stored things, and the words of the built-in corpora, are data.
EXCEPTIONS = (
    "old_names.py", "test_old_names.py", "test_words.py", "CHANGELOG.md", "data/corpora/",
    "benchmarks/results/", "tests/stored/",
)  # fmt: skip

# Private words, as patterns that plain English does not match, and the glossary's terms for them.
PRIVATE = {
    r"hidden words?\b": "masked tokens",
    r"words behind": "masked-language modelling (MLM)",
    r"\bpairs told\b|\bpairs (of texts )?(is|are|was|were) told": "next-sentence prediction (NSP)",
    r"\.follows\(|def follows\(|[\"']follows[\"']": "next-sentence prediction (NSP)",
    r"[Ss]hared key heads|key heads (that )?are shared": "grouped-query attention (GQA)",
    r"[Kk]ernels? turned|the other way round\b.*(kernel|weight)": "transposed weights",
    r"\blinear_turned\b|\bturned_product\b|[\"']turned[\"']": "transposed weights",
    r"\bBLIND\b|\b[Bb]lind (quer|row)|\.seeing\b": "fully masked row",
    r"(?<![.\w])real\(": "padding mask",
    r"\bPIECE\b|pieces of attention": "query block",
    r"\bMaskedEncoder\b": "`EncoderForMaskedLM`",
    r"\bTextEncoder\b": "`SequenceClassifier`",
    r"\bTokenEncoder\b": "`TokenClassifier`",
    r"\bchosen\((places|hidden)": "`gather_positions`",
    r"\.joined\b|\.joint\(": "fused QKV",
    r"--rules\b|\brules published\b": "generation config",
    r"going on after": "resumed",
    r"(?<![-\w])rate [0-9]\.[0-9]": "learning rate (lr)",
    r"\bSentencePairs\b|\bBlockPlan\b|\bPackPlan\b": "packing",
    r"\bHoldOut\b|\bread\.holdout\b": "held-out data",
    r"\bmasking\.(share|masked)\b": "masked tokens",
    r"\bmasking\.pairs\b|\bPairing\b": "next-sentence prediction (NSP)",
    r"(?<!\w)whole_words\b|--masking\.whole-words\b": "whole-word masking",
    r"\blinear_rows\b|\bFitting\b|\bPublishedRun\b|\bopen_folder\b": "Hugging Face checkpoint",
    r"\bgathered\(": "`unshard_fsdp`",
}


def files():
    """All files of words."""
    found = [path for name in FOLDERS for path in (ROOT / name).rglob("*.*")]
    found += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for path in sorted(found):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in (".py", ".md") and not any(part in name for part in EXCEPTIONS):
            yield name, path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def texts():
    return dict(files())


@pytest.fixture(scope="module")
def terms():
    """The glossary: definition and place by term."""
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {term: (definition, place) for term, definition, place in rows if term != "Term"}


@pytest.mark.parametrize("pattern", PRIVATE)
def test_no_private_word(texts, pattern):
    offenders = [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found.group()}"
        for name, text in texts.items()
        for found in re.finditer(pattern, text)
    ]
    assert not offenders, "\n".join([f"say {PRIVATE[pattern]}:", *offenders])


def test_each_term_that_is_asked_for_is_defined(terms):
    assert set(PRIVATE.values()) <= terms.keys()


def test_each_term_has_one_sentence_and_a_place_that_exists(terms):
    assert len(terms) > 50
    for term, (definition, place) in terms.items():
        assert re.fullmatch(r"[A-Z0-9`].*[.]", definition), f"{term}: not a sentence"
        file, *names = re.findall(r"`([^`]+)`", place)
        code = (ROOT / "transformer_jax" / file).read_text(encoding="utf-8")
        for name in names:
            assert re.search(rf"\b{name}\b", code), f"{term}: {file} has no {name}"


def test_the_patterns_would_notice(texts):
    """Each pattern finds a private word, and none is a word of plain English alone."""
    old = (
        "hidden words, words behind [MASK], pairs told, model.follows(x), shared key heads, "
        "kernels turned, linear_turned, a blind query, = real(lengths), PIECE, MaskedEncoder, "
        "TextEncoder, TokenEncoder, chosen(places), open_folder, gathered(shardings), x.joined, "
        "--rules published, going on after step 9, rate 1.5e-05, SentencePairs, HoldOut, "
        "masking.share, masking.pairs, whole_words"
    )
    assert all(re.search(pattern, old) for pattern in PRIVATE)
    assert len(texts) > 300
