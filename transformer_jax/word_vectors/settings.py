"""Settings of word vectors: how texts become words, and how vectors are trained."""

import dataclasses
from typing import Literal

from transformer_jax.errors import ConfigError, at_least

__all__ = ["BlockShape", "TextConfig", "Word2VecConfig", "Words"]

Words = Literal["letters", "blanks"]
_STEP_WORDS = 4096  # of a step, about
_SHARED_NEGATIVES = {"skip-gram": 32, "cbow": 16}
_INITIAL_RATE = {"skip-gram": 0.025, "cbow": 0.1}


@dataclasses.dataclass(frozen=True)
class BlockShape:
    """How many words, blocks and negatives a step has.

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
    """Initial learning rate, which falls linearly to nearly 0; None is 0.025, and 0.1 for
    cbow."""
    noise_exponent: float = 0.75
    """Negatives are drawn by their counts to this power."""
    block: int = 32
    """Consecutive center words that share their negatives and are one update."""
    shared_negatives: int | None = None
    """Negatives of a block; each has the weight that makes them `negative` for each pair. None is
    32, and 16 for cbow, which has a prediction for each word and not for each pair."""
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
        negatives = self.shared_negatives or _SHARED_NEGATIVES[self.method]
        return BlockShape(self.block, blocks, negatives, self.window)
