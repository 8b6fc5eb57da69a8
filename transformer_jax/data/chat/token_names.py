"""Special tokens of a folder, by the names that chat templates use."""

import json
from collections.abc import Mapping
from pathlib import Path

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.data.files import read_file

__all__ = ["TOKEN_NAMES", "read_object", "read_template", "token_names", "tokens_of"]

# Names of special tokens in chat templates.
TOKEN_NAMES = (
    "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token",
)  # fmt: skip
_LARGEST_FILE = 1 << 26  # bytes, of a template or of a file with one
_FILES = ("special_tokens_map.json", "tokenizer_config.json")  # the latter takes precedence

# Default names of special tokens by tokenizer class, used if no file names them.
_CLASS_TOKENS: Mapping[str, Mapping[str, str]] = {
    "llama": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "gpt2": dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>"),
    "qwen2": dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>"),
    "gemma": {
        "unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>",
        "pad_token": "<pad>", "mask_token": "<mask>",
    },
}  # fmt: skip
# Tokenizer class by model type, if no file names it, and for types whose ``tokenizer_class``
# transformers ignores; for other types it uses a class without default names.
_CLASS_OF = {
    **dict.fromkeys(("gpt2", "opt", "starcoder2"), "gpt2"),
    "qwen3": "qwen2",
    **dict.fromkeys(("gemma", "gemma2"), "gemma"),
}
_FIXED_CLASS = {"qwen2": "qwen2", "phi3": "", "mistral": ""}


def token_names(folder: Path) -> dict[str, str] | None:
    """Returns the special tokens of a folder, by the names that templates use.

    They come from its files, or from the tokenizer class if no file names one. A token that a file
    sets to null is omitted, as in transformers. The result is None if the folder has no such file
    and no model type, as for runs that were never exported.

    Raises:
        ConfigError: A file is damaged.
    """
    said = [read_object(folder / file) for file in _FILES if (folder / file).is_file()]
    config = folder / "config.json"
    kind = str((read_object(config) if config.is_file() else {}).get("model_type") or "")
    if not said and not kind:
        return None
    fields: dict[str, Json] = {}
    for part in said:
        fields |= {key: one for key, one in part.items() if one is not None or key not in fields}
    return tokens_of(fields, kind)


def tokens_of(fields: Mapping[str, Json], kind: str = "") -> dict[str, str]:
    """Returns the special tokens defined by a tokenizer's settings.

    Args:
        fields: The settings.
        kind: The model type.

    Example:
        >>> tokens_of({"eos_token": {"content": "</s>"}, "pad_token": None})
        {'eos_token': '</s>'}
        >>> tokens_of({"tokenizer_class": "LlamaTokenizer", "bos_token": None})
        {'eos_token': '</s>', 'unk_token': '<unk>'}
    """
    named = str(fields.get("tokenizer_class") or "")
    own = named.removesuffix("Fast").removesuffix("Tokenizer").lower()
    own = _FIXED_CLASS.get(kind, own if named else _CLASS_OF.get(kind, ""))
    usual, found = _CLASS_TOKENS.get(own, {}), {}
    for name in TOKEN_NAMES:
        value = fields.get(name, usual.get(name))
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str) and value:
            found[name] = value
    return found


def read_object(path: Path) -> dict[str, Json]:
    """Returns the JSON object in a file; empty if it contains anything else.

    Raises:
        ConfigError: It cannot be read, or is not JSON.
    """
    try:
        fields = json.loads(read_template(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    return fields if isinstance(fields, dict) else {}


def read_template(path: Path) -> str:
    """Returns the text of a file.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        text = read_file(path, _LARGEST_FILE).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 at byte {error.start}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
