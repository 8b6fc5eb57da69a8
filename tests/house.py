"""Counts of what one must read to follow the package, which only go down.

    python -m tests.house            # prints the table
    python -m tests.house CHECKOUT   # of another checkout, whose names may differ
    python -m tests.house --quick    # the counts of source text alone

``tests/test_house.py`` fails if a count exceeds its limit. A lower one is written down here, so
that it stays low.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "transformer_jax"


class Count(NamedTuple):
    """A row of the table.

    Attributes:
        start: At 0e9aae93.
        limit: Must not be exceeded.
        goal: None if it has none.
        anchor: The best in other projects.
    """

    start: int
    limit: int
    goal: int | None = None
    anchor: str = ""


TEXT = {
    "lines of the package, in thousands": Count(107, 130, 95),
    "files with one importer": Count(144, 121, 70),
    "lines of imports, per thousand": Count(76, 73, 60, "30 to 60"),
    "mentions of Any": Count(2697, 858, 900, "1 to 4 a thousand lines"),
    "parameters run: Any": Count(255, 1, 0),
    "Callable of any arguments": Count(41, 44),
    "mentions of PyTree outside training": Count(84, 362),
    "context variables": Count(5, 1, 1),
    "Configuration classes": Count(176, 195, 110),
    "their own fields": Count(970, 1020, 650, "openpi 26"),
    "names of several files": Count(57, 27, 30),
    "names of several classes": Count(14, 1, 3),
    "formulas computed elsewhere": Count(7, 0, 0),
    "files that open directories": Count(46, 8, 20),
    "methods and attributes of Recipe": Count(46, 26),
}
PATHS = {
    "ids to loss: files": Count(23, 20, 16, "nanodo 3"),
    "ids to loss: lines of bodies": Count(741, 1039, 650),
    "command line to settings: files": Count(42, 26, 18, "openpi: tyro and a list"),
    "command line to settings: functions": Count(150, 140),
    "modules at the first step of train small": Count(210, 187, 130),
    "tj.load: files": Count(53, 56),
    "tj.load: openings of config.json": Count(26, 2, 2, "gemma: one function"),
    "text to translation: files": Count(60, 54),
    "text to translation: openings of config.json": Count(2, 0, 0),
    "distinct flags": Count(633, 683),
}


# --- Source text ----------------------------------------------------------------------------------

_STRING = re.compile(r'[rbfRBF]{0,2}("""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*")|#[^\n]*', re.S)
_FOR_TYPES = re.compile(r"^if (?:typing\.)?TYPE_CHECKING:\n(?:[ ]+[^\n]*\n|\n)+", re.M)
_IMPORT = re.compile(r"^[ ]*(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([^\n]*))\n", re.M)
_CLASS = re.compile(r"^class (\w+)(?:\(([^)]*)\))?:\n((?:(?:[ ]+[^\n]*)?\n)*)", re.M)
_FIELD = re.compile(r"^    ([a-z]\w*): (?!.*\bClassVar\b)", re.M)
_MEMBER = re.compile(r"^    (?:def )?[a-z]\w*(?:\(|: )", re.M)
_CONTEXT = re.compile(r"\bContextVar(?:\[.*\])?\(")


def sources(root: pathlib.Path = ROOT) -> dict[str, str]:
    """Texts of the package, by file."""
    paths = sorted((root / PACKAGE).rglob("*.py"))
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in paths}


def code_of(text: str) -> str:
    """Source code without its comments, and with empty strings.

    Example:
        >>> code_of('x: Any = "Any"  # Any')
        'x: Any = ""  '
    """
    return _STRING.sub(lambda found: '""' if found[1] else "", text)


