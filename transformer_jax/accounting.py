"""What a Transformer costs, counted on paper: parameters, FLOPs and bytes, part by part.

A product of [m, k] by [k, n] is ``2 m k n`` FLOPs; work element by element is counted as XLA
counts it, one for each operation and nothing for exp, log, tanh or rsqrt. Nothing is compiled.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

from transformer_jax.config import TransformerConfig

__all__ = [
    "Component",
    "Decoding",
    "Totals",
    "components",
    "count_parameters",
    "decoding",
    "model_cost",
]

# Operations on one element, by what XLA lists for them: (forward, backward).
SOFTMAX = (5, 5)  # maximum, subtract, sum, divide, mask | two products, a sum, a difference, a mask
NORMS = {"layer": (7, 12), "rms": (4, 9)}  # without gain and bias
ACTIVATIONS = {  # tanh, exp and erf count nothing, what surrounds them does
    "relu": (1, 2),
    "gelu": (4, 6),
    "gelu_tanh": (8, 14),
    "silu": (4, 8),
    "quick_gelu": (5, 9),
    "tanh": (0, 3),
}
LOSS = (6, 3)  # log-softmax and the target's share of it, of one logit
OPTIMIZER = 14  # Adam with clipping, on one parameter


@dataclasses.dataclass(frozen=True)
class Component:
    """One kind of component, all its copies together.

    ``forward`` and ``backward`` are FLOPs of one pass over ``tokens`` tokens; ``bytes`` is what a
    forward pass moves at least: parameters, inputs and outputs once each.
    """

    path: str  # "encoder/self_attention/query": parameter paths without the layer's number
    copies: int  # L, or 1
    shapes: tuple[tuple[int, ...], ...]  # of one copy's parameters
    forward: int
    backward: int
    bytes: int
    tokens: int  # how many tokens pass: B·S or B·T

    @property
    def parameters(self) -> int:
        """Numbers to learn, all copies."""
        return self.copies * sum(math.prod(shape) for shape in self.shapes)

    @property
    def stack(self) -> str:
        """The first word of the path: embedding, encoder, decoder, head."""
        return self.path.split("/")[0]

    @property
    def in_block(self) -> bool:
        """Whether each of the stack's blocks has one."""
        words = ("self_attention", "cross_attention", "feed_forward")
        return self.path.partition("/")[2].startswith(words)


@dataclasses.dataclass(frozen=True)
class Totals:
    """Sums over all parts; ``training`` is forward, backward and update of one step."""

    parameters: int
    forward: int
    training: int
    parameter_bytes: int  # parameters as they are stored, in float32
    training_bytes: int  # parameters, gradients and Adam's two averages
    bytes: int  # moved at least by one forward pass


@dataclasses.dataclass(frozen=True)
class Decoding:
    """What one step of decoding costs, with the keys and values of earlier steps at hand."""

    start: int  # FLOPs before the first token: the encoder, and cross-attention's keys and values
    flops: float  # for one token of one sentence, the mean over the target's length
    bytes: float  # moved at least by one step of the whole batch: parameters once, caches once
    cache_bytes: int  # one sentence's keys and values at full length


def components(
    config: TransformerConfig,
    *,
    batch: int = 1,
    source_length: int = 1,
    target_length: int = 1,
    head: bool = True,
) -> tuple[Component, ...]:
    """All parts of a model, in the order that data meets them.

    A model without encoder layers has no cross-attention; one without decoder layers ends with
    the encoder, since its head depends on the task, and so does a decoder without ``head`` over
    the vocabulary. Images are as long as their size says.

    Source: Bishop 2024, section 12.1.8 (row B13): projections are O(N D²), scores O(N² D).

    Example:
        >>> from transformer_jax.model_presets import PRESETS
        >>> [p.path for p in components(PRESETS["vaswani_base"])][:3]
        ['embedding', 'encoder/positions', 'encoder/self_attention/query']
    """
    listed = _parts(config, batch, source_length, target_length)
    return tuple(part for part in listed if head or part.path != "head")


def count_parameters(config: TransformerConfig) -> int:
    """How many numbers the model learns.

    Source: row U15 (Vaswani et al. 2017, table 3, prints 65M).

    Example:
        >>> from transformer_jax.model_presets import PRESETS
        >>> count_parameters(PRESETS["vaswani_base"])
        63045632
    """
    return sum(part.parameters for part in components(config))


