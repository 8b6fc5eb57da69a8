"""Components of a Transformer: the shapes, FLOPs and bytes of each, from the configuration."""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.recurrent_config import ModelConfig

__all__ = [
    "RECURRENT_BLOCKS", "AttentionHeads", "Component", "head_sizes", "itemsize",
    "iter_components", "mixing_cost", "slot_bytes",
]  # fmt: skip


# Operations per element, as XLA counts them: (forward, backward).
SOFTMAX = (5, 5)  # maximum, subtract, sum, divide, mask | two products, a sum, a difference, a mask


NORMS = {"layer": (10, 13), "rms": (4, 9)}  # without gain and bias


# Of a recurrent cell: blocks of D columns in the products of inputs, in those of states, and
# further biases.
RECURRENT_BLOCKS = {
    "tanh": (1, 1, 0),
    "relu": (1, 1, 0),
    "lstm": (4, 4, 0),
    "gru": (3, 3, 0),
    "gru_reset_after": (3, 3, 1),
}


ACTIVATIONS = {  # tanh, exp and erf count nothing; the surrounding operations do
    "relu": (1, 2),
    "gelu": (4, 6),
    "gelu_tanh": (8, 14),
    "silu": (4, 8),
    "quick_gelu": (5, 9),
    "tanh": (0, 3),
}


@dataclasses.dataclass(frozen=True)
class Component:
    """One kind of component, with all its copies.

    ``forward`` and ``backward`` are FLOPs of one pass over ``tokens`` tokens; ``bytes`` is the
    minimum traffic of a forward pass: parameters, inputs and outputs once each.
    """

    path: str  # "encoder/self_attention/query": parameter paths without the layer's number
    copies: int  # L, or 1
    shapes: tuple[tuple[int, ...], ...]  # of one copy's parameters
    forward: int
    backward: int
    bytes: int
    tokens: int  # number of tokens: B·S or B·T

    @property
    def parameters(self) -> int:
        """Number of parameters in all copies."""
        return self.copies * sum(math.prod(shape) for shape in self.shapes)

    @property
    def stack(self) -> str:
        """The first part of the path: embedding, encoder, decoder or head."""
        return self.path.split("/")[0]

    @property
    def in_block(self) -> bool:
        """Returns whether each block of the stack has one."""
        words = ("self_attention", "mixer", "cross_attention", "feed_forward")
        return self.path.partition("/")[2].startswith(words)