def count_text(texts: dict[str, str]) -> dict[str, int]:
    """The counts of ``TEXT`` in files, by their paths from the root."""
    codes = {path: code_of(text) for path, text in texts.items()}
    lines = sum(text.count("\n") for text in texts.values())
    imports = sum(
        found[0].count("\n") for code in codes.values() for found in _IMPORT.finditer(code)
    )
    users = importers(codes)
    classes = [found for code in codes.values() for found in _CLASS.finditer(code)]
    settings = configurations(codes)
    every = _IMPORT.sub("", "\n".join(codes.values()))
    training = f"{PACKAGE}/training/"  # parameters, states of optimizers and gradients are trees
    beside = "\n".join(code for path, code in codes.items() if not path.startswith(training))
    beside = _IMPORT.sub("", beside)
    files = (path.rpartition("/")[2] for path in codes if not path.endswith("__init__.py"))
    recipe = next((found[3] for found in classes if found[1] == "Recipe"), "")
    return {
        "lines of the package, in thousands": -(-lines // 1000),
        "files with one importer": sum(len(by) == 1 for by in users.values()),
        "lines of imports, per thousand": round(1000 * imports / lines),
        "mentions of Any": len(re.findall(r"\bAny\b", every)),
        "parameters run: Any": len(re.findall(r"\brun: Any\b", every)),
        "Callable of any arguments": len(re.findall(r"\bCallable\[\.\.\.", every)),
        "mentions of PyTree outside training": len(re.findall(r"\bPyTree\b", beside)),
        "context variables": len(_CONTEXT.findall(every)),
        "Configuration classes": len(settings),
        "their own fields": sum(len(set(_FIELD.findall(body))) for body in settings),
        "names of several files": _repeated(files),
        "names of several classes": _repeated(found[1] for found in classes),
        "formulas computed elsewhere": len(re.findall(r"^@computed_by\b", every, re.M)),
        "files that open directories": sum("open_directory" in code for code in codes.values()),
        "methods and attributes of Recipe": len(_MEMBER.findall(recipe)),
    }


def importers(codes: dict[str, str]) -> dict[str, set[str]]:
    """Files that import each file, within functions too, but not for type checkers alone."""
    users: dict[str, set[str]] = {path: set() for path in codes if not _is_folder(path)}
    for path, code in codes.items():
        for found in _IMPORT.finditer(_FOR_TYPES.sub("", code)):
            module, names, modules = found.groups()
            for name in re.findall(r"[\w.]+(?= as)|(?<!as )\b[\w.]+\b(?! as)", names or modules):
                for one in (f"{module}.{name}", module) if module else (name,):
                    file = f"{one.replace('.', '/')}.py"
                    if file in users:
                        users[file].add(path)
                        break
    return {file: by - {file} for file, by in users.items()}


def _is_folder(path: str) -> bool:
    return path.endswith("__init__.py")


def configurations(codes: dict[str, str]) -> list[str]:
    """Bodies of the classes that derive from ``Configuration``."""
    bodies, bases = {}, {}
    for path, code in codes.items():
        origins = _origins(code)
        for name, parents, body in _CLASS.findall(code):
            bodies[path, name] = body
            own = re.findall(r"\b\w+\b(?![.=])", re.sub(r"\[.*\]", "", parents, flags=re.S))
            bases[path, name] = {(origins.get(one, path), one) for one in own}
    found, size = {(f"{PACKAGE}/core/config_fields.py", "Configuration")}, 0
    while len(found) > size:
        size = len(found)
        found |= {one for one, parents in bases.items() if parents & found}
    return [bodies[one] for one in found if one[1] != "Configuration"]


def _origins(code: str) -> dict[str, str]:
    """Files of the names that a file imports."""
    return {
        name: f"{module.replace('.', '/')}.py"
        for module, names, _ in _IMPORT.findall(code)
        for name in re.findall(r"\w+", names)
    }


def _repeated(names: collections.abc.Iterable[str]) -> int:
    return sum(times > 1 for times in collections.Counter(names).values())


# --- What runs ------------------------------------------------------------------------------------


def count_paths(folder: pathlib.Path, root: pathlib.Path = ROOT) -> dict[str, int]:
    """The counts of ``PATHS``, each path in a process of its own.

    Args:
        folder: An empty folder for corpus and run.
        root: The checkout.
    """
    counts: dict[str, int] = {}
    for path in ("loss", "train", "load", "flags"):
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests/house_paths.py"), path, str(folder)],
            # A program that is stored as traced would hide the files that it comes from.
            env={
                **os.environ,
                "PYTHONPATH": str(root),
                "JAX_PLATFORMS": "cpu",
                "TRANSFORMER_JAX_CACHE": "off",
            },
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        counts |= json.loads(done.stdout.splitlines()[-1])
    return counts


def exceeded(counts: dict[str, int], rows: dict[str, Count]) -> list[str]:
    """A line for each count above its limit."""
    return [
        f"{name} grew from {row.limit} to {counts[name]}: write it with fewer, or raise the limit "
        f"in tests/house.py and say in the commit what it is worth; lower counts are written down "
        f"there too (`python -m tests.house` prints all)"
        for name, row in rows.items()
        if counts[name] > row.limit
    ]


def table(counts: dict[str, int]) -> str:
    """The counts beside start, limit and goal."""
    rows = TEXT | PATHS
    lines = [f"{'':46} {'start':>6} {'limit':>6} {'now':>6} {'goal':>6}  elsewhere"]
    for name, value in counts.items():
        row = rows[name]
        goal = "" if row.goal is None else row.goal
        note = "  lower than its limit: write it down" if value < row.limit else ""
        figures = f"{row.start:6} {row.limit:6} {value:6} {goal:>6}"
        lines.append(f"{name:46} {figures}  {row.anchor}{note}".rstrip())
    return "\n".join(lines)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", nargs="?", type=pathlib.Path, default=ROOT)
    parser.add_argument("--quick", action="store_true", help="source text alone")
    asked = parser.parse_args()
    root = asked.checkout.resolve()
    counts = count_text(sources(root))
    if not asked.quick:
        with tempfile.TemporaryDirectory() as folder:
            counts |= count_paths(pathlib.Path(folder), root)
    print(table(counts))


if __name__ == "__main__":
    main()
