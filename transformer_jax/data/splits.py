"""The parts of a run's data: training, validation and tests, from one source."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Generic, TypeVar

from transformer_jax.core.config_fields import Configuration
from transformer_jax.core.errors import ConfigError, DataError

__all__ = ["HELD_OUT", "DataSplits", "held_by_hash", "refuse_several"]

HELD_OUT = " (held out)"  # end of the name of a part that was held out from training
Part = TypeVar("Part")


@dataclasses.dataclass(frozen=True)
class DataSplits(Generic[Part]):
    """All data of a run.

    Attributes:
        train: Training data.
        valid: Validation data; None if there is none.
        tests: Test data by name.
        overlaps: A line for each given file whose data also occur in the training data.
    """

    train: Part
    valid: Part | None = None
    tests: dict[str, Part] = dataclasses.field(default_factory=dict)
    overlaps: tuple[str, ...] = ()


def refuse_several(data: Configuration, *sources: str) -> None:
    """Refuses settings with several sources of data, or a TFDS folder without the set's name.

    Args:
        data: The settings.
        sources: Names of the fields, each of which gives all data.

    Raises:
        ConfigError: The message names them.
    """
    given = [f"data.{name}" for name in sources if getattr(data, name, None) is not None]
    if len(given) > 1:
        others = "others" if len(given) > 2 else "other"
        raise ConfigError(
            f"data is given in more than one way ({', '.join(given)}): keep one, and set the "
            f"{others} to None"
        )
    if getattr(data, "tfds_dir", None) is not None and getattr(data, "tfds", None) is None:
        raise ConfigError("data.tfds_dir is given without data.tfds, the name of the data set")


def held_by_hash(texts: Sequence[bytes], share: float, alone: str) -> list[bool]:
    """Returns whether each example is held out from training, by a hash of its text.

    The choice depends neither on the order of the examples nor on how often a text occurs.

    Args:
        texts: The text of each example; those with equal texts stay together.
        share: Fraction of the distinct texts that are held out; at least one is.
        alone: Beginning of the message if there are fewer than two distinct texts.

    Raises:
        DataError: There are fewer than two distinct texts, so none can be held out.

    Example:
        >>> held_by_hash([b"a", b"b", b"a"], 0.5, "example: one text")
        [True, False, True]
    """
    keys = [hashlib.blake2b(text, digest_size=8).digest() for text in texts]
    ordered = sorted(set(keys))
    if len(ordered) < 2:
        raise DataError(
            f"{alone}, so none can be held out: give data.valid, or set data.read.validation_size "
            f"to 0"
        )
    bound = ordered[max(1, round(share * len(ordered))) - 1]
    return [key <= bound for key in keys]
