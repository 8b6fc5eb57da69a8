"""The field's words are used, each with its definition in the glossary, and no private ones.

Three tables name what is private:

- `PRIVATE` has phrases, as patterns that plain English does not match. No file may hold them.
- `NAMES` has identifiers that mean nothing else. No file may hold them.
- `ENGLISH` has words that are plain English ("read", "place", "share"). Prose may use them, and so
  may code that means the English word, such as the function that reads a file. They were private
  as the names of certain functions, classes, arguments and fields, so no definition in the folders
  of these may have such a name.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
FOLDERS = ("transformer_jax", "experiments", "benchmarks", "examples", "tests", "docs")
# The old names of stored things, and the words of the built-in corpora, are data.
EXCEPTIONS = (
    "old_names.py", "test_old_names.py", "test_words.py", "CHANGELOG.md", "data/corpora/",
    "benchmarks/results/", "tests/stored/", "docs/_build/", "docs/measured/",
)  # fmt: skip

# Words that no docstring begins with.
OPENINGS = ("As", "How", "Of", "Those", "What", "When", "Where", "Whether", "Which")

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
    r"\brotations\b(?! of pairs of channels)": "rotary embeddings (RoPE)",
    r"\bnorms? and gates\b|\bwith gates\b": "gated feed-forward",
    r"\b(kernels?|weights?|tables?|tensors?|maps?) (that )?(is |are |was |were )?turned\b": (
        "transposed weights"
    ),
    r"\b(sub)?word pieces?\b|\bpieces of (a |the )?(words?|tokenizers?|vocabular)": "subword",
    r"--training\.smoothing\b|\baverage[-_]decay\b": "label smoothing",
    r"\b[Pp]ublished_?[Rr]ules?\b|\brules it was published with": "generation config",
    r"(?<!test_)\bpublished_(tensors|run|config|settings|model)\b": "Hugging Face checkpoint",
    r"\b[Cc]ounted (models?|runs?|language)\b|\b[Mm]odels? that counts?\b": "n-gram model",
    r"\bscored steps?\b|\b(is|are|was|were) (looked at|judged)\b": "evaluation",
    r"\bgoing on (after|from|with)\b|\btraining goes on\b|\bgo on with (a|the) run\b": "resumed",
    r"\bwarm[-_]up\b": "warmup",
}

# Identifiers, by the glossary's term for them.
NAMES = {
    "attention": "dot_self_attention own_backward narrow_on_cpu any_platform keys_product",
    "attention mask": "keep_mask rows_product",
    "fully masked row": "BLIND",
    "query block": "PIECE",
    "transposed weights": "linear_turned turned_product",
    "`prepare_for_decoding`": "laid_out settle",
    "KV cache": "at_length",
    "`on_hidden`": "each_block",
    "rotary embeddings (RoPE)": "rotary_scaling rotary_interpolation rotary_yarn rotary_dynamic",
    "relative position bucket": "relative_buckets",
    "sliding window": "window_every",
    "generation config": "PublishedRules PublishedProcessor from_published favour",
    "Hugging Face checkpoint": "is_published open_folder PublishedRun Fitting stand_ins",
    "masked-language modelling (MLM)": "masked_words masked_loss masked_accuracy hidden_words",
    "`EncoderForMaskedLM`": "MaskedEncoder",
    "`SequenceClassifier`": "TextEncoder text_classes text_numbers",
    "`TokenClassifier`": "TokenEncoder token_tags answer_spans",
    "next-sentence prediction (NSP)": "pair_accuracy pair_loss SentencePairs",
    "packing": "BlockPlan PackPlan",
    "held-out data": "HoldOut",
    "truncated": "over_long",
    "bucket": "rows_multiple row_multiple",
    "non-finite loss": "max_skipped",
    "moving average (EMA)": "average_decay",
    "warmup": "warm_up_steps check_warm_up",
    "evaluation": "scored_step Worth judge introduce",
    "n-gram model": "counted_model counted_run",
    "beam search": "stop_early free_end length_extra best_attainable",
    "prompt lookup": "look_up",
    "learning rate (lr)": "RateState",
}

# Words: folders of the package (all, tests and examples too, where none is named), and the term.
ENGLISH = {
    "HIDDEN": ("functional", "`MASK_VALUE`"),
    "turn": ("models functional decoding", "transposed weights"),
    "turned": ("", "transposed weights"),
    "join": ("models functional", "fused QKV"),
    "joint": ("", "fused QKV"),
    "joined": ("", "fused QKV"),
    "observe": ("", "attention weights"),
    "keep": ("models", "KV cache"),
    "each": ("", "`on_hidden`"),
    "told": ("", "`on_hidden`"),
    "read": ("models/layers", "`project_memory`"),
    "ask": ("models decoding", "cross-attention"),
    "place": ("models/layers", "`apply_rope`"),
    "enter": ("models decoding", "`embed_inputs`"),
    "start": ("models", "`init_cache`"),
    "advance": ("", "`step`"),
    "seeing": ("", "fully masked row"),
    "real": ("functional models", "padding mask"),
    "chosen": ("models", "`gather_positions`"),
    "smoothing": ("functional training recipes/tasks", "label smoothing"),
    "share": ("functional training", "`inv_weight`"),
    "rate": ("training recipes runs", "learning rate (lr)"),
    "Best": ("", "metric"),
    "Told": ("", "metric"),
    "judged": ("", "evaluation"),
    "added": ("", "metric"),
    "counted": ("", "n-gram model"),
    "gathered": ("", "`unshard_fsdp`"),
    "looked": ("", "evaluation"),
    "follows": ("", "next-sentence prediction (NSP)"),
    "rotations": ("", "rotary embeddings (RoPE)"),
    "gates": ("models", "gated feed-forward"),
    "pieces": ("data models runs training", "subword"),
}


# The standard words that stand for them, each of which the glossary has to define.
STANDARD = (
    "masked tokens", "token", "subword", "masked-language modelling (MLM)",
    "next-sentence prediction (NSP)", "nsp_logits", "grouped-query attention (GQA)",
    "rotary embeddings (RoPE)", "gated feed-forward", "transposed weights", "prepare_for_decoding",
    "fused QKV", "on_weights", "on_hidden", "project_memory", "cross-attention", "KV cache",
    "apply_rope", "embed_inputs", "init_cache", "step", "fully masked row", "MASK_VALUE",
    "any_visible", "padding mask", "query block", "EncoderForMaskedLM", "SequenceClassifier",
    "TokenClassifier", "gather_positions", "label smoothing", "ema_params", "inv_weight",
    "generation config", "metric", "eval_objective", "metric sums", "evaluation", "n-gram model",
    "unshard_fsdp", "resumed", "learning rate (lr)",
)  # fmt: skip


def files():
    """All files of words."""
    found = [path for name in FOLDERS for path in (ROOT / name).rglob("*.*")]
    found += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for path in sorted(found):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in (".py", ".md") and not any(part in name for part in EXCEPTIONS):
            yield name, path.read_text(encoding="utf-8")


def definitions(tree):
    """The functions, classes, arguments and fields that a file defines, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name.strip("_"), node.lineno
            case ast.arg():
                yield node.arg.strip("_"), node.lineno
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield name.strip("_"), node.lineno


