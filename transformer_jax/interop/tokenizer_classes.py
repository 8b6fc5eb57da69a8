"""Settings that the class of a tokenizer applies to a ``tokenizer.json``, as in transformers 5.

Classes of BERT and of byte-level vocabularies make their normalizer and pre-tokenizer anew, from
``tokenizer_config.json``. Keys that it lacks leave the file unchanged.
"""

import json
from collections.abc import Iterator

from transformer_jax.core.json_types import Json
from transformer_jax.interop.tokenizer_settings import Settings

__all__ = ["BYTE_LEVEL", "WORDPIECE", "with_class_settings"]

# Tokenizer classes and model types, in lower case, that use each kind of vocabulary.
WORDPIECE = ("bert", "distilbert", "electra", "mobilebert", "convbert", "lxmert", "mpnet")
BYTE_LEVEL = ("gpt2", "gpt_neo", "codegen", "opt", "roberta", "bart", "longformer", "led")
_PREFIXED = (*BYTE_LEVEL, "qwen2")
_OF_BERT = {
    "do_lower_case": "lowercase",
    "tokenize_chinese_chars": "handle_chinese_chars",
    "strip_accents": "strip_accents",
}


def with_class_settings(text: str, settings: Settings) -> str:
    """Returns a ``tokenizer.json`` with the settings that its class applies.

    Args:
        text: The file.
        settings: The settings of the folder.

    Raises:
        DataError: A setting has the wrong type.

    Example:
        >>> file = '{"normalizer": {"type": "BertNormalizer", "lowercase": true}}'
        >>> cased = Settings({"tokenizer_class": "BertTokenizer", "do_lower_case": False})
        >>> with_class_settings(file, cased)
        '{"normalizer": {"type": "BertNormalizer", "lowercase": false}}'
        >>> with_class_settings(file, Settings({"tokenizer_class": "BertTokenizer"})) == file
        True
    """
    changes: dict[str, dict[str, bool | None]] = {}
    if settings.family in WORDPIECE:
        given = {own: settings.flag(key, None) for key, own in _OF_BERT.items()
                 if settings.has(key)}  # fmt: skip
        changes["BertNormalizer"] = {
            name: value for name, value in given.items()
            if value is not None or name == "strip_accents"
        }  # fmt: skip
    if settings.family in _PREFIXED:
        prefixed = settings.flag("add_prefix_space", None)
        changes["ByteLevel"] = {} if prefixed is None else {"add_prefix_space": prefixed}
    if not any(changes.values()):
        return text
    fields = json.loads(text)
    changed = False
    for part in (*_parts(fields.get("normalizer")), *_parts(fields.get("pre_tokenizer"))):
        for name, value in changes.get(str(part.get("type")), {}).items():
            changed |= part.get(name) != value
            part[name] = value
    return json.dumps(fields, ensure_ascii=False) if changed else text


def _parts(value: Json) -> Iterator[dict[str, Json]]:
    """Yields a normalizer or a pre-tokenizer, or the parts of a sequence."""
    if isinstance(value, dict):
        yield value
        for name in ("normalizers", "pretokenizers"):
            for part in value.get(name) or ():
                yield from _parts(part)
