"""Trained rows of tokens in PEFT's format: ``trainable_token_indices`` beside adapters.

A table of theirs has the tensor ``NAME.token_adapter.trainable_tokens_delta`` [A, D]: the rows
themselves, no change of them. ``adapter_config.json`` has the tokens, of the table of embeddings
alone or by the name of each table; an output layer that is that table needs no name.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.errors import CheckpointError, ConfigError, plural
from transformer_jax.interop.family import Model, ModelFamily

__all__ = ["BEFORE", "INDICES", "bare_name", "read_rows", "row_tensors"]

BEFORE = "base_model.model."
INDICES = "trainable_token_indices"
_DELTA = ".token_adapter.trainable_tokens_delta"


def bare_name(name: str) -> str:
    """A name without the prefix that bare models lack.

    Example:
        >>> bare_name("transformer.wte.weight"), bare_name("lm_head.weight")
        ('wte.weight', 'lm_head.weight')
    """
    return re.sub(r"^(transformer|model|bert|roberta|distilbert|electra)\.", "", name)


def row_tensors(
    rows: Mapping[str, np.ndarray], tokens: tuple[int, ...], family: ModelFamily, model: Model
) -> tuple[dict[str, np.ndarray], dict[str, list[int]] | None]:
    """The tensors of trained rows, and the tokens by the name of each table; None without rows.

    Args:
        rows: By the path of a table.
        tokens: Their ids.
        family: Of the base.
        model: The base as one of ours.

    Raises:
        ConfigError: A table lies nowhere in the family's tensors, or rows are of a bias.
    """
    theirs = {mapping.name: mapping.hf_name for mapping in family.mappings(model)}
    tensors, indices = {}, {}
    for name, value in rows.items():
        if not name.endswith("/table"):
            raise ConfigError(
                f"{name}: the numbers of {len(tokens)} tokens were trained, and PEFT's format has "
                f"trained rows of tables alone: merge the run and export it instead"
            )
        if name not in theirs:
            raise ConfigError(f"{name}: {family.types[0]} has no tensor for this table")
        module = theirs[name].removesuffix(".weight")
        tensors[f"{BEFORE}{module}{_DELTA}"] = np.ascontiguousarray(value, np.float32)
        indices[module.rpartition(".")[2]] = list(tokens)
    return tensors, indices or None


def read_rows(
    folder: Path,
    fields: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    tables: Mapping[str, str],
    sizes: Mapping[str, tuple[int, ...]],
) -> tuple[dict[str, np.ndarray], tuple[int, ...], dict[str, np.ndarray]]:
    """The trained rows of a folder, their tokens, and the tensors that are none.

    Args:
        folder: For messages.
        fields: Of ``adapter_config.json``.
        tensors: Those without adapters, by name.
        tables: For bare names of tensors of the base: the parameter of ours.
        sizes: Shapes of the parameters.

    Raises:
        CheckpointError: Rows fit nothing of the base, or the tokens are no list of ids.
        ConfigError: Tables have rows of other tokens than each other.
    """
    rest = {name: array for name, array in tensors.items() if not name.endswith(_DELTA)}
    rows: dict[str, np.ndarray] = {}
    found: set[tuple[int, ...]] = set()
    for name in tensors.keys() - rest:
        module = name.removesuffix(_DELTA)
        ids, table = _ids_of(folder, fields.get(INDICES), module), tables.get(bare_name(module))
        if table is None or tensors[name].shape != (len(ids), *sizes[table][1:]):
            raise CheckpointError(f"{folder}: the tensor {name} fits nothing of the base")
        if max(ids) >= sizes[table][0]:
            raise CheckpointError(
                f"{folder}: trains the row of token {max(ids)}, and {module} of the base has "
                f"{plural(sizes[table][0], 'row')}: take the base whose vocabulary has grown"
            )
        rows[table] = tensors[name].astype(np.float32)
        found.add(ids)
    if len(found) > 1:
        raise ConfigError(
            f"{folder}: {INDICES} has other tokens for each table: one list for all is what is read"
        )
    return rows, next(iter(found), ()), rest


def _ids_of(folder: Path, said: Any, module: str) -> tuple[int, ...]:
    """The tokens of a table."""
    if isinstance(said, Mapping):
        own = [ids for name, ids in said.items() if f".{module}".endswith(f".{name}")]
        if not own:
            raise CheckpointError(f"{folder}: {INDICES} names no tokens of {module}")
        said = own[0]
    right = isinstance(said, list) and said and all(type(one) is int and one >= 0 for one in said)
    if not right or len(set(said)) < len(said):
        raise CheckpointError(
            f"{folder}: {INDICES} of {module} is {json.dumps(said)[:60]}: a list of ids, each once"
        )
    return tuple(said)
