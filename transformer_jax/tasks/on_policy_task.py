"""A policy that learns from its own samples by PPO or GRPO, as a task, row B40."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.accounting import training_flops
from transformer_jax.config import TransformerConfig
from transformer_jax.data.plan import ArrayPlan
from transformer_jax.data.preferences import Preferences, PreferenceSplits
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.options import special_tokens
from transformer_jax.models.decoder import Decoder
from transformer_jax.models.valued_decoder import ValuedDecoder
from transformer_jax.tasks.batching import has_dropout
from transformer_jax.training import on_policy
from transformer_jax.training.on_policy import FIXED, KLControl, OnPolicy, Reward
from transformer_jax.training.partition import EVERYTHING, Partition
from transformer_jax.training.preference_objectives import FrozenModel, beside_reference
from transformer_jax.training.task import Data, Metric, Task, fingerprint

__all__ = ["Learning", "PromptRows", "from_samples"]


@dataclasses.dataclass(frozen=True)
class PromptRows:
    """How prompts become the rows of batches, all of one shape."""

    first: int  # the start token
    batch_size: int = 8  # prompts of a batch, over all devices
    max_length: int = 64  # most tokens of a prompt; a longer one loses its beginning
    seed: int = 1  # of the order

    def data(self, prompts: Preferences, tokenizer: Tokenizer, *, shuffle: bool = True) -> Data:
        """The batches of prompts, padded on the left.

        Args:
            prompts: Their completions are not used.
            tokenizer: Of the model.
            shuffle: Whether each epoch has an order of its own; without it, rows that fill the last
                batch up are not ``counted``.
        """
        ids = [
            [self.first, *row[-(self.max_length - 1) :]] if self.max_length > 1 else [self.first]
            for row in tokenizer.encode_batch(prompts.texts)
        ]
        width = -(-max(map(len, ids)) // 8) * 8
        tokens = np.full((len(ids), width), tokenizer.pad, np.int32)
        for row, one in zip(tokens, ids, strict=True):
            row[width - len(one) :] = one
        starts = np.array([width - len(one) for one in ids], np.int32)
        arrays = {"tokens": tokens, "starts": starts}
        if not shuffle:
            rows = np.arange(-(-len(ids) // self.batch_size) * self.batch_size)
            arrays = {name: array[rows % len(ids)] for name, array in arrays.items()}
            arrays["counted"] = (rows < len(ids)).astype(np.float32)
        plan = ArrayPlan(len(arrays["tokens"]), self.batch_size, self.seed, shuffle)
        made = lambda rows: {name: array[rows] for name, array in arrays.items()}
        return Data(plan, made, fingerprint(plan.fingerprint, list(arrays.values())))


class Learning(NamedTuple):
    """How a policy learns.

    Attributes:
        how: The method and its numbers.
        control: Of the weight of the KL penalty.
        updates: Optimizer updates on the samples of a step.
        reward: Rewards samples.
        reward_model: The frozen model that ``reward`` uses, if it does.
    """

    how: OnPolicy
    reward: Reward
    control: KLControl = FIXED
    updates: int = 1
    reward_model: FrozenModel | None = None


def from_samples(
    data: PreferenceSplits,
    config: TransformerConfig,
    tokenizer: Tokenizer,
    rows: PromptRows,
    learning: Learning,
    *,
    partition: Partition | None = None,
) -> Task:
    """A policy that learns from rewards of its own samples (row B40).

    Validation samples from held-out prompts and measures ``valid_reward`` and ``valid_kl``; the
    loss is the negative reward. The run has to start from a trained model: give the task its
    ``initial``, and the trainer an optimizer of
    :func:`transformer_jax.training.on_policy.adaptive_kl`.

    Args:
        data: Prompts for training and validation.
        config: Of the model.
        tokenizer: Of the model.
        rows: How prompts become batches.
        learning: The method and the reward.
        partition: What is trained; None is everything.
    """
    how = learning.how
    special = special_tokens(tokenizer, config.vocab_size)
    collecting = functools.partial(
        on_policy.collect, how=how, reward=learning.reward, special=special
    )
    kind = ValuedDecoder if how.method == "ppo" else Decoder
    never = special.suppress_tokens
    objective = on_policy.grpo(how.clip, never)
    if how.method == "ppo":
        objective = on_policy.ppo(how.clip, how.value_weight, how.value_clip, never)
    train, valid = rows.data(data.train, tokenizer), {}
    if data.valid is not None:
        valid["valid"] = rows.data(data.valid, tokenizer, shuffle=False)

    def flops(batch: Mapping[str, Any]) -> float:
        B, P = batch["tokens"].shape
        return learning.updates * training_flops(config, B * how.group_size, P + how.length)

    trained = EVERYTHING if partition is None else partition
    return Task(
        model=lambda rngs: kind(config, rngs=rngs),
        train=train,
        objective=objective,
        valid=valid,
        metrics=(Metric("valid_reward", "higher"), Metric("valid_loss", "lower")),
        eval_objective=on_policy.evaluation(collecting, rows.seed),
        partition=beside_reference(trained, learning.reward_model),
        make_step=on_policy.on_policy(collecting, learning.control, learning.updates),
        flops=flops,
        regularization=("dropout",) * has_dropout(config),
        tokenizer=tokenizer,
    )
