"""The page that runs a model: equal to JAX and to ``tokenizers``, self-contained, and safe.

The code of the page runs in node; without node, these tests are skipped.
"""

import base64
import dataclasses
import hashlib
import inspect
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from flax import nnx

import transformer_jax as tj
from tests.doors import uses
from tests.drawing import drawn
from tests.tokenizer_kinds import KINDS, TRAINED, tokenizer_of
from tests.visual.browser import needs_browser, opened
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.tokenizer import BERT_SPECIAL, Tokenizer, train_tokenizer
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.inference.exploring import ExplorePage, explored
from transformer_jax.models.heads import EncoderForMaskedLM, SequenceClassifier, TokenClassifier
from transformer_jax.models.prepare import with_separate_blocks
from transformer_jax.models.transformer.models import Decoder, Encoder, TransformerEncoderDecoder
from transformer_jax.visual.model_page import (
    ExploredModel,
    explore_html,
    pack_parameters,
    packed_tokenizer,
    page_config,
)

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="the code of the page needs node to run")
HOSTILE = "</script><img src=x onerror=alert(1)>"


def in_node(packed, cases=(), **more):
    given = json.dumps({"packed": packed, "cases": cases, **more})
    script = Path(__file__).with_name("run_page.js")
    done = subprocess.run(
        [NODE, str(script)], input=given, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


# --- the file -------------------------------------------------------------------------------------


def small_page(weights="float16", **changes):
    config = tj.TransformerConfig(
        4, 2, 1, 0, attention=tj.AttentionConfig(1), feed_forward=tj.FeedForwardConfig(2)
    )
    model = ExploredModel(
        kind="classifier",
        title=HOSTILE,
        config=config,
        params={"labels/kernel": np.ones((2, 2), np.float32)},
        tokenizer={"model": {"type": "WordLevel", "vocab": {HOSTILE: 0}}},
        ids={},
        text={},
        search={},
        labels=(HOSTILE, "__ENGINE__"),
        example=HOSTILE,
    )
    return inspect.unwrap(explore_html)(dataclasses.replace(model, **changes), weights)


def test_hostile_text_and_vocabulary_end_no_element():
    page = small_page()
    assert "<img" not in page
    assert page.count("</script>") == page.count("<script") == 4
    [data] = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    found = json.loads(data)
    assert (found["labels"], found["example"]) == ([HOSTILE, "__ENGINE__"], HOSTILE)
    assert not re.search("innerHTML|outerHTML|insertAdjacentHTML|document.write", page)


def test_the_browser_may_run_this_script_alone_and_request_nothing():
    page = small_page(title="t", labels=(), example="", tokenizer={})
    scripts = re.findall(r'<script(?: id="engine")?>(.*?)</script>', page, re.S)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()) for one in scripts]
    hashes = " ".join(f"'sha256-{one.decode()}'" for one in digests)
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith(f"default-src 'none'; script-src {hashes}; worker-src blob:; ")
    links = set(re.findall(r"https?://[^\"' )]+", page))
    assert links == {"http://www.w3.org/2000/svg"}  # the name of a kind of element
    assert not re.search(
        r"\b(src|href)=|fetch\(|XMLHttpRequest|import\(|@import|url\(",
        page,
    )


def test_types_of_weights_are_listed_and_a_page_in_a_session_is_one_line():
    with pytest.raises(ConfigError, match="weights is 'int4': allowed are float16, int8"):
        small_page("int4")
    assert repr(ExplorePage("x" * 1000)) == "ExplorePage()"


