"""Commands in pages: long lines wrap between words, and flags stay whole and keep their --."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from docutils import nodes
from pygments.lexer import Lexer
from pygments.lexers.shell import BashLexer
from pygments.token import Name, Text

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


class WordLexer(Lexer):
    """A lexer for commands, each word of which is an element that lines do not break.

    Example:
        >>> [word for _, _, word in WordLexer().get_tokens_unprocessed("a --b-c")]
        ['a', ' ', '--b-c']
    """

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, object, str]]:
        """Yields the words, and the blanks between them."""
        for found in re.finditer(r"\s+|\S+", text):
            yield found.start(), Text if found[0].isspace() else WORD, found[0]


class ScriptLexer(BashLexer):
    """The same for scripts, whose other elements have their colors."""

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, object, str]]:
        """Yields the tokens of a script; its plain text in words."""
        for start, kind, part in super().get_tokens_unprocessed(text):
            if kind is not Text:
                yield start, kind, part
                continue
            for at, sort, word in WordLexer().get_tokens_unprocessed(part):
                yield start + at, sort, word


WORD = Name.Word  # of the class n-Word in pages


def _mark(app: "Sphinx", document: nodes.document) -> None:
    for block in document.findall(nodes.literal_block):
        if is_command(block.astext()):
            block["classes"].append("commands")
            script = block.get("language") in ("bash", "sh", "console")
            block["language"] = "script" if script else "commands"
    for code in document.findall(nodes.literal):
        if any(len(word) > LONG for word in code.astext().split()):
            code["classes"].append("long")
    # Sphinx writes -- between a parameter and its description.
    for text in [*document.findall(nodes.Text)]:
        if text.astext() == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


def setup(app: "Sphinx") -> dict[str, bool | int]:
    """Registers the mark."""
    app.add_lexer("commands", WordLexer)
    app.add_lexer("script", ScriptLexer)
    app.connect("doctree-read", _mark)
    # Pages that were read with another version are read again.
    return {"env_version": 2, "parallel_read_safe": True, "parallel_write_safe": True}
