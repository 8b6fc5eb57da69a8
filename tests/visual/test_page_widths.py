"""Pages are no wider than the window: what is wide scrolls by itself."""

import re
from pathlib import Path

import numpy as np
import pytest

import transformer_jax.visual
from tests.visual.browser import needs_browser, opened
from transformer_jax.visual.attention import AttentionMaps, attention_html
from transformer_jax.visual.heat_maps import HeatMaps, heat_map_page
from transformer_jax.visual.word_contexts import WordVectors, word_vectors_html

TEMPLATES = sorted(Path(transformer_jax.visual.__file__).parent.glob("*.html"))
LONG = "a-long-name-without-any-blank" * 6


def pages():
    rng = np.random.default_rng(0)
    tokens = tuple(f"{LONG[:60]}{i}" for i in range(12))
    weights = rng.dirichlet(np.ones(12), (3, 16, 12)).astype(np.float32)
    maps = AttentionMaps("cross", tokens, tokens, weights, tokens)
    yield "attention", attention_html([maps], title=LONG, subtitle=LONG)
    word = WordVectors(
        LONG, 0, ("a",), np.ones(4), np.ones((3, 4)), ((0, 1), (2, 6)), np.ones((3, 2))
    )
    yield "words", word_vectors_html([word] * 6, word=LONG)
    picture = HeatMaps(LONG, LONG, tokens, np.zeros((9, 9, 3), np.uint8),
                       np.ones((2, 16, 12, 3, 3), np.float32))  # fmt: skip
    yield "heat maps", heat_map_page([picture])


def test_a_column_of_a_grid_may_be_narrower_than_its_content():
    texts = [path.read_text("utf-8") for path in TEMPLATES]
    grids = [
        rule for text in texts for rule in re.findall(r"\{([^{}]*display: grid[^{}]*)\}", text)
    ]
    assert len(grids) > 1
    assert all("grid-template-columns: minmax(0, 1fr)" in rule for rule in grids)


@pytest.mark.slow
@needs_browser
def test_a_page_is_as_wide_as_the_window(tmp_path):
    path = tmp_path / "page.html"
    with opened() as page:
        for name, text in pages():
            path.write_text(text)
            for width in (1280, 390):
                page.open(path, width)
                assert page.run("document.documentElement.scrollWidth") <= width, name
