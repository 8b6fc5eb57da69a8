"""Characters of any script in pictures: drawn where a font has them, counted where none has."""

import logging

import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.text import Text

from transformer_jax.core.figure_fonts import drawn, missing_characters
from transformer_jax.training.curves import training_curves
from transformer_jax.visual.attention import AttentionMaps, plot_attention
from transformer_jax.visual.figures import new_figure
from transformer_jax.visual.word_map import plot_words

# For private use: no ordinary font has them.
RUNES, OTHERS = "\ue101\ue102", "\ue200"


@pytest.fixture
def font(tmp_path):
    """A font that has two characters, as a square each."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 700), (700, 700), (700, 0)):
        pen.lineTo(corner)
    pen.closePath()
    names = [".notdef", "one", "two"]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(map(ord, RUNES), names[1:], strict=True)))
    builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Two Runes", "styleName": "Regular"})
    builder.setupOS2(usWeightClass=400)
    builder.setupPost()
    builder.save(tmp_path / "runes.ttf")
    before = list(font_manager.fontManager.ttflist)
    font_manager.fontManager.addfont(tmp_path / "runes.ttf")
    yield "Two Runes"
    font_manager.fontManager.ttflist[:] = before


def texts(label):
    figure = new_figure(2.0, 2.0)
    figure.subplots().set_title(label)
    return figure


def test_a_font_that_is_there_draws_what_the_usual_one_lacks(font):
    figure = texts(f"a{RUNES}")
    assert missing_characters(figure) == ""
    (title,) = [each for each in figure.findobj(Text) if each.get_text().startswith("a")]
    assert title.get_fontfamily()[-1] == font
    # Glyphs that are missing would warn, which is an error in tests.
    with drawn(figure):
        figure.draw_without_rendering()


def test_ordinary_texts_keep_their_font(font):
    figure = texts("olá, 1 ≤ x")
    assert missing_characters(figure) == ""
    assert all(font not in each.get_fontfamily() for each in figure.findobj(Text))


def _attention(path, words):
    plot_attention(AttentionMaps("encoder", words, words, np.ones((1, 1, 2, 2)) / 2), path)


def _map(path, words):
    plot_words(words, np.eye(2, 3), path)


def _curves(path, words):
    training_curves([{"step": 1, "valid_loss": 1.0}], path, labels=words)


@pytest.mark.parametrize("write", [_attention, _map, _curves])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_characters_without_a_font_are_counted(tmp_path, caplog, write, suffix):
    path = tmp_path / f"picture{suffix}"
    with caplog.at_level(logging.WARNING):
        write(path, ("a", f"b{OTHERS}{OTHERS}"))
    (message,) = caplog.messages
    assert message.startswith(f"{path}: no font on this machine has 1 character, such as {OTHERS} ")
    assert "(U+E200): boxes stand for them. Install a font" in message
    assert path.stat().st_size
