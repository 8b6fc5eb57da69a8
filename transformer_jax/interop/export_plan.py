"""Chooses a published family for a model, and the layout of its tensors."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Array, PyTree

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.core.trees import flatten_dict, unflatten_dict
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families import FAMILIES, family_of
from transformer_jax.interop.family import Model, ModelFamily, Tensors
from transformer_jax.models.config import (
    HeadConfig,
    LabelConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.contrast_config import ContrastConfig
from transformer_jax.models.prepare import unstack_blocks
from transformer_jax.models.transformer.layers import sinusoids

__all__ = [
    "ExportPlan",
    "choose_family",
    "fields_of",
    "split_sinusoids",
    "unscan_layers",
    "with_table",
]


@dataclasses.dataclass(frozen=True)
class ExportPlan:
    """A model expressed in a published family.

    Attributes:
        family: The family.
        model: The model in the family.
        fields: The ``config.json``.
        change: Converts the parameters to the family.
    """

    family: ModelFamily
    model: Model
    fields: dict[str, Json]
    change: Callable[[PyTree], PyTree] = lambda params: params


def unscan_layers(model: Model, params: PyTree) -> tuple[Model, PyTree]:
    """Returns the model with separate blocks, as in all formats.

    In a scanned stack, parameters have an axis of layers.

    Args:
        model: A model.
        params: The parameters of the model, in nested dictionaries.
    """
    if not model.config.compute.scan_layers:
        return model, params
    compute = dataclasses.replace(model.config.compute, scan_layers=False)
    encoder = model.encoder
    if encoder is not None:
        inner = dataclasses.replace(model, config=encoder, encoder=None)
        image, encoded = unscan_layers(inner, params["encoder"])
        params, encoder = params | {"encoder": encoded}, image.config
    stacks = [side for side in ("encoder", "decoder") if "blocks" in params.get(side, {})]
    apart = {side: params[side] | {"blocks": unstack_blocks(params[side]["blocks"])}
             for side in stacks}  # fmt: skip
    config = dataclasses.replace(model.config, compute=compute)
    return dataclasses.replace(model, config=config, encoder=encoder), params | apart


def split_sinusoids(params: PyTree, width: int) -> PyTree:
    """Returns the parameters of an equivalent model with all sines before all cosines.

    Apart from sinusoids, a Transformer does not depend on the order of the axes of the residual
    stream: even axes are moved before odd ones in every parameter that reads or writes the
    stream. An odd width has one more sine.

    Args:
        params: Parameters of a model with interleaved sinusoids.
        width: D.
    """
    order = np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])

    def moved(name: str, leaf: Array | np.ndarray) -> np.ndarray:
        array = np.asarray(leaf)
        inside = name.split("/")[-3:-1]  # such as self_attention, out
        if name.endswith("table") and not name.startswith(("encoder/relative", "decoder/relative")):
            return array[:, order]
        if name.endswith("gain") or inside[-1].endswith("norm"):
            return array if "query_norm" in name or "key_norm" in name else array[order]
        if inside[-1] in ("out", "down"):
            return array[..., order]
        return array[order] if name.endswith("kernel") else array

    return unflatten_dict({name: moved(name, leaf) for name, leaf in flatten_dict(params).items()})


def choose_family(model: Model, fields: Mapping[str, Json] | None = None) -> ExportPlan:
    """Chooses the family for a model.

    Args:
        model: The model.
        fields: The configuration that the model was published with, if any.

    Raises:
        ConfigError: No family has this architecture; the message has the differences from the
            nearest.
    """
    if (kind := model.config.mixer.kind) != "attention":
        raise ConfigError(
            f"no Hugging Face model type has this architecture: mixer.kind {kind} instead of "
            f"attention"
        )
    if fields is not None:
        family = family_of(fields)
        return ExportPlan(family, model, {k: v for k, v in fields.items() if k != "torch_dtype"})
    model, first = _with_learned_encoder(model)
    nearest: tuple[int, str] | None = None
    for other, change in _ways(model):
        for wanted, family in itertools.product((other, _with_biases(other)), FAMILIES):
            try:
                there = family.named(wanted)
                own = family.fields(there)
                back = family.model(ConfigReader(own), _tensors_of(family, there))
            except (ConfigError, CheckpointError, KeyError):
                continue
            apart = _differences(there, back)
            if not apart:
                both = lambda params, change=change: change(first(params))
                return ExportPlan(family, there, own, both)
            if nearest is None or len(apart) < nearest[0]:
                nearest = len(apart), f"{family.types[0]} has {'; '.join(apart[:4])}"
    reason = "" if nearest is None else f": {nearest[1]}"
    raise ConfigError(f"no Hugging Face model type has this architecture{reason}")


def fields_of(model: Model, fields: Mapping[str, Json]) -> dict[str, Json] | None:
    """Returns the configuration that a model was published with, updated by later changes.

    Args:
        model: The model, such as one with grown tables.
        fields: The published configuration; only its family is tried.

    Returns:
        The configuration, or None if the family does not have this architecture.
    """
    family = family_of(fields)
    there = family.named(model)
    try:
        made = {**fields, **family.fields(there)}
        back = family.model(ConfigReader(made), _tensors_of(family, there))
    except (ConfigError, CheckpointError, KeyError):
        return None
    return None if _differences(there, back) else made


def _ways(model: Model) -> Iterator[tuple[Model, Callable[[PyTree], PyTree]]]:
    """Yields a model and equivalent models, with the conversion of parameters."""
    config = model.config
    if not config.positions.kind.startswith("sinusoidal"):
        yield model, lambda params: params
        return
    kind = lambda name: dataclasses.replace(
        model,
        config=dataclasses.replace(
            config, positions=dataclasses.replace(config.positions, kind=name, offset=0)
        ),
    )
    if config.positions.kind == "sinusoidal_fairseq":
        yield model, lambda params: params
    yield kind("learned"), lambda params: with_table(params, config)
    if config.positions.kind == "sinusoidal":
        yield kind("sinusoidal_halves"), lambda params: split_sinusoids(params, config.d_model)
    elif config.positions.kind == "sinusoidal_halves":
        yield model, lambda params: params


def _with_learned_encoder(model: Model) -> tuple[Model, Callable[[PyTree], PyTree]]:
    """Returns the model with an image encoder's sinusoids as a table, and its parameters."""
    encoder = model.encoder
    if encoder is None or not encoder.positions.kind.startswith("sinusoidal"):
        return model, lambda params: params
    positions = dataclasses.replace(encoder.positions, kind="learned", offset=0)
    learned = dataclasses.replace(encoder, positions=positions)

    def change(params: PyTree) -> PyTree:
        part = params["encoder"]
        stack = part["encoder"] | {"positions": {"table": np.asarray(sinusoids(encoder))}}
        return params | {"encoder": part | {"encoder": stack}}

    return dataclasses.replace(model, encoder=learned), change


