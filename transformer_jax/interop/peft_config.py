"""The configuration of an adapter in PEFT's format: each key is applied or refused.

The rules follow PEFT 0.21. Keys that do not affect the results of a stored adapter are
:data:`_WITHOUT_EFFECT`; ``tests/parity/test_peft_sweep.py`` draws values for each of them.
"""

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.functional.low_rank import lora_scale
from transformer_jax.interop.config_reader import read_config

__all__ = ["CONFIG", "INDICES", "PeftConfig", "read_peft_config"]

CONFIG = "adapter_config.json"
INDICES = "trainable_token_indices"
_ALL_LINEAR = "all-linear"
_NO_TARGETS = "dummy-target-modules"

# These only affect the start of training, or where it ran.
_WITHOUT_EFFECT = frozenset({
    "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "peft_version",
    "lora_dropout", "fan_in_fan_out", "runtime_config", "megatron_core", "qalora_group_size",
    "loftq_config", "eva_config", "corda_config", "lora_ga_config",
})  # fmt: skip
_APPLIED = frozenset({
    "peft_type", "task_type", "bias", "r", "lora_alpha", "use_rslora", "use_dora",
    "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules", "layers_to_transform",
    "layers_pattern", "modules_to_save", "init_lora_weights", "ensure_weight_tying", INDICES,
})  # fmt: skip
# Even an empty object enables these variants of LoRA.
_VARIANTS = frozenset({
    "velora_config", "monteclora_config", "kasa_config", "arrow_config", "use_bdlora",
})  # fmt: skip

# Initializations that do not change the base, and those that are recomputed from the base.
_UN_BASE = (True, False, None, "gaussian", "orthogonal", "eva", "mica")
_CHANGED_BASE = ("pissa", "olora")
# Initializations after which the base cannot be reconstructed.
_UNKNOWN_BASE = {
    "pissa_niter_": "its decomposition is random",
    "corda": "it depends on training data",
    "lora_ga": "it depends on training data",
    "loftq": "it quantizes the base",
}

# Modules that PEFT adds to modules_to_save, even if the base does not have them.
_ADDED = {
    "SEQ_CLS": ("classifier", "score"),
    "TOKEN_CLS": ("classifier", "score"),
    "QUESTION_ANS": ("qa_outputs",),
}


