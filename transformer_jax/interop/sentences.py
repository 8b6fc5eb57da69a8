"""Sentence encoders: how a folder makes the vector of a text, there and back.

The files are those of sentence-transformers: ``modules.json`` names the parts, each of which has a
directory. https://sbert.net/docs/package_reference/sentence_transformer/models.html
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from transformer_jax.errors import CheckpointError, DataError
from transformer_jax.interop.dense import copy_dense
from transformer_jax.interop.tensor_files import WEIGHTS
from transformer_jax.interop.tokenizer_settings import read_json

__all__ = ["sentence_fields", "sentence_files", "write_sentence_files", "written_names"]

# Ways from the vectors of all tokens to one, and what files call them.
_MODES = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# Parts of a sentence encoder beside which a vector keeps its direction.
_HARMLESS = ("Transformer", "Pooling", "Normalize", "Dropout")
_BERTS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
# What is said beside the parts, such as texts that go before others.
_BESIDE = "config_sentence_transformers.json"
_MODULES = "modules.json"


def sentence_fields(folder: Path) -> dict[str, Any]:
    """How a folder makes a sentence's vector, as its ``modules.json`` and the files named say it.

    Empty if it is no sentence encoder. Else ``pool`` is ``mean`` or ``cls``, or names what is
    done otherwise; ``dense``, if there is a linear map behind, is where its weights are and whether
    tanh follows; ``length``, if it is told, is the most tokens that are read; ``lowercase``, if it
    is there, is true: texts are read in small letters.

    Args:
        folder: What lies beside the weights.

    Raises:
        DataError: A file is damaged, or lies elsewhere.
    """
    order, parts, listed = _parts(folder)
    found: dict[str, Any] = {}
    if "Pooling" in parts:
        name = os.path.join(parts["Pooling"], "config.json")
        fields = read_json(folder, name, dict)
        if fields is None and listed:
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
    name, fields = _reads(folder, parts.get("Transformer", ""))
    return found if fields is None else found | _reading(folder / name, fields)


def sentence_files(folder: Path) -> dict[str, Any]:
    """What the files of a sentence encoder hold, by their names within its folder.

    Empty if it is none, or has parts that are not kept: others than pooling, one linear map behind
    it, and normalising.

    Raises:
        DataError: A file is damaged, or lies elsewhere.
    """
    order, parts, _ = _parts(folder)
    last = _ends_with_dense(order) and _dense(folder, parts["Dense"]) is not None
    kept = {*_HARMLESS, "Dense"} if last else set(_HARMLESS)
    if not set(order) <= kept or parts.get("Transformer"):
        return {}
    dictionaries = [os.path.join(parts[kind], "config.json") for kind in ("Pooling", "Dense")
                    if kind in parts]  # fmt: skip
    dictionaries += [_reads(folder, "")[0], _BESIDE]
    found = {_MODULES: read_json(folder, _MODULES, list)}
    found |= {name: read_json(folder, name, dict) for name in dictionaries}
    return {name: said for name, said in found.items() if said is not None}


def write_sentence_files(
    output: Path, source: Path, fields: Mapping[str, Any], dtype: str | None = None
) -> bool:
    """Writes how the encoder of a run makes vectors, as it was published.

    Args:
        output: The folder of an exported model.
        source: The run or the Hugging Face folder, which has the weights of a linear map.
        fields: The configuration of the run.
        dtype: Of these weights; None is as they are.

    Returns:
        Whether all is written: not, where the run was made of an encoder with other parts, or by a
        version that did not keep its files.

    Raises:
        CheckpointError: It cannot be read or written, or leads out of the folder.
    """
    said = fields.get("sentence") or {}
    files = (fields.get("published") or {}).get("sentence") or {}
    for name, content in files.items():
        if not _stays(name):
            raise CheckpointError(f"{source}: the file {name} leaves the folder: damaged?")
        path = output / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None
    if files and "dense" in said:
        copy_dense(source, said["dense"], output, dtype)
    return bool(files) or not said


def written_names(folder: Path) -> set[str]:
    """The names of files that :func:`write_sentence_files` may have written into a folder.

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
    """The kinds of parts in order, where each lies, and whether a file says so.

    Raises:
        DataError: A part without a type, or without a path within the folder.
    """
    usual = [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "1_Pooling"}]
    parts: dict[str, str] = {}
    order: list[str] = []
    modules = read_json(folder, _MODULES, list)
    for part in usual if modules is None else modules:
        said = part if isinstance(part, dict) else {}
        kind, path = said.get("type"), said.get("path")
        if not isinstance(kind, str) or not isinstance(path, str) or not path.isprintable():
            raise DataError(f"{folder / _MODULES}: is damaged: a part has no type or no path")
        if not _stays(path):
            raise DataError(f"{folder / _MODULES}: the path {path[:80]!r} leaves the folder")
        order.append(kind.rpartition(".")[2])
        parts[order[-1]] = path
    return order, parts, modules is not None


def _stays(path: str) -> bool:
    """Whether a path leads nowhere else than into a folder."""
    return not os.path.isabs(path) and ".." not in PurePosixPath(path).parts


def _reads(folder: Path, path: str) -> tuple[str, dict[str, Any] | None]:
    """The file that says how texts are read, and what it says; the usual one if there is none."""
    for family in _BERTS:
        name = os.path.join(path, f"sentence_{family}_config.json")
        fields = read_json(folder, name, dict)
        if fields is not None:
            return name, fields
    return os.path.join(path, "sentence_bert_config.json"), None


def _ends_with_dense(order: list[str]) -> bool:
    """Whether one linear map, and nothing else that matters, follows the pooling."""
    if order.count("Dense") != 1 or order.count("Pooling") != 1:
        return False
    after = order[order.index("Pooling") + 1 :]
    return after[:1] == ["Dense"] and all(kind in _HARMLESS for kind in after[1:])


def _dense(folder: Path, path: str) -> dict[str, Any] | None:
    """Where the weights of a linear map are, and whether tanh follows; None if something else."""
    fields = read_json(folder, os.path.join(path, "config.json"), dict) or {}
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
        return " and ".join(mode[:40] for mode in named)
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
