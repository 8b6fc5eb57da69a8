"""Hugging Face checkpoints: the model and its parameters.

Every parameter must be found, and every tensor must be used or known to be redundant; shapes are
checked before memory is allocated.
"""

import concurrent.futures
import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array

from transformer_jax.core.errors import CheckpointError, ConfigError, UserError, no_such_run
from transformer_jax.core.numerics import all_finite
from transformer_jax.core.trees import Nested, default_device, flatten_dict, unflatten_dict
from transformer_jax.interop.config_reader import ConfigReader, diagnose_config, read_config
from transformer_jax.interop.families import FAMILIES
from transformer_jax.interop.family import Model, ModelFamily, TensorMapping, Tensors
from transformer_jax.interop.safetensors_header import FLOATS
from transformer_jax.interop.tensor_files import TensorFolder, open_tensors
from transformer_jax.interop.tensor_layouts import from_hf, hf_shape, needs_copy
from transformer_jax.interop.tensor_memory import Memory, Shared, aligned
from transformer_jax.models.build import Kind, make_model
from transformer_jax.models.captioner import Captioner
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.parameters import Shapes
from transformer_jax.models.two_towers import TwoTowers

__all__ = ["HFCheckpoint", "abstract_model", "open_hf_checkpoint", "parameter_shapes"]

# Model types similar to a known one.
_REFUSED = {
    "nllb-moe": "mixtures of experts are not supported: use a dense NLLB, of model_type m2m_100"
}
_LONGEST = 1 << 20  # computed positions, which need no parameters
_LARGEST_TABLE = 1 << 28  # values of a computed table of positions
_AT_ONCE = 2  # tensors at a time: while one is read, another is transposed


@dataclasses.dataclass(frozen=True)
class HFCheckpoint:
    """A Hugging Face checkpoint with every tensor accounted for, not loaded yet.

    Attributes:
        path: Its folder.
        fields: The content of ``config.json``.
        family: The family of the model.
        model: The model.
        mappings: The mapping of each parameter to a tensor.
        tensors: The tensor files.
        names: Names of tensors in the files, by current names.
    """

    path: Path
    fields: ConfigReader
    family: ModelFamily
    model: Model
    mappings: Sequence[TensorMapping]
    tensors: TensorFolder
    names: Mapping[str, str]

    def load(self, place: Callable[[str, np.ndarray], Array | np.ndarray] | None = None) -> Nested:
        """Loads the parameters as nested dictionaries of float32 arrays.

        Two tensors at a time are read, transposed and placed, so that little memory is needed
        besides the parameters.

        Args:
            place: Function from the path of a parameter and its values to an array, such as one
                sharded on a mesh. None is the default device; on a CPU, parameters are read
                directly into their arrays, and may stay memory-mapped if the file has the right
                layout.

        Raises:
            CheckpointError: A file has changed since it was opened, or a tensor is not finite.
        """
        together: dict[str, list[TensorMapping]] = {}
        for mapping in self.mappings:
            together.setdefault(mapping.hf_name, []).append(mapping)

        stay = place is None and default_device().platform == "cpu"
        memory: Memory = Shared() if stay else aligned
        pages = self.tensors.mapped() if stay else {}
        put = place or (lambda name, array: array if stay else jax.device_put(array))

        def part(name: str) -> dict[str, np.ndarray | Array]:
            mappings, there = together[name], self.names[name]
            moved = (
                any(needs_copy(mapping) for mapping in mappings)
                or self.tensors.entries[there].dtype != "F32"
            )
            array = None if moved else pages.get(there)
            if array is None:
                array = self.tensors.read(there, aligned if moved else memory)
            if not all_finite(array):
                raise CheckpointError(
                    f"{self.path}: the tensor {there} has NaN or infinity: download it again"
                )
            return {
                mapping.name: put(mapping.name, from_hf(array, mapping, memory))
                for mapping in mappings
            }

        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            found = {
                name: leaf for leaves in pool.map(part, together) for name, leaf in leaves.items()
            }
        if stay:
            found = jax.device_put(found)  # all at once, since each call has overhead
        return unflatten_dict({mapping.name: found[mapping.name] for mapping in self.mappings})


