"""The block diagram (row H12)."""

import dataclasses

import pytest

from transformer_jax.models.config import NormConfig, PositionConfig, ScoreConfig
from transformer_jax.models.presets import PRESETS
from transformer_jax.visual.architecture import diagram

BASE = """
                                                       logits [B, T, 37000]
                                                       linear  512 → 37000, tied to the embedding
                                                       ┌ decoder block × 6, 4,199,936 parameters each ┐
memory [B, S, 512] ───────────────────────────────┐    │ add, layer norm                              │
┌ encoder block × 6, 3,150,336 parameters each ┐  │    │ feed-forward  512 → 2048 → 512, relu         │
│ add, layer norm                              │  │    │ add, layer norm                              │
│ feed-forward  512 → 2048 → 512, relu         │  └───▶│ cross-attention  8 heads of 64               │
│ add, layer norm                              │       │ add, layer norm                              │
│ self-attention  8 heads of 64                │       │ self-attention  8 heads of 64                │
└──────────────────────────────────────────────┘       └──────────────────────────────────────────────┘
+ positions  sinusoidal                                + positions  sinusoidal
embedding  37000 × 512, times 22.63                    embedding  37000 × 512, times 22.63
source tokens [B, S]                                   target tokens, shifted right [B, T]
"""  # noqa: E501


def test_vaswani_base():
    assert diagram(PRESETS["vaswani_base"]) == BASE.strip("\n")


@pytest.mark.parametrize("preset", PRESETS)
def test_boxes_close(preset):
    lines = diagram(PRESETS[preset]).splitlines()
    text = "\n".join(lines)
    stacks = bool(PRESETS[preset].encoder_layers) + bool(PRESETS[preset].decoder_layers)
    for corner in "┌└┘":
        assert sum(line.count(corner) for line in lines) - (corner == "└") * ("▶" in text) == stacks
    for row, line in enumerate(lines):
        for column, mark in enumerate(line):
            if mark == "┌":
                below = [other[column : column + 1] for other in lines[row + 1 :]]
                assert set(below[: below.index("└")]) == {"│"}


@pytest.mark.parametrize("place", ["post", "pre", "sandwich"])
def test_norms_stand_where_they_are(place):
    config = dataclasses.replace(PRESETS["gpt2_small"], norm=NormConfig(placement=place))
    inside = [line.strip("│ ") for line in diagram(config).splitlines() if line.startswith("│")]
    at = next(i for i, line in enumerate(inside) if line.startswith("self-attention"))
    expected = {
        "post": (["add, layer norm"], []),
        "pre": (["add"], ["layer norm"]),
        "sandwich": (["add", "layer norm"], ["layer norm"]),
    }[place]
    above, below = inside[:at], inside[at + 1 :]
    assert above[len(above) - len(expected[0]) :] == expected[0]
    assert below == expected[1]


def test_windows_are_those_of_each_stack():
    scores = ScoreConfig(sliding_window=7, sliding_window_layers=(0, 1, 3))
    config = dataclasses.replace(
        PRESETS["vaswani_base"], encoder_layers=4, decoder_layers=2, scores=scores
    )
    text = diagram(config)
    assert "heads of 64, window 7 in layers 0, 1, 3 " in text
    assert "heads of 64, window 7 │" in " ".join(text.split())  # all of the decoder's
    assert text.count("window") == 2
    none = dataclasses.replace(
        config, scores=ScoreConfig(sliding_window=7, sliding_window_layers=())
    )
    assert diagram(none) == diagram(dataclasses.replace(config, scores=ScoreConfig()))


def test_what_changes_the_model_changes_the_picture():
    config = PRESETS["vaswani_base"]
    attention = dataclasses.replace(config.attention, num_kv_heads=2, value_dim=32)
    changes = [
        {"attention": attention},
        {"positions": PositionConfig(kind="rope")},
        {"positions": PositionConfig(kind="learned")},
        {"positions": PositionConfig(kind="rope", rope_dim=8)},
        {"positions": PositionConfig(kind="rope", rope_dynamic=(2.0, 512))},
        {"scores": ScoreConfig(sliding_window=7)},
        {"scores": ScoreConfig(sliding_window=7, sliding_window_every=2)},
        {"scores": ScoreConfig(sliding_window=7, sliding_window_layers=(1, 2))},
        {"feed_forward": dataclasses.replace(config.feed_forward, gated=True)},
        {"head": dataclasses.replace(config.head, tie_word_embeddings=False)},
        {"norm": NormConfig(final=True)},
    ]
    seen = {diagram(config), *(diagram(dataclasses.replace(config, **c)) for c in changes)}
    assert len(seen) == len(changes) + 1
