"""The sentences that the chapters of the course use, and the table of results that they fill.

    python course/chapters.py        # runs the chapters in order, and stores their rows
    python course/chapters.py 3 4    # runs only these

`docs/course/results.json` holds the rows. A row is a dict: "chapter", "model", then what the
chapter measures, such as "parameters", "bits per word" and "exact", the fraction of the test
sentences that are translated without a mistake.
"""

import json
import math
import re
import sys
from pathlib import Path

from transformer_jax.data.corpora.phrasebook import generate

FOLDER = Path(__file__).parents[1] / "docs" / "course"
FILE = FOLDER / "results.json"


def pairs(split, count):
    """The first pairs of Portuguese and English with at most 8 words each, of "train" or "test"."""
    short = lambda pair: max(len(text.split()) for text in pair) <= 8
    return [*filter(short, generate(split, 2 * count))][:count]


def stored():
    """The rows of all chapters."""
    return json.loads(FILE.read_text("utf-8"))


def cell(value):
    """A value as text."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return value if isinstance(value, str) else f"{value:,}"


def table(rows):
    """The rows of earlier chapters, then these, as lines of text."""
    rows = [row for row in stored() if row["chapter"] < rows[0]["chapter"]] + rows
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names] + [[cell(row[name]) if name in row else "" for name in names] for row in rows]
    columns = []
    for name, *cells in zip(*lines, strict=True):
        width = max(map(len, [name, *cells]))
        pad = str.ljust if name == "model" else str.rjust
        columns.append([pad(one, width) for one in (name, *cells)])
    return "\n".join(map("  ".join, zip(*columns, strict=True)))


def agree(rows):
    """Returns whether rows are a chapter's stored ones: floats to 10 % or 0.03, others exactly."""
    others = [row for row in stored() if row["chapter"] == rows[0]["chapter"]]
    same = lambda a, b: (
        math.isclose(a, b, rel_tol=0.1, abs_tol=0.03) if isinstance(b, float) else a == b
    )
    return len(rows) == len(others) and all(
        [*row] == [*other] and all(map(same, row.values(), other.values()))
        for row, other in zip(rows, others, strict=True)
    )


def main(only):
    """Runs the cells of all chapters, or of some, but the hidden ones, and stores their rows."""
    for page in sorted(FOLDER.glob("[0-9]-*.md")):
        if only and page.name[0] not in only:
            continue
        print(page.name, flush=True)
        names = {"__name__": "__main__"}
        for code in re.findall(r"```\{code-cell\}.*\n((?:.*\n)*?)```", page.read_text("utf-8")):
            if "remove-cell" not in code:
                exec(re.sub(r"(?m)^:.*\n", "", code), names)
        rows = [row for row in stored() if str(row["chapter"]) != page.name[0]] + names["rows"]
        rows.sort(key=lambda row: row["chapter"])
        lines = ",\n".join(json.dumps(row, ensure_ascii=False, default=float) for row in rows)
        FILE.write_text(f"[\n{lines}\n]\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