def open_hf_checkpoint(path: str | os.PathLike[str]) -> HFCheckpoint:
    """Opens the Hugging Face checkpoint in a folder.

    Raises:
        CheckpointError: It is missing or damaged, its family is unknown, tensors are missing or
            unexpected, or their shapes differ from the configuration.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(no_such_run(path))
    fields = read_config(folder / "config.json")
    fields.only(quantization_config=None)
    family = _family(fields)
    tensors = open_tensors(folder)
    names = _canonical_names(family, fields, tensors)
    shapes = {name: tensors.entries[there].shape for name, there in names.items()}
    same = functools.cache(lambda a, b: _same(tensors, names, shapes, a, b))
    describe = lambda said: _described(family, said, Tensors(shapes, same), tensors)
    try:
        model = describe(fields)
    except ConfigError as error:
        keys = diagnose_config(fields, lambda said: _refusal(describe, said))
        raise CheckpointError(f"{fields.where}: {error}{keys}") from None
    mappings = family.mappings(model)
    for mapping in mappings:
        kind = tensors.entries[names[mapping.hf_name]].dtype if mapping.hf_name in names else "F32"
        if kind not in FLOATS:
            raise CheckpointError(
                f"{path}: the tensor {mapping.hf_name} is {kind}: weights are {', '.join(FLOATS)}"
            )
    if mismatch := _first_mismatch(fields, family, model, mappings, shapes, same):
        keys = diagnose_config(fields, lambda said: _expected(family, describe(said), mismatch))
        raise CheckpointError(f"{path}: the tensor {mismatch.tensor} {mismatch.problem}{keys}")
    return HFCheckpoint(folder, fields, family, model, mappings, tensors, names)


def abstract_model(model: Model) -> nnx.Module:
    """Returns the model with shapes instead of parameters."""
    make: Callable[[], nnx.Module] = lambda: make_model(
        cast(Kind, model.kind),
        model.config,
        mlm_head=model.words,
        next_sentence=model.next_sentence,
        task=model.task,
        labels=len(model.labels),
        rngs=Shapes(0),
    )
    encoder, contrast = model.encoder, model.contrast
    if encoder is not None and contrast is not None:
        make = lambda: TwoTowers(encoder, model.config, contrast, rngs=Shapes(0))
    elif encoder is not None:
        make = lambda: Captioner(encoder, model.config, rngs=Shapes(0))
    return nnx.eval_shape(make)


def _family(fields: ConfigReader) -> ModelFamily:
    kind = fields.values.get("model_type")
    for family in FAMILIES:
        if kind in family.types:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.types)
    reason = _REFUSED.get(str(kind), f"known are {known}")
    if "auto_map" in fields.values:
        reason += "; code in a checkpoint is never executed"
    raise fields.refused("model_type", kind, reason)


def _canonical_names(
    family: ModelFamily, fields: ConfigReader, tensors: TensorFolder
) -> dict[str, str]:
    """Maps current tensor names to names in the files, without redundant tensors."""
    found: dict[str, str] = {}
    for there in tensors.entries:
        if any(re.fullmatch(pattern, there) for pattern in family.ignored):
            continue
        name = there
        for pattern, instead in family.renamed:
            name = re.sub(pattern, instead, name)
        if name in found:
            raise CheckpointError(
                f"{tensors.path}: tensors {found[name]} and {there} are the same parameter"
            )
        found[name] = there
    for original, other in family.tied_names(fields):
        # A bare model has the same table without the prefix, and possibly a head.
        bare = original.partition(".")[2]
        if original not in found and bare not in found and other in found:
            found[original] = found.pop(other)
    return found


def _same(
    tensors: TensorFolder,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    a: str,
    b: str,
) -> bool:
    if a not in names or b not in names or shapes[a] != shapes[b]:
        return False
    return tensors.same(names[a], names[b])


def _described(
    family: ModelFamily, fields: ConfigReader, known: Tensors, tensors: TensorFolder
) -> Model:
    """Returns the model described by a configuration, with plausible sizes.

    Raises:
        CheckpointError: A key has an invalid value.
        ConfigError: Keys contradict each other or the files.
    """
    model = family.model(fields, known)
    _check_sizes(model, tensors)
    return model


def _refusal(describe: Callable[[ConfigReader], Model], fields: ConfigReader) -> str:
    """Returns why a configuration does not describe a model; empty if it does."""
    try:
        describe(fields)
    except UserError as error:
        return str(error)
    return ""


class _Mismatch(NamedTuple):
    """A tensor that is missing, unexpected, or has the wrong shape."""

    tensor: str
    problem: str
    shape: bool = False


def _expected(family: ModelFamily, model: Model, mismatch: _Mismatch) -> object:
    """Returns whether a model has a tensor, and the expected shape if it differs."""
    for mapping in family.mappings(model):
        if mapping.hf_name == mismatch.tensor:
            return (
                hf_shape(parameter_shapes(model)[mapping.name], mapping) if mismatch.shape else True
            )
    return False


def _first_mismatch(
    fields: ConfigReader,
    family: ModelFamily,
    model: Model,
    mappings: Sequence[TensorMapping],
    shapes: Mapping[str, tuple[int, ...]],
    same: Callable[[str, str], bool],
) -> _Mismatch | None:
    """Returns the first tensor of a folder that does not match the model."""
    expected = parameter_shapes(model)
    described = {mapping.name for mapping in mappings}
    if described != expected.keys():
        apart = sorted(described ^ expected.keys())
        raise CheckpointError(f"{Path(fields.where).parent}: no tensor is known for {apart[0]}")
    for mapping in mappings:
        if mapping.hf_name not in shapes:
            return _Mismatch(mapping.hf_name, "is missing")
        found, wanted = shapes[mapping.hf_name], hf_shape(expected[mapping.name], mapping)
        if found != wanted:
            problem = f"is {list(found)}, but {list(wanted)} in config.json"
            return _Mismatch(mapping.hf_name, problem, shape=True)
    used = {mapping.hf_name for mapping in mappings}
    originals = [mapping.hf_name for mapping in mappings if mapping.name in _COPIED]
    for name in shapes:
        if name in used or any(re.fullmatch(pattern, name) for pattern in family.unused(model)):
            continue
        may = any(re.fullmatch(pattern, name) for pattern in family.copies)
        if not may or not any(same(name, other) for other in originals):
            return _Mismatch(
                name,
                "is unexpected, neither a parameter of this model nor a tied copy: without it the "
                "outputs would differ",
            )
    return None


def parameter_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every parameter, by tracing the first block or two per stack."""
    config = model.config
    encoder = model.encoder or config
    layers = {
        "encoder": encoder.encoder_layers,
        "decoder": config.decoder_layers,
        "text": config.encoder_layers or config.decoder_layers,
    }
    few = model.encoder and _with_few_layers(model.encoder)
    small = abstract_model(dataclasses.replace(model, config=_with_few_layers(config), encoder=few))
    state = nnx.to_pure_dict(nnx.split(small)[1])
    found: dict[str, tuple[int, ...]] = {}
    for name, leaf in flatten_dict(state).items():
        side, blocks, rest = name.partition(f"/blocks/{_distinct_layers(config) - 1}/")
        count = layers.get(side.partition("/")[0], 0)
        alike = range(_distinct_layers(config) - 1, count)
        names = [f"{side}/blocks/{i}/{rest}" for i in alike] if blocks else [name]
        found |= {each: tuple(leaf.shape) for each in names}
    return found


