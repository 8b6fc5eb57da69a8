"""Encoders and fine-tuned models as functions of text: vectors, labels, numbers, tags, answers."""

import contextvars
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Float

from transformer_jax.errors import ConfigError
from transformer_jax.predictors.encoders import (
    frame_of,
    load_task,
    load_vectors,
    pool_of,
    read_length,
)
from transformer_jax.predictors.results import (
    AnswerSpan,
    Classification,
    MultiLabelClassification,
    TaggedWord,
    TokenPrediction,
)
from transformer_jax.predictors.runs import as_trained, load

if TYPE_CHECKING:
    from transformer_jax.encoding.vectors import Layers, Pool

__all__ = [
    "ClassificationPredictor",
    "EncoderPredictor",
    "QuestionAnsweringPredictor",
    "RegressionPredictor",
    "TaggingPredictor",
]


class _Embedding:
    """A model with an encoder, which turns texts into vectors.

    Args:
        path: A run directory or a Hugging Face checkpoint.
        checkpoint: ``best``, ``last``, a step, or ``average:N``, the mean of the last N.

    Raises:
        ConfigError: The model is of another family.
        CheckpointError: Nothing trained is there, or its files are damaged.
    """

    def __init__(self, path: Path, checkpoint: str = "best"):
        self.path, self.checkpoint = path, checkpoint
        # What is loaded later is loaded as it would be now.
        self._context = contextvars.copy_context()

    @functools.cached_property
    def _vectors(self) -> Any:
        load = functools.partial(load_vectors, sentences=True)
        return self._context.run(load, self.path, self.checkpoint)

    def embed(
        self, texts: Iterable[str], *, layers: "Layers" = "last", pooling: "Pool | None" = None
    ) -> Float[np.ndarray, "B *layers D"]:
        """The vector of each text.

        Args:
            texts: The texts.
            layers: ``last``, ``all``, ``sum4`` or ``concat4`` of the last four, or a layer's
                number, 0 being the embeddings.
            pooling: ``mean`` over tokens or ``first``, that of ``[CLS]``; None is what a sentence
                encoder was made for, with the dense layer at its end, and the mean otherwise.

        Raises:
            ConfigError: There is no such layer or pooling.
        """
        if pooling == "none":
            raise ConfigError("pooling is none: mean or first, one vector for each text")
        vectors, prepare = self._vectors
        dense, pool = vectors.dense, pool_of(self.path, pooling)
        vectors.dense = dense if pooling is None else None
        try:
            lines = [prepare(text) for text in texts]
            blocks = [made.vectors for made in vectors.embed(lines, layers=layers, pool=pool)]
        finally:
            vectors.dense = dense
        return np.concatenate(blocks) if blocks else np.zeros((0, vectors.width), np.float32)


class EncoderPredictor(_Embedding):
    """A pre-trained encoder: vectors of texts, and masked tokens."""

    @functools.cached_property
    def _fill(self) -> Any:
        return self._context.run(self._load_fill)

    def _load_fill(self) -> Any:
        from transformer_jax.encoding.masked import FillMask
        from transformer_jax.training.run_directory import RunDirectory

        run = RunDirectory.open(self.path)
        if run.read_config().get("masking", {}) is None:
            raise ConfigError(f"{self.path}: an encoder without a masked-LM head: use embed")
        model, tokenizer = load(self.path, self.checkpoint, kind="encoder")
        return FillMask(
            model,
            tokenizer,
            length=read_length(run),
            prepare=as_trained(self.path, trim=False),
            frame=frame_of(run, tokenizer),
        )

    def fill_mask(
        self, texts: Sequence[str], *, top_k: int = 5
    ) -> list[list[list[TokenPrediction]]]:
        """Of each text, of each ``[MASK]`` in order, the most probable tokens, best first.

        Raises:
            ConfigError: The encoder has no masked-LM head, or ``top_k`` is out of range.
            DataError: A text has no ``[MASK]``, or more tokens than are read.
        """
        found: list[list[list[TokenPrediction]]] = self._fill(texts, top=top_k)
        return found


class _Task(_Embedding):
    """A fine-tuned model."""

    tasks: tuple[str, ...] = ()

    def __init__(self, path: Path, checkpoint: str = "best"):
        super().__init__(path, checkpoint)
        self._predictor, self._task, self._prepare = load_task(path, checkpoint, self.tasks)
        self.labels: tuple[str, ...] = tuple(self._task.get("labels", ()))


