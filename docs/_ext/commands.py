"""Commands in pages: long lines wrap, and flags stay whole and keep their --."""

import re
from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PROGRAMS = re.compile(r"(cd|curl|echo|git|hf|make|pip|printf|python3?|transformer-jax) ")

LONG = 28  # characters of a word that a phone may divide


def is_command(text: str) -> bool:
    """Returns whether a block begins with a command, and so is no output or table.

    Example:
        >>> is_command("transformer-jax train small"), is_command("law  holds")
        (True, False)
    """
    return PROGRAMS.match(text) is not None


def _mark(app: "Sphinx", document: nodes.document) -> None:
    for block in document.findall(nodes.literal_block):
        if is_command(block.astext()):
            block["classes"].append("commands")
    for code in document.findall(nodes.literal):
        if any(len(word) > LONG for word in code.astext().split()):
            code["classes"].append("long")
    # Sphinx writes -- between a parameter and its description.
    for text in [*document.findall(nodes.Text)]:
        if text.astext() == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def setup(app: "Sphinx") -> dict[str, bool]:
    """Registers the mark."""
    app.connect("doctree-read", _mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
