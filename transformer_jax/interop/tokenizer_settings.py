"""Tokenizer settings of a Hugging Face checkpoint."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.core.errors import CheckpointError, DataError
from transformer_jax.core.json_types import Json
from transformer_jax.interop.bounded_json import Cursor
from transformer_jax.interop.tensor_files import inside

__all__ = [
    "LANGUAGES",
    "Settings",
    "read_bytes",
    "read_ids",
    "read_json",
    "read_settings",
    "read_text",
]

LANGUAGES = "languages"  # our key for language tags

# By preference: a classifier's cls and sep tokens replace missing bos and eos.
_ROLES = {
    "pad": ("pad_token",),
    "unk": ("unk_token",),
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
    "mask": ("mask_token",),
}
_LARGEST = 256_000_000
_LARGEST_SETTINGS = 10_000_000
_MOST_IDS = 4_000_000
_UNBOUNDED = 1 << 30  # tokens
# Classes without their own names of inputs: PreTrainedTokenizerFast and its current name.
_UNTYPED = ("pretrained", "tokenizersbackend")


class Settings:
    """Settings of ``tokenizer_config.json``, or else ``special_tokens_map.json``, and the family.

    Attributes:
        family: The class of the tokenizer, or the model type, in lower case without "tokenizer";
            empty if unknown.
        names: Special tokens by role: pad, unk, bos, eos, mask.
        special: All special tokens.
        added_tokens: Ids of tokens that were added to the vocabulary, by token.
        length: Maximum length of a text in tokens, with special tokens; None if there is none.
        truncates_starts: Whether longer texts lose their first tokens.
        has_token_types: Whether the second of two texts has token type 1.
    """

    def __init__(
        self, fields: Mapping[str, Json], kind: str = "", added_tokens: Mapping[str, int] = {}
    ):
        """Combines the fields of the files.

        Raises:
            DataError: A field has the wrong type; the message does not name the folder.
        """
        self._fields = fields
        self.length, self.truncates_starts = self._length(), self._truncates_starts()
        said = str(fields.get("tokenizer_class") or kind)
        self.family = said.removesuffix("Fast").removesuffix("Tokenizer").lower()
        self.has_token_types = self._has_token_types()
        self.names: dict[str, str] = {}
        for role, keys in _ROLES.items():
            found = [name for key in keys if (name := _name(fields.get(key)))]
            if found:
                self.names[role] = found[0]
        if self.names.get("unk") in (self.names.get("bos"), self.names.get("eos")):
            self.names.pop("unk", None)  # as in GPT-2, whose bytes leave nothing unknown
        self.special = set(self.names.values()) | set(self.listed())
        self.added_tokens = dict(added_tokens)
        decoder = fields.get("added_tokens_decoder") or {}
        for id, token in decoder.items() if isinstance(decoder, dict) else ():
            if not isinstance(token, dict) or not _name(token) or not id.isdecimal():
                raise DataError("an added token has no text or no id")
            self.added_tokens[token["content"]] = int(id)
            if token.get("special"):
                self.special.add(token["content"])

    @property
    def stored_languages(self) -> Any:
        """Returns the languages of a translator that was trained here, or None."""
        return self._fields.get(LANGUAGES)

    def has(self, name: str) -> bool:
        """Returns whether a setting is in a file, including null."""
        return name in self._fields

    def flag(self, name: str, default: bool | None) -> bool | None:
        """Returns a boolean setting, or None."""
        value = self._fields.get(name, default)
        if value is not None and type(value) is not bool:
            raise DataError(f"the setting {name} is {value!r}, not true or false")
        return value

    def around(self, begins: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the tokens before and after every text.

        Args:
            begins: Whether texts begin with ``bos`` by default.
        """
        found = []
        for role, usual, default in (("bos", "<s>", begins), ("eos", "</s>", False)):
            name = self.names.get(role)
            if f"{role}_token" not in self._fields:
                name = name or usual
            wanted = self.flag(f"add_{role}_token", default)
            found.append((name,) if wanted and name else ())
        return found[0], found[1]

    def _length(self) -> int | None:
        for name in ("model_max_length", "max_len"):
            value = self._fields.get(name)
            if value is None:
                continue
            # Tokenizers without a limit have a huge number, and some files write it as 1e30.
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
                raise DataError(f"the setting {name} is {value!r}, not a number from 1")
            return int(value) if value < _UNBOUNDED else None
        return None

    def _truncates_starts(self) -> bool:
        side = self.text("truncation_side")
        if side not in (None, "left", "right"):
            raise DataError(f"the setting truncation_side is {side!r}: left or right")
        return side == "left"

    def _has_token_types(self) -> bool:
        """By ``model_input_names``, or else by the class, as in transformers."""
        names = self._fields.get("model_input_names")
        if names is None:
            return self.family not in _UNTYPED
        if not isinstance(names, list):
            raise DataError(f"the setting model_input_names is {str(names)[:40]!r}, not a list")
        return "token_type_ids" in names

    def count(self, name: str, default: int) -> int:
        """Returns an integer setting."""
        value = self._fields.get(name, default)
        if type(value) is not int or not 0 <= value <= 10_000:
            raise DataError(f"the setting {name} is {value!r}, not a number up to 10000")
        return value

    def text(self, name: str) -> str | None:
        """Returns a text setting, or None."""
        value = self._fields.get(name)
        if value is not None and not isinstance(value, str):
            raise DataError(f"the setting {name} is {value!r}, not a text")
        return value

    def listed(self) -> list[str]:
        """Returns special tokens without a role."""
        found = []
        for key in ("additional_special_tokens", "extra_special_tokens"):
            tokens = self._fields.get(key) or ()
            found += [_name(token) for token in tokens] if isinstance(tokens, list) else []
        return [name for name in found if name]


