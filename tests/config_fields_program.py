"""Makes every configuration of the package with values that it must refuse; prints JSON."""

import dataclasses
import importlib
import inspect
import json
import math
import pkgutil
import types
import typing
from typing import Annotated, Literal

import transformer_jax
from transformer_jax.config import *  # noqa: F403
from transformer_jax.config_fields import Configuration, Range, field_types
from transformer_jax.errors import ConfigError
from transformer_jax.recurrent_config import AlignmentConfig, RecurrentConfig  # noqa: F401
from transformer_jax.training.lora import LoRAConfig  # noqa: F401
from transformer_jax.training.schedules import ScheduleConfig  # noqa: F401

# Flags of commands are checked as they are read. Results and parts of one function are no settings.
ELSEWHERE = ("transformer_jax.cli.", "transformer_jax.interop.", "transformer_jax.visual.")
NO_SETTINGS = {
    *("Layer", "Rule", "Preferences", "Continuation", "GenerationSequence"),
    "BeamSearchConfig",  # a pytree of arrays, which checks itself
}
SAID = """
MixerConfig(kind='lstm')
MixerConfig(cell='ltsm')
PositionConfig(kind='rotary')
NormConfig(kind='batch')
NormConfig(placement='prenorm')
FeedForwardConfig(activation='rellu')
ComputeConfig(dtype='bf16')
ScheduleConfig('cosin')
AttentionConfig(num_heads='8')
AttentionConfig(num_heads=True)
NormConfig(residual_dropout=1.0)
ScoreConfig(sliding_window=0)
MixerConfig(dilations=[1, 0])
TransformerConfig(norm='rms')
LoRAConfig(2, base_dtype='bf16')
RecurrentConfig(cell='ltsm')
AlignmentConfig(score='genral')
MixerConfig(kind='convolution', dilations=[1, 2]).dilations
""".strip().splitlines()


def dataclasses_of_the_package():
    for module in pkgutil.walk_packages(transformer_jax.__path__, "transformer_jax."):
        if module.name.startswith(ELSEWHERE) or "__main__" in module.name:
            continue
        for cls in vars(importlib.import_module(module.name)).values():
            own = inspect.isclass(cls) and cls.__module__ == module.name
            if own and dataclasses.is_dataclass(cls):
                yield cls


def parts(kind, wanted):
    """Choices, or ranges, in the type of a field."""
    if typing.get_origin(kind) is wanted:
        yield kind
    elif typing.get_origin(kind) in (typing.Union, types.UnionType):
        for part in typing.get_args(kind):
            yield from parts(part, wanted)


def needed(cls):
    """Values of the fields without a default."""
    kinds = field_types(cls)
    return {
        field.name: example(kinds[field.name])
        for field in dataclasses.fields(cls)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }


def example(kind):
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Literal else kind()


def refused(cls, name, value, found, must_name=""):
    found["tried"] += 1
    try:
        cls(**needed(cls) | {name: value})
    except ConfigError as error:
        flag = name.replace("_", "-")
        if name not in str(error) and flag not in str(error):
            found["unnamed"].append(f"{cls.__name__}.{name}={value!r}: {error}")
        if must_name and f"did you mean {must_name}?" not in str(error):
            found["misguided"].append(f"{cls.__name__}.{name}={value!r}: {error}")
    else:
        found["accepted"].append(f"{cls.__name__}.{name}={value!r}")


def bad_numbers(limits, whole):
    def beyond(bound, end):
        return bound + end if whole else math.nextafter(bound, end * math.inf)

    if limits.least is not None:
        yield beyond(limits.least, -1)
    if limits.most not in (None, math.inf):
        yield beyond(limits.most, 1)
    yield from (bound for bound in (limits.above, limits.below) if bound is not None)
    yield 10**400
    if not whole:
        yield float("nan")
        if limits.most != math.inf:
            yield math.inf


def said(text):
    try:
        return str(eval(text))  # of this file
    except ConfigError as error:
        return str(error)


def main():
    found = {name: [] for name in ("undeclared", "accepted", "unnamed", "misguided")}
    found |= {"configurations": 0, "choices": 0, "ranges": 0, "tried": 0}
    for cls in dataclasses_of_the_package():
        if cls.__name__ == "Trainer":  # it needs a task
            continue
        if not issubclass(cls, Configuration):
            if cls.__name__ not in NO_SETTINGS and any(
                any(parts(kind, Literal)) for kind in field_types(cls).values()
            ):
                found["undeclared"].append(cls.__qualname__)
            continue
        found["configurations"] += 1
        for name, kind in field_types(cls).items():
            for choices in parts(kind, Literal):
                found["choices"] += 1
                for choice in map(str, typing.get_args(choices)):
                    refused(cls, name, f"{choice}x", found, choice if len(choice) > 3 else "")
                refused(cls, name, 7, found)
            for part in parts(kind, Annotated):
                base, limits = typing.get_args(part)[:2]
                if isinstance(limits, Range):
                    found["ranges"] += 1
                    for value in bad_numbers(limits, base is int):
                        refused(cls, name, value, found)
                    refused(cls, name, "1", found)
    found["said"] = {text: said(text) for text in SAID}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
