"""A setting is one line: its type is its range, its comment its help, its name its flag."""

import dataclasses
from typing import Annotated, Literal

import pytest

from transformer_jax.cli.completion import flag_choices
from transformer_jax.cli.flags import flags_of, parse
from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.config_fields import Range
from transformer_jax.core.errors import ConfigError
from transformer_jax.models.config import NormConfig, TransformerConfig


@dataclasses.dataclass(frozen=True)
class Warped(NormConfig):
    """A norm with one setting more."""

    warp: Annotated[int, Range(1, 4)] = 2  # how far the stream is bent
    shape: Literal["round", "square"] = "round"  # of the bend


@dataclasses.dataclass(frozen=True)
class Model(TransformerConfig):
    """A model with such a norm."""

    norm: Warped = Warped()


def read_flags(*words):
    return parse(Model, "model", words)


def test_it_is_a_flag_with_its_help_range_and_choices(capsys):
    assert read_flags("--norm.warp", "3").norm == Warped(warp=3)
    assert "norm.warp" in flags_of(Model)
    assert flag_choices(Model)["--norm.shape"] == ["round", "square"]
    with pytest.raises(SystemExit):
        read_flags("--help")
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--norm.warp INT how far the stream is bent (1 to 4) (default: 2)" in shown
    assert "--norm.shape {round,square} of the bend (default: round)" in shown


def test_it_is_read_from_json_as_it_is_written():
    model = Model(norm=Warped(warp=4, shape="square"))
    assert from_dict(Model, dataclasses.asdict(model)) == model


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("warp", 5, "norm.warp is 5: at most 4"),
        ("shape", "squar", "norm.shape is squar: allowed are round, square; did you mean square?"),
    ],
)
def test_python_flags_and_json_refuse_it_with_its_path(name, value, says):
    with pytest.raises(ConfigError) as error:
        Warped(**{name: value})
    assert str(error.value) == says
    with pytest.raises(ConfigError) as error:
        read_flags(f"--norm.{name}", str(value))
    assert str(error.value) == f"--{says}"
    with pytest.raises(ConfigError) as error:
        from_dict(Model, {"norm": {name: value}})
    assert str(error.value).replace('"', "") == says


def test_its_misspelled_name_is_answered_with_the_right_one():
    with pytest.raises(ConfigError, match=r"unknown setting norm.wrap; did you mean norm.warp\?"):
        from_dict(Model, {"norm": {"wrap": 2}})
