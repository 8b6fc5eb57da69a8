"""A recipe that is not part of the package: captions of made-up pictures.

It is one file. Two lines make it known: its name in ``RECIPES`` and in the commands of a program::

    python -m tests.recipes.captioning train pictures --output runs/pictures
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float32

from transformer_jax.cli import training
from transformer_jax.core.config_fields import Configuration, Count
from transformer_jax.data.loader import pad_rows
from transformer_jax.data.speech.features import Normalization
from transformer_jax.data.speech.store import fill_positions
from transformer_jax.data.store import encode_texts
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.inference.base import Predictor
from transformer_jax.inference.load_run import load
from transformer_jax.inference.transcriber import Recording, Transcriber
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeatureConfig,
    FeedForwardConfig,
    NormConfig,
    TransformerConfig,
)
from transformer_jax.models.making import make_model
from transformer_jax.recipes import registry
from transformer_jax.recipes.recipe import Named, Recipe
from transformer_jax.recipes.settings import RunConfig, TokenBatches, TokenizerConfig
from transformer_jax.recipes.sizing import with_defaults
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.training.objectives import sequence_to_sequence
from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig
from transformer_jax.training.task import Data, Task, fingerprint

WORDS = ("cat", "dog", "sun", "sea", "hat")
PATCHES, WIDTH = 3, 6  # of a picture, numbers of a patch


@dataclasses.dataclass(frozen=True)
class PictureOptions(Configuration, group="data.read"):
    """Options of reading captions."""

    lowercase: bool = False  # lower-case every caption
    normalization: str = "none"  # captions are plain


@dataclasses.dataclass(frozen=True)
class PictureData(Configuration, group="data"):
    """The number of generated pictures."""

    train: Count = 96  # pictures to train on
    valid: Count = 8  # validation pictures
    read: PictureOptions = PictureOptions()


@dataclasses.dataclass(frozen=True)
class CaptionRun(RunConfig):
    """One training run of a model that describes pictures."""

    data: PictureData = PictureData()
    training: TokenBatches = TokenBatches()

    recipe: ClassVar[str] = "captioning"


@dataclasses.dataclass(frozen=True)
class EvaluateCaptions(Configuration, group="--"):
    """Print the share of captions that are exactly right."""

    pictures: int = 8
    """Other pictures to describe."""


class Pictures(list[str]):
    """Captions, with the patches of their pictures as ``features`` [N R F]."""

    features: Float32[np.ndarray, "N R F"]

    @classmethod
    def made_up(cls, number: int, seed: int) -> "Pictures":
        """Pictures of a few things each, and their captions."""
        rng = np.random.default_rng(seed)
        things = rng.integers(0, len(WORDS), (number, PATCHES))
        pictures = cls(" ".join(WORDS[thing] for thing in row) for row in things)
        looks = np.random.default_rng(0).normal(size=(len(WORDS), WIDTH))
        noise = 0.1 * rng.normal(size=(number, PATCHES, WIDTH))
        pictures.features = (looks[things] + noise).astype(np.float32)
        return pictures


class Captioning(Recipe):
    """Pictures, an encoder-decoder that describes them."""

    name = "captioning"
    title = "a model that describes pictures"
    config = CaptionRun
    family = "captions"
    reads_features = True
    metrics = ("exact",)
    evaluation = EvaluateCaptions

    @functools.cached_property
    def runs(self) -> Named:
        """The named run."""
        model = TransformerConfig(
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            embedding=EmbeddingConfig(share_encoder_decoder_embeddings=False),
            attention=AttentionConfig(num_heads=2),
            feed_forward=FeedForwardConfig(d_ff=64),
            norm=NormConfig(placement="pre"),
            features=FeatureConfig(WIDTH, 1),
        )
        run = CaptionRun(
            model=model,
            tokenizer=TokenizerConfig("characters", vocab_size=None),
            optimizer=OptimizerConfig("adamw", 1e-2, ScheduleConfig("cosine", None)),
            training=TokenBatches(epochs=None, num_buckets=1),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        )
        return with_defaults({"pictures": ("Made-up pictures: width 32, 1 + 1 layers.", run)})

    def length_limit(self, run: Any) -> tuple[str, int]:
        """Captions have the positions of the model."""
        return "model.positions.max_length", run.model.max_length

    def open_data(self, run: Any) -> tuple[Pictures, Pictures]:
        """Pictures for training and validation."""
        return Pictures.made_up(run.data.train, 1), Pictures.made_up(run.data.valid, 2)

    def tokenizer_texts(self, run: Any, data: Any) -> Iterable[str]:
        """The captions."""
        return list(data[0])

    def make_task(self, run: Any, directory: Any, tokenizer: Any, data: Any) -> Task:
        """Captions, and the share of them that is exactly right."""
        train, valid = data
        of = functools.partial(_batches, tokenizer=tokenizer, batching=run.training.batching)
        return Task(
            model=lambda rngs: make_model("encoder-decoder", run.model, rngs=rngs),
            train=of(train),
            objective=sequence_to_sequence(tokenizer.bos),
            valid={"valid": of(valid, shuffle=False)},
            metrics=(Metric("valid_loss", "lower"), Metric("exact", "higher")),
            evaluate=lambda model: {"exact": _exact(model, tokenizer, valid)},
            tokenizer=tokenizer,
        )

    def model(self, config: Any, fields: Mapping[str, Any], rngs: Any) -> Any:
        """An encoder-decoder."""
        return make_model("encoder-decoder", config, rngs=rngs)

    def evaluate(self, request: Any, directory: Any) -> int:
        """Prints the share of captions that are exactly right."""
        model, tokenizer = load(directory.path, request.checkpoint, kind=self.family)
        print(f"exact {_exact(model, tokenizer, Pictures.made_up(request.pictures, 3)):.3f}")
        return 0

    def predictor(self, path: Path, checkpoint: str) -> "Describer":
        """A function from pictures to captions."""
        return Describer(*load(path, checkpoint, kind=self.family))


class Describer(Predictor):
    """Patches of pictures in, captions out."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer

    def __call__(self, features: Float32[np.ndarray, "N R F"]) -> list[str]:
        """The caption of each picture."""
        return _describe(self.model, self.tokenizer, features)


