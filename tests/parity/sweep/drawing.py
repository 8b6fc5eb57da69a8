"""Cases, and random numbers with shorthands for drawing one."""

import importlib
import pkgutil
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "quick_gelu",
               "tanh", "gelu_python", "gelu_fast")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A random configuration.

    Attributes:
        cls: The class of transformers.
        config: Arguments of its configuration.
        positions: Most tokens of a row; None is no bound.
        fields: Changes the ``config.json`` that was written.
        edit: Changes the tensors that were written.
        spare: Patterns of tensors of the file that the model has no use for.
        generates: Whether texts are generated too, where the model generates.
        inputs: What the model is given; None is what its kind is given.
    """

    cls: str
    config: Mapping[str, Any]
    positions: int | None = None
    fields: Callable[[dict[str, Any]], dict[str, Any]] = lambda fields: fields
    edit: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = lambda tensors: tensors
    spare: tuple[str, ...] = ()
    generates: bool = True
    inputs: Callable[["Draw"], dict[str, np.ndarray]] | None = None


class Draw(random.Random):
    """Random numbers of one case; all of them follow from the seed, the family and its number."""

    def __init__(self, seed: str, number: int):
        super().__init__(f"{seed}/{number}")
        self._first, self._number = random.Random(seed), number
        self.positions = self.choice([44, 60, 90])  # tokens, of learned positions

    def turn(self, options: Sequence[Any]) -> Any:
        """Each of ``options`` in turn as cases go by."""
        return options[(self._number + self._first.randrange(len(options))) % len(options)]

    def maybe(self, chance: float = 0.5) -> bool:
        """True with this probability."""
        return self.random() < chance

    def heads(self, sizes: Sequence[int] = (3, 4, 5, 6, 8, 12)) -> tuple[int, int]:
        """A number of heads, odd ones among them, and their size."""
        return self.choice([1, 2, 3, 4, 5, 7]), self.choice(sizes)

    def groups(self, heads: int) -> int:
        """A number of key heads for so many query heads."""
        return self.choice([n for n in range(1, heads + 1) if heads % n == 0])

    def layers(self) -> int:
        """Few, as each is compiled."""
        return self.choice([1, 2, 2, 3])

    def width(self) -> int:
        """The width of a feed-forward layer."""
        return self.choice([16, 33, 48, 50])

    def vocab(self) -> int:
        """A vocabulary."""
        return self.randrange(60, 130)

    def activation(self) -> str:
        """A name that transformers knows."""
        return self.choice(ACTIVATIONS)

    def eps(self) -> float:
        """The epsilon of a norm: large ones show."""
        return self.choice([1e-12, 1e-6, 1e-5, 1e-3, 0.1])


@dataclass(frozen=True)
class Family:
    """The drawing of cases of a family, and its known refusals."""

    case: Callable[[Draw], Case]
    refused: tuple[str, ...]


FAMILIES: dict[str, Family] = {}


def family(name: str, refused: Sequence[str] = ()) -> Callable:
    """Registers a function that draws cases.

    Args:
        name: What the family is called in test ids.
        refused: Patterns of errors of ours that are known and meant.

    Raises:
        ValueError: Another function has this name. The same one may come again: a collection of
            doctests runs modules of packages once more, under a name of its own.
    """

    def register(case: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
        if name in FAMILIES and _place(FAMILIES[name].case) != _place(case):
            raise ValueError(f"two families are called {name}")
        FAMILIES[name] = Family(case, tuple(refused))
        return case

    return register


def _place(case: Callable[[Draw], Case]) -> tuple[str, int]:
    """The file and line of a function."""
    return case.__code__.co_filename, case.__code__.co_firstlineno


def find_families() -> dict[str, Family]:
    """All families, those of new modules of ``families/`` too."""
    package = importlib.import_module("tests.parity.sweep.families")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return FAMILIES


def draw_case(seed: str, name: str, number: int) -> Case:
    """The case of a family with this number."""
    return FAMILIES[name].case(Draw(f"{seed}/{name}", number))
