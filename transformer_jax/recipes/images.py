"""Image classification with Vision Transformers: ``train vit``."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from transformer_jax.core.config_fields import Count, Flag, Rate
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.images.augmentation import Augmentation
from transformer_jax.data.images.data import ImageData, ImageSplits, open_images, open_table
from transformer_jax.data.images.preprocessing import Preprocessing
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.presets import PRESETS, vit
from transformer_jax.recipes.pictures import attentions_to_images, check_pictures, scored_pictures
from transformer_jax.recipes.publishing import with_heads
from transformer_jax.recipes.read_flags import PictureColumnFlags, changed_options, with_read_flags
from transformer_jax.recipes.recipe import Named, Prepared, Recipe
from transformer_jax.recipes.settings import Cached, ExampleBatches, RunConfig
from transformer_jax.recipes.sizing import with_defaults
from transformer_jax.recipes.tasks.settings import ImageTask
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

__all__ = ["ImageRun", "Images"]

_LABELS = 1000  # for plans, as in ImageNet


@dataclasses.dataclass(frozen=True)
class ImageBatches(ExampleBatches):
    """Training settings: duration, number of pictures per batch, seed."""

    batch_size: Count = 128  # pictures per batch, over all devices
    label_smoothing: Rate = 0.0  # probability spread over all labels


@dataclasses.dataclass(frozen=True)
class ImageRun(Cached, RunConfig):
    """One training run of an image classifier."""

    tokenizer: ClassVar[None] = None  # type: ignore[misc]
    model: TransformerConfig = PRESETS["vit_tiny"]
    data: ImageData = ImageData()
    preprocessing: Preprocessing = Preprocessing()
    augmentation: Augmentation = Augmentation()
    task: ImageTask = ImageTask()
    training: ImageBatches = ImageBatches()

    parts: ClassVar[tuple[str, ...]] = ("encoder",)

    @property
    def batch_tokens(self) -> int:
        """Returns the number of patches of a batch, including the embeddings before them."""
        return self.training.batch_size * self.model.max_length

    def without_derived(self) -> "ImageRun":
        """Returns the run without labels, which are read from the training pictures."""
        return dataclasses.replace(self, task=dataclasses.replace(self.task, labels=()))


@dataclasses.dataclass(frozen=True)
class EvaluateImages(PictureColumnFlags):
    """Print accuracy, top-5 accuracy and macro-F1 of labeled pictures."""

    data: Annotated[str | None, Flag("data.images", also=("data.test",))] = None
    """Folder, table or array of labeled pictures; None is the test (or else validation) pictures of
    the run."""
    worst: Count | None = None
    """Also print so many pictures with the highest loss, the worst first."""


class Images(Recipe[ImageRun, ImageSplits]):
    """A Vision Transformer, trained on labeled pictures."""

    name = "images"
    title = "an image model"
    config = ImageRun
    family = "image"
    starts = ("image",)
    metrics = ("valid_accuracy", "valid_top5_accuracy")
    has_plan = True
    has_estimate = False
    evaluation = EvaluateImages

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs."""
        return with_defaults(_NAMED)

    def data(self, run: ImageRun) -> ImageSplits:
        """Returns the pictures, not decoded yet."""
        return open_images(run.data)

    def check(self, run: ImageRun, given: "Given[ImageRun]") -> None:
        """Refuses settings of pictures that do not match the model."""
        check_pictures(run, "model", given)

    def prepare(
        self, run: ImageRun, start: "Start | None", given: "Given[ImageRun]"
    ) -> Prepared[ImageRun, ImageSplits]:
        """Returns a run with the preprocessing of its start and the labels of its pictures."""
        from transformer_jax.recipes.checks import validated

        if start is not None:
            run = start.adapt(run, given, with_heads(start, task="classify"))
        if run.task.labels:
            raise ConfigError("task.labels are read from the training pictures: leave them out")
        if start is not None and run.preprocessing == given.named.preprocessing:
            run = dataclasses.replace(run, preprocessing=_preprocessing_of(start, run.model))
        run = validated(run, start, given)
        data = self.data(run)
        labels = _labels_of(run, data, start)
        return Prepared(
            dataclasses.replace(run, task=dataclasses.replace(run.task, labels=labels)), data
        )

    def task(
        self, run: ImageRun, directory: "RunDirectory", tokenizer: "Tokenizer", data: ImageSplits
    ) -> "Task":
        """Returns the task of labels."""
        from transformer_jax.recipes.tasks.image_task import ImageBatching, image_classification

        return image_classification(
            data,
            run.model,
            labels=run.task.labels,
            preprocessing=run.preprocessing,
            augmentation=run.augmentation,
            batching=ImageBatching(run.training.batch_size, run.training.seed),
            label_smoothing=run.training.label_smoothing,
            cache=_cache(run, directory),
        )

    def plan_inputs(self, run: ImageRun, batch: "BatchShapes") -> "PlanInputs":
        """Returns what training and evaluation are made of."""
        from transformer_jax.recipes.plan_inputs import PlanInputs, fresh_model
        from transformer_jax.training.objectives import image_classification

        changes = run.augmentation
        return PlanInputs(
            fresh_model("image", run.model, task="classify", labels=_LABELS),
            image_classification(run.training.label_smoothing, changes.mixup, changes.cutmix),
            image_classification(),
            {"images": batch.images(run.model), "labels": batch.array()},
            attentions=attentions_to_images(run.model),
        )

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints the metrics on labeled pictures, or on the pictures of the run."""
        from transformer_jax.inference.images import ImagePredictor
        from transformer_jax.inference.pretrained import Pretrained
        from transformer_jax.recipes.driver import settings_of
        from transformer_jax.recipes.tasks.image_task import image_predictions, open_stores
        from transformer_jax.recipes.tasks.scores import print_predictions

        opened = Pretrained.load(facts)
        predictor = ImagePredictor(opened)
        if request.data is not None:
            options = changed_options(_stored_data(facts).read, request)
            splits = ImageSplits(open_table(request.data, options, "--data.images"), read=options)
            parts = {"data": splits.train}
        else:
            run = with_read_flags(settings_of(facts), request)
            splits, parts = scored_pictures(run, self.data, request.run)
        stores = open_stores(splits, predictor.form)
        predicted = {
            name: image_predictions(
                predictor.scores, stores[id(part.pictures)], part, predictor.labels
            )
            for name, part in parts.items()
        }
        print_predictions(predicted, request.output, request.worst)
        return 0

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from pictures to labels or vectors."""
        from transformer_jax.inference.images import ImagePredictor
        from transformer_jax.inference.pretrained import Pretrained

        return ImagePredictor(Pretrained.load(facts))

    def model(self, config: Any, fields: Mapping[str, Any], rngs: "nnx.Rngs") -> Any:
        """Returns an image encoder, with a classification head if the run has labels."""
        from transformer_jax.models.build import make_model

        task = fields.get("task")
        if not task:
            return make_model("image", config, rngs=rngs)
        labels = len(task.get("labels", []))
        return make_model("image", config, task="classify", labels=labels, rngs=rngs)


