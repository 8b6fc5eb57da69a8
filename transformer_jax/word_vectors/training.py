"""Training of word vectors by word2vec: what a step computes, and all epochs."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from transformer_jax.errors import ConfigError, NumericsError, at_least
from transformer_jax.functional import word2vec
from transformer_jax.word_vectors.batches import Blocks, BlockShape, epoch_blocks
from transformer_jax.word_vectors.corpus import Corpus, Words

__all__ = ["Report", "Tables", "TextConfig", "Word2VecConfig", "initial_tables", "train_epochs"]

_STEP_WORDS = 4096  # of a step, about
_LEAST_RATE = 1e-4  # of the first learning rate, at the end
_INITIAL_RATE = {"skip-gram": 0.025, "cbow": 0.075}


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """How texts become words."""

    words: Words = "letters"
    """Words: letters (lowercase, runs of letters, digits, _ and inner apostrophes) or blanks
    (what stands between blanks, as it is)."""
    min_count: int = 5
    """Rarer words are left out."""
    phrases: int = 0
    """Passes that join two words that occur together into one, such as new_york; 2 passes make
    phrases of up to four words."""
    phrase_threshold: float = 100.0
    """Score that a phrase exceeds; a higher threshold makes fewer phrases."""

    def check(self) -> None:
        """Refuses values that cannot be.

        Raises:
            ConfigError: It names the setting.
        """
        at_least("text", self, min_count=1, phrases=0, phrase_threshold=0)


@dataclasses.dataclass(frozen=True)
class Word2VecConfig:
    """How word vectors are trained."""

    method: Literal["skip-gram", "cbow"] = "skip-gram"
    """Method: skip-gram predicts a word from each word near it, cbow from the mean of them all."""
    loss: Literal["negative-sampling", "softmax"] = "negative-sampling"
    """Loss: negative sampling, or the full softmax, which is for small vocabularies."""
    size: int = 300
    """Size of the vectors."""
    window: int = 5
    """Largest distance of words that predict each other."""
    negative: int = 5
    """Negatives for each positive pair."""
    sample: float = 1e-3
    """Share of the text above which words are subsampled; 0 keeps all words."""
    epochs: int = 5
    """Passes over the text."""
    learning_rate: float | None = None
    """Initial learning rate, which falls linearly to nearly 0; None is 0.025, and 0.075 for
    cbow."""
    noise_exponent: float = 0.75
    """Negatives are drawn by their counts to this power."""
    block: int = 32
    """Consecutive center words that share their negatives and are one update."""
    shared_negatives: int = 32
    """Negatives of a block; each has the weight that makes them `negative` for each pair."""
    seed: int = 0
    """Seed; on one machine, the same seed gives the same vectors."""

    def check(self) -> None:
        """Refuses values that cannot be.

        Raises:
            ConfigError: It names the setting.
        """
        least = dict.fromkeys(("size", "window", "negative", "epochs", "block"), 1)
        at_least("training", self, **least, shared_negatives=1, sample=0, noise_exponent=0, seed=0)
        if not 0 < self.initial_rate <= 1:
            raise ConfigError(
                f"training.learning_rate is {self.initial_rate}: more than 0, at most 1"
            )

    @property
    def initial_rate(self) -> float:
        """The learning rate at the beginning."""
        return _INITIAL_RATE[self.method] if self.learning_rate is None else self.learning_rate

    @property
    def shape(self) -> BlockShape:
        """The shape of a step."""
        blocks = max(_STEP_WORDS // self.block, 1)
        return BlockShape(self.block, blocks, self.shared_negatives, self.window)


class Tables(NamedTuple):
    """What is trained.

    Attributes:
        inputs: The word vectors.
        outputs: A vector for each word that is predicted.
    """

    inputs: Float[Array, "V D"]
    outputs: Float[Array, "V D"]


class Report(NamedTuple):
    """How far training is.

    Attributes:
        progress: 0 to 1.
        loss: Mean loss of a prediction, in nats: of a pair, or of a center word for cbow. It is an
            estimate from one block of every step.
        learning_rate: Of the last step.
    """

    progress: float
    loss: float
    learning_rate: float


def initial_tables(words: int, config: Word2VecConfig) -> Tables:
    """Vectors as ``word2vec.c`` begins: uniform in ``±1 / 2D``, and outputs of zero."""
    key = jax.random.fold_in(jax.random.key(config.seed), 1)
    inputs = jax.random.uniform(key, (words, config.size), jnp.float32, -0.5, 0.5) / config.size
    return Tables(inputs, jnp.zeros_like(inputs))


def train_epochs(
    corpus: Corpus,
    config: Word2VecConfig,
    tables: Tables,
    first: int = 0,
    report: Callable[[Report], None] | None = None,
) -> Iterator[tuple[int, Tables]]:
    """After each epoch, how many are done, and the tables.

    The tables that are given are used up. From the tables after an epoch, training with ``first``
    goes to the same end bit for bit, on the same machine.

    Args:
        corpus: The words.
        config: Settings.
        tables: What training begins from.
        first: Epochs that are done.
        report: Is called now and then, about every 0.3 million words.

    Raises:
        NumericsError: The loss is not finite.
    """
    counts = jnp.asarray(corpus.counts, jnp.float32)
    keep = np.asarray(word2vec.keep_probability(counts, config.sample))
    noise = np.asarray(word2vec.noise_distribution(counts, config.noise_exponent))
    step = make_step(config)
    sums = []
    for epoch in range(first, config.epochs):
        drawn = epoch_blocks(corpus, keep, noise, config.shape, (config.seed, epoch))
        for number, blocks in enumerate(drawn):
            progress = (epoch + blocks.progress) / config.epochs
            rate = config.initial_rate * max(1 - progress, _LEAST_RATE)
            tables, loss = step(tables, blocks._replace(progress=0.0), np.float32(rate))
            sums.append(loss)
            if len(sums) >= 64 or not number:
                _tell(report, progress, sums, rate)
                sums = []
        yield epoch + 1, tables


def _tell(report: Any, progress: float, sums: list[Array], rate: float) -> None:
    total, weight = np.sum(jax.device_get(sums), axis=0)
    if not math.isfinite(total):
        raise NumericsError(
            "the loss is not finite: lower --training.learning-rate, or raise "
            "--training.shared-negatives"
        )
    if report is not None:
        report(Report(progress, float(total / max(weight, 1)), rate))


def make_step(config: Word2VecConfig) -> Callable[..., tuple[Tables, Array]]:
    """The compiled update of the tables by the blocks of a step, one block after the other.

    It returns the tables, and of the first block the sum of the losses and the number of
    predictions. The tables that it is given are used up: rows are added where they are, so that a
    block costs what its own rows cost, however large the tables are.
    """
    reach, T = config.window, config.block
    sampled = config.loss == "negative-sampling"
    update = functools.partial(_sampled_update if sampled else _softmax_update, config)

    def block_at(blocks: Blocks, number: Array | int) -> "_Block":
        cut = lambda x: lax.dynamic_slice(x, (number * T,), (T + 2 * reach,))
        words = cut(blocks.words)
        mask = word2vec.window_mask(blocks.windows[number], cut(blocks.sentences), reach)
        return _Block(words, words[reach : reach + T], blocks.negatives[number], mask)

    def step(tables: Tables, blocks: Blocks, rate: Array) -> tuple[Tables, Array]:
        loss = _first_loss(config, tables, block_at(blocks, 0))
        one = lambda number, tables: update(tables, block_at(blocks, number), rate)
        return lax.fori_loop(0, blocks.windows.shape[0], one, tables), loss

    return jax.jit(step, donate_argnums=0)


class _Block(NamedTuple):
    words: Array  # [S]
    centers: Array  # [T]
    negatives: Array  # [X]
    mask: Array  # [T S]

    @property
    def predicted(self) -> Array:
        """[T+X]: both at once, since rows are added in place once an iteration alone."""
        return jnp.concatenate([self.centers, self.negatives])


_GRADIENTS = {
    "skip-gram": word2vec.skip_gram_block_gradients,
    "cbow": word2vec.cbow_block_gradients,
}
_LOSSES = {"skip-gram": word2vec.skip_gram_block_loss, "cbow": word2vec.cbow_block_loss}
_SOFTMAX_LOSSES = {
    "skip-gram": word2vec.skip_gram_block_softmax_loss,
    "cbow": word2vec.cbow_block_softmax_loss,
}


def _sampled_update(config: Word2VecConfig, tables: Tables, block: _Block, rate: Array) -> Tables:
    predicted = block.predicted
    rows = tables.inputs[block.words], tables.outputs[predicted]
    found = _GRADIENTS[config.method](*rows, block.mask, float(config.negative))
    return Tables(
        tables.inputs.at[block.words].add(-rate * found.inputs),
        tables.outputs.at[predicted].add(-rate * found.outputs),
    )


def _softmax_update(config: Word2VecConfig, tables: Tables, block: _Block, rate: Array) -> Tables:
    loss = jax.grad(_SOFTMAX_LOSSES[config.method], (0, 1))
    rows, table = loss(tables.inputs[block.words], tables.outputs, block.centers, block.mask)
    return Tables(tables.inputs.at[block.words].add(-rate * rows), tables.outputs - rate * table)


def _first_loss(config: Word2VecConfig, tables: Tables, block: _Block) -> Array:
    rows = tables.inputs[block.words]
    if config.loss == "softmax":
        loss = _SOFTMAX_LOSSES[config.method](rows, tables.outputs, block.centers, block.mask)
    else:
        outputs = tables.outputs[block.predicted]
        loss = _LOSSES[config.method](rows, outputs, block.mask, float(config.negative))
    count = block.mask.sum() if config.method == "skip-gram" else block.mask.any(-1).sum()
    return jnp.stack([loss, count.astype(jnp.float32)])
