"""What the small files beside a published model say about its tokenizer and sentence vectors."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.errors import CheckpointError, DataError
from transformer_jax.interop.bounded_json import Cursor
from transformer_jax.interop.tensor_files import inside

__all__ = ["Settings", "read_bytes", "read_ids", "read_settings", "read_text", "sentence_fields"]

# By preference: a classifier's first and last token stand in for those of sentences.
_ROLES = {
    "pad": ("pad_token",),
    "unk": ("unk_token",),
    "bos": ("bos_token", "cls_token"),
    "eos": ("eos_token", "sep_token"),
    "mask": ("mask_token",),
}
# Ways from the vectors of all tokens to one, and what files call them.
_MODES = {
    "mean": "pooling_mode_mean_tokens",
    "first": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# Parts of a sentence encoder beside which a vector keeps its direction.
_HARMLESS = ("Transformer", "Pooling", "Normalize", "Dropout")
_BERTS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_LARGEST = 256_000_000
_LARGEST_SETTINGS = 10_000_000
_MOST_IDS = 4_000_000


class Settings:
    """``tokenizer_config.json``, where it is silent ``special_tokens_map.json``, and the family.

    Attributes:
        family: The class of the tokenizer, or the type of the model, in small letters without
            "tokenizer"; empty if no file says.
        names: Special tokens by role: pad, unk, bos, eos, mask.
        special: All special tokens.
        added: Ids of tokens that were added to the vocabulary, by token.
    """

    def __init__(self, fields: Mapping[str, Any], kind: str = "", added: Mapping[str, int] = {}):
        """What the fields of the files together say.

        Raises:
            DataError: A field of another type than it must be; the folder is not named.
        """
        self._fields = fields
        said = str(fields.get("tokenizer_class") or kind)
        self.family = said.removesuffix("Fast").removesuffix("Tokenizer").lower()
        self.names: dict[str, str] = {}
        for role, keys in _ROLES.items():
            found = [name for key in keys if (name := _name(fields.get(key)))]
            if found:
                self.names[role] = found[0]
        if self.names.get("unk") in (self.names.get("bos"), self.names.get("eos")):
            self.names.pop("unk", None)  # GPT-2 says so, whose bytes leave nothing unknown
        self.special = set(self.names.values()) | set(self.listed())
        self.added = dict(added)
        decoder = fields.get("added_tokens_decoder") or {}
        for id, token in decoder.items() if isinstance(decoder, dict) else ():
            if not isinstance(token, dict) or not _name(token) or not id.isdecimal():
                raise DataError("an added token has no text or no number")
            self.added[token["content"]] = int(id)
            if token.get("special"):
                self.special.add(token["content"])

    def flag(self, name: str, default: bool | None) -> bool | None:
        """A setting that is on, off, or not said."""
        value = self._fields.get(name, default)
        if value is not None and type(value) is not bool:
            raise DataError(f"the setting {name} is {value!r}, not true or false")
        return value

    def around(self, begins: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What ``add_bos_token`` and ``add_eos_token`` put before and after every text.

        Args:
            begins: Whether texts begin with ``bos`` where the files do not say it.
        """
        found = []
        for role, usual, default in (("bos", "<s>", begins), ("eos", "</s>", False)):
            name = self.names.get(role)
            if f"{role}_token" not in self._fields:
                name = name or usual
            wanted = self.flag(f"add_{role}_token", default)
            found.append((name,) if wanted and name else ())
        return found[0], found[1]

    def count(self, name: str, default: int) -> int:
        """A setting that is a number."""
        value = self._fields.get(name, default)
        if type(value) is not int or not 0 <= value <= 10_000:
            raise DataError(f"the setting {name} is {value!r}, not a number up to 10000")
        return value

    def listed(self) -> list[str]:
        """Special tokens without a role."""
        found = []
        for key in ("additional_special_tokens", "extra_special_tokens"):
            tokens = self._fields.get(key) or ()
            found += [_name(token) for token in tokens] if isinstance(tokens, list) else []
        return [name for name in found if name]


