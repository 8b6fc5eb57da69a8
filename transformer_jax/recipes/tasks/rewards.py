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
from transformer_jax.decoding.writing import continuation_text
from transformer_jax.functional.partitioning import current_mesh
from transformer_jax.training.on_policy import Samples
from transformer_jax.training.preference_objectives import Policies

__all__ = ["PythonReward", "load_reward", "model_reward"]

RewardFunction = Callable[[str, str], float]

_LARGEST = float(np.finfo(np.float32).max)  # training computes with float32


def load_reward(path: str, flag: str = "--reward.file") -> RewardFunction:
    """The function ``reward(prompt, completion) -> float`` of a Python file.

    The file is run: use files that you trust.

    Args:
        path: The file.
        flag: The setting that names it, for messages.

    Raises:
        ConfigError: The file is missing, cannot be run, or has no such function.
    """
    if not os.path.isfile(path):  # False, too, of names that no file can have
        raise ConfigError(f"{flag} {path}: there is no such file")
    spec = importlib.util.spec_from_file_location("reward_file", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{flag} {path}: a Python file is wanted, whose name ends in .py")
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
    """Rewards samples by a Python function of texts, called from the compiled step.

    Each device hands over the tokens of its own rows. The function has to give equal rewards to
    equal texts: a run that resumes asks again.

    Attributes:
        failure: What the function did wrong, in one line; None while it works. Whoever runs the
            step raises it in place of JAX's error.
    """

    def __init__(
        self,
        function: RewardFunction,
        tokenizer: Any,
        name: str,
        prompts: Sequence[str] | None = None,
        clean: Callable[[str], str] = str,
    ):
        """Takes a function with all that it needs.

        Args:
            function: The reward of a prompt with its completion.
            tokenizer: Of the samples; None where only :meth:`value` is used.
            name: Of the function's file, for messages.
            prompts: What the function is given as the prompt, by its number, as
                :func:`.on_policy_task.reward_prompts` has them; None is the text of the tokens
                before the completion.
            clean: What the function is given of the text of a completion.
        """
        self.function, self.tokenizer, self.name = function, tokenizer, name
        self.prompts, self._clean = prompts, clean
        self.failure: str | None = None

    def value(self, prompt: str, completion: str) -> float:
        """The reward of a completion.

        Raises:
            DataError: The function raises, or returns anything but a number that is finite in
                float32.
        """
        shown = f"{self.name}: reward({prompt[:40]!r}, {completion[:40]!r})"
        try:
            found: Any = self.function(prompt, completion)
        except (Exception, SystemExit) as error:
            self.failure = f"{shown} raised {_said(error)}"
            raise DataError(self.failure) from None
        try:
            number = float(found)
        except OverflowError:  # its digits may be too many to print
            number, found = math.inf, "an integer that is too large"
        except (TypeError, ValueError):
            number = math.nan
        if not abs(number) <= _LARGEST:  # NaN, too
            self.failure = f"{shown} returned {str(found)[:40]}: a finite number is wanted"
            raise DataError(self.failure)
        return number

    def __call__(self, model: Policies, samples: Samples) -> Float[Array, " B"]:
        """The rewards of samples."""
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
    found = model.reward(samples.tokens, samples.lengths)
    return found[:, 0]  # type: ignore[no-any-return]
