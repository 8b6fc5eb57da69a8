"""A custom kind of training, with its commands: numbers are reversed, and exact ones counted."""

import dataclasses
import sys

import transformer_jax as tj
from transformer_jax.cli.training import TrainingProgram, main
from transformer_jax.data.sources import Pairs, Splits
from transformer_jax.decoding.translator import Translator
from transformer_jax.recipes import registry
from transformer_jax.recipes.settings import TokenizerConfig
from transformer_jax.recipes.translation import Run, SmoothedTraining, Translation


class ReversalRun(Run):
    """One training run; its fields, here those of a translator, are flags."""


RUN = ReversalRun(
    model=tj.TransformerConfig(100, 64, 1, 1, feed_forward=tj.FeedForwardConfig(d_ff=128)),
    tokenizer=TokenizerConfig("characters", 100),
    optimizer=tj.OptimizerConfig("adamw", 3e-3, tj.ScheduleConfig("cosine", None)),
    training=SmoothedTraining(steps=300, max_tokens=512, num_buckets=1),
)


def numbers(start: int, count: int) -> Pairs:
    texts = [str(100 + n * 389 % 900) for n in range(start, start + count)]
    return Pairs(texts, [text[::-1] for text in texts], "numbers")


class Reversal(Translation):
    """Like translation, its nearest kind, with other data and another metric."""

    name, title, config = "reversal", "a model that reverses numbers", ReversalRun
    metrics = ("exact",)
    runs = property(lambda self: {"reversal": ("Numbers of three digits.", RUN)})

    def data(self, run):
        """Returns numbers for training and validation."""
        return Splits(numbers(0, 800), numbers(800, 50))

    def task(self, run, directory, tokenizer, data):
        """Returns a task whose best checkpoint reverses the most numbers exactly."""

        def evaluate(model):
            texts = Translator(model, tokenizer).translate(data.valid.sources)
            pairs = zip(texts, data.valid.targets, strict=True)
            return {"exact": sum(made.text == text for made, text in pairs) / len(data.valid)}

        task = super().task(run, directory, tokenizer, data)
        return dataclasses.replace(task, metrics=(tj.Metric("exact", "higher"),), evaluate=evaluate)


registry.RECIPES["reversal"] = "own_kind"  # this module: `train reversal --import own_kind`
PROGRAM = TrainingProgram("own_kind", "Reversed numbers.", {"train": ("reversal",)})
if __name__ == "__main__":
    sys.exit(main(PROGRAM, sys.argv[1:] or ["train", "reversal"]))
