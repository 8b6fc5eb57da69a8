"""Labeled examples: classes of texts, numbers, tags of words, and answers."""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.config_fields import Amount, Count, NotNegative
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.classes import describe_classes
from transformer_jax.data.examples import (
    EncodedExamples,
    collate,
    decoder_template,
    encode_sentences,
)
from transformer_jax.data.labeled import (
    Labeled,
    LabeledSplits,
    Questions,
    Sentences,
    Tagged,
    label_indices,
    numbered_labels,
)
from transformer_jax.data.labeled_files import LabeledTask
from transformer_jax.data.plan import Batching, BatchPlan
from transformer_jax.data.question_examples import encode_questions, locate_answers
from transformer_jax.data.tagged_examples import encode_tagged
from transformer_jax.data.tokenizer import SpecialTokensTemplate, Tokenizer
from transformer_jax.inference.base import truncated
from transformer_jax.inference.encoding.task_runner import ReadingForm, TaskRunner
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.models.heads import (
    DecoderSequenceClassifier,
    SequenceClassifier,
    TokenClassifier,
)
from transformer_jax.recipes.tasks.batching import has_dropout
from transformer_jax.recipes.tasks.fit import Side, describe_unknown, log_scored
from transformer_jax.recipes.tasks.predictions import Predictions, measures_of, reports
from transformer_jax.recipes.tasks.scores import predict, table
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.training import objectives
from transformer_jax.training.state import split
from transformer_jax.training.step import Objective, Sums
from transformer_jax.training.task import Data, Task
from transformer_jax.word_vectors.initialization import initial_embeddings

__all__ = [
    "LabeledLoss",
    "labeled",
    "question_answering",
    "regression",
    "sequence_classification",
    "token_classification",
    "weights_of_classes",
    "with_loss",
]

OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "classify": objectives.sequence_classification,
    "pair": objectives.sequence_classification,
    "regress": objectives.regression,
    "tag": objectives.token_classification,
    "qa": objectives.question_answering,
}


@dataclasses.dataclass(frozen=True)
class ExampleSettings:
    """The task of a fine-tuned model."""

    kind: str
    labels: tuple[str, ...]
    max_length: int
    doc_stride: int


@dataclasses.dataclass(frozen=True)
class LabeledSettings:
    """The settings of a fine-tuned model."""

    model: TransformerConfig
    task: ExampleSettings

    recipe: ClassVar[str] = "finetuning"


@dataclasses.dataclass(frozen=True)
class LabeledLoss:
    """Weights in the training loss.

    Attributes:
        class_weights: ``balanced``, or ``CLASS=WEIGHT`` for some classes: see
            :func:`weights_of_classes`.
        lm_loss_weight: For decoders: weight of the language-modelling loss, which is added.
    """

    class_weights: tuple[str, ...] = ()
    lm_loss_weight: NotNegative = 0.0