def offenders(texts, pattern):
    found = re.compile(pattern, re.MULTILINE)
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts.items()
        if found.search(text)  # few files have any: lines of the others are not looked at
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line)
    ]


@pytest.fixture(scope="module")
def texts():
    return dict(files())


@pytest.fixture(scope="module")
def words(texts):
    """The words and identifiers of each file."""
    return {name: set(re.findall(r"\w+", text)) for name, text in texts.items()}


@pytest.fixture(scope="module")
def parsed(texts):
    """Definitions of each name, and openings of docstrings, of all code in one pass."""
    defined, opened = {}, []
    for name, text in texts.items():
        if name.endswith(".py"):
            tree = ast.parse(text)
            for word, line in definitions(tree):
                defined.setdefault(word, []).append((name, line))
            opened += [f"{name}:{line}: {first}" for line, first in openings(tree)]
    return defined, opened


@pytest.fixture(scope="module")
def terms():
    """The glossary: definition and place by term."""
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {term: (definition, place) for term, definition, place in rows if term != "Term"}


@pytest.mark.parametrize("pattern", PRIVATE)
def test_no_private_phrase(texts, pattern):
    found = offenders(texts, pattern)
    assert not found, "\n".join([f"write {PRIVATE[pattern]}:", *found])


@pytest.mark.parametrize("term", NAMES)
def test_no_private_identifier(texts, words, term):
    names = NAMES[term].split()
    having = {name: texts[name] for name in texts if not words[name].isdisjoint(names)}
    found = offenders(having, rf"\b({'|'.join(names)})\b")
    assert not found, "\n".join([f"write {term}:", *found])


