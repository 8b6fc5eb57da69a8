"""Names of classes: their order, their numbers, and names that may be meant to be one."""

import collections
import math
from collections.abc import Iterable, Sequence

from transformer_jax.core.errors import plural

__all__ = ["class_numbers", "describe_classes", "sort_classes", "spelling"]

_FEW = 5  # examples: a class with fewer is hardly learned
_SHOWN = 20  # classes in a line


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the different names sorted: by value if all are numbers, of which NaN is none.

    Example:
        >>> sort_classes(["10", "9", "10"]), sort_classes(["b", "9", "10"])
        (('9', '10'), ('10', '9', 'b'))
    """
    different = sorted(set(names))
    try:
        values = {name: float(name) for name in different}
    except ValueError:
        return tuple(different)
    if any(map(math.isnan, values.values())):
        return tuple(different)
    return tuple(sorted(different, key=values.__getitem__))


def class_numbers(names: Sequence[str]) -> dict[str, int]:
    """Returns the number of each class by its name.

    The classes of a model without names are LABEL_0, LABEL_1, ... in Hugging Face folders; files
    name them by their numbers as well.

    Example:
        >>> class_numbers(["no", "yes"]), class_numbers(["LABEL_0", "LABEL_1"])
        ({'no': 0, 'yes': 1}, {'LABEL_0': 0, 'LABEL_1': 1, '0': 0, '1': 1})
    """
    numbers = {name: i for i, name in enumerate(names)}
    if all(name == f"LABEL_{i}" for name, i in numbers.items()):
        numbers |= {str(i): i for i in range(len(names))}
    return numbers


def spelling(name: str) -> str:
    """Returns the name of a class without case and blanks: equal for names that may be one.

    Example:
        >>> spelling("Bug report") == spelling("bugreport ")
        True
    """
    return "".join(name.casefold().split())


def describe_classes(name: str, labels: Iterable[str], what: str = "class") -> list[str]:
    """Returns a line with the counts of classes, and warnings about names that look like mistakes.

    These are names that differ only in case or blanks, and classes with fewer than five examples.

    Args:
        name: Name of the examples, for messages.
        labels: The label of each example.
        what: The noun for a class.

    Example:
        >>> for line in describe_classes("a.tsv", ["bug"] * 9 + ["Bug"] + ["idea"] * 7): print(line)
        a.tsv: 3 classes: bug (9), idea (7), Bug (1)
        warning: a.tsv: 2 classes that differ only in case or blanks: 'bug', 'Bug': are they one?
        warning: a.tsv: 1 class with fewer than 5 examples: 'Bug': correct the label, or add more
    """
    counts = collections.Counter(labels).most_common()
    shown = ", ".join(f"{label} ({count:,})" for label, count in counts[:_SHOWN])
    more = f", and {len(counts) - _SHOWN:,} more" if len(counts) > _SHOWN else ""
    lines = [f"{name}: {plural(len(counts), what)}: {shown}{more}"]
    alike: dict[str, list[str]] = {}
    for label, _ in counts:
        alike.setdefault(spelling(label), []).append(repr(label))
    lines += [
        f"warning: {name}: {plural(len(twins), what)} that differ only in case or blanks: "
        f"{', '.join(twins)}: are they one?"
        for twins in alike.values()
        if len(twins) > 1
    ]
    if few := [repr(label) for label, count in counts if count < _FEW]:
        dots = ", ..." if len(few) > _SHOWN else ""
        lines.append(
            f"warning: {name}: {plural(len(few), what)} with fewer than {_FEW} examples: "
            f"{', '.join(few[:_SHOWN])}{dots}: correct the label, or add more"
        )
    return lines