def read_settings(folder: Path) -> Settings:
    """Reads the tokenizer settings in the files of a folder; empty if there are none.

    Raises:
        DataError: A file is damaged.
    """
    fields = _object(folder / "special_tokens_map.json")
    fields |= {
        key: value
        for key, value in _object(folder / "tokenizer_config.json").items()
        if value is not None or key not in fields
    }
    added = folder / "added_tokens.json"
    kind = _object(folder / "config.json").get("model_type")
    try:
        return Settings(fields, str(kind or ""), read_ids(added) if os.path.lexists(added) else {})
    except DataError as error:
        if str(error).startswith(str(folder)):
            raise
        raise DataError(f"{folder / 'tokenizer_config.json'}: {error}") from None


def read_ids(path: Path) -> dict[str, int]:
    """Reads a JSON object of ids by token, with unique tokens and ids.

    Raises:
        DataError: The content is invalid.
    """
    try:
        cursor = Cursor(read_bytes(path), _MOST_IDS)
        ids: dict[str, int] = {}
        for name in cursor.members():
            id = cursor.scalar()
            if type(id) is not int or not 0 <= id < _MOST_IDS:
                raise ValueError(f"the id of {name[:40]!r} is {id!r}")
            ids[name] = id
        cursor.end()
    except ValueError as error:
        raise DataError(f"{path}: is not a vocabulary, or damaged: {error}") from None
    if len(set(ids.values())) != len(ids):
        raise DataError(f"{path}: is not a vocabulary: an id is repeated")
    return ids


def read_text(path: Path) -> str:
    """Reads a file of UTF-8 text, with unchanged line ends.

    Raises:
        DataError: The file cannot be read, is too long, or is not UTF-8.
    """
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 at byte {error.start}") from None


def read_bytes(path: Path, most: int = _LARGEST, *, folder: Path | None = None) -> bytes:
    """Reads a regular file of at most ``most`` bytes within a folder.

    Args:
        path: The file.
        most: Maximum size in bytes.
        folder: Folder that must contain the file even after following links; None is its parent.

    Raises:
        DataError: The file is not regular, too long, outside of the folder, or unreadable.
    """
    folder = path.parent if folder is None else folder
    try:
        inside(folder, str(path if path.is_absolute() else path.relative_to(folder)))
        if path.stat().st_size > most:
            raise DataError(f"{path}: has more than {most} bytes, which is too long")
        return path.read_bytes()
    except CheckpointError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_json(folder: Path, name: str, kind: type) -> Any:
    """Reads the list or the object in a file of a folder; None if the file does not exist.

    Args:
        folder: Folder that must contain the file even after following links.
        name: Name of the file.
        kind: ``list`` or ``dict``.

    Raises:
        DataError: The content is invalid.
    """
    path = folder / name
    if not os.path.lexists(path):
        return None
    try:
        found = json.loads(read_bytes(path, _LARGEST_SETTINGS, folder=folder).decode("utf-8"))
    except (ValueError, RecursionError):
        raise DataError(f"{path}: is damaged: not JSON") from None
    if not isinstance(found, kind):
        what = "object" if kind is dict else "list"
        raise DataError(f"{path}: is damaged: not a JSON {what}")
    return found


def _object(path: Path) -> dict[str, Json]:
    return read_json(path.parent, path.name, dict) or {}


def _name(token: object) -> str | None:
    """Returns the text of a token, given as text or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None