def with_table(params: PyTree, config: TransformerConfig) -> PyTree:
    """Returns the parameters of the model with its sinusoids as tables, as if learned."""
    table = np.asarray(sinusoids(config))
    stacks = [side for side in ("encoder", "decoder") if side in params]
    return params | {side: params[side] | {"positions": {"table": table}} for side in stacks}


def _with_biases(model: Model) -> Model:
    """Returns the model with zero biases, which most published families require."""
    config = model.config
    if config.norm.kind == "rms":
        return model
    head = config.head
    if config.encoder_layers:
        head = dataclasses.replace(head, bias=True)
    changed = dataclasses.replace(
        config,
        attention=dataclasses.replace(config.attention, bias=True, out_bias=True),
        feed_forward=dataclasses.replace(config.feed_forward, bias=True),
        norm=dataclasses.replace(config.norm, bias=True),
        head=head,
    )
    return dataclasses.replace(model, config=changed)


def _tensors_of(family: ModelFamily, model: Model) -> Tensors:
    """Returns the published names of a model's parameters, without tensors."""
    names = {row.hf_name: (1,) for row in family.mappings(model)}
    return Tensors(names, lambda a, b: a == b)


# Settings that do not affect the results of inference.
_FREE = ("compute", "dropout", "activation_dropout", "residual_dropout", "implementation")


