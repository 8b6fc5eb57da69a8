"""Special tokens and languages of a Hugging Face folder, from its configuration."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.core.errors import DataError
from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader, read_config
from transformer_jax.interop.hf_checkpoint import HFCheckpoint
from transformer_jax.interop.language_codes import check_dictionary, find_languages
from transformer_jax.interop.tokenizer_settings import read_settings

if TYPE_CHECKING:
    import tokenizers

__all__ = ["generation_fields", "special_tokens"]

_GENERATION = "generation_config.json"
# Defaults of a decoder's start token.
_DECODER_STARTS = {"bart": 2, "m2m_100": 2, "marian": 58100, "pegasus": 0, "mt5": 0}


def special_tokens(folder: HFCheckpoint, text: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns token names by role, further end tokens, and language tags.

    Args:
        folder: The model.
        text: The content of ``tokenizer.json``.
        names: Names from the tokenizer's files, which the configuration overrides.

    Raises:
        CheckpointError: The start token does not exist.
        DataError: The languages do not match the vocabulary or the model.
    """
    from transformer_jax.data.tokenizer_files.opening import open_backend

    backend = open_backend(text)
    found: dict[str, Any] = {**names, **_by_configuration(folder, backend)}
    kind = str(folder.fields.values["model_type"])
    settings = read_settings(folder.path)
    try:
        if folder.model.kind == "encoder-decoder":
            tags = find_languages(backend, settings, kind, found)
            if tags is not None:
                found.pop("forced_bos", None)  # replaced by the language tag of each target
                tokens = {id: token for token, id in backend.get_vocab().items()}
                found["languages"] = tags.to_dict(tokens.__getitem__)
            elif (stored := settings.stored_languages) is not None:
                found["languages"] = stored
        check_dictionary(folder.path, settings, backend, folder.model.config.vocab_size)
    except DataError as error:
        raise DataError(f"{folder.path}: the tokenizer {error}") from None
    return found


def _by_configuration(folder: HFCheckpoint, backend: "tokenizers.Tokenizer") -> dict[str, Json]:
    """Returns token names by role, and further end tokens, from ids in the configuration.

    The decoder of an encoder-decoder starts with decoder_start_token_id, followed by the
    forced_bos_token_id of every target, or by the bos_token_id that the tokenizer puts before a
    text, as in transformers' labels (BART).
    """
    fields = generation_fields(folder.path, folder.fields)
    encodes = folder.model.kind in ("encoder-decoder", "captioner")
    begin = "decoder_start_token_id" if encodes else "bos_token_id"
    found: dict[str, Json] = {}
    usual = {"decoder_start_token_id": _DECODER_STARTS.get(str(folder.fields.values["model_type"]))}

    def several(key: str) -> list[Json]:
        value = fields.values.get(key)
        value = folder.fields.values.get(key, usual.get(key)) if value is None else value
        ids = value if isinstance(value, list) and value else [value]
        if any(id not in (None, []) and type(id) is not int for id in ids):
            raise fields.refused(key, value, "a token's id or a list of ids is needed")
        return ids

    given = lambda key: several(key)[0]

    most = folder.model.config.decoder().vocab_size - 1
    for role, key in (("pad", "pad_token_id"), ("bos", begin), ("eos", "eos_token_id")):
        value = given(key)
        known = type(value) is int and 0 <= value <= most
        if key == "decoder_start_token_id" and value is not None and not known:
            raise fields.refused(key, value, f"the decoder reads 0 to {most}")
        if (token := _token(backend, value)) is not None:
            found[role] = token
    ends = [_token(backend, id) for id in several("eos_token_id")[1:]]
    if any(ends):
        found["ends"] = [*filter(None, ends)]
    if encodes:
        forced, around = given("forced_bos_token_id"), backend.encode("").ids
        if forced is None and len(around) > 1 and around[0] == given("bos_token_id"):
            forced = around[0]
        if (token := _token(backend, forced)) is not None:
            found["forced_bos"] = token
    return found


def _token(backend: "tokenizers.Tokenizer", id: Json) -> str | None:
    """Returns the token of an id in a configuration, or None."""
    token: str | None = backend.id_to_token(id) if type(id) is int and id >= 0 else None
    return token


def generation_fields(path: Path, fields: ConfigReader) -> ConfigReader:
    """Returns the keys about decoding.

    They are read only from ``generation_config.json`` if it exists, as in transformers, or else
    from ``config.json``.

    Raises:
        CheckpointError: ``generation_config.json`` is damaged.
    """
    file = path / _GENERATION
    return read_config(file) if os.path.lexists(file) else fields
