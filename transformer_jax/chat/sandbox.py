"""The Jinja environment of chat templates: that of Hugging Face, with a budget of its own.

A template comes with a checkpoint of somebody else, so it is a program that nobody has read. It
reaches nothing but what it is given (a sandbox), and all that it loops over, calls and builds is
paid from a budget that is counted, not timed: a refusal is the same on every machine.
"""

import datetime
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError, safe_range
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from transformer_jax.chat.budget import MOST_NUMBER, TemplateTooExpensive, spend, weigh

__all__ = ["AnswerSpans", "ChatEnvironment", "ConversationRefused"]

_MOST_INDENT = 16
_LONG_TEXT = "it makes a text far longer than the conversation"
_SEQUENCES = (str, bytes, list, tuple)
# Filters and methods that do not look into the values they get.
_FREE = frozenset(
    ("attr", "count", "d", "default", "first", "get", "items", "keys", "last", "length", "values")
)
# Those that look at each item of a list once.
_SHALLOW = frozenset(
    ("list", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "batch", "slice")
)
# Tests that compare.
_COMPARING = frozenset(
    (
        "in",
        "==",
        "eq",
        "equalto",
        "!=",
        "ne",
        ">",
        "gt",
        "greaterthan",
        ">=",
        "ge",
        "<",
        "lt",
        "lessthan",
        "<=",
        "le",
    )
)
# Texts by a table: one character becomes a text of any length.
_REFUSED = frozenset(("translate", "maketrans"))
# Widths of four digits or more, a width that is given beside, and a field within a field.
_WIDE = re.compile(r"%[^a-zA-Z%]*(\d{4}|\*)|\{[^{}]*(:[^{}]*\d{4}|\{)")


class AnswerSpans(jinja2.ext.Extension):
    """The tag ``{% generation %}``: notes which characters of the text are answers."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares a set)

    def parse(self, parser: Any) -> nodes.Node:
        """The tag as a call, which gets what stands in it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: Callable[[], str]) -> str:
        text = caller()
        spend().note_answer(len(text))
        return text


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates, with the options, filters and globals that Hugging Face gives them.

    It differs where a template is refused: an attribute that begins with an underscore raises
    instead of being empty, and ``lipsum`` is missing.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[AnswerSpans, jinja2.ext.loopcontrols],
            # Constants are not computed while the template is compiled, where no budget is.
            optimized=False,
            finalize=weigh,
        )
        self.filters["tojson"] = _tojson
        self.filters = {name: _guarded(name, one) for name, one in self.filters.items()}
        self.tests |= {name: _guarded(name, self.tests[name]) for name in _COMPARING}
        self.globals |= {
            "range": _range,
            "dict": _dict,
            "namespace": _namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The syntax tree, in which loops, comparisons and joined texts ask the budget."""
        return _Counting().visit(super()._parse(source, name, filename))

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Refuses an attribute that the sandbox hides."""
        raise SecurityError(f"it reaches for the attribute {attribute!r}")

    def getitem(self, obj: Any, argument: Any) -> Any:
        """An item, or a slice, which is paid."""
        found = super().getitem(obj, argument)
        if isinstance(argument, slice) and hasattr(found, "__len__"):
            spend(len(found))
        return found

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """A sum, product, power or remainder of bounded size."""
        if operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, _SEQUENCES) and isinstance(times, int):
                    spend().text(len(text) * max(times, 0))
        elif operator == "**":
            if abs(left) > MOST_NUMBER or abs(right) > 64:
                raise TemplateTooExpensive("it computes a number of too many digits")
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        found = super().call_binop(context, operator, left, right)
        if isinstance(found, _SEQUENCES):
            spend(len(found) if isinstance(found, list | tuple) else 0).text(len(found))
        return weigh(found) if isinstance(found, int) else found

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """A call by a template."""
        # The sandbox wraps the methods that format.
        method = getattr(__obj, "__wrapped__", __obj)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if owner is __self:
            return super().call(__context, __obj, *args, **kwargs)
        if isinstance(__obj, LoopContext):
            args = tuple(map(__self.paid, args))
        else:
            args = _sized(name, args)
            _check_sizes(name, (owner, *args), kwargs)
        return weigh(super().call(__context, __obj, *args, **kwargs))

    # What the syntax tree calls.

    def tick(self, characters: int) -> str:
        """Pays one turn of a loop that writes so many characters."""
        spend().text(characters)
        return ""

    def paid(self, items: Any) -> Any:
        """``items`` to loop over, paid."""
        if hasattr(items, "__len__"):
            spend(len(items))
        return items

    def concatenate(self, *parts: Any) -> str:
        """``a ~ b``."""
        texts = [str(weigh(part)) for part in parts]
        spend().text(sum(map(len, texts)))
        return "".join(texts)

    def weighed(self, value: Any) -> Any:
        """A side of a comparison."""
        return weigh(value)