def _differences(wanted: Model, back: Model) -> list[str]:
    """Names the settings of a model that a configuration does not express."""
    found = []
    for field in dataclasses.fields(Model):
        one, two = getattr(wanted, field.name), getattr(back, field.name)
        if isinstance(one, TransformerConfig) and isinstance(two, TransformerConfig):
            within = "" if field.name == "config" else f"{field.name}."
            found += _settings_apart(_usual(one, wanted), _usual(two, wanted), within)
        elif isinstance(one, ContrastConfig) and isinstance(two, ContrastConfig):
            found += _settings_apart(one, two, f"{field.name}.")
        elif one != two and not (field.name == "labels" and wanted.task == "regress"):
            found.append(f"{field.name} {two} instead of {one}")
    return found


def _usual(config: TransformerConfig, model: Model) -> TransformerConfig:
    """Returns a configuration with None resolved, without settings of heads the model lacks."""
    both = config.encoder_layers and config.decoder_layers
    decoder = config.decoder()
    shared = config.embedding.share_encoder_decoder_embeddings or not both
    heads, given = config.attention.num_heads, config.attention.head_dim
    layers = range(max(config.encoder_layers, config.decoder_layers))
    local = tuple(i for i in layers if config.scores.window_of(i) is not None)
    return dataclasses.replace(
        config,
        embedding=dataclasses.replace(
            config.embedding,
            scale=config.embedding_scale,
            share_encoder_decoder_embeddings=shared,
            embedding_size=config.embedding_size,
        ),
        attention=dataclasses.replace(
            config.attention,
            num_kv_heads=None
            if config.attention.num_kv_heads == heads
            else config.attention.num_kv_heads,
            head_dim=config.head_dim if heads == decoder.attention.num_heads else given,
            value_dim=config.attention.value_dim or config.head_dim,
        ),
        scores=dataclasses.replace(
            config.scores,
            scale=config.scores.scale or config.head_dim**-0.5,
            sliding_window=config.scores.sliding_window if local else None,
            sliding_window_every=1,
            sliding_window_layers=local or None,
            full_attention_every=None,
        ),
        norm=dataclasses.replace(config.norm, final=config.final_norm),
        positions=_usual_positions(config),
        head=_usual_head(config, model),
        labels=_usual_labels(config, model),
        decoder_vocab_size=None if shared else decoder.vocab_size,
        decoder_attention_heads=decoder.attention.num_heads if both else None,
        decoder_ffn_dim=decoder.feed_forward.d_ff if both else None,
    )


def _usual_positions(config: TransformerConfig) -> PositionConfig:
    """Returns the configuration without rotary dimensions if they cover the whole head."""
    places = config.positions
    whole = places.rope_dim == config.head_dim
    return dataclasses.replace(places, rope_dim=None) if whole else places


def _usual_head(config: TransformerConfig, model: Model) -> HeadConfig:
    """Returns the configuration without settings of the head, for a model without logits."""
    head, words = config.head, model.words
    if words or (config.decoder_layers and model.kind != "decoder-task"):
        activation = head.mlm_transform_activation or config.feed_forward.activation
        return dataclasses.replace(head, mlm_transform_activation=activation if words else None)
    kept = HeadConfig(pooler=head.pooler, pooler_activation=head.pooler_activation)
    if model.kind != "encoder-task" or not config.labels.transform:
        return kept
    return dataclasses.replace(
        kept,
        mlm_transform_activation=head.mlm_transform_activation or config.feed_forward.activation,
        mlm_transform_bias=head.mlm_transform_bias,
    )


def _usual_labels(config: TransformerConfig, model: Model) -> LabelConfig:
    """Returns the settings of labels without those that the model does not read."""
    if model.kind != "encoder-task":
        return LabelConfig()
    texts = model.task not in ("tag", "qa")
    return config.labels if texts else LabelConfig(config.labels.transform)


def _settings_apart(one: Any, two: Any, where: str) -> list[str]:
    found = []
    for field in dataclasses.fields(one):
        if field.name in _FREE:
            continue
        a, b = getattr(one, field.name), getattr(two, field.name)
        if dataclasses.is_dataclass(a):
            found += _settings_apart(a, b, f"{where}{field.name}.")
        elif a != b and not (isinstance(a, float) and isinstance(b, float) and math.isclose(a, b)):
            found.append(f"{where}{field.name} {b} instead of {a}")
    return found
