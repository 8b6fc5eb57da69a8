"""Retrieval of images and texts with two towers: ``train clip-scenes``."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.config_fields import Count, Flag
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.task_progress import log
from transformer_jax.data.images.augmentation import Augmentation
from transformer_jax.data.images.captioned_pictures import CaptionData, open_captions, own_captions
from transformer_jax.data.images.data import ImageSplits
from transformer_jax.data.images.preprocessing import Preprocessing
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.contrast_config import ContrastConfig
from transformer_jax.models.presets import vit
from transformer_jax.recipes.pictures import (
    attentions_to_images,
    check_pictures,
    computed_as,
    refuse_mixtures,
    scored_pictures,
)
from transformer_jax.recipes.read_flags import PictureColumnFlags, with_read_flags
from transformer_jax.recipes.recipe import Named, Prepared, Recipe
from transformer_jax.recipes.settings import Cached, ExampleBatches, RunConfig, TokenizerConfig
from transformer_jax.recipes.sizing import with_defaults
from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig

if TYPE_CHECKING:
    from flax import nnx

    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.plan_inputs import BatchShapes, PlanInputs
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = ["Clip", "ClipRun"]


@dataclasses.dataclass(frozen=True)
class PairBatches(ExampleBatches):
    """Training settings: duration, number of pairs per batch, seed."""

    batch_size: Count = 256  # pairs per batch, over all devices; all are compared with each other


@dataclasses.dataclass(frozen=True)
class ClipRun(Cached, RunConfig):
    """One training run of two towers."""

    model: TransformerConfig = TransformerConfig()  # the tower of texts
    encoder: TransformerConfig = vit(192, 12)  # the tower of images
    contrast: ContrastConfig = ContrastConfig()
    data: CaptionData = CaptionData()
    preprocessing: Preprocessing = Preprocessing()
    augmentation: Augmentation = Augmentation()
    training: PairBatches = PairBatches()

    parts: ClassVar[tuple[str, ...]] = ("encoder",)

    @property
    def batch_tokens(self) -> int:
        """Returns the number of tokens and patches of a batch."""
        return self.training.batch_size * (self.model.max_length + self.encoder.max_length)


@dataclasses.dataclass(frozen=True)
class EvaluatePairs(PictureColumnFlags):
    """Print recall at 1, 5 and 10 of texts by pictures and of pictures by texts."""

    images: Annotated[str | None, Flag("data.images")] = None
    """Table, folder or array of pictures and texts, read like the pictures of the run; None is the
    test (or else validation) pictures of the run."""


class Clip(Recipe[ClipRun, ImageSplits]):
    """A Vision Transformer and a Transformer for texts, trained on pictures with texts."""

    name = "clip"
    title = "a model of images and texts"
    config: ClassVar[type] = ClipRun
    family = "two-tower"
    starts = ("two-tower",)
    metrics = ("valid_accuracy", "recall_1")
    has_plan = True
    has_estimate = False
    evaluation = EvaluatePairs

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs."""
        return with_defaults(_NAMED)

    def data(self, run: ClipRun) -> ImageSplits:
        """Returns the pictures and their texts."""
        return open_captions(run.data)

    def check(self, run: ClipRun, given: "Given[ClipRun]") -> None:
        """Refuses settings that do not apply to two towers."""
        if run.freeze not in ("none", "encoder") or run.reinit_last or run.reinit_head:
            raise ConfigError(
                "freeze: only the tower of images can be frozen (freeze encoder); leave "
                "reinit_last and reinit_head out"
            )
        refuse_mixtures(run.augmentation)
        check_pictures(run, "encoder", given)
        if run.training.mode == "pmap":
            raise ConfigError(
                "training.mode is pmap, but all pairs of a batch are compared: use jit"
            )

    def prepare(
        self, run: ClipRun, start: "Start | None", given: "Given[ClipRun]"
    ) -> Prepared[ClipRun, ImageSplits]:
        """Returns a run with both towers and the preprocessing of its start."""
        from transformer_jax.recipes.checks import validated

        if start is not None:
            log(f"{run.init_from} is {start.name}: all of it is loaded")
            run = _with_towers(start.adapt(run, given), start, given)
        # The tower of images has no layers of `model`.
        layers = dataclasses.replace(run, freeze="none") if run.freeze == "encoder" else run
        run = validated(run, start, given, layers)
        data = self.data(run)
        return Prepared(run, data, lambda: data.train.texts)

    def task(
        self, run: ClipRun, directory: "RunDirectory", tokenizer: "Tokenizer", data: ImageSplits
    ) -> "Task":
        """Returns the task of pairs."""
        from transformer_jax.models.partition import where
        from transformer_jax.recipes.tasks.contrast_task import Towers, contrast
        from transformer_jax.recipes.tasks.image_task import ImageBatching

        task = contrast(
            data,
            Towers(computed_as(run.model, run.encoder), run.model, run.contrast),
            tokenizer,
            preprocessing=run.preprocessing,
            augmentation=run.augmentation,
            batching=ImageBatching(run.training.batch_size, run.training.seed),
            cache=directory.path / "store" if run.cache is None else Path(run.cache),
        )
        if run.freeze != "encoder":
            return task
        texts = where(lambda path: not path.startswith("encoder/"))
        return dataclasses.replace(task, partition=texts)

    def plan_inputs(self, run: ClipRun, batch: "BatchShapes") -> "PlanInputs":
        """Returns what training and evaluation are made of."""
        from flax import nnx

        from transformer_jax.models.two_towers import TwoTowers
        from transformer_jax.recipes.plan_inputs import PlanInputs
        from transformer_jax.training.objectives import contrastive

        encoder, loss = computed_as(run.model, run.encoder), contrastive(run.contrast.loss)
        shapes = {
            "images": batch.images(encoder),
            "tokens": batch.array(batch.length),
            "lengths": batch.array(),
            "captions": batch.array(1),
        }
        seen = attentions_to_images(encoder, "encoder of images")
        return PlanInputs(
            lambda: TwoTowers(encoder, run.model, run.contrast, rngs=nnx.Rngs(0)),
            loss,
            loss,
            shapes,
            attentions=(*seen, ("encoder of texts", run.model)),
        )

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints recall among pictures and texts."""
        from transformer_jax.data.images.data import open_table
        from transformer_jax.inference.image_texts import ImageTextPredictor
        from transformer_jax.inference.pretrained import Pretrained
        from transformer_jax.recipes.driver import settings_of
        from transformer_jax.recipes.tasks.scores import table, write_scores

        run = with_read_flags(settings_of(facts), request)
        if request.images is None:
            _, parts = scored_pictures(run, self.data, request.run)
        else:
            parts = {"data": open_table(request.images, run.data.read, "--data.images")}
        opened = Pretrained.load(facts)
        predictor = ImageTextPredictor(opened)
        scores = {name: predictor.recalls(part) for name, part in parts.items()}
        print(table(scores), flush=True)
        write_scores(request.output, scores)
        return 0

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from pictures and texts to vectors and similarities."""
        from transformer_jax.inference.image_texts import ImageTextPredictor
        from transformer_jax.inference.pretrained import Pretrained

        return ImageTextPredictor(Pretrained.load(facts))

    def model(self, config: Any, fields: Mapping[str, Any], rngs: "nnx.Rngs") -> Any:
        """Returns a model of two towers."""
        from transformer_jax.models.two_towers import TwoTowers

        encoder, contrast = towers_of(fields)
        return TwoTowers(computed_as(config, encoder), config, contrast, rngs=rngs)