@checked_arguments
def labeled(
    data: LabeledSplits,
    config: TransformerConfig,
    tokenizer: Tokenizer,
    *,
    kind: LabeledTask,
    labels: tuple[str, ...] = (),
    length: Count = 128,
    stride: Amount = 64,
    batching: Batching = Batching(max_tokens=1024),
) -> Task:
    """Returns the task of fine-tuning an encoder or a decoder with a head on labeled examples.

    A decoder reads texts in the template of :func:`.decoder_template`, for classification or
    regression.

    Validation measures ``valid_loss`` and the metrics of the task; the best checkpoint is evaluated
    on validation and test examples.

    Args:
        data: Examples for training, validation and tests.
        config: Configuration of the model.
        tokenizer: Tokenizer of the examples.
        kind: The task.
        labels: Names of classes or tags, in order; for answers, whether some are "none".
        length: Maximum length of an example in tokens, including special tokens.
        stride: Overlap of windows over a long context, in tokens.
        batching: Batching of examples.
    """
    template = decoder_template(tokenizer) if config.decoder_layers else None
    encode = functools.partial(
        _encode, kind=kind, labels=labels, tokenizer=tokenizer, length=length, stride=stride,
        template=template,
    )  # fmt: skip
    given = [label for _, label in numbered_labels(data.train)] if labels else []
    what = "tag" if kind == "tag" else "class"
    counted = describe_classes(data.train.name, given, what) if given else []
    for line in (*data.overlaps, *counted):
        log(line)
    examples = encode(data.train)
    batches = lambda made, shuffle: Data.of(
        batching.plan(made.examples.store.lengths, shuffle=shuffle),
        made.batches(tokenizer.pad),
        [made.examples.store.ids, made.targets],
    )
    valid, evaluate = {}, None
    measured = _LabeledScores(
        tokenizer,
        kind=kind,
        labels=labels,
        length=length,
        stride=stride,
        form=ReadingForm(template),
    )
    if data.valid is not None:
        valid["valid"] = batches(encode(data.valid), False)
        evaluate = functools.partial(_evaluate, measured, data.valid)
    outputs = {"regress": 1, "qa": 2}.get(kind, len(labels))
    head: Any = TokenClassifier if kind in ("tag", "qa") else SequenceClassifier
    head = DecoderSequenceClassifier if config.decoder_layers else head
    names = (f"valid_{name}" for name in measures_of(kind, labels))
    return Task(
        model=lambda rngs: head(config, labels=outputs, rngs=rngs),
        train=batches(examples, True),
        objective=OBJECTIVES[kind](),
        valid=valid,
        metrics=(Metric("valid_loss", "lower"), *(Metric(name, "higher") for name in names)),
        eval_objective=_loss_alone(OBJECTIVES[kind]()),
        evaluate=evaluate,
        test=functools.partial(_test, measured, data),
        flops=lambda batch: training_flops(config, *batch["tokens"].shape),
        counts="words" if kind == "tag" else "examples",
        regularization=("dropout",) * has_dropout(config),
        tokenizer=tokenizer,
        initial=initial_embeddings(config, tokenizer),
        settings=LabeledSettings(config, ExampleSettings(kind, labels, length, stride)),
    )


def with_loss(
    task: Task, loss: LabeledLoss, kind: LabeledTask, labels: Sequence[str], train: Labeled
) -> Task:
    """Returns a task of :func:`labeled` with weights in its training loss.

    Args:
        task: The task.
        loss: The weights.
        kind: The kind of the task.
        labels: Names of the classes, in order.
        train: The training examples.

    Raises:
        ConfigError: Weights are malformed, of an unknown class, or the task has no classes.
    """
    examples = [label for _, label in numbered_labels(train)]
    weights = weights_of_classes(loss.class_weights, kind, labels, examples)
    if weights:
        shown = (f"{label} {one:.4g}" for label, one in zip(labels, weights, strict=True))
        log(f"weights of classes in the training loss: {', '.join(shown)}")
    if spoken := loss.lm_loss_weight:
        objective = objectives.with_language_model(
            spoken, regress=kind == "regress", class_weights=weights
        )
        told = f"{spoken:g} x language modelling", *task.regularization
        return dataclasses.replace(task, objective=objective, regularization=told)
    if not weights:
        return task
    of_tags, of_texts = objectives.token_classification, objectives.sequence_classification
    return dataclasses.replace(task, objective=(of_tags if kind == "tag" else of_texts)(weights))


