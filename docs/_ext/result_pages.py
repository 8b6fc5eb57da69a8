"""Pages of the files in `benchmarks/results/`, made when the site is built.

No figure on them is typed by hand: a page has all figures of its file, in tables.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
MACHINE = ("date", "commit", "cpu", "cores", "instructions", "python", "versions", "peers")
COMMAND = re.compile(r"(python|transformer-jax|make|[A-Z_]+=\S+ python) ")
SHOWN = 12  # values of a list in a cell
LONG = 50  # characters; longer texts are no cells
FEW = 4  # values of a list that is a cell
WIDE = 9  # columns that a page has room for
NAMES = ("", "name", "run", "case")  # the columns that name a row
EMPTY: tuple[Any, ...] = (None, [], {}, "")
ACRONYMS = re.compile(r"\b(bleu|cbow|kl|mlm)\b", re.IGNORECASE)


def number(value: float) -> str:
    """Returns a figure with four digits, or all digits of a whole number.

    Example:
        >>> number(1310208), number(97.69798967942613), number(4073.8), number(1.5e-07)
        ('1,310,208', '97.7', '4,074', '1.5e-07')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    rounded = float(f"{value:.4g}")
    return f"{rounded:,g}" if abs(rounded) < 1e6 else f"{rounded:.4g}"


def prose(text: str) -> str:
    r"""Returns a text without Markdown's marks, but for code between backticks.

    Example:
        >>> print(prose("a_b of `train tiny`"))
        a\_b of `train tiny`
    """
    parts = re.split(r"(`[^`|]+`)", text.replace("\n", " "))
    marks = r"([|*_<>$`\\\[\]])"
    return "".join(
        part if number % 2 else re.sub(marks, r"\\\1", part) for number, part in enumerate(parts)
    )


def cell(value: Any) -> str:
    r"""Returns a value as the text of a cell.

    Example:
        >>> cell({"jax": "0.10.2", "cores": 2}), cell([1, 2.5]), cell(None), cell("a|b")
        ('jax 0.10.2, cores 2', '1, 2.5', '', 'a\\|b')
    """
    match value:
        case None:
            return ""
        case int() | float():
            return number(value)
        case str():
            return f"`{value}`" if COMMAND.match(value) and "|" not in value else prose(value)
        case Mapping():
            return ", ".join(f"{cell(str(name))} {cell(one)}" for name, one in value.items())
        case _:
            parts = [cell(one) for one in value[:SHOWN]]
            more = f" … {len(value)} values" if len(value) > SHOWN else ""
            return ", ".join(parts) + more


def is_table(value: Any) -> bool:
    """Returns whether a value is a list of rows, or rows by name."""
    items = list(value.values()) if isinstance(value, Mapping) else value
    return bool(items) and isinstance(items, list) and all(isinstance(x, Mapping) for x in items)


def is_long(value: Any) -> bool:
    """Returns whether no column is wide enough: for commands, sentences, curves, environments.

    Example:
        >>> is_long("make demo"), is_long([1, 2]), is_long([[1, 2.5], [2, 2.4], [3, 2.3]])
        (True, False, True)
    """
    if isinstance(value, str):
        return len(value) > LONG or bool(COMMAND.match(value))
    if isinstance(value, Mapping):
        return "commit" in value
    if isinstance(value, list) and not is_table(value):
        values = sum(len(one) if isinstance(one, list) else 1 for one in value)
        return values > FEW or any(isinstance(one, str) and is_long(one) for one in value)
    return False


