"""Vectors of texts: encoders trained on pairs with scores, or on pairs that belong together."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.config_fields import Amount, Configuration, Count, Positive
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.example_rows import ExampleRows, RowPlan
from transformer_jax.data.examples import EncodedExamples, encode_sentences
from transformer_jax.data.labeled import LabeledSplits, Sentences
from transformer_jax.data.text_similarities import Rankings
from transformer_jax.data.tokenizer import SpecialTokensTemplate, Tokenizer
from transformer_jax.evaluation.retrieval_recall import ranking_scores
from transformer_jax.inference.base import truncated
from transformer_jax.inference.encoding.batching import PackedRows, make_packed_inputs
from transformer_jax.inference.encoding.vectors import Embedder
from transformer_jax.interop.sentence_dense import SentenceFields, normalized, trained_head
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.sentence_encoder import DenseForm, SentenceEncoder, SentenceForm
from transformer_jax.recipes.tasks.batching import has_dropout
from transformer_jax.recipes.tasks.fit import Side, describe_unknown
from transformer_jax.recipes.tasks.labeled import log_texts
from transformer_jax.recipes.tasks.predictions import NumberPredictions
from transformer_jax.recipes.tasks.scores import table
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.training import objectives
from transformer_jax.training.state import split
from transformer_jax.training.task import Data, Task

__all__ = [
    "MEASURES",
    "ExampleBatching",
    "SentenceReader",
    "SimilarityLoss",
    "VectorScores",
    "check_widths",
    "cosine_labels",
    "form_of",
    "similarity",
]

Scores: TypeAlias = dict[str, dict[str, float]]  # of parts of the data, by name
Measure: TypeAlias = Callable[[Sequence[np.ndarray]], dict[str, float]]  # of vectors

_LENGTH = 128  # tokens of a text, unless settings say otherwise

# The metrics of examples with scores, and of others; the first is the main one.
MEASURES = {
    "scores": ("spearman", "pearson"),
    "ranking": ("ndcg_10", "mrr_10", "recall_1", "recall_5", "recall_10"),
}


@dataclasses.dataclass(frozen=True)
class SimilarityLoss(Configuration, group="loss"):
    """The loss of a sentence encoder, see :func:`transformer_jax.objectives.similarity`."""

    kind: Literal["cosine", "cosent", "ranking"] = "cosent"  # which loss
    scale: Positive | None = None  # None is 20, or 1 if vectors are compared by dot products
    symmetric: bool = False  # ranking: also anchors among the positives
    label_range: tuple[float, float] | None = None  # cosine: labels that mean 0 and 1
    widths: tuple[Count, ...] = ()  # numbers of components whose losses are added

    @property
    def task(self) -> Literal["scores", "ranking"]:
        """The kind of examples."""
        return "ranking" if self.kind == "ranking" else "scores"


@dataclasses.dataclass(frozen=True)
class ExampleBatching(Configuration, group="batching"):
    """Batches of examples."""

    batch_size: Count = 32  # examples in a batch
    seed: Amount = 1  # random seed of their order
    row_unit: Count = 1  # the number of rows, which hold several examples, is a multiple of this


@dataclasses.dataclass(frozen=True)
class TextLimit:
    """The length of texts, stored with a run."""

    max_length: int


@dataclasses.dataclass(frozen=True)
class SimilaritySettings:
    """The settings of a sentence encoder."""

    model: TransformerConfig
    task: TextLimit
    sentence: SentenceFields
    masking: None = None  # there is no head of masked tokens

    recipe: ClassVar[str] = "similarity"


@dataclasses.dataclass(frozen=True)
class SentenceReader:
    """The reading of texts by a sentence encoder.

    Attributes:
        tokenizer: The tokenizer.
        length: Maximum length of a text in tokens.
        sentence: Pooling, prompts, and what follows.
        template: Special tokens around texts; None is the default of training here.
    """

    tokenizer: Tokenizer
    length: int
    sentence: SentenceFields = dataclasses.field(default_factory=SentenceFields)
    template: SpecialTokensTemplate | None = None

    def prompt(self, role: str | None) -> str:
        """Returns the prompt of a query or a document, or the default prompt."""
        name = self.sentence.get("default_prompt") if role is None else role
        return "" if name is None else self.sentence.get("prompts", {}).get(name, "")

    def prepare(self, text: str, prompt: str = "") -> str:
        """Returns a text as it is read, after a prompt."""
        text = prompt + text
        return text.lower() if self.sentence.get("lowercase") else text

    def encode(self, texts: Sequence[str]) -> tuple[EncodedExamples, int]:
        """Returns the ids of prepared texts, and the number of truncated ones."""
        return encode_sentences(texts, None, self.tokenizer, self.length, self.template)

    def skip(self, prompt: str) -> int:
        """Returns the number of tokens of a prompt that are not pooled."""
        if not prompt or not self.sentence.get("excludes_prompt"):
            return 0
        examples, _ = self.encode([self.prepare("", prompt)])
        return int(examples.store.lengths[0]) - bool(
            self.template is None or self.template.suffix_ids
        )


def form_of(sentence: SentenceFields) -> SentenceForm:
    """Returns the form of the vectors of a sentence encoder, whose dense layer has its sizes."""
    dense = sentence.get("dense")
    pools: Any = tuple(sentence.get("pool", "mean").split(" and "))
    return SentenceForm(
        pools,
        dense and DenseForm(dense["out_features"], dense.get("bias", True), dense["tanh"]),
        bool(sentence.get("normalize")),
    )


@checked_arguments
def similarity(
    data: LabeledSplits,
    config: TransformerConfig,
    tokenizer: Tokenizer,
    *,
    loss: SimilarityLoss = SimilarityLoss(),
    sentence: Mapping[str, Any] | None = None,
    batching: ExampleBatching = ExampleBatching(),
    template: SpecialTokensTemplate | None = None,
    before: Callable[[Mapping[str, Sentences]], Scores] = lambda parts: {},
) -> Task:
    """Returns the task of an encoder whose vectors of texts are compared.

    The loss compares all examples of a batch; rows of a batch hold the texts of several examples.
    Validation measures ``valid_loss`` and, of pairs with scores, the correlation of their
    similarities with the scores; of others, retrieval of the positives of each anchor among all
    positives of the data.

    Args:
        data: Pairs with scores, or :class:`.Rankings` for the loss ``ranking``.
        config: Configuration of the encoder.
        tokenizer: Its tokenizer.
        loss: The loss.
        sentence: Pooling, normalization, dense layer, prompts and ``length``, the most tokens of a
            text, as :class:`.SentenceFields`; None is the mean of the states of up to 128 tokens.
        batching: Examples per batch, and the seed of the order.
        template: Special tokens around texts; None is the default.
        before: Function from parts of the data to scores before training, printed at the end.

    Raises:
        ConfigError: Labels are not of the range of the loss, or a width exceeds the vectors.
    """
    fields: Any = {"pool": "mean", "length": _LENGTH, **(sentence or {})}
    reader = SentenceReader(tokenizer, fields["length"], fields, template)
    form = form_of(fields)
    check_widths(loss.widths, form, config.d_model)
    for line in data.overlaps:
        log(line)
    batches = functools.partial(_batches, loss=loss, reader=reader, batching=batching)
    dot = fields.get("similarity") == "dot"
    objective = objectives.similarity(
        loss.kind,
        scale=loss.scale or (1.0 if dot and loss.kind == "ranking" else 20.0),
        symmetric=loss.symmetric,
        widths=loss.widths,
        compare="dot" if dot else "cosine",
    )
    scores, valid = VectorScores(reader), data.valid
    names = (f"valid_{name}" for name in MEASURES[loss.task])
    ranked = tuple(Metric(name, "higher") for name in names)
    return Task(
        model=lambda rngs: SentenceEncoder(config, form, rngs=rngs),
        train=batches(data.train),
        objective=objective,
        valid={} if valid is None else {"valid": batches(valid, shuffle=False)},
        metrics=(*ranked, Metric("valid_loss", "lower"))
        if valid is not None
        else (Metric("valid_loss", "lower"), *ranked),
        evaluate=None if valid is None else functools.partial(_evaluate, scores, valid),
        test=functools.partial(_test, scores, data, before, loss.widths),
        counts="pairs",
        regularization=("dropout",) * has_dropout(config),
        tokenizer=tokenizer,
        settings=SimilaritySettings(config, TextLimit(reader.length), fields),
    )


def check_widths(widths: Sequence[int], form: SentenceForm, width: int) -> None:
    """Refuses numbers of components that exceed the vectors.

    Args:
        widths: The numbers.
        form: The form of the vectors.
        width: D of the encoder.

    Raises:
        ConfigError: One exceeds them.
    """
    size = form.dense.width if form.dense else width * len(form.pools)
    for one in widths:
        if one > size:
            raise ConfigError(f"matryoshka_dims: {one}, but vectors have {size} components")


def cosine_labels(
    part: Sentences, limits: tuple[float, float] | None
) -> Float[np.ndarray, " count"]:
    """Returns labels as cosines: 0 at the lower limit, 1 at the upper; None changes nothing.

    Args:
        part: The examples.
        limits: The limits.

    Raises:
        ConfigError: A label is out of range, or the limits are.

    Example:
        >>> cosine_labels(Sentences("example", ["a"] * 3, ["b"] * 3, ["0", "2.5", "5"]), (0.0, 5.0))
        array([0. , 0.5, 1. ])
    """
    labels = np.array([float(label) for label in part.labels])
    low, high = float(labels.min()), float(labels.max())
    spread = f"{part.name}: labels are from {low:g} to {high:g}"
    if limits is None:
        if low < -1 or high > 1:
            raise ConfigError(
                f"{spread}, and a cosine is from -1 to 1: say which labels mean 0 and 1 with "
                f"--task.label-range, such as 0 5, or take the loss cosent, which reads their "
                f"order alone"
            )
        return labels
    least, most = limits
    if not least < most:
        raise ConfigError(f"label_range is {least:g} {most:g}: the lower limit stands first")
    if low < least or high > most:
        raise ConfigError(f"{spread}, beyond label_range {least:g} {most:g}")
    return (labels - least) / (most - least)


class _Examples(NamedTuple):
    """Encoded examples, see :func:`_encode`.

    Attributes:
        texts: The distinct texts.
        places: Index of each text of an example in ``texts``; -1 is none.
        skips: Number of tokens of each text that are not pooled.
        labels: The scores, or NaN.
        numbers: A number for each text of an example; equal texts have the same. -1 is none.
        partners: Numbers of all texts that match the anchor of an example; -1 is none.
    """

    texts: EncodedExamples
    places: Int[np.ndarray, "count K"]
    skips: Int[np.ndarray, " texts"]
    labels: Float[np.ndarray, " count"] | None
    numbers: Int[np.ndarray, "count K"]
    partners: Int[np.ndarray, "count P"]

    def batch(self, pad: int, rows: ExampleRows) -> dict[str, np.ndarray]:
        """Returns the arrays of a batch for :func:`.similarity` of ``tj.objectives``."""
        of = lambda values, none: np.where(
            (rows.numbers >= 0).reshape(rows.numbers.shape + (1,) * (values.ndim - 1)),
            values[rows.numbers],
            none,
        )
        texts = of(self.places, -1).reshape(len(rows), -1)
        made = make_packed_inputs(self.texts, PackedRows(texts, rows.T), pad)
        del made["types"]
        if self.skips.any():
            made["skip"] = np.where(texts < 0, 0, self.skips[texts]).astype(np.int32)
        if self.labels is not None:
            return made | {"labels": of(self.labels, np.nan).astype(np.float32)}
        return made | {
            "texts": of(self.numbers, -1).astype(np.int32),
            "partners": of(self.partners, -1).astype(np.int32),
        }


def _encode(part: Sentences, loss: SimilarityLoss, reader: SentenceReader) -> _Examples:
    """Returns examples as ids, and a summary line."""
    ranking = loss.task == "ranking"
    columns: list[Sequence[str | None]] = [part.texts, part.text_pairs or []]
    if isinstance(part, Rankings):
        columns += list(itertools.zip_longest(*part.negatives))
    roles = ("query", *("document",) * (len(columns) - 1)) if ranking else (None,) * 2
    prompts = [reader.prompt(role) for role in roles]
    known: dict[str, int] = {}
    skips: dict[str, int] = {}
    places = np.full((len(part), len(columns)), -1, np.int64)
    for column, (texts, prompt) in enumerate(zip(columns, prompts, strict=True)):
        skip = reader.skip(prompt)
        for row, text in enumerate(texts):
            if text is not None:
                read = reader.prepare(text, prompt)
                places[row, column] = known.setdefault(read, len(known))
                skips[read] = skip
    examples, cut = reader.encode([*known])
    alike = dict[object, int]()  # texts of equal tokens, which the encoder cannot tell apart
    numbers = np.full_like(places, -1)
    plain = len(set(prompts)) == 1
    for column, texts in enumerate(columns):
        for row, text in enumerate(texts):
            if text is not None:
                key = examples.store[places[row, column]].tobytes() if plain else text
                numbers[row, column] = alike.setdefault(key, len(alike))
    sides = dict(zip(("first", "second"), (part.texts, part.text_pairs or []), strict=True))
    ids = examples.store.ids
    unknown = describe_unknown(
        part.name, *(Side(name, texts, reader.tokenizer, ids) for name, texts in sides.items())
    )
    said = f", {cut:,} truncated to {plural(reader.length, 'token')}" if cut else ""
    hard = f", up to {plural(len(columns) - 2, 'hard negative')}" if len(columns) > 2 else ""
    pairs = f"{plural(len(part), 'pair')}{hard}, {plural(len(known), 'text')}"
    log(f"{part.name}: {pairs}{said}{unknown}")
    labels = None if ranking else _labels(part, loss)
    partners = _partners(numbers) if ranking else numbers[:, :0]
    return _Examples(examples, places, np.array([*skips.values()]), labels, numbers, partners)


def _labels(part: Sentences, loss: SimilarityLoss) -> Float[np.ndarray, " count"]:
    """Returns the labels of examples for a loss, and a line about their range."""
    labels = np.array([float(label) for label in part.labels])
    if loss.kind != "cosine":
        return labels
    limits = loss.label_range
    told = "as they are" if limits is None else f"{limits[0]:g} as 0, {limits[1]:g} as 1"
    log(f"{part.name}: labels from {labels.min():g} to {labels.max():g} are cosines, {told}")
    return cosine_labels(part, limits)


def _partners(numbers: Int[np.ndarray, "count K"]) -> Int[np.ndarray, "count P"]:
    """Returns the numbers of each anchor and of all of its positives; -1 is none.

    Example:
        >>> _partners(np.array([[0, 1], [0, 2], [3, 1]])).tolist()
        [[0, 1, 2], [0, 1, 2], [3, 1, -1]]
    """
    matching: dict[int, dict[int, None]] = {}
    for anchor, positive in numbers[:, :2].tolist():
        matching.setdefault(anchor, {anchor: None})[positive] = None
    found = np.full((len(numbers), max(map(len, matching.values()))), -1, np.int64)
    for row, anchor in zip(found, numbers[:, 0].tolist(), strict=True):
        row[: len(matching[anchor])] = [*matching[anchor]]
    return found


def _batches(
    part: Sentences,
    loss: SimilarityLoss,
    reader: SentenceReader,
    batching: ExampleBatching,
    *,
    shuffle: bool = True,
) -> Data:
    """Returns the batches of examples."""
    examples = _encode(part, loss, reader)
    lengths = np.where(examples.places < 0, 0, examples.texts.store.lengths[examples.places])
    plan = RowPlan(
        lengths.sum(1),
        batch_size=batching.batch_size,
        row_unit=batching.row_unit,
        seed=batching.seed,
        shuffle=shuffle,
    )
    make = functools.partial(examples.batch, reader.tokenizer.pad)
    labels = [] if examples.labels is None else [examples.labels]
    return Data.of(plan, make, [examples.texts.store.ids, examples.places.ravel(), *labels])


class VectorScores:
    """Metrics of an encoder; compiled programs are reused in later evaluations.

    Args:
        reader: How it reads texts.
    """

    def __init__(self, reader: SentenceReader):
        self.reader = reader
        self.embedder: Embedder | None = None

    @classmethod
    def of(cls, reader: SentenceReader, embedder: Embedder) -> "VectorScores":
        """Returns the metrics of an opened encoder, whose embedder has its last layer."""
        found = cls(reader)
        found.embedder = embedder
        return found

    def with_model(self, model: Any) -> "VectorScores":
        """Takes the parameters of a model."""
        graph, params = split(model)
        if self.embedder is None:
            self.embedder = Embedder(
                (graph, params),
                self.reader.tokenizer,
                length=self.reader.length,
                template=self.reader.template,
                prepare=self.reader.prepare,
            )
        self.embedder.params = params
        self.embedder.dense = trained_head(self.reader.sentence, params)
        return self

    @property
    def cut(self) -> int:
        """The number of texts so far that were truncated."""
        return self.embedder.counts["cut"] if self.embedder else 0

    def vectors(self, texts: Sequence[str], role: str | None) -> Float[np.ndarray, "texts F"]:
        """Returns the vectors of texts.

        Args:
            texts: The texts.
            role: ``query`` or ``document``, for the prompt; None is the default prompt.
        """
        assert self.embedder is not None
        prompt = self.reader.prompt(role)
        pools: Any = tuple(self.reader.sentence.get("pool", "mean").split(" and "))
        made = self.embedder.embed(texts, pool=pools, prompt=prompt, skip=self.reader.skip(prompt))
        return np.concatenate([block.vectors for block in made])

    def predict(self, part: Sentences) -> NumberPredictions:
        """Returns the similarity of each pair."""
        return self._similarities(part, self._pairs(part))

    def _pairs(self, part: Sentences) -> list[Float[np.ndarray, "count F"]]:
        """Returns the vectors of the first and of the second text of each pair."""
        places: dict[str, int] = {}
        sides = [
            [places.setdefault(text, len(places)) for text in side]
            for side in (part.texts, part.text_pairs or [])
        ]
        vectors = self.vectors([*places], None)
        return [vectors[side] for side in sides]

    def _similarities(
        self, part: Sentences, vectors: Sequence[Float[np.ndarray, "count F"]]
    ) -> NumberPredictions:
        first, second = map(self._compared, vectors)
        return NumberPredictions(part, (first * second).sum(1))

    def _compared(self, vectors: Float[np.ndarray, "texts F"]) -> Float[np.ndarray, "texts F"]:
        """Returns vectors whose products are their similarities."""
        return vectors if self.reader.sentence.get("similarity") == "dot" else normalized(vectors)

    def __call__(self, parts: Mapping[str, Sentences], widths: Sequence[int] = ()) -> Scores:
        """Returns the correlations of pairs with scores, or the retrieval of positives.

        Args:
            parts: Parts of the data, by name.
            widths: Numbers of components, of which there are further rows.
        """
        found = {}
        for name, part in parts.items():
            vectors, measure = self._measure(part)
            found[name] = measure(vectors)
            for width in widths:
                if width < vectors[0].shape[1]:
                    first = [one[:, :width] for one in vectors]
                    found[f"{name}, first {width}"] = measure(first)
        return found

    def _measure(self, part: Sentences) -> tuple[list[np.ndarray], Measure]:
        """Returns the vectors of examples, and the function from them, or a part, to metrics."""
        if not isinstance(part, Rankings):

            def correlations(vectors: Sequence[np.ndarray]) -> dict[str, float]:
                scores = self._similarities(part, vectors).scores
                return {name: scores[name] for name in MEASURES["scores"]}

            return self._pairs(part), correlations
        places = {text: i for i, text in enumerate(dict.fromkeys(part.text_pairs or []))}
        relevant: dict[str, dict[int, None]] = {}
        for anchor, positive in zip(part.texts, part.text_pairs or [], strict=True):
            relevant.setdefault(anchor, {})[places[positive]] = None

        def retrieval(vectors: Sequence[np.ndarray]) -> dict[str, float]:
            queries, documents = map(self._compared, vectors)
            scores = ranking_scores(queries, documents, [[*own] for own in relevant.values()])
            return {name: scores[name] for name in MEASURES["ranking"]}

        vectors = [self.vectors([*relevant], "query"), self.vectors([*places], "document")]
        return vectors, retrieval


def _evaluate(scores: VectorScores, part: Sentences, model: Any) -> dict[str, float]:
    found = scores.with_model(model)({"valid": part})["valid"]
    return {f"valid_{name}": value for name, value in found.items()}


def _test(
    scores: VectorScores,
    data: LabeledSplits,
    before: Callable[[Mapping[str, Sentences]], Scores],
    widths: Sequence[int],
    model: Any,
    step: int,
) -> dict[str, Any]:
    """Prints and returns the metrics on validation and test examples."""
    del step
    parts = ({} if data.valid is None else {"valid": data.valid}) | data.tests
    for part in data.tests.values():
        log_texts(part, scores.reader.tokenizer)
    earlier, measured = scores.cut, scores.with_model(model)
    found = before(parts) | measured(parts, widths)
    if cut := scores.cut - earlier:
        log(truncated(cut))
    if found:
        print(table(found), flush=True)
    return {"scores": found}
