"""The pages of the lectures as text: their sections by anchor, and their cells as plain Python."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "lectures"
NAMES = ("inf721", "cs4391", "bishop", "cs287r", "assistant")
_ANCHOR = re.compile(r"^\(([\w-]+)\)=$")
_FENCE = re.compile(r"^(`{3,})\s*(.*)$")


def read(name):
    return (FOLDER / f"{name}.md").read_text()


def sections(name):
    """The text of a page by anchor, each from its anchor to the next, its heading first."""
    found, lines = {}, None
    for line in read(name).splitlines():
        if match := _ANCHOR.match(line):
            assert match[1] not in found, f"{name}: anchor {match[1]} twice"
            lines = found[match[1]] = []
        elif lines is not None:
            lines.append(line)
    return {anchor: "\n".join(lines).strip() for anchor, lines in found.items()}


def blocks(text):
    """The fenced blocks of a text: the line of the first of each, what the fence says, and code."""
    fence, kind, start, lines = None, "", 0, []
    for number, line in enumerate(text.splitlines(), 1):
        match = _FENCE.match(line)
        if fence is None and match:
            fence, kind, start, lines = match[1], match[2], number + 1, []
        elif fence is not None and line.strip() == fence:
            yield start, kind, "\n".join(lines)
            fence = None
        elif fence is not None:
            lines.append(line)
    assert fence is None, f"a block without an end begins in line {start}"


def cells(name):
    """The code cells of a page: the line of the first line of each, and its code."""
    for start, kind, code in blocks(read(name)):
        if kind.startswith("{code-cell}"):
            options = re.match(r"(?::[\w-]+:.*\n?)*", code)[0]
            yield start + options.count("\n"), code[len(options) :]


def run(name, namespace=None):
    """Executes the cells of a page in one namespace, which it returns.

    Tracebacks name the page and its lines.
    """
    namespace = {"__name__": "__main__"} if namespace is None else namespace
    for start, code in cells(name):
        padded = "\n" * (start - 1) + code
        exec(compile(padded, str(FOLDER / f"{name}.md"), "exec"), namespace)
    return namespace