def test_matrices_are_rounded_and_vectors_are_not():
    draw = np.random.default_rng(0)
    table, gain = (
        draw.normal(size=(5, 3)).astype(np.float32),
        draw.normal(size=3).astype(np.float32),
    )
    large = np.full((1, 1), 1e6, np.float32)
    params = {"embedding/table": table, "encoder/final_norm/gain": gain, "head/table": large}
    arrays, blob = pack_parameters(params)
    kinds = [kind for _, _, kind in arrays.values()]
    assert kinds == ["f16", "f32", "f32"]  # 1e6 is no float16
    np.testing.assert_array_equal(np.frombuffer(blob, "<f2", 15), table.astype(np.float16).ravel())
    at = arrays["encoder/final_norm/gain"][0]
    np.testing.assert_array_equal(np.frombuffer(blob, "<f4", 3, at), gain)
    arrays, blob = pack_parameters(params, "int8")
    scales = np.frombuffer(blob, "<f4", 5)[:, None]
    rows = np.frombuffer(blob, np.int8, 15, 20).reshape(5, 3) * scales
    assert np.abs(rows - table).max() <= 0.5 * scales.max() * 1.001


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"params": {"labels/kernel/a": np.zeros(1)}}, "parameter labels/kernel/a: .* merge"),
        ({"params": {"labels/bias": np.array([np.nan])}}, "labels/bias is not finite"),
        (
            {"params": {"labels/bias": np.broadcast_to(np.float32(0), 60_000_001)}},
            "at most 60,000,000",
        ),
    ],
)
def test_what_no_page_computes_is_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        small_page(**change)
    with pytest.raises(ConfigError, match=r"positions.kind is alibi: the page computes none"):
        page_config(
            tj.TransformerConfig(9, positions=tj.PositionConfig("alibi")), "encoder-decoder"
        )


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"pre_tokenizer": {"type": "UnicodeScripts"}}, "pre_tokenizer UnicodeScripts"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Nmt"}]}}, "normalizer Nmt"),
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"\p{L}++"}}},
            "with the pattern",
        ),
        ({"added_tokens": [{"id": 1, "content": "<x>", "special": False}]}, "'<x>', which is not"),
    ],
)
def test_parts_of_tokenizers_are_refused_by_name(part, said):
    file = {"model": {"type": "WordLevel", "vocab": {}, "unk_token": "a"}} | part
    with pytest.raises(ConfigError, match=said):
        packed_tokenizer(json.dumps(file))


# --- the tokenizer, against `tokenizers` ----------------------------------------------------------

TEXTS = [
    "Hi hello user, there is no chat between us so...",
    "naïve 日本 😀, the end.",
    "  two  blanks\tand\nlines \n\n",
    "DON'T don't we'll CAFÉ cafe\u0301 ﬁ ½ ① ｆｕｌｌ Ⅷ",
    "हिन्दी ภาษาไทย עברית العربية İstanbul ΣΑΣ ß",
    "a1b22c333 __init__ <pad> </s> [MASK] x\u00a0y\u3000z\u200b\u0085!",
    "👩‍👩‍👧 🇧🇷 e\u0301\u0301 \u0000 \ufffd \x07",
    "",
]


def backends():
    yield from ((f"kind {kind}", tokenizer_of(kind)) for kind in KINDS)
    for kind in TRAINED:
        yield f"trained {kind}", train_tokenizer(kind, [*TEXTS, *TEXTS], 400)
    yield "encoder", train_tokenizer("wordpiece", TEXTS * 2, 300, special=BERT_SPECIAL)
    for name, normalizer, pre in VARIANTS:
        backend = tokenizers.Tokenizer.from_str(
            train_tokenizer("wordpiece", TEXTS * 2, 300, special=BERT_SPECIAL).text
        )
        backend.normalizer, backend.pre_tokenizer = normalizer, pre
        yield name, Tokenizer(backend.to_str())