class _Counting(NodeTransformer):
    """Puts calls of the environment into a syntax tree."""

    def _calling(self, name: str, arguments: list[Any], line: int) -> nodes.Call:
        function = nodes.EnvironmentAttribute(name, lineno=line)
        return nodes.Call(function, arguments, [], None, None, lineno=line)

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = self._calling("paid", [node.iter], node.lineno)
        written = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        cost = nodes.Const(written, lineno=node.lineno)
        turn = self._calling("tick", [cost], node.lineno)
        node.body.insert(0, nodes.ExprStmt(turn, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802
        self.generic_visit(node)
        return self._calling("concatenate", node.nodes, node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = self._calling("weighed", [node.expr], node.lineno)
        for operand in node.ops:
            operand.expr = self._calling("weighed", [operand.expr], node.lineno)
        return node


def _guarded(name: str, function: Any) -> Any:
    """A filter or test that is paid before it computes."""
    pass_arg = hasattr(function, "jinja_pass_arg")

    def paid(*args: Any, **kwargs: Any) -> Any:
        given = _sized(name, args[pass_arg:])
        _check_sizes(name, given, kwargs)
        found = function(*args[:pass_arg], *given, **kwargs)
        if isinstance(found, list):
            spend(len(found))
        return weigh(found) if isinstance(found, str | int) else found

    if pass_arg:  # how Jinja knows what to give it first
        paid.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return paid


def _sized(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is joined, as a list, whose length is known."""
    if name != "join":
        return args
    return tuple(list(one) if isinstance(one, Iterator) else one for one in args)


def _check_sizes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Pays what a filter, test or method reads, and refuses what would write too much.

    Args:
        name: Of the filter, test, method or function.
        args: The value or the object of the method, then the arguments.
        kwargs: Arguments by name.
    """
    budget, given = spend(), [*args, *kwargs.values()]
    if name in _REFUSED:
        raise SecurityError(f"it calls {name!r}")
    numbers = [abs(one) for one in given[1:] if isinstance(one, int)]
    most = _MOST_INDENT if name == "tojson" else MOST_NUMBER
    if name != "_range" and any(number > most for number in numbers):
        raise TemplateTooExpensive(_LONG_TEXT)
    if name in _SHALLOW:
        spend(sum(len(one) for one in args[:1] if isinstance(one, list | tuple)))
        return
    if name not in _FREE:
        for one in given:
            weigh(one)
    texts = [len(one) for one in given if isinstance(one, _SEQUENCES)]
    if name in ("join", "indent", "expandtabs"):
        # At most so much between any two of what is joined.
        budget.text(math.prod(size + 1 for size in (*texts[:2], *numbers[:1])))
    elif name == "replace" and len(texts) > 2:
        budget.text(texts[0] + (texts[0] // max(texts[1], 1) + 1) * texts[2])
    elif name in ("format", "format_map", "_strftime_now"):
        for one in given:
            if isinstance(one, str):
                _check_format(one)


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise TemplateTooExpensive("it formats with a width beyond 999, or one that is computed")


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
        found = safe_range(*bounds)
    except OverflowError:
        raise TemplateTooExpensive(
            "it loops longer than a conversation of this size needs"
        ) from None
    spend(len(found))
    return found


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


class ConversationRefused(jinja2.TemplateError):
    """What a template says against a conversation."""
