"""Help of settings: the comments of fields, and the ranges that their types declare."""

import ast
import dataclasses
import functools
import inspect
import io
import re
import textwrap
import tokenize
import typing
from collections.abc import Iterator

from transformer_jax.core.config_fields import Range, field_types

__all__ = ["field_help", "range_of"]


@functools.cache
def field_help(cls: type) -> dict[str, str]:
    """Returns the help of each field of a dataclass, from its source code.

    It is the text below a field, the comments above it and on its line, its entry in the
    docstring's attributes, or its metadata.

    Args:
        cls: The dataclass.

    Example:
        >>> from transformer_jax.models.config import AttentionConfig
        >>> field_help(AttentionConfig)["num_kv_heads"]
        'Number of key and value heads, K; None is num_heads, fewer is GQA.'
    """
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        texts |= _own_help(base) if dataclasses.is_dataclass(base) else {}  # type: ignore[arg-type]
    return {
        field.name: texts.get(field.name) or field.metadata.get("help", "")
        for field in dataclasses.fields(cls)
    }


def range_of(cls: type, name: str) -> str:
    """Returns a field's range of numbers in words; empty without a range.

    Args:
        cls: The dataclass.
        name: The field.

    Example:
        >>> from transformer_jax.models.config import AttentionConfig
        >>> range_of(AttentionConfig, "num_heads"), range_of(AttentionConfig, "bias")
        ('1 to 16384', '')
    """
    return next((text for one in _ranges(field_types(cls)[name]) if (text := str(one))), "")


def _ranges(kind: object) -> Iterator[Range]:
    for part in typing.get_args(kind):
        if isinstance(part, Range):
            yield part
        else:
            yield from _ranges(part)


@functools.cache
def _own_help(cls: type) -> dict[str, str]:
    """Returns the help of the fields declared by the class itself; empty without source code."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    listed = (ast.get_docstring(tree) or "").partition("Attributes:\n")[2]
    attributes = re.findall(r"^    (\w+): (.+(?:\n     +.+)*)", listed, re.MULTILINE)
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    lines, help_texts = source.splitlines(), {}
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            help_texts[node.target.id] = " ".join(str(after.value.value).split())
            continue
        first = node.lineno
        while lines[first - 2].lstrip().startswith("#"):
            first -= 1
        assert node.end_lineno is not None
        words = (comments.get(i, "") for i in range(first, node.end_lineno + 1))
        help_texts[node.target.id] = " ".join(
            word for word in words if word not in ("", "fmt: skip")
        )
    texts = {name: " ".join(text.split()).replace("``", "") for name, text in attributes}
    return {name: text or texts.get(name, "") for name, text in help_texts.items()}