N, P = tokenizers.normalizers, tokenizers.pre_tokenizers
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
VARIANTS = [
    ("bert", N.BertNormalizer(), P.BertPreTokenizer()),
    ("cased", N.BertNormalizer(lowercase=False, strip_accents=False), P.Whitespace()),
    ("nfkc", N.Sequence([N.NFKC(), N.Lowercase(), N.NFD(), N.StripAccents()]), P.WhitespaceSplit()),
    ("stripped", N.Strip(), P.Sequence([P.Whitespace(), P.Digits(True)])),
    ("digits", N.NFKD(), P.Sequence([P.WhitespaceSplit(), P.Digits(), P.Punctuation()])),
    *(
        (behavior, None, P.Split(tokenizers.Regex(r"[,.\s]"), behavior))
        for behavior in (
            "removed",
            "isolated",
            "merged_with_previous",
            "merged_with_next",
            "contiguous",
        )
    ),
    ("llama3", None, P.Split(tokenizers.Regex(LLAMA3), "isolated")),
]


@needs_node
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_tokenizers_are_those_of_the_library():
    refused = []
    for name, tokenizer in backends():
        try:
            file = packed_tokenizer(tokenizer.text)
        except ConfigError as error:
            refused.append((name, str(error)))
            continue
        special = tokenizer.special_ids | {one["id"] for one in file["added_tokens"]}
        ids = {"unk": tokenizer.unk, "special": sorted(special), "mask": None}
        ids["never_text"] = sorted(tokenizer.never_text)
        packed = {"tokenizer": file, "ids": ids, "text": {}}
        found = in_node(packed, [{"text": text, "plain": True} for text in TEXTS])
        for text, one, encoded in zip(TEXTS, found, tokenizer.encode_batch(TEXTS), strict=True):
            assert one["ids"] == encoded, (name, text)
            assert one["decoded"] == tokenizer.decode(encoded), (name, text)
    assert not refused


# --- the model, against JAX -----------------------------------------------------------------------


def drawn_case(seed):
    """A random model of each family: its kind, module, configuration and head's names."""
    draw = np.random.default_rng(seed)
    pick = lambda *options: options[draw.integers(len(options))]
    kind = ("encoder-decoder", "decoder", "masked", "classifier", "tagger")[seed % 5]
    reads, writes = kind != "decoder", kind in ("encoder-decoder", "decoder")
    heads, D = pick(2, 4), pick(16, 24)
    width = None if writes else pick(None, None, 12)
    positions = pick(
        "sinusoidal", "learned", "rope", "none", "sinusoidal_halves", "sinusoidal_fairseq"
    )
    config = tj.TransformerConfig(
        vocab_size=40,
        d_model=D,
        encoder_layers=2 if reads else 0,
        decoder_layers=2 if writes else 0,
        decoder_attention_heads=pick(None, 2) if kind == "encoder-decoder" else None,
        embedding=tj.EmbeddingConfig(
            scale=pick(None, 1.0),
            layernorm_embedding=pick(True, False),
            type_vocab_size=0 if writes else pick(0, 2),
            share_encoder_decoder_embeddings=pick(True, False),
            embedding_size=width,
        ),
        positions=tj.PositionConfig(
            positions, max_length=32, offset=pick(0, 2), rope_attention_factor=pick(1.0, 1.3)
        ),
        attention=tj.AttentionConfig(
            heads,
            num_kv_heads=pick(None, 1, 2),
            head_dim=pick(None, 6) if positions != "rope" else None,
            value_dim=pick(None, 5),
            bias=pick(True, False),
            out_bias=pick(True, False),
            qk_norm=pick(False, False, True),
        ),
        scores=tj.ScoreConfig(
            scale=pick(None, 0.3),
            attn_logit_softcapping=pick(None, 2.0),
            sliding_window=pick(None, 3),
            sliding_window_every=pick(1, 2),
        ),
        feed_forward=tj.FeedForwardConfig(
            pick(16, 20),
            activation=pick("relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh"),
            gated=pick(True, False),
            bias=pick(True, False),
        ),
        norm=tj.NormConfig(
            pick("layer", "rms"),
            placement=pick("post", "pre", "sandwich"),
            gain_offset=pick(0.0, 1.0),
            bias=pick(True, False),
            final=pick(None, True, False),
        ),
        head=tj.HeadConfig(
            tie_word_embeddings=kind in ("classifier", "tagger") or pick(True, False),
            bias=writes and pick(True, False),
            scale=pick(1.0, 0.5),
            final_logit_softcapping=pick(None, 5.0),
            mlm_transform=kind == "masked" and (width is not None or pick(True, False)),
            mlm_transform_activation=pick(None, "gelu"),
            pooler=kind == "classifier" and pick(True, False),
        ),
        compute=tj.ComputeConfig(scan_layers=pick(True, False)),
    )
    make = {
        "encoder-decoder": lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)),
        "decoder": lambda: Decoder(config, rngs=nnx.Rngs(0)),
        "masked": lambda: EncoderForMaskedLM(config, next_sentence=False, rngs=nnx.Rngs(0)),
        "classifier": lambda: SequenceClassifier(config, labels=3, rngs=nnx.Rngs(0)),
        "tagger": lambda: TokenClassifier(config, labels=3, rngs=nnx.Rngs(0)),
    }[kind]
    graph, params = drawn(make)
    half = jax.tree.map(lambda x: x.astype(np.float16).astype(np.float32), params)
    return kind, config, with_separate_blocks(nnx.merge(graph, half))


