"""How a family of published models names its tensors, and what its configuration means."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from transformer_jax.config import TransformerConfig
from transformer_jax.interop.fields import Fields
from transformer_jax.models.making import Kind, TaskKind

__all__ = [
    "ACTIVATIONS",
    "Family",
    "Form",
    "Model",
    "Row",
    "Tensors",
    "attention_rows",
    "linear_rows",
    "norm_rows",
]

# ``turned``: linear maps are [out, in] there. ``row``: an axis of one comes first there.
# ``patches``: linear maps of [rows, columns, channels] are convolutions, [out, channels, rows,
# columns], there.
Form = Literal["same", "turned", "row", "patches"]

# Their names of non-linearities, by ours.
ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
    "tanh": "tanh",
}


class Row(NamedTuple):
    """One parameter of ours and where it lies in theirs."""

    ours: str
    theirs: str
    form: Form = "same"
    part: tuple[int, int, int] = (0, 1, 1)  # of their outputs: from, to, of so many equal parts
    patch: int = 1  # pixels along each side, of ``patches``


class Tensors(NamedTuple):
    """What a folder holds, as far as describing its model needs."""

    shapes: Mapping[str, tuple[int, ...]]
    same: Callable[[str, str], bool]  # whether two tensors are equal in every bit

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self.shapes


@dataclasses.dataclass(frozen=True)
class Model:
    """A published model as one of ours.

    Attributes:
        kind: Which of our families it is.
        config: What it is made of.
        prefix: What the names of its tensors begin with.
        words: Of an encoder, whether it has a head for hidden words.
        next_sentence: Of an encoder, whether it has a head for pairs.
        task: What a fine-tuned model is for: of encoders classify, multi_label, regress, tag, span,
            or replaced (ELECTRA's discriminator); of decoders the first three; of images classify.
        labels: What it tells.
    """

    kind: Kind
    config: TransformerConfig
    prefix: str = ""
    words: bool = False
    next_sentence: bool = False
    task: TaskKind | None = None
    labels: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Family:
    """A table of names, and the configuration both ways.

    Attributes:
        types: Values of ``model_type`` that it reads.
        model: What a configuration with such tensors describes.
        rows: Where each parameter of a model lies.
        ignored: Patterns of names that hold nothing of their own, such as buffers of old files.
        stand_ins: Names of tables, and others under which files may hold them instead.
        renamed: Pairs of a pattern and what stands for it in today's names.
        unused: Patterns of names that a model of this kind has no use for.
        copies: Patterns of names that may hold another tensor once more, as tied tables do.
        fields: The configuration of a model, for writing it out; what it cannot say is found by
            reading it back.
        named: A model of ours with the prefix that its names have once published.
    """

    types: tuple[str, ...]
    model: Callable[[Fields, Tensors], Model]
    rows: Callable[[Model], list[Row]]
    fields: Callable[[Model], dict[str, Any]]
    ignored: tuple[str, ...] = ()
    unused: Callable[[Model], tuple[str, ...]] = lambda model: ()
    copies: tuple[str, ...] = ()
    stand_ins: tuple[tuple[str, str], ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    named: Callable[[Model], Model] = lambda model: model


def linear_rows(ours: str, theirs: str, *, bias: bool = True, form: Form = "turned") -> list[Row]:
    """A linear map.

    Example:
        >>> [row.theirs for row in linear_rows("pooler", "pooler.dense")]
        ['pooler.dense.weight', 'pooler.dense.bias']
    """
    rows = [Row(f"{ours}/kernel", f"{theirs}.weight", form)]
    return [*rows, Row(f"{ours}/bias", f"{theirs}.bias")] if bias else rows


def norm_rows(ours: str, theirs: str, *, bias: bool = True) -> list[Row]:
    """The gain of a norm, and its bias if it has one.

    Example:
        >>> [row.theirs for row in norm_rows("decoder/final_norm", "transformer.ln_f")]
        ['transformer.ln_f.weight', 'transformer.ln_f.bias']
    """
    rows = [Row(f"{ours}/gain", f"{theirs}.weight")]
    return [*rows, Row(f"{ours}/bias", f"{theirs}.bias")] if bias else rows


def attention_rows(
    ours: str,
    theirs: str,
    names: tuple[str, str, str, str],
    *,
    bias: bool = True,
    out_bias: bool | None = None,
) -> list[Row]:
    """Query, key, value and output projections, by their four names.

    Example:
        >>> rows = attention_rows("self_attention", "attn", ("q", "k", "v", "o"), bias=False)
        >>> [row.theirs for row in rows]
        ['attn.q.weight', 'attn.k.weight', 'attn.v.weight', 'attn.o.weight']
    """
    biases = (bias, bias, bias, bias if out_bias is None else out_bias)
    parts = zip(("query", "key", "value", "out"), names, biases, strict=True)
    return [
        row
        for part, name, has in parts
        for row in linear_rows(f"{ours}/{part}", f"{theirs}.{name}", bias=has)
    ]
