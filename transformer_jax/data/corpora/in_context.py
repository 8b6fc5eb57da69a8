"""``in_context``: documents that each follow their own rule, to be inferred while reading.

A document consists of lines such as ``ab>yx``. Its rule is new: a mapping of four letters to four
others, copying, or reversing. Only the previous lines determine the next one, so a model that does
well has learned to learn from its context (Brown et al. 2020).
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

LINES = 10  # lines per document
EXAMPLE = "{input}>{output}\n"  # a short line, so that related letters are close
_ALPHABET = string.ascii_lowercase[:12]  # few letters, so that each is soon known
_LETTERS = 4  # letters in a rule
_LENGTH = 2  # length of inputs
_KINDS: tuple[Kind, ...] = ("map", "map", "map", "copy", "reverse")  # as often as listed
_ASIDE = 0.1  # fraction of the rules, for each of valid and test


@dataclasses.dataclass(frozen=True)
class SequenceRule:
    """A transformation of the inputs of a document, and the letters of the inputs.

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
        """Returns the output for an input."""
        if self.kind == "map":
            return text.translate(str.maketrans(self.letters, self.images))
        return text if self.kind == "copy" else text[::-1]


def split_of(rule: SequenceRule) -> Split:
    """Returns the split of a rule, for any seed.

    Example:
        >>> split_of(SequenceRule("copy", "abcd"))
        'train'
    """
    place = int.from_bytes(hashlib.sha256(str(rule).encode()).digest()[:6], "big") / 2**48
    return "test" if place < _ASIDE else "valid" if place < 2 * _ASIDE else "train"


def generate(split: Split, count: int, seed: int = 0) -> list[str]:
    """Generates ``count`` documents, each `LINES` lines of one rule on different inputs.

    A document depends on the split, the seed and its index: a smaller count is a prefix of a
    larger.

    Raises:
        ConfigError: An unknown split, or a negative count.

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
    """Generates a pool of examples and ``count`` queries, each with its own rule, for prompts.

    Both are tables with the fields ``rule``, ``input`` and ``output``. The pool has `LINES`
    examples for the rule of each query, none with its input.

    Raises:
        ConfigError: An unknown split, or a negative count.

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