def weights_of_classes(
    given: Sequence[str], kind: str, labels: Sequence[str], examples: Sequence[str]
) -> tuple[float, ...]:
    """Returns the weight of each class in the loss; none if all are 1.

    ``balanced`` is ``n / (C n_c)`` for ``C`` classes and ``n_c`` of ``n`` examples of class c, so
    that all classes count alike (King and Zeng 2001; scikit-learn's weights).

    Args:
        given: ``balanced``, or ``CLASS=WEIGHT`` for some classes; the others have 1.
        kind: The task.
        labels: Names of the classes, in order.
        examples: The class of each training example.

    Raises:
        ConfigError: They are malformed, of an unknown class, or the task has no classes.

    Example:
        >>> weights_of_classes(["balanced"], "classify", ("no", "yes"), ["no", "no", "no", "yes"])
        (0.666..., 2.0)
        >>> weights_of_classes(["yes=3"], "classify", ("no", "yes"), [])
        (1.0, 3.0)
    """
    flag = "training.class-weights"
    if not given:
        return ()
    if kind in ("regress", "qa"):
        raise ConfigError(f"{flag}: the task {kind} has no classes: leave it out")
    if tuple(given) == ("balanced",):
        counts = collections.Counter(examples)
        # A class of the start may have no example here: its weight never counts.
        return tuple(len(examples) / (len(labels) * max(counts[label], 1)) for label in labels)
    weights = dict.fromkeys(labels, 1.0)
    for one in given:
        label, equals, number = one.rpartition("=")
        if not equals or label not in weights:
            known = ", ".join(map(repr, labels[:20]))
            raise ConfigError(f"{flag} {one}: balanced, or CLASS=WEIGHT of these classes: {known}")
        try:
            weights[label] = float(number)
        except ValueError:
            weights[label] = -1.0
        if not 0 <= weights[label] < math.inf:
            raise ConfigError(f"{flag} {one}: a weight is a number from 0, such as 2.5")
    if not any(weights.values()):
        raise ConfigError(f"{flag}: all weights are 0: give one class a weight")
    return tuple(weights.values())


sequence_classification = functools.partial(labeled, kind="classify")
token_classification = functools.partial(labeled, kind="tag")
regression = functools.partial(labeled, kind="regress")
question_answering = functools.partial(labeled, kind="qa", length=384)


def _loss_alone(objective: Objective) -> Objective:
    """Reduces an objective to the loss: the other metrics need predictions."""

    def loss(model: Any, batch: dict[str, Any], key: Any = None) -> Sums:
        return {"loss": objective(model, batch, key)["loss"]}

    return loss


class _LabeledScores:
    """Metrics of a model; compiled programs are reused in later evaluations."""

    def __init__(self, tokenizer: Tokenizer, **how: Any):
        self.kind, self.labels = how["kind"], how["labels"]
        self.tokenizer, self.how = tokenizer, how
        self.predictor: TaskRunner | None = None

    def __call__(self, model: Any, part: Labeled) -> Predictions:
        graph, params = split(model)
        if self.predictor is None:
            self.predictor = TaskRunner((graph, params), self.tokenizer, **self.how)
        self.predictor.params = params
        return predict(self.predictor, self.kind, self.labels, part)

    @property
    def cut(self) -> int:
        """The number of texts so far that were truncated."""
        return self.predictor.counts["cut"] if self.predictor else 0


def _evaluate(measured: _LabeledScores, part: Labeled, model: Any) -> dict[str, float]:
    return {f"valid_{name}": value for name, value in measured(model, part).scores.items()}


def _test(measured: _LabeledScores, data: LabeledSplits, model: Any, step: int) -> dict[str, Any]:
    """Prints and returns the metrics on validation and test examples, and prints a report."""
    del step
    parts = ({} if data.valid is None else {"valid": data.valid}) | data.tests
    for part in data.tests.values():
        log_texts(part, measured.tokenizer)
    before = measured.cut
    predicted = {name: measured(model, part) for name, part in parts.items()}
    scores = {name: one.scores for name, one in predicted.items()}
    if cut := measured.cut - before:
        log(truncated(cut))
    print(table(scores) + reports(predicted), flush=True)
    return {"scores": scores}


def log_texts(part: Labeled, tokenizer: Tokenizer) -> None:
    """Logs the number of evaluation examples of a trained model, and their unknown tokens."""
    log_scored(part.name, plural(len(part), "example"), tokenizer, **_texts(part))


def _texts(part: Labeled) -> dict[str, list[str]]:
    """Returns the texts of examples by side, or the words of their sentences."""
    if isinstance(part, Questions):
        return {"question": part.questions, "paragraph": part.contexts}
    if isinstance(part, Tagged):
        return {"text": [*itertools.chain.from_iterable(part.words)]}
    return {"text": part.texts} | ({"second": part.text_pairs} if part.text_pairs else {})


def _sides(part: Labeled, tokenizer: Tokenizer, ids: np.ndarray) -> list[Side]:
    sides = _texts(part)
    names = {"text": ""} if len(sides) == 1 else {}
    return [Side(names.get(name, name), texts, tokenizer, ids) for name, texts in sides.items()]


