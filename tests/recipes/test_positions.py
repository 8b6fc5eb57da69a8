"""Default lengths fit the positions of the model that a run starts from; given ones are kept."""

import dataclasses

import pytest

from tests.interop.word_level import tokenizer_json
from tests.parity import layouts
from transformer_jax.core.errors import ConfigError
from transformer_jax.recipes.explicit_settings import Given
from transformer_jax.recipes.freezing import load_pretrained
from transformer_jax.recipes.registry import get_recipe
from transformer_jax.recipes.settings import start_config

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


class OpenedError(Exception):
    """The data would be opened now."""


def prepared(monkeypatch, recipe, run, given):
    """Returns the settings with which a run opens its data."""

    def data(self, run):
        raise OpenedError(run)

    monkeypatch.setattr(type(recipe), "data", data)
    start = load_pretrained(start_config(run).init_from, recipe.starts)
    with pytest.raises(OpenedError) as opened:
        recipe.prepare(run, start, given)
    return opened.value.args[0]


@pytest.mark.parametrize("name", CASES)
def test_a_default_length_shrinks_to_the_positions_of_the_start(
    tmp_path, monkeypatch, capsys, name
):
    recipe, run, named = begun(tmp_path, name)
    setting, usual = named.length_limit
    assert usual > POSITIONS
    run = prepared(monkeypatch, recipe, run, Given(named))
    assert run.length_limit == (setting, POSITIONS)
    assert f"{setting} is 44 in place of {usual}: the positions of" in capsys.readouterr().err


@pytest.mark.parametrize("name", CASES)
def test_a_given_length_is_refused_and_no_other_model_is_advised(tmp_path, monkeypatch, name):
    """Even if it equals the default; a published model has no more positions."""
    recipe, run, named = begun(tmp_path, name)
    given = Given(named, frozenset({named.length_limit[0]}))
    with pytest.raises(ConfigError, match=r"has positions for 44 tokens: lower it$"):
        prepared(monkeypatch, recipe, run, given)
