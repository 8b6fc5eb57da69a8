"""Preparation of text before tokenization or comparison, the same wherever text is read."""

import dataclasses
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int

from transformer_jax.core.config_fields import Configuration
from transformer_jax.data.bad_rows import BadRowPolicy
from transformer_jax.data.words import mark_groups

__all__ = ["BLANKS", "PlacedText", "Preparation", "ReadSettings", "TextNormalization", "compose"]

TextNormalization = Literal["nfc", "none"]

_SPACES = 0x3001  # white space of every script is below this
# Not part of a line at its ends: white space of any script, a byte order mark left over from the
# file, and zero-width blanks.
BLANKS = "".join(filter(str.isspace, map(chr, range(_SPACES)))) + "\ufeff\u200b\u2060"
_LINE_END = re.compile(r"\r?\n")


def compose(text: str) -> str:
    r"""Composes the characters of a text (NFC): canonically equal texts become equal.

    Source: Unicode Standard Annex 15.

    Example:
        >>> compose("e\u0301") == "\u00e9"
        True
    """
    return unicodedata.normalize("NFC", text)


class PlacedText(NamedTuple):
    """A prepared text, and where its characters come from.

    Attributes:
        text: The text as a model reads it.
        places: The place of each character in the original, and the end of the original.
    """

    text: str
    places: Int[np.ndarray, " _"]

    def original(self, start: int, stop: int) -> tuple[int, int]:
        """Returns the span of the original from which a span of the text comes."""
        return int(self.places[start]), int(self.places[stop])

    def prepared(self, start: int, stop: int) -> tuple[int, int]:
        """Returns the span of the text that comes from a span of the original."""
        first, last = np.searchsorted(self.places, (start, stop))
        return int(first), int(last)


@dataclasses.dataclass(frozen=True)
class ReadSettings(Configuration, group="data.read"):
    """Options of every reader of training data."""

    # Rows that cannot be used: refuse lists up to twenty of them; skip leaves them out, and counts
    # them.
    bad_rows: BadRowPolicy = "refuse"
    lowercase: bool = False  # lower-case texts, but not labels
    normalization: TextNormalization = "nfc"  # composed characters (NFC), or none: text as it is


@dataclasses.dataclass(frozen=True)
class Preparation(Configuration, group="data.read"):
    """The preparation of a run's texts: one value for training and every use of the model.

    Attributes:
        normalization: ``nfc`` composes characters, ``none`` changes nothing.
        lowercase: Whether text is lower-cased.
        source_prefix: Text before every source.
        by_line: Whether a language model was trained on lines, without line ends.
        inside: Blanks inside a source: ``keep``; ``one_line`` turns a line end into a blank
            (sentence pairs), ``single`` every sequence of blanks into one (summaries).
    """

    normalization: TextNormalization = "nfc"
    lowercase: bool = False
    source_prefix: str = ""
    by_line: bool = False
    inside: Literal["keep", "one_line", "single"] = "keep"

    @classmethod
    def of(cls, read: Any) -> "Preparation":
        r"""Returns the preparation for reading options.

        Args:
            read: Options such as :class:`transformer_jax.data.sources.ReadOptions`, or their fields
                as in ``config.json``. Missing fields mean no preparation.

        Example:
            >>> Preparation.of({"lowercase": True, "normalization": "nfc"}).line(" Um\n")
            'um'
        """
        if not isinstance(read, Mapping):
            read = {field.name: getattr(read, field.name) for field in dataclasses.fields(read)}
        pairs = "source_prefix" in read
        return cls(
            normalization="nfc" if read.get("normalization", "none") == "nfc" else "none",
            lowercase=bool(read.get("lowercase", False)),
            source_prefix=str(read.get("source_prefix", "")),
            by_line=read.get("documents") == "line",
            inside=("one_line" if "too_long" in read else "single") if pairs else "keep",
        )

    def text(self, text: str) -> str:
        r"""Prepares a text, keeping its blanks; for a model trained on lines, without line ends.

        Example:
            >>> Preparation(by_line=True).text("  one \n")
            '  one '
        """
        text = text.rstrip("\r\n") if self.by_line else text
        text = text.lower() if self.lowercase else text
        return compose(text) if self.normalization == "nfc" else text

    def placed(self, text: str) -> PlacedText:
        r"""Prepares a text in which places count, keeping its blanks and lines.

        Example:
            >>> placed = Preparation(lowercase=True).placed("CAFE\u0301 Olé")
            >>> placed.text, placed.original(5, 8), placed.prepared(6, 9)
            ('café olé', (6, 9), (5, 8))
        """
        text = _lowered(text) if self.lowercase else text
        if self.normalization != "nfc" or unicodedata.is_normalized("NFC", text):
            return PlacedText(text, np.arange(len(text) + 1))
        groups = [(at, len(group) - 1, compose(group)) for at, group in mark_groups(text)]
        # A letter may become several, such as क़ (U+0958): all of them lie at its place.
        places = [at + min(i, last) for at, last, one in groups for i in range(len(one))]
        return PlacedText("".join(one for *_, one in groups), np.array([*places, len(text)]))

    def line(self, text: str) -> str:
        r"""Prepares a line, without blanks at its ends.

        Blanks are white space of any kind, such as line ends, U+00A0 and U+3000.

        Example:
            >>> Preparation().line("\u3000este\u0301 aqui\u00a0\r\n")
            'esté aqui'
        """
        return self.text(text.strip(BLANKS))

    def source(self, text: str) -> str:
        """Prepares a line as an encoder reads it, after the prefix; an empty line stays empty.

        Example:
            >>> prepare = Preparation(source_prefix="to English: ")
            >>> prepare.source(" um "), prepare.source("  ")
            ('to English: um', '')
        """
        line = self.line(text)
        if self.inside == "single":
            line = " ".join(line.split())
        elif self.inside == "one_line":
            line = _LINE_END.sub(" ", line)
        return f"{self.source_prefix}{line}" if line else ""


def _lowered(text: str) -> str:
    """Lower-cases but keeps every place: one letter, İ, would become two.

    Example:
        >>> _lowered("İN"), len("İN".lower())
        ('İn', 3)
    """
    lower = text.lower()
    if len(lower) == len(text):
        return lower
    return "".join(new if len(new := old.lower()) == 1 else old for old in text)
