"""Pictures of positions and masks (rows B16, H8, B28)."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.positions import sinusoidal
from transformer_jax.visual.position_pictures import (
    padded_masks,
    plot_masks,
    plot_positions,
    visible,
)

T = 6
TABLE = np.asarray(sinusoidal(T, 8))
t, s = np.arange(T)[:, None], np.arange(T)[None]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (Mask(), np.ones((T, T), bool)),
        (Mask(causal=True), s <= t),
        (Mask(causal=True, window=2), (s <= t) & (t - s < 2)),
        (Mask(kv_lengths=jnp.array([4, 1])), np.broadcast_to(s < 4, (T, T))),
        (np.eye(T, dtype=bool), np.eye(T, dtype=bool)),
    ],
)
def test_filled_squares_are_where_queries_may_look(mask, expected):
    np.testing.assert_array_equal(visible(mask, T, T), expected)


@pytest.mark.parametrize("window", [None, 2])
def test_b29_masks_of_padded_and_packed_rows_are_their_formulas(window):
    """Row B29: padding is no key, and neither text of a packed row sees the other."""
    near = np.abs(t - s) < (window or T)
    causal, real = near & (s <= t), 4  # of six tokens
    text = np.where(np.arange(T) < 3, 1, 2) * (np.arange(T) < real)
    same = (text[:, None] == text[None]) & (text[:, None] > 0)
    expected = {
        "encoder, padding": near & (s < real),
        "decoder, padding": causal & (s < real),
        "decoder, two texts": causal & same,
        "cross-attention, padding": np.broadcast_to(s < real, (T, T)),
    }
    masks = padded_masks(T, ["encoder", "decoder"], window)
    assert list(masks) == list(expected)
    for name, mask in masks.items():
        np.testing.assert_array_equal(visible(mask, T, T), expected[name])


@pytest.mark.parametrize("suffix", [".png", ".svg", ".html"])
@pytest.mark.slow
def test_pictures_are_written_and_repeatable(tmp_path, suffix):
    masks = {"causal": Mask(causal=True), "own": np.eye(T, dtype=bool)}
    for name in ("a", "b"):
        plot_positions(TABLE, tmp_path / f"{name}-positions{suffix}")
        plot_masks(masks, tmp_path / f"{name}-masks{suffix}", length=T)
    for kind in ("positions", "masks"):
        once, twice = (tmp_path / f"{name}-{kind}{suffix}" for name in "ab")
        assert once.read_bytes() == twice.read_bytes()
        assert once.stat().st_size > 1000


def test_a_page_holds_its_picture(tmp_path):
    plot_positions(TABLE, tmp_path / "x.html", title="a < b")
    text = (tmp_path / "x.html").read_text()
    assert 'src="data:image/png;base64,' in text
    assert "http" not in text.replace(text.split("base64,")[1].split('"')[0], "")
    assert "<title>a &lt; b</title>" in text


def test_tokens_name_rows_and_columns(tmp_path):
    plot_masks({"causal": Mask(causal=True)}, tmp_path / "a.png", length=2, tokens=["ich", "du"])
    plot_masks({"causal": Mask(causal=True)}, tmp_path / "b.png", length=2)
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()


def test_other_kinds_of_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"x.bmp: pictures are written as .png, .svg, .html"):
        plot_positions(TABLE, tmp_path / "x.bmp")


def test_a_notebook_shows_a_figure_that_is_not_written():
    figure = plot_masks({"causal": Mask(causal=True)}, length=T)
    assert figure._repr_png_().startswith(b"\x89PNG")