def model_cost(
    config: TransformerConfig,
    *,
    batch: int = 1,
    source_length: int = 1,
    target_length: int = 1,
    head: bool = True,
) -> Totals:
    """The cost of a whole forward pass and of a whole training step.

    A training step is forward, loss, backward (twice the products of the forward pass; with
    rematerialisation the blocks' forward once more) and the update.

    Example:
        >>> from transformer_jax.model_presets import PRESETS
        >>> sizes = {"batch": 16, "source_length": 256, "target_length": 256}
        >>> cost = model_cost(PRESETS["vaswani_base"], **sizes)
        >>> round(cost.training / cost.forward, 2)
        3.0
    """
    sizes = {"batch": batch, "source_length": source_length, "target_length": target_length}
    listed = components(config, **sizes, head=head)
    count = sum(part.parameters for part in listed)
    forward = sum(part.forward for part in listed)
    vocab = config.decoder().vocab_size
    logits = batch * target_length * vocab if config.decoder_layers and head else 0
    again = sum(p.forward for p in listed if p.in_block) if config.compute.remat else 0
    training = forward + sum(part.backward for part in listed) + again
    training += sum(LOSS) * logits + OPTIMIZER * count
    return Totals(
        parameters=count,
        forward=forward,
        training=training,
        parameter_bytes=4 * count,
        training_bytes=16 * count,
        bytes=sum(part.bytes for part in listed),
    )


def decoding(
    config: TransformerConfig, *, batch: int = 1, source_length: int = 1, target_length: int = 1
) -> Decoding:
    """The cost of generating ``target_length`` tokens one by one with a cache.

    Example:
        >>> from transformer_jax.model_presets import PRESETS
        >>> cost = decoding(PRESETS["vaswani_base"], source_length=10, target_length=10)
        >>> cost.cache_bytes  # 6 layers, keys and values, 10 + 10 positions, 512 numbers of 4 bytes
        491520
    """
    B, S, T = batch, source_length, target_length
    once = {p.path: p for p in components(config, batch=B, source_length=S, target_length=1)}
    first = [p for p in once.values() if _before_decoding(p.path)]
    steps = [p for p in once.values() if not _before_decoding(p.path)]
    decoder = config.decoder()
    sizes = _sizes(decoder)
    # Scores over a cache of t keys, t = 1 ... T, against the one key that `parts` counted.
    more = _mixing(decoder, B, 1, 1)[0] * config.decoder_layers * (T - 1) / 2
    item = _itemsize(config)
    cross = S if config.encoder_layers else 0
    row = item * config.decoder_layers * sizes.kv_heads * (sizes.head_dim + sizes.value_dim)
    # Of a table one row is read, unless its every row is an output as well.
    weights = sum(p.parameters for p in steps if not p.path.endswith("embedding"))
    weights += decoder.vocab_size * config.d_model if config.head.tie_word_embeddings else 0
    return Decoding(
        start=sum(p.forward for p in first),
        flops=(sum(p.forward for p in steps) + more) / B,
        bytes=item * weights + B * row * (cross + (T + 1) / 2),
        cache_bytes=row * (T + cross),
    )


def _before_decoding(path: str) -> bool:
    return path.startswith("encoder/") or path.endswith(
        ("cross_attention/key", "cross_attention/value")
    )


class _Sizes(NamedTuple):
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int


def _sizes(config: TransformerConfig) -> _Sizes:
    N, H = config.attention.num_heads, config.head_dim
    return _Sizes(N, config.attention.num_kv_heads or N, H, config.attention.value_dim or H)


def _itemsize(config: TransformerConfig) -> int:
    return 2 if config.compute.dtype == "bfloat16" else 4


def _parts(config: TransformerConfig, B: int, S: int, T: int) -> Iterator[Component]:
    encoder, decoder = bool(config.encoder_layers), bool(config.decoder_layers)
    own_table = encoder and decoder and not config.embedding.share_encoder_decoder_embeddings
    tokens = B * S * encoder + B * T * (decoder and not own_table)
    if config.image.image_size:
        S = config.image.sequence_length
        yield from _patches(config, B)
    else:
        yield _table(config, "embedding", tokens)
    if encoder:
        yield from _stack(config, "encoder", B, S, None)
    if own_table:
        yield _table(config.decoder(), "decoder_embedding", B * T)
    if decoder:
        yield from _stack(config.decoder(), "decoder", B, T, S if encoder else None)
        yield _head(config.decoder(), B * T)


