"""The Jinja environment of chat templates: that of Hugging Face, with fewer permissions.

A template comes with a checkpoint of somebody else, so it is a program that nobody has read. It
reaches nothing but what it is given (a sandbox), and it runs in a process whose time and memory the
system limits (:mod:`transformer_jax.chat.render_process`). Counted here is what makes a refusal the
same on every machine: turns of loops, items of slices, and characters that are written.
"""

import datetime
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError, safe_range
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["ChatEnvironment", "ConversationRefused", "TemplateTooExpensive", "render"]

_MOST_BASE, _MOST_EXPONENT = 10_000, 64  # of powers
# One character becomes a text of any length.
_TABLES = frozenset(("translate", "maketrans"))


class TemplateTooExpensive(Exception):  # noqa: N818  (a refusal)
    """A template that loops, or writes, more than any layout of a conversation needs."""


class ConversationRefused(jinja2.TemplateError):
    """The message of a template that refuses a conversation."""


class _Budget:
    """The turns of loops that a template has left, and what it has written."""

    def __init__(self, messages: int, characters: int):
        self.steps = 50_000 + 1_000 * messages + characters
        self.longest = 100_000 + 16 * characters
        self.written = 0
        self.answers: list[tuple[int, int]] = []

    def spend(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise TemplateTooExpensive("it loops longer than a conversation of this size needs")

    def write(self, text: str) -> str:
        self.written += len(text)
        if self.written > self.longest:
            raise TemplateTooExpensive("it makes a text far longer than the conversation")
        return text


def render(text: str, values: dict[str, Any]) -> tuple[str, list[tuple[int, int]]]:
    """Renders a conversation.

    Args:
        text: The template.
        values: Its variables, of plain types; ``messages`` among them.

    Returns:
        The text, and the spans of its characters within ``{% generation %}`` tags.

    Raises:
        TemplateTooExpensive: The template loops or writes too much.
        ConversationRefused: The template refuses the conversation.
        jinja2.TemplateError: The template is no valid Jinja, or an expression of it fails.
        Exception: Whatever else an expression of the template raises.

    Example:
        >>> render("{{ messages[0].content }}!", {"messages": [{"content": "Hi"}]})
        ('Hi!', [])
    """
    template = _compiled(text)
    budget = _Budget(len(values["messages"]), _characters(values))
    _environment().budget = budget
    return "".join(map(budget.write, template.generate(**values))), budget.answers


@functools.cache
def _environment() -> "ChatEnvironment":
    return ChatEnvironment()


@functools.lru_cache(maxsize=8)
def _compiled(text: str) -> jinja2.Template:
    return _environment().from_string(text)


def _characters(value: Any) -> int:
    """The number of characters of all texts in a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(8 + _characters(key) + _characters(one) for key, one in value.items())
    return sum(8 + _characters(one) for one in value) if isinstance(value, list) else 0


class AnswerSpans(jinja2.ext.Extension):
    """The tag ``{% generation %}``: notes which characters of the text are answers."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares a set)

    def parse(self, parser: Any) -> nodes.Node:
        """The tag as a call, which gets what stands in it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: Callable[[], str]) -> str:
        text, budget = caller(), self.environment.budget  # type: ignore[attr-defined]
        budget.answers.append((budget.written, budget.written + len(text)))
        return text


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates, with the options, filters and globals that Hugging Face gives them.

    It differs where a template is refused: an attribute that begins with an underscore raises
    instead of being empty, and ``lipsum`` is missing.
    """

    intercepted_binops = frozenset(("**",))
    budget: _Budget

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[AnswerSpans, jinja2.ext.loopcontrols],
        )
        self.budget = _Budget(0, 0)  # of what the compiler computes
        self.filters["tojson"] = _tojson
        self.globals |= {
            "range": _range,
            "dict": _dict,
            "namespace": _namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The syntax tree, in which loops and slices are counted."""
        return _Counting().visit(super()._parse(source, name, filename))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Returns whether a template may reach for an attribute."""
        return attr not in _TABLES and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Refuses an attribute that the sandbox hides."""
        raise SecurityError(f"it reaches for the attribute {attribute!r}")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """A power of bounded size."""
        if abs(left) > _MOST_BASE or abs(right) > _MOST_EXPONENT:
            raise TemplateTooExpensive("it computes a number of too many digits")
        return super().call_binop(context, operator, left, right)

    # The syntax tree calls these.

    def take_slice(self, items: Any, *bounds: Any) -> Any:
        """A slice, whose items are counted."""
        part = items[slice(*bounds)]
        size = len(part) if hasattr(part, "__len__") else 0
        self.budget.spend(size // (64 if isinstance(part, str) else 16))
        return part

    def count_turns(self, items: Any) -> Any:
        """``items`` to loop over, each of which is a turn."""
        if hasattr(items, "__len__"):
            self.budget.spend(len(items))
            return items
        return self._one_by_one(items)

    def _one_by_one(self, items: Any) -> Iterator[Any]:
        for item in items:
            self.budget.spend(1)
            yield item


class _Counting(NodeTransformer):
    """Has the environment count the turns of loops and the items of slices of a syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _calling("count_turns", [node.iter], node.lineno)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        nothing = nodes.Const(None, lineno=node.lineno)
        return _calling("take_slice", [node.node, *(one or nothing for one in bounds)], node.lineno)


def _calling(name: str, arguments: list[Any], line: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(function, arguments, [], None, None, lineno=line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON, in which no character is escaped for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _range(*bounds: int) -> range:
    try:
        return safe_range(*bounds)
    except OverflowError:
        raise TemplateTooExpensive(
            "it loops longer than a conversation of this size needs"
        ) from None


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

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it stores the attribute {name!r}")


def _raise_exception(message: str) -> None:
    """Lets a template refuse a conversation."""
    raise ConversationRefused(message)
