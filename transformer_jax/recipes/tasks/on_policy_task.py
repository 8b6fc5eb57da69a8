"""The task of a policy that learns from its own samples with PPO or GRPO."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.core.errors import DataError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.chat.encoding import ChatEncoder
from transformer_jax.data.plan import ArrayPlan
from transformer_jax.data.preferences import Preferences, PreferenceSplits, prompt_text
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.options import special_tokens
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.models.heads import ValuedDecoder
from transformer_jax.models.partition import EVERYTHING, Partition
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.recipes.tasks.batching import has_dropout, without_dropout
from transformer_jax.recipes.tasks.fit import Side, describe_unknown
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.training import on_policy
from transformer_jax.training.on_policy import FIXED, KLControl, Reward
from transformer_jax.training.preference_objectives import FrozenModel, beside_reference
from transformer_jax.training.settings import OnPolicy
from transformer_jax.training.task import Data, Task

__all__ = ["Learning", "PromptRows", "from_samples", "reward_prompts"]


@dataclasses.dataclass(frozen=True)
class PromptRows:
    """The conversion of prompts to rows of batches, all of one shape."""

    first: int  # the start token of texts; conversations start as in their template
    batch_size: int = 8  # prompts per batch, over all devices
    max_length: int = 64  # maximum tokens of a prompt; longer ones lose their start
    seed: int = 1  # seed of the order
    chats: ChatEncoder | None = None  # encodes conversations, if prompts are

    def data(
        self, prompts: Preferences, tokenizer: Tokenizer, *, shuffle: bool = True, number: int = 0
    ) -> Data:
        """Returns the batches of prompts, padded on the left.

        Args:
            prompts: The prompts; completions are not used.
            tokenizer: Tokenizer of the model.
            shuffle: Whether to shuffle in each epoch; if not, padding rows of the last batch are
                not ``counted``.
            number: Number of the first prompt.

        Raises:
            ConfigError: The prompts are conversations, and ``chats`` is None.
            DataError: The chat template refuses a conversation; the message names its line.
        """
        ids = self._ids(prompts, tokenizer)
        width = -(-max(map(len, ids)) // 8) * 8
        tokens = np.full((len(ids), width), tokenizer.pad, np.int32)
        for row, one in zip(tokens, ids, strict=True):
            row[width - len(one) :] = one
        starts = np.array([width - len(one) for one in ids], np.int32)
        numbers = np.arange(number, number + len(ids), dtype=np.int32)
        arrays = {"tokens": tokens, "starts": starts, "numbers": numbers}
        if not shuffle:
            rows = np.arange(-(-len(ids) // self.batch_size) * self.batch_size)
            arrays = {name: array[rows % len(ids)] for name, array in arrays.items()}
            arrays["counted"] = (rows < len(ids)).astype(np.float32)
        plan = ArrayPlan(len(arrays["tokens"]), self.batch_size, self.seed, shuffle)
        made = lambda rows: {name: array[rows] for name, array in arrays.items()}
        return Data.of(plan, made, arrays.values())

    def _ids(self, prompts: Preferences, tokenizer: Tokenizer) -> list[list[int]]:
        """Returns the ids of prompts; logs a note if some are truncated."""
        if self.chats is not None and prompts.conversational:
            first, whole = [], [_asked(prompts, i, self.chats) for i in range(len(prompts))]
        else:
            first, whole = [self.first], list(tokenizer.encode_batch(prompts.texts))
        texts = map(prompt_text, prompts.prompts)
        ids = np.fromiter(itertools.chain.from_iterable(whole), np.int64)
        unknown = describe_unknown(prompts.name, Side("", texts, tokenizer, ids))
        log(f"{prompts.name}: {plural(len(whole), 'prompt')}{unknown}")
        room = self.max_length - len(first)
        if cut := sum(len(row) > room for row in whole):
            log(f"{prompts.name}: {plural(cut, 'prompt')} truncated to {self.max_length} tokens")
        return [[*first, *row[max(0, len(row) - room) :]] for row in whole]


def _asked(prompts: Preferences, i: int, chats: ChatEncoder) -> list[int]:
    """Returns the ids of the prompt for an answer to conversation ``i``."""
    messages: Any = prompts.prompts[i]
    try:
        return chats.prompt(messages)
    except DataError as error:
        raise DataError(f"{prompts.place(i)}: {error}") from None


def reward_prompts(data: PreferenceSplits) -> list[str]:
    """Returns the prompts as texts for a reward, numbered as in :func:`from_samples`."""
    parts = [data.train] if data.valid is None else [data.train, data.valid]
    return [prompt_text(prompt) for part in parts for prompt in part.prompts]


class Learning(NamedTuple):
    """Settings of policy optimization.

    Attributes:
        how: The method and its settings.
        control: Controller of the KL weight.
        updates: Optimizer updates per step of samples.
        reward: The reward of samples.
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
    dropout: bool = False,
) -> Task:
    """Returns the task of a policy that learns from rewards of its own samples.

    Validation samples completions of held-out prompts and measures ``valid_reward`` and
    ``valid_kl``; the loss is the negative reward. Completions end with EOS; answers to
    conversations also with the token that ends an answer in their template. The run must start from
    a trained model: set the task's ``initial``, and give the trainer an optimizer of
    :func:`transformer_jax.training.on_policy.adaptive_kl`.

    Args:
        data: Prompts for training and validation.
        config: Of the model.
        tokenizer: Of the model.
        rows: Batching of prompts.
        learning: The method and the reward.
        partition: The trained parameters; None is all.
        dropout: Whether to train with the dropout of ``config``. Samples are scored without it, so
            the probability ratios of the first update would differ from 1.

    Raises:
        ConfigError: Prompts are conversations, but ``rows`` has no encoder for them.
        DataError: The chat template refuses a conversation.
    """
    how, config = learning.how, config if dropout else without_dropout(config)
    chats = rows.chats if data.train.conversational else None
    ends = () if chats is None else chats.end_tokens
    special = special_tokens(tokenizer, config.vocab_size, end_tokens=ends)
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
        number = len(data.train)
        valid["valid"] = rows.data(data.valid, tokenizer, shuffle=False, number=number)

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
        counts="completions" if how.method == "grpo" else "sampled tokens",
        regularization=("dropout",) * has_dropout(config),
        tokenizer=tokenizer,
    )
