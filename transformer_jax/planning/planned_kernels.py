"""The attention kernels of a planned run, found by tracing its models."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Key, PyTree

from transformer_jax.functional.kernels.choice import Choice, device_reason, recorded_choices
from transformer_jax.functional.partitioning import on_mesh
from transformer_jax.models.build import Kind, make_model
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.costs.components import head_sizes
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.models.recurrent_config import RecurrentConfig
from transformer_jax.parallel.device_catalog import Target
from transformer_jax.planning.run_programs import Shape, mesh_on, parts_of
from transformer_jax.recipes.settings import Trained
from transformer_jax.training.step import Sums

__all__ = ["FUSED", "attention_kernels", "model_kernels"]

Run = TypeVar("Run", bound=Trained)
# (model, batch, key) -> what it computes
Apply = Callable[[PyTree, PyTree, Key[Array, ""] | None], Array | Sums]

FUSED = {"gpu": "cudnn", "tpu": "splash"}  # the fused kernel of each platform


def attention_kernels(
    run: Trained, target: Target, shape: Shape, *, training: bool
) -> dict[str, Choice]:
    """Returns the kernel of each attention of a step, with the reason if it is not the fused one.

    Recurrent translators have none: their attention is not a plain product of queries and keys.

    Args:
        run: The run.
        target: The devices.
        shape: Shape of a batch or a micro-batch.
        training: Whether the step is for training, or for evaluation without dropout.

    Example:
        >>> from transformer_jax.parallel.device_catalog import plan_target
        >>> from transformer_jax.recipes.sizing import for_device
        >>> from transformer_jax.recipes.registry import named_runs
        >>> target = plan_target("80GiB")
        >>> run = for_device(named_runs("language_model")["gpt2-small"][1], target.device)
        >>> attention_kernels(run, target, Shape(64, 1024), training=True)
        {'decoder': Choice(kernel='chunked', why='it takes no segments')}
    """
    if isinstance(run.model, RecurrentConfig):
        return {}  # no fused kernel for its scores
    return dict(_traced(_of_one_layer(run), target, shape, training))


def model_kernels(
    config: TransformerConfig, target: Target, shape: Shape, source: int, *, training: bool
) -> dict[str, Choice]:
    """Returns the same for a model on one device, without a run, for texts of different lengths.

    Args:
        config: Configuration of a model of any family.
        target: The device.
        shape: Number of texts, and tokens of each; for an encoder-decoder, of the targets.
        source: Number of tokens of an encoder's text.
        training: Whether to use dropout.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> from transformer_jax.parallel.device_catalog import plan_target
        >>> config, target = PRESETS["vit_base"], plan_target("v5e:1x1")
        >>> model_kernels(config, target, Shape(8, 1), 1, training=False)["encoder"].why
        '197 queries and 197 keys are not both multiples of 128'
    """
    kind, arrays, apply = _forward(config, shape, source)
    one = _one_layer(config)
    made = lambda: make_model(kind, one, mlm_head=False, rngs=nnx.Rngs(0))
    found = _choices(made, apply, arrays, target, training)
    return dict(_named(found, _attentions(config), target))


def _forward(config: TransformerConfig, shape: Shape, source: int) -> tuple[Kind, PyTree, Apply]:
    """Returns the kind of a model, the shapes of its inputs, and its forward pass."""

    def array(*sizes: int, dtype: DTypeLike = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((shape.rows, *sizes), dtype)

    if size := config.image.image_size:
        pixels = array(size, size, config.image.num_channels, dtype=jnp.float32)
        return "image", pixels, lambda model, batch, key: model(batch, key=key)
    if not config.decoder_layers:
        encode = lambda model, batch, key: model(*batch, key=key)
        return "encoder", (array(source), array()), encode
    inputs = {}
    if config.encoder_layers:
        inputs = {"source": array(source), "source_lengths": array()}
    kind: Kind = "encoder-decoder" if inputs else "decoder"
    decode = lambda model, batch, key: model.hidden(*batch, key=key)
    return kind, (inputs, array(shape.length)), decode


def _one_layer(config: TransformerConfig) -> TransformerConfig:
    """Reduces each stack to one block, since all blocks are alike."""
    compute = dataclasses.replace(config.compute, remat=False, scan_layers=False)
    one = {n: min(1, getattr(config, n)) for n in ("encoder_layers", "decoder_layers")}
    return dataclasses.replace(config, compute=compute, **one)


def _of_one_layer(run: Run) -> Run:
    training = dataclasses.replace(run.training, gradient_accumulation_steps=1)
    parts: dict[str, Any] = {"model": _one_layer(run.model)}
    if (encoder := getattr(run, "encoder", None)) is not None:
        parts["encoder"] = _one_layer(encoder)
    return dataclasses.replace(run, training=training, **parts)


@functools.lru_cache(maxsize=512)  # a search over settings repeats few of them often
def _traced(
    run: Trained, target: Target, shape: Shape, training: bool
) -> tuple[tuple[str, Choice], ...]:
    # Tracing needs only the shape of the mesh.
    mesh = mesh_on(run, dataclasses.replace(target, devices=(), number=target.number))
    parts = parts_of(run, mesh, shape)
    objective = parts.objective if training else parts.evaluation
    with on_mesh(mesh):
        found = _choices(parts.model, objective, parts.batch, target, training)
    return _named(found, parts.attentions or _attentions(run.model), target)


def _choices(
    make: Callable[[], nnx.Module],
    apply: Apply,
    batch: PyTree,
    target: Target,
    training: bool,
) -> list[Choice]:
    made = lambda: with_attention_kernels(make(), target.device)
    run = lambda batch, key: apply(made(), batch, key if training else None)
    with recorded_choices() as found:
        jax.eval_shape(run, batch, jax.eval_shape(lambda: jax.random.key(0)))
    return found


def _attentions(config: TransformerConfig) -> tuple[tuple[str, TransformerConfig], ...]:
    attends = config.mixer.attends
    names = ["encoder"] * (attends and config.encoder_layers > 0)
    names += ["decoder"] * (attends and config.decoder_layers > 0)
    names += ["cross-attention"] * (config.encoder_layers > 0 and config.decoder_layers > 0)
    return tuple((name, config) for name in names)


def _named(
    found: list[Choice], attentions: tuple[tuple[str, TransformerConfig], ...], target: Target
) -> tuple[tuple[str, Choice], ...]:
    return tuple(
        (name, _explained(choice, config, target))
        for (name, config), choice in zip(attentions, found, strict=True)
    )


def _explained(choice: Choice, config: TransformerConfig, target: Target) -> Choice:
    """Returns a choice with the reason why it is not the fused kernel."""
    platform, asked = target.type.platform, config.attention.implementation
    fused = FUSED.get(platform)
    if choice.why or choice.kernel == fused:
        return choice
    if asked == choice.kernel:
        return choice._replace(why="requested")
    if fused is None:
        return choice._replace(why=f"{platform} has no fused kernel")
    capability = float(target.device.compute_capability or 9.0) if platform == "gpu" else 9.0
    reason = device_reason(
        fused, platform, config.compute.dtype, head_sizes(config).head_dim, capability
    )
    return choice._replace(why=f"{fused}: {reason}" if reason else "")