def packed(kind, config, model, weights="float16", **more):
    """The model as the page has it; the model gets the page's parameters."""
    params = nnx.to_pure_dict(nnx.state(model))
    rounded, page = as_on_the_page(params, weights)
    nnx.update(model, rounded)
    ids = {"begin": [1], "ends": [2], "never": [0, 1]}
    return page | {"kind": kind, "config": page_config(config, kind), "ids": ids} | more


def as_on_the_page(params, weights):
    """The parameters that a page computes with, and how it has them."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(params)
    names = ["/".join(str(part.key) for part in path) for path, _ in leaves]
    given = {name: np.asarray(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}
    arrays, blob = pack_parameters(given, weights)
    page = {"arrays": arrays, "weights": base64.b64encode(blob).decode()}
    given |= {name: read(blob, *where) for name, where in arrays.items()}
    return tree.unflatten(map(jnp.asarray, given.values())), page


def read(blob, at, shape, kind):
    size, rows = int(np.prod(shape)), shape[0]
    if kind != "i8":
        found = np.frombuffer(blob, {"f16": "<f2", "f32": "<f4"}[kind], size, at)
    else:
        scales = np.frombuffer(blob, "<f4", rows, at)
        found = np.frombuffer(blob, np.int8, size, at + 4 * rows).reshape(shape) * scales[:, None]
    return found.reshape(shape).astype(np.float32)


def run_of(kind, one):
    ids, lengths = jnp.asarray([one["ids"]]), jnp.array([len(one["ids"])])
    if one.get("hidden"):
        lengths = jnp.asarray([[s not in one["hidden"] for s in range(len(one["ids"]))]])
    if kind == "encoder-decoder":
        return lambda model: model(ids, jnp.asarray([one["target"]]), lengths)
    if kind == "decoder":
        return lambda model: model(jnp.asarray([one["target"]]))
    types = None if one.get("types") is None else jnp.asarray([one["types"]])
    if kind == "masked":
        return lambda model: model.mlm_logits(Encoder.__call__(model, ids, lengths, types))
    return lambda model: model(ids, lengths, types)


@needs_node
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_every_activation_is_that_of_jax(seed):
    kind, config, model = drawn_case(seed)
    draw = np.random.default_rng(seed)
    ids = draw.integers(3, 40, 7).tolist()
    side = "encoder" if kind != "decoder" else "decoder"
    off = f"{side}/blocks/1/self_attention/heads/1"
    one = {"ids": ids, "target": [1, *draw.integers(3, 40, 5).tolist()]}
    if kind not in ("encoder-decoder", "decoder"):
        del one["target"]
        one["types"] = [0, 0, 0, 1, 1, 1, 1] if config.embedding.type_vocab_size else None
    hidden = {"hidden": [2, 4]} if kind != "decoder" else {}
    cases = [one, one | {"heads": [off]}, one | hidden]
    weights = ("float16", "int8")[seed % 2]
    found = in_node(packed(kind, config, model, weights), cases)
    for case, out in zip(cases, found, strict=True):
        replace = dict.fromkeys(case.get("heads", ()), 0.0)
        expected = tj.capture(model, run_of(kind, case), "*", replace)
        assert set(out["seen"]) == set(expected)
        for name, value in expected.items():
            shape, x = out["seen"][name]
            assert tuple(shape) == value.shape, name
            # Scores of hidden keys do not matter.
            np.testing.assert_allclose(
                np.reshape(x, shape), value, atol=1e-4, rtol=1e-4, err_msg=name
            )


@needs_node
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 5, 6, 10, 11])
def test_steps_with_a_cache_are_teacher_forcing(seed):
    kind, config, model = drawn_case(seed)
    target = [1, 5, 9, 14, 3]
    one = {"ids": [4, 5, 6], "target": target, "steps": target}
    [out] = in_node(packed(kind, config, model), [one])
    shape, x = out["seen"]["logits"]
    np.testing.assert_allclose(np.reshape(x, shape), out["steps"], atol=1e-5, rtol=1e-5)


@needs_node
@pytest.mark.slow
def test_a_newer_question_ends_the_one_before(tmp_path):
    kind, config, model = drawn_case(3)
    page, ids = packed(kind, config, model, search={}), [[3, 4], [5, 6, 7], [8, 9]]
    questions = [{"id": i, "work": "text", "ids": one} for i, one in enumerate(ids)]
    [last] = in_node(page, questions=questions)
    assert last[0] == 2
    assert [last] == in_node(page, questions=questions[2:])


# --- opened models --------------------------------------------------------------------------------


def rounded(folder, weights="float16"):
    """An opened model with the parameters of its page, and the page's parts."""
    opened = tj.load(folder).opened
    params, arrays = as_on_the_page(opened.model[1], weights)
    opened = dataclasses.replace(opened, model=(opened.model[0], params))
    model = explored(opened)
    page = {name: getattr(model, name) for name in ("kind", "tokenizer", "ids", "text", "search")}
    return opened, page | {"config": page_config(model.config, model.kind)} | arrays


