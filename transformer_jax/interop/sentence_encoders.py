"""Reads and writes the configuration of sentence encoders.

The files follow sentence-transformers: ``modules.json`` names the modules, each with a directory.
https://sbert.net/docs/package_reference/sentence_transformer/models.html
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, cast

import numpy as np

from transformer_jax.core.errors import CheckpointError, DataError
from transformer_jax.core.json_types import Json
from transformer_jax.interop.sentence_dense import (
    DenseRecord,
    SentenceFields,
    copy_dense,
    write_dense,
)
from transformer_jax.interop.tensor_files import WEIGHTS
from transformer_jax.interop.tokenizer_settings import read_json, read_settings

__all__ = [
    "score_problems",
    "sentence_fields",
    "sentence_files",
    "trained_files",
    "write_sentence_files",
    "written_names",
]

# Poolings, in the order of concatenation, and their names in old files.
_MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# The supported order of modules; dropout has no effect in inference.
_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
_DROPOUT = "Dropout"
_LIBRARY = "sentence_transformers."
_BERTS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
# The file of prompts and similarity.
_BESIDE = "config_sentence_transformers.json"
_MODULES = "modules.json"

# Keys of the file of each module, with supported values; None is any value.
_VECTOR = ("sentence_embedding", None)
_WHERE = {"module_input_name": _VECTOR, "module_output_name": _VECTOR}
_Keys: TypeAlias = Mapping[str, tuple[Json, ...] | None]
_KEYS: Mapping[str, _Keys] = {
    "Pooling": dict.fromkeys(
        (*_MODES.values(), "pooling_mode", "include_prompt", "embedding_dimension",
         "word_embedding_dimension")
    ),
    "Dense": dict.fromkeys(("in_features", "out_features", "bias", "activation_function"))
    | {"use_residual": (False, None), **_WHERE},
    "Normalize": _WHERE,
    "Transformer": dict.fromkeys(("max_seq_length", "do_lower_case", "unpad_inputs"))
    | {
        "transformer_task": ("feature-extraction", None),
        "modality_config": (
            {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}, None,
        ),
        "module_output_name": ("token_embeddings", None),
    }
    | dict.fromkeys(("query_length", "document_length", "query_expansion"), (None,))
    | dict.fromkeys(
        ("processing_kwargs", "model_args", "model_kwargs", "tokenizer_args", "processor_kwargs",
         "config_args", "config_kwargs"),
        ({}, None, {"trust_remote_code": False}, {"trust_remote_code": True}),
    ),
}  # fmt: skip
# The same of a classifier, whose pairs a chat template does not rewrite.
_SCORES = dict(_KEYS["Transformer"]) | {
    "transformer_task": ("sequence-classification", None),
    "modality_config": (
        {"text": {"method": "forward", "method_output_name": "logits"}}, None,
    ),
    "module_output_name": ("scores", None),
}  # fmt: skip


def score_problems(folder: Path) -> Iterator[str]:
    """Yields modules and settings by which scores of pairs are not those of the classifier alone.

    Args:
        folder: The folder of a cross-encoder.

    Raises:
        DataError: A file is damaged, or outside of the folder.
    """
    order, parts, listed = _parts(folder)
    if not listed:
        return
    if order != ["Transformer"] or parts["Transformer"]:
        names = ", ".join(f"{kind} in {parts[kind]!r}" for kind in order)
        yield f"{_MODULES}: its modules are {names[:80]}"
    name, fields = _reads(folder, "")
    yield from _unknown(name, _SCORES, fields or {})


def sentence_fields(folder: Path) -> SentenceFields:
    """Returns the sentence-encoder settings of a folder, from ``modules.json`` and the named files.

    Empty if it is not a sentence encoder.

    Args:
        folder: The folder of the weights.

    Raises:
        DataError: A file is damaged, or outside of the folder.
    """
    order, parts, listed = _parts(folder)
    found: SentenceFields = {}
    refused: list[str] = []

    def read(kind: str) -> tuple[Path, dict[str, Json] | None]:
        name = os.path.join(parts[kind], "config.json")
        fields = read_json(folder, name, dict)
        refused.extend(_unknown(name, _KEYS[kind], fields or {}))
        return folder / name, fields

    if "Pooling" in parts:
        path, fields = read("Pooling")
        if fields is None and listed:
            raise DataError(f"{path}: no such file, although modules.json names it")
        if fields is not None:
            found.update(_pooling(path, fields))
    kinds = [kind for kind in order if kind != _DROPOUT]
    applied = kinds == [kind for kind in _ORDER if kind in kinds]
    if applied and "Dense" in kinds and (dense := _dense(*read("Dense"), parts["Dense"])):
        found["dense"] = dense
    if applied and "Normalize" in kinds:
        read("Normalize")
        found["normalize"] = True
    known = {"Transformer", "Pooling", "Normalize"} | ({"Dense"} if "dense" in found else set())
    others = [kind[:40] for kind in parts if kind != _DROPOUT and kind not in known]
    if others:
        found["pool"] = " and ".join([*filter(None, [found.get("pool")]), *others])
    elif not applied:
        refused.append(f"{_MODULES}: unsupported order of modules: {', '.join(kinds)[:80]}")
    if listed:
        found.update(_prompts_and_similarity(folder))
        if parts.get("Transformer"):
            refused.append(f"{_MODULES}: its Transformer is in {parts['Transformer'][:40]!r}")
    name, fields = _reads(folder, parts.get("Transformer", ""))
    if fields is not None:
        found.update(_reading(folder / name, fields))
        refused.extend(_unknown(name, _KEYS["Transformer"], fields))
    if listed and "length" not in found and (length := read_settings(folder).length) is not None:
        found["length"] = length
    return {**found, "refused": refused} if refused else found


def _unknown(name: str, keys: _Keys, fields: Mapping[str, Json]) -> Iterator[str]:
    """Yields the unsupported settings of a module, whose file is ``name``."""
    for key, value in fields.items():
        allowed = keys.get(key, (None,))
        if allowed is not None and value not in allowed:
            yield f"{name}: {key[:40]} is {json.dumps(value)[:80]}"


def _prompts_and_similarity(folder: Path) -> SentenceFields:
    """Returns the prompts and the similarity of ``config_sentence_transformers.json``.

    Raises:
        DataError: The prompts are not texts, or the default is unknown.
    """
    fields, path = read_json(folder, _BESIDE, dict) or {}, folder / _BESIDE
    prompts = fields.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(
        isinstance(text, str | None) for text in prompts.values()
    ):
        raise DataError(f"{path}: prompts is {str(prompts)[:40]!r}: not texts by name")
    prompts = {name: text or "" for name, text in prompts.items()}
    usual = fields.get("default_prompt_name")
    if usual is not None and usual not in {*prompts, "query", "document"}:
        raise DataError(
            f"{path}: default_prompt_name is {str(usual)[:40]!r}: the prompts are "
            f"{', '.join(prompts)[:80] or 'none'}"
        )
    found: SentenceFields = {"prompts": prompts} if any(prompts.values()) else {}
    if usual is not None and prompts.get(usual):
        found["default_prompt"] = usual
    refused = [
        f"{_BESIDE}: {key} is {json.dumps(fields[key])[:40]}"
        for key, known in (("model_type", "SentenceTransformer"), ("truncate_dim", None))
        if fields.get(key) not in (None, known)
    ]
    if refused:
        found["refused"] = refused
    similarity = fields.get("similarity_fn_name")
    if similarity not in (None, "cosine"):
        found["similarity"] = str(similarity)
    return found


def sentence_files(folder: Path) -> dict[str, Json]:
    """Returns the contents of the files of a sentence encoder, by name.

    Empty if it is not a sentence encoder, or has modules other than pooling, one dense layer after
    it, and normalization.

    Raises:
        DataError: A file is damaged, or outside of the folder.
    """
    _, parts, _ = _parts(folder)
    fields = sentence_fields(folder)
    if "refused" in fields or not set(fields.get("pool", "mean").split(" and ")) <= set(_MODES):
        return {}
    dictionaries = [os.path.join(parts[kind], "config.json") for kind in _ORDER[1:]
                    if kind in parts]  # fmt: skip
    reads = _reads(folder, "")[0]
    found = {_MODULES: read_json(folder, _MODULES, list)}
    found |= {name: read_json(folder, name, dict) for name in (*dictionaries, reads, _BESIDE)}
    if "length" in fields:  # the tokenizer's own limit is not written
        found[reads] = (found[reads] or {}) | {"max_seq_length": fields["length"]}
    return {name: said for name, said in found.items() if said is not None}


def trained_files(sentence: SentenceFields, width: int) -> dict[str, Json]:
    """Returns the contents of the files of a sentence encoder that was trained here, by name.

    Args:
        sentence: Its settings.
        width: D of the encoder; a vector is wider if several poolings are concatenated.

    Example:
        >>> [*trained_files({"pool": "mean", "length": 128}, 384)]
        ['1_Pooling/config.json', 'sentence_bert_config.json', ..., 'modules.json']
    """
    pools = sentence.get("pool", "mean").split(" and ")
    pooling: dict[str, Json] = {"word_embedding_dimension": width}
    pooling |= {key: mode in pools for mode, key in _MODES.items()}
    pooling["include_prompt"] = not sentence.get("excludes_prompt", False)
    configs: dict[str, dict[str, Json]] = {"Pooling": pooling}
    if "dense" in sentence:
        dense = sentence["dense"]
        name = "activation.Tanh" if dense["tanh"] else "linear.Identity"
        configs["Dense"] = {
            "in_features": width * len(pools),
            "out_features": dense["out_features"],
            "bias": dense["bias"],
            "activation_function": f"torch.nn.modules.{name}",
        }
    if sentence.get("normalize"):
        configs["Normalize"] = {}
    modules: list[Json] = [_module(0, "Transformer", "")]
    found: dict[str, Json] = {}
    for number, (kind, config) in enumerate(configs.items(), 1):
        path = _path(sentence, number, kind)
        modules.append(_module(number, kind, path))
        if config:
            found[f"{path}/config.json"] = config
    found["sentence_bert_config.json"] = {
        "max_seq_length": sentence["length"], "do_lower_case": sentence.get("lowercase", False),
    }  # fmt: skip
    found[_BESIDE] = {
        "prompts": dict(sentence.get("prompts", {})),
        "default_prompt_name": sentence.get("default_prompt"),
        "similarity_fn_name": sentence.get("similarity", "cosine"),
    }
    return found | {_MODULES: modules}


def _path(sentence: SentenceFields, number: int, kind: str) -> str:
    return sentence["dense"]["path"] if kind == "Dense" else f"{number}_{kind}"


def _module(number: int, kind: str, path: str) -> Json:
    return {
        "idx": number, "name": str(number), "path": path,
        "type": f"{_LIBRARY}models.{kind}",
    }  # fmt: skip


def write_sentence_files(
    output: Path,
    source: Path,
    fields: Mapping[str, Any],
    params: Mapping[str, Any],
    dtype: str | None = None,
) -> bool:
    """Writes the sentence-encoder configuration of a run.

    Args:
        output: The folder of an exported model.
        source: The run or the Hugging Face folder, with the weights of a dense layer.
        fields: The configuration of the run.
        params: The parameters of the run, with those of a dense layer that was trained here.
        dtype: Data type of the weights of a dense layer; None is unchanged.

    Returns:
        Whether everything was written; False if the encoder has other modules, or was converted by
        a version that did not store its files.

    Raises:
        CheckpointError: A file cannot be read or written, or is outside of the folder.
    """
    said: Any = fields.get("sentence") or {}
    files = (fields.get("published") or {}).get("sentence") or {}
    if trained := fields.get("recipe") == "similarity":
        files = trained_files(said, fields["model"]["d_model"])
    for name, content in files.items():
        if not _stays_inside(name):
            raise CheckpointError(f"{source}: the file {name} leaves the folder: damaged?")
        path = output / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None
    if trained and "dense" in said:
        layer = {name: np.asarray(array) for name, array in params["dense"].items()}
        tensors = {"linear.weight": layer["kernel"].T}
        tensors |= {"linear.bias": layer["bias"]} if "bias" in layer else {}
        write_dense(tensors, output / said["dense"]["path"], dtype)
    elif files and "dense" in said:
        copy_dense(source, said["dense"], output, dtype)
    return bool(files) or not said


def written_names(folder: Path) -> set[str]:
    """Returns the names of files that :func:`write_sentence_files` may have written.

    Raises:
        DataError: ``modules.json`` is damaged.
    """
    _, parts, _ = _parts(folder)
    names = {_MODULES, _BESIDE, *(f"sentence_{family}_config.json" for family in _BERTS)}
    return names | {
        str(PurePosixPath(path, name))
        for path in parts.values() if path for name in ("config.json", WEIGHTS)
    }  # fmt: skip


def _parts(folder: Path) -> tuple[list[str], dict[str, str], bool]:
    """Returns the kinds of modules in order, their paths, and whether a file lists them.

    Raises:
        DataError: A module has no type, or no path within the folder.
    """
    usual = [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "1_Pooling"}]
    parts: dict[str, str] = {}
    order: list[str] = []
    modules = read_json(folder, _MODULES, list)
    for part in usual if modules is None else modules:
        said = part if isinstance(part, dict) else {}
        kind, path = said.get("type"), said.get("path")
        if not isinstance(kind, str) or not isinstance(path, str) or not path.isprintable():
            raise DataError(f"{folder / _MODULES}: is damaged: a module has no type or no path")
        if not _stays_inside(path):
            raise DataError(f"{folder / _MODULES}: the path {path[:80]!r} leaves the folder")
        # Modules of other libraries may have any name.
        own = modules is None or kind.startswith(_LIBRARY)
        order.append(kind.rpartition(".")[2] if own else kind)
        parts[order[-1]] = path
    return order, parts, modules is not None


def _stays_inside(path: str) -> bool:
    """Returns whether a path stays within a folder."""
    return not os.path.isabs(path) and ".." not in PurePosixPath(path).parts


def _reads(folder: Path, path: str) -> tuple[str, dict[str, Json] | None]:
    """Returns the file of settings for reading texts, and its content."""
    for family in _BERTS:
        name = os.path.join(path, f"sentence_{family}_config.json")
        fields = read_json(folder, name, dict)
        if fields is not None:
            return name, fields
    return os.path.join(path, "sentence_bert_config.json"), None


def _dense(path: Path, fields: dict[str, Json] | None, part: str) -> DenseRecord | None:
    """Returns the folder of a dense layer and its activation; None for other modules."""
    fields = fields or {}
    known = {"Identity": False, "Tanh": True}
    name = str(fields.get("activation_function")).rpartition(".")[2]
    if name not in known:
        return None
    found: dict[str, Json] = {"path": part, "tanh": known[name]}
    for key, kind in (("bias", bool), ("in_features", int), ("out_features", int)):
        if (value := fields.get(key)) is not None and type(value) is not kind:
            raise DataError(f"{path}: {key} is {str(value)[:40]!r}")
        found |= {} if value is None else {key: value}
    return cast(DenseRecord, found)


def _reading(path: Path, fields: Mapping[str, Json]) -> SentenceFields:
    """Reads the length limit and lowercasing of texts from a file."""
    length, lower = fields.get("max_seq_length"), fields.get("do_lower_case")
    if length is not None and (type(length) is not int or length < 1):
        raise DataError(f"{path}: max_seq_length is {str(length)[:40]!r}: not a number from 1")
    if lower is not None and type(lower) is not bool:
        raise DataError(f"{path}: do_lower_case is {str(lower)[:40]!r}, not true or false")
    found: SentenceFields = {} if length is None else {"length": cast(int, length)}
    return {**found, "lowercase": True} if lower else found


def _pooling(path: Path, fields: Mapping[str, Json]) -> SentenceFields:
    """Returns the pooling in a file, or several joined."""
    includes = fields.get("include_prompt", True)
    if type(includes) is not bool:
        raise DataError(f"{path}: include_prompt is {str(includes)[:40]!r}, not true or false")
    found: SentenceFields = {} if includes else {"excludes_prompt": True}
    modes = fields.get("pooling_mode")
    if modes is not None:
        named = modes if isinstance(modes, list) else [modes]
        if not named or not all(isinstance(mode, str) for mode in named):
            raise DataError(f"{path}: pooling_mode is {str(modes)[:40]!r}: not a name")
        return {**found, "pool": " and ".join(str(mode)[:40] for mode in named)}
    chosen = []
    for mode, key in _MODES.items():
        value = fields.get(key, False)
        if type(value) is not bool:
            raise DataError(f"{path}: {key} is {str(value)[:40]!r}, not true or false")
        if value:
            chosen.append(mode)
    return {**found, "pool": " and ".join(chosen) or "mean"}
