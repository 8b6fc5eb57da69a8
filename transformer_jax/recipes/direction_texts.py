"""Texts to evaluate directions on: named files, or the test pairs of a run."""

import dataclasses
from collections.abc import Mapping

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.task_progress import log
from transformer_jax.data.languages import Direction
from transformer_jax.data.pairs import Pairs
from transformer_jax.data.sources import PairData, load_splits, parallel_texts

__all__ = ["DirectionTexts", "Sides", "open_direction_texts"]

Sides = tuple[list[str], list[str]]  # sources and references


@dataclasses.dataclass(frozen=True)
class DirectionTexts:
    """The texts of an evaluation.

    Attributes:
        pairs: Test texts by direction, also used for the opposite directions.
        parallel: Test sentences by language, translations of each other line by line, for further
            directions.
        training: Training texts by language.
    """

    pairs: Mapping[Direction, Sides]
    parallel: Mapping[str, list[str]]
    training: Mapping[str, list[str]]

    def find(self, direction: Direction) -> Sides | None:
        """Returns the sources and references of a direction, or None."""
        if direction in self.pairs:
            return self.pairs[direction]
        opposite = Direction(direction.target, direction.source)
        if opposite in self.pairs:
            return self.pairs[opposite][1], self.pairs[opposite][0]
        source, target = (self.parallel.get(str(name)) for name in direction)
        return None if source is None or target is None else (source, target)

    def sides(self, direction: Direction) -> Sides:
        """Returns the sources and references of a direction.

        Raises:
            DataError: There are none.
        """
        found = self.find(direction)
        if found is None:
            raise DataError(
                f"--directions {direction}: no test text: give --data.pairs {direction}=FILE"
            )
        return found


def open_direction_texts(data: PairData, given: Mapping[str, Pairs]) -> DirectionTexts:
    """Returns the texts of an evaluation.

    Args:
        data: The data of the run.
        given: Pairs to evaluate on, for which the run's data need not exist; None is the test pairs
            of the run.

    Raises:
        DataError: The run's data cannot be read.
    """
    try:
        splits = load_splits(data)
    except (ConfigError, DataError) as error:
        if isinstance(error, DataError) and not given:
            raise
        # ConfigError: the training text is unknown, as for a published model.
        why = f": {error}" if isinstance(error, DataError) else ""
        log(f"no off-target rate, since the training text is missing{why}")
        return DirectionTexts(_sides(given), {}, {})
    tests, parallel = (given, {}) if given else (splits.tests, parallel_texts(data))
    training: dict[str, list[str]] = {}
    for direction, part in splits.train.by_direction().items():
        for language, texts in zip(direction, (part.sources, part.targets), strict=True):
            training.setdefault(str(language), []).extend(texts)
    return DirectionTexts(_sides(tests), parallel, training)


def _sides(tests: Mapping[str, Pairs]) -> dict[Direction, Sides]:
    found: dict[Direction, Sides] = {}
    for pairs in tests.values():
        for direction, part in pairs.by_direction().items():
            found.setdefault(direction, (part.sources, part.targets))
    return found
