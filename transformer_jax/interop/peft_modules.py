"""The modules of a base by the names that PEFT has for them, and which of them an adapter has."""

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.interop.family import Model, ModelFamily, TensorMapping
from transformer_jax.interop.peft_config import PeftConfig

__all__ = [
    "BaseModules", "bare_name", "check_saved", "check_targets", "linear_maps", "shares_adapter",
    "ties_saved", "untied",
]  # fmt: skip

# What PEFT calls the tables of words, where it ties adapters of two of them.
_WORD_TABLES = ("embed_tokens", "lm_head")


def bare_name(name: str) -> str:
    """A name without the prefix that bare models lack.

    Example:
        >>> bare_name("transformer.wte.weight"), bare_name("lm_head.weight")
        ('wte.weight', 'lm_head.weight')
    """
    return re.sub(r"^(transformer|model|bert|roberta|distilbert|electra|vit)\.", "", name)


def untied(model: Model) -> Model:
    """Returns the same model with an output layer that has a table of its own."""
    head = dataclasses.replace(model.config.head, tie_word_embeddings=False)
    return dataclasses.replace(model, config=dataclasses.replace(model.config, head=head))


def linear_maps(family: ModelFamily, model: Model) -> dict[str, list[TensorMapping]]:
    """Returns the kernels of each linear map of theirs, in the order of its outputs."""
    found: dict[str, list[TensorMapping]] = {}
    for mapping in family.mappings(model):
        if mapping.name.endswith("/kernel") and mapping.layout in ("same", "transposed"):
            module = bare_name(mapping.hf_name.removesuffix(".weight"))
            found.setdefault(module, []).append(mapping)
    return {name: sorted(parts, key=lambda m: m.part) for name, parts in found.items()}


class BaseModules:
    """The modules of a base that adapters may be of, by bare names.

    Attributes:
        linear: The kernels of each linear map.
        tables: The parameter of each table.
        embedding: The table of words.
        head: The output layer over the vocabulary, if there is one.
        head_name: Its whole name.
        tied: Whether it has no table of its own.
        biased: Whether its linear map has a bias there.
        several: Whether two sides may read one table.
        side_tables: The names of the tables of words of the two sides.
        parameters: The parameters of ours that each tensor of theirs holds.
    """

    def __init__(self, family: ModelFamily, model: Model):
        mappings = family.mappings(model)
        names = {mapping.name: mapping.hf_name.removesuffix(".weight") for mapping in mappings}
        self.linear = linear_maps(family, model)
        self.tables = {
            bare_name(names[m.name]): m.name
            for m in mappings
            if m.name.endswith("/table") and m.layout == "same"
        }
        self.parameters: dict[str, list[TensorMapping]] = {}
        for mapping in mappings:
            self.parameters.setdefault(bare_name(mapping.hf_name), []).append(mapping)
        self.embedding = bare_name(names.get("embedding/table", ""))
        self.tied = "head/table" not in names
        self.head_name = names.get("head/table") or _tied_head(family, model)
        self.head = None if self.head_name is None else bare_name(self.head_name)
        self.biased = model.words and "head/bias" in names
        if self.biased:  # that of its linear map is the bias of the head
            bias = TensorMapping("head/bias", f"{self.head_name}.bias")
            self.parameters.setdefault(bare_name(bias.hf_name), [bias])
        self.several = model.kind == "encoder-decoder"
        sides = ("encoder", "decoder") if self.several else ()
        others = [f"{model.prefix}{side}.embed_tokens" for side in sides]
        self.side_tables = tuple(map(bare_name, others))
        whole = [m.hf_name.rpartition(".")[0] for m in mappings]
        whole += [self.head_name] if self.head_name else []
        self._whole = {bare_name(name): name for name in [*others, *whole] if name}

    def names(self, given: Collection[str]) -> dict[str, str]:
        """Returns the names of modules as PEFT matches them, by bare name.

        Args:
            given: Modules that an adapter has: one that was trained on a bare model has no prefix.
        """
        theirs = {bare_name(name): name for name in given}
        prefixed = set(self._whole.values())
        bare = any(name not in prefixed and name in self._whole for name in given)
        return {name: name for name in self._whole} if bare else {**self._whole, **theirs}

    def table_of(self, module: str) -> str | None:
        """Returns the parameter of ours that a table is, or that it shares; None of all else."""
        shared = module in self.side_tables or module == self.head
        return self.tables.get(module, "embedding/table" if shared else None)

    def wraps(self, module: str) -> bool:
        """Returns whether PEFT has adapters of a module: a linear map, or a table."""
        return module in self.linear or self.table_of(module) is not None


def _tied_head(family: ModelFamily, model: Model) -> str | None:
    """The name of an output layer that is the table of words."""
    if model.kind not in ("decoder", "encoder-decoder") and not model.words:
        return None
    for mapping in family.mappings(untied(model)):
        if mapping.name == "head/table":
            return mapping.hf_name.removesuffix(".weight")
    return "lm_head"


