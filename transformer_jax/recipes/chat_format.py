"""The chat template of a run on conversations."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.chat.template import ChatTemplate, built_in, find_template, named_template
from transformer_jax.data.chat.token_names import token_names
from transformer_jax.runs.manifest import atomic_write

if TYPE_CHECKING:
    from transformer_jax.runs.run_directory import RunDirectory

__all__ = ["run_template", "write_template"]


def run_template(run: Any) -> ChatTemplate:
    """Returns the chat template that a run asks for, or that of what it starts from.

    Raises:
        ConfigError: There is none.
    """
    if run.chat.template is not None:
        chosen = named_template(run.chat.template)
        if chosen.special is not None or run.init_from is None:
            return chosen
        return dataclasses.replace(chosen, special=token_names(Path(run.init_from)))
    template = None if run.init_from is None else find_template(Path(run.init_from))
    if template is None:
        where = "" if run.init_from is None else f"{run.init_from}: has no chat template: "
        raise ConfigError(
            f"{where}choose one with --chat.template: {', '.join(built_in())}, a file or a folder"
        )
    return template


def write_template(directory: "RunDirectory", template: ChatTemplate) -> None:
    """Writes a template to a run directory, in the files of Hugging Face folders."""
    from transformer_jax.inference.chats import special_names

    special = template.special
    if special is None:
        special = special_names(directory.load_tokenizer())
    fields = {"chat_template": template.text, **special}
    text = json.dumps(fields, indent=1, ensure_ascii=False) + "\n"
    atomic_write(directory.path / "tokenizer_config.json", text)
