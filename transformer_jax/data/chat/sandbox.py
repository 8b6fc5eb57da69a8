"""The Jinja environment of chat templates: Hugging Face's, with fewer permissions.

A template comes with somebody else's checkpoint, so it is a program that nobody has reviewed. It
accesses only its arguments (a sandbox), and it runs in a process whose time and memory the system
limits (:mod:`transformer_jax.data.chat.render_process`).
"""

import datetime
import functools
import json
from collections.abc import Callable
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.parser
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace

__all__ = ["ChatEnvironment", "ConversationRefused", "OutputTooLong", "render"]

# One character can become a text of any length.
_TABLES = frozenset(("translate", "maketrans"))


class OutputTooLong(Exception):  # noqa: N818  (a refusal)
    """A template writes more than any layout of a conversation needs."""


class ConversationRefused(jinja2.TemplateError):
    """The message of a template that refuses a conversation."""


class _WrittenText:
    """The characters that a template has written, and the answer spans among them."""

    def __init__(self, characters: int = 0):
        self.longest = 100_000 + 16 * characters
        self.written = 0
        self.answers: list[tuple[int, int]] = []

    def write(self, text: str) -> str:
        self.written += len(text)
        if self.written > self.longest:
            raise OutputTooLong("it makes a text far longer than the conversation")
        return text


def render(text: str, values: dict[str, object]) -> tuple[str, list[tuple[int, int]]]:
    """Renders a conversation.

    Args:
        text: The template.
        values: Its variables, of plain types; ``messages`` among them.

    Returns:
        The text, and the character spans within ``{% generation %}`` tags.

    Raises:
        OutputTooLong: The template writes too much.
        ConversationRefused: The template refuses the conversation.
        jinja2.TemplateError: The template is not valid Jinja, or one of its expressions fails.
        Exception: Any other error of an expression of the template.

    Example:
        >>> render("{{ messages[0].content }}!", {"messages": [{"content": "Hi"}]})
        ('Hi!', [])
    """
    template = _compiled(text)
    output = _environment().output = _WrittenText(_characters(values))
    return "".join(map(output.write, template.generate(**values))), output.answers


@functools.cache
def _environment() -> "ChatEnvironment":
    return ChatEnvironment()


@functools.lru_cache(maxsize=8)
def _compiled(text: str) -> jinja2.Template:
    return _environment().from_string(text)


def _characters(value: object) -> int:
    """The number of characters in all texts of a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(8 + _characters(key) + _characters(one) for key, one in value.items())
    return sum(8 + _characters(one) for one in value) if isinstance(value, list) else 0


class AnswerSpans(jinja2.ext.Extension):
    """The tag ``{% generation %}``, which records the character spans of answers."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares a set)

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        """Parses the tag as a call whose body is the tag's content."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: Callable[[], str]) -> str:
        text, output = caller(), self.environment.output  # type: ignore[attr-defined]
        output.answers.append((output.written, output.written + len(text)))
        return text


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates, with the options, filters and globals of Hugging Face.

    It refuses more: an attribute that begins with an underscore raises instead of being empty, and
    ``lipsum`` is missing.
    """

    output: _WrittenText

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[AnswerSpans, jinja2.ext.loopcontrols]
        )
        self.output = _WrittenText()  # for constants that the compiler computes
        self.filters["tojson"] = _tojson
        self.globals |= {
            "range": range,
            "dict": _dict,
            "namespace": _namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        del self.globals["lipsum"]

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Returns whether a template may access an attribute."""
        return attr not in _TABLES and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Refuses an attribute that the sandbox hides."""
        raise SecurityError(f"it reaches for the attribute {attribute!r}")


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encodes JSON without escaping characters for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _dict(*args: Any, **fields: Any) -> dict[Any, Any]:
    return dict(*args, **fields)


def _namespace(*args: Any, **fields: Any) -> Namespace:
    for name in dict(*args, **fields):
        _check_name(name)
    return _Namespace(*args, **fields)


class _Namespace(Namespace):
    """A namespace without names that begin with an underscore."""

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it stores the attribute {name!r}")


def _raise_exception(message: str) -> None:
    """Lets a template refuse a conversation."""
    raise ConversationRefused(message)