class ClassificationPredictor(_Task):
    """A classifier of texts or of pairs of texts.

    Attributes:
        labels: Names of the classes.
    """

    tasks = ("classify", "multi_label", "pair")

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, texts: str, text_pairs: str | None = None, *, threshold: float = ...
    ) -> Classification | MultiLabelClassification: ...
    @overload
    def __call__(
        self,
        texts: Sequence[str],
        text_pairs: Sequence[str] | None = None,
        *,
        threshold: float = ...,
    ) -> list[Classification | MultiLabelClassification]: ...
    def __call__(
        self,
        texts: str | Sequence[str],
        text_pairs: str | Sequence[str] | None = None,
        *,
        threshold: float = 0.5,
    ) -> Any:
        """The label of a text and its probability, or a list with those of each text.

        Args:
            texts: One text or many.
            text_pairs: The second text of each pair, of a model of pairs.
            threshold: Least probability of a label, of a model of several labels a text.

        Raises:
            DataError: A text has no tokens, or there are more texts than second texts.
        """
        one = isinstance(texts, str)
        rows = self._predictor.classes(*_sides(self._prepare, texts, text_pairs))
        found = [self._named(row.tolist(), threshold) for row in rows]
        return found[0] if one else found

    def _named(
        self, row: list[float], threshold: float
    ) -> Classification | MultiLabelClassification:
        shares = dict(zip(self.labels, row, strict=True))
        ranked = sorted(shares, key=lambda label: -shares[label])
        if self._task["kind"] == "multi_label":
            above = tuple(label for label in ranked if shares[label] >= threshold)
            return MultiLabelClassification(above, shares)
        return Classification(ranked[0], shares[ranked[0]], shares)


class RegressionPredictor(_Task):
    """A model that gives a number for a text or a pair of texts."""

    tasks = ("regress",)

    def __call__(
        self, texts: Sequence[str], text_pairs: Sequence[str] | None = None
    ) -> Float[np.ndarray, " B"]:
        """The number of each text.

        Raises:
            DataError: A text has no tokens, or there are more texts than second texts.
        """
        return np.asarray(self._predictor.numbers(*_sides(self._prepare, texts, text_pairs)))


class TaggingPredictor(_Task):
    """A model that gives each word of a sentence a tag.

    Attributes:
        labels: Names of the tags.
    """

    tasks = ("tag", "replaced")

    def __call__(self, sentences: Sequence[str | Sequence[str]]) -> list[list[TaggedWord]]:
        """The words of each sentence with their tags.

        Args:
            sentences: Sentences, or lists of their words; a string is split at blanks.
        """
        words = [one.split() if isinstance(one, str) else list(one) for one in sentences]
        found = self._predictor.tags([[self._prepare(word) for word in row] for row in words])
        return [
            [
                TaggedWord(word, self.labels[tag], share)
                for word, (tag, share) in zip(row, tags, strict=True)
            ]
            for row, tags in zip(words, found, strict=True)
        ]


class QuestionAnsweringPredictor(_Task):
    """A model that finds the answer to a question in a text."""

    tasks = ("span",)

    def __call__(
        self, questions: str, context: str, *, top_k: int = 1, max_answer_len: int = 30
    ) -> list[AnswerSpan]:
        """The most probable answers to a question, best first; an empty one means there is none.

        Args:
            questions: The question.
            context: The text that may hold the answer.
            top_k: How many answers.
            max_answer_len: Most tokens of an answer.
        """
        from transformer_jax.data.squad import lowered

        read = lowered(context) if self._prepare("A") == "a" else context
        [found] = self._predictor.answers(
            [self._prepare(questions)], [read], best=top_k, longest=max_answer_len
        )
        # As it is written in the text, whatever was lower-cased.
        written = lambda one: context[one.start : one.start + len(one.text)] if one.text else ""
        return [one._replace(text=written(one)) for one in found]


def _sides(
    prepare: Any, texts: str | Sequence[str], pairs: str | Sequence[str] | None
) -> tuple[list[str], list[str] | None]:
    """The texts, and the second texts of pairs, as lists of what the model was trained on."""
    from transformer_jax.errors import DataError, plural

    listed = lambda given: [given] if isinstance(given, str) else list(given)
    first = [prepare(text) for text in listed(texts)]
    if pairs is None:
        return first, None
    second = [prepare(text) for text in listed(pairs)]
    if len(first) != len(second):
        raise DataError(f"{plural(len(first), 'text')} and {plural(len(second), 'second text')}")
    return first, second