def _table(config: TransformerConfig, path: str, tokens: int) -> Component:
    """Token vectors, looked up and scaled; the gradient adds each into its row."""
    D = config.embedding_size
    moved = _itemsize(config) * 2 * tokens * D  # rows looked up, and the result
    return Component(path, 1, ((config.vocab_size, D),), tokens * D, 2 * tokens * D, moved, tokens)


def _patches(config: TransformerConfig, B: int) -> Iterator[Component]:
    """Vectors of the patches of images, scaled, and the one that goes before them."""
    D, item, image = config.d_model, _itemsize(config), config.image
    inputs, scaled = image.patch_size**2 * image.num_channels, int(config.embedding_scale != 1.0)
    yield _linear("embedding", 1, B * (image.sequence_length - 1), inputs, D, True, item, scaled)
    yield Component("class_embedding", 1, ((1, D),), scaled * B * D, B * D, item * (1 + B) * D, B)


def _entrance(config: TransformerConfig, stack: str, tokens: int) -> Iterator[Component]:
    """What joins token vectors before the first block."""
    D, item, positions = config.embedding_size, _itemsize(config), config.positions
    elements = tokens * D
    tables: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
    if positions.kind == "learned":
        tables.append(("positions", ((positions.max_length + positions.offset, D),)))
    elif positions.kind in ("sinusoidal", "sinusoidal_halves"):
        tables.append(("positions", ()))
    if config.embedding.type_vocab_size:
        tables.append(("segments", ((config.embedding.type_vocab_size, D),)))
    for name, shapes in tables:
        moved = item * 3 * elements
        yield Component(
            f"{stack}/{name}", 1, shapes, elements, len(shapes) * elements, moved, tokens
        )
    if config.embedding.layernorm_embedding:
        yield _norm_part(config, f"{stack}/embedding_norm", 1, tokens, D)
    if config.d_model != D:
        yield _linear(f"{stack}/projection", 1, tokens, D, config.d_model, True, item)


def _norm_part(
    config: TransformerConfig, path: str, copies: int, tokens: int, size: int = 0, heads: int = 1
) -> Component:
    """A norm of ``heads`` rows for each token, of the model's width unless ``size`` is given."""
    size = size or config.d_model
    bias = config.norm.kind == "layer" and config.norm.bias
    shapes = ((size,),) * (1 + bias)
    forward, backward = NORMS[config.norm.kind]
    elements = copies * tokens * heads * size
    moved = _itemsize(config) * (2 * elements + copies * len(shapes) * size)
    forward, backward = forward + 1 + bias, backward + 2 + bias
    return Component(path, copies, shapes, forward * elements, backward * elements, moved, tokens)


def _stack(
    config: TransformerConfig, stack: str, B: int, T: int, memory: int | None
) -> Iterator[Component]:
    """One stack's parts: T positions, and ``memory`` positions to cross-attend to."""
    L = config.encoder_layers if stack == "encoder" else config.decoder_layers
    tokens, item = B * T, _itemsize(config)
    norm_part = lambda path, copies: _norm_part(config, f"{stack}/{path}", copies, tokens)
    yield from _entrance(config, stack, tokens)
    if config.positions.kind == "relative":
        N, buckets = config.attention.num_heads, config.positions.num_buckets
        moved = item * N * (T * T + buckets)
        yield Component(f"{stack}/relative", 1, ((buckets, N),), 0, N * T * T, moved, tokens)
    for kind, S in (("self_attention", T), ("cross_attention", memory)):
        if S is not None:
            yield from _attention(config, f"{stack}/{kind}", L, B, T, S)
            yield norm_part(f"{kind}_norm", L)
            if config.norm.placement == "sandwich":
                yield norm_part(f"{kind}_norm_after", L)
    yield from _feed_forward(config, f"{stack}/feed_forward", L, tokens)
    yield norm_part("feed_forward_norm", L)
    if config.norm.placement == "sandwich":
        yield norm_part("feed_forward_norm_after", L)
    if config.final_norm:
        yield norm_part("final_norm", 1)


