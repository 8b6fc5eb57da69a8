"""Signatures of the package are enforced while tests run.

jaxtyping checks modules whose signatures have shapes, their own or those of a base class, and
beartype alone the others: it looks at the same types in less time, but has to find every name.
"""

import functools
import re
import sys
import typing
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import beartype.claw._ast._clawaststar as injected
import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.claw import beartype_packages

SHAPES = re.compile("^(from|import) jaxtyping|TYPE_CHECKING", re.MULTILINE)
# Whether functions that are defined in functions are checked, too.
inner_functions = True
OFTEN = 20  # calls of the outer function, after which its inner functions are no longer checked
# A whole number is a float to type checkers (PEP 484).
with_shapes = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check_signatures(root: Path) -> None:
    """Makes the modules of the package below ``root``, not yet imported, check their signatures."""
    texts = {path: path.read_text() for path in sorted((root / "transformer_jax").rglob("*.py"))}
    with_shapes = {path for path, text in texts.items() if SHAPES.search(text)}
    bases = {
        name for path in with_shapes for name in re.findall(r"^class (\w+)", texts[path], re.M)
    }
    modules: dict[bool, list[str]] = {True: [], False: []}
    for path, text in texts.items():
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        # By the name of an __init__ a hook would take all that lies beside it.
        if path.name != "__init__.py" and ("\ndef " in text or "\nclass " in text):
            derived = " ".join(re.findall(r"^class \w+\(([^)]*)\)", text, re.M))
            shapes = path in with_shapes or not bases.isdisjoint(re.findall(r"\w+", derived))
            modules[shapes].append(name)
    if sys.version_info < (3, 12):  # which finds the members of a protocol once, not at each check
        typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
    jaxtyping.jaxtyped = _of_outer_functions(jaxtyping.jaxtyped)
    injected.__beartype__ = _of_outer_functions(injected.__beartype__)
    jaxtyping.install_import_hook(modules[True], f"{__name__}.with_shapes")
    plain = BeartypeConf(claw_is_pep526=False, is_pep484_tower=True)
    beartype_packages(modules[False], conf=plain)


def _of_outer_functions(decorator: Callable) -> Callable:
    """``decorator``, which may leave functions within functions alone.

    They are decorated again at each call of the function around them. To compile that check takes
    longer than most of these calls: half the time of a refused command line.
    """
    made: Counter[object] = Counter()

    def decorated(function=None, **settings):
        if function is None:
            return lambda function: decorated(function, **settings)
        if "<locals>" in getattr(function, "__qualname__", ""):
            code = getattr(function, "__code__", None)
            made[code] += 1
            if not inner_functions or (code is not None and made[code] > OFTEN):
                return function
        return decorator(function, **settings)

    return decorated