def flat(item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a row; a value of a nested mapping is named by both keys.

    Example:
        >>> flat({"x": 1, "y": {"z": 2, "kernels": {"a": 3}}, "runs": [{"a": 1}]})
        {'x': 1, 'y z': 2, 'y kernels': {'a': 3}}
    """
    values: dict[str, Any] = {}
    for name, value in item.items():
        if isinstance(value, Mapping) and not is_long(value) and name != "versions":
            values |= {f"{name} {part}": one for part, one in value.items()}
        elif not is_table(value):
            values[name] = value
    return values


def identity(row: Mapping[str, Any]) -> list[str]:
    """Returns the names of the values that tell a row from others.

    These are its names, or two short texts, and a seed.

    Example:
        >>> identity({"run": "a", "what": "b", "seed": 1, "loss": 2.0})
        ['run', 'what', 'seed']
    """
    if {"", "name"} & {*row}:
        return [name for name in row if name in NAMES] + ["seed"] * ("seed" in row)
    short = [name for name, one in row.items() if isinstance(one, str) and not is_long(one)]
    return short[:2] + ["seed"] * ("seed" in row)


def tables(name: str, value: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields the tables of a value, each with its title: its rows, then the rows in its rows.

    Example:
        >>> for one in tables("cases", [{"case": "a", "ways": [{"ms": 3}, {"ms": 4}]}]):
        ...     print(one)
        ('cases', [{'case': 'a'}])
        ('cases: ways', [{'case': 'a', 'ms': 3}, {'case': 'a', 'ms': 4}])
        >>> [*tables("rows", {"a": {"x": 1}})]
        [('rows', [{'': 'a', 'x': 1}])]
    """
    named = value.items() if isinstance(value, Mapping) else [(None, one) for one in value]
    items = [({} if key is None else {"": key}) | item for key, item in named]
    own = [flat(item) for item in items]
    yield name, own
    inner: dict[str, list[dict[str, Any]]] = {}
    for item, row in zip(items, own, strict=True):
        who = {key: row[key] for key in identity(row) or [*row][:1]}
        for key, one in item.items():
            if isinstance(one, list) and is_table(one):
                inner.setdefault(key, []).extend(who | flat(part) for part in one)
    for key, parts in inner.items():
        yield f"{name}: {key}", parts


def table(lines: list[dict[str, Any]]) -> str:
    """Returns a Markdown table of rows, without the columns that no row fills.

    Commands, sentences and curves stand below it, under the first values of their rows; a row of
    these alone is not in the table.

    Example:
        >>> print(table([{"name": "a", "ms": 1.5, "by": "make demo"}, {"name": "b"}]))
        | name | ms |
        |---|---|
        | a | 1.5 |
        | b |  |
        <BLANKLINE>
        - a, by: `make demo`
    """
    long = {name for line in lines for name, one in line.items() if is_long(one)} - {*NAMES}
    shown: list[dict[str, Any]] = []
    notes: dict[str, list[str]] = {}  # the rows that share a note
    for line in lines:
        who = ", ".join(cell(line[name]) for name in identity(line))
        below = [name for name in line if name in long and line[name]]
        for name in below:
            note = f"{cell(blanks(name))}: {cell(line[name])}"
            notes.setdefault(note, []).append(who)
        row = {name: one for name, one in line.items() if name not in long and one not in EMPTY}
        if not below or any(not isinstance(one, str) for one in row.values()):
            shown.append(row)
    whose = ["; ".join(dict.fromkeys(filter(None, rows))) for rows in notes.values()]
    listed = ["- " + ", ".join(filter(None, pair)) for pair in zip(whose, notes, strict=True)]
    return "\n\n".join([*layouts(shown), *(["\n".join(listed)] if listed else [])])


def layouts(rows: list[dict[str, Any]]) -> Iterator[str]:
    r"""Yields the tables of rows: one, if the page has room for its columns.

    A few rows of many values become columns. Many rows that each fill few of the columns are
    divided into tables of rows with the same columns.

    Example:
        >>> [text] = layouts([{"name": "a"} | {str(i): i for i in range(WIDE)}])
        >>> print(*text.splitlines()[:4], sep="\n")
        | name | a |
        |---|---|
        | 0 | 0 |
        | 1 | 1 |
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    filled = sum(map(len, rows))
    if len(columns) > WIDE and len(rows) <= FEW:
        values = lambda name: [row.get(name) for row in rows]
        names = [[blanks(name), *values(name)] for name in columns]
        yield grid(names[0], names[1:])
    elif len(columns) > WIDE and filled < len(rows) * len(columns) / 2:
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault(tuple(row), []).append(row)
        for names, group in groups.items():
            yield grid([*map(blanks, names)], [[*row.values()] for row in group])
    elif columns:
        yield grid([*map(blanks, columns)], [[row.get(one) for one in columns] for row in rows])


def grid(head: list[Any], rows: list[list[Any]]) -> str:
    """Returns a Markdown table.

    Example:
        >>> print(grid(["low ms", "x"], [[1, None]]))
        | low ms | x |
        |---|---|
        | 1 |  |
    """
    first, *others = ("| " + " | ".join(map(cell, line)) + " |" for line in [head, *rows])
    return "\n".join([first, "|" + "---|" * len(head), *others])


def blanks(name: str) -> str:
    """Returns the name of a value as words."""
    return name.replace("_", " ")


def facts(values: Mapping[str, Any]) -> str:
    """Returns a table of names and values.

    Example:
        >>> print(facts({"batch_size": 16}))
        | | |
        |---|---|
        | batch size | 16 |
    """
    filled = {name: one for name, one in values.items() if one not in EMPTY}
    lines = [f"| {cell(blanks(name))} | {cell(one)} |" for name, one in filled.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def sections(results: Mapping[str, Any]) -> Iterator[str]:
    """Yields the parts of a page, the figures first and the machine last."""
    results = dict(results)
    machine = results.pop("environment", {})
    machine = {name: results.pop(name) for name in MACHINE if name in results} | machine
    for name in ("task", "what"):
        if isinstance(results.get(name), str):
            yield cell(results.pop(name)).rstrip(". ") + "."
    if isinstance(results.get("command"), str):
        yield f"    {results.pop('command')}"
    rest = {}
    for name, value in results.items():
        heading = ACRONYMS.sub(lambda word: word[0].upper(), blanks(name).capitalize())
        if name == "tables":
            for one in value:
                yield f"## {cell(one['title'])}"
                yield table([flat(row) for row in one["rows"]])
        elif isinstance(value, str) and is_long(value):
            yield f"{cell(heading)}: {cell(value)}"
        elif is_table(value):
            for part, lines in tables(heading, value):
                yield f"## {cell(blanks(part))}"
                yield table(lines)
        elif isinstance(value, Mapping):
            parts = {key: one for key, one in value.items() if is_table(one)}
            plain = {key: one for key, one in value.items() if key not in parts}
            if any(one not in EMPTY for one in plain.values()):
                yield f"## {cell(heading)}"
                yield facts(plain)
            for key, one in parts.items():
                for part, lines in tables(f"{heading}: {key}", one):
                    yield f"## {cell(blanks(part))}"
                    yield table(lines)
        else:
            rest[name] = value
    if rest:
        yield "## Also"
        yield facts(rest)
    if machine:
        yield "## Machine"
        yield facts(machine)


def title(name: str) -> str:
    """Returns the title of a file's page.

    Example:
        >>> title("train_cpu_py3.11")
        'train, cpu, py3.11'
    """
    return re.sub(r"_(cpu|py3|h200|v5e|2_threads)", r", \1", name).replace("_", " ")


def page(path: Path) -> str:
    """Returns the page of a file of results."""
    parts = [f"# {title(path.stem)}", *sections(json.loads(path.read_text("utf-8")))]
    source = f"../../{path.relative_to(RESULTS.parents[1]).as_posix()}"
    return "\n\n".join([*parts, f"The file: [`{path.name}`]({source})."]) + "\n"


def contents(paths: list[Path]) -> str:
    """Returns the page that lists all files."""
    lines = []
    for path in paths:
        results = json.loads(path.read_text("utf-8"))
        machine = {**results, **results.get("environment", {})}
        named = (results.get(name) for name in ("task", "what", "command", "note"))
        what = next((one for one in named if one), "")
        day = f'<span class="one-line">{machine["date"]}</span>' if "date" in machine else ""
        link = f"[{title(path.stem)}]({path.stem}.md)"
        lines.append(f"| {link} | {cell(what)} | {day} | {cell(machine.get('cpu'))} |")
    listed = "\n".join(path.stem for path in paths)
    return (
        "# All measurements\n\nA page a file of `benchmarks/results/`, made from it.\n\n"
        "| file | what | date | processor |\n|---|---|---|---|\n" + "\n".join(lines)
        + f"\n\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
    )  # fmt: skip


def write(folder: Path) -> None:
    """Writes the pages of all files, and removes pages of files that are gone."""
    folder.mkdir(exist_ok=True)
    paths = sorted(RESULTS.glob("*.json"))
    pages = {f"{path.stem}.md": page(path) for path in paths} | {"index.md": contents(paths)}
    for old in folder.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        file = folder / name
        if not file.exists() or file.read_text("utf-8") != text:  # else Sphinx reads it again
            file.write_text(text, "utf-8")


def setup(app: "Sphinx") -> dict[str, bool]:
    """Writes the pages before Sphinx looks for its sources."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir) / "measured"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
