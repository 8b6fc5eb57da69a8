"""Limits on the parts of a ``tokenizer.json``, checked before the library reads the file.

The library applies parts while it reads them: a normalizer that makes a text a million times as
long ends the program. Vocabulary and merges need no limit of their own, since the work that they
cause is proportional to their size; they are skipped without building their values.
"""

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple, cast

from transformer_jax.core.errors import DataError, plural
from transformer_jax.core.json_types import Json
from transformer_jax.data.tokenizer_files.patterns import examine

__all__ = ["TokenizerParts", "check_parts", "longest_replacement"]

# Characters of one part, of the added tokens, and of a text or an expression in a part.
_LONGEST_PART, _LONGEST_TOKENS = 8_000_000, 32_000_000
_LONGEST_TEXT, _LONGEST_PATTERN = 1_000, 4_000
_MOST_PARTS = 64
_MOST_GROWTH = 100  # times as many characters
_MOST_FRAME = 1_000  # special tokens around a text
_MOST_WORD = 10_000  # characters of a word that is split into subwords
_MOST_ADDED = 5_000_000  # characters of added tokens, after normalization

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_FLAT = rf"(?:[^\[\]{{}}\"]++|{_STRING})*+"
# A vocabulary or a list of merges: no lists or objects but, in a list, lists of texts and numbers.
_SKIPPED = re.compile(rf"\{{{_FLAT}\}}|\[(?:[^\[\]{{}}\"]++|{_STRING}|\[{_FLAT}\])*+\]", re.DOTALL)
_BLANK = re.compile(r"[ \t\r\n]*+")
_NAME = re.compile(_STRING, re.DOTALL)
_LARGE = ("vocab", "merges")
_LISTS = ("normalizers", "pretokenizers", "processors", "decoders")


class TokenizerParts(NamedTuple):
    """The parts of a file that change or divide texts.

    Attributes:
        parts: The values of ``normalizer``, ``pre_tokenizer`` and ``decoder``, as JSON.
        try_first: Whether an expression may backtrack for long.
    """

    parts: str
    try_first: bool


