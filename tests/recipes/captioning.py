"""A recipe that is not part of the package: captions of drawn pictures.

A Vision Transformer encodes a picture, and a Transformer decoder writes its caption. The recipe is
one file. Two lines make it known: its name in ``RECIPES`` and in the commands of a program::

    python -m tests.recipes.captioning train pictures --output runs/pictures
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8

from transformer_jax.cli import training
from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.config_fields import Configuration, Count
from transformer_jax.data.loader import pad_rows
from transformer_jax.data.store import encode_texts
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.programs import generate
from transformer_jax.inference.base import Predictor
from transformer_jax.inference.facts import Facts
from transformer_jax.inference.pretrained import Pretrained
from transformer_jax.models.composed import EncoderDecoder
from transformer_jax.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    ImageConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.presets import vit
from transformer_jax.models.transformer.models import TransformerDecoder
from transformer_jax.models.vision import VisionEncoder
from transformer_jax.recipes import registry
from transformer_jax.recipes.checks import validated
from transformer_jax.recipes.explicit_settings import Given
from transformer_jax.recipes.recipe import Named, Prepared, Recipe
from transformer_jax.recipes.settings import TokenBatches, TokenizerConfig, Trained
from transformer_jax.recipes.sizing import with_defaults
from transformer_jax.recipes.start import Start
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.objectives import sequence_to_sequence
from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig
from transformer_jax.training.task import Data, Task, fingerprint

COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}
SHAPES = ("circle", "square")
SIZE = 16  # pixels along each side


@dataclasses.dataclass(frozen=True)
class PictureData(Configuration, group="data"):
    """The number of drawn pictures."""

    train: Count = 1024  # pictures to train on
    valid: Count = 16  # validation pictures


@dataclasses.dataclass(frozen=True)
class CaptionRun(Trained):
    """One training run of a model that describes pictures."""

    # Width and layers of both sides. A configuration is of texts or of images: the second part of
    # the model has settings of its own, in a further field.
    model: TransformerConfig = TransformerConfig()
    image: ImageConfig = ImageConfig(SIZE, patch_size=4)
    data: PictureData = PictureData()
    training: TokenBatches = TokenBatches()


@dataclasses.dataclass(frozen=True)
class EvaluateCaptions(Configuration, group="--"):
    """Print the share of captions that are exactly right."""

    pictures: Count = 8
    """Other pictures to describe."""


class Pictures(list[str]):
    """Captions, with their pictures as ``pixels`` [N height width channels]."""

    pixels: UInt8[np.ndarray, "N {SIZE} {SIZE} 3"]

    @classmethod
    def drawn(cls, number: int, seed: int) -> "Pictures":
        """Returns pictures of one thing each, and their captions."""
        rng, (y, x) = np.random.default_rng(seed), np.mgrid[:SIZE, :SIZE]
        pictures, pixels = cls(), np.zeros((number, SIZE, SIZE, 3), np.uint8)
        for picture in pixels:
            color, shape, radius = rng.choice(list(COLORS)), rng.choice(SHAPES), rng.integers(3, 6)
            up, left = (abs(axis - rng.integers(5, SIZE - 5)) for axis in (y, x))
            distance = np.hypot(up, left) if shape == "circle" else np.maximum(up, left)
            picture[distance <= radius] = COLORS[color]
            pictures.append(f"a {color} {shape}")
        pictures.pixels = pixels
        return pictures


Splits = tuple[Pictures, Pictures]  # for training and validation


class Captioning(Recipe[CaptionRun, Splits]):
    """Pictures, an encoder-decoder that describes them."""

    name = "captioning"
    title = "a model that describes pictures"
    config = CaptionRun
    family = "captions"
    metrics = ("exact",)
    evaluation = EvaluateCaptions

    @functools.cached_property
    def runs(self) -> Named:
        """The named run."""
        model = TransformerConfig(
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            positions=PositionConfig(max_length=16),
            attention=AttentionConfig(num_heads=2),
            feed_forward=FeedForwardConfig(d_ff=64),
            norm=NormConfig(placement="pre"),
        )
        run = CaptionRun(
            model=model,
            tokenizer=TokenizerConfig("wordpiece", vocab_size=None),
            optimizer=OptimizerConfig("adamw", 3e-3, ScheduleConfig("cosine", None)),
            training=TokenBatches(epochs=30, max_tokens=512, num_buckets=1),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        )
        return with_defaults({"pictures": ("Drawn pictures: width 32, 1 + 1 layers.", lambda: run)})

    def data(self, run: CaptionRun) -> Splits:
        """Returns pictures for training and validation."""
        return Pictures.drawn(run.data.train, 1), Pictures.drawn(run.data.valid, 2)

    def prepare(
        self, run: CaptionRun, start: Start | None, given: Given[CaptionRun]
    ) -> Prepared[CaptionRun, Splits]:
        """Returns a run whose tokenizer is trained on the captions."""
        run = validated(run, start, given)
        data = self.data(run)
        return Prepared(run, data, texts=lambda: data[0])

    def task(
        self, run: CaptionRun, directory: RunDirectory, tokenizer: Tokenizer, data: Splits
    ) -> Task:
        """Returns the task of captions, with the share of them that is exactly right."""
        train, valid = data
        batches = functools.partial(_batches, tokenizer=tokenizer, batching=run.training.batching)
        return Task(
            model=lambda rngs: _make_model(run.model, run.image, rngs),
            train=batches(train),
            objective=sequence_to_sequence(tokenizer.bos),
            valid={"valid": batches(valid, shuffle=False)},
            metrics=(Metric("valid_loss", "lower"), Metric("exact", "higher")),
            evaluate=lambda model: {"exact": _exact(Describer(model, tokenizer), valid)},
            tokenizer=tokenizer,
        )

    def model(self, config: Any, fields: Mapping[str, Any], rngs: Any) -> EncoderDecoder:
        """Returns an encoder of pictures and a decoder."""
        return _make_model(config, from_dict(ImageConfig, fields["image"]), rngs)

    def evaluate(self, request: Any, facts: Facts) -> int:
        """Prints the share of captions that are exactly right."""
        describe = self.predictor(facts)
        pictures = Pictures.drawn(request.pictures, 3)
        print(f"exact {_exact(describe, pictures):.3f}")
        if request.output is not None:
            request.output.write_text("".join(f"{text}\n" for text in describe(pictures.pixels)))
        return 0

    def predictor(self, facts: Facts) -> "Describer":
        """Returns a function from pictures to captions."""
        opened = Pretrained.load(facts)
        return Describer(opened.module, opened.tokenizer)


class Describer(Predictor):
    """A trained model as a function from pictures to captions."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer

    def __call__(self, pictures: UInt8[np.ndarray, "N height width channels"]) -> list[str]:
        """Returns the caption of each picture."""
        config = GenerationConfig(
            decoder_start_token_id=self.tokenizer.bos,
            eos_token_id=(self.tokenizer.eos,),
            max_new_tokens=self.model.decoder.stack.config.max_length,
        )
        tokens = generate(self.model, {"images": _normalized(pictures)}, config)
        return self.tokenizer.decode_batch(tokens.tolist())  # type: ignore[no-any-return]


