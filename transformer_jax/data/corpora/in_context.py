"""``in_context``: documents that each follow a rule of their own, to be found out while reading.

A document is lines such as ``ab>yx``. Its rule is fresh: a mapping of four letters to four
others, or to copy, or to write backwards. So nothing but the lines before tells how to go on, and
a model that does well has learnt to learn from its context (Brown et al. 2020).
"""

import dataclasses
import hashlib
import itertools
import random
import string
from typing import Literal, get_args

from transformer_jax.core.errors import ConfigError, plural

__all__ = ["EXAMPLE", "LINES", "Kind", "SequenceRule", "Split", "examples", "generate", "split_of"]

Split = Literal["train", "valid", "test"]
Kind = Literal["map", "copy", "reverse"]

LINES = 10  # of a document
EXAMPLE = "{input}>{output}\n"  # a line: short, so that what belongs together is near
_ALPHABET = string.ascii_lowercase[:12]  # few letters, so that each is soon known
_LETTERS = 4  # that a rule knows
_LENGTH = 2  # of inputs
_KINDS: tuple[Kind, ...] = ("map", "map", "map", "copy", "reverse")  # as often as they stand here
_ASIDE = 0.1  # of the rules, for each of valid and test


@dataclasses.dataclass(frozen=True)
class SequenceRule:
    """A transformation of the inputs of a document, and the letters that they are made of.

    Example:
        >>> SequenceRule("map", "abcd", "wxyz").apply("cab")
        'ywx'
        >>> SequenceRule("reverse", "abcd").apply("cab")
        'bac'
        >>> str(SequenceRule("map", "abcd", "wxyz"))
        'map abcd wxyz'
    """

    kind: Kind
    letters: str
    images: str = ""  # of the letters, if they are mapped

    def __str__(self) -> str:
        return f"{self.kind} {self.letters} {self.images}".rstrip()

    def apply(self, text: str) -> str:
        """The output of an input."""
        if self.kind == "map":
            return text.translate(str.maketrans(self.letters, self.images))
        return text if self.kind == "copy" else text[::-1]


def split_of(rule: SequenceRule) -> Split:
    """The split that has a rule, whatever the seed.

    Example:
        >>> split_of(SequenceRule("copy", "abcd"))
        'train'
    """
    place = int.from_bytes(hashlib.sha256(str(rule).encode()).digest()[:6], "big") / 2**48
    return "test" if place < _ASIDE else "valid" if place < 2 * _ASIDE else "train"


def generate(split: Split, count: int, seed: int = 0) -> list[str]:
    """``count`` documents, each the `LINES` lines of one rule on different inputs.

    A document depends on the split, the seed and its number: fewer are the beginning of more.

    Raises:
        ConfigError: No such split, or a negative count.

    Example:
        >>> print(generate("train", 1, seed=1)[0][:17])
        ch>ki
        gh>fi
        ce>ka
    """
    _check(split, count)
    made = (_records(split, index, seed, LINES) for index in range(count))
    return ["".join(EXAMPLE.format(**record) for record in records) for records in made]


def examples(
    split: Split, count: int, seed: int = 0
) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """A pool of examples and ``count`` queries, each of another rule, to make prompts of.

    Both are tables with the fields ``rule``, ``input`` and ``output``. The pool has `LINES`
    examples of the rule of each query, none of them with its input.

    Raises:
        ConfigError: No such split, or a negative count.

    Example:
        >>> pool, queries = examples("test", 2, seed=5)
        >>> queries[0], sum(example["rule"] == queries[0]["rule"] for example in pool)
        ({'rule': 'map begi hkaj', 'input': 'eg', 'output': 'ka'}, 10)
    """
    _check(split, count)
    pool, queries, index = [], dict[str, dict[str, str]](), 0
    while len(queries) < count:
        query, *others = _records(split, index, seed, LINES + 1)
        index += 1
        if query["rule"] not in queries:
            queries[query["rule"]] = query
            pool += others
    return pool, list(queries.values())


def _check(split: str, count: int) -> None:
    if split not in get_args(Split) or count < 0:
        raise ConfigError(
            f"in_context: no {plural(count, 'document')} of {split!r}; "
            f"the splits are {', '.join(get_args(Split))} and a count is 0 or more"
        )


def _records(split: Split, index: int, seed: int, count: int) -> list[dict[str, str]]:
    draw = random.Random(f"in_context {split} {seed} {index}")
    rule = _rule(draw)
    while split_of(rule) != split:
        rule = _rule(draw)
    inputs = ["".join(word) for word in itertools.product(rule.letters, repeat=_LENGTH)]
    return [
        {"rule": str(rule), "input": text, "output": rule.apply(text)}
        for text in draw.sample(inputs, count)
    ]


def _rule(draw: random.Random) -> SequenceRule:
    kind = draw.choice(_KINDS)
    some = draw.sample(_ALPHABET, 2 * _LETTERS)
    if kind == "map":
        pairs = sorted(zip(some[:_LETTERS], some[_LETTERS:], strict=True))
        return SequenceRule(kind, "".join(a for a, _ in pairs), "".join(b for _, b in pairs))
    return SequenceRule(kind, "".join(sorted(some[:_LETTERS])))
