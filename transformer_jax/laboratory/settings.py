"""Settings of the experiments. Nothing here imports JAX: flags are checked before slow imports."""

import dataclasses
from typing import Annotated, Literal

from transformer_jax.core.config_fields import Amount, Configuration, Count, Positive, Range
from transformer_jax.core.errors import ConfigError

__all__ = [
    "GradientSettings",
    "LengthSettings",
    "MethodName",
    "ReaderName",
    "RecallSettings",
    "RewardSettings",
    "ScaleSettings",
    "ScoreChoice",
]

ReaderName = Literal["tanh", "relu", "lstm", "gru", "attention"]
ScoreChoice = Literal["none", "dot", "general", "concat"]
MethodName = Literal["grpo", "ppo"]

_LONGEST = 8_192  # positions of a text: attention needs the square of this in memory
LearningRate = Annotated[float, Range(above=0, most=1)]


@dataclasses.dataclass(frozen=True)
class RecallSettings(Configuration, group="--"):
    """Accuracy of recalling a symbol, by the number of positions since it was seen."""

    distances: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)  # positions from cue to question
    models: tuple[ReaderName, ...] = ("tanh", "lstm", "gru", "attention")  # models to compare
    # Number of different cues, and of other symbols between cue and question.
    symbols: Annotated[int, Range(2)] = 8
    parameters: Count = 20_000  # parameters of each model, as closely as its size allows
    # Most optimizer steps of a model at a distance; it stops once it recalls everything.
    steps: Count = 600
    batch_size: Count = 16  # texts per step
    learning_rate: LearningRate = 2e-3  # learning rate of Adam, for every model
    eval_texts: Count = 512  # new texts on which accuracy is measured
    seeds: Count = 1  # number of trainings of each model
    seed: Amount = 0  # first seed

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_many("distances", self.distances, _LONGEST)
        _check_many("models", self.models)


@dataclasses.dataclass(frozen=True)
class GradientSettings(Configuration, group="--"):
    """Norm of the gradient of the last state, by the number of positions back to an input."""

    # Largest distance back for untrained models.
    lags: Annotated[int, Range(1, _LONGEST)] = 128
    models: tuple[ReaderName, ...] = ("tanh", "relu", "lstm", "gru", "attention")  # models to draw
    kernel_scale: Positive = 2.0  # also draw relu with its recurrent kernel times this; 1: do not
    texts: Count = 64  # number of texts to average, each with a random direction of the last state
    # Also train models to recall at this distance; 0: do not.
    trained_distance: Annotated[int, Range(0, _LONGEST)] = 20
    symbols: Annotated[int, Range(2)] = 8  # as in recall
    parameters: Count = 20_000  # parameters of each model, as closely as its size allows
    steps: Count = 1_500  # most optimizer steps of a model; it stops once it recalls everything
    batch_size: Count = 16  # texts per step
    learning_rate: LearningRate = 2e-3  # learning rate of Adam, for every model
    seeds: Count = 1  # models of each kind to average
    seed: Amount = 0  # first seed

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_many("models", self.models)


@dataclasses.dataclass(frozen=True)
class LengthSettings(Configuration, group="--"):
    """Accuracy and BLEU of recurrent translators, by the length of the sentence."""

    scores: tuple[ScoreChoice, ...] = ("none", "concat")  # attention scores of the decoder
    cell: Literal["tanh", "lstm", "gru"] = "gru"  # cell of encoder and decoder
    order: Literal["same", "reversed"] = "same"  # order of the words in translations
    words: Annotated[int, Range(2)] = 30  # source vocabulary size; each word has one translation
    # Number of words in the longest training sentence.
    train_length: Annotated[int, Range(1, _LONGEST)] = 20
    test_lengths: tuple[int, ...] = (5, 10, 15, 20, 25, 30, 35, 40)  # numbers of words
    parameters: Count = 60_000  # parameters of each translator, as closely as its size allows
    steps: Count = 1_500  # optimizer steps
    batch_size: Count = 64  # sentences per step
    learning_rate: LearningRate = 3e-3  # initial learning rate of Adam; it falls to 0 as a cosine
    eval_sentences: Count = 100  # new sentences per length
    seeds: Count = 1  # number of trainings of each translator
    seed: Amount = 0  # first seed

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_many("test-lengths", self.test_lengths, _LONGEST)
        _check_many("scores", self.scores)


@dataclasses.dataclass(frozen=True)
class RewardSettings(Configuration, group="--"):
    """Reward and KL divergence of policies that learn from rewards, with a budget and without."""

    methods: tuple[MethodName, ...] = ("grpo", "ppo")  # training methods of policies
    budget: Positive = 2.0  # nats per text that a policy may differ from the initial one
    kl_coefficient: Positive = 0.6  # initial weight of the penalty, then adapted to the budget
    letters: Annotated[int, Range(2)] = 8  # size of the alphabet
    length: Annotated[int, Range(1, 256)] = 6  # most tokens of a text, including its end
    d_model: Annotated[int, Range(2)] = 32  # width of the policy, a decoder of one layer
    steps: Count = 150  # batches of samples, each used for two updates
    batch_size: Count = 8  # prompts per step
    group_size: Annotated[int, Range(2)] = 4  # texts per prompt
    learning_rate: LearningRate = 2e-3  # learning rate of Adam
    seeds: Count = 3  # number of trainings of each policy
    seed: Amount = 0  # first seed

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % 4:
            raise ConfigError(f"--d-model is {self.d_model}: a multiple of 4")
        _check_many("methods", self.methods)


@dataclasses.dataclass(frozen=True)
class ScaleSettings(Configuration, group="--"):
    """Variance of attention scores and gradient of their softmax, by head size."""

    sizes: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)  # D of queries and keys
    keys: Annotated[int, Range(2, _LONGEST)] = 32  # number of keys per query
    queries: Annotated[int, Range(2, _LONGEST)] = 512  # number of queries to average
    seeds: Count = 3  # number of random draws of queries and keys
    seed: Amount = 0  # first seed

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_many("sizes", self.sizes, _LONGEST)


def _check_many(
    flag: str, values: tuple[str, ...] | tuple[int, ...], most: int | None = None
) -> None:
    """Refuses an empty list, repeated values, and values outside ``1 .. most``."""
    if not values:
        raise ConfigError(f"--{flag} needs at least one value")
    if len(set(values)) < len(values):
        raise ConfigError(f"--{flag} {' '.join(map(str, values))}: each value only once")
    for value in values:
        if most is not None and isinstance(value, int) and not 1 <= value <= most:
            raise ConfigError(f"--{flag}: {value} is outside 1 to {most:,}")
