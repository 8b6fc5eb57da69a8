"""Fonts of pictures: characters missing from the usual font are drawn with another one."""

import contextlib
import functools
import logging
import unicodedata
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.core.errors import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["drawn", "missing_characters"]

_SHOWN = 5  # characters named in a warning

log = logging.getLogger(__name__)


def missing_characters(figure: "Figure") -> str:
    """Returns the characters of a figure missing from all installed fonts, sorted.

    Texts with characters missing from their font get further fonts, starting with those that have
    the most of these characters.
    """
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.text import Text

    texts = [each for each in figure.findobj(Text) if each.get_text()]  # type: ignore[arg-type]
    wanted = {char for each in texts for char in each.get_text() if _is_drawn(char)}
    usual = findfont(FontProperties())
    missing = {char for char in wanted if ord(char) not in _characters(usual)}
    families: list[str] = []
    while missing:
        path, family = max(
            _others(), key=lambda font: len(missing & _drawable(font[0])), default=("", "")
        )
        if not missing & _drawable(path):
            break
        families.append(family)
        missing -= _drawable(path)
    if families:
        for each in texts:
            own = each.get_fontfamily()
            each.set_fontfamily([*([own] if isinstance(own, str) else own), *families])
    return "".join(sorted(missing))


@contextlib.contextmanager
def drawn(figure: "Figure", path: Path | None = None) -> Iterator[None]:
    """Context manager: lays out or saves a figure with fonts for its characters.

    Args:
        figure: The figure, with all its texts.
        path: Output file, named in a warning that counts characters without a font; None gives no
            warning.
    """
    missing = missing_characters(figure)
    if missing and path is not None:
        names = ", ".join(f"{char} (U+{ord(char):04X})" for char in missing[:_SHOWN])
        log.warning(
            "%s: no font on this machine has %s, such as %s: boxes stand for them. Install a font "
            "of their script, such as one of Noto",
            path,
            plural(len(missing), "character"),
            names,
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        warnings.filterwarnings("ignore", "Matplotlib currently does not support")
        yield


def _is_drawn(char: str) -> bool:
    return not char.isspace() and unicodedata.category(char) not in ("Cc", "Cf")


@functools.lru_cache(maxsize=256)
def _characters(path: str) -> frozenset[int]:
    """The code points in a font; none for a font that cannot be read."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError, ValueError):
        return frozenset()


@functools.lru_cache(maxsize=256)
def _drawable(path: str) -> frozenset[str]:
    return frozenset(map(chr, _characters(path))) if path else frozenset()


def _others() -> list[tuple[str, str]]:
    """Files and names of the upright installed fonts, except fonts of formulas and of boxes."""
    from matplotlib.font_manager import FontEntry, fontManager

    fonts: list[FontEntry] = fontManager.ttflist
    return [
        (font.fname, font.name)
        for font in fonts
        if font.style == "normal" and font.weight in (400, "normal", "regular")
        if "Last Resort" not in font.name
        and not font.name.startswith(("STIXNon", "STIXSize", "cm"))
    ]
