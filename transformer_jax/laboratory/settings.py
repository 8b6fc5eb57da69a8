"""Settings of the experiments. Nothing here imports JAX: flags are checked before slow imports."""

import dataclasses
from typing import Annotated, Any, Literal

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

_LONGEST = 8_192  # positions of a text: attention takes their square in memory
LearningRate = Annotated[float, Range(above=0, most=1)]


@dataclasses.dataclass(frozen=True)
class RecallSettings(Configuration, group="--"):
    """Accuracy of recalling a symbol, by the number of positions since it was seen."""

    distances: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)  # positions from cue to question
    models: tuple[ReaderName, ...] = ("tanh", "lstm", "gru", "attention")  # what is compared
    # Different cues; as many other symbols stand between cue and question.
    symbols: Annotated[int, Range(2)] = 8
    parameters: Count = 20_000  # of each model, as nearly as its size allows
    # Most optimizer steps of a model at a distance; it stops once it recalls all.
    steps: Count = 600
    batch_size: Count = 16  # texts of a step
    learning_rate: LearningRate = 2e-3  # of Adam, for every model
    eval_texts: Count = 512  # new texts that accuracy is measured on
    seeds: Count = 1  # how often each model is trained anew
    seed: Amount = 0  # the first of the seeds

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_many("distances", self.distances, _LONGEST)
        _check_many("models", self.models)


@dataclasses.dataclass(frozen=True)
class GradientSettings(Configuration, group="--"):
    """Norm of the gradient of the last state, by the number of positions back to an input."""

    # The largest distance back, of models that are not trained.
    lags: Annotated[int, Range(1, _LONGEST)] = 128
    models: tuple[ReaderName, ...] = ("tanh", "relu", "lstm", "gru", "attention")  # what is drawn
    kernel_scale: Positive = 2.0  # relu is drawn once more, its recurrent kernel times this; 1: not
    texts: Count = 64  # texts, each with a random direction of the last state, of a mean
    # Models are trained to recall at this distance too; 0: they are not.
    trained_distance: Annotated[int, Range(0, _LONGEST)] = 20
    symbols: Annotated[int, Range(2)] = 8  # as in recall
    parameters: Count = 20_000  # of each model, as nearly as its size allows
    steps: Count = 1_500  # most optimizer steps of a model; it stops once it recalls all
    batch_size: Count = 16  # texts of a step
    learning_rate: LearningRate = 2e-3  # of Adam, for every model
    seeds: Count = 1  # models of each kind, over which a mean is taken
    seed: Amount = 0  # the first of the seeds

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_many("models", self.models)


@dataclasses.dataclass(frozen=True)
class LengthSettings(Configuration, group="--"):
    """Accuracy and BLEU of recurrent translators, by the length of the sentence."""

    scores: tuple[ScoreChoice, ...] = ("none", "concat")  # attention of the decoder
    cell: Literal["tanh", "lstm", "gru"] = "gru"  # of encoder and decoder
    order: Literal["same", "reversed"] = "same"  # of the words of a translation
    words: Annotated[int, Range(2)] = 30  # of the source vocabulary; each has one translation
    # Words of the longest sentence of training.
    train_length: Annotated[int, Range(1, _LONGEST)] = 20
    test_lengths: tuple[int, ...] = (5, 10, 15, 20, 25, 30, 35, 40)  # words
    parameters: Count = 60_000  # of each translator, as nearly as its size allows
    steps: Count = 1_500  # optimizer steps
    batch_size: Count = 64  # sentences of a step
    learning_rate: LearningRate = 3e-3  # of Adam at the beginning; it falls to 0 as a cosine
    eval_sentences: Count = 100  # new sentences of each length
    seeds: Count = 1  # how often each translator is trained anew
    seed: Amount = 0  # the first of the seeds

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_many("test-lengths", self.test_lengths, _LONGEST)
        _check_many("scores", self.scores)


@dataclasses.dataclass(frozen=True)
class RewardSettings(Configuration, group="--"):
    """Reward and KL divergence of policies that learn from rewards, with a budget and without."""

    methods: tuple[MethodName, ...] = ("grpo", "ppo")  # how policies learn
    budget: Positive = 2.0  # nats of a text that a policy may be away from the one of step 0
    kl_coefficient: Positive = 0.6  # weight of the penalty at step 0; it then follows the budget
    letters: Annotated[int, Range(2)] = 8  # of the alphabet
    length: Annotated[int, Range(1, 256)] = 6  # most tokens of a text, its end included
    d_model: Annotated[int, Range(2)] = 32  # width of the policy, a decoder of one layer
    steps: Count = 150  # batches of samples; each is learnt from in two updates
    batch_size: Count = 8  # prompts of a step
    group_size: Annotated[int, Range(2)] = 4  # texts of each prompt
    learning_rate: LearningRate = 2e-3  # of Adam
    seeds: Count = 3  # how often each policy is trained anew
    seed: Amount = 0  # the first of the seeds

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_model % 4:
            raise ConfigError(f"--d-model is {self.d_model}: a multiple of 4")
        _check_many("methods", self.methods)


@dataclasses.dataclass(frozen=True)
class ScaleSettings(Configuration, group="--"):
    """Variance of attention scores and gradient of their softmax, by head size."""

    sizes: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)  # D of queries and keys
    keys: Annotated[int, Range(2, _LONGEST)] = 32  # of each query
    queries: Annotated[int, Range(2, _LONGEST)] = 512  # over which a mean is taken
    seeds: Count = 3  # how often queries and keys are drawn anew
    seed: Amount = 0  # the first of the seeds

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_many("sizes", self.sizes, _LONGEST)


def _check_many(flag: str, values: tuple[Any, ...], most: int | None = None) -> None:
    """Refuses an empty list, doubles, and numbers outside ``1 .. most``."""
    if not values:
        raise ConfigError(f"--{flag} needs at least one value")
    if len(set(values)) < len(values):
        raise ConfigError(f"--{flag} {' '.join(map(str, values))}: each value only once")
    for value in values if most is not None else ():
        if not 1 <= value <= most:
            raise ConfigError(f"--{flag}: {value} is outside 1 to {most:,}")