@dataclasses.dataclass(frozen=True)
class _Encoded:
    """Examples as ids, with the target of each example or of each token."""

    examples: EncodedExamples
    labels: np.ndarray | None = None  # [count ...]
    tags: np.ndarray | None = None  # per token of the store; -1 without a tag
    allowed: np.ndarray | None = None  # per token: whether an answer may be there

    @property
    def targets(self) -> np.ndarray:
        """Returns the labels or the tags."""
        targets = self.labels if self.tags is None else self.tags
        assert targets is not None
        return targets

    def batches(self, pad: int) -> Callable[[BatchPlan], dict[str, Any]]:
        """Returns a function from the items of a batch to its arrays; padding has no labels."""
        return functools.partial(self._batch, pad)

    def _batch(self, pad: int, items: BatchPlan) -> dict[str, np.ndarray]:
        indices = items.indices
        made = collate(self.examples, indices, items.S, pad)
        inside = np.arange(items.S) < made["lengths"][:, None]
        begins = self.examples.store.offsets[np.maximum(indices, 0)]
        places = (begins[:, None] + np.arange(items.S))[inside]
        if self.labels is not None:
            nothing = np.nan if self.labels.dtype.kind == "f" else -1
            labels = self.labels[np.maximum(indices, 0)]
            labels[indices < 0] = nothing
            made["labels"] = labels
        if self.tags is not None:
            made["labels"] = np.full(inside.shape, -1, np.int32)
            made["labels"][inside] = self.tags[places]
        if self.allowed is not None:
            made["allowed"] = np.zeros(inside.shape, bool)
            made["allowed"][inside] = self.allowed[places]
            made["allowed"][:, 0] = True
        return made


def _encode(
    part: Labeled,
    *,
    kind: LabeledTask,
    labels: tuple[str, ...],
    tokenizer: Tokenizer,
    length: int,
    stride: int,
    template: SpecialTokensTemplate | None,
) -> _Encoded:
    """Returns examples and labels as numbers, and a summary line."""
    if isinstance(part, Sentences):
        examples, cut = encode_sentences(part.texts, part.text_pairs, tokenizer, length, template)
        unknown = describe_unknown(part.name, *_sides(part, tokenizer, examples.store.ids))
        truncated = f", {cut:,} truncated" if cut else ""
        log(f"{part.name}: {plural(len(part), 'example')}{truncated}{unknown}")
        if kind == "regress":
            return _Encoded(examples, np.array([float(x) for x in part.labels], np.float32))
        return _Encoded(examples, np.array(label_indices(part, labels), np.int32))
    if isinstance(part, Tagged):
        tagged = encode_tagged(part.words, tokenizer, length)
        store = tagged.examples.store
        targets = np.full(len(store.ids), -1, np.int32)
        rows = np.repeat(np.arange(len(tagged)), tagged.word_starts.lengths)
        tags = np.array(label_indices(part, labels), np.int32)
        targets[store.offsets[rows] + tagged.word_starts.ids] = tags
        unknown = describe_unknown(part.name, *_sides(part, tokenizer, store.ids))
        shortened = f", {tagged.cut:,} with a truncated word" if tagged.cut else ""
        words = f"{plural(len(part), 'sentence')}, {plural(len(tags), 'word')}"
        log(f"{part.name}: {words}{shortened}{unknown}")
        return _Encoded(tagged.examples, tags=targets)
    spans = encode_questions(part.questions, part.contexts, tokenizer, length, stride)
    found = locate_answers(spans, part.answers).astype(np.int32)
    ids = spans.examples.store.ids
    unknown = describe_unknown(part.name, *_sides(part, tokenizer, ids))
    shortened = f", {spans.cut:,} of them truncated" if spans.cut else ""
    inside = set(spans.question[(found > 0).any(1)].tolist())
    lost = sum(bool(answers) and i not in inside for i, answers in enumerate(part.answers))
    outside = f", {plural(lost, 'answer')} in no window" if lost else ""
    log(
        f"{part.name}: {plural(len(part), 'question')}{shortened}, {plural(len(spans), 'window')}"
        f"{outside}{unknown}"
    )
    return _Encoded(spans.examples, found, allowed=spans.spans[:, 0] >= 0)
