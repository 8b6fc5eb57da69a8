"""Changes of numbers in the cells of a page, as a reader makes them.

A reader's numbers are those that a cell assigns to a name: alone, in lists or tuples, or as the
argument of a function that makes an array, such as ``scores = np.array([3.1, 0.3])``.

    python -m tests.changed_numbers SEED [PAGE ...]    # the sections whose cells end in an error
"""

import ast
import random
import sys

from tests import lecture_pages

MAKES_ARRAYS = {"array", "asarray", "heads", "float32", "float64"}


def _literals(node):
    """The numbers of a literal, or none if something else is in it."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _literals(node.operand)
    if isinstance(node, ast.Constant):
        return [node] if type(node.value) in (int, float) else []
    if isinstance(node, ast.List | ast.Tuple):
        return [one for part in node.elts for one in _literals(part)]
    if isinstance(node, ast.Call) and node.args:
        name = ast.unparse(node.func).rpartition(".")[2]
        return _literals(node.args[0]) if name in MAKES_ARRAYS else []
    return []


def numbers(code):
    """The reader's numbers of a cell: line, column, end and value of each.

    Example:
        >>> numbers("width, depth = 32, 2\\nx = draw(1, 3)")
        [(1, 15, 17, 32), (1, 19, 20, 2)]
    """
    found = [
        one
        for statement in ast.parse(code).body
        if isinstance(statement, ast.Assign) and _names(statement.targets[0])
        for one in _literals(statement.value)
    ]
    return [(one.lineno, one.col_offset, one.end_col_offset, one.value) for one in found]


def _names(target):
    return isinstance(target, ast.Name) or (
        isinstance(target, ast.Tuple) and all(isinstance(one, ast.Name) for one in target.elts)
    )


def changed(code, number):
    """The cell with another number: the next whole one, or nine tenths of a fraction.

    Example:
        >>> changed("width = 32", numbers("width = 32")[0])
        'width = 33'
    """
    line, start, end, value = number
    lines = code.splitlines()
    text = lines[line - 1].encode()
    new = str(value + 1 if isinstance(value, int) else round(0.9 * value, 6)).encode()
    lines[line - 1] = (text[:start] + new + text[end:]).decode()
    return "\n".join(lines)


def sections_of(name):
    """The cells of each section of a page, by its anchor; those before the first are ``""``."""
    lines = enumerate(lecture_pages.read(name).splitlines(), 1)
    anchors = {n: match[1] for n, line in lines if (match := lecture_pages.ANCHOR.match(line))}
    found = {}
    for cell in lecture_pages.cells(name):
        begun = [anchor for n, anchor in anchors.items() if n < cell.start]
        found.setdefault(begun[-1] if begun else "", []).append(cell)
    return found


def needed(sections, anchor):
    """The sections, in order, whose names the cells of a section use, and the section itself.

    Example:
        >>> cell = lambda code: [lecture_pages.Cell(1, code, False)]
        >>> needed({"": cell("x = 1"), "a": cell("y = x"), "b": cell("z = 2"), "c": cell("y")}, "c")
        ['', 'a', 'c']
    """
    order = list(sections)
    names = {one: [*ast.walk(ast.parse("\n".join(cell.code for cell in cells)))]
             for one, cells in sections.items()}  # fmt: skip
    made = {one: {name for node in nodes for name in _made(node)} for one, nodes in names.items()}
    found, ahead = {""}, [anchor]
    while ahead:
        one = ahead.pop()
        found.add(one)
        used = {node.id for node in names[one] if isinstance(node, ast.Name)} - made[one]
        before = order[: order.index(one)]
        makers = (next((b for b in reversed(before) if name in made[b]), "") for name in used)
        ahead += set(makers) - found
    return [one for one in order if one in found]


def _made(node):
    """The names that a statement or an argument makes."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]


def errors(name, seed):
    """Runs a page, and each section once more with one number changed.

    Returns the sections without a number, and the error of each that ends in one.
    """
    rng, namespace, found = random.Random(seed), {"__name__": "__main__"}, {}
    for anchor, cells in sections_of(name).items():
        before = dict(namespace)
        for cell in cells:
            lecture_pages.execute(name, cell, namespace)
        open_to = [(i, one) for i, cell in enumerate(cells) if not cell.hidden
                   for one in numbers(cell.code)]  # fmt: skip
        if not anchor or not open_to:
            found |= {anchor: "no number to change"} if anchor else {}
            continue
        which, number = rng.choice(open_to)
        for i, cell in enumerate(cells):
            code = changed(cell.code, number) if i == which else cell.code
            try:
                lecture_pages.execute(name, cell._replace(code=code), before)
            except Exception as error:
                where = cells[which].code.splitlines()[number[0] - 1]
                found[anchor] = f"{number[3]} in {where!r} changed: {type(error).__name__}: {error}"
                break
    return found


if __name__ == "__main__":
    for page in sys.argv[2:] or lecture_pages.NAMES:
        for anchor, error in errors(page, int(sys.argv[1])).items():
            print(f"{page} {anchor}: {error}"[:300], flush=True)
