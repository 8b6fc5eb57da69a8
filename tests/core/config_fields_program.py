"""Gives every field of every configuration hostile values; prints what was not refused alike."""

import dataclasses
import importlib
import inspect
import json
import math
import pkgutil
import types
import typing
from pathlib import Path
from typing import Annotated, Literal

import transformer_jax
from transformer_jax.cli.flags import check_flags, flag_of, flags_of, read_words
from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.config_fields import Configuration, Range, field_help, field_types
from transformer_jax.core.errors import ConfigError
from transformer_jax.models.config import *  # noqa: F403
from transformer_jax.models.config import LoRAConfig  # noqa: F401
from transformer_jax.models.recurrent_config import AlignmentConfig, RecurrentConfig  # noqa: F401
from transformer_jax.training.settings import ScheduleConfig  # noqa: F401

# Results and parts of one function are no settings.
ELSEWHERE = ("transformer_jax.interop.", "transformer_jax.visual.")
NO_SETTINGS = {
    *(
        "Layer",
        "SequenceRule",
        "Preferences",
        "Continuation",
        "GenerationSequence",
        "Facts",
        "Prepared",
    ),
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
            own = own and dataclasses.is_dataclass(cls)
            if own and (issubclass(cls, Configuration) or ".cli." not in module.name):
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
    if typing.get_origin(kind) is Annotated:
        return example(typing.get_args(kind)[0])
    if typing.get_origin(kind) is Literal:
        return typing.get_args(kind)[0]
    return "x" if kind is str else typing.get_origin(kind)() if typing.get_origin(kind) else kind()


def refused(cls, name, value, found, must_name=""):
    found["tried"] += 1
    try:
        cls(**needed(cls) | {name: value})
    except ConfigError as error:
        flag = flag_of(cls, name)
        if name not in str(error) and flag not in str(error):
            found["unnamed"].append(f"{cls.__name__}.{name}={value!r}: {error}")
        if not alike(cls, name, value):
            found["unlike"].append(f"{cls.__name__}.{name}={value!r}")
        if must_name and f"did you mean {must_name}?" not in str(error):
            found["misguided"].append(f"{cls.__name__}.{name}={value!r}: {error}")
    else:
        found["accepted"].append(f"{cls.__name__}.{name}={value!r}")


def refuses(make):
    """Returns whether the field itself refuses a value, not a relation to other fields."""
    try:
        make()
    except ConfigError:
        return True
    return False


def alike(cls, name, value):
    """Returns whether JSON, and flags of numbers, refuse what Python refuses."""
    if not refuses(lambda: from_dict(cls, needed(cls) | {name: value})):
        return False
    kinds = numbers_of(field_types(cls)[name])
    if isinstance(value, str) or not kinds:
        return True
    return refuses(lambda: cls(**needed(cls) | {name: read_words(cls, name, [str(value)])}))


def texts_of(kind):
    """The types of texts that a field takes by itself."""
    if typing.get_origin(kind) is Annotated:
        return texts_of(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return set().union(*map(texts_of, typing.get_args(kind)))
    return {kind} & {str, Path}


def numbers_of(kind):
    """The types of numbers that a field takes; none if it takes texts or lists too."""
    if typing.get_origin(kind) is Annotated:
        return numbers_of(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return set().union(*map(numbers_of, typing.get_args(kind)))
    return {kind} & {int, float}


HOSTILE = (math.nan, math.inf, -math.inf, 10**400, -(10**400), "x", [], {}, object())


def endless(kind):
    """Returns whether a field admits infinity, and thus what a float takes for it."""
    return any(
        part.most == math.inf if isinstance(part, Range) else endless(part)
        for part in typing.get_args(kind)
    )


def attack(cls, name, kind, found):
    """Values that no number is, misspelt names, and the help."""
    if numbers_of(kind):
        for value in HOSTILE:
            if not (endless(kind) and isinstance(value, int | float) and value > 0):
                refused(cls, name, value, found)
    texts = ["\ud800", "a\0b"] * bool(texts_of(kind)) + [Path("x" * 300)] * (Path in texts_of(kind))
    for value in texts:
        refused(cls, name, value, found)
    wrong, flag = name[:-1] + "q" + name[-1], name.replace("_", "-")
    ways = [(lambda: from_dict(cls, {wrong: 1}), name)]
    if flag in flags_of(cls) and len(name) > 4:
        ways += [(lambda: check_flags("it", flags_of(cls), [f"--{wrong}"], "it"), flag)]
    for make, right in ways:
        try:
            make()
        except ConfigError as error:
            if f"did you mean {right}?" not in str(error) and f"mean --{right}" not in str(error):
                found["unguided"].append(f"{cls.__name__}.{wrong}: {error}")
    own = cls.__module__.split(".")[1] != "decoding"
    if own and not dataclasses.is_dataclass(kind) and not field_help(cls, name):
        found["unexplained"].append(f"{cls.__name__}.{name}")


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
    names = ("undeclared", "accepted", "unnamed", "misguided", "unlike", "unguided", "unexplained")
    found: dict = {name: [] for name in names}
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
            if name in vars(cls).get("__annotations__", {}):  # else its base has been tried
                attack(cls, name, kind, found)
            for choices in parts(kind, Literal):
                found["choices"] += 1
                for choice in map(str, typing.get_args(choices)):
                    refused(cls, name, f"{choice}x", found, choice if len(choice) > 3 else "")
                if not numbers_of(kind):
                    refused(cls, name, 7, found)
            for part in parts(kind, Annotated):
                base, limits = typing.get_args(part)[:2]
                if isinstance(limits, Range):
                    found["ranges"] += 1
                    for value in bad_numbers(limits, base is int) if not endless(kind) else ():
                        refused(cls, name, value, found)
                    refused(cls, name, "1", found)
    found["said"] = {text: said(text) for text in SAID}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
