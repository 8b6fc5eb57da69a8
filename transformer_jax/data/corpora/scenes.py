"""``scenes``: any number of pictures of drawn shapes, with captions.

A picture shows one thing, two or three equal things, or two things in a relation. Its caption
follows from a grammar, and is determined by the picture: "a small red circle", "two large blue
squares", "a large green cross above a small red circle". With two things, the caption begins with
the one whose color and shape come first in the alphabet.
"""

import dataclasses
import hashlib
import random
from collections.abc import Sequence
from functools import cache
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, UInt8

from transformer_jax.core.errors import ConfigError, plural

__all__ = [
    "BACKGROUND",
    "COLORS",
    "HELD_OUT",
    "SHADES",
    "SHAPES",
    "SIDE",
    "SIZES",
    "STEP",
    "Scenes",
    "Split",
    "Thing",
    "caption_of",
    "generate",
    "named_boxes",
    "shape_mask",
    "split_of",
]

Split = Literal["train", "valid", "test", "test_unseen"]

SIDE = 48  # pixels per side of a picture
BACKGROUND = (24, 24, 24)
COLORS = {
    "red": (225, 35, 40),
    "orange": (245, 135, 25),
    "yellow": (245, 225, 55),
    "green": (45, 175, 60),
    "cyan": (60, 215, 225),
    "blue": (45, 80, 235),
    "purple": (150, 50, 200),
    "pink": (250, 150, 200),
    "brown": (130, 80, 45),
    "white": (245, 245, 245),
    "gray": (130, 130, 135),
    "lime": (170, 240, 60),
}
SHADES = 20  # the largest change of each of red, green and blue
SHAPES = {
    "circle": "circles",
    "cross": "crosses",
    "diamond": "diamonds",
    "ring": "rings",
    "square": "squares",
    "triangle": "triangles",
}
SIZES = {"small": 8, "large": 16}  # pixels per side of a thing
STEP = 4  # pixels: first rows and columns of things are multiples of this
# Combinations missing from train, valid and test: each shape once, each color at most once.
HELD_OUT = frozenset(
    {
        ("red", "diamond"),
        ("green", "triangle"),
        ("blue", "circle"),
        ("yellow", "cross"),
        ("purple", "square"),
        ("cyan", "ring"),
    }
)

_NUMBERS = {1: "a", 2: "two", 3: "three"}
_ASIDE = 0.1  # fraction of the pictures, for each of valid and test
_KINDS = ("one", "several", "relation", "relation")  # as often as listed