def check_parts(text: str) -> TokenizerParts:
    """Refuses a file whose parts could take time or memory out of proportion to a text.

    Args:
        text: The content of a ``tokenizer.json``.

    Raises:
        DataError: A part exceeds its limit, or the text is not a tokenizer's; the message does not
            name the file.

    Example:
        >>> part = '{"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}'
        >>> check_parts('{"pre_tokenizer": %s, "model": {"vocab": {"a": 0}}}' % part).try_first
        True
    """
    fields = _fields(text)
    for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        if fields.get(name) is not None and not isinstance(fields[name], dict):
            raise DataError(f"{name} is not an object")
    _check_model(fields.get("model"))
    _check_frame(fields.get("post_processor"))
    _check_texts("post_processor", fields.get("post_processor"))
    named = {name: fields.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")}
    effects = {name: _effect(name, part) for name, part in named.items()}
    _check_added(fields.get("added_tokens"), effects["normalizer"])
    return TokenizerParts(json.dumps(named), not all(one.safe for one in effects.values()))


def longest_replacement(charsmap: bytes) -> int:
    r"""Returns the length of the longest text in a table of normalization (SentencePiece).

    Example:
        >>> longest_replacement(struct.pack("<I", 4) + b"trie" + b"ab\0abcd\0")
        4
    """
    size = struct.unpack("<I", charsmap[:4].ljust(4, b"\0"))[0]
    texts = charsmap[4 + size :].split(b"\0")
    return max(len(text.decode("utf-8", "replace")) for text in texts)


def _fields(text: str) -> dict[str, Json]:
    """Returns the fields of the file, and those of its model except vocabulary and merges."""
    try:
        fields: dict[str, Json] = {}
        for name, at in (walk := _Walk(text)).members():
            if name == "model" and text.startswith("{", at):
                model: dict[str, Json] = {}
                for key, start in walk.members():
                    skipped = key in _LARGE and walk.skip()
                    model[key] = None if skipped else walk.value(f"model.{key}", start)
                fields[name] = model
            else:
                fields[name] = walk.value(name, at)
        walk.end()
    except RecursionError:
        raise DataError("it is too deeply nested") from None
    return fields


class _Walk:
    """A walk through the members of nested objects, in order."""

    def __init__(self, text: str):
        self._text = text
        self._decoder = json.JSONDecoder(object_pairs_hook=_unique)
        self._at = self._blank(0)

    def members(self) -> Iterator[tuple[str, int]]:
        """Yields names and the positions of values, which the caller must read or skip."""
        self._take("{")
        seen = set[str]()
        while not (not seen and self._text.startswith("}", self._at)):
            found = _NAME.match(self._text, self._at)
            if found is None:
                raise DataError(f"it is not JSON at character {self._at}: a name is missing")
            name = str(self._json(found[0][:1_000], 0)[0])
            if name in seen:
                raise DataError(f"the name {name[:40]!r} is repeated")
            seen.add(name)
            self._at = self._blank(found.end())
            self._take(":")
            yield name, self._at
            if not self._text.startswith(",", self._at):
                break
            self._take(",")
        self._take("}")

    def value(self, name: str, at: int) -> Json:
        """Reads a value of limited length."""
        most = _LONGEST_TOKENS if name == "added_tokens" else _LONGEST_PART
        part = self._text[at : at + most]
        try:
            value, end = self._json(part, 0)
        except DataError:
            if len(part) == most:
                raise DataError(f"{name} is longer than {plural(most, 'character')}") from None
            raise
        self._at = self._blank(at + end)
        return value

    def skip(self) -> bool:
        """Skips a vocabulary or merges; returns whether the value has this form."""
        found = _SKIPPED.match(self._text, self._at)
        if found is not None:
            self._at = self._blank(found.end())
        return found is not None

    def end(self) -> None:
        """Refuses further text."""
        if self._at < len(self._text):
            raise DataError(f"it is not JSON at character {self._at}: it should end there")

    def _json(self, text: str, at: int) -> tuple[Json, int]:
        try:
            return self._decoder.raw_decode(text, at)
        except ValueError as error:
            raise DataError(f"it is not JSON: {str(error)[:100]}") from None

    def _take(self, mark: str) -> None:
        if not self._text.startswith(mark, self._at):
            raise DataError(f"it is not JSON at character {self._at}: {mark!r} is missing")
        self._at = self._blank(self._at + 1)

    def _blank(self, at: int) -> int:
        found = _BLANK.match(self._text, at)
        return found.end() if found else at


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise DataError("a name is repeated in an object")
    return found


def _check_model(model: Json) -> None:
    if not isinstance(model, dict):
        raise DataError("model is not an object")
    _check_texts("model", {key: value for key, value in model.items() if key not in _LARGE})
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, int) and longest > _MOST_WORD:
        raise DataError(
            f"model.max_input_chars_per_word is {longest}: at most {_MOST_WORD:,} are allowed"
        )


def _check_frame(part: Json) -> None:
    """Refuses special tokens around a text that are more than a frame."""
    for step in _steps("post_processor", part):
        tokens = step.get("special_tokens")
        sizes = {
            name: len(token["ids"])
            for name, token in (tokens.items() if isinstance(tokens, dict) else ())
            if isinstance(token, dict) and isinstance(token.get("ids"), list)
        }
        for name in ("single", "pair"):
            count, texts = 0, list[str]()
            for kind, id in _template(step.get(name)):
                count += sizes.get(id, 1)
                texts += [id] if kind == "Sequence" else []
            if count > _MOST_FRAME or len(texts) > len(set(texts)):
                raise DataError(
                    f"post_processor.{name} repeats a text, or puts more than {_MOST_FRAME:,} "
                    f"tokens around it"
                )


def _template(entries: Json) -> Iterator[tuple[str, str]]:
    """Yields the kinds and names of a template's entries."""
    for entry in entries if isinstance(entries, list) else ():
        for kind, value in entry.items() if isinstance(entry, dict) else ():
            yield kind, str(value.get("id")) if isinstance(value, dict) else ""


