"""The modules of a base by their names in PEFT, and the modules of an adapter."""

import dataclasses
import re
from collections.abc import Collection, Mapping

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.interop.family import Model, ModelFamily, TensorMapping
from transformer_jax.interop.peft_config import PeftConfig

__all__ = [
    "BaseModules", "bare_name", "check_saved", "check_targets", "linear_maps", "shares_adapter",
    "ties_saved", "untied",
]  # fmt: skip

# PEFT's names of embedding tables whose adapters it ties.
_WORD_TABLES = ("embed_tokens", "lm_head")


def bare_name(name: str) -> str:
    """Returns a name without the prefix that bare models lack.

    Example:
        >>> bare_name("transformer.wte.weight"), bare_name("lm_head.weight")
        ('wte.weight', 'lm_head.weight')
    """
    return re.sub(r"^(transformer|model|bert|roberta|distilbert|electra|mpnet|vit)\.", "", name)


def untied(model: Model) -> Model:
    """Returns the same model with an untied output layer."""
    head = dataclasses.replace(model.config.head, tie_word_embeddings=False)
    return dataclasses.replace(model, config=dataclasses.replace(model.config, head=head))


def linear_maps(family: ModelFamily, model: Model) -> dict[str, list[TensorMapping]]:
    """Returns our kernels of each of their linear maps, in the order of outputs."""
    found: dict[str, list[TensorMapping]] = {}
    for mapping in family.mappings(model):
        if mapping.name.endswith("/kernel") and mapping.layout in ("same", "transposed"):
            module = bare_name(mapping.hf_name.removesuffix(".weight"))
            found.setdefault(module, []).append(mapping)
    return {name: sorted(parts, key=lambda m: m.part) for name, parts in found.items()}


class BaseModules:
    """The modules of a base that may have adapters, by bare names.

    Attributes:
        linear: The kernels of each linear map.
        tables: The parameter of each table.
        embedding: The embedding table of tokens.
        head: The output layer over the vocabulary, if there is one.
        head_name: The full name of the output layer.
        tied: Whether the output layer is tied.
        biased: Whether the output layer's linear map has a bias in PEFT.
        several: Whether both sides may share one table.
        side_tables: The names of the embedding tables of both sides.
        parameters: Our parameters in each of their tensors.
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
        if self.biased:  # the bias of its linear map is the bias of the head
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
        """Returns the full names of modules, for PEFT's matching, by bare name.

        Args:
            given: Modules of an adapter, without prefix if it was trained on a bare model.
        """
        theirs = {bare_name(name): name for name in given}
        prefixed = set(self._whole.values())
        bare = any(name not in prefixed and name in self._whole for name in given)
        return {name: name for name in self._whole} if bare else {**self._whole, **theirs}

    def table_of(self, module: str) -> str | None:
        """Returns our parameter of a table, or of a tied layer; None for other modules."""
        shared = module in self.side_tables or module == self.head
        return self.tables.get(module, "embedding/table" if shared else None)

    def wraps(self, module: str) -> bool:
        """Returns whether PEFT supports adapters of a module: a linear map or a table."""
        return module in self.linear or self.table_of(module) is not None


def _tied_head(family: ModelFamily, model: Model) -> str | None:
    """Returns the name of a tied output layer."""
    if model.kind not in ("decoder", "encoder-decoder") and not model.words:
        return None
    for mapping in family.mappings(untied(model)):
        if mapping.name == "head/table":
            return mapping.hf_name.removesuffix(".weight")
    return "lm_head"


def check_targets(
    config: PeftConfig, modules: Collection[str], base: BaseModules, names: Mapping[str, str]
) -> None:
    """Refuses a configuration whose modules differ from the modules of the tensors.

    Args:
        config: The configuration.
        modules: The full names of modules with an adapter in the file.
        base: The modules of the base.
        names: The full names of modules, by bare name.

    Raises:
        CheckpointError: A module lacks its tensors, or does not belong to the base.
        ConfigError: A module has tensors, but is not in the configuration.
    """
    folder, bare = config.folder, {bare_name(name) for name in modules}
    for name in modules:
        if not base.wraps(bare_name(name)):
            raise CheckpointError(
                f"{folder}: {name} has an adapter, but is not a linear map or table of the base: "
                f"it belongs to another model, or to an unused part of it"
            )
    if modules and not config.names_targets():
        raise ConfigError(
            f"{folder}: target_modules is empty, but {next(iter(modules))} has an adapter: name "
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
                f"{folder}: target_modules includes {whole}, but the file has no tensors of it: "
                f"download it again, or name only modules with an adapter"
            )
        if name in bare and not wanted:
            raise ConfigError(
                f"{folder}: {whole} has an adapter, but adapter_config.json excludes it "
                f"({_leaves_out(config, whole)}): make them consistent"
            )
    if config.names_targets() and not modules:
        raise CheckpointError(
            f"{folder}: target_modules matches no module of the base: it belongs to another model"
        )


def _leaves_out(config: PeftConfig, module: str) -> str:
    """Returns the keys that exclude a module."""
    for key in ("exclude_modules", "modules_to_save", "layers_to_transform"):
        fields = {name: value for name, value in config.fields.items() if name != key}
        if key == "modules_to_save":
            fields.pop("task_type", None)
        if dataclasses.replace(config, fields=fields).targets(module):
            return key
    return "target_modules"


def shares_adapter(config: PeftConfig, base: BaseModules) -> bool:
    """Returns whether PEFT shares one adapter between embedding table and output layer.

    ``LoraModel._create_and_replace`` compares the last part of an output layer's name with the full
    name, so that an output layer within another module (``cls.predictions.decoder``) has a separate
    adapter.
    """
    return _ties_targets(config, base) and "." not in (base.head_name or ".")


def _ties_targets(config: PeftConfig, base: BaseModules) -> bool:
    """Returns whether PEFT ties the adapters of embedding table and output layer."""
    wanted = config.fields.get("target_modules") or ()
    if not _ties(config, base) or ties_saved(config, base):
        return False
    if isinstance(wanted, str):
        return any(re.fullmatch(wanted, name) for name in _WORD_TABLES)
    return any(name.rpartition(".")[2] in _WORD_TABLES for name in wanted)


def ties_saved(config: PeftConfig, base: BaseModules) -> bool:
    """Returns whether PEFT stores one table for embedding table and output layer."""
    return _ties(config, base) and any(
        name.rpartition(".")[2] in _WORD_TABLES for name in config.saved
    )


def _ties(config: PeftConfig, base: BaseModules) -> bool:
    tied = base.tied and base.head is not None
    return bool(config.fields.get("ensure_weight_tying")) and tied


def check_saved(
    config: PeftConfig, tensors: Mapping[str, object], base: BaseModules, names: Mapping[str, str]
) -> set[str]:
    """Returns the tensors, by bare name, of ``modules_to_save``.

    Args:
        config: The configuration.
        tensors: The tensors of a file without those of adapters, by bare name.
        base: The modules of the base.
        names: The full names of modules, by bare name.

    Raises:
        CheckpointError: A named module lacks tensors.
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
                f"{folder}: modules_to_save includes {whole}, but the file has no tensor {tensor}: "
                f"download it again, or leave the module out"
            )
        saved.add(tensor)
    for name in config.saved:
        if name not in used and name not in config.task_saves:
            raise CheckpointError(
                f"{folder}: modules_to_save names {name}, which is not a module of the base: it "
                f"belongs to another model"
            )
    return saved
