"""Language models that answer conversations, from run directories and Hugging Face folders."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.core.errors import ConfigError, command
from transformer_jax.inference.load_run import load_language
from transformer_jax.inference.runs import open_directory, refuse_others

if TYPE_CHECKING:
    from transformer_jax.data.chat.encoding import ChatEncoder
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.chat_session import ChatModel

__all__ = ["answering", "encoder_of", "load_chat", "special_names", "template_of"]


def special_names(tokenizer: "Tokenizer") -> dict[str, str]:
    """Returns a tokenizer's own special tokens, by their names in chat templates.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> special_names(train_tokenizer("bytes", []))["eos_token"]
        '<eos>'
    """
    roles = [role for role in ("bos", "eos", "pad", "unk") if role in tokenizer.roles]
    return {f"{role}_token": tokenizer.name(getattr(tokenizer, role)) for role in roles}


def encoder_of(path: Path, tokenizer: "Tokenizer", template: str | None = None) -> "ChatEncoder":
    """Returns the encoder of conversations of a model.

    Args:
        path: A run directory or a Hugging Face folder.
        tokenizer: Tokenizer of the model.
        template: A built-in chat template, a file or a folder; None is the model's.

    Raises:
        ConfigError: There is no chat template, or it does not match the tokenizer.
    """
    from dataclasses import replace

    from transformer_jax.data.chat.encoding import ChatEncoder
    from transformer_jax.data.chat.template import built_in, find_template, named_template
    from transformer_jax.data.chat.token_names import token_names

    found = find_template(Path(path)) if template is None else named_template(template)
    if found is None:
        raise ConfigError(
            f"{path}: has no chat template: name one with --template ({', '.join(built_in())}, a "
            f"file or a folder), or train the model on conversations, see "
            f"{command('instruct', 'sft', '--init-from', path, '--help')}"
        )
    special = found.special if found.special is not None else token_names(Path(path))
    special = special_names(tokenizer) if special is None else special
    found = replace(found, special=special)
    encoder = ChatEncoder(tokenizer, found)
    encoder.end_tokens  # noqa: B018  (refuses the template at once)
    return encoder


def template_of(path: Path, adapters: Sequence[str | os.PathLike[str] | None] = ()) -> str | None:
    """Returns the folder with the chat template of conversations: of their adapters, or None.

    Args:
        path: The base.
        adapters: The adapter of each conversation; None is the base alone.

    Returns:
        The folder, or None for the base's template.

    Raises:
        ConfigError: The adapters have different templates.
    """
    from transformer_jax.data.chat.template import find_template
    from transformer_jax.inference.adapters import check_adapter

    base = open_directory(path).path
    texts: dict[str | None, str | os.PathLike[str]] = {}
    chosen = None
    for adapter in dict.fromkeys(adapters):
        folder = base if adapter is None else check_adapter(adapter)
        found = find_template(folder)
        if found is not None and folder != base:
            chosen = str(folder)
        found = found or find_template(base)
        texts[None if found is None else found.text] = adapter or path
    if len(texts) > 1:
        one, other, *_ = texts.values()
        raise ConfigError(
            f"{one} and {other} have different chat templates: use one template per call"
        )
    return chosen


def load_chat(
    path: Path,
    checkpoint: str = "best",
    *,
    template: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    change: Callable[[Any], Any] = lambda config: config,
    **how: Any,
) -> "ChatModel":
    """Loads the language model of a run, to answer conversations.

    Args:
        path: The run directory or Hugging Face folder.
        checkpoint: The checkpoint, see :func:`~.load_run.chosen_checkpoint`.
        template: A built-in chat template, a file or a folder; None is the adapter's, or else the
            model's.
        adapter: A run with adapters on the model, or a folder in PEFT's format, merged into it.
        change: Function that changes the configuration; the parameters must still fit.
        **how: As for :func:`~.load_run.load_language`.

    Raises:
        ConfigError: The run is of another family, or has no chat template.
        CheckpointError: The run does not exist, or its files are damaged or do not match.
    """
    directory = open_directory(path)
    refuse_others(directory, ("decoder",))
    loaded = None
    if adapter is None:
        # Refuse it before loading the parameters.
        encoder_of(directory.path, directory.load_tokenizer(), template)
    else:
        from transformer_jax.data.chat.template import named_template
        from transformer_jax.inference.adapters import load_merged

        template = template_of(path, [adapter]) if template is None else template
        if template is not None:
            named_template(template)
        # Check the adapter before the template, which may need tokens that the base lacks.
        loaded = load_merged(path, adapter, checkpoint, change=change)
    language = load_language(path, checkpoint, loaded=loaded, change=change, **how)
    return answering(path, language, template)


def answering(path: Path, language: Any, template: str | None = None) -> "ChatModel":
    """Wraps a language model to answer conversations; parameters are shared.

    Args:
        path: Its run directory or Hugging Face folder.
        language: The language model.
        template: See :func:`load_chat`.

    Raises:
        ConfigError: There is no chat template, or the language model is not a decoder of this
            library.
    """
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.decoding.language import DecoderLanguageModel
    from transformer_jax.inference.chat_session import ChatModel

    if not isinstance(language, DecoderLanguageModel):
        raise ConfigError(f"{path}: n-gram models and CTranslate2 cannot answer conversations")
    folder, tokenizer = open_directory(path).path, language.tokenizer
    assert isinstance(tokenizer, Tokenizer), tokenizer
    return ChatModel(language, encoder_of(folder, tokenizer, template))
