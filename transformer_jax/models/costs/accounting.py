"""Costs of a model, from its configuration: parameters, FLOPs and bytes, part by part.

A product of [m, k] by [k, n] is ``2 m k n`` FLOPs. Elementwise work is counted as XLA counts it:
one per operation, and nothing for exp, log, tanh or rsqrt. Nothing is compiled.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from transformer_jax.models.costs.components import (
    RECURRENT_BLOCKS,
    Component,
    head_sizes,
    itemsize,
    iter_components,
    mixing_cost,
    slot_bytes,
)
from transformer_jax.models.recurrent_config import ModelConfig, RecurrentConfig

__all__ = [
    "Decoding", "Totals", "cache_bytes", "components", "count_parameters", "decoding",
    "iter_recurrent_components", "model_cost", "training_flops",
]  # fmt: skip

LOSS = (6, 3)  # log-softmax and the target's part of it, per logit
OPTIMIZER = 14  # Adam with clipping, per parameter


@dataclasses.dataclass(frozen=True)
class Totals:
    """Sums over all parts; ``training`` is forward pass, backward pass and update of one step."""

    parameters: int
    forward: int
    training: int
    parameter_bytes: int  # parameters as stored, in float32
    training_bytes: int  # parameters, gradients and Adam's two averages
    bytes: int  # minimum traffic of one forward pass


@dataclasses.dataclass(frozen=True)
class Decoding:
    """Costs of one decoding step, with cached keys and values of earlier steps."""

    prefill: int  # FLOPs before the first token: the encoder, and cross-attention's keys and values
    flops: float  # for one token of one sentence, averaged over the target's length
    bytes: float  # minimum traffic of one step of the batch: parameters once, caches once
    cache_bytes: int  # one sentence's keys and values at full length


def components(
    config: ModelConfig,
    *,
    batch: int = 1,
    source_length: int = 1,
    target_length: int = 1,
    head: bool = True,
) -> tuple[Component, ...]:
    """All parts of a model, in the order of computation.

    A model without encoder layers has no cross-attention. One without decoder layers ends with the
    encoder, since its head depends on the task; so does a decoder without ``head``, a head over
    the vocabulary. The length of images follows from their size.

    Source: Bishop and Bishop 2024, section 12.1.8: projections are O(N D²), scores O(N² D).

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> [p.path for p in components(PRESETS["vaswani_base"])][:3]
        ['embedding', 'encoder/positions', 'encoder/self_attention/query']
    """
    sizes = batch, source_length, target_length
    if isinstance(config, RecurrentConfig):
        return tuple(iter_recurrent_components(config, *sizes))
    listed = iter_components(config, *sizes)
    return tuple(part for part in listed if head or part.path != "head")


def count_parameters(config: ModelConfig) -> int:
    """Counts the parameters of a model.

    Source: Vaswani et al. 2017, table 3, which prints 65M.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> count_parameters(PRESETS["vaswani_base"])
        63045632
    """
    return sum(part.parameters for part in components(config))


def model_cost(
    config: ModelConfig,
    *,
    batch: int = 1,
    source_length: int = 1,
    target_length: int = 1,
    head: bool = True,
) -> Totals:
    """The cost of a complete forward pass and of a complete training step.

    A training step is forward pass, loss, backward pass (twice the products of the forward pass;
    with rematerialization, the blocks' forward pass once more) and update.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
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


def training_flops(config: ModelConfig, rows: int, *lengths: int) -> float:
    """FLOPs that a training step requires: forward pass, backward pass and update.

    Recomputation by rematerialization is not counted; padding is.

    Args:
        config: Configuration of the model.
        rows: Rows of the batch.
        lengths: Lengths of an encoder-decoder's sources and targets, or of the only texts.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> config = PRESETS["gpt2_small"]
        >>> round(training_flops(config, 8, 1024) / (8 * 1024) / count_parameters(config), 1)
        6.9
    """
    compute = dataclasses.replace(config.compute, remat=False)
    plain = dataclasses.replace(config, compute=compute)
    source, target = lengths[0], lengths[-1]
    cost = model_cost(plain, batch=rows, source_length=source, target_length=target)
    return float(cost.training)


def decoding(
    config: ModelConfig, *, batch: int = 1, source_length: int = 1, target_length: int = 1
) -> Decoding:
    """The cost of generating ``target_length`` tokens one by one with a cache.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> cost = decoding(PRESETS["vaswani_base"], source_length=10, target_length=10)
        >>> cost.cache_bytes  # 6 layers, keys and values, 10 + 10 positions, 512 numbers of 4 bytes
        491520
    """
    B, S, T = batch, source_length, target_length
    if isinstance(config, RecurrentConfig):
        return _recurrent_decoding(config, B, S)
    once = {p.path: p for p in components(config, batch=B, source_length=S, target_length=1)}
    first = [p for p in once.values() if _before_decoding(p.path)]
    steps = [p for p in once.values() if not _before_decoding(p.path)]
    decoder = config.decoder()
    sizes = head_sizes(decoder)
    # Scores over a cache of t keys, t = 1 ... T, minus the one key that `parts` counted.
    attends = config.mixer.attends
    more = mixing_cost(decoder, B, 1, 1)[0] * config.decoder_layers * (T - 1) / 2 * attends
    item = itemsize(config)
    cross = S if config.encoder_layers else 0
    row = item * config.decoder_layers * sizes.kv_heads * (sizes.head_dim + sizes.value_dim)
    slot = row if attends else config.decoder_layers * slot_bytes(config)
    # Only one row of a table is read, unless the table is also the output.
    weights = sum(p.parameters for p in steps if not p.path.endswith("embedding"))
    weights += decoder.vocab_size * config.d_model if config.head.tie_word_embeddings else 0
    return Decoding(
        prefill=sum(p.forward for p in first),
        flops=(sum(p.forward for p in steps) + more) / B,
        bytes=item * weights + B * (row * cross + slot * (T + 1) / 2),
        cache_bytes=row * cross + slot * T,
    )


def _recurrent_decoding(config: RecurrentConfig, B: int, S: int) -> Decoding:
    """The cost of a token, which does not depend on earlier tokens."""
    listed = components(config, batch=B, source_length=S, target_length=1)
    once = ("encoder/", "decoder/bridge", "decoder/score/key")
    steps = [part for part in listed if not part.path.startswith(once)]
    kept = cache_bytes(config, S)
    weights = sum(p.parameters for p in steps if not p.path.endswith("embedding"))
    if config.head.tie_word_embeddings:
        weights += config.decoder().vocab_size * config.hidden_size
    return Decoding(
        prefill=sum(part.forward for part in listed if part.path.startswith(once)),
        flops=sum(part.forward for part in steps) / B,
        bytes=float(itemsize(config) * weights + B * kept),
        cache_bytes=kept,
    )


def _before_decoding(path: str) -> bool:
    return path.startswith("encoder/") or path.endswith(
        ("cross_attention/key", "cross_attention/value")
    )


def iter_recurrent_components(
    config: RecurrentConfig, B: int, S: int, T: int
) -> Iterator[Component]:
    """All components in the order of computation, for ``B`` sequences of ``S`` and ``T`` tokens."""
    D, E, H, L = config.d_model, config.embedding_size, config.hidden_size, config.num_layers
    V, encoded, score = config.decoder().vocab_size, config.encoded_size, config.attention.score
    shared = config.embedding.share_encoder_decoder_embeddings
    if width := config.features.width:
        yield _recurrent_part(config, "encoder/embedding", 1, [(width, E), (E,)], B * S)
    elif not shared:
        yield _recurrent_table(config, "encoder/embedding", config.vocab_size, B * S)
    yield _recurrent_table(config, "decoder/embedding", V, B * (T + S * shared))
    directions = ["forward", "backward"] if config.bidirectional else ["forward"]
    for name in directions:
        yield from _recurrent_layers(config, f"encoder/layers/{name}", (E, encoded), B * S)
    if encoded != D:
        states = 2 if config.cell == "lstm" else 1
        yield _recurrent_part(config, "decoder/bridge", L, [(encoded, D), (D,)], B * states)
    yield from _recurrent_layers(
        config, "decoder/layers/forward", (E + config.width_beside, D), B * T
    )
    if score != "none":
        yield from _recurrent_attention(config, B, S, T)
        if config.attention.query == "current":
            yield _recurrent_part(config, "decoder/mixed", 1, [(encoded + D, D), (D,)], B * T)
    if config.attention.query == "previous":
        shapes = [(D + encoded + E, 2 * H), (2 * H,)]
        yield _recurrent_part(config, "decoder/maxout", 1, shapes, B * T)
    own = [] if config.head.tie_word_embeddings else [(V, H)]
    yield _recurrent_part(config, "head", 1, own, B * T, products=V * H)


def _recurrent_layers(
    config: RecurrentConfig, path: str, widths: tuple[int, int], tokens: int
) -> Iterator[Component]:
    """The first layer, whose input widths are ``widths``, and the other layers."""
    D, (inputs, products, more) = config.d_model, RECURRENT_BLOCKS[config.cell]
    for number, width in enumerate(widths):
        copies = config.num_layers - 1 if number else 1
        if not copies:
            continue
        kernels: list[tuple[int, ...]] = [(width, inputs * D), (inputs * D,), (D, products * D)]
        name = f"{path}/{'other' if number else 'first'}"
        yield _recurrent_part(config, name, copies, kernels + [(D,)] * more, tokens)


def _recurrent_attention(config: RecurrentConfig, B: int, S: int, T: int) -> Iterator[Component]:
    D, encoded, score = config.d_model, config.encoded_size, config.attention.score
    path = "decoder/score"
    if score == "location":
        yield _recurrent_part(config, path, 1, [(D, config.places)], B * T, products=D * S)
    elif score == "general":
        yield _recurrent_part(config, f"{path}/key", 1, [(D, encoded)], B * S)
    elif score == "concat":
        yield _recurrent_part(config, f"{path}/key", 1, [(encoded, D)], B * S)
        yield _recurrent_part(config, f"{path}/query", 1, [(D, D), (D,)], B * T)
    pairs = 0 if score == "location" else S * D
    yield _recurrent_part(config, "decoder/attention", 1, [], B * T, products=pairs + S * encoded)


def cache_bytes(config: RecurrentConfig, S: int) -> int:
    """Bytes that decoding keeps per sentence: states, and the attended source."""
    D, states = config.d_model, 2 if config.cell == "lstm" else 1
    kept = 4 * config.num_layers * states * D + itemsize(config) * config.hidden_size
    score = config.attention.score
    if score == "none":
        return kept
    keys = D if score in ("general", "concat") else config.encoded_size
    return kept + itemsize(config) * S * (config.encoded_size + keys)


def _recurrent_table(config: RecurrentConfig, path: str, rows: int, tokens: int) -> Component:
    E = config.embedding_size
    moved = itemsize(config) * 2 * tokens * E
    return Component(path, 1, ((rows, E),), 0, tokens * E, moved, tokens)


def _recurrent_part(
    config: RecurrentConfig,
    path: str,
    copies: int,
    shapes: Sequence[tuple[int, ...]],
    tokens: int,
    *,
    products: int | None = None,
) -> Component:
    """A component of ``products`` multiply-adds per token, by default those of its matrices."""
    matrices = [one for one in shapes if len(one) == 2]
    if products is None:
        products = sum(rows * columns for rows, columns in matrices)
    forward = 2 * copies * tokens * products
    numbers = sum(rows * columns for rows, columns in matrices)
    ends = sum(rows + columns for rows, columns in matrices)
    moved = itemsize(config) * copies * (numbers + tokens * ends)
    return Component(path, copies, tuple(shapes), forward, 2 * forward, moved, tokens)
