"""Blocks of commands get a class of their own, so that their long lines are wrapped."""

import re
from typing import TYPE_CHECKING

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PROGRAMS = re.compile(r"(cd|curl|echo|git|hf|make|pip|printf|python3?|transformer-jax) ")


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


def setup(app: "Sphinx") -> dict[str, bool]:
    """Registers the mark."""
    app.connect("doctree-read", _mark)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
