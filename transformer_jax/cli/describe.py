"""``transformer-jax describe``: architecture and cost of a model."""

import dataclasses
import difflib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from transformer_jax.cli.output import wrote
from transformer_jax.cli.support.run_command import RunCommand
from transformer_jax.core.config_fields import OutputPath, Range
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.storage.urls import with_urls
from transformer_jax.core.text_tables import aligned, short
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.recurrent_config import RECURRENT_PRESETS, ModelConfig, RecurrentConfig

if TYPE_CHECKING:
    from transformer_jax.inference.facts import Facts
    from transformer_jax.models.costs.accounting import Decoding
    from transformer_jax.models.costs.components import Component

__all__ = ["Describe", "report"]

COLUMNS = ("part", "", "shapes", "parameters", "FLOPs", "per token", "bytes moved")


_Length = Annotated[int, Range(1, 10_000_000)]


@dataclasses.dataclass(frozen=True)
class Describe(RunCommand):
    """Print a model's architecture, parameters, FLOPs and bytes."""

    run: tyro.conf.Positional[Path | None] = None
    """Run directory or Hugging Face folder."""
    preset: str | None = None
    """Preset instead of a run, such as vaswani_base."""
    batch_size: Annotated[int, Range(1, 65_536)] = 1
    """Batch size."""
    source_length: _Length = 32
    """Number of tokens of a source, or of an encoder's text."""
    target_length: _Length = 32
    """Number of tokens of a target, or of a language model's text."""
    plan: str | None = None
    """Devices for which to print the attention kernels, such as h200:1 or v5e:2x4."""
    pictures: OutputPath | None = None
    """Folder for plots of positions, masks and attention."""

    def __call__(self) -> int:
        """Prints the description."""
        from transformer_jax.inference.facts import FAMILY_NAMES

        facts = self.facts()
        config = self.preset_config() if facts is None else facts.layers
        if isinstance(config, RecurrentConfig):
            self.refuse(
                "a recurrent translator",
                plan="attends with no fused kernel",
                pictures="has neither positions nor masks",
            )
        found = None if facts is None else facts.kind
        # No single configuration describes a captioner or a model with two towers.
        if facts and (found not in FAMILY_NAMES or found in ("captioner", "two-tower")):
            print(self.parts(facts))
            return 0
        text = report(
            config,
            name=self.preset or with_urls(str(self.run)),
            heads=_pooler(config) if facts is None else heads_of(facts),
            head=found != "decoder-task",  # a fine-tuned decoder has no language-model head
            batch=self.batch_size,
            source_length=self.source_length,
            target_length=self.target_length,
            table=_rich_table if sys.stdout.isatty() else _plain_table,
        )
        print(text)
        if self.plan is not None and isinstance(config, TransformerConfig):
            print(self.kernels(config, self.plan))
        if self.pictures is not None and isinstance(config, TransformerConfig):
            draw(config, self.pictures, self.target_length)
            wrote(self.pictures)
        return 0

    def refuse(self, model: str, **lacks: str) -> None:
        """Refuses flags for properties that the model lacks.

        Args:
            model: The model, for the message.
            **lacks: The missing property, by flag.

        Raises:
            ConfigError: It names the flag.
        """
        for name, lack in lacks.items():
            if getattr(self, name) is not None:
                raise ConfigError(f"--{name}: {model} {lack}: leave it out")

    def parts(self, facts: "Facts") -> str:
        """Returns a table of the parts of a model that no single known configuration describes.

        Raises:
            ConfigError: A flag is for known families only.
        """
        from transformer_jax.inference.pretrained import abstract_model
        from transformer_jax.models.layers.module import summarize

        title = facts.title
        known = "has parts that only its recipe knows"
        self.refuse(title, plan=known, pictures=known)
        return f"{with_urls(str(self.run))}: {title}\n\n{summarize(abstract_model(facts))}"

    def kernels(self, config: TransformerConfig, name: str) -> str:
        """Returns the kernel of each attention on a device, and why it is not a fused one.

        Raises:
            ConfigError: There is no such device.
        """
        from transformer_jax.parallel.device_catalog import plan_target
        from transformer_jax.planning.planned_kernels import model_kernels
        from transformer_jax.planning.run_programs import Shape
        from transformer_jax.recipes.sizing import dtype_of

        target = plan_target(name)
        if self.preset is not None:
            # A run stores its dtype; for a preset, it follows from the devices.
            compute = dataclasses.replace(config.compute, dtype=dtype_of(target.device))
            config = dataclasses.replace(config, compute=compute)
        shape = Shape(self.batch_size, self.target_length)
        lines = [f"attention on a device of {name}, in {config.compute.dtype}"]
        for what in ("training", "evaluation"):
            found = model_kernels(
                config, target, shape, self.source_length, training=what == "training"
            )
            for attention, (kernel, why) in found.items():
                lines.append(f"{what}: {attention}: {kernel}{f': {why}' if why else ''}")
        return "\n".join(lines)

    def facts(self) -> "Facts | None":
        """Returns the facts of the run; None for a preset.

        Raises:
            ConfigError: A run and a preset are both present or both absent.
            CheckpointError: There is no run, or it is damaged.
        """
        from transformer_jax.inference.pretrained import read_facts

        if (self.run is None) == (self.preset is None):
            raise ConfigError(
                f"describe takes either a run directory or --preset; presets are "
                f"{', '.join([*PRESETS, *RECURRENT_PRESETS])}"
            )
        return None if self.run is None else read_facts(self.run, opening=self.opening())

    def preset_config(self) -> ModelConfig:
        """Returns the configuration of the preset.

        Raises:
            ConfigError: The preset is unknown.
        """
        presets: dict[str, ModelConfig] = {**PRESETS, **RECURRENT_PRESETS}
        name = self.preset or ""
        if name in presets:
            return presets[name]
        near = difflib.get_close_matches(name, presets, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"--preset {name}: unknown preset: {hint}there are {', '.join(presets)}")


