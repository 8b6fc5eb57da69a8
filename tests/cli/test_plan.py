"""``--plan``: bad input is refused in one line before anything is compiled or written."""

import importlib.util

import pytest

from transformer_jax.cli.plan import take_plan
from transformer_jax.errors import ConfigError

COMPILERS = importlib.util.find_spec("libtpu") is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plan"], "--plan needs devices: --plan h200:8, or a TPU slice"),
        (["--plan", "--mesh.fsdp", "2"], "--plan needs devices"),
        (["--plan-json"], "--plan-json is how --plan writes"),
    ],
)
def test_a_plan_needs_a_target(arguments, message):
    with pytest.raises(ConfigError, match=message):
        take_plan(arguments)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("b200:8", "there is no target 'b200:8': allowed are h200:8 (GPUs), or a TPU slice"),
        ("h200:0", "there is no target 'h200:0'"),
        ("v5e:8", "there is no target 'v5e:8'"),
        ("h100:8", "the compiler has no description of h100: of GPUs there is h200"),
    ],
)
def test_an_unknown_target_is_refused_and_nothing_is_written(target, message, run_command):
    code, _, err = run_command("train", "char", "--plan", target)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_only_runs_that_are_pretrained_have_plans(run_command):
    code, _, err = run_command("train", "ngram", "--plan", "h200:8")
    assert (code, "--plan: ngram has no plan" in err) == (2, True)


@pytest.mark.skipif(COMPILERS, reason="the compilers are installed")
def test_a_missing_compiler_is_named(run_command):
    code, _, err = run_command("train", "char", "--plan", "v5e:2x4")
    assert code == 2
    assert "the TPU compiler is not installed: pip install 'transformer_jax[aot]'" in err
