"""Settings of word vectors: splitting texts into words, and training."""

import dataclasses
from typing import Annotated, Literal

from transformer_jax.core.config_fields import Amount, Configuration, Count, NotNegative, Range
from transformer_jax.data.preparation import TextNormalization

__all__ = ["BlockShape", "TextConfig", "Word2VecConfig", "Words"]

Words = Literal["letters", "blanks"]
_STEP_WORDS = 4096  # per step, approximately
_SHARED_NEGATIVES = {"skip-gram": 32, "cbow": 16}
_INITIAL_RATE = {"skip-gram": 0.025, "cbow": 0.1}


@dataclasses.dataclass(frozen=True)
class BlockShape:
    """Numbers of words, blocks and negatives in a step.

    Attributes:
        words: Center words in a block.
        blocks: Blocks in a step, which update the tables in turn.
        negatives: Negatives of a block, shared by all its words.
        reach: The largest window.
    """

    words: int
    blocks: int
    negatives: int
    reach: int


@dataclasses.dataclass(frozen=True)
class TextConfig(Configuration, group="text"):
    """Settings for splitting texts into words."""

    words: Words = "letters"
    """Words: letters (lower case, runs of letters, digits, _ and inner apostrophes) or blanks
    (split at blanks, unchanged)."""
    normalization: TextNormalization = "nfc"
    """Compose characters (NFC), or none: leave the text unchanged."""
    min_count: Count = 5
    """Rarer words are left out."""
    phrases: Amount = 0
    """Passes that join two words that occur together, such as new_york; 2 passes make phrases of
    up to four words."""
    phrase_threshold: NotNegative = 100.0
    """Score above which two words become a phrase; a higher threshold makes fewer phrases."""


@dataclasses.dataclass(frozen=True)
class Word2VecConfig(Configuration, group="training"):
    """Settings of training word vectors."""

    method: Literal["skip-gram", "cbow"] = "skip-gram"
    """Method: skip-gram predicts a word from each word near it, cbow from the mean of all."""
    loss: Literal["negative-sampling", "softmax"] = "negative-sampling"
    """Loss: negative sampling, or the full softmax, which suits only small vocabularies."""
    size: Count = 300
    """Size of the vectors."""
    window: Count = 5
    """Largest distance between words that predict each other."""
    negative: Count = 5
    """Number of negatives per positive pair."""
    sample: NotNegative = 1e-3
    """Share of the text above which a word is subsampled; 0 keeps all words."""
    epochs: Count = 5
    """Passes over the text."""
    learning_rate: Annotated[float, Range(above=0, most=1)] | None = None
    """Initial learning rate, which falls linearly to nearly 0; None is 0.025, or 0.1 for cbow."""
    noise_exponent: NotNegative = 0.75
    """Exponent of the counts in the distribution of negatives."""
    block: Count = 32
    """Number of consecutive center words that share their negatives and form one update."""
    shared_negatives: Count | None = None
    """Negatives per block, weighted so that they amount to `negative` per pair. None is 32, or 16
    for cbow, which has one prediction per word instead of per pair."""
    seed: Amount = 0
    """Seed; on one machine, the same seed gives the same vectors."""

    @property
    def initial_rate(self) -> float:
        """The initial learning rate."""
        return _INITIAL_RATE[self.method] if self.learning_rate is None else self.learning_rate

    @property
    def shape(self) -> BlockShape:
        """The shape of a step."""
        blocks = max(_STEP_WORDS // self.block, 1)
        negatives = self.shared_negatives or _SHARED_NEGATIVES[self.method]
        return BlockShape(self.block, blocks, negatives, self.window)