class AttentionHeads(NamedTuple):
    """Numbers and sizes of attention heads."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int


def head_sizes(config: TransformerConfig) -> AttentionHeads:
    """Numbers and sizes of the attention heads of a configuration."""
    N, H = config.attention.num_heads, config.head_dim
    return AttentionHeads(N, config.attention.num_kv_heads or N, H, config.attention.value_dim or H)


def itemsize(config: ModelConfig) -> int:
    """Bytes per element in the compute dtype."""
    return 2 if config.compute.dtype == "bfloat16" else 4


def iter_components(config: TransformerConfig, B: int, S: int, T: int) -> Iterator[Component]:
    """All components in the order of computation, for ``B`` sequences of ``S`` and ``T`` tokens."""
    encoder, decoder = bool(config.encoder_layers), bool(config.decoder_layers)
    own_table = encoder and decoder and not config.embedding.share_encoder_decoder_embeddings
    tokens = B * S * encoder + B * T * (decoder and not own_table)
    if config.image.image_size:
        S = config.image.sequence_length
        yield from _patches(config, B)
    elif width := config.features.width:
        scaled = int(config.embedding_scale != 1.0)
        item = itemsize(config)
        yield _linear("embedding", 1, B * S, width, config.d_model, True, item, scaled)
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
    """Embedding lookup and scaling; the gradient adds each vector to its row."""
    D = config.embedding_size
    moved = itemsize(config) * 2 * tokens * D  # rows read, and the result
    return Component(path, 1, ((config.vocab_size, D),), tokens * D, 2 * tokens * D, moved, tokens)


def _patches(config: TransformerConfig, B: int) -> Iterator[Component]:
    """Patch vectors of images, scaled, the embeddings before them, and a weighted sum."""
    D, item, image = config.d_model, itemsize(config), config.image
    inputs, scaled = image.patch_size**2 * image.num_channels, int(config.embedding_scale != 1.0)
    if image.stem == "linear":
        patches, bias = B * image.num_patches, image.patch_bias
        yield _linear("embedding", 1, patches, inputs, D, bias, item, scaled)
    pixels = B * image.image_size**2
    for i, (channels, outputs) in enumerate(image.convolutions):
        path = f"convolutions/{i}"
        yield _linear(path, 1, pixels, 9 * channels, outputs or D, False, item)
        pixels //= 4
    names = ("class_embedding", "distillation_embedding")
    for name, use in zip(
        names, (image.pooling == "class", image.distillation != "none"), strict=True
    ):
        if use:
            yield Component(name, 1, ((1, D),), scaled * B * D, B * D, item * (1 + B) * D, B)
    if image.pooling == "sequence":
        yield _linear("pool", 1, B * image.num_patches, D, 1, True, item)
    elif image.pooling == "attention":
        yield Component("pool/query", 1, ((1, D),), 0, B * D, item * (1 + B) * D, B)
        yield from _attention(config, "pool/attention", 1, B, 1, image.sequence_length)
        yield _norm_part(config, "pool/norm", 1, B)
        yield from _feed_forward(config, "pool/feed_forward", 1, B)


def _entrance(config: TransformerConfig, stack: str, tokens: int) -> Iterator[Component]:
    """Returns the costs of combining token vectors before the first block."""
    D, item, positions = config.embedding_size, itemsize(config), config.positions
    elements = tokens * D
    tables: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
    if positions.learned:
        tables.append(("positions", ((positions.max_length + positions.offset, D),)))
    elif positions.kind.startswith("sinusoidal"):
        tables.append(("positions", ()))
    elif positions.kind == "concatenated":  # concatenated to the embeddings, not added
        yield Component(f"{stack}/positions", 1, (), 0, 0, item * 3 * elements, tokens)
    if config.embedding.type_vocab_size:
        tables.append(("segments", ((config.embedding.type_vocab_size, D),)))
    for name, shapes in tables:
        moved = item * 3 * elements
        yield Component(
            f"{stack}/{name}", 1, shapes, elements, len(shapes) * elements, moved, tokens
        )
    if config.embedding.layernorm_embedding:
        yield _norm_part(config, f"{stack}/embedding_norm", 1, tokens, D)
    if config.d_model != (width := config.input_size):
        yield _linear(f"{stack}/projection", 1, tokens, width, config.d_model, True, item)


def _norm_part(
    config: TransformerConfig, path: str, copies: int, tokens: int, size: int = 0, heads: int = 1
) -> Component:
    """A norm of ``heads`` rows per token, of the model's width unless ``size`` is given."""
    size = size or config.d_model
    bias = config.norm.kind == "layer" and config.norm.bias
    shapes = ((size,),) * (1 + bias)
    forward, backward = NORMS[config.norm.kind]
    elements = copies * tokens * heads * size
    moved = itemsize(config) * (2 * elements + copies * len(shapes) * size)
    forward, backward = forward + 1 + bias, backward + 2 + bias
    return Component(path, copies, shapes, forward * elements, backward * elements, moved, tokens)


def _stack(
    config: TransformerConfig, stack: str, B: int, T: int, memory: int | None
) -> Iterator[Component]:
    """One stack's parts, for T positions and ``memory`` positions of cross-attention."""
    L = config.encoder_layers if stack == "encoder" else config.decoder_layers
    tokens, item = B * T, itemsize(config)
    norm_part = lambda path, copies: _norm_part(config, f"{stack}/{path}", copies, tokens)
    yield from _entrance(config, stack, tokens)
    if config.positions.relative:
        N, buckets = config.attention.num_heads, config.positions.num_buckets
        moved = item * N * (T * T + buckets)
        yield Component(f"{stack}/relative", 1, ((buckets, N),), 0, N * T * T, moved, tokens)
    attends, normed = config.mixer.attends, L - (not config.norm.first)
    if not attends:
        yield _mixer(config, f"{stack}/mixer", L, tokens)
        yield norm_part("mixer_norm", normed)
        if config.norm.placement == "sandwich":
            yield norm_part("mixer_norm_after", L)
    for kind, S in (("self_attention", T if attends else None), ("cross_attention", memory)):
        if S is not None:
            yield from _attention(config, f"{stack}/{kind}", L, B, T, S)
            yield norm_part(f"{kind}_norm", normed if kind == "self_attention" else L)
            if config.norm.placement == "sandwich":
                yield norm_part(f"{kind}_norm_after", L)
    if config.feed_forward.d_ff:
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
    """A matrix product; ``extra`` operations follow on each element of the result."""
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


