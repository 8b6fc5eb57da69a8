"""Initialization of a run from a trained run."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from transformer_jax.config import TransformerConfig
from transformer_jax.errors import CheckpointError, ConfigError, plural
from transformer_jax.predictors.runs import model_config, open_directory
from transformer_jax.recurrent_config import RecurrentConfig
from transformer_jax.training.activity import log
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.trees import flatten_dict

__all__ = ["Initial", "load_pretrained"]


@dataclasses.dataclass(frozen=True)
class Initial:
    """A trained encoder whose parameters initialize another run, by name."""

    directory: RunDirectory
    model: TransformerConfig
    lowercase: bool

    def changed(self, asked: Any, usual: Any) -> TransformerConfig:
        """Its configuration, with the settings of ``asked`` that are not the ``usual`` ones."""
        changed: TransformerConfig = _changed(self.model, asked, usual)
        return changed

    def given(self, params: Any, anew: Callable[[str], bool] = lambda name: False) -> Any:
        """``params`` with its values for parameters of the same name, and a line about them.

        Args:
            params: Nested dictionaries of arrays.
            anew: Whether a parameter, by path, stays newly initialized.

        Raises:
            CheckpointError: No name matches, or one of the same name has another shape.
        """
        path = self.directory.path
        known = flatten_dict(self.directory.load_params("best").params)
        taken, fresh = [], []

        def value(name: str, here: Any) -> Any:
            if name not in known or anew(name):
                fresh.append(name)
                return here
            if known[name].shape != here.shape:
                raise CheckpointError(
                    f"{path}: parameter {name} is {list(known[name].shape)} there and "
                    f"{list(here.shape)} in this run: give no model settings that change sizes"
                )
            taken.append(name)
            return np.asarray(known[name], here.dtype)

        leaves, tree = jax.tree_util.tree_flatten_with_path(params)
        words = ["/".join(str(getattr(k, "key", k)) for k in where) for where, _ in leaves]
        values = [value(w, leaf) for w, (_, leaf) in zip(words, leaves, strict=True)]
        if not taken:
            raise CheckpointError(f"{path}: has no parameter that this run could start from")
        parts = ", ".join(dict.fromkeys(_part(name) for name in fresh))
        log(
            f"loaded {len(taken)} of {plural(len(values), 'parameter')} from {path}; newly "
            f"initialized: {parts or 'none'}"
        )
        return jax.tree.unflatten(tree, values)


def load_pretrained(path: str) -> Initial:
    """The run of an encoder at ``path``.

    Raises:
        ConfigError: The run is not an encoder.
        CheckpointError: There is no such run, or it is damaged.
    """
    directory = open_directory(path)
    model = model_config(directory)
    if isinstance(model, RecurrentConfig) or model.decoder_layers or not model.encoder_layers:
        raise ConfigError(
            f"{path}: not the run of an encoder: pre-train one with "
            f"`python -m experiments.encoder_only pretrain`"
        )
    read = directory.read_config().get("data", {}).get("read", {})
    return Initial(directory, model, bool(read.get("lowercase", False)))


def _changed(base: Any, asked: Any, usual: Any) -> Any:
    """``base``, a nested dataclass, with the fields in which ``asked`` differs from ``usual``."""
    fields = {}
    for field in dataclasses.fields(base):
        old, new, plain = (getattr(config, field.name) for config in (base, asked, usual))
        if dataclasses.is_dataclass(old):
            fields[field.name] = _changed(old, new, plain)
        elif new != plain:
            fields[field.name] = new
    return dataclasses.replace(base, **fields)


def _part(name: str) -> str:
    """The short name of the part of the model that holds a parameter."""
    parts = name.split("/")
    return "/".join(parts[:3]) if parts[1:2] == ["blocks"] else parts[0]
