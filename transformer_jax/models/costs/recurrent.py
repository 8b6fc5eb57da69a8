"""Costs of a recurrent translator, part by part: matrix products alone.

A product of [m, k] by [k, n] is ``2 m k n`` FLOPs, and twice that backward. Work element by element
is not counted: it is below a hundredth of that of a layer of 256 numbers.
"""

from collections.abc import Iterator, Sequence

from transformer_jax.models.costs.components import RECURRENT_BLOCKS, Component, itemsize
from transformer_jax.models.recurrent_config import RecurrentConfig

__all__ = ["cache_bytes", "iter_recurrent_components"]


def iter_recurrent_components(
    config: RecurrentConfig, B: int, S: int, T: int
) -> Iterator[Component]:
    """All components in the order of computation, for ``B`` sequences of ``S`` and ``T`` tokens."""
    D, E, H, L = config.d_model, config.embedding_size, config.hidden_size, config.num_layers
    V, encoded, score = config.decoder().vocab_size, config.encoded_size, config.attention.score
    shared = config.embedding.share_encoder_decoder_embeddings
    if width := config.features.width:
        yield _part(config, "encoder/embedding", 1, [(width, E), (E,)], B * S)
    elif not shared:
        yield _table(config, "encoder/embedding", config.vocab_size, B * S)
    yield _table(config, "decoder/embedding", V, B * (T + S * shared))
    directions = ["forward", "backward"] if config.bidirectional else ["forward"]
    for name in directions:
        yield from _layers(config, f"encoder/layers/{name}", (E, encoded), B * S)
    if encoded != D:
        states = 2 if config.cell == "lstm" else 1
        yield _part(config, "decoder/bridge", L, [(encoded, D), (D,)], B * states)
    yield from _layers(config, "decoder/layers/forward", (E + config.width_beside, D), B * T)
    if score != "none":
        yield from _attention(config, B, S, T)
        if config.attention.query == "current":
            yield _part(config, "decoder/mixed", 1, [(encoded + D, D), (D,)], B * T)
    if config.attention.query == "previous":
        shapes = [(D + encoded + E, 2 * H), (2 * H,)]
        yield _part(config, "decoder/maxout", 1, shapes, B * T)
    own = [] if config.head.tie_word_embeddings else [(V, H)]
    yield _part(config, "head", 1, own, B * T, products=V * H)


def _layers(
    config: RecurrentConfig, path: str, widths: tuple[int, int], tokens: int
) -> Iterator[Component]:
    """The first layer, which reads ``widths[0]`` numbers, and the others."""
    D, (inputs, products, more) = config.d_model, RECURRENT_BLOCKS[config.cell]
    for number, width in enumerate(widths):
        copies = config.num_layers - 1 if number else 1
        if not copies:
            continue
        kernels: list[tuple[int, ...]] = [(width, inputs * D), (inputs * D,), (D, products * D)]
        name = f"{path}/{'other' if number else 'first'}"
        yield _part(config, name, copies, kernels + [(D,)] * more, tokens)


def _attention(config: RecurrentConfig, B: int, S: int, T: int) -> Iterator[Component]:
    D, encoded, score = config.d_model, config.encoded_size, config.attention.score
    path = "decoder/score"
    if score == "location":
        yield _part(config, path, 1, [(D, config.places)], B * T, products=D * S)
    elif score == "general":
        yield _part(config, f"{path}/key", 1, [(D, encoded)], B * S)
    elif score == "concat":
        yield _part(config, f"{path}/key", 1, [(encoded, D)], B * S)
        yield _part(config, f"{path}/query", 1, [(D, D), (D,)], B * T)
    pairs = 0 if score == "location" else S * D
    yield _part(config, "decoder/attention", 1, [], B * T, products=pairs + S * encoded)


def cache_bytes(config: RecurrentConfig, S: int) -> int:
    """Bytes that decoding keeps of one sentence: states, and what is attended to."""
    D, states = config.d_model, 2 if config.cell == "lstm" else 1
    kept = 4 * config.num_layers * states * D + itemsize(config) * config.hidden_size
    score = config.attention.score
    if score == "none":
        return kept
    keys = D if score in ("general", "concat") else config.encoded_size
    return kept + itemsize(config) * S * (config.encoded_size + keys)


def _table(config: RecurrentConfig, path: str, rows: int, tokens: int) -> Component:
    E = config.embedding_size
    moved = itemsize(config) * 2 * tokens * E
    return Component(path, 1, ((rows, E),), 0, tokens * E, moved, tokens)


def _part(
    config: RecurrentConfig,
    path: str,
    copies: int,
    shapes: Sequence[tuple[int, ...]],
    tokens: int,
    *,
    products: int | None = None,
) -> Component:
    """A component of ``products`` multiply-adds a token, by default those of its matrices."""
    matrices = [one for one in shapes if len(one) == 2]
    if products is None:
        products = sum(rows * columns for rows, columns in matrices)
    forward = 2 * copies * tokens * products
    numbers = sum(rows * columns for rows, columns in matrices)
    ends = sum(rows + columns for rows, columns in matrices)
    moved = itemsize(config) * copies * (numbers + tokens * ends)
    return Component(path, copies, tuple(shapes), forward, 2 * forward, moved, tokens)
