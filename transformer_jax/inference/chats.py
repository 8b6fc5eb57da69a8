"""Language models that answer conversations, from run directories and Hugging Face folders."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.core.errors import ConfigError, command
from transformer_jax.decoding.requests import CountingLanguageModel
from transformer_jax.inference.facts import Facts, StoredChat
from transformer_jax.inference.pretrained import Pretrained

if TYPE_CHECKING:
    from transformer_jax.data.chat.encoding import ChatEncoder
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.chat_session import ChatModel

__all__ = ["answering", "encoder_in", "encoder_of", "load_chat", "special_names", "template_of"]


def special_names(tokenizer: "Tokenizer") -> dict[str, str]:
    """Returns a tokenizer's own special tokens, by their names in chat templates.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> special_names(train_tokenizer("bytes", []))["eos_token"]
        '<eos>'
    """
    roles = [role for role in ("bos", "eos", "pad", "unk") if role in tokenizer.roles]
    return {f"{role}_token": tokenizer.name(getattr(tokenizer, role)) for role in roles}


def encoder_of(
    path: Path, chat: StoredChat, tokenizer: "Tokenizer", template: str | None = None
) -> "ChatEncoder":
    """Returns the encoder of conversations of a model.

    Args:
        path: Its folder, for messages.
        chat: The chat template of the folder.
        tokenizer: Tokenizer of the model.
        template: A built-in chat template, a file or a folder; None is the model's.

    Raises:
        ConfigError: There is no chat template, or it does not match the tokenizer.
    """
    from transformer_jax.data.chat.encoding import ChatEncoder
    from transformer_jax.data.chat.template import built_in, named_template

    if template is None and chat.error is not None:
        raise chat.error
    found = chat.template if template is None else named_template(template)
    if found is None:
        raise ConfigError(
            f"{path}: has no chat template: name one with --template ({', '.join(built_in())}, a "
            f"file or a folder), or train the model on conversations, see "
            f"{command('instruct', 'sft', '--init-from', path, '--help')}"
        )
    if found.special is None and chat.error is not None:
        raise chat.error
    special = found.special if found.special is not None else chat.names
    special = special_names(tokenizer) if special is None else special
    found = dataclasses.replace(found, special=special)
    encoder = ChatEncoder(tokenizer, found)
    encoder.end_tokens  # noqa: B018  (refuses the template at once)
    return encoder


def encoder_in(folder: Path, tokenizer: "Tokenizer", template: str | None = None) -> "ChatEncoder":
    """Returns the encoder of conversations of a folder that is not opened, as in training.

    Raises:
        ConfigError: See :func:`encoder_of`.
    """
    return encoder_of(folder, StoredChat.read(folder), tokenizer, template)


def template_of(facts: Facts, adapters: Sequence[str | os.PathLike[str] | None] = ()) -> str | None:
    """Returns the folder with the chat template of conversations: of their adapters, or None.

    Args:
        facts: Facts of the base.
        adapters: The adapter of each conversation; None is the base alone.

    Returns:
        The folder, or None for the base's template.

    Raises:
        ConfigError: The adapters have different templates.
    """
    from transformer_jax.data.chat.template import find_template
    from transformer_jax.inference.adapters import check_adapter

    if facts.chat.error is not None:
        raise facts.chat.error
    base, texts, chosen = facts.chat.template, dict[str | None, str | os.PathLike[str]](), None
    for adapter in dict.fromkeys(adapters):
        folder = None if adapter is None else check_adapter(adapter, facts.opening)
        found = None if folder is None else find_template(folder)
        if found is not None and folder != facts.source:
            chosen = str(folder)
        found = found or base
        texts[None if found is None else found.text] = adapter or facts.source
    if len(texts) > 1:
        one, other, *_ = texts.values()
        raise ConfigError(
            f"{one} and {other} have different chat templates: use one template per call"
        )
    return chosen


def load_chat(
    facts: Facts,
    *,
    template: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    change: Callable[[Any], Any] = lambda config: config,
    **how: Any,
) -> "ChatModel":
    """Loads a decoder to answer conversations.

    Args:
        facts: Facts of the decoder.
        template: A built-in chat template, a file or a folder; None is the adapter's, or else the
            model's.
        adapter: A run with adapters on the model, or a folder in PEFT's format, merged into it.
        change: Function that changes the configuration; the parameters must still fit.
        **how: As for :meth:`.Pretrained.language`.

    Raises:
        ConfigError: The model is of another family, or has no chat template.
        CheckpointError: Its files are damaged or do not match.
    """
    facts.require("decoder")
    if adapter is None:
        # Refuse it before loading the parameters.
        encoder_of(facts.source, facts.chat, facts.tokenizer, template)
        opened = Pretrained.load(facts, change=change)
    else:
        from transformer_jax.data.chat.template import named_template
        from transformer_jax.inference.adapters import load_merged

        template = template_of(facts, [adapter]) if template is None else template
        if template is not None:
            named_template(template)
        # Check the adapter before the template, which may need tokens that the base lacks.
        opened = load_merged(facts, adapter, change=change)
    return answering(opened.facts, opened.chat, opened.language(**how), template)


def answering(
    facts: Facts, chat: StoredChat, language: CountingLanguageModel, template: str | None = None
) -> "ChatModel":
    """Wraps a language model to answer conversations; parameters are shared.

    Args:
        facts: Facts of the model.
        chat: The chat template of its folder.
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
        raise ConfigError(
            f"{facts.source}: n-gram models and CTranslate2 cannot answer conversations"
        )
    tokenizer = language.tokenizer
    assert isinstance(tokenizer, Tokenizer), tokenizer
    return ChatModel(language, encoder_of(facts.source, chat, tokenizer, template))