@dataclasses.dataclass(frozen=True)
class PeftConfig:
    """The settings of an ``adapter_config.json``.

    Attributes:
        folder: The folder, for messages.
        fields: The checked keys of the file.
    """

    folder: Path
    fields: Mapping[str, Any]

    @property
    def initialization(self) -> str | None:
        """The initialization whose change of the base must be recomputed, if any."""
        kind = self.fields.get("init_lora_weights", True)
        return kind.lower() if isinstance(kind, str) and kind.lower() in _CHANGED_BASE else None

    @property
    def saved(self) -> tuple[str, ...]:
        """The names in ``modules_to_save``, including those that PEFT adds for the task."""
        own = tuple(self.fields.get("modules_to_save") or ())
        return own + _ADDED.get(str(self.fields.get("task_type")), ())

    @property
    def task_saves(self) -> frozenset[str]:
        """The names that PEFT adds to ``modules_to_save`` for the task, for any base."""
        return frozenset(name for names in _ADDED.values() for name in names)

    def saving(self, module: str) -> list[str]:
        """Returns the names in ``modules_to_save`` that match a module or its parents."""
        parts = module.split(".")
        paths = [".".join(parts[: i + 1]) for i in range(len(parts))]
        return [name for name in self.saved if any(path.endswith(name) for path in paths)]

    def rank(self, module: str) -> int:
        """Returns the rank of a module's adapter."""
        return int(_of_pattern(self.fields.get("rank_pattern"), module, self.fields.get("r", 8)))

    def scale(self, module: str) -> float:
        """Returns the factor of the product of a module's adapter."""
        default = self.fields.get("lora_alpha", 8)
        alpha = _of_pattern(self.fields.get("alpha_pattern"), module, default)
        variant = "rslora" if self.fields.get("use_rslora") else "lora"
        return lora_scale(self.rank(module), float(alpha), variant)  # type: ignore[arg-type]

    def names_targets(self) -> bool:
        """Returns whether ``target_modules`` names any modules."""
        return self.fields.get("target_modules") not in (None, "", [], _NO_TARGETS)

    def targets(self, module: str, *, hidden: bool = True) -> bool:
        """Returns whether PEFT adds an adapter to a module of this name.

        Args:
            module: The full name.
            hidden: Whether it is a linear map but not an output layer, for ``all-linear``.
        """
        wanted, fields = self.fields.get("target_modules"), self.fields
        if not wanted or _excluded(fields.get("exclude_modules"), module):
            return False
        if any(re.match(rf"(^|.*\.){name}($|\..*)", module) for name in self.saved):
            return False
        if isinstance(wanted, str):
            if wanted.lower() == _ALL_LINEAR:
                return hidden
            return re.fullmatch(wanted, module) is not None
        if module in wanted:
            return True
        return _ends(module, wanted) and self._transforms(module)

    def _transforms(self, module: str) -> bool:
        """Returns whether ``layers_to_transform`` includes the layer of a module."""
        layers = self.fields.get("layers_to_transform")
        if layers is None or layers == []:
            return True
        patterns = self.fields.get("layers_pattern") or r"[^.]*"
        start = r".*?\." if patterns == r"[^.]*" else r"(?:^|.*?\.)"
        for pattern in [patterns] if isinstance(patterns, str) else patterns:
            if number := re.match(rf"{start}{pattern}\.(\d+)\.", module):
                layer = int(number[1])
                return layer == layers if isinstance(layers, int) else layer in layers
        return False


def _ends(module: str, names: Sequence[str]) -> bool:
    return any(module == name or module.endswith(f".{name}") for name in names)


def _excluded(names: str | Sequence[str] | None, module: str) -> bool:
    if isinstance(names, str):
        return bool(names) and re.fullmatch(names, module) is not None
    return _ends(module, names or ())


