"""The command lines of pages: those of blocks, and those in the text that name all they need.

A line with a word of capitals, such as ``transformer-jax resume RUN``, is a pattern: it stands in
text and tables, never in a block, whose lines a reader copies. A command in text without arguments
is the name of a command.
"""

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from tests.test_docs import SITE
from transformer_jax.cli.commands import PROGRAM

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/"): path
    for path in (ROOT / "README.md", *SITE)
}
PROGRAMS = (PROGRAM, "bash", "echo", "git", "hf", "make", "mkdir", "pip", "printf", "python")
_PLACEHOLDER = re.compile(r"(?:.*=)?([A-Z]|[A-Z][A-Z_]+2?|\.\.\.)")
_COMMAND = re.compile(rf"^(?:[A-Z_]+=\S+ )*(?:{'|'.join(PROGRAMS)})3?(?: |$)")
_INLINE = re.compile(
    rf"{PROGRAM} (?:[-\w]+ .|glue$|lecture$|--help$)|python -m |make \w|(?:hf|pip) "
)
_FENCE = re.compile(r"^(`{3,})\s*(.*)$")


class Line(NamedTuple):
    """A command line, and the number of its line on the page."""

    number: int
    text: str


def is_pattern(text: str) -> bool:
    """Returns whether a command line has a placeholder.

    Example:
        >>> is_pattern("transformer-jax resume RUN"), is_pattern('transformer-jax tag runs/a "A B"')
        (True, False)
    """
    return any(_PLACEHOLDER.fullmatch(word) for word in words(text))


def words(text: str) -> list[str]:
    """The words of a command line as a shell reads them; operators are words of their own."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|<>;&")
    lexer.whitespace_split = True
    # In the middle of a word, such as s3://bucket/a#b, it begins no comment.
    lexer.commenters = ""
    found = list(lexer)
    comment = next((i for i, word in enumerate(found) if word == "#"), len(found))
    return found[:comment]


def filled(text: str, stands: dict[str, Any]) -> str:
    """A pattern with a word for each placeholder that ``stands`` names.

    A word may depend on the command; ``...`` stands for nothing unless it is named.

    Example:
        >>> filled("transformer-jax tag RUN A ...", {"RUN": {"tag": "runs/tags", "": "runs/mine"}})
        'transformer-jax tag runs/tags A'
    """
    command = text.split()[1]

    def word(placeholder: str) -> str:
        choice = stands.get(placeholder, "" if placeholder == "..." else placeholder)
        return choice if isinstance(choice, str) else choice.get(command, choice[""])

    parts = re.split(r"(?<![\w\[\"'.-])([A-Z][A-Z_]*2?|\.\.\.)(?![\w.\]])", text)
    return "".join(word(part) if i % 2 else part for i, part in enumerate(parts)).strip()


def block_lines(text: str) -> list[Line]:
    """The command lines in blocks of a page: indented ones, and fences of a shell."""
    found, fence, kind, open_line = [], None, "", None
    for number, line in enumerate(text.splitlines(), 1):
        match = _FENCE.match(line)
        if fence is None and match:
            fence, kind = match[1], match[2]
        elif fence is not None and line.strip() == fence:
            fence = None
        elif line.startswith("    ") if fence is None else kind in ("bash", "sh"):
            code = line.removeprefix("    ") if fence is None else line
            if open_line is not None:
                code = f"{open_line.text} {code.strip()}"
                number = open_line.number
            elif not _COMMAND.match(code):
                continue
            open_line = Line(number, code.removesuffix("\\").strip())
            if not code.endswith("\\"):
                found.append(open_line)
                open_line = None
    return found


def inline_lines(text: str) -> list[Line]:
    """The command lines in the text of a page, patterns included."""
    found, fence = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if match := _FENCE.match(line):
            fence = match[1] if fence is None else None if line.strip() == fence else fence
        elif fence is None and not line.startswith("    "):
            codes = re.findall(r"`([^`]+)`", line)
            found += [Line(number, code) for code in codes if _INLINE.match(code)]
    return found


def lines_of(name: str, stands: dict[str, Any]) -> list[Line]:
    """The command lines of a page in their order, each once, with words for placeholders.

    The commands of the ledger of the lectures are among those of their pages.
    """
    text = PAGES[name].read_text()
    first: dict[str, Line] = {}
    for number, code in sorted(block_lines(text) + inline_lines(text)):
        done = filled(code, stands)
        first.setdefault(done, Line(number, done))
    return list(first.values())