LINES = ["un café à la carte", "déjà vu", "abc </s> xyz", " la  la "]


@needs_node
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.7])
def test_searches_are_those_of_translate(tmp_path, alpha):
    opened, page = rounded(uses.Use("bart", str).write(tmp_path / "model"))
    translator, search = opened.translator(), TRANSLATION.changed(max_len_a=0.3, max_len_b=3)
    search = search.changed(length_penalty=alpha)
    page["search"] |= {"length_penalty": alpha}
    sources, _ = translator.encode([translator.prepared(line) for line in LINES])
    limits = [search.target_tokens(len(source), translator.most) for source in sources]
    cases = [
        {"text": line, "limit": limit, "beams": 3, "see": False}
        for line, limit in zip(LINES, limits, strict=True)
    ]
    found = in_node(page, cases)
    greedy = translator.translate(LINES, search.changed(num_beams=1))
    beams = translator.translate(LINES, search.changed(num_beams=3, num_return_sequences=3))
    for out, source, one, several in zip(found, sources, greedy, beams, strict=True):
        assert out["ids"] == list(source)
        assert out["greedy"] == list(one.tokens)
        assert [tokens for tokens, _ in out["beams"]] == [
            list(h.tokens) for h in several.hypotheses
        ]
        scores = [h.score for h in several.hypotheses]
        np.testing.assert_allclose([score for _, score in out["beams"]], scores, atol=1e-4)


