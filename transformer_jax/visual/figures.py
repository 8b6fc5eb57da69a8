"""Figures made without a display and saved as PNG, SVG or a self-contained page."""

import base64
import functools
import html
import io
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.figure_fonts import drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["new_figure", "save"]

SUFFIXES = (".png", ".svg", ".html")


def new_figure(width: float, height: float) -> "Figure":
    """Returns an empty figure without a window, with sizes in inches; notebooks show it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = _figure_class()(figsize=(width, height))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    return figure


@functools.cache
def _figure_class() -> "type[Figure]":
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """A figure that a notebook shows although ``pyplot`` does not know it."""

        def _repr_png_(self) -> bytes:
            held = io.BytesIO()
            with drawn(self):
                self.savefig(held, format="png", dpi=110, metadata={"Software": None})
            return held.getvalue()

    return NotebookFigure


def save(figure: "Figure", path: Path | None, *, title: str = "") -> "Figure":
    """Saves ``figure`` as ``.png``, ``.svg`` or ``.html``, by the suffix of ``path``; returns it.

    Without a path nothing is written: a notebook shows the returned figure. The same figure gives
    the same bytes. An HTML page contains the picture. A warning counts characters missing from all
    installed fonts.

    Raises:
        ConfigError: An unsupported suffix.
    """
    if path is None:
        return figure
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: pictures are written as {', '.join(SUFFIXES)}")
    with drawn(figure, path):
        _write(figure, path, title)
    return figure


def _write(figure: "Figure", path: Path, title: str) -> None:
    if path.suffix == ".html":
        held = io.BytesIO()
        figure.savefig(held, format="png", dpi=150, metadata={"Software": None})
        path.write_text(_page(held.getvalue(), title or path.stem), encoding="utf-8")
    elif path.suffix == ".svg":
        import matplotlib

        # Without a salt, identifiers in the file would be random.
        with matplotlib.rc_context({"svg.hashsalt": "transformer_jax"}):
            figure.savefig(path, metadata={"Date": None})
    else:
        figure.savefig(path, dpi=150, metadata={"Software": None})


def _page(png: bytes, title: str) -> str:
    title = html.escape(title)
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<body style="margin:2rem;text-align:center">\n'
        f'<img alt="{title}" style="max-width:100%" src="data:image/png;base64,{data}">\n'
        "</body>\n</html>\n"
    )