def _with_towers(run: ClipRun, start: "Start", given: "Given[ClipRun]") -> ClipRun:
    """Returns the run with the tower of images and the preprocessing of its start."""
    from transformer_jax.inference.images import pictures_of
    from transformer_jax.recipes.explicit_settings import with_given

    fields, named = start.facts.record, given.named
    encoder, contrast = towers_of(fields)
    kept = pictures_of(fields, encoder.image).preprocessing
    encoder = with_given(encoder, run.encoder, named.encoder, given, "encoder.")
    usual = named.preprocessing
    return dataclasses.replace(
        run,
        encoder=dataclasses.replace(encoder, compute=run.encoder.compute),
        contrast=with_given(contrast, run.contrast, named.contrast, given, "contrast."),
        preprocessing=with_given(kept, run.preprocessing, usual, given, "preprocessing."),
    )


def towers_of(fields: Mapping[str, Any]) -> tuple[TransformerConfig, ContrastConfig]:
    """Returns a stored run's tower of images, and the settings shared by both towers.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    try:
        encoder = from_dict(TransformerConfig, fields["encoder"])
        return encoder, from_dict(ContrastConfig, fields["contrast"])
    except (ConfigError, TypeError, KeyError) as error:
        raise CheckpointError(f"config.json: encoder or contrast: {error}: damaged?") from None


def _texts(width: int, layers: int, heads: int, length: int, dropout: float) -> TransformerConfig:
    """Returns a tower of texts with CLIP's layout."""
    return TransformerConfig(
        d_model=width,
        encoder_layers=0,
        decoder_layers=layers,
        embedding=EmbeddingConfig(scale=1.0, dropout=dropout),
        positions=PositionConfig(kind="learned", max_length=length),
        attention=AttentionConfig(num_heads=heads),
        feed_forward=FeedForwardConfig(d_ff=4 * width, activation="quick_gelu"),
        norm=NormConfig(placement="pre", residual_dropout=dropout),
    )