@needs_node
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("weights", ["float16", "int8"])
@pytest.mark.parametrize("layout", ["gpt2", "llama"])
def test_greedy_texts_are_those_of_generate(tmp_path, layout, weights):
    opened, page = rounded(uses.Use(layout, str).write(tmp_path / "model"), weights)
    requests = [GenerationRequest(line, max_new_tokens=6, temperature=0) for line in LINES]
    expected = [list(one.tokens) for [one] in opened.language().generate(requests)]
    cases = [{"text": line, "limit": 6, "beams": 1, "see": False} for line in LINES]
    assert [out["greedy"] for out in in_node(page, cases)] == expected


@needs_node
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["gpt2", "bert", "bert_cls", "bert_tag", "llama", "bart"])
def test_capture_and_page_read_the_same(tmp_path, layout):
    _, page = rounded(uses.Use(layout, str).write(tmp_path / "model"))
    text = "un café [MASK] carte" if layout == "bert" else LINES[0]
    predictor = tj.load(tmp_path / "model")
    more = {"target": [1]} if layout in ("gpt2", "llama") else {}
    [out] = in_node(page, [{"text": text} | more])
    given = ("la carte",) if layout == "bart" else ()
    found = predictor.capture(text, *given, at="*/k")
    names = [name for name in found if not name.startswith("decoder")]
    assert len(out["names"]) == len(found.tokens)
    for name in names:
        shape, x = out["seen"][name]
        np.testing.assert_allclose(np.reshape(x, shape), found[name], atol=2e-2)


# --- in a browser ---------------------------------------------------------------------------------


READY = "document.body.dataset.ready === 'yes' && document.body.dataset.busy === 'no'"


def shown(page, name):
    return page.run(f"document.getElementById('{name}').innerText")


def hostile(layout, folder):
    """Writes a model whose labels, and every other word, are markup."""
    uses.Use(layout, str).write(folder)
    config, file = (json.loads((folder / f"{name}.json").read_text()) for name in PARTS)
    config |= {"id2label": {i: f"{HOSTILE}{i}" for i in config.get("id2label", ())}}
    words, kept = file["model"]["vocab"].items(), {one["content"] for one in file["added_tokens"]}
    file["model"]["vocab"] = {
        f"{HOSTILE}{w}" if i % 2 and w not in kept else w: i for w, i in words
    }
    for name, part in zip(PARTS, (config, file), strict=True):
        (folder / f"{name}.json").write_text(json.dumps(part))
    return folder


PARTS = ("config", "tokenizer")


@pytest.mark.slow
@needs_browser
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["bart", "gpt2", "bert", "bert_cls"])
def test_a_browser_runs_the_page_and_only_shows_hostile_text(layout, tmp_path):
    path, text = tmp_path / "page.html", "<img src=x> la"
    tj.load(hostile(layout, tmp_path / "model")).explore(text).html(path)
    with opened() as page:
        for view in ("head", "steps", "search", "change"):
            for width in (1280, 390):
                page.open(path, width, view=view)
                page.wait(READY)
                assert page.run("document.documentElement.scrollWidth") <= width, view
            assert page.run("document.images.length") == 0
            assert shown(page, "where") == ""
            assert view != "steps" or HOSTILE[-9:] in shown(page, "probabilities")
        assert {url.partition(":")[0] for url in page.requests()} <= {"file", "about", "blob"}
        assert not page.errors()


