"""Every field of a Hugging Face configuration changed, removed and of the wrong type."""

import copy
import json
from collections.abc import Iterator
from typing import Any

# What a word may become where it says something else than a type or an activation.
WORDS = {
    "rope_type": ("linear", "llama3", "yarn", "dynamic", "longrope"),
    "problem_type": ("regression", "single_label_classification", "multi_label_classification"),
    "model_type": ("bert", "gpt2", "llama", "t5", "mt5", "roberta"),
    "dtype": ("float16", "bfloat16", "float64", "int8", "auto"),
    "feed_forward_proj": ("relu", "gated-relu", "gated-gelu", "gelu_new", "gated-gelu_new"),
}
REMOVED = object()


def others(name: str, value: Any) -> Iterator[Any]:
    """Other values of a field: near ones, impossible ones, and some of another type."""
    yield REMOVED
    if value is not None:
        yield None
    if isinstance(value, bool):
        yield from (not value, 1, "true")
    elif isinstance(value, int):
        yield from (value + 1, 2 * value, 0, -1, value + 0.5, str(value), [value], True, 10**12)
    elif isinstance(value, float):
        yield from (10 * value + 0.01, -value - 1.0, 0, str(value), float("inf"))
    elif isinstance(value, str):
        yield from (*WORDS.get(name, ("relu", "gelu", "gelu_new", "tanh", "mish")), "nonsense", 3)
    elif isinstance(value, list):
        yield from (value[:-1], [*value, *value[:1]], value[::-1], "nonsense", 3)
    elif isinstance(value, dict):
        yield from ({}, [], "nonsense")
    elif value is None:
        yield from (3, 0.5, "nonsense", True)


def mutations(fields: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The name of a field, what it becomes, and the whole configuration with it."""
    for name, value in fields.items():
        for other in others(name, value):
            changed = copy.deepcopy(fields)
            if other is REMOVED:
                del changed[name]
            else:
                changed[name] = other
            yield name, "removed" if other is REMOVED else json.dumps(other), changed
        if isinstance(value, dict):
            for inner, what, group in mutations(value):
                yield f"{name}.{inner}", what, fields | {name: group}
