"""Every configuration refuses what its fields do not admit, where it is made.

The package is imported by a process of its own: the checks of types in tests would refuse the same
values first.
"""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.core import config_fields
from transformer_jax.core.config_fields import Configuration, Count
from transformer_jax.core.errors import ConfigError

PROGRAM = Path(__file__).parent / "config_fields_program.py"


@pytest.fixture(scope="module")
def found():
    made = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=300, check=False
    )
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout)


def test_configurations_declare_their_choices(found):
    """A dataclass of settings with choices derives from Configuration."""
    assert found["undeclared"] == []
    assert found["configurations"] > 60
    assert found["choices"] > 40
    assert found["ranges"] > 150


def test_what_no_field_admits_is_refused_with_its_name(found):
    assert found["accepted"] == []
    assert found["unnamed"] == []


def test_python_flags_and_json_refuse_alike(found):
    assert found["unlike"] == []


def test_a_misspelled_name_is_answered_with_the_right_one(found):
    assert found["unguided"] == []


def test_every_field_has_help(found):
    assert found["unexplained"] == []


def test_a_misspelled_choice_is_answered_with_the_right_one(found):
    assert found["misguided"] == []


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("MixerConfig(kind='lstm')", "mixer.kind is lstm: allowed are attention, recurrent, "),
        ("MixerConfig(cell='ltsm')", "mixer.cell is ltsm: allowed are .*; did you mean lstm?"),
        ("PositionConfig(kind='rotary')", "positions.kind is rotary: .*; did you mean rope?"),
        ("NormConfig(kind='batch')", "norm.kind is batch: allowed are layer, rms"),
        ("NormConfig(placement='prenorm')", "norm.placement is prenorm: .*; did you mean pre?"),
        ("FeedForwardConfig(activation='rellu')", "feed_forward.activation .* did you mean relu?"),
        ("ComputeConfig(dtype='bf16')", "compute.dtype is bf16: .*; did you mean bfloat16?"),
        ("ScheduleConfig('cosin')", "optimizer.schedule.kind is cosin: .* did you mean cosine?"),
        ("AttentionConfig(num_heads='8')", "attention.num_heads is '8': a whole number is needed"),
        ("AttentionConfig(num_heads=True)", "attention.num_heads is True: a whole number"),
        ("NormConfig(residual_dropout=1.0)", "norm.residual_dropout is 1.0: allowed are 0 up to"),
        ("ScoreConfig(sliding_window=0)", "scores.sliding_window is 0: at least 1, or None"),
        ("MixerConfig(dilations=[1, 0])", "mixer.dilations is .*: 0 in it: at least 1"),
        ("TransformerConfig(norm='rms')", r"norm is 'rms': an object \(NormConfig\) is needed"),
        ("LoRAConfig(2, base_dtype='bf16')", "lora.base_dtype is bf16: .* mean bfloat16?"),
        ("RecurrentConfig(cell='ltsm')", "model.cell is ltsm: .*; did you mean lstm?"),
        ("AlignmentConfig(score='genral')", "model.attention.score is genral: .* mean general?"),
    ],
)
def test_a_wrong_value_builds_no_other_model(found, made, message):
    import re

    assert re.search(message.replace("?", r"\?"), found["said"][made])


def test_a_list_becomes_a_tuple(found):
    assert found["said"]["MixerConfig(kind='convolution', dilations=[1, 2]).dilations"] == "(1, 2)"


def test_a_default_is_checked_like_any_value(monkeypatch):
    """Once: one that fits is not checked again, one that does not is never let through."""

    @dataclasses.dataclass(frozen=True)
    class Settings(Configuration):
        good: Count = 3
        bad: Count = 0

    with pytest.raises(ConfigError, match="bad is 0: at least 1"):
        Settings()
    assert Settings(bad=1) == Settings(3, 1)
    checked = []
    monkeypatch.setattr(config_fields, "field_problem", lambda value, *kind: checked.append(value))
    Settings(bad=7)
    assert checked == [7]
