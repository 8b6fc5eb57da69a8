"""Training of word vectors with word2vec: the update of a step, and all epochs."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int32, Integer

from transformer_jax.core.errors import NumericsError
from transformer_jax.functional import word2vec_blocks
from transformer_jax.functional.word2vec import keep_probability, noise_distribution
from transformer_jax.word_vectors.corpus import LINE_END, Corpus
from transformer_jax.word_vectors.settings import BlockShape, Word2VecConfig

__all__ = [
    "Blocks",
    "EpochReport",
    "Tables",
    "epoch_blocks",
    "initial_tables",
    "make_step",
    "passes",
    "train_epochs",
]


PASS = 1 << 20  # ids of the corpus that are sampled at a time


class Blocks(NamedTuple):
    """The inputs of a step: N consecutive blocks of T words, with X negatives each.

    Attributes:
        words: The words, including the windows at both ends: ``N T + 2 reach`` of them.
        sentences: Line number of each word; padding has its own.
        windows: [N T], window size of each center word; 0 for padding.
        negatives: [N X].
        progress: Progress of the epoch after it, 0 to 1.
    """

    words: Int32[np.ndarray, " _"]
    sentences: Int32[np.ndarray, " _"]
    windows: Int32[np.ndarray, "N T"]
    negatives: Int32[np.ndarray, "N X"]
    progress: float


def passes(corpus: Corpus) -> int:
    """Returns the number of parts in which an epoch is sampled."""
    return -(-len(corpus.ids) // PASS)


def epoch_blocks(
    corpus: Corpus,
    keep: Float[np.ndarray, " V"],
    noise: Float[np.ndarray, " V"],
    shape: BlockShape,
    seed: tuple[int, ...],
) -> Iterator[Blocks]:
    """Yields all words of a corpus once, subsampled, with windows of random sizes.

    Rare and dropped words are removed before windows are formed, as in ``word2vec.c``. A window has
    each size from 1 to ``reach`` equally often. It ends at a line end, and at the end of a pass of
    a million words.

    Args:
        corpus: The words.
        keep: Probability of keeping an occurrence of each word.
        noise: Probability of each word as a negative.
        shape: Shape of a step.
        seed: Random seed of the blocks.
    """
    edges = np.cumsum(noise.astype(np.float64))
    edges /= edges[-1]
    for number in range(passes(corpus)):
        rng = np.random.default_rng((*seed, number))
        part = np.asarray(corpus.ids[number * PASS : (number + 1) * PASS])
        known = np.flatnonzero(part >= 0)
        kept = known[rng.random(len(known), np.float32) < keep[part[known]]]
        lines = np.cumsum(part == LINE_END, dtype=np.int32)
        for drawn in _steps(part[kept], lines[kept], edges, shape, rng):
            yield drawn._replace(progress=(number + drawn.progress) / passes(corpus))


def _steps(
    words: Integer[np.ndarray, " _"],
    lines: Integer[np.ndarray, " _"],
    edges: Float[np.ndarray, " V"],
    shape: BlockShape,
    rng: np.random.Generator,
) -> Iterator[Blocks]:
    """Yields the steps of a pass; their progress is that of the pass."""
    each = shape.words * shape.blocks
    steps = -(-len(words) // each)
    windows = np.zeros(steps * each, np.int32)
    windows[: len(words)] = rng.integers(1, shape.reach + 1, len(words))
    pad = (shape.reach, shape.reach + len(windows) - len(words))
    words, lines = np.pad(words, pad), np.pad(lines, pad, constant_values=-1)
    for step in range(steps):
        begin, end = step * each, (step + 1) * each
        around = slice(begin, end + 2 * shape.reach)
        negatives = np.searchsorted(edges, rng.random(shape.blocks * shape.negatives))
        yield Blocks(
            words[around],
            lines[around],
            windows[begin:end].reshape(shape.blocks, shape.words),
            negatives.astype(np.int32).reshape(shape.blocks, shape.negatives),
            (step + 1) / steps,
        )


_LEAST_RATE = 1e-4  # final learning rate, as a fraction of the initial one
_REPORTED = 64  # steps between reports; no computation waits for a report


class Tables(NamedTuple):
    """The trained parameters.

    Attributes:
        inputs: The word vectors.
        outputs: A vector for each predicted word.
    """

    inputs: Float[Array, "V D"]
    outputs: Float[Array, "V D"]


class EpochReport(NamedTuple):
    """The progress of training.

    Attributes:
        progress: 0 to 1.
        epochs: Number of all epochs.
        loss: Mean loss per prediction, in nats: per pair, or per center word for cbow. It is
            estimated from one block of every step.
        learning_rate: Learning rate of the last step.
    """

    progress: float
    epochs: int
    loss: float
    learning_rate: float


def initial_tables(words: int, config: Word2VecConfig) -> Tables:
    """Initial vectors as in ``word2vec.c``: uniform in ``±1 / 2D``, and zero outputs."""
    key = jax.random.fold_in(jax.random.key(config.seed), 1)
    inputs = jax.random.uniform(key, (words, config.size), jnp.float32, -0.5, 0.5) / config.size
    return Tables(inputs, jnp.zeros_like(inputs))


def train_epochs(
    corpus: Corpus,
    config: Word2VecConfig,
    tables: Tables,
    first: int = 0,
    report: Callable[[EpochReport], None] | None = None,
) -> Iterator[tuple[int, Tables]]:
    """Yields the number of finished epochs and the tables, after each epoch.

    The given tables are donated. With the tables after an epoch and ``first``, training gives the
    same result bit for bit, on the same machine.

    Args:
        corpus: The words.
        config: The settings.
        tables: Tables to start from.
        first: Number of finished epochs.
        report: Called regularly, about every 0.3 million words.

    Raises:
        NumericsError: The loss is not finite.
    """
    counts = jnp.asarray(corpus.counts, jnp.float32)
    keep = np.asarray(keep_probability(counts, config.sample))
    noise = np.asarray(noise_distribution(counts, config.noise_exponent))
    step = make_step(config)
    sums: list[Array] = []

    def tell(progress: float, rate: float) -> None:
        mean = _mean_loss(sums)
        sums.clear()
        if report is not None:
            report(EpochReport(progress, config.epochs, mean, rate))

    for epoch in range(first, config.epochs):
        drawn = epoch_blocks(corpus, keep, noise, config.shape, (config.seed, epoch))
        progress, rate = 0.0, config.initial_rate
        for number, blocks in enumerate(drawn):
            progress = (epoch + blocks.progress) / config.epochs
            rate = config.initial_rate * max(1 - progress, _LEAST_RATE)
            tables, loss = step(tables, blocks._replace(progress=0.0), np.float32(rate))
            sums.append(loss)
            if len(sums) >= _REPORTED or not number:
                tell(progress, rate)
        if sums:
            tell(progress, rate)
        yield epoch + 1, tables


def _mean_loss(sums: list[Array]) -> float:
    total, weight = np.sum(jax.device_get(sums), axis=0)
    if not math.isfinite(total):
        raise NumericsError(
            "the loss is not finite: lower --training.learning-rate, or --training.block for a "
            "small vocabulary"
        )
    return float(total / max(weight, 1))


@functools.lru_cache(maxsize=4)  # with the same settings, a second training compiles nothing
def make_step(
    config: Word2VecConfig,
) -> Callable[[Tables, Blocks, Array | np.float32], tuple[Tables, Array]]:
    """Compiles the update of the tables by the blocks of a step, in turn.

    It returns the tables, and the sum of losses and number of predictions of the first block. The
    given tables are donated: rows are added in place, so a block costs only as much as its own
    rows, however large the tables are.
    """
    reach, T = config.window, config.block
    sampled = config.loss == "negative-sampling"
    update = functools.partial(_sampled_update if sampled else _softmax_update, config)

    def block_at(blocks: Blocks, number: Array | int) -> "_Block":
        cut = lambda x: lax.dynamic_slice(x, (number * T,), (T + 2 * reach,))
        words = cut(blocks.words)
        mask = word2vec_blocks.window_mask(blocks.windows[number], cut(blocks.sentences), reach)
        return _Block(words, words[reach : reach + T], blocks.negatives[number], mask)

    def step(tables: Tables, blocks: Blocks, rate: Array) -> tuple[Tables, Array]:
        def one(number: Array, carry: tuple[Tables, Array]) -> tuple[Tables, Array]:
            tables, first = carry
            tables, loss = update(tables, block_at(blocks, number), rate, number == 0)
            return tables, jnp.where(number == 0, loss, first)

        return lax.fori_loop(0, blocks.windows.shape[0], one, (tables, jnp.zeros(2)))

    return jax.jit(step, donate_argnums=0)


class _Block(NamedTuple):
    words: Array  # [S]
    centers: Array  # [T]
    negatives: Array  # [X]
    mask: Array  # [T S]

    @property
    def predicted(self) -> Array:
        """[T+X]: both together, since only one update per iteration is made in place."""
        return jnp.concatenate([self.centers, self.negatives])


_GRADIENTS = {
    "skip-gram": word2vec_blocks.skip_gram_block_gradients,
    "cbow": word2vec_blocks.cbow_block_gradients,
}
_LOSSES = {
    "skip-gram": word2vec_blocks.skip_gram_block_loss,
    "cbow": word2vec_blocks.cbow_block_loss,
}
_SOFTMAX_LOSSES = {
    "skip-gram": word2vec_blocks.skip_gram_block_softmax_loss,
    "cbow": word2vec_blocks.cbow_block_softmax_loss,
}


# Tables are read only where they are updated: a gather before the loop would copy them.
def _sampled_update(
    config: Word2VecConfig, tables: Tables, block: _Block, rate: Array, reported: Array
) -> tuple[Tables, Array]:
    predicted, negative = block.predicted, float(config.negative)
    rows = tables.inputs[block.words], tables.outputs[predicted]
    found = _GRADIENTS[config.method](*rows, block.mask, negative)
    loss = lax.cond(
        reported,
        lambda: _LOSSES[config.method](*rows, block.mask, negative),
        lambda: jnp.float32(0),
    )
    tables = Tables(
        tables.inputs.at[block.words].add(-rate * found.inputs),
        tables.outputs.at[predicted].add(-rate * found.outputs),
    )
    return tables, _with_count(config, loss, block)


def _softmax_update(
    config: Word2VecConfig, tables: Tables, block: _Block, rate: Array, reported: Array
) -> tuple[Tables, Array]:
    del reported
    loss = jax.value_and_grad(_SOFTMAX_LOSSES[config.method], (0, 1))
    rows = tables.inputs[block.words]
    value, (rows, table) = loss(rows, tables.outputs, block.centers, block.mask)
    tables = Tables(tables.inputs.at[block.words].add(-rate * rows), tables.outputs - rate * table)
    return tables, _with_count(config, value, block)


def _with_count(config: Word2VecConfig, loss: Array, block: _Block) -> Array:
    """The loss, and the number of its predictions."""
    count = block.mask.sum() if config.method == "skip-gram" else block.mask.any(-1).sum()
    return jnp.stack([loss, count.astype(jnp.float32)])