def read_settings(folder: Path) -> Settings:
    """What the files of a folder say of its tokenizer; nothing if there are none.

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


def sentence_fields(folder: Path) -> dict[str, Any]:
    """How a folder makes a sentence's vector, as its ``modules.json`` and the files named say it.

    Empty if it is no sentence encoder. Else ``pool`` is ``mean`` or ``first``, or names what is
    done otherwise; ``dense``, if there is a linear map behind, is where its weights are and whether
    tanh follows; ``length``, if it is told, is the most tokens that are read; ``lowercase``, if it
    is there, is true: texts are read in small letters.

    Args:
        folder: What lies beside the weights.

    Raises:
        DataError: A file is damaged, or lies elsewhere.
    """
    usual = [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "1_Pooling"}]
    parts: dict[str, str] = {}
    order: list[str] = []
    modules = _json(folder, "modules.json", list)
    for part in usual if modules is None else modules:
        said = part if isinstance(part, dict) else {}
        kind, path = said.get("type"), said.get("path")
        if not isinstance(kind, str) or not isinstance(path, str) or not path.isprintable():
            raise DataError(f"{folder / 'modules.json'}: is damaged: a part has no type or no path")
        order.append(kind.rpartition(".")[2])
        parts[order[-1]] = path
    found: dict[str, Any] = {}
    if "Pooling" in parts:
        name = os.path.join(parts["Pooling"], "config.json")
        fields = _json(folder, name, dict)
        if fields is None and modules is not None:
            raise DataError(f"{folder / name}: no such file, though modules.json names it")
        if fields is not None:
            found["pool"] = _pooling(folder / name, fields)
    dense = _dense(folder, parts["Dense"]) if _ends_with_dense(order) else None
    if dense is not None:
        found["dense"] = dense
        del parts["Dense"]
    others = [kind[:40] for kind in parts if kind not in _HARMLESS]
    if others:
        found["pool"] = " and ".join([*filter(None, [found.get("pool")]), *others])
    for family in _BERTS:
        name = os.path.join(parts.get("Transformer", ""), f"sentence_{family}_config.json")
        fields = _json(folder, name, dict)
        if fields is not None:
            return found | _reading(folder / name, fields)
    return found


def _ends_with_dense(order: list[str]) -> bool:
    """Whether one linear map, and nothing else that matters, follows the pooling."""
    if order.count("Dense") != 1 or order.count("Pooling") != 1:
        return False
    after = order[order.index("Pooling") + 1 :]
    return after[0] == "Dense" and all(kind in _HARMLESS for kind in after[1:])


def _dense(folder: Path, path: str) -> dict[str, Any] | None:
    """Where the weights of a linear map are, and whether tanh follows; None if something else."""
    fields = _json(folder, os.path.join(path, "config.json"), dict) or {}
    known = {"Identity": False, "Tanh": True}
    tanh = known.get(str(fields.get("activation_function")).rpartition(".")[2])
    return None if tanh is None else {"path": path, "tanh": tanh}


def _reading(path: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """How many tokens of a text are read, and whether in small letters, as a file says it."""
    length, lower = fields.get("max_seq_length"), fields.get("do_lower_case")
    if length is not None and (type(length) is not int or length < 1):
        raise DataError(f"{path}: max_seq_length is {str(length)[:40]!r}: no number from 1")
    if lower is not None and type(lower) is not bool:
        raise DataError(f"{path}: do_lower_case is {str(lower)[:40]!r}, not true or false")
    return ({} if length is None else {"length": length}) | ({"lowercase": True} if lower else {})


def _pooling(path: Path, fields: Mapping[str, Any]) -> str:
    """The pooling that a file describes; of several, all."""
    modes = fields.get("pooling_mode")
    if modes is not None:
        named = modes if isinstance(modes, list) else [modes]
        if not named or not all(isinstance(mode, str) for mode in named):
            raise DataError(f"{path}: pooling_mode is {str(modes)[:40]!r}: no name")
        return " and ".join("first" if mode == "cls" else mode[:40] for mode in named)
    chosen = []
    for mode, key in _MODES.items():
        value = fields.get(key, mode == "mean")
        if type(value) is not bool:
            raise DataError(f"{path}: {key} is {str(value)[:40]!r}, not true or false")
        if value:
            chosen.append(mode)
    if not chosen:
        raise DataError(f"{path}: is damaged: no pooling is chosen")
    return " and ".join(chosen)


def read_ids(path: Path) -> dict[str, int]:
    """A JSON object of ids by token, each token once and each id once.

    Raises:
        DataError: It is something else.
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
        raise DataError(f"{path}: is no vocabulary, or damaged: {error}") from None
    if len(set(ids.values())) != len(ids):
        raise DataError(f"{path}: is no vocabulary: an id comes twice")
    return ids


def read_text(path: Path) -> str:
    """A file of UTF-8 text, line ends as they are.

    Raises:
        DataError: It cannot be read, is too long, or holds other bytes.
    """
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 at byte {error.start}") from None


def read_bytes(path: Path, most: int = _LARGEST, *, folder: Path | None = None) -> bytes:
    """An ordinary file of at most ``most`` bytes that no link leads to from elsewhere.

    Args:
        path: The file.
        most: Its size.
        folder: Where it must lie, also after links are followed; None is the one it is in.

    Raises:
        DataError: It is none.
    """
    folder = path.parent if folder is None else folder
    try:
        inside(folder, str(path if path.is_absolute() else path.relative_to(folder)))
        if path.stat().st_size > most:
            raise DataError(f"{path}: has more than {most} bytes, too long to be what it should")
        return path.read_bytes()
    except CheckpointError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _object(path: Path) -> dict[str, Any]:
    return _json(path.parent, path.name, dict) or {}


def _json(folder: Path, name: str, kind: type) -> Any:
    """The list or the object in a file of a folder; None if there is no such file."""
    path = folder / name
    if not os.path.lexists(path):
        return None
    try:
        found = json.loads(read_bytes(path, _LARGEST_SETTINGS, folder=folder).decode("utf-8"))
    except (ValueError, RecursionError):
        raise DataError(f"{path}: is damaged: no JSON") from None
    if not isinstance(found, kind):
        what = "object" if kind is dict else "list"
        raise DataError(f"{path}: is damaged: no JSON {what}")
    return found


def _name(token: object) -> str | None:
    """A token told as its text or as an object with it."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None
