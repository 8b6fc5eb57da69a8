"""Signatures of the API with short types, `Float[Array, 'B T D']`, and the fields of settings."""

import ast
import dataclasses
import re
from typing import TYPE_CHECKING, Any

from flax import nnx
from sphinx.util import inspect

from transformer_jax.core.config_fields import field_help

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LONG = 40  # characters of a default value


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True


def arguments(signature: str) -> list[str]:
    """Returns the arguments of a signature in parentheses.

    Example:
        >>> arguments("(a: dict[str, int], b=(1, 2))")
        ['a: dict[str, int]', 'b=(1, 2)']
    """
    parts, depth = [""], 0
    for letter in signature.strip()[1:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def plain(text: str) -> str:
    """Returns types without what ``Annotated`` says of them.

    Example:
        >>> plain("n: ~typing.Annotated[dict[str, int], Range(1, 64)] | None")
        'n: dict[str, int] | None'
    """
    while found := re.search(r"~?(?:typing\.)?Annotated\[", text):
        end, depth = found.end(), 1
        while depth:
            depth += (text[end] in "([{") - (text[end] in ")]}")
            end += 1
        kind = arguments(f"({text[found.end() : end - 1]})")[0]
        text = text[: found.start()] + kind + text[end:]
    return text


def short(text: str) -> str:
    """Returns a signature, or the annotation of a result, with types that readers know.

    A default value that is long becomes three dots, and one that Python cannot parse: for such a
    signature Sphinx would have neither lines nor links.

    Example:
        >>> short("(x: ~jaxtyping.Float[jaxlib._jax.Array, 'B T'])")
        "(x: ~jaxtyping.Float[Array, 'B T'])"
        >>> short("(f: Callable = <function g at 0x1>, n: int = 1)")
        '(f: Callable = ..., n: int = 1)'
    """
    text = re.sub(r"\b(?:jaxlib\._jax|jax)\.Array\b", "Array", plain(text.strip()))
    if not text.startswith("("):
        return text
    parts = []
    for part in arguments(text):
        default = re.search(r"(?: = |=)(.*)$", part, re.DOTALL)
        known = part in ("*", "/") or _parses(f"def f({part.replace('~', '')}): ...")
        if default and (not known or len(default[1]) > LONG):
            part = f"{part[: default.start()]} = ..."
        parts.append(part)
    return f"({', '.join(parts)})"


def _shorten(
    app: "Sphinx", what: str, name: str, thing: Any, options: Any, signature: str, returns: str
) -> tuple[str | None, str | None]:
    if what == "class" and isinstance(thing, type(nnx.Module)):  # whose calls take anything
        made = inspect.signature(thing.__init__, bound_method=True)
        signature = inspect.stringify_signature(made, unqualified_typehints=True)
    return signature and short(signature), returns and short(returns)


def _fields(
    app: "Sphinx", what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Adds the help of its flags to a class of settings that lists no attributes."""
    settings = what == "class" and dataclasses.is_dataclass(thing)
    if not settings or any(line.strip() == "Attributes:" for line in lines):
        return
    texts = {field.name: field_help(thing, field.name) for field in dataclasses.fields(thing)}
    if any(texts.values()):
        end = next((i for i, line in enumerate(lines) if line.strip() == "Raises:"), len(lines))
        rows = [f"    {field}: {text}" for field, text in texts.items() if text]
        lines[end:end] = ["", "Attributes:", *rows, ""]


def _skip(app: "Sphinx", what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out the fields of named tuples, whose class describes them."""
    text = str(getattr(thing, "__doc__", ""))
    return True if text.startswith("Alias for field number") else None


def setup(app: "Sphinx") -> dict[str, bool]:
    """Registers the changes."""
    app.connect("autodoc-process-signature", _shorten)
    app.connect("autodoc-process-docstring", _fields, priority=400)  # before Napoleon
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
