"""The border laws by number; ``python -m tests.doors.laws`` prints which law tries which door."""

import importlib
import pathlib
from types import ModuleType

from tests.doors import table

__all__ = ["NUMBERS", "find_laws", "summary"]

HERE = pathlib.Path(__file__).parent
NUMBERS = tuple(range(1, 10))


def find_laws() -> list[ModuleType]:
    """The modules of border laws in this folder, by their numbers."""
    names = [path.stem for path in sorted(HERE.glob("test_*.py")) if path.stem != "test_table"]
    modules = [importlib.import_module(f"tests.doors.{name}") for name in names]
    return sorted((one for one in modules if hasattr(one, "LAW")), key=lambda one: one.LAW)


def summary() -> str:
    """Returns a Markdown table of doors and laws, and the reasons of the cells without a case.

    ``x`` is a case, a letter a reason below the table, and an empty cell a law about other kinds
    of doors.
    """
    laws, reasons = find_laws(), dict[str, int]()
    lines = [
        "| kind | door | " + " | ".join(str(law.LAW) for law in laws) + " |",
        "|---" * (len(laws) + 2) + "|",
    ]
    cases = 0
    for door in table.DOORS:
        cells = []
        for law in laws:
            if door.name in law.CASES:
                cells.append("x")
                cases += 1
            elif door.name in law.EXEMPT:
                why = law.EXEMPT[door.name]
                cells.append(f"[{reasons.setdefault(why, len(reasons) + 1)}]")
            else:
                cells.append("")
        lines.append(f"| {door.kind} | {door.name} | " + " | ".join(cells) + " |")
    counts = f"{len(table.DOORS)} doors, {len(laws)} laws, {cases} cases, {len(reasons)} reasons"
    sentences = [f"{law.LAW}. {(law.__doc__ or '').splitlines()[0]}" for law in laws]
    whys = [f"[{number}] {why}" for why, number in reasons.items()]
    return "\n".join([counts, "", *sentences, "", *lines, "", *whys])


if __name__ == "__main__":
    print(summary())
