"""Adapters of embedding tables, and of output layers tied to them.

In transformers, an output layer tied to the embedding table is a separate module: an adapter, or
``modules_to_save``, may change only one of the two. Here they are one parameter, so the model is
then untied: the output layer gets its own table.
"""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.functional.low_rank import low_rank_kernel
from transformer_jax.interop.peft_base import first_factors
from transformer_jax.interop.peft_config import PeftConfig
from transformer_jax.interop.peft_modules import BaseModules, shares_adapter, ties_saved

__all__ = ["Leaves", "TableChanges"]

Leaves = Mapping[str, np.ndarray]  # tensors of one module: a, b, magnitude, or of a table
_EMBEDDING, _HEAD = "embedding/table", "head/table"


@dataclasses.dataclass(frozen=True)
class TableChanges:
    """The changes that an adapter makes to tables.

    Attributes:
        config: The configuration of the adapter.
        base: The modules of the base.
        names: Their whole names, by bare name.
        kernels: The parameters of the base.
        adapters: The tensors of adapters, by bare name of the module.
        own: Tables of ``modules_to_save``, by bare name of the module, as separate copies.
        replaced: Tables that are stored without being named by a key, by bare name: PEFT loads them
            into the base, under both names if tied.
    """

    config: PeftConfig
    base: BaseModules
    names: Mapping[str, str]
    kernels: Mapping[str, np.ndarray]
    adapters: Mapping[str, Leaves]
    own: Mapping[str, np.ndarray]
    replaced: Mapping[str, np.ndarray]

    def tables(self) -> dict[str, np.ndarray]:
        """Returns the changed tables, by name of our parameter.

        Raises:
            CheckpointError: Tensors contradict each other.
            ConfigError: Tables of an encoder-decoder are changed, or DoRA is used on a table.
        """
        found = {}
        words = {self.base.embedding, self.base.head} if self.base.tied else set()
        for module in {**self.adapters, **self.own, **self.replaced}:
            if self._is_of_several(module):
                raise ConfigError(
                    f"{self.config.folder}: changes {module}, one of several modules that share a "
                    f"table in this family: merge it with PEFT (merge_and_unload), and use that"
                )
            name = self.base.tables.get(module)
            if name is not None and module not in words:
                start = self.replaced.get(module, self.kernels[name])
                found[name] = self.own.get(module, self._adapted(module, start))
        if words & {*self.adapters, *self.own, *self.replaced}:
            found |= self._words()
        return found

    def _is_of_several(self, module: str) -> bool:
        apart = "decoder_embedding/table" in self.kernels
        words = (self.base.embedding, *self.base.side_tables, *([self.base.head] if apart else []))
        return self.base.several and module in words

    def _words(self) -> dict[str, np.ndarray]:
        """Returns the embedding table and the output layer's table, which are tied in the base."""
        table = self.kernels[_EMBEDDING]
        there = [self.base.embedding] + ([self.base.head] if self.base.head else [])
        given = [self.replaced[name] for name in there if name in self.replaced]
        if any(not np.array_equal(given[0], other) for other in given[1:]):
            raise CheckpointError(
                f"{self.config.folder}: {' and '.join(there)} are one table of the base, but the "
                f"file has two different ones, which modules_to_save does not name"
            )
        shared = given[0] if given else self._began(table)
        own = {
            name: self.own[name] if name in self.own else self._adapted(name, shared, first=False)
            for name in there
        }
        tables = list(own.values())
        one_change = self._one_adapter(there) and self._one_scale(there)
        if one_change or all(np.array_equal(tables[0], one) for one in tables[1:]):
            return {_EMBEDDING: tables[0]}
        if (ties_saved(self.config, self.base) and all(name in self.own for name in there)) or (
            shares_adapter(self.config, self.base)
            and all(name in self.adapters for name in there)
            and not self._one_adapter(there)
        ):
            raise CheckpointError(
                f"{self.config.folder}: ensure_weight_tying is true, but the tensors of "
                f"{' and '.join(there)} differ"
            )
        changed = {} if np.array_equal(own[there[0]], table) else {_EMBEDDING: own[there[0]]}
        return changed | {_HEAD: own[there[1]]}

    def _one_scale(self, modules: list[str]) -> bool:
        """Returns whether alpha_pattern scales the adapters of both modules equally."""
        return len({self.config.scale(self.names[module]) for module in modules}) == 1

    def _one_adapter(self, modules: list[str]) -> bool:
        """Returns whether the output layer's adapter is the transposed adapter of the table."""
        if len(modules) < 2 or any(name not in self.adapters for name in modules):
            return False
        table, head = (self.adapters[name] for name in modules)
        return (
            "magnitude" not in head
            and np.array_equal(table["table_a"], head["b"].T)
            and np.array_equal(table["table_b"], head["a"].T)
        )

    def _began(self, table: np.ndarray) -> np.ndarray:
        """Returns the tied table after the initialization of the output layer's adapter."""
        head, kind = self.base.head, self.config.initialization
        if kind is None or head is None or head not in self.adapters:
            return table
        return table - self._first(head, table)

    def _first(self, module: str, table: np.ndarray) -> np.ndarray:
        kind, whole = self.config.initialization, self.names[module]
        assert kind is not None  # only these initializations change the base
        scale = self.config.scale(whole)
        a, b = first_factors(kind, table, self.config.rank(whole), scale)
        return np.float32(scale) * (b @ a)

    def _adapted(self, module: str, table: np.ndarray, *, first: bool = True) -> np.ndarray:
        """Returns a table with the adapter of a module, if any."""
        leaves = self.adapters.get(module)
        if leaves is None:
            return table
        scale = self.config.scale(self.names[module])
        if "table_a" in leaves:
            change = np.asarray(leaves["table_b"], np.float32) @ leaves["table_a"]
            return table + np.float32(scale) * change.T
        if first and self.config.initialization and module not in self.replaced:
            table = table - self._first(module, table)
        kernel = jnp.asarray(table.T)
        more = []
        if "magnitude" in leaves:
            norms = np.linalg.norm(np.asarray(table, np.float32), axis=1)
            more = [jnp.asarray(np.asarray(leaves["magnitude"], np.float32) - norms)]
        a, b = (jnp.asarray(np.asarray(leaves[leaf], np.float32).T) for leaf in ("a", "b"))
        return np.ascontiguousarray(np.asarray(low_rank_kernel(kernel, a, b, scale, *more)).T)