def _of_pattern(patterns: Mapping[str, float] | None, module: str, default: float) -> float:
    """Returns the value of the first pattern that matches the end of a module's name."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def read_peft_config(folder: Path) -> PeftConfig:
    """Reads the configuration of a folder.

    Raises:
        CheckpointError: The file is missing or damaged.
        ConfigError: A key has an invalid or unsupported value.
    """
    fields = read_config(folder / CONFIG).values
    if fields.get("peft_type") != "LORA":
        raise ConfigError(
            f"{folder}: an adapter of type {fields.get('peft_type')}: only LORA is supported"
        )
    if (fields.get("bias") or "none") != "none":
        raise ConfigError(f"{folder}: trains biases (bias {fields['bias']}): only none is allowed")
    _check_numbers(folder, fields)
    _check_names(folder, fields)
    _check_initialization(folder, fields)
    for name, value in fields.items():
        if name in _WITHOUT_EFFECT or name in _APPLIED:
            continue
        off: tuple[Json, ...] = (None, False) if name in _VARIANTS else (None, False, [], {})
        if value not in off:
            raise ConfigError(
                f"{folder}: {name} is {json.dumps(value)[:60]}: adapters with it are not supported"
            )
    return PeftConfig(folder, fields)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_rank(value: object) -> bool:
    return type(value) is int and value >= 1


def _check_numbers(folder: Path, fields: Mapping[str, Any]) -> None:
    """Refuses invalid ranks, alphas, rates and switches."""
    for key, pattern, right, what in (
        ("r", "rank_pattern", _is_rank, "integers of at least 1"),
        ("lora_alpha", "alpha_pattern", _is_number, "numbers"),
    ):
        given = fields.get(pattern) or {}
        values = [fields.get(key, 8), *(given.values() if isinstance(given, dict) else [None])]
        if not all(map(right, values)):
            raise ConfigError(f"{folder}: {key} and the values of {pattern} must be {what}")
        for one in given:
            _check_pattern(folder, pattern, one, rf"(.*\.)?({one})$")
    rate = fields.get("lora_dropout", 0.0)
    if not (_is_number(rate) and 0 <= rate <= 1):
        raise ConfigError(f"{folder}: lora_dropout is {json.dumps(rate)[:60]}: 0 to 1 is allowed")
    for key in ("use_rslora", "use_dora", "ensure_weight_tying"):
        if fields.get(key) not in (None, True, False):
            raise ConfigError(
                f"{folder}: {key} is {json.dumps(fields[key])[:60]}: true or false is allowed"
            )


def _check_pattern(folder: Path, key: str, name: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{folder}: {key} {name[:60]!r}: {error}") from None


def _check_names(folder: Path, fields: Mapping[str, Any]) -> None:
    """Refuses invalid names of modules and numbers of layers."""
    is_names = lambda value: isinstance(value, list) and all(isinstance(n, str) for n in value)
    for key in ("target_modules", "exclude_modules", "layers_pattern", "modules_to_save"):
        value = fields.get(key)
        text = isinstance(value, str) and key != "modules_to_save"
        if value is not None and not text and not is_names(value):
            what = "a list of names" + ("" if key == "modules_to_save" else ", or a pattern")
            raise ConfigError(f"{folder}: {key} is {json.dumps(value)[:60]}: {what} is allowed")
        if text or key in ("layers_pattern", "modules_to_save"):
            for name in [str(value)] if text else value or ():
                _check_pattern(folder, key, name, name)
    layers = fields.get("layers_to_transform")
    numbers = layers if isinstance(layers, list) else [0 if layers is None else layers]
    if not all(type(number) is int for number in numbers):
        raise ConfigError(
            f"{folder}: layers_to_transform is {json.dumps(layers)[:60]}: numbers of layers are "
            f"allowed"
        )
    pattern = fields.get("layers_pattern")
    if isinstance(fields.get("target_modules"), str) and (layers is not None or pattern):
        raise ConfigError(
            f"{folder}: layers_to_transform needs target_modules as a list of names, but "
            f"target_modules is a pattern"
        )
    if pattern and layers is None:
        raise ConfigError(f"{folder}: layers_pattern is given without layers_to_transform")


def _check_initialization(folder: Path, fields: Mapping[str, Any]) -> None:
    """Refuses initializations after which the base is unknown, and unknown ones."""
    kind = fields.get("init_lora_weights", True)
    name = kind.lower() if isinstance(kind, str) else kind
    for start, why in _UNKNOWN_BASE.items():
        if isinstance(name, str) and name.startswith(start):
            raise ConfigError(
                f"{folder}: init_lora_weights is {name[:60]}, which changed the base, and {why}: "
                f"save the adapter with PEFT's path_initial_model_for_weight_conversion, or export "
                f"the merged model (merge_and_unload), and use that"
            )
    known = [*_UN_BASE, *_CHANGED_BASE]
    if not any(name is one or (isinstance(name, str) and name == one) for one in known):
        shown = ", ".join(json.dumps(one) for one in known)
        raise ConfigError(
            f"{folder}: init_lora_weights is {json.dumps(kind)[:60]}: allowed are {shown}"
        )
    if name == "mica" and fields.get("use_dora"):
        raise ConfigError(f"{folder}: init_lora_weights mica and use_dora exclude each other")
    if name == "pissa":
        alphas = [fields.get("lora_alpha", 8), *(fields.get("alpha_pattern") or {}).values()]
        if min(alphas) <= 0:
            raise ConfigError(f"{folder}: init_lora_weights pissa needs a lora_alpha above 0")
