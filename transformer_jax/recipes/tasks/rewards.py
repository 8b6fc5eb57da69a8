"""Rewards of samples: a function in a Python file, or a reward model."""

import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.decoding.partial_text import continuation_text
from transformer_jax.functional.partitioning import current_mesh
from transformer_jax.training.on_policy import Samples
from transformer_jax.training.preference_objectives import Policies

__all__ = ["PythonReward", "load_reward", "model_reward"]

RewardFunction = Callable[[str, str], float]

_LARGEST = float(np.finfo(np.float32).max)  # training uses float32


def load_reward(path: str, flag: str = "--reward.file") -> RewardFunction:
    """Loads the function ``reward(prompt, completion) -> float`` of a Python file.

    The file is executed: use files that you trust.

    Args:
        path: The file.
        flag: The setting that names it, for messages.

    Raises:
        ConfigError: The file is missing, cannot be run, or has no such function.
    """
    if not os.path.isfile(path):  # also False for impossible file names
        raise ConfigError(f"{flag} {path}: there is no such file")
    spec = importlib.util.spec_from_file_location("reward_file", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{flag} {path}: must be a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{flag} {path}: {_said(error)}") from None
    found = getattr(module, "reward", None)
    if not callable(found):
        raise ConfigError(f"{flag} {path}: has no function reward(prompt, completion) -> float")
    return found  # type: ignore[no-any-return]


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class PythonReward:
    """A reward by a Python function of texts, called from the compiled step.

    Each device passes the tokens of its own rows. The function must return equal rewards for equal
    texts, since a resumed run calls it again.

    Attributes:
        failure: The error of the function, in one line; None while it works. The caller of the step
            raises it instead of JAX's error.
    """

    def __init__(
        self,
        function: RewardFunction,
        tokenizer: Any,
        name: str,
        prompts: Sequence[str] | None = None,
        clean: Callable[[str], str] = str,
    ):
        """Stores the function and its inputs.

        Args:
            function: The reward of a prompt with its completion.
            tokenizer: Tokenizer of the samples; None if only :meth:`value` is used.
            name: Name of the function's file, for messages.
            prompts: Prompts for the function, by number, from
                :func:`.on_policy_task.reward_prompts`; None decodes the tokens before the
                completion.
            clean: Preprocessing of the text of a completion.
        """
        self.function, self.tokenizer, self.name = function, tokenizer, name
        self.prompts, self._clean = prompts, clean
        self.failure: str | None = None

    def value(self, prompt: str, completion: str) -> float:
        """Returns the reward of a completion.

        Raises:
            DataError: The function raises, or does not return a number that is finite in float32.
        """
        shown = f"{self.name}: reward({prompt[:40]!r}, {completion[:40]!r})"
        try:
            found: Any = self.function(prompt, completion)
        except (Exception, SystemExit) as error:
            self.failure = f"{shown} raised {_said(error)}"
            raise DataError(self.failure) from None
        try:
            number = float(found)
        except OverflowError:  # may have too many digits to print
            number, found = math.inf, "an integer that is too large"
        except (TypeError, ValueError):
            number = math.nan
        if not abs(number) <= _LARGEST:  # also for NaN
            self.failure = f"{shown} returned {str(found)[:40]}: a finite number is needed"
            raise DataError(self.failure)
        return number

    def __call__(self, model: Policies, samples: Samples) -> Float[Array, " B"]:
        """Returns the rewards of samples."""
        del model
        call: Any = lambda *rows: jax.pure_callback(
            self._rewards, jax.ShapeDtypeStruct(rows[0].shape[:1], jnp.float32), *rows
        )
        rows = samples.tokens, samples.starts, samples.lengths, samples.numbers
        if current_mesh() is not None:
            by_row = P(("data", "fsdp"))
            call = jax.shard_map(call, in_specs=by_row, out_specs=by_row, check_vma=False)
        return call(*rows)  # type: ignore[no-any-return]

    def _rewards(self, tokens: Any, starts: Any, lengths: Any, numbers: Any) -> np.ndarray:
        parts = (np.asarray(part).tolist() for part in (tokens, starts, lengths, numbers))
        texts = []
        for row, start, end, number in zip(*parts, strict=True):
            asked, written = row[:start], row[start:end]
            prompt = self.tokenizer.decode(asked)
            completion = continuation_text(self.tokenizer, asked, written, prompt)
            given = prompt if self.prompts is None else self.prompts[number]
            texts.append((given, self._clean(completion)))
        return np.array([self.value(*pair) for pair in texts], np.float32)


def model_reward(model: Policies, samples: Samples) -> Float[Array, " B"]:
    """Returns the reward of each sample by the reward model."""
    assert model.reward is not None, "the task has a reward model"
    return model.reward(samples.tokens, samples.lengths)[:, 0]
