"""Contrastive learning of images and texts with two towers."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from flax import nnx
from jaxtyping import Int

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.errors import plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.images.augmentation import Augmentation, KeyedPlan, KeyedRows
from transformer_jax.data.images.data import ImageSplits
from transformer_jax.data.images.picture_store import ImageStore, Pictures
from transformer_jax.data.images.picture_tables import ImageTable
from transformer_jax.data.images.preprocessing import Preprocessing
from transformer_jax.data.plan import ArrayPlan
from transformer_jax.data.store import TokenStore
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.inference.retrieval import TextReader, retrieval_scores
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.contrast_config import ContrastConfig
from transformer_jax.models.two_towers import TwoTowers
from transformer_jax.parallel.placement import MeshProgram
from transformer_jax.recipes.tasks.batching import has_dropout
from transformer_jax.recipes.tasks.fit import Side, describe_unknown
from transformer_jax.recipes.tasks.image_task import ImageBatching, open_stores
from transformer_jax.recipes.tasks.picture_data import picture_data
from transformer_jax.recipes.tasks.scores import table
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.training import objectives
from transformer_jax.training.state import split
from transformer_jax.training.task import Data, Task

__all__ = ["Towers", "contrast"]

_METRICS = ("valid_accuracy", "recall_1")


@dataclasses.dataclass(frozen=True)
class ContrastSettings:
    """The settings of a model of two towers."""

    model: TransformerConfig
    encoder: TransformerConfig
    contrast: ContrastConfig
    preprocessing: Preprocessing

    recipe: ClassVar[str] = "clip"


class Towers(NamedTuple):
    """The configurations of both towers, and shared settings."""

    images: TransformerConfig
    texts: TransformerConfig
    contrast: ContrastConfig = ContrastConfig()


@checked_arguments
def contrast(
    data: ImageSplits | ImageTable,
    towers: Towers,
    tokenizer: Tokenizer,
    *,
    preprocessing: Preprocessing = Preprocessing(),
    augmentation: Augmentation = Augmentation(),
    batching: ImageBatching = ImageBatching(),
    cache: Path | None = None,
) -> Task:
    """Returns the contrastive task on images and texts (Radford et al. 2021; Zhai et al. 2023).

    All pairs of a batch are compared, even across devices; other texts of the same image are no
    negatives. Validation measures ``valid_loss`` and ``valid_accuracy`` within batches, and recall
    among all validation images and texts.

    Args:
        data: Images with texts; a single table is for training only.
        towers: Configurations of the model.
        tokenizer: Of the texts.
        preprocessing: Preprocessing of pictures.
        augmentation: Random changes in training; MixUp and CutMix are ignored.
        batching: Pairs per batch, and the seed of the order and of augmentation.
        cache: Folder for decoded pictures; None is memory.

    Raises:
        DataError: A picture cannot be read.
    """
    encoder, config, form = towers
    splits = data if isinstance(data, ImageSplits) else ImageSplits(data)
    for line in splits.overlaps:
        log(line)
    image = encoder.image
    pictures = Pictures(image.image_size, image.num_channels, preprocessing, splits.read.max_pixels)
    stores = open_stores(splits, pictures, cache)
    reader = TextReader(tokenizer, config.max_length)
    batches = functools.partial(_pairs, stores=stores, reader=reader, batching=batching)
    scores = _ContrastScores(stores, reader)
    changes = None if augmentation == Augmentation() else augmentation
    terms = {"dropout": has_dropout(encoder) or has_dropout(config), "augmentation": changes}
    parts = ({} if splits.valid is None else {"valid": splits.valid}) | splits.tests
    loss = objectives.contrastive(form.loss)
    return Task(
        model=lambda rngs: TwoTowers(encoder, config, form, rngs=rngs),
        train=batches(splits.train, change=changes),
        objective=loss,
        valid={} if splits.valid is None else {"valid": batches(splits.valid, shuffle=False)},
        metrics=(Metric("valid_loss", "lower"), *(Metric(name, "higher") for name in _METRICS)),
        evaluate=None if splits.valid is None else functools.partial(scores, splits.valid),
        test=functools.partial(_test, parts, scores) if parts else None,
        counts="pairs",
        regularization=tuple(name for name, used in terms.items() if used),
        tokenizer=tokenizer,
        settings=ContrastSettings(config, encoder, form, preprocessing),
    )


def _pairs(
    part: ImageTable,
    stores: Mapping[int, ImageStore],
    reader: TextReader,
    batching: ImageBatching,
    *,
    change: Augmentation | None = None,
    shuffle: bool = True,
) -> Data:
    """Returns the batches of pairs, and a summary line."""
    store, (examples, cut) = stores[id(part.pictures)], reader.encode(part.texts)
    said = f", {cut:,} of them truncated to {plural(reader.length, 'token')}" if cut else ""
    count = plural(len(set(part.rows.tolist())), "picture")
    side = Side("", part.texts, reader.tokenizer, examples.store.ids)
    unknown = describe_unknown(part.name, side)
    log(f"{part.name}: {count}, {plural(len(part), 'text')}{said}{unknown}")
    plain = ArrayPlan(len(part), batching.batch_size, batching.seed, shuffle, fill=True)
    plan = plain if change is None else KeyedPlan(plain, batching.seed)

    captions = _Captions(part.rows, examples.store)

    def make(items: KeyedRows | np.ndarray) -> dict[str, Any]:
        indices, images = store.of_items(items, part.rows, change)
        texts = reader.batch(examples, indices)
        return {"images": images, **texts, "captions": captions(indices)}

    content = lambda pictures: [*pictures, part.rows, np.asarray(examples.store.ids)]
    return picture_data(plan, make, store, content, threads=2)


class _Captions:
    """The texts of each pair's picture, by number.

    Texts with equal tokens have the same number, since the model cannot tell them apart.

    Example:
        >>> store = TokenStore(np.array([5, 6, 5]), np.arange(4))
        >>> _Captions(np.array([0, 0, 1]), store)(np.array([0, 1, 2, -1])).tolist()
        [[0, 1], [1, 0], [0, -1], [-1, -1]]
    """

    def __init__(self, rows: np.ndarray, texts: TokenStore):
        """Takes the picture and the text of each pair."""
        numbers: dict[bytes, int] = {}
        own = [numbers.setdefault(texts[i].tobytes(), len(numbers)) for i in range(len(texts))]
        self.pairs = list(zip(rows.tolist(), own, strict=True))
        self.of_picture: dict[int, dict[int, None]] = {}
        for picture, number in self.pairs:
            self.of_picture.setdefault(picture, {})[number] = None
        self.width = max(map(len, self.of_picture.values()), default=1)

    def __call__(self, indices: np.ndarray) -> Int[np.ndarray, "B K"]:
        """Returns the numbers of all texts of a picture, the pair's own first; -1 is none."""
        found = np.full((len(indices), self.width), -1, np.int32)
        for row, i in zip(found, indices.tolist(), strict=True):
            if i >= 0:
                picture, own = self.pairs[i]
                here = [own, *(other for other in self.of_picture[picture] if other != own)]
                row[: len(here)] = here
        return found


class _ContrastScores:
    """Recall among the pairs of a table; compiled programs are reused in later evaluations."""

    def __init__(self, stores: Mapping[int, ImageStore], reader: TextReader):
        self.stores, self.reader = stores, reader
        self.programs: tuple[MeshProgram, MeshProgram] | None = None

    def __call__(self, part: ImageTable, model: Any) -> dict[str, float]:
        graph, params = split(model)
        if self.programs is None:
            self.programs = (
                MeshProgram(lambda params, images: nnx.merge(graph, params).embed_images(images)),
                MeshProgram(lambda params, *texts: nnx.merge(graph, params).embed_texts(*texts)),
            )
        images, texts = (functools.partial(program, params) for program in self.programs)
        store = self.stores[id(part.pictures)]
        return retrieval_scores(images, texts, store, part, self.reader)


def _test(
    parts: Mapping[str, ImageTable],
    scores: Callable[[ImageTable, Any], dict[str, float]],
    model: Any,
    step: int,
) -> dict[str, Any]:
    """Prints and returns recall among validation and test pictures."""
    found = {name: scores(part, model) for name, part in parts.items()}
    print(table(found), flush=True)
    return {"evaluated_step": step, "scores": found}
