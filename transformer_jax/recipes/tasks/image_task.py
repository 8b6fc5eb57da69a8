"""Classification of pictures with a Vision Transformer."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
from flax import nnx
from jaxtyping import Int

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.config_fields import Amount, Configuration, Count, Rate
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.classes import class_numbers, describe_classes, sort_classes
from transformer_jax.data.images.augmentation import Augmentation, KeyedPlan, KeyedRows
from transformer_jax.data.images.data import ImageSplits
from transformer_jax.data.images.picture_store import ImageStore, Pictures, build_image_store
from transformer_jax.data.images.picture_tables import ImageTable
from transformer_jax.data.images.preprocessing import Preprocessing
from transformer_jax.data.plan import ArrayPlan
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.models.vision import ImageClassifier
from transformer_jax.parallel.placement import MeshProgram
from transformer_jax.recipes.tasks.batching import has_dropout
from transformer_jax.recipes.tasks.picture_data import picture_data
from transformer_jax.recipes.tasks.predictions import ClassPredictions, reports
from transformer_jax.recipes.tasks.scores import table
from transformer_jax.recipes.tasks.settings import ImageTask
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.training import objectives
from transformer_jax.training.state import split
from transformer_jax.training.task import Data, Task

__all__ = [
    "ImageBatching",
    "ImageSettings",
    "image_classification",
    "image_predictions",
    "label_numbers",
    "open_stores",
    "picture_labels",
]

_SCORED = 64  # pictures at a time


@dataclasses.dataclass(frozen=True)
class ImageBatching(Configuration, group="batching"):
    """Batching of pictures."""

    batch_size: Count = 128  # pictures per batch, over all devices
    seed: Amount = 1  # seed of the order, and of augmentation

    def plan(self, count: int, shuffle: bool = True) -> ArrayPlan:
        """Returns the plan of batches; the last batch of an epoch is padded with -1.

        Example:
            >>> plan = ImageBatching(batch_size=2).plan(3, shuffle=False)
            >>> [plan.batch(step).tolist() for step in range(plan.steps_per_epoch)]
            [[0, 1], [2, -1]]
        """
        return ArrayPlan(count, self.batch_size, self.seed, shuffle, fill=True)


@dataclasses.dataclass(frozen=True)
class ImageSettings:
    """The settings of an image classifier."""

    model: TransformerConfig
    task: ImageTask
    preprocessing: Preprocessing

    recipe: ClassVar[str] = "images"


@checked_arguments
def image_classification(
    data: ImageSplits | ImageTable,
    config: TransformerConfig,
    *,
    labels: tuple[str, ...] = (),
    preprocessing: Preprocessing = Preprocessing(),
    augmentation: Augmentation = Augmentation(),
    batching: ImageBatching = ImageBatching(),
    label_smoothing: Rate = 0.0,
    cache: Path | None = None,
) -> Task:
    """Returns the task of classifying pictures with a Vision Transformer (Dosovitskiy et al. 2021).

    Validation measures ``valid_loss``, ``valid_accuracy`` and ``valid_top5_accuracy``; the best
    checkpoint is evaluated on validation and test pictures, with macro-F1.

    Args:
        data: Pictures with labels; a single table is for training only.
        config: Configuration of the model.
        labels: Names of classes, in order; if empty, the labels of the training pictures.
        preprocessing: Preprocessing of pictures.
        augmentation: Random changes in training.
        batching: Pictures per batch, and the seed of the order and of augmentation.
        label_smoothing: Probability spread over all classes.
        cache: Folder for decoded pictures; None is memory.

    Raises:
        DataError: A picture cannot be read, or a label is unknown.
    """
    splits = data if isinstance(data, ImageSplits) else ImageSplits(data)
    labels = labels or picture_labels(splits)
    image = config.image
    form = Pictures(image.image_size, image.num_channels, preprocessing, splits.read.max_pixels)
    stores = open_stores(splits, form, cache)
    batches = functools.partial(_data, labels=labels, batching=batching)
    for line in (*splits.overlaps, *describe_classes(splits.train.name, splits.train.texts)):
        log(line)
    valid = {}
    if splits.valid is not None:
        valid["valid"] = batches(splits.valid, stores)
    mixed = {"mixup": augmentation.mixup, "cutmix": augmentation.cutmix}
    terms = {"dropout": has_dropout(config), "augmentation": augmentation != Augmentation(),
             "label smoothing": label_smoothing}  # fmt: skip
    higher = ("valid_accuracy", "valid_top5_accuracy")
    return Task(
        model=lambda rngs: ImageClassifier(config, labels=len(labels), rngs=rngs),
        train=batches(splits.train, stores, change=augmentation),
        objective=objectives.image_classification(label_smoothing, **mixed),
        valid=valid,
        metrics=(Metric("valid_loss", "lower"), *(Metric(name, "higher") for name in higher)),
        eval_objective=objectives.image_classification(),
        test=functools.partial(_test, splits, stores, labels),
        flops=lambda batch: training_flops(config, len(batch["images"]), config.max_length),
        counts="pictures",
        regularization=tuple(name for name, used in terms.items() if used),
        settings=ImageSettings(config, ImageTask(labels=labels), preprocessing),
    )


def picture_labels(splits: ImageSplits) -> tuple[str, ...]:
    """Returns the labels of the training pictures, sorted; numbers are sorted numerically.

    Raises:
        DataError: There is only one label.
    """
    found = set(splits.train.texts)
    if len(found) < 2:
        raise DataError(
            f"{splits.train.name}: all pictures have the label {found.pop()!r}: at least two are "
            f"needed; is data.read.text the right column?"
        )
    return sort_classes(found)


def label_numbers(part: ImageTable, labels: Sequence[str]) -> Int[np.ndarray, " count"]:
    """Returns the index of the label of each picture.

    Raises:
        DataError: A label is unknown; the message names the picture.
    """
    numbers = class_numbers(labels)
    for index, text in enumerate(part.texts):
        if text not in numbers:
            shown = ", ".join(map(repr, labels[:20])) + (", ..." if len(labels) > 20 else "")
            raise DataError(
                f"{part.where(index)}: the label {text!r} is not among the training labels "
                f"({shown}): correct it, or begin a new run with training pictures that have it"
            )
    return np.array([numbers[text] for text in part.texts], np.int32)


def open_stores(
    splits: ImageSplits, form: Pictures, cache: Path | None = None
) -> dict[int, ImageStore]:
    """Returns the pictures of each source of the splits, by the ``id`` of the source.

    Raises:
        DataError: A picture to decode cannot be read.
    """
    stores: dict[int, ImageStore] = {}
    for part in splits.parts:
        source = part.pictures
        if id(source) not in stores:
            stores[id(source)] = build_image_store(
                source, form, name=part.name, cache=cache, decode=splits.read.decode_first
            )
    return stores


def _data(
    part: ImageTable,
    stores: Mapping[int, ImageStore],
    *,
    labels: Sequence[str],
    batching: ImageBatching,
    change: Augmentation | None = None,
) -> Data:
    """Returns the batches of pictures with labels, augmented in training."""
    store, numbers = stores[id(part.pictures)], label_numbers(part, labels)
    log(f"{part.name}: {plural(len(part), 'picture')}, {plural(len(labels), 'label')}")
    plain = batching.plan(len(part), shuffle=change is not None)
    plan = plain if change is None else KeyedPlan(plain, batching.seed)

    def make(items: KeyedRows | np.ndarray) -> dict[str, Any]:
        indices, images = store.of_items(items, part.rows, change)
        return {"images": images, "labels": np.where(indices < 0, -1, numbers[indices])}

    content = lambda pictures: [numbers, part.rows, *pictures]
    threads = 1 if store.decoded and not (change and change.operations) else os.cpu_count() or 1
    return picture_data(plan, make, store, content, min(8, threads))


def _test(
    splits: ImageSplits,
    stores: Mapping[int, ImageStore],
    labels: Sequence[str],
    model: Any,
    step: int,
) -> dict[str, Any]:
    """Prints and returns the metrics of validation and test pictures."""
    del step
    graph, params = split(model)
    program = MeshProgram(lambda params, images: jax.nn.softmax(nnx.merge(graph, params)(images)))
    parts = ({} if splits.valid is None else {"valid": splits.valid}) | splits.tests
    if not parts:
        return {}
    predicted = {
        name: image_predictions(
            lambda x: program(params, x), stores[id(part.pictures)], part, labels
        )
        for name, part in parts.items()
    }
    scores = {name: one.scores for name, one in predicted.items()}
    print(table(scores) + reports(predicted), flush=True)
    return {"scores": scores}


def image_predictions(
    classify: Callable[[Any], Any], store: ImageStore, part: ImageTable, labels: Sequence[str]
) -> ClassPredictions:
    """Returns the classes of labeled pictures: accuracy, top-5 accuracy and macro F1.

    Args:
        classify: Function from normalized pictures to the probability of each label.
        store: The preprocessed pictures.
        part: Pictures and their labels.
        labels: Names of classes, in order.

    Raises:
        DataError: A label is unknown, or a picture cannot be read.
        ConfigError: There are no pictures.
    """
    wanted = label_numbers(part, labels)
    if not len(wanted):
        raise ConfigError(f"{part.name}: no pictures to score")
    found = []
    for start in range(0, len(part), _SCORED):
        places = np.arange(start, start + _SCORED)
        inside = places < len(part)
        rows = np.where(inside, part.rows[np.minimum(places, len(part) - 1)], -1)
        found.append(np.asarray(classify(store.batch(rows)))[inside])
    examples = [(part.keys[row],) for row in part.rows.tolist()]
    measures = ("accuracy", "top5_accuracy", "macro_f1")
    return ClassPredictions(examples, (), np.concatenate(found), wanted, labels, measures)