def _batches(pictures: Pictures, tokenizer: Any, batching: Any, shuffle: bool = True) -> Data:
    target, features = encode_texts(pictures, tokenizer, ((), (tokenizer.eos,))), pictures.features
    plan = batching.plan(np.full(len(features), PATCHES), target.lengths, shuffle=shuffle)
    nothing = np.zeros((0, WIDTH), np.float32)

    def make(items: Any) -> dict[str, Any]:
        rows = [features[i] if i >= 0 else nothing for i in items.indices.tolist()]
        source, sizes = fill_positions(rows, len(rows), items.S, 1)
        tokens, lengths = pad_rows(target, items.indices, items.T, tokenizer.pad)
        inputs = {"source": source, "source_lengths": sizes}
        return {"inputs": inputs, "target": tokens, "lengths": lengths}

    return Data(plan, make, fingerprint(plan.fingerprint, [features.ravel(), target.ids]))


def _describe(model: Any, tokenizer: Any, features: Any) -> list[str]:
    plain = Normalization((0.0,) * WIDTH, (1.0,) * WIDTH)
    describer = Transcriber(model, tokenizer, plain, search=TRANSLATION.changed(num_beams=1))
    return [one.text for one in describer.translate([Recording("", one) for one in features])]


def _exact(model: Any, tokenizer: Any, pictures: Pictures) -> float:
    captions = _describe(model, tokenizer, pictures.features)
    return float(np.mean([a == b for a, b in zip(captions, pictures, strict=True)]))


RECIPES: Mapping[str, Recipe] = {"captioning": Captioning()}

registry.RECIPES["captioning"] = "tests.recipes.captioning"
PROGRAM = training.TrainingProgram("captioning", "Captions.", {"train": ("captioning",)})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command."""
    return training.main(PROGRAM, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
