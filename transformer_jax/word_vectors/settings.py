"""Settings of word vectors: how texts become words, and how vectors are trained."""

import dataclasses
from typing import Annotated, Literal

from transformer_jax.core.config_fields import Amount, Configuration, Count, NotNegative, Range
from transformer_jax.data.preparation import TextNormalization

__all__ = ["BlockShape", "TextConfig", "Word2VecConfig", "Words"]

Words = Literal["letters", "blanks"]
_STEP_WORDS = 4096  # of a step, about
_SHARED_NEGATIVES = {"skip-gram": 32, "cbow": 16}
_INITIAL_RATE = {"skip-gram": 0.025, "cbow": 0.1}


@dataclasses.dataclass(frozen=True)
class BlockShape:
    """Numbers of words, blocks and negatives of a step.

    Attributes:
        words: Center words of a block.
        blocks: Blocks of a step, which update the tables one after the other.
        negatives: Negatives of a block, for all its words.
        reach: The largest window.
    """

    words: int
    blocks: int
    negatives: int
    reach: int


@dataclasses.dataclass(frozen=True)
class TextConfig(Configuration, group="text"):
    """Settings of splitting texts into words."""

    words: Words = "letters"
    """Words: letters (lowercase, runs of letters, digits, _ and inner apostrophes) or blanks
    (what stands between blanks, as it is)."""
    normalization: TextNormalization = "nfc"
    """Composed characters (NFC), or none: text as it is."""
    min_count: Count = 5
    """Rarer words are left out."""
    phrases: Amount = 0
    """Passes that join two words that occur together into one, such as new_york; 2 passes make
    phrases of up to four words."""
    phrase_threshold: NotNegative = 100.0
    """Score that a phrase exceeds; a higher threshold makes fewer phrases."""


@dataclasses.dataclass(frozen=True)
class Word2VecConfig(Configuration, group="training"):
    """Settings of training word vectors."""

    method: Literal["skip-gram", "cbow"] = "skip-gram"
    """Method: skip-gram predicts a word from each word near it, cbow from the mean of them all."""
    loss: Literal["negative-sampling", "softmax"] = "negative-sampling"
    """Loss: negative sampling, or the full softmax, which is for small vocabularies."""
    size: Count = 300
    """Size of the vectors."""
    window: Count = 5
    """Largest distance of words that predict each other."""
    negative: Count = 5
    """Negatives for each positive pair."""
    sample: NotNegative = 1e-3
    """Share of the text above which words are subsampled; 0 keeps all words."""
    epochs: Count = 5
    """Passes over the text."""
    learning_rate: Annotated[float, Range(above=0, most=1)] | None = None
    """Initial learning rate, which falls linearly to nearly 0; None is 0.025, and 0.1 for
    cbow."""
    noise_exponent: NotNegative = 0.75
    """Negatives are drawn by their counts to this power."""
    block: Count = 32
    """Consecutive center words that share their negatives and are one update."""
    shared_negatives: Count | None = None
    """Negatives of a block; each has the weight that makes them `negative` for each pair. None is
    32, and 16 for cbow, which has a prediction for each word and not for each pair."""
    seed: Amount = 0
    """Seed; on one machine, the same seed gives the same vectors."""

    @property
    def initial_rate(self) -> float:
        """The learning rate at the beginning."""
        return _INITIAL_RATE[self.method] if self.learning_rate is None else self.learning_rate

    @property
    def shape(self) -> BlockShape:
        """The shape of a step."""
        blocks = max(_STEP_WORDS // self.block, 1)
        negatives = self.shared_negatives or _SHARED_NEGATIVES[self.method]
        return BlockShape(self.block, blocks, negatives, self.window)