def _make_model(config: TransformerConfig, image: ImageConfig, rngs: Any) -> EncoderDecoder:
    encoder = dataclasses.replace(
        vit(config.d_model, config.encoder_layers, **dataclasses.asdict(image)),
        attention=config.attention,
        compute=config.compute,
    )
    decoder = TransformerDecoder.from_config(config, rngs=rngs)
    return EncoderDecoder(VisionEncoder(encoder, rngs=rngs), decoder)


def _normalized(pixels: UInt8[np.ndarray, "..."]) -> Float32[np.ndarray, "..."]:
    return pixels.astype(np.float32) / 127.5 - 1


def _batches(pictures: Pictures, tokenizer: Any, batching: Any, shuffle: bool = True) -> Data:
    pixels, target = pictures.pixels, encode_texts(pictures, tokenizer, ((), (tokenizer.eos,)))
    plan = batching.plan(target.lengths, shuffle=shuffle)

    def make(items: Any) -> dict[str, Any]:
        # Item -1 fills a batch up: its caption has no tokens, so that its picture does not count.
        tokens, lengths = pad_rows(target, items.indices, items.T, tokenizer.pad)
        inputs = {"images": _normalized(pixels[items.indices])}
        return {"inputs": inputs, "target": tokens, "lengths": lengths}

    return Data(plan, make, fingerprint(plan.fingerprint, [pixels.ravel(), target.ids]))


def _exact(describe: Describer, pictures: Pictures) -> float:
    captions = describe(pictures.pixels)
    return float(np.mean([a == b for a, b in zip(captions, pictures, strict=True)]))


# A recipe of the package has one line in each of `registry.py` and `cli/training.py` instead.
registry.RECIPES["captioning"] = "tests.recipes.captioning"
PROGRAM = training.TrainingProgram("captioning", "Captions.", {"train": ("captioning",)})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command."""
    return training.main(PROGRAM, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
