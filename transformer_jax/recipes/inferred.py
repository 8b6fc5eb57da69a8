"""The recipe of a ``config.json`` without one, from earlier versions and Hugging Face.

No other module infers the kind of a run from the keys in its file.
"""

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["infer_recipe"]

Fields = Mapping[str, Any]


def _at(fields: Fields, *path: str) -> Any:
    value: Any = fields
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _reads(fields: Fields, name: str) -> bool:
    return name in (_at(fields, "data", "read") or ())


def _is_recurrent(fields: Fields) -> bool:
    return bool(_at(fields, "model", "kind") == "recurrent")


def _has_features(fields: Fields) -> bool:
    return bool(_at(fields, "model", "features", "num_features"))


# The first that holds.
_TABLE: tuple[tuple[str, Callable[[Fields], Any]], ...] = (
    ("ngram", lambda f: _at(f, "model", "kind") == "ngram"),
    ("images", lambda f: _at(f, "model", "image", "image_size")),
    ("recurrent_speech", lambda f: _has_features(f) and _is_recurrent(f)),
    ("speech", _has_features),
    ("on_policy", lambda f: "reward" in f),
    ("reward_model", lambda f: _at(f, "align", "method") == "reward"),
    ("preferences", lambda f: "align" in f),
    ("instruct", lambda f: "chat" in f),
    ("finetuning", lambda f: "task" in f),
    ("denoising", lambda f: "noise" in f),
    ("masked_lm", lambda f: "masking" in f),
    ("recurrent_translation", _is_recurrent),
    ("masked_lm", lambda f: _at(f, "model", "decoder_layers") == 0),
    ("language_model", lambda f: _at(f, "model", "encoder_layers") == 0),
    # The settings that read pairs have columns and fields, those for recordings neither.
    ("summarization", lambda f: _reads(f, "fields") and not _reads(f, "columns")),
    ("translation", lambda f: True),
)


def infer_recipe(fields: Fields) -> str | None:
    """Returns the name of the recipe; None if the file describes no model of the library.

    Example:
        >>> infer_recipe({"model": {"encoder_layers": 0, "decoder_layers": 2}, "chat": {}})
        'instruct'
    """
    if not isinstance(fields.get("model"), Mapping):
        return None
    return next(name for name, holds in _TABLE if holds(fields))
