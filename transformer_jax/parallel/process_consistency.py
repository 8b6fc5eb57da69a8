"""Checks that settings are the same in all processes of a run before the work begins."""

import json
import socket
from collections.abc import Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_jax.core.errors import ConfigError, UserError
from transformer_jax.core.json_types import Json

__all__ = ["check_same", "first_difference", "gather_json"]

Value = TypeVar("Value", bound=Json)

_ABSENT = "absent"
_LONGEST = 80  # characters of a value in a message


def gather_json(value: Value) -> list[Value]:
    """Gathers the value of each process, in order; all processes must call it together.

    Args:
        value: A JSON value.
    """
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = np.ravel(multihost_utils.process_allgather(np.int32(len(text))))
    held = np.zeros(max(sizes), np.uint8)
    held[: len(text)] = text
    rows = np.asarray(multihost_utils.process_allgather(held)).reshape(len(sizes), -1)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def first_difference(answers: Sequence[Mapping[str, Json]]) -> tuple[int, str, Json, Json] | None:
    """The first process that differs from process 0, the name, and both values; None if none.

    Example:
        >>> first_difference([{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1, "b": 3}])
        (2, 'b', 3, 2)
        >>> first_difference([{"a": 1}, {}])
        (1, 'a', 'absent', 1)
    """
    for process, values in enumerate(answers):
        for name in {**answers[0], **values}:
            found, expected = (held.get(name, _ABSENT) for held in (values, answers[0]))
            if found != expected:
                return process, name, found, expected
    return None


def check_same(
    values: Mapping[str, Json], advice: str, error: type[UserError] = ConfigError
) -> None:
    """Refuses processes that differ; all call it together, and all raise the same error.

    Args:
        values: Named values of this process, as JSON.
        advice: The end of the message.
        error: Class of the error.

    Raises:
        UserError: Names the first difference, the process and its machine.
    """
    held = json.loads(json.dumps(dict(values), default=str))
    answers = gather_json((socket.gethostname(), held))
    found = first_difference([held for _, held in answers])
    if found is None:
        return
    process, name, value, expected = found
    shown = [json.dumps(one, ensure_ascii=False) for one in (value, expected)]
    now, then = (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..." for text in shown)
    raise error(
        f"{name} is {now} in process {process} on {answers[process][0]}, but {then} in process 0 "
        f"on {answers[0][0]}: {advice}"
    )
