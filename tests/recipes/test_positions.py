"""Default lengths fit the positions of the model that a run starts from; given ones are kept."""

import dataclasses

import pytest

from tests.interop.word_level import tokenizer_json
from tests.parity import layouts
from transformer_jax.core.errors import ConfigError
from transformer_jax.recipes.driver import _prepared
from transformer_jax.recipes.given import settings_given
from transformer_jax.recipes.registry import get_recipe

POSITIONS = 44
CASES = {
    "finetuning": ("bert", "classify"),
    "language_model": ("gpt2", "char-cpu"),
    "denoising": ("bart", "bart-mini"),
    "masked_lm": ("bert_mlm", "small"),
}


def begun(tmp_path, name):
    """Returns a recipe, the settings of a run that starts from a folder, and its named run."""
    layout, kind = CASES[name]
    folder, recipe = layouts.write(layout, tmp_path / layout), get_recipe(name)
    text = tokenizer_json(97)
    for i, token in enumerate(("<s>", "<pad>", "</s>")):
        text = text.replace(f'"w{i}"', f'"{token}"')
    (folder / "tokenizer.json").write_text(text)
    named = recipe.runs[kind][1]
    alone = dataclasses.replace(named.distributed, num_local_devices=1)
    named = dataclasses.replace(named, distributed=alone)
    if hasattr(named, "init_from"):
        return recipe, dataclasses.replace(named, init_from=str(folder)), named
    task = dataclasses.replace(named.task, init_from=str(folder))
    return recipe, dataclasses.replace(named, task=task), named


@pytest.mark.parametrize("name", CASES)
def test_a_default_length_shrinks_to_the_positions_of_the_start(tmp_path, capsys, name):
    recipe, run, named = begun(tmp_path, name)
    setting, usual = recipe.length_limit(named)
    assert usual > POSITIONS
    run, _ = _prepared(recipe, run, named)
    assert recipe.length_limit(run) == (setting, POSITIONS)
    assert f"{setting} is 44 in place of {usual}: the positions of" in capsys.readouterr().err


@pytest.mark.parametrize("name", CASES)
def test_a_given_length_is_refused_and_no_other_model_is_advised(tmp_path, name):
    """Even if it equals the default; a published model has no more positions."""
    recipe, run, named = begun(tmp_path, name)
    setting = recipe.length_limit(named)[0]
    with (
        settings_given(frozenset({setting})),
        pytest.raises(ConfigError, match=r"has positions for 44 tokens: lower it$"),
    ):
        _prepared(recipe, run, named)