def _preprocessing_of(start: "Start", model: TransformerConfig) -> Preprocessing:
    """Returns the preprocessing of a start, for pictures of the model's size."""
    from transformer_jax.inference.images import pictures_of

    before = start.model.image
    kept = pictures_of(start.facts.record, before).preprocessing
    return kept.scaled(before.image_size, model.image.image_size)


def _labels_of(run: ImageRun, data: ImageSplits, start: "Start | None") -> tuple[str, ...]:
    """Returns the labels of pictures, in the order of the start's head."""
    from transformer_jax.recipes.start_labels import as_in_start
    from transformer_jax.recipes.tasks.image_task import label_numbers, picture_labels

    labels = picture_labels(data)
    for part in data.parts:
        label_numbers(part, labels)  # refuses unknown labels
    if start is None or run.reinit_head:
        return labels
    before = (start.facts.record.get("task") or {}).get("labels", ())
    return as_in_start(run.init_from or "", tuple(before), labels, "--reinit-head")


def _cache(run: ImageRun, directory: "RunDirectory") -> Path:
    """Returns the folder of decoded pictures."""
    return directory.path / "store" if run.cache is None else Path(run.cache)


def _stored_data(facts: "Facts") -> ImageData:
    """Returns the data settings of a run; the defaults for a Hugging Face folder."""
    from transformer_jax.recipes.driver import settings_of

    data: ImageData = settings_of(facts).data if "preprocessing" in facts.record else ImageData()
    return data


def _run(
    model: TransformerConfig, augmentation: Augmentation, learning_rate: float, **training: Any
) -> ImageRun:
    return ImageRun(
        model=model,
        augmentation=augmentation,
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=learning_rate,
            beta2=0.999,
            eps=1e-8,
            weight_decay=0.05,
            schedule=ScheduleConfig("cosine", warmup_steps=None),
        ),
        training=ImageBatches(**training),
        loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
    )


def _compact(size: int, channels: int = 3, layers: int = 4, width: int = 128) -> TransformerConfig:
    """Returns a compact Transformer: two convolutions, sequence pooling, ``d_ff = 2 d_model``."""
    plain = vit(
        width, layers, image_size=size, patch_size=4, num_channels=channels,
        stem="convolutions", stem_channels=32, pooling="sequence",
    )  # fmt: skip
    feed_forward = dataclasses.replace(plain.feed_forward, d_ff=2 * width)
    return dataclasses.replace(plain, feed_forward=feed_forward)


_CROPPED = Augmentation(crop="resized", area=(0.25, 1.0), flip=True)
_SHIFTED = Augmentation(crop="shift", padding=4, flip=True)

_NAMED: dict[str, tuple[str, Callable[[], ImageRun]]] = {
    "vit": (
        "ViT-Ti/16 at 224 x 224 pixels, 5.5 M parameters.",
        lambda: _run(PRESETS["vit_tiny"], _CROPPED, 5e-4, epochs=None, label_smoothing=0.1),
    ),
    "vit-small": (
        "ViT-S/16 at 224 x 224 pixels, 21.7 M parameters.",
        lambda: _run(PRESETS["vit_small"], _CROPPED, 5e-4, epochs=None, label_smoothing=0.1),
    ),
    "vit-base": (
        "ViT-B/16 at 224 x 224 pixels, 85.8 M parameters.",
        lambda: _run(PRESETS["vit_base"], _CROPPED, 3e-4, epochs=None, label_smoothing=0.1),
    ),
    "cct": (
        "Compact Transformer for small data, at 32 x 32 pixels, 0.6 M parameters.",
        lambda: _run(_compact(32), _SHIFTED, 1e-3, epochs=None, label_smoothing=0.1),
    ),
    "digits": (
        "Compact Transformer for grey pictures of 8 x 8 pixels.",
        lambda: _run(
            _compact(8, channels=1, layers=2, width=64),
            Augmentation(crop="shift", padding=1),
            3e-3,
            epochs=40,
            batch_size=64,
        ),
    ),
}