@pytest.mark.slow
@needs_browser
@pytest.mark.filterwarnings("ignore")
def test_the_keyboard_alone_is_enough(tmp_path):
    folder, path = uses.Use("bart", str).write(tmp_path / "model"), tmp_path / "page.html"
    tj.load(folder).explore(LINES[0]).html(path)
    focus = "document.activeElement.id || document.activeElement.closest('[id]')?.id"

    def to(name):
        for _ in range(80):
            page.press("Tab")
            if page.run(focus) == name:
                return
        raise AssertionError(name)

    with opened() as page:
        page.open(path)
        page.wait(READY)
        to("text")
        page.type(" la")
        page.press("Enter", control=True)
        page.wait(READY)
        assert page.run("now.ids.length") > page.run(f"tokenizer.read({LINES[0]!r}).length")
        to("matrices")
        page.press("ArrowRight")
        page.press("ArrowDown")
        assert page.run("state.row") == 1
        page.open(path)
        page.wait(READY)
        to("views")
        page.press("ArrowRight")
        assert page.run("state.view") == "steps"
        to("writes")
        page.press("Tab")
        page.press("Enter")
        assert (page.run("state.step"), page.run(focus)) == (2, "writes")
        page.run("document.querySelector('#views input:checked').focus()")
        page.press("ArrowRight")
        page.wait(READY)
        before = shown(page, "tree-title")
        to("beams")
        page.press("Home")
        page.wait(READY)
        assert shown(page, "tree-title") != before
        page.run("document.querySelector('#views input:checked').focus()")
        page.press("ArrowRight")
        to("hide")
        page.press(" ")
        page.wait(READY)
        assert shown(page, "changed-text").startswith("Now, by greedy search:")
        to("reset")
        page.press(" ")
        assert shown(page, "changed-text") == "Nothing is changed."


@pytest.mark.slow
@needs_browser
@pytest.mark.filterwarnings("ignore")
def test_without_a_worker_the_page_computes_the_same_by_itself_and_says_so(tmp_path):
    folder, path = uses.Use("bart", str).write(tmp_path / "model"), tmp_path / "page.html"
    text = tj.load(folder).explore(LINES[0]).html(path)
    (tmp_path / "refused.html").write_text(text.replace("worker-src blob:", "worker-src 'none'"))
    found = []
    with opened() as page:
        for name in ("page", "refused"):
            page.open(tmp_path / f"{name}.html", view="search")
            page.wait(READY)
            said = [shown(page, part) for part in ("answer", "found", "tree-title")]
            found.append((said, "no Worker" in shown(page, "where")))
    assert found == [(said, False), (said, True)]


@pytest.mark.slow
@needs_browser
@pytest.mark.filterwarnings("ignore")
def test_the_last_question_alone_is_answered(tmp_path):
    folder, path = uses.Use("bart", str).write(tmp_path / "model"), tmp_path / "page.html"
    tj.load(folder).explore(LINES[0]).html(path)
    ask = "text.value = {!r}; document.getElementById('run').click();"
    with opened() as page:
        page.open(path)
        page.wait(READY)
        page.run(f"{ask.format(LINES[1])} {ask.format(LINES[2])}")
        page.wait(READY)
        last = shown(page, "answer"), page.run("now.ids")
        page.run(f"{ask.format(LINES[1])} {ask.format('')}")
        page.wait("document.body.dataset.busy === 'no'")
        time.sleep(0.5)
        assert (shown(page, "answer"), shown(page, "wrong")) == ("", "The text is empty: type one.")
        page.run(ask.format(LINES[2]))
        page.wait(READY)
        assert (shown(page, "answer"), page.run("now.ids")) == last


@pytest.mark.slow
@needs_browser
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("text", "said"), [("", "Type a text, and press Run."), ("la carte " * 400, "tokens: at most")]
)
def test_views_are_hidden_without_a_result(text, said, tmp_path):
    folder, path = uses.Use("gpt2", str).write(tmp_path / "model"), tmp_path / "page.html"
    tj.load(folder).explore(text).html(path)
    with opened() as page:
        page.open(path, view="change")
        assert said in shown(page, "state") + shown(page, "wrong")
        hidden = "[...document.querySelectorAll('[id^=view-], #choices')].filter((e) => e.hidden)"
        assert page.run(f"{hidden}.length") == 5
        assert page.run("wrong.hidden") == (not text)
