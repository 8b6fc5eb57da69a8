"""Trained token rows in PEFT's format: ``trainable_token_indices``.

A table has the tensor ``NAME.token_adapter.trainable_tokens_delta`` [A, D]: the rows themselves,
not their change. ``adapter_config.json`` has the tokens, either for the embedding table or by the
name of each table; a tied output layer is not named.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.core.errors import CheckpointError, ConfigError, plural
from transformer_jax.interop.family import Model, ModelFamily
from transformer_jax.interop.peft_config import INDICES, PeftConfig
from transformer_jax.interop.peft_modules import BaseModules, bare_name

__all__ = ["BEFORE", "read_rows", "row_tensors"]

BEFORE = "base_model.model."
_DELTA = ".token_adapter.trainable_tokens_delta"


def row_tensors(
    rows: Mapping[str, np.ndarray], tokens: tuple[int, ...], family: ModelFamily, model: Model
) -> tuple[dict[str, np.ndarray], dict[str, list[int]] | None]:
    """Returns the tensors of trained rows, and the tokens by name of the table, or None.

    Args:
        rows: The rows, by path of the table.
        tokens: Ids of the tokens.
        family: The family of the base.
        model: The base as one of our models.

    Raises:
        ConfigError: The family has no tensor for a table, or rows belong to a bias.
    """
    theirs = {mapping.name: mapping.hf_name for mapping in family.mappings(model)}
    tensors, indices = {}, {}
    for name, value in rows.items():
        if not name.endswith("/table"):
            raise ConfigError(
                f"{name}: values of {len(tokens)} tokens were trained, but PEFT's format has "
                f"trained rows only for tables: merge the run and export it instead"
            )
        if name not in theirs:
            raise ConfigError(f"{name}: {family.types[0]} has no tensor for this table")
        module = theirs[name].removesuffix(".weight")
        tensors[f"{BEFORE}{module}{_DELTA}"] = np.ascontiguousarray(value, np.float32)
        indices[module.rpartition(".")[2]] = list(tokens)
    return tensors, indices or None


class StoredRows(NamedTuple):
    """The trained rows of a folder.

    Attributes:
        rows: The rows, by parameter of the table.
        tokens: Ids of the tokens, the same for each table.
        tables: Complete tables by bare name of their module, if tied tables have separate rows, or
            tables have rows of different tokens.
        modules: The bare names of all modules with rows.
        rest: The remaining tensors.
    """

    rows: dict[str, np.ndarray]
    tokens: tuple[int, ...]
    tables: dict[str, np.ndarray]
    modules: set[str]
    rest: dict[str, np.ndarray]


def read_rows(
    config: PeftConfig,
    tensors: Mapping[str, np.ndarray],
    base: BaseModules,
    kernels: Mapping[str, np.ndarray],
) -> StoredRows:
    """Reads the trained rows of a folder.

    Args:
        config: The configuration of the adapter.
        tensors: The tensors without adapters, by name.
        base: The modules of the base.
        kernels: The parameters of the base.

    Raises:
        CheckpointError: Rows are missing or do not match the base, or the tokens are not a list of
            ids.
    """
    folder, said = config.folder, config.fields.get(INDICES)
    rest = {name: array for name, array in tensors.items() if not name.endswith(_DELTA)}
    rows: dict[str, tuple[tuple[int, ...], np.ndarray]] = {}
    for name in tensors.keys() - rest:
        whole = name.removesuffix(_DELTA)
        module, ids = bare_name(whole), _ids_of(folder, said, whole)
        table = base.table_of(module)
        if table is None or tensors[name].shape != (len(ids), *kernels[table].shape[1:]):
            raise CheckpointError(f"{folder}: the tensor {name} does not match the base")
        if max(ids) >= len(kernels[table]):
            raise CheckpointError(
                f"{folder}: trains the row of token {max(ids)}, but {whole} of the base has "
                f"{plural(len(kernels[table]), 'row')}: use the base with the grown vocabulary"
            )
        rows[module] = ids, tensors[name].astype(np.float32)
    _refuse_missing(config, rows, base)
    if base.biased and rows.keys() & {base.head, base.embedding if base.tied else base.head}:
        raise ConfigError(
            f"{folder}: trains rows of an output layer with a bias, which PEFT omits until "
            f"they are merged: merge it with PEFT (merge_and_unload), and use that"
        )
    kinds = {ids for ids, _ in rows.values()}
    apart = len(kinds) > 1 or (base.tied and base.head in rows) or set(base.side_tables) & set(rows)
    if not apart:
        own = {str(base.table_of(name)): values for name, (_, values) in rows.items()}
        return StoredRows(own, next(iter(kinds), ()), {}, set(rows), rest)
    tables = {}
    for module, (ids, values) in rows.items():
        tables[module] = np.array(kernels[str(base.table_of(module))], np.float32)
        tables[module][list(ids)] = values
    return StoredRows({}, (), tables, set(rows), rest)


def _refuse_missing(
    config: PeftConfig, rows: Mapping[str, tuple[tuple[int, ...], object]], base: BaseModules
) -> None:
    """Refuses tokens without rows in the file, and different rows of tied tables."""
    folder, said = config.folder, config.fields.get(INDICES)
    names = list(said) if isinstance(said, Mapping) else [base.embedding] if said else []
    for name in names:
        one = [module for module in rows if f".{module}".endswith(f".{bare_name(name)}")]
        shares = base.tied and base.head is not None and base.head.endswith(name)
        same = isinstance(said, Mapping) and rows.get(base.embedding, ((),))[0] == tuple(said[name])
        if not one and not (shares and same):
            raise CheckpointError(
                f"{folder}: {INDICES} names tokens of {name}, but the file has no rows of it: "
                f"download it again, or leave them out"
            )
    both = [rows[name][0] for name in (base.embedding, str(base.head)) if name in rows]
    if config.fields.get("ensure_weight_tying") and base.tied and len(set(both)) > 1:
        raise CheckpointError(
            f"{folder}: ensure_weight_tying is true, but {INDICES} differs between tables"
        )


def _ids_of(folder: Path, said: Any, module: str) -> tuple[int, ...]:
    """Returns the tokens of a table."""
    if isinstance(said, Mapping):
        own = [ids for name, ids in said.items() if f".{module}".endswith(f".{name}")]
        if not own:
            raise CheckpointError(f"{folder}: {INDICES} names no tokens of {module}")
        said = own[0]
    right = isinstance(said, list) and said and all(type(one) is int and one >= 0 for one in said)
    if not right or len(set(said)) < len(said):
        raise CheckpointError(
            f"{folder}: {INDICES} of {module} is {json.dumps(said)[:60]}: must be unique ids"
        )
    return tuple(said)