def _steps(name: str, part: Json) -> list[dict[str, Json]]:
    """Returns all steps of a part, those of sequences in their order."""
    steps, waiting = list[dict[str, Json]](), [part]
    while waiting:
        step = waiting.pop()
        if not isinstance(step, dict):
            continue
        steps.append(step)
        inner = [one for key in _LISTS if isinstance(step.get(key), list) for one in step[key]]
        if len(steps) + len(waiting) + len(inner) > _MOST_PARTS:
            raise DataError(f"{name} has more than {plural(_MOST_PARTS, 'step')}")
        waiting += inner
    return steps


class _Effect(NamedTuple):
    """The effect of steps on a text.

    Attributes:
        growth: How many times as long they can make it.
        prefixes: Characters that they add to each text.
        safe: Whether their expressions are known to be quick.
    """

    growth: float
    prefixes: int
    safe: bool


def _effect(name: str, part: Json) -> _Effect:
    """Checks a part that changes or divides texts.

    Raises:
        DataError: It makes texts many times as long.
    """
    steps = [_check_step(name, step) for step in _steps(name, part)]
    growth = math.prod(step.growth for step in steps)
    if growth > _MOST_GROWTH:
        raise DataError(
            f"{name}: its replacements make a text more than {_MOST_GROWTH} times as long"
        )
    return _Effect(growth, sum(step.prefixes for step in steps), all(step.safe for step in steps))


def _check_added(tokens: Json, normalizer: _Effect) -> None:
    """Refuses added tokens that are too long after normalization, which may change each of them."""
    _check_texts("added_tokens", tokens)
    listed = tokens if isinstance(tokens, list) else ()
    contents = [one.get("content") for one in listed if isinstance(one, dict)]
    size = sum(len(one) + normalizer.prefixes for one in contents if isinstance(one, str))
    if size * normalizer.growth > _MOST_ADDED:
        raise DataError(f"added_tokens have {plural(size, 'character')} in total, too many")


def _check_step(name: str, step: dict[str, Json]) -> _Effect:
    """Checks a step that changes or divides texts, and returns its effect."""
    charsmap = step.get("precompiled_charsmap")
    rest = {key: value for key, value in step.items()
            if key not in (*_LISTS, "pattern", "precompiled_charsmap")}  # fmt: skip
    _check_texts(name, rest)
    if charsmap is not None:
        return _Effect(_charsmap_growth(name, charsmap), 0, True)
    pattern, content = step.get("pattern"), step.get("content")
    if pattern is None:
        prefix = step.get("prepend")
        return _Effect(1.0, len(prefix) if isinstance(prefix, str) else 0, True)
    value = next(iter(pattern.values()), "") if isinstance(pattern, dict) else pattern
    if not isinstance(value, str):
        raise DataError(f"{name}.pattern is not a text")
    literal = not (isinstance(pattern, dict) and "Regex" in pattern)
    safe, least = (True, len(value)) if literal else examine(value)
    if not safe and len(value) > _LONGEST_PATTERN:
        raise DataError(
            f"{name}.pattern has {plural(len(value), 'character')}: at most {_LONGEST_PATTERN:,} "
            f"are allowed"
        )
    added = len(content) if isinstance(content, str) else 0
    growth = max(1.0, added / least) if least else 1.0 + added
    return _Effect(growth, 0, safe)


def _charsmap_growth(name: str, charsmap: Json) -> float:
    try:
        return float(longest_replacement(base64.b64decode(cast(str, charsmap), validate=True)))
    except (TypeError, ValueError, binascii.Error):
        raise DataError(f"{name}.precompiled_charsmap is damaged") from None


def _check_texts(name: str, value: Json) -> None:
    """Refuses long texts anywhere in a value."""
    waiting = [(name, value)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, str) and len(value) > _LONGEST_TEXT:
            raise DataError(
                f"{where} has {plural(len(value), 'character')}: at most {_LONGEST_TEXT:,} are "
                f"allowed"
            )
        if isinstance(value, dict):
            waiting += [(f"{where}.{str(key)[:40]}", one) for key, one in value.items()]
        elif isinstance(value, list):
            waiting += [(where, one) for one in value]