def _images(width: int, layers: int, heads: int, **sizes: Any) -> TransformerConfig:
    """Returns a tower of images with CLIP's layout: pre-block norm, patches without bias."""
    usual = vit(width, layers, patch_bias=False, **sizes)
    return dataclasses.replace(
        usual,
        embedding=dataclasses.replace(usual.embedding, layernorm_embedding=True),
        attention=AttentionConfig(num_heads=heads),
        feed_forward=dataclasses.replace(usual.feed_forward, activation="quick_gelu"),
        norm=dataclasses.replace(usual.norm, eps=1e-5),
    )


def _with_sinusoids(config: TransformerConfig) -> TransformerConfig:
    """Returns the configuration with sinusoids, which distinguish patches from the start."""
    positions = dataclasses.replace(config.positions, kind="sinusoidal")
    return dataclasses.replace(config, positions=positions)


def _optimizer(learning_rate: float, warmup: int | None) -> OptimizerConfig:
    schedule = ScheduleConfig("cosine", warmup_steps=warmup)
    return OptimizerConfig("adamw", learning_rate, schedule, weight_decay=0.1)


_OWN = ClipRun(
    model=_texts(256, 6, 4, 77, 0.0),
    encoder=_images(192, 12, 3),
    contrast=ContrastConfig(projection_dim=256),
    data=own_captions(),
    augmentation=Augmentation(crop="resized", area=(0.5, 1.0)),
    tokenizer=TokenizerConfig(vocab_size=None),
    optimizer=_optimizer(1e-3, None),
    training=PairBatches(epochs=None),
    loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
)
_NAMED: dict[str, tuple[str, Callable[[], ClipRun]]] = {
    "clip": (
        "Your own pictures and texts: CLIP with a ViT-Ti/16 at 224 x 224 pixels.",
        lambda: _OWN,
    ),
    "siglip": (
        "Your own pictures and texts: like clip, with the loss of SigLIP.",
        lambda: dataclasses.replace(_OWN, contrast=ContrastConfig("sigmoid", projection_dim=256)),
    ),
    "clip-scenes": (
        "The built-in pictures of shapes: minutes on a laptop.",
        lambda: ClipRun(
            model=_texts(96, 2, 4, 16, 0.0),
            encoder=_with_sinusoids(_images(96, 3, 4, image_size=48, patch_size=8)),
            contrast=ContrastConfig(projection_dim=64),
            data=CaptionData(corpus="scenes"),
            tokenizer=TokenizerConfig("wordpiece", vocab_size=None),
            optimizer=_optimizer(2e-3, 100),
            training=PairBatches(steps=1000, batch_size=128),
            loop=LoopConfig(evaluate_every=250, checkpoint_every=250),
        ),
    ),
}
