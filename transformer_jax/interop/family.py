"""A family of Hugging Face models: names of tensors and the meaning of configurations."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.models.build import Kind, TaskKind
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.contrast_config import ContrastConfig

__all__ = [
    "Model",
    "ModelFamily",
    "TensorLayout",
    "TensorMapping",
    "Tensors",
    "attention_mappings",
    "linear_mappings",
    "norm_mappings",
    "tied_names",
    "ties_head",
]

# Layout of a tensor in Hugging Face files. ``transposed``: linear kernels are [out, in].
# ``leading_axis``: they have an additional first axis of size one; ``first_row``: ours has it.
# ``patches``: our kernel over [rows, columns, channels] is a convolution [out, channels, rows,
# columns].
TensorLayout = Literal["same", "transposed", "leading_axis", "first_row", "patches"]


class TensorMapping(NamedTuple):
    """One of our parameters, and its tensor in Hugging Face files."""

    name: str
    hf_name: str
    layout: TensorLayout = "same"
    part: tuple[int, int, int] = (0, 1, 1)  # of their outputs: from, to, of equal parts
    patch: int = 1  # pixels along each side, of ``patches``


class Tensors(NamedTuple):
    """The names and shapes of the tensors of a folder."""

    shapes: Mapping[str, tuple[int, ...]]
    same: Callable[[str, str], bool]  # whether two tensors are bitwise equal

    def has(self, name: str) -> bool:
        """Returns whether a tensor exists."""
        return name in self.shapes


@dataclasses.dataclass(frozen=True)
class Model:
    """A Hugging Face model, described as one of ours.

    Attributes:
        kind: Its family here.
        config: Its configuration.
        prefix: The prefix of its tensor names.
        words: Whether an encoder has a masked-LM head.
        next_sentence: Whether an encoder has a next-sentence head.
        task: Task of a fine-tuned model: for encoders classify, multi_label, regress, tag, qa, or
            replaced (ELECTRA's discriminator); for decoders the first three; for images classify.
        labels: Names of the classes.
        encoder: Configuration of the image encoder of a captioner or of two towers; then ``config``
            is for texts.
        contrast: Shared settings of two towers.
    """

    kind: Kind | Literal["captioner", "two-tower"]
    config: TransformerConfig
    prefix: str = ""
    words: bool = False
    next_sentence: bool = False
    task: TaskKind | None = None
    labels: tuple[str, ...] = ()
    encoder: TransformerConfig | None = None
    contrast: ContrastConfig | None = None


@dataclasses.dataclass(frozen=True)
class ModelFamily:
    """A family: tensor names, and conversion of configurations in both directions.

    Attributes:
        types: Supported values of ``model_type``.
        model: Function from a configuration and tensors to the model.
        mappings: Function from a model to the mappings of its parameters.
        ignored: Patterns of tensors without information, such as buffers of old files.
        tied_names: Function from a configuration to pairs of a tensor name and an alternative name
            in files, for tied parameters.
        renamed: Pairs of a pattern and its replacement in current names.
        module_names: Pairs of a pattern and its replacement in the names of transformers' modules,
            if different from tensor names.
        unused: Patterns of tensors that a model of this kind does not use.
        copies: Patterns of names that may duplicate another tensor, such as tied tables.
        fields: Function from a model to its ``config.json``; unsupported settings are found by
            reading it back.
        named: Function that sets the prefix of published names.
        for_heads: Function from a model of the family with other heads than its files have to the
            model that the class with these heads is: with or without a pooler, and its activation.
    """

    types: tuple[str, ...]
    model: Callable[[ConfigReader, Tensors], Model]
    mappings: Callable[[Model], list[TensorMapping]]
    fields: Callable[[Model], dict[str, Json]]
    ignored: tuple[str, ...] = ()
    unused: Callable[[Model], tuple[str, ...]] = lambda model: ()
    copies: tuple[str, ...] = ()
    tied_names: Callable[[ConfigReader], tuple[tuple[str, str], ...]] = lambda fields: ()
    renamed: tuple[tuple[str, str], ...] = ()
    module_names: tuple[tuple[str, str], ...] = ()
    named: Callable[[Model], Model] = lambda model: model
    for_heads: Callable[[Model], Model] = lambda model: model


def tied_names(
    *pairs: tuple[str, str], default: bool = True
) -> Callable[[ConfigReader], tuple[tuple[str, str], ...]]:
    """Returns ``tied_names`` for a family whose head is tied unless the configuration unties it.

    Args:
        pairs: The names of each tied tensor.
        default: Whether the family ties if ``tie_word_embeddings`` is missing.

    Example:
        >>> names = tied_names(("wte.weight", "lm_head.weight"))
        >>> names(ConfigReader({})), names(ConfigReader({"tie_word_embeddings": False}))
        ((('wte.weight', 'lm_head.weight'),), ())
    """
    return lambda fields: pairs if fields.flag("tie_word_embeddings", default) else ()


def ties_head(
    fields: ConfigReader, tensors: Tensors, head: str, table: str, *, default: bool = True
) -> bool:
    """Returns whether the output layer is tied to the embedding table.

    It is if the configuration ties them, unless the files have two different tensors.

    Args:
        fields: The configuration.
        tensors: The tensors of the folder.
        head: Name of the output layer's tensor.
        table: Name of the embedding table.
        default: Whether the family ties if ``tie_word_embeddings`` is missing.

    Example:
        >>> stored = Tensors({"wte.weight": (9, 4)}, same=lambda a, b: False)
        >>> ties_head(ConfigReader({}), stored, "lm_head.weight", "wte.weight")
        True
    """
    tied = fields.flag("tie_word_embeddings", default)
    return tied and (not tensors.has(head) or tensors.same(head, table))


def linear_mappings(
    name: str, hf_name: str, *, bias: bool = True, layout: TensorLayout = "transposed"
) -> list[TensorMapping]:
    """Returns the mappings of a linear map.

    Example:
        >>> [mapping.hf_name for mapping in linear_mappings("pooler", "pooler.dense")]
        ['pooler.dense.weight', 'pooler.dense.bias']
    """
    mappings = [TensorMapping(f"{name}/kernel", f"{hf_name}.weight", layout)]
    return [*mappings, TensorMapping(f"{name}/bias", f"{hf_name}.bias")] if bias else mappings


def norm_mappings(name: str, hf_name: str, *, bias: bool = True) -> list[TensorMapping]:
    """Returns the mappings of a norm's gain, and bias if it has one.

    Example:
        >>> [mapping.hf_name for mapping in norm_mappings("decoder/final_norm", "transformer.ln_f")]
        ['transformer.ln_f.weight', 'transformer.ln_f.bias']
    """
    mappings = [TensorMapping(f"{name}/gain", f"{hf_name}.weight")]
    return [*mappings, TensorMapping(f"{name}/bias", f"{hf_name}.bias")] if bias else mappings


def attention_mappings(
    name: str,
    hf_name: str,
    names: tuple[str, str, str, str],
    *,
    bias: bool = True,
    out_bias: bool | None = None,
) -> list[TensorMapping]:
    """Returns the mappings of query, key, value and output projections, by their four names.

    Example:
        >>> names = ("q", "k", "v", "o")
        >>> mappings = attention_mappings("self_attention", "attn", names, bias=False)
        >>> [mapping.hf_name for mapping in mappings]
        ['attn.q.weight', 'attn.k.weight', 'attn.v.weight', 'attn.o.weight']
    """
    biases = (bias, bias, bias, bias if out_bias is None else out_bias)
    parts = zip(("query", "key", "value", "out"), names, biases, strict=True)
    return [
        mapping
        for part, hf_part, has in parts
        for mapping in linear_mappings(f"{name}/{part}", f"{hf_name}.{hf_part}", bias=has)
    ]