@dataclasses.dataclass(frozen=True)
class Thing:
    """A drawn shape.

    Example:
        >>> Thing("red", "circle", "small", top=3, left=20).box
        (3, 20, 11, 28)
    """

    color: str
    shape: str
    size: str
    top: int
    left: int
    shade: tuple[int, int, int] = (0, 0, 0)  # added to the usual red, green and blue

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The first row and column, and the row and column after the last."""
        side = SIZES[self.size]
        return self.top, self.left, self.top + side, self.left + side

    @property
    def rgb(self) -> tuple[int, ...]:
        """Red, green and blue, 0 to 255."""
        both = zip(COLORS[self.color], self.shade, strict=True)
        return tuple(min(255, max(0, usual + more)) for usual, more in both)

    @property
    def mask(self) -> Bool[np.ndarray, "height width"]:
        """True at the pixels of the thing."""
        top, left, bottom, right = self.box
        found = np.zeros((SIDE, SIDE), bool)
        found[top:bottom, left:right] = shape_mask(self.shape, SIZES[self.size])
        return found


@dataclasses.dataclass(frozen=True)
class Scenes:
    """Pictures with their captions, and the things in each.

    Attributes:
        pixels: One array of all pictures.
        captions: Caption of each picture.
        things: Things in each picture, in the order of its caption.
    """

    pixels: UInt8[np.ndarray, "N height width 3"]
    captions: tuple[str, ...]
    things: tuple[tuple[Thing, ...], ...]

    def __len__(self) -> int:
        return len(self.captions)


@cache
def shape_mask(shape: str, side: int) -> Bool[np.ndarray, "{side} {side}"]:
    """Returns the pixels of a shape, which reaches all four sides of its box.

    Example:
        >>> shape_mask("triangle", 4).astype(int)
        array([[0, 1, 1, 0],
               [0, 1, 1, 0],
               [1, 1, 1, 1],
               [1, 1, 1, 1]])
    """
    center = (side - 1) / 2
    y, x = np.mgrid[:side, :side] - center
    if shape in ("circle", "ring"):
        distance = np.hypot(y, x)
        inside = distance < center / 2 if shape == "ring" else False
        return np.asarray((distance <= center + 0.5) & ~np.asarray(inside))
    if shape == "cross":
        return np.asarray((abs(y) <= side / 6) | (abs(x) <= side / 6))
    if shape == "diamond":
        return np.asarray(abs(y) + abs(x) <= center + 0.5)
    if shape == "triangle":
        return np.asarray(abs(x) <= (y + center) / 2 + 0.5)
    return np.ones((side, side), bool)


def caption_of(things: tuple[Thing, ...]) -> str:
    """Returns the caption of a picture of these things, given in any order.

    Example:
        >>> red = Thing("red", "circle", "small", top=3, left=20)
        >>> blue = Thing("blue", "square", "large", top=4, left=2)
        >>> caption_of((red,)), caption_of((red, blue))
        ('a small red circle', 'a large blue square left of a small red circle')
    """
    first, last = (things := _in_order(things))[0], things[-1]
    if _kind(first) == _kind(last):
        noun = first.shape if len(things) == 1 else SHAPES[first.shape]
        return f"{_NUMBERS[len(things)]} {first.size} {first.color} {noun}"
    return f"{caption_of((first,))} {_relation(first, last)} {caption_of((last,))}"


def named_boxes(
    words: Sequence[str], things: tuple[Thing, ...]
) -> dict[int, list[tuple[int, int, int, int]]]:
    """Returns the boxes of the things that each word for a shape refers to, by its position.

    Args:
        words: The words of the correct caption; more words may follow.
        things: The things of the picture, in the order of its caption.

    Example:
        >>> red = Thing("red", "circle", "small", top=3, left=20)
        >>> named_boxes("a small red circle".split(), (red,))
        {3: [(3, 20, 11, 28)]}
    """
    places = [i for i, word in enumerate(words) if word in SHAPES or word in SHAPES.values()]
    parts = [things] if len(places) == 1 else [(thing,) for thing in things]
    return {
        place: [thing.box for thing in meant] for place, meant in zip(places, parts, strict=True)
    }


def split_of(things: tuple[Thing, ...]) -> Split:
    """Returns the split of a picture, for any seed.

    Example:
        >>> split_of((Thing("blue", "circle", "small", top=3, left=20),))
        'test_unseen'
    """
    if any((thing.color, thing.shape) in HELD_OUT for thing in things):
        return "test_unseen"
    text = " ".join(f"{one.size} {one.color} {one.shape} {one.top} {one.left}" for one in things)
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48
    return "test" if place < _ASIDE else "valid" if place < 2 * _ASIDE else "train"


def generate(split: Split, count: int, seed: int = 0) -> Scenes:
    """Generates ``count`` pictures of a split.

    A picture depends on the split, the seed and its index: a smaller count is a prefix of a larger.
    A hash of its content decides its split, so no picture is in two splits; one with a held-out
    combination of color and shape belongs to ``test_unseen``.

    Raises:
        ConfigError: An unknown split, or a negative count.

    Example:
        >>> made = generate("train", 3)
        >>> made.captions[0], made.pixels.shape
        ('a small orange circle left of a small pink triangle', (3, 48, 48, 3))
    """
    if split not in get_args(Split) or count < 0:
        raise ConfigError(
            f"scenes: no {plural(count, 'picture')} of {split!r}; the splits are "
            f"{', '.join(get_args(Split))} and a count is 0 or more"
        )
    pixels = np.full((count, SIDE, SIDE, 3), BACKGROUND, np.uint8)
    shown = []
    for index, picture in enumerate(pixels):
        draw = random.Random(f"scenes {split} {seed} {index}")
        things = _things(draw)
        while split_of(things) != split:
            things = _things(draw)
        for thing in things:
            top, left, bottom, right = thing.box
            window = picture[top:bottom, left:right]
            window[shape_mask(thing.shape, SIZES[thing.size])] = thing.rgb
        shown.append(things)
    return Scenes(pixels, tuple(map(caption_of, shown)), tuple(shown))


def _kind(thing: Thing) -> tuple[str, str]:
    return thing.color, thing.shape


def _in_order(things: tuple[Thing, ...]) -> tuple[Thing, ...]:
    """Sorts things by color and shape, and equal things from the top left."""
    return tuple(sorted(things, key=lambda one: (*_kind(one), one.top, one.left)))


def _relation(one: Thing, other: Thing) -> str:
    """Returns the relation of two things that overlap either in rows or in columns."""
    if one.box[3] <= other.left:
        return "left of"
    if other.box[3] <= one.left:
        return "right of"
    return "above" if one.top < other.top else "below"


def _things(draw: random.Random) -> tuple[Thing, ...]:
    """Draws the things of a picture, in the order of its caption."""
    sort = draw.choice(_KINDS)
    color, shape = draw.choice([*COLORS]), draw.choice([*SHAPES])
    if sort == "relation":
        second = color, shape
        while second == (color, shape):
            second = draw.choice([*COLORS]), draw.choice([*SHAPES])
        return _in_order(_neighbors(draw, (color, shape), second))
    size, many = draw.choice([*SIZES]), 1 if sort == "one" else draw.randint(2, 3)
    placed: list[Thing] = []
    while len(placed) < many:
        free = SIDE - SIZES[size]
        one = Thing(color, shape, size, _place(draw, 0, free), _place(draw, 0, free), _shade(draw))
        apart = SIZES[size] + STEP
        if all(abs(one.top - o.top) >= apart or abs(one.left - o.left) >= apart for o in placed):
            placed.append(one)
        elif draw.random() < 0.05:
            placed = []  # there may be no room for the last one
    return _in_order(tuple(placed))


def _neighbors(
    draw: random.Random, one: tuple[str, str], other: tuple[str, str]
) -> tuple[Thing, Thing]:
    """Draws two things, the second to the right of the first or below it.

    In the other direction, they overlap by at least half of the smaller one.
    """
    sizes = draw.choice([*SIZES]), draw.choice([*SIZES])
    first, second = (SIZES[size] for size in sizes)
    along = _place(draw, 0, SIDE - first - STEP - second)
    behind = _place(draw, along + first + STEP, SIDE - second)
    across = _place(draw, 0, SIDE - first)
    shared = (min(first, second) + 1) // 2
    lowest, highest = max(0, across - second + shared), min(SIDE - second, across + first - shared)
    aside = _place(draw, lowest, highest)
    if draw.random() < 0.5:
        places = (across, along), (aside, behind)
    else:
        places = (along, across), (behind, aside)
    return (
        Thing(*one, sizes[0], *places[0], _shade(draw)),
        Thing(*other, sizes[1], *places[1], _shade(draw)),
    )


def _place(draw: random.Random, low: int, high: int) -> int:
    """Draws a row or a column from ``low`` to ``high``."""
    return STEP * draw.randint(-(-low // STEP), high // STEP)


def _shade(draw: random.Random) -> tuple[int, int, int]:
    """Draws a shade of a color."""
    red, green, blue = (draw.randint(-SHADES, SHADES) for _ in range(3))
    return red, green, blue