@pytest.mark.parametrize("word", ENGLISH)
def test_no_definition_has_a_private_name(parsed, word):
    defined, _ = parsed
    folders, term = ENGLISH[word]
    inside = tuple(f"transformer_jax/{folder}/" for folder in folders.split()) or ("",)
    found = [f"{file}:{line}" for file, line in defined.get(word, []) if file.startswith(inside)]
    assert not found, "\n".join([f"{word}: write {term}:", *found])


def test_each_term_that_is_asked_for_is_defined(terms):
    wanted = {*PRIVATE.values(), *NAMES, *(term for _, term in ENGLISH.values())}
    assert wanted <= terms.keys(), wanted - terms.keys()
    names = {name for term, (_, place) in terms.items() for name in re.findall("`(.*?)`", place)}
    assert set(STANDARD) <= {term.strip("`") for term in terms} | names


def test_each_term_has_one_sentence_and_a_place_that_exists(terms):
    assert len(terms) > 50
    for term, (definition, place) in terms.items():
        assert re.fullmatch(r"[A-Z0-9`].*[.]", definition), f"{term}: not a sentence"
        file, *names = re.findall(r"`([^`]+)`", place)
        code = (ROOT / "transformer_jax" / file).read_text(encoding="utf-8")
        for name in names:
            assert re.search(rf"\b{name}\b", code), f"{term}: {file} has no {name}"


def openings(tree):
    """The lines of definitions whose docstrings begin with a conjunction, and the first words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = (ast.get_docstring(node) or "-").split()[0].strip("`:.,")
            if first in OPENINGS:
                yield getattr(node, "lineno", 1), first


def test_docstrings_begin_with_a_verb_or_a_noun(parsed):
    _, found = parsed
    assert not found, "\n".join(["begin with a verb (Returns) or a noun (A sampler):", *found])
    code = '"""Of all."""\ndef f():\n    "How so."'
    assert [first for _, first in openings(ast.parse(code))] == ["Of", "How"]


def test_the_tables_would_notice(texts):
    """Each pattern finds a private phrase, and definitions of every kind are found."""
    old = (
        "hidden words, words behind [MASK], pairs told, model.follows(x), shared key heads, "
        "kernels turned, linear_turned, a blind query, = real(lengths), PIECE, MaskedEncoder, "
        "TextEncoder, TokenEncoder, chosen(places), open_folder, gathered(shardings), x.joined, "
        "--rules published, going on after step 9, rate 1.5e-05, SentencePairs, HoldOut, "
        "masking.share, masking.pairs, whole_words, norms and gates, rotations, word pieces, "
        "average_decay, published_rules, published_tensors, a counted model, a scored step, "
        "warm-up"
    )
    unnoticed = [pattern for pattern in PRIVATE if not re.search(pattern, old)]
    assert not unnoticed
    code = "class A:\n    b: int\n    def _c(self, d, *, e):\n        self.f = lambda g: g.h\n"
    assert {name for name, _ in definitions(ast.parse(code))} == {
        "A",
        "b",
        "c",
        "self",
        "d",
        "e",
        "f",
        "g",
    }
    assert len(texts) > 300
