"""The page and the picture of attention hold the weights exactly, and need nothing else (U13)."""

import base64
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from transformer_jax.visual.attention import (
    AttentionMaps,
    as_json,
    attention_html,
    plot_attention,
    translation_maps,
)

SOURCE = ("▁O", "▁gato", "</script>", "$dorme$", "</s>")
TARGET = ("▁The", "▁cat", "▁<b>sleeps", "</s>")


def drawn(T, S, L=2, N=3, causal=False):
    scores = np.random.default_rng(T * S).normal(size=(L, 1, N, T, S))
    if causal:
        scores = np.where(np.tri(T, S, dtype=bool), scores, -np.inf)
    weights = np.exp(scores)
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


@pytest.fixture
def maps():
    S, T = len(SOURCE), len(TARGET)
    weights = {"encoder": drawn(S, S), "decoder": drawn(T, T, causal=True), "cross": drawn(T, S)}
    return translation_maps(SOURCE, TARGET, weights)


def held(text):
    [data] = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    return json.loads(data)


def test_the_page_holds_every_weight_exactly(maps):
    data = held(attention_html(maps, title="O gato dorme"))
    assert [kind["label"].split()[0] for kind in data["kinds"]] == [
        "Encoder",
        "Decoder",
        "Cross-attention",
    ]
    assert data["kinds"][data["first"]]["label"] == "Cross-attention"
    for kind, each in zip(data["kinds"], maps, strict=True):
        raw = np.frombuffer(base64.b64decode(kind["weights"]), "<f4").reshape(kind["shape"])
        np.testing.assert_array_equal(raw, each.weights)
        np.testing.assert_allclose(raw.sum(-1), 1.0, atol=1e-6)
        assert tuple(kind["rows"]) == each.rows
        assert tuple(kind["columns"]) == each.columns


def test_the_page_needs_no_network(maps):
    text = attention_html(maps, title="O gato dorme")
    foreign = r"https?:|//[a-z]|src=|href=|@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\("
    assert not re.findall(foreign, text.split('type="application/json">')[0])
    assert not re.findall(foreign, text.rsplit("</script>", 2)[1].replace("// ", ""))


def test_no_token_or_title_can_end_or_begin_markup(maps):
    plain = attention_html(maps, title="x").count("<")
    assert attention_html(maps, title="<script>&", subtitle="</p>").count("<") == plain
    assert attention_html(maps, title="<script>&").count("</script>") == 2
    assert "<h1>&lt;script&gt;&amp;</h1>" in attention_html(maps, title="<script>&")


def test_a_placeholder_in_a_sentence_is_only_text(maps):
    text = attention_html(maps, title="__DATA__ __SUBTITLE__", subtitle="__TITLE__")
    assert held(text)["kinds"]
    assert "<h1>__DATA__ __SUBTITLE__</h1><p>__TITLE__</p>" in text


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_h11_play_writes_the_translation_token_by_token(maps, tmp_path):
    """Row H11: a click begins, each tick writes a token, and the last one stops."""
    page = attention_html(maps, title="O gato dorme")
    # A clock by hand, and what is visible after each tick.
    page = page.replace(
        '"use strict";', "window.setInterval = (f) => { window.tick = f; return 1; };"
    )
    told = """<script>
    const seen = [], words = () => [...document.querySelectorAll("#rows button")]
      .filter((one) => one.style.visibility !== "hidden").length;
    document.getElementById("play").click();
    for (let i = 0; i < 5; i++) {
      seen.push(`${words()} ${document.getElementById("play").textContent}`);
      if (document.getElementById("play").textContent === "Pause") tick();
    }
    document.querySelectorAll("input[name=kind]")[0].click();
    seen.push(document.getElementById("steps").hidden);
    document.title = seen.join(", ");
    </script></body>"""
    (tmp_path / "page.html").write_text(page.replace("</body>", told))
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
         f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    [title] = re.findall("<title>(.*?)</title>", done.stdout)
    assert title == "1 Pause, 2 Pause, 3 Pause, 4 Play, 4 Play, true"


def test_decoder_rows_are_named_after_what_they_write(maps):
    encoder, decoder, cross = maps
    assert encoder.read is None
    assert decoder.columns == decoder.read == cross.read == ("<s>", *TARGET[:-1])
    assert decoder.rows == cross.rows == TARGET
    assert cross.columns == SOURCE


def test_json_is_the_same(maps):
    data = json.loads(as_json(maps))
    for each in maps:
        np.testing.assert_array_equal(np.float32(data[each.kind]["weights"]), each.weights)


def test_stacks_without_layers_are_left_out():
    weights = {"encoder": drawn(2, 2), "decoder": np.zeros((0, 1, 1, 1, 1), np.float32)}
    [only] = translation_maps(["a", "b"], ["c"], weights)
    assert only.kind == "encoder"
    assert held(attention_html([only], title="x"))["first"] == 0


def test_weights_that_do_not_fit_the_tokens_are_refused():
    with pytest.raises(ValueError, match=r"cross weights are \(1, 1, 2, 2\), not \[L, N, 1, 2\]"):
        AttentionMaps("cross", ("a",), ("b", "c"), np.zeros((1, 1, 2, 2)))


@pytest.mark.parametrize("layer", [-1, 0, None])
@pytest.mark.parametrize("suffix", [".png", ".svg", ".html"])
@pytest.mark.quick(".svg-0")
def test_pictures_are_written_and_repeatable(maps, tmp_path, suffix, layer):
    once, twice = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    for path in (once, twice):
        plot_attention(maps[2], path, layer=layer, title="cost $5 → $6")
    begins = {".png": b"\x89PNG", ".svg": b"<?xml", ".html": b"<!DOCTYPE html>"}[suffix]
    assert once.read_bytes().startswith(begins)
    assert once.read_bytes() == twice.read_bytes()


@pytest.mark.slow
def test_pictures_of_different_layers_differ(maps, tmp_path):
    for layer in (0, 1, None):
        plot_attention(maps[0], tmp_path / f"{layer}.png", layer=layer)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 3


@pytest.mark.slow
def test_long_sentences_have_a_picture_too(tmp_path):
    words = tuple(f"word{i}" for i in range(120))
    plot_attention(
        AttentionMaps("encoder", words, words, drawn(120, 120, 1, 5)[:, 0]), tmp_path / "long.png"
    )
    assert (tmp_path / "long.png").stat().st_size > 10_000
