"""Captions of pictures: an image encoder, a decoder, and metrics of captions."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.config_fields import Rate
from transformer_jax.core.errors import DataError, plural
from transformer_jax.core.task_progress import log, show_progress
from transformer_jax.data.images.augmentation import Augmentation, KeyedPlan, KeyedRows
from transformer_jax.data.images.captioned_pictures import references
from transformer_jax.data.images.data import ImageSplits
from transformer_jax.data.images.picture_store import ImageStore, Pictures, build_image_store
from transformer_jax.data.images.picture_tables import ImageTable
from transformer_jax.data.images.preprocessing import Preprocessing
from transformer_jax.data.loader import pad_rows
from transformer_jax.data.plan import ArrayPlan
from transformer_jax.data.store import encode_targets
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.requests import Translation
from transformer_jax.evaluation.captions import CaptionScores, caption_scores
from transformer_jax.evaluation.word_splitting import choose_tokenize
from transformer_jax.inference.captioner import ImageCaptioner, Picture
from transformer_jax.models.captioner import Captioner
from transformer_jax.models.config import TransformerConfig
from transformer_jax.recipes.tasks.batching import has_dropout
from transformer_jax.recipes.tasks.fit import Side, check_restored, describe_unknown, log_scored
from transformer_jax.recipes.tasks.picture_data import picture_data
from transformer_jax.recipes.tasks.settings import CaptionEvaluation
from transformer_jax.recipes.tasks.translation_task import decode_texts
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.training import objectives
from transformer_jax.training.state import split
from transformer_jax.training.task import Data, Task

__all__ = ["CaptionBatches", "PictureSettings", "captioning", "score_captions"]

_NAMES = ("exact", "sacrebleu", "cider")
_LIMIT = "evaluation.max_length"


@dataclasses.dataclass(frozen=True)
class PictureSettings:
    """Settings for reading pictures.

    Attributes:
        preprocessing: Sizes and normalization.
        augmentation: Random changes of training pictures; MixUp and CutMix are ignored.
        max_pixels: Maximum number of pixels per picture.
        decode_first: Whether to decode all pictures before training; None decides by their size.
        cache: Folder for decoded pictures; None is memory.
    """

    preprocessing: Preprocessing = Preprocessing()
    augmentation: Augmentation = Augmentation()
    max_pixels: int = 50_000_000
    decode_first: bool | None = None
    cache: Path | None = None


@dataclasses.dataclass(frozen=True)
class CaptionBatches:
    """Batching of captions.

    Attributes:
        rows: Number of captions per batch, each with its picture.
        length: Maximum length of a caption in tokens; longer ones are dropped in training.
        seed: Seed of the order and of augmentation.
    """

    rows: int = 32
    length: int = 64
    seed: int = 1


@dataclasses.dataclass(frozen=True)
class CaptionSettings:
    """The settings of a captioner."""

    model: TransformerConfig
    encoder: TransformerConfig
    preprocessing: Preprocessing
    evaluation: CaptionEvaluation

    recipe: ClassVar[str] = "captions"


@checked_arguments
def captioning(
    data: ImageSplits,
    encoder: TransformerConfig,
    config: TransformerConfig,
    tokenizer: Tokenizer,
    *,
    pictures: PictureSettings = PictureSettings(),
    batches: CaptionBatches = CaptionBatches(),
    label_smoothing: Rate = 0.0,
    evaluation: CaptionEvaluation = CaptionEvaluation(),
) -> Task:
    """Returns the task of captions of pictures by a :class:`.Captioner`.

    Every caption of a picture is a training target and a reference for metrics. Validation measures
    ``valid_loss`` without label smoothing, and ``exact``, ``sacrebleu`` and ``cider`` of greedy
    captions; the best checkpoint is tested with beam search.

    Args:
        data: Pictures for training, validation and tests.
        encoder: Configuration of the Vision Transformer.
        config: Configuration of the decoder.
        tokenizer: Tokenizer of the captions.
        pictures: Settings for reading pictures.
        batches: Batch sizes and order.
        label_smoothing: Probability spread over the vocabulary in training.
        evaluation: Evaluation during and after training; a length limit and word splitting that are
            None are derived from the batches and the training captions.

    Raises:
        DataError: A picture cannot be read, or no caption is short enough.
    """
    for line in data.overlaps:
        log(line)
    stored, length = _Stores(encoder, pictures), batches.length
    learned: dict[str, Any] = {
        "max_length": evaluation.max_length or length,
        "tokenize": evaluation.tokenize or choose_tokenize(data.train.texts),
    }
    evaluation = dataclasses.replace(evaluation, **learned)
    check_restored(data.train.name, data.train.texts, tokenizer)
    changes = None if pictures.augmentation == Augmentation() else pictures.augmentation
    train = _examples(data.train, stored, tokenizer, batches, changes)
    valid, evaluate = {}, None
    if data.valid is not None:
        valid["valid"] = _examples(data.valid, stored, tokenizer, batches, None, shuffle=False)
        if evaluation.captions:
            evaluate = _CaptionScores(_References.of(data.valid, stored), tokenizer, evaluation)
    tests = {name: _References.of(part, stored) for name, part in data.tests.items()}
    return Task(
        model=lambda rngs: Captioner(encoder, config, rngs=rngs),
        train=train,
        objective=objectives.sequence_to_sequence(tokenizer.bos, label_smoothing),
        valid=valid,
        metrics=(Metric("valid_loss", "lower"), *(Metric(name, "higher") for name in _NAMES)),
        eval_objective=objectives.sequence_to_sequence(tokenizer.bos),
        evaluate=evaluate,
        test=_tester(tests, tokenizer, evaluation) if tests else None,
        regularization=_regularization(encoder, config, label_smoothing, changes is not None),
        tokenizer=tokenizer,
        settings=CaptionSettings(config, encoder, pictures.preprocessing, evaluation),
    )


class _Stores:
    """The preprocessed pictures of tables, which often share pictures."""

    def __init__(self, encoder: TransformerConfig, settings: PictureSettings):
        image = encoder.image
        self.form = Pictures(
            image.image_size, image.num_channels, settings.preprocessing, settings.max_pixels
        )
        self.settings = settings
        self.stores: dict[int, ImageStore] = {}

    def __getitem__(self, part: ImageTable) -> ImageStore:
        settings, key = self.settings, id(part.pictures)
        if key not in self.stores:
            self.stores[key] = build_image_store(
                part.pictures,
                self.form,
                name=part.name,
                cache=settings.cache,
                decode=settings.decode_first,
            )
        return self.stores[key]


def _regularization(
    encoder: TransformerConfig, config: TransformerConfig, label_smoothing: float, changes: bool
) -> tuple[str, ...]:
    """Returns the terms that only the training loss includes."""
    parts = {
        "dropout": has_dropout(encoder) or has_dropout(config),
        "label smoothing": label_smoothing > 0,
        "augmentation": changes,
    }
    return tuple(name for name, there in parts.items() if there)


def _examples(
    part: ImageTable,
    stores: _Stores,
    tokenizer: Tokenizer,
    batches: CaptionBatches,
    change: Augmentation | None,
    *,
    shuffle: bool = True,
) -> Data:
    """Returns the batches of a table, without captions that are too long, and a summary line.

    Unless shuffled, they contain each caption once.
    """
    length = batches.length
    target = encode_targets(part.texts, tokenizer)
    unknown = describe_unknown(part.name, Side("", part.texts, tokenizer.targets, target.ids))
    kept = np.flatnonzero(target.lengths <= length)
    shown, dropped = plural(len(set(part.rows.tolist())), "picture"), len(part) - len(kept)
    counted = f", {dropped:,} longer than {plural(length, 'token')} dropped" if dropped else ""
    log(f"{part.name}: {shown}, {plural(len(kept), 'caption')}{counted}{unknown}")
    if not len(kept):
        raise DataError(
            f"{part.name}: no caption has at most {plural(length, 'token')}: raise "
            f"training.sequence_length"
        )
    plain = ArrayPlan(len(kept), batches.rows, batches.seed, shuffle, fill=not shuffle)
    plan = plain if change is None else KeyedPlan(plain, batches.seed)
    store, rows = stores[part], part.rows[kept]

    def make(items: KeyedRows | np.ndarray) -> dict[str, Any]:
        indices, images = store.of_items(items, rows, change)
        # A row of padding has no tokens, so its picture does not count.
        places = np.where(indices < 0, -1, kept[indices])
        tokens, lengths = pad_rows(target, places, length, tokenizer.pad)
        return {"inputs": {"images": images}, "target": tokens, "lengths": lengths}

    content = lambda pictures: [*pictures, part.rows, target.ids]
    return picture_data(plan, make, store, content, threads=2 if shuffle else 1)


@dataclasses.dataclass(frozen=True)
class _References:
    """Pictures to describe, with all captions of each."""

    part: ImageTable
    store: ImageStore
    rows: list[int]
    texts: list[list[str]]

    @classmethod
    def of(cls, part: ImageTable, stores: _Stores) -> "_References":
        """Returns the pictures of a table."""
        return cls(part, stores[part], *references(part))

    def pictures(self, count: int | None = None) -> list[Picture]:
        """Returns the first pictures, or all."""
        return [
            Picture(self.part.pictures.where(row), self.store.batch(np.array([row]))[0])
            for row in self.rows[:count]
        ]


class _CaptionScores:
    """Metrics of greedy captions of validation pictures."""

    def __init__(self, part: _References, tokenizer: Tokenizer, evaluation: CaptionEvaluation):
        self.part, self.tokenizer, self.evaluation = part, tokenizer, evaluation
        self.captioner: ImageCaptioner | None = None

    def __call__(self, model: Any) -> Mapping[str, float]:
        graph, params = split(model)
        if self.captioner is None:
            search = self.evaluation.search(num_beams=1)
            self.captioner = ImageCaptioner((graph, params), self.tokenizer, search=search)
        # Compiled programs are reused in later evaluations.
        self.captioner.params = params
        count = self.evaluation.captions
        pictures, wanted = self.part.pictures(count), self.part.texts[:count]
        with show_progress(f"describing {plural(len(pictures), 'validation picture')}"):
            written = [done.text for done in decode_texts(self.captioner, pictures, _LIMIT)]
        for name, text, row in list(zip(pictures, written, wanted, strict=True))[
            : self.evaluation.shown
        ]:
            for what, said in (("picture", name), ("reference", row[0]), ("hypothesis", text)):
                log(f"  {what:<10}  {said}")
        scores = caption_scores(written, wanted, self.evaluation.tokenize)
        return {name: getattr(scores, name) for name in _NAMES}


def _tester(
    tests: Mapping[str, _References], tokenizer: Tokenizer, evaluation: CaptionEvaluation
) -> Callable[[Any, int], dict[str, Any]]:
    """Prints and returns the metrics of the test sets."""

    def test(model: Any, step: int) -> dict[str, Any]:
        captioner = ImageCaptioner(model, tokenizer, search=evaluation.search(evaluation.num_beams))
        found = {}
        for name, part in tests.items():
            texts = [text for row in part.texts for text in row]
            log_scored(part.part.name, plural(len(part.texts), "picture"), tokenizer, target=texts)
            scores, _ = score_captions(captioner, part.pictures(), part.texts, evaluation.tokenize)
            found[name] = dataclasses.asdict(scores) | {"beams": evaluation.num_beams}
            print(f"{name}: {scores}", flush=True)
        return {"evaluated_step": step, "tests": found}

    return test


def score_captions(
    captioner: ImageCaptioner,
    pictures: Sequence[Picture],
    wanted: Sequence[Sequence[str]],
    tokenize: str | None = None,
    limit: str = _LIMIT,
) -> tuple[CaptionScores, list[Translation]]:
    """Returns the metrics of captions of pictures, and the captions.

    Args:
        captioner: A trained model.
        pictures: The pictures to describe.
        wanted: The reference captions of each picture.
        tokenize: Tokenizer of sacreBLEU; None is chosen by the script.
        limit: The setting or flag that raises the length limit, for messages.
    """
    written = decode_texts(captioner, pictures, limit)
    return caption_scores([done.text for done in written], wanted, tokenize), written