def _mixer(config: TransformerConfig, path: str, L: int, tokens: int) -> Component:
    """A mixer other than attention: only the products of its kernels."""
    D, mixer, shapes = config.d_model, config.mixer, []
    if mixer.kind == "convolution":
        shapes = [(mixer.kernel_size, D, 2 * D), (2 * D,)]
    else:
        inputs, products, more = RECURRENT_BLOCKS[mixer.cell]
        directions = 2 if path.startswith("encoder") else 1
        H = D // directions
        one = [(D, inputs * H), (inputs * H,), (H, products * H), *[(H,)] * more]
        shapes = one * directions
    numbers = sum(math.prod(shape) for shape in shapes if len(shape) > 1)
    forward = 2 * L * tokens * numbers
    moved = itemsize(config) * L * (2 * tokens * D + numbers)
    return Component(path, L, tuple(shapes), forward, 2 * forward, moved, tokens)


def slot_bytes(config: TransformerConfig) -> int:
    """Bytes in a layer's cache per position, for a mixer other than attention."""
    if config.mixer.kind == "convolution":
        return itemsize(config) * config.d_model
    return 4 * config.d_model * (2 if config.mixer.cell == "lstm" else 1)


def mixing_cost(config: TransformerConfig, B: int, T: int, S: int) -> tuple[int, int]:
    """FLOPs (forward, backward) of ``softmax(q kᵀ) v`` for all heads of one layer."""
    sizes = head_sizes(config)
    scores = B * sizes.heads * T * S
    products = 2 * scores * (sizes.head_dim + sizes.value_dim)
    places = config.positions
    added = 1 + (places.relative or places.kind == "alibi")  # the scale, and a bias
    added += 2 if config.scores.attn_logit_softcapping is not None else 0
    forward, backward = (n + added for n in SOFTMAX)
    return products + forward * scores, 2 * products + backward * scores


def _attention(
    config: TransformerConfig, path: str, L: int, B: int, T: int, S: int
) -> Iterator[Component]:
    D, item, sizes, attention = (
        config.d_model,
        itemsize(config),
        head_sizes(config),
        config.attention,
    )
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    values, mixed = sizes.kv_heads * sizes.value_dim, sizes.heads * sizes.value_dim
    rotary_flops: int | float = 0
    if config.positions.kind == "rope" and path.endswith("self_attention"):
        rotary_flops = 4 * (config.positions.rope_dim or sizes.head_dim) / sizes.head_dim
    yield _linear(f"{path}/query", L, B * T, D, queries, attention.bias, item, rotary_flops)
    yield _linear(f"{path}/key", L, B * S, D, keys, attention.bias, item, rotary_flops)
    yield _linear(f"{path}/value", L, B * S, D, values, attention.bias, item)
    if attention.qk_norm:
        H = sizes.head_dim
        yield _norm_part(config, f"{path}/query_norm", L, B * T, H, sizes.heads)
        yield _norm_part(config, f"{path}/key_norm", L, B * S, H, sizes.kv_heads)
    forward, backward = mixing_cost(config, B, T, S)
    moved = item * B * (T * (queries + mixed) + S * (keys + values))
    yield Component(f"{path}/softmax(q kᵀ) v", L, (), L * forward, L * backward, L * moved, B * T)
    # The residual stream's addition follows.
    yield _linear(f"{path}/out", L, B * T, mixed, D, attention.out_bias, item, 1)


def _feed_forward(config: TransformerConfig, path: str, L: int, tokens: int) -> Iterator[Component]:
    D, F, item = config.d_model, config.feed_forward.d_ff, itemsize(config)
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
    part = _linear("head", 1, tokens, D, V, head.bias, itemsize(config))
    shapes = () if head.tie_word_embeddings else ((V, D),)
    more = tokens * ((head.scale != 1.0) * D + 2 * (head.final_logit_softcapping is not None) * V)
    return dataclasses.replace(
        part,
        shapes=shapes + (((V,),) if head.bias else ()),
        forward=part.forward + more,
        backward=part.backward + 2 * more,
    )
