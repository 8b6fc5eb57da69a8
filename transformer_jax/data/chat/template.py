"""Chat templates, which turn a conversation into the text that a language model reads."""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.json_types import Json
from transformer_jax.data.chat.render_client import render_elsewhere
from transformer_jax.data.chat.token_names import (
    TOKEN_NAMES,
    read_object,
    read_template,
    token_names,
    tokens_of,
)
from transformer_jax.data.conversations import Message

__all__ = [
    "ChatTemplate",
    "RenderedChat",
    "built_in",
    "copy_template",
    "find_template",
    "named_template",
    "special_tokens",
]

_LAYOUTS = Path(__file__).parent / "layouts"
# Longer texts are not layouts of a conversation, and longer tokens not special tokens.
_MOST_CHARACTERS, _MOST_SPECIAL = 100_000, 10_000
# Special tokens of built-in templates besides BOS and EOS.
_SPECIAL_OF = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "llama-3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "phi-3": ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
}


class RenderedChat(NamedTuple):
    """A conversation as text."""

    text: str
    answers: tuple[tuple[int, int], ...]  # character spans within ``{% generation %}`` tags


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A layout of conversations, as in ``tokenizer_config.json``.

    Attributes:
        text: The template, in Jinja.
        special: Special tokens by the names that templates use, such as ``eos_token``; missing
            names are undefined. None uses the tokenizer's.
        name: Source of the template, for messages.
    """

    text: str
    special: Mapping[str, str] | None = None
    name: str = "the chat template"

    @property
    def marks_answers(self) -> bool:
        """Returns whether the template has ``{% generation %}`` tags around answers."""
        return "endgeneration" in self.text

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False, **variables: Any
    ) -> RenderedChat:
        r"""Renders a conversation as text.

        The result is the same as from ``apply_chat_template`` of Hugging Face transformers.

        Args:
            messages: The conversation; each has at least a ``role`` and a ``content``.
            add_generation_prompt: Whether the text ends with the prompt for an answer.
            **variables: Further variables of the template.

        Raises:
            ConfigError: The template is not valid Jinja, accesses something forbidden, or loops or
                writes far more than the conversation needs.
            DataError: The template refuses the conversation.

        Example:
            >>> template = named_template("chatml")
            >>> template.render([{"role": "user", "content": "Hi"}]).text
            '<|im_start|>user\nHi<|im_end|>\n'
        """
        self._check_sizes()
        given = {"tools": None, "documents": None, **(self.special or {}), **variables}
        try:
            values = {"messages": _plain(messages), **_plain(given)}
        except RecursionError:
            raise DataError("the variables of the chat template are too deeply nested") from None
        values["add_generation_prompt"] = add_generation_prompt
        found = render_elsewhere(self.text, values)
        if not found.kind:
            return RenderedChat(found.text, found.answers)
        if found.kind == "syntax":
            raise ConfigError(f"{self.name}:{found.line}: {found.reason}")
        if found.kind == "refused":
            raise ConfigError(f"{self.name} is refused: {found.reason}")
        verb = "refuses" if found.kind == "conversation" else "fails on"
        raise DataError(f"{self.name} {verb} the conversation: {found.reason}")

    def _check_sizes(self) -> None:
        """Refuses a template that is too long: its permitted work grows with everything it reads.

        Raises:
            ConfigError: The template or its special tokens are too long.
        """
        tokens = sum(map(len, (self.special or {}).values()))
        for subject, size, most in (
            ("it has", len(self.text), _MOST_CHARACTERS),
            ("its special tokens have", tokens, _MOST_SPECIAL),
        ):
            if size > most:
                raise ConfigError(
                    f"{self.name} is refused: {subject} {plural(size, 'character')}, and a layout "
                    f"of conversations at most {most:,}"
                )


def _plain(value: object) -> Any:
    """Converts ``value`` to plain types, whose methods are safe for a template to call."""
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [_plain(one) for one in value]
    return f"<{type(value).__name__}>"


def built_in() -> tuple[str, ...]:
    """Names of the built-in templates.

    Example:
        >>> "chatml" in built_in()
        True
    """
    return tuple(sorted(path.stem for path in _LAYOUTS.glob("*.jinja")))


def special_tokens(template: ChatTemplate) -> tuple[str, ...]:
    """Special tokens that a built-in template writes in addition to BOS and EOS.

    For other templates none are known: their checkpoints contain them.

    Example:
        >>> special_tokens(named_template("chatml"))
        ('<|im_start|>', '<|im_end|>')
    """
    same = (name for name in _SPECIAL_OF if template.text == named_template(name).text)
    return _SPECIAL_OF.get(next(same, ""), ())


def named_template(name: str, special: Mapping[str, str] | None = None) -> ChatTemplate:
    """Returns a built-in template, or the template in a file or folder.

    Args:
        name: A name from :func:`built_in`, a Jinja file, or a folder or JSON file with a
            ``chat_template``.
        special: Special tokens by name; None uses the file's, if it names any.

    Raises:
        ConfigError: There is no such template.
    """
    if name in built_in():
        return ChatTemplate(
            (_LAYOUTS / f"{name}.jinja").read_text("utf-8").removesuffix("\n"),
            special,
            f"the chat template {name}",
        )
    path = Path(name)
    if os.path.isdir(path):
        found = find_template(path)
    elif path.suffix == ".json" and os.path.isfile(path):
        found = _of_json(path)
    elif os.path.isfile(path):
        found = ChatTemplate(read_template(path).removesuffix("\n"), None, str(path))
    else:
        raise ConfigError(
            f"chat template {name}: no such file, and the built-in ones are {', '.join(built_in())}"
        )
    if found is None:
        raise ConfigError(
            f"{name}: holds no chat_template: choose a built-in one: {', '.join(built_in())}"
        )
    return found if special is None else dataclasses.replace(found, special=dict(special))


def find_template(folder: Path) -> ChatTemplate | None:
    """Returns the chat template of a Hugging Face folder or a run directory, or None.

    From ``chat_template.jinja``, or else ``tokenizer_config.json``, with the special tokens from
    :func:`token_names`.

    Raises:
        ConfigError: A file cannot be read.
    """
    config = folder / "tokenizer_config.json"
    known = _of_json(config) if config.is_file() else None
    special = token_names(folder)
    for file in (folder / "chat_template.jinja", folder / "chat_template.json"):
        if not file.is_file():
            continue
        if file.suffix == ".jinja":
            return ChatTemplate(read_template(file), special, str(file))
        if (found := _of_json(file)) is not None:
            return dataclasses.replace(found, special=special)
    return None if known is None else dataclasses.replace(known, special=special)


def copy_template(source: Path, target: Path) -> None:
    """Copies the chat template of a folder, if it has one, and the tokens that it names.

    Args:
        source: A Hugging Face folder or a run directory.
        target: The folder to write ``chat_template.jinja`` and ``tokenizer_config.json`` to.

    Raises:
        OSError: It cannot be written.
    """
    if (found := find_template(source)) is not None:
        with open(target / "chat_template.jinja", "w", encoding="utf-8", newline="") as file:
            file.write(found.text)
        config = target / "tokenizer_config.json"
        rest = read_object(config) if config.is_file() else {}
        if found.special is not None:
            rest = {name: value for name, value in rest.items() if name not in TOKEN_NAMES}
            text = json.dumps(rest | dict(found.special), indent=2, ensure_ascii=False) + "\n"
            config.write_text(text, encoding="utf-8")


def _of_json(path: Path) -> ChatTemplate | None:
    fields = read_object(path)
    text = fields.get("chat_template")
    if isinstance(text, list):  # several by name, of which the default is used
        text = dict(_named(text)).get("default")
    if not isinstance(text, str):
        return None
    named = any(name in fields for name in TOKEN_NAMES)
    return ChatTemplate(text, tokens_of(fields) if named else None, str(path))


def _named(templates: Sequence[Json]) -> Iterator[tuple[Json, Json]]:
    for one in templates:
        if isinstance(one, dict):
            yield one.get("name"), one.get("template")
