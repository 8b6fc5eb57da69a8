"""Settings given by a command, as opposed to the settings of a named run."""

import dataclasses
from collections.abc import Container
from typing import Generic, TypeVar

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.preparation import TextNormalization
from transformer_jax.recipes.settings import AnyRun

__all__ = ["Given", "normalization_of", "with_given", "with_normalization"]

Group = TypeVar("Group")


@dataclasses.dataclass(frozen=True)
class Given(Generic[AnyRun]):
    """The named run of a command, and the settings that its flags gave.

    Attributes:
        named: The settings before flags changed them.
        explicit_settings: Names of the settings set by flags, even to the value that they had.

    Example:
        >>> from transformer_jax.recipes.translation import Run
        >>> given = Given(Run(), frozenset({"model.d_model"}))
        >>> "model.d_model" in given, "model.head.bias" in given
        (True, False)
    """

    named: AnyRun
    explicit_settings: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        return name in self.explicit_settings


def with_given(
    base: Group, asked: Group, usual: Group, given: Container[str], prefix: str = "model."
) -> Group:
    """Returns ``base``, a nested dataclass, with the fields of ``asked`` that were given.

    A field counts as given if it differs from ``usual``, or if a flag set the same value.

    Args:
        base: Of the start of a run.
        asked: Of the run.
        usual: Of the named run.
        given: Names of the settings that the command gave.
        prefix: The name of the group, with a dot.
    """
    fields = {}
    for field in dataclasses.fields(base):  # type: ignore[arg-type]
        old, new, plain = (getattr(config, field.name) for config in (base, asked, usual))
        name = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(old):
            fields[field.name] = with_given(old, new, plain, given, f"{name}.")
        elif new != plain or name in given:
            fields[field.name] = new
    return dataclasses.replace(base, **fields)  # type: ignore[type-var]


def normalization_of(run: AnyRun) -> TextNormalization:
    """Returns the text normalization of a run: ``nfc`` if its data have no such setting."""
    read = getattr(run.data, "read", None)  # None for data without them, such as pictures
    normalization: TextNormalization = getattr(read, "normalization", "nfc")
    return normalization


def with_normalization(run: AnyRun, own: TextNormalization, given: Given[AnyRun]) -> AnyRun:
    """Returns the run with the text normalization of its tokenizer.

    Args:
        run: The settings of a run with an existing tokenizer.
        own: The normalization of the tokenizer.
        given: What the command gave.

    Raises:
        ConfigError: The command gave a different normalization.
    """
    read = getattr(run.data, "read", None)
    if read is None:
        return run
    if "data.read.normalization" in given and read.normalization != own:
        raise ConfigError(
            f"data.read.normalization is {read.normalization}, but the given tokenizer has "
            f"{own}: leave it out"
        )
    data = dataclasses.replace(run.data, read=dataclasses.replace(read, normalization=own))
    return dataclasses.replace(run, data=data)
