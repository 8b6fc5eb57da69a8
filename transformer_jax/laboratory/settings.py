"""Settings of the experiments. Nothing here imports JAX: flags are checked before slow imports."""

import dataclasses
from typing import Any, Literal

from transformer_jax.errors import ConfigError

__all__ = [
    "GradientSettings",
    "LengthSettings",
    "MethodName",
    "ReaderName",
    "RecallSettings",
    "RewardSettings",
    "ScoreChoice",
]

ReaderName = Literal["tanh", "relu", "lstm", "gru", "attention"]
ScoreChoice = Literal["none", "dot", "general", "concat"]
MethodName = Literal["grpo", "ppo"]

_LONGEST = 8_192  # positions of a text: attention takes their square in memory


@dataclasses.dataclass(frozen=True)
class RecallSettings:
    """Accuracy of recalling a symbol, by the number of positions since it was seen."""

    distances: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)  # positions from cue to question
    models: tuple[ReaderName, ...] = ("tanh", "lstm", "gru", "attention")  # what is compared
    symbols: int = 8  # different cues; as many other symbols stand between cue and question
    parameters: int = 20_000  # of each model, as nearly as its size allows
    steps: int = 600  # most optimizer steps of a model at a distance; it stops once it recalls all
    batch_size: int = 16  # texts of a step
    learning_rate: float = 2e-3  # of Adam, for every model
    eval_texts: int = 512  # new texts that accuracy is measured on
    seeds: int = 1  # how often each model is trained anew
    seed: int = 0  # the first of the seeds

    def __post_init__(self) -> None:
        _check_trained(self)
        _at_least(self, symbols=2, eval_texts=1)
        _check_many("distances", self.distances, _LONGEST)
        _check_many("models", self.models)


@dataclasses.dataclass(frozen=True)
class GradientSettings:
    """Norm of the gradient of the last state, by the number of positions back to an input."""

    lags: int = 128  # the largest distance back, of models that are not trained
    models: tuple[ReaderName, ...] = ("tanh", "relu", "lstm", "gru", "attention")  # what is drawn
    kernel_scale: float = 2.0  # relu is drawn once more, its recurrent kernel times this; 1: not
    texts: int = 64  # texts, each with a random direction of the last state, of a mean
    trained_distance: int = 20  # models are trained to recall at this distance too; 0: they are not
    symbols: int = 8  # as in recall
    parameters: int = 20_000  # of each model, as nearly as its size allows
    steps: int = 1_500  # most optimizer steps of a model; it stops once it recalls all
    batch_size: int = 16  # texts of a step
    learning_rate: float = 2e-3  # of Adam, for every model
    seeds: int = 1  # models of each kind, over which a mean is taken
    seed: int = 0  # the first of the seeds

    def __post_init__(self) -> None:
        _check_trained(self)
        _at_least(self, lags=1, texts=1, symbols=2, trained_distance=0)
        if max(self.lags, self.trained_distance) > _LONGEST:
            raise ConfigError(f"--lags and --trained-distance: at most {_LONGEST:,} is possible")
        if not self.kernel_scale > 0:
            raise ConfigError(f"--kernel-scale is {self.kernel_scale}: a positive number is needed")
        _check_many("models", self.models)


@dataclasses.dataclass(frozen=True)
class LengthSettings:
    """Accuracy and BLEU of recurrent translators, by the length of the sentence."""

    scores: tuple[ScoreChoice, ...] = ("none", "concat")  # attention of the decoder
    cell: Literal["tanh", "lstm", "gru"] = "gru"  # of encoder and decoder
    order: Literal["same", "reversed"] = "same"  # of the words of a translation
    words: int = 30  # of the source vocabulary; each has one translation
    train_length: int = 20  # words of the longest sentence of training
    test_lengths: tuple[int, ...] = (5, 10, 15, 20, 25, 30, 35, 40)  # words
    parameters: int = 60_000  # of each translator, as nearly as its size allows
    steps: int = 1_500  # optimizer steps
    batch_size: int = 64  # sentences of a step
    learning_rate: float = 3e-3  # of Adam at the beginning; it falls to 0 as a cosine
    eval_sentences: int = 100  # new sentences of each length
    seeds: int = 1  # how often each translator is trained anew
    seed: int = 0  # the first of the seeds

    def __post_init__(self) -> None:
        _check_trained(self)
        _at_least(self, words=2, train_length=1, eval_sentences=1)
        if self.train_length > _LONGEST:
            raise ConfigError(f"--train-length is {self.train_length}: at most {_LONGEST:,}")
        _check_many("test-lengths", self.test_lengths, _LONGEST)
        _check_many("scores", self.scores)


@dataclasses.dataclass(frozen=True)
class RewardSettings:
    """Reward and KL divergence of policies that learn from rewards, with a budget and without."""

    methods: tuple[MethodName, ...] = ("grpo", "ppo")  # how policies learn
    budget: float = 2.0  # nats of a text that a policy may be away from the one of step 0
    kl_coefficient: float = 0.6  # weight of the penalty at step 0; it then follows the budget
    letters: int = 8  # of the alphabet
    length: int = 6  # most tokens of a text, its end included
    d_model: int = 32  # width of the policy, a decoder of one layer
    steps: int = 150  # batches of samples; each is learnt from in two updates
    batch_size: int = 8  # prompts of a step
    group_size: int = 4  # texts of each prompt
    learning_rate: float = 2e-3  # of Adam
    seeds: int = 3  # how often each policy is trained anew
    seed: int = 0  # the first of the seeds

    def __post_init__(self) -> None:
        _check_trained(self)
        _at_least(self, letters=2, length=1, d_model=2, group_size=2)
        if self.d_model % 4:
            raise ConfigError(f"--d-model is {self.d_model}: a multiple of 4")
        if self.length > 256:
            raise ConfigError(f"--length is {self.length}: at most 256")
        if not self.budget > 0:
            raise ConfigError(f"--budget is {self.budget}: a positive number is needed")
        if not self.kl_coefficient > 0:
            raise ConfigError(f"--kl-coefficient is {self.kl_coefficient}: above 0")
        _check_many("methods", self.methods)


def _check_trained(settings: Any) -> None:
    """Refuses what no training can use; messages name the flags."""
    least = {"steps": 1, "batch_size": 1, "seeds": 1, "parameters": 1, "seed": 0}
    _at_least(settings, **{name: n for name, n in least.items() if hasattr(settings, name)})
    if not 0 < settings.learning_rate <= 1:
        raise ConfigError(f"--learning-rate is {settings.learning_rate}: above 0, and at most 1")


def _at_least(settings: Any, **least: int) -> None:
    for name, bound in least.items():
        if getattr(settings, name) < bound:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is {getattr(settings, name)}: at least {bound}")


def _check_many(flag: str, values: tuple[Any, ...], most: int | None = None) -> None:
    """Refuses an empty list, doubles, and numbers outside ``1 .. most``."""
    if not values:
        raise ConfigError(f"--{flag} needs at least one value")
    if len(set(values)) < len(values):
        raise ConfigError(f"--{flag} {' '.join(map(str, values))}: each value only once")
    for value in values if most is not None else ():
        if not 1 <= value <= most:
            raise ConfigError(f"--{flag}: {value} is outside 1 to {most:,}")