def _linear(
    path: str,
    copies: int,
    tokens: int,
    width: int,
    out: int,
    bias: bool,
    item: int,
    extra: int | float = 0,
) -> Component:
    """A product with a matrix; ``extra`` operations follow on each element of the result."""
    shapes: tuple[tuple[int, ...], ...] = ((width, out),) + (((out,),) if bias else ())
    products, more = 2 * tokens * width * out, round(extra * tokens * out)
    moved = item * (tokens * (width + out) + sum(math.prod(shape) for shape in shapes))
    return Component(
        path,
        copies,
        shapes,
        copies * (products + bias * tokens * out + more),
        copies * (2 * products + 2 * bias * tokens * out + more),
        copies * moved,
        tokens,
    )


def _mixing(config: TransformerConfig, B: int, T: int, S: int) -> tuple[int, int]:
    """FLOPs (forward, backward) of ``softmax(q kᵀ) v`` for all heads of one layer."""
    sizes = _sizes(config)
    scores = B * sizes.heads * T * S
    products = 2 * scores * (sizes.head_dim + sizes.value_dim)
    added = 1 + (config.positions.kind in ("relative", "alibi"))  # the scale, and a bias
    added += 2 if config.scores.attn_logit_softcapping is not None else 0
    forward, backward = (n + added for n in SOFTMAX)
    return products + forward * scores, 2 * products + backward * scores


def _attention(
    config: TransformerConfig, path: str, L: int, B: int, T: int, S: int
) -> Iterator[Component]:
    D, item, sizes, attention = config.d_model, _itemsize(config), _sizes(config), config.attention
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    values, mixed = sizes.kv_heads * sizes.value_dim, sizes.heads * sizes.value_dim
    turned: int | float = 0
    if config.positions.kind == "rope" and path.endswith("self_attention"):
        turned = 4 * (config.positions.rope_dim or sizes.head_dim) / sizes.head_dim
    yield _linear(f"{path}/query", L, B * T, D, queries, attention.bias, item, turned)
    yield _linear(f"{path}/key", L, B * S, D, keys, attention.bias, item, turned)
    yield _linear(f"{path}/value", L, B * S, D, values, attention.bias, item)
    if attention.qk_norm:
        H = sizes.head_dim
        yield _norm_part(config, f"{path}/query_norm", L, B * T, H, sizes.heads)
        yield _norm_part(config, f"{path}/key_norm", L, B * S, H, sizes.kv_heads)
    forward, backward = _mixing(config, B, T, S)
    moved = item * B * (T * (queries + mixed) + S * (keys + values))
    yield Component(f"{path}/softmax(q kᵀ) v", L, (), L * forward, L * backward, L * moved, B * T)
    # The residual stream's addition follows.
    yield _linear(f"{path}/out", L, B * T, mixed, D, attention.out_bias, item, 1)


def _feed_forward(config: TransformerConfig, path: str, L: int, tokens: int) -> Iterator[Component]:
    D, F, item = config.d_model, config.feed_forward.d_ff, _itemsize(config)
    bias = config.feed_forward.bias
    forward, backward = ACTIVATIONS[config.feed_forward.activation]
    up = _linear(f"{path}/up", L, tokens, D, F, bias, item)
    elements = L * tokens * F
    yield dataclasses.replace(
        up, forward=up.forward + forward * elements, backward=up.backward + backward * elements
    )
    if config.feed_forward.gated:
        yield _linear(f"{path}/gate", L, tokens, D, F, bias, item, 1)
    yield _linear(f"{path}/down", L, tokens, F, D, bias, item, 1)


def _head(config: TransformerConfig, tokens: int) -> Component:
    D, V, head = config.d_model, config.vocab_size, config.head
    part = _linear("head", 1, tokens, D, V, head.bias, _itemsize(config))
    shapes = () if head.tie_word_embeddings else ((V, D),)
    more = tokens * ((head.scale != 1.0) * D + 2 * (head.final_logit_softcapping is not None) * V)
    return dataclasses.replace(
        part,
        shapes=shapes + (((V,),) if head.bias else ()),
        forward=part.forward + more,
        backward=part.backward + 2 * more,
    )
