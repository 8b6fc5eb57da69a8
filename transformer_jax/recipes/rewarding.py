"""Rewards of the samples of a run: a function in a Python file, or a reward model."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.core.errors import ConfigError, command, plural
from transformer_jax.data.added_tokens import add_tokens
from transformer_jax.data.chat.template import find_template
from transformer_jax.data.preferences import Preferences, PreferenceSplits, answer_text
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.inference.facts import FINE_TUNED, Facts, Opening
from transformer_jax.inference.pretrained import read_facts
from transformer_jax.models.heads import DecoderSequenceClassifier
from transformer_jax.recipes.checks import mesh_of
from transformer_jax.recipes.posttraining import RewardConfig
from transformer_jax.recipes.settings import RunConfig
from transformer_jax.recipes.start import Start
from transformer_jax.recipes.tasks.on_policy_task import reward_prompts
from transformer_jax.recipes.tasks.rewards import PythonReward, load_reward, model_reward
from transformer_jax.runs.manifest import file_record
from transformer_jax.training.on_policy import Reward
from transformer_jax.training.preference_objectives import FrozenModel

__all__ = [
    "RewardSource",
    "check_form",
    "check_reward",
    "reward_facts",
    "reward_inputs",
    "reward_source",
]

FLAGS = ("--reward.file", "--reward.run")


class RewardSource(NamedTuple):
    """A reward of samples, its :func:`reward_inputs`, and the frozen model that it may use."""

    reward: Reward
    inputs: Mapping[str, str]
    model: FrozenModel | None = None


def check_reward(
    run: RunConfig,
    reward: RewardConfig,
    first: str,
    start: Start,
    flags: tuple[str, str] = FLAGS,
    allow_changed: bool | None = None,
) -> Facts | None:
    """Returns the facts of a reward model, or None; refuses unusable rewards before all else.

    Args:
        run: The settings.
        reward: Their source of rewards.
        first: The first token of the run's texts.
        start: The start of the policy.
        flags: The flags for a file and for a reward model, for messages.
        allow_changed: See :class:`.Opening`.

    Raises:
        ConfigError: Not exactly one reward is given, the file has no reward function, or the reward
            model cannot read the policy's samples.
    """
    file_flag, flag = flags
    if (reward.file is None) == (reward.run is None):
        raise ConfigError(f"rewards come from either {file_flag} FILE.py or {flag} RUN: give one")
    if reward.file is not None:
        load_reward(reward.file, file_flag)
        return None
    facts = reward_facts(reward, allow_changed, flag)
    assert facts is not None
    asked = run.tokenizer
    ours = add_tokens(start.tokenizer, asked.add_tokens, asked.add_special_tokens)
    if facts.tokenizer.sha256 != ours.sha256:
        raise ConfigError(
            f"{flag} {reward.run}: has different tokens from this run, which starts from "
            f"{start.facts.source}: train a reward model from it, or with the same tokenizer"
        )
    theirs = facts.record.get("first", first)
    if theirs != first:
        raise ConfigError(
            f"{flag} {reward.run}: its texts begin with {theirs}, texts of this run with "
            f"{first}: train both with the same --first"
        )
    most, (setting, length) = facts.layers.max_length, run.length_limit
    if length > most:
        raise ConfigError(
            f"{flag} {reward.run}: has positions for {plural(most, 'token')}, and {setting} "
            f"is {length}: lower one of them"
        )
    return facts


def check_form(
    run: RunConfig,
    reward: RewardConfig,
    facts: Facts | None,
    start: Start,
    prompts: Preferences,
    flag: str = FLAGS[1],
    data: str | None = None,
) -> None:
    """Refuses a reward model trained on texts for conversations, and vice versa.

    Args:
        run: The settings.
        reward: Their source of rewards.
        facts: Facts of the reward model, see :func:`reward_facts`.
        start: The start of the policy.
        prompts: The prompts of training or of an evaluation.
        flag: The flag of the reward model, for messages.
        data: Name of the prompts; None is the training file.

    Raises:
        ConfigError: The reward model was trained on the other form, or with another chat template.
    """
    if facts is None:
        return
    theirs, data = find_template(facts.source), data or f"data.train {run.data.train}"
    if not prompts.conversational:
        # Unknown for a downloaded reward model; a run has a template only for conversations.
        if theirs is not None and facts.recipe == "reward_model":
            raise ConfigError(
                f"{flag} {reward.run}: was trained on conversations, but {data} is a file of "
                f"texts: train a reward model on texts"
            )
        return
    if theirs is None:
        raise ConfigError(
            f"{flag} {reward.run}: was trained on texts, but {data} has "
            f"conversations: train a reward model on conversations"
        )
    ours = find_template(start.facts.source)
    if ours is None or theirs.text != ours.text:
        raise ConfigError(
            f"{flag} {reward.run}: has a different chat template from "
            f"{start.facts.source}: train a reward model from it, or with the same template"
        )


def reward_facts(
    reward: RewardConfig, allow_changed: bool | None = None, flag: str = FLAGS[1]
) -> Facts | None:
    """Returns the facts of a reward model; None for rewards of a file.

    Raises:
        ConfigError: The run is not a reward model.
        CheckpointError: The run does not exist, or is damaged.
    """
    if reward.run is None:
        return None
    facts = read_facts(reward.run, opening=Opening(allow_changed))
    if facts.kind not in FINE_TUNED or facts.head.kind != "regress":
        raise ConfigError(
            f"{flag} {reward.run}: not a reward model: train one, see "
            f"{command('align', 'reward', '--help')}"
        )
    return facts


def reward_inputs(reward: RewardConfig, facts: Facts | None = None) -> dict[str, str]:
    """Returns the checksum of what a reward reads again when the run is resumed, by name.

    The parameters of a reward model, whose facts are given, are stored with the run.
    """
    if facts is not None:
        name, path = "settings of reward.run", facts.file
    else:
        assert reward.file is not None
        name, path = "contents of reward.file", Path(reward.file)
    return {f"the {name} {path}": str(file_record(path)["sha256"])}


def reward_source(
    run: RunConfig,
    reward: RewardConfig,
    facts: Facts | None,
    tokenizer: Tokenizer,
    splits: PreferenceSplits,
) -> RewardSource:
    """Returns the reward of the samples of a run.

    Args:
        run: The settings.
        reward: Their source of rewards.
        facts: Facts of the reward model, see :func:`reward_facts`.
        tokenizer: Of the run.
        splits: The prompts of the run.

    Raises:
        ConfigError: A file has no reward function.
        CheckpointError: A reward model is damaged.
    """
    inputs = reward_inputs(reward, facts)
    if facts is None:
        path = reward.file
        assert path is not None
        function, prompts = load_reward(path), reward_prompts(splits)
        clean = answer_text if splits.train.conversational else str
        return RewardSource(PythonReward(function, tokenizer, path, prompts, clean=clean), inputs)
    config: Any = facts.layers
    compute = dataclasses.replace(config.compute, dtype=run.model.compute.dtype)
    config = dataclasses.replace(config, compute=compute)
    make = lambda rngs: DecoderSequenceClassifier(config, labels=1, rngs=rngs)
    device = mesh_of(run).devices.flat[0]
    params = facts.reader.load_params("best").params
    return RewardSource(model_reward, inputs, FrozenModel(make, params, device))