def _distinct_layers(config: TransformerConfig) -> int:
    """Returns the number of first layers after which all have the parameters of the last."""
    return 1 if config.norm.first else 2


def _with_few_layers(config: TransformerConfig) -> TransformerConfig:
    """Returns the configuration with at most the distinct layers of each stack."""
    layers = _distinct_layers(config)
    return dataclasses.replace(
        config,
        encoder_layers=min(layers, config.encoder_layers),
        decoder_layers=min(layers, config.decoder_layers),
        scores=dataclasses.replace(config.scores, sliding_window_layers=None),
    )


# Tensors that old files may have more than once.
_COPIED = ("embedding/table", "decoder_embedding/table", "head/bias", "head/table")


def _check_sizes(model: Model, tensors: TensorFolder) -> None:
    """Refuses sizes that exceed the files, before the model is created.

    Raises:
        ConfigError: A size is out of range.
    """
    for config in filter(None, (model.config, model.encoder)):
        _check_config_sizes(config, tensors)


def _check_config_sizes(config: TransformerConfig, tensors: TensorFolder) -> None:
    most, decoder = tensors.nbytes, config.decoder()
    layers = config.encoder_layers + config.decoder_layers
    sizes = {
        "number of layers": layers * config.d_model,
        "vocabulary": max(config.vocab_size, decoder.vocab_size) * config.embedding_size,
        "embedding width": config.embedding_size * config.d_model,
        "width": config.d_model**2,
        "feed-forward width": max(config.feed_forward.d_ff, decoder.feed_forward.d_ff)
        * config.d_model,
        "heads": config.attention.num_heads * config.head_dim * config.d_model,
    }
    if config.image.image_size:
        sizes["patches"] = config.image.patch_size**2 * config.image.num_channels * config.d_model
    places = config.positions
    if places.learned:
        sizes["number of positions"] = (places.max_length + places.offset) * config.embedding_size
    for what, elements in sizes.items():
        if elements > most:
            raise ConfigError(
                f"its {what} means {elements:,} values, which exceed the {most:,} bytes of "
                f"the tensors"
            )
    if layers > len(tensors.entries):
        raise ConfigError(f"{layers} layers, but fewer tensors")
    if places.max_length > _LONGEST:
        raise ConfigError(f"{places.max_length} positions: at most {_LONGEST} are supported")
    if places.kind.startswith("sinusoidal") and places.max_length * config.d_model > _LARGEST_TABLE:
        raise ConfigError(f"{places.max_length} positions of size {config.d_model}: too many")