def _pooler(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the pooler of an encoder with one."""
    if isinstance(config, RecurrentConfig) or not config.head.pooler:
        return {}
    return {"pooler/kernel": (config.d_model, config.d_model), "pooler/bias": (config.d_model,)}


def heads_of(facts: "Facts") -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the head parameters of a run's task."""
    from transformer_jax.inference.facts import ENCODERS
    from transformer_jax.inference.pretrained import abstract_model

    if facts.kind not in (*ENCODERS, "decoder-task", "image"):
        return {}
    from flax import nnx

    from transformer_jax.core.trees import flatten_dict

    params = nnx.to_pure_dict(nnx.split(abstract_model(facts))[1])
    return {
        name: leaf.shape
        for name, leaf in flatten_dict(params).items()
        if name.split("/")[0] not in ("embedding", "class_embedding", "encoder", "decoder")
    }


def _rows(parts: "Iterable[Component]") -> list[tuple[str, ...]]:
    """Returns a table row per component."""
    return [
        (
            part.path,
            f"{part.copies} ×" if part.copies > 1 else "",
            ", ".join("×".join(map(str, shape)) for shape in part.shapes),
            f"{part.parameters:,}" if part.parameters else "",
            short(part.forward),
            short(part.forward / part.tokens) if part.tokens else "",
            short(part.bytes),
        )
        for part in parts
    ]


def _decoding_line(cost: "Decoding", both: bool) -> str:
    """Returns the line about the cost of a generated token; ``both`` means an encoder-decoder."""
    start = f"{short(cost.prefill)}FLOP to start, then " if both else ""
    return (
        f"decoding        {start}{short(cost.flops)}FLOP per token and at least "
        f"{short(cost.bytes)}B moved per step, with a cache of {short(cost.cache_bytes)}B per "
        f"{'sentence' if both else 'text'}"
    )


def report(
    config: ModelConfig,
    *,
    name: str,
    heads: Mapping[str, tuple[int, ...]] | None = None,
    head: bool = True,
    batch: int = 1,
    source_length: int = 32,
    target_length: int = 32,
    table: "Table | None" = None,
) -> str:
    """Returns the architecture, the cost of each part, and the totals.

    ``heads`` are the shapes of a task's parameters, which count as parameters but not as FLOPs.
    ``head`` is whether a decoder has a language-model head.

    Source: Vaswani et al. 2017, figure 1; Bishop and Bishop 2024, section 12.1.8.
    """
    from transformer_jax.models.costs.accounting import components, decoding, model_cost
    from transformer_jax.visual.architecture import diagram

    side, words = "source ", "tokens"
    if isinstance(config, TransformerConfig) and config.image.image_size:
        source_length, side, words = config.image.sequence_length, "", "vectors of an image"
    sizes = {"batch": batch, "source_length": source_length, "target_length": target_length}
    table = table or _plain_table
    total = model_cost(config, **sizes, head=head)
    both = bool(config.encoder_layers and config.decoder_layers)
    lengths = " and ".join(
        f"{length} {side}{words}"
        for side, length, layers in (
            (side, source_length, config.encoder_layers),
            ("target " if both else "", target_length, config.decoder_layers),
        )
        if layers
    )
    tokens = batch * (target_length if config.decoder_layers else source_length)
    of = "target token" if both else words.split()[0].removesuffix("s")
    each = lambda flops: f"{short(flops)}FLOP, {short(flops / tokens)}FLOP per {of}"
    more = {name: math.prod(shape) for name, shape in (heads or {}).items()}
    count = total.parameters + sum(more.values())
    lines = [
        f"{name}: {plural(count, 'parameter')} ({count / 1e6:.2f} M)",
        "",
        diagram(config, head=head),
        "",
        f"One forward pass of {batch} × {lengths}; minimum of bytes moved, {config.compute.dtype}:",
        "",
        table(COLUMNS, _rows(components(config, **sizes, head=head))),
        "",
        f"forward pass {each(total.forward)}, at least {short(total.bytes)}B moved",
        f"training step   {each(total.training)}, {short(total.training_bytes)}B of parameters, "
        f"gradients and Adam's moments",
        f"parameters      {short(total.parameter_bytes)}B in float32",
    ]
    if heads:
        added = [
            (path, "", "×".join(map(str, shape)), f"{more[path]:,}")
            for path, shape in heads.items()
        ]
        found = f"The heads of this model, {plural(sum(more.values()), 'parameter')}"
        lines += ["", f"{found}, not counted above:", "", table(COLUMNS[:4], added)]
    if config.decoder_layers and head:
        lines.append(_decoding_line(decoding(config, **sizes), both))
    return "\n".join(lines)


def _plain_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns the table as plain text, with sizes and counts aligned right."""
    return aligned([head, *rows], left=3)


def _rich_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns the table with rules, as wide as the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(head):
        left = i < 3
        table.add_column(name, justify="left" if left else "right", no_wrap=i != 2)
    previous = None
    for row in rows:
        stack = row[0].split("/")[0]
        if previous not in (None, stack):
            table.add_section()
        table.add_row(*row)
        previous = stack
    console = Console(color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")


Table = type(_plain_table)


def draw(config: TransformerConfig, folder: Path, length: int) -> None:
    """Writes pictures of masks, attention and sinusoidal positions into ``folder``.

    ``masks.png`` has the masks of rows without padding, ``padding.png`` the masks of padded and
    packed rows, ``attention.png`` the arrays of a self-attention layer with their shapes.

    Raises:
        ConfigError: The folder cannot be written.
    """
    import numpy as np

    from transformer_jax.functional.masks import Mask
    from transformer_jax.models.transformer.layers import sinusoids
    from transformer_jax.visual.attention_flow import HeadSizes, plot_multi_head_attention
    from transformer_jax.visual.position_pictures import padded_masks, plot_masks, plot_positions

    window = config.scores.sliding_window
    masks = {}
    if config.encoder_layers:
        masks["encoder"] = Mask(window=window)
    if config.decoder_layers:
        masks["decoder"] = Mask(causal=True, window=window)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if config.positions.kind.startswith(("sinusoidal", "concatenated")):
            table = np.asarray(sinusoids(config, length))
            layout = config.positions.kind.partition("_")[2] or "interleaved"
            plot_positions(table, folder / "positions.png", title=f"Positions, {layout}")
        shown = min(length, 32)
        plot_masks(masks, folder / "masks.png", length=shown)
        plot_masks(padded_masks(shown, [*masks], window), folder / "padding.png", length=shown)
        if config.mixer.attends and config.scores.scale is None:  # divides by √D_k
            own, size = config.attention, config.head_dim
            sizes = HeadSizes(shown, config.d_model, size, own.value_dim or size)
            plot_multi_head_attention(sizes, own.num_heads, folder / "attention.png")
    except OSError as error:
        raise ConfigError(f"--pictures {folder}: cannot be written: {error.strerror}") from None
