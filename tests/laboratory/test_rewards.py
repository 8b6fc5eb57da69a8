"""Rows B40, B42: a reward rises within the budget of KL divergence, and is hacked without it."""

import dataclasses

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.laboratory.rewards import rewards
from transformer_jax.laboratory.settings import RewardSettings

SMALL = RewardSettings(
    methods=("grpo",),
    letters=3,
    length=3,
    d_model=8,
    steps=6,
    batch_size=2,
    group_size=2,
    seeds=2,
    learning_rate=0.05,
)


@pytest.fixture(scope="module")
def figures():
    return rewards(SMALL)


@pytest.mark.slow
def test_figures_have_a_row_for_each_step_and_a_value_for_each_seed(figures, tmp_path):
    assert list(figures.reward) == ["grpo", "grpo without penalty"]
    for values in (*figures.reward.values(), *figures.kl.values()):
        assert np.shape(values) == (6, 2)
    head, *rows = figures.table()
    assert {len(row) for row in rows} == {len(head)}
    figures.draw(tmp_path / "rewards.png")
    assert (tmp_path / "rewards.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_policies_begin_alike_and_are_then_their_own(figures):
    kept, free = figures.reward.values()
    assert kept[0] == free[0]
    assert len({str(values) for values in figures.kl.values()}) == 2
    np.testing.assert_allclose([rows[0] for rows in figures.kl.values()], 0, atol=1e-6)
    assert kept[0] != kept[1] or free[0] != free[1]


@pytest.mark.slow
def test_a_seed_alone_has_its_values_among_others(figures):
    alone = rewards(dataclasses.replace(SMALL, seeds=1, seed=1))
    for name, rows in alone.reward.items():
        assert rows == [[row[1]] for row in figures.reward[name]]


@pytest.mark.slow
def test_a_reward_rises_within_the_budget_and_is_hacked_without_it():
    asked = RewardSettings(seeds=1)
    found = rewards(asked)
    for method in asked.methods:
        free = f"{method} without penalty"
        [reward], [kl] = found.ends(found.reward[method]), found.ends(found.kl[method])
        assert reward > found.reward[method][0][0] + 1
        assert kl < 1.25 * asked.budget
        assert found.ends(found.reward[free])[0] > 5.5
        assert found.ends(found.kl[free])[0] > 4 * kl


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"budget": 0.0}, "--budget is 0.0: above 0"),
        ({"kl_coefficient": -1.0}, "--kl-coefficient is -1.0: above 0"),
        ({"group_size": 1}, "--group-size is 1: at least 2"),
        ({"d_model": 6}, "--d-model is 6: a multiple of 4"),
        ({"length": 300}, "--length is 300: at most 256"),
        ({"methods": ()}, "--methods needs at least one value"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        RewardSettings(**wrong)