def check_targets(
    config: PeftConfig, modules: Collection[str], base: BaseModules, names: Mapping[str, str]
) -> None:
    """Refuses a configuration that names other modules than there are tensors of.

    Args:
        config: The configuration.
        modules: The whole names of modules with an adapter in the file.
        base: The modules of the base.
        names: Their whole names, by bare name.

    Raises:
        CheckpointError: A module lacks its tensors, or is none of the base.
        ConfigError: A module has tensors, and the configuration leaves it out.
    """
    folder, bare = config.folder, {bare_name(name) for name in modules}
    for name in modules:
        if not base.wraps(bare_name(name)):
            raise CheckpointError(
                f"{folder}: {name} has an adapter, and is no linear map or table of the base: it "
                f"belongs to another model, or to a part of it that has no use here"
            )
    if modules and not config.names_targets():
        raise ConfigError(
            f"{folder}: target_modules is empty, and {next(iter(modules))} has an adapter: name "
            f"the modules that have one"
        )
    both = _ties_targets(config, base)
    for name, whole in names.items():
        if not base.wraps(name):
            continue
        hidden = name in base.linear
        wanted = config.targets(whole, hidden=hidden) or (
            both and name in (base.embedding, base.head)
        )
        if wanted and name not in bare:
            raise CheckpointError(
                f"{folder}: target_modules includes {whole}, and the file has no tensors of it: "
                f"fetch it anew, or name the modules that have an adapter"
            )
        if name in bare and not wanted:
            raise ConfigError(
                f"{folder}: {whole} has an adapter, and adapter_config.json leaves it out "
                f"({_leaves_out(config, whole)}): make both say the same"
            )
    if config.names_targets() and not modules:
        raise CheckpointError(
            f"{folder}: target_modules names no module of the base: it belongs to another model"
        )


def _leaves_out(config: PeftConfig, module: str) -> str:
    """The keys that leave a module out."""
    for key in ("exclude_modules", "modules_to_save", "layers_to_transform"):
        fields = {name: value for name, value in config.fields.items() if name != key}
        if key == "modules_to_save":
            fields.pop("task_type", None)
        if dataclasses.replace(config, fields=fields).targets(module):
            return key
    return "target_modules"


def shares_adapter(config: PeftConfig, base: BaseModules) -> bool:
    """Returns whether PEFT gives the table of words and the output layer one adapter.

    ``LoraModel._create_and_replace`` compares the last part of the name of an output layer with
    the whole name, so that an output layer within another module (``cls.predictions.decoder``)
    keeps an adapter of its own.
    """
    return _ties_targets(config, base) and "." not in (base.head_name or ".")


def _ties_targets(config: PeftConfig, base: BaseModules) -> bool:
    """Returns whether PEFT adapts the table of words and the output layer together."""
    wanted = config.fields.get("target_modules") or ()
    if not _ties(config, base) or ties_saved(config, base):
        return False
    if isinstance(wanted, str):
        return any(re.fullmatch(wanted, name) for name in _WORD_TABLES)
    return any(name.rpartition(".")[2] in _WORD_TABLES for name in wanted)


def ties_saved(config: PeftConfig, base: BaseModules) -> bool:
    """Returns whether PEFT stores one table for the table of words and the output layer."""
    return _ties(config, base) and any(
        name.rpartition(".")[2] in _WORD_TABLES for name in config.saved
    )


def _ties(config: PeftConfig, base: BaseModules) -> bool:
    tied = base.tied and base.head is not None
    return bool(config.fields.get("ensure_weight_tying")) and tied


def check_saved(
    config: PeftConfig, tensors: Mapping[str, Any], base: BaseModules, names: Mapping[str, str]
) -> set[str]:
    """Returns which of the tensors, by bare name, ``modules_to_save`` names.

    Args:
        config: The configuration.
        tensors: The tensors of a file that are of no adapter, by bare name.
        base: The modules of the base.
        names: Their whole names, by bare name.

    Raises:
        CheckpointError: A module that is named has no tensors, or lacks one.
    """
    folder, both = config.folder, ties_saved(config, base)
    tied = [f"{base.head}.weight"] if base.tied and base.head else []
    known = [*base.parameters, *tied, *(f"{name}.weight" for name in base.side_tables)]
    saved, used = set(), set()
    for tensor in dict.fromkeys(known):
        module = tensor.rpartition(".")[0]
        whole = names.get(module, module)
        of = config.saving(whole)
        used.update(of)
        if not of and not (both and module in (base.embedding, base.head)):
            continue
        if tensor not in tensors:
            raise CheckpointError(
                f"{folder}: modules_to_save includes {whole}, and the file has no tensor {tensor}: "
                f"fetch it anew, or leave the module out"
            )
        saved.add(tensor)
    for name in config.saved:
        if name not in used and name not in config.task_saves:
            raise CheckpointError(
                f"{folder}: modules_to_save names {name}, which is no module of the base: it "
                f"belongs to another model"
            )
    return saved
