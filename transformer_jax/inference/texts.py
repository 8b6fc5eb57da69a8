"""Encoders and fine-tuned models as functions of text: vectors, labels, numbers, tags, answers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from jaxtyping import Float

from transformer_jax.core.errors import ArgumentError, ConfigError, DataError, plural
from transformer_jax.data.conversations import check_answered
from transformer_jax.data.words import blank_words
from transformer_jax.inference.attention import TextAttention
from transformer_jax.inference.base import Predictor, listed, several, warn_of_texts
from transformer_jax.inference.capture import EncoderCapture
from transformer_jax.inference.embedding import Embedding
from transformer_jax.inference.encoders import (
    check_question,
    check_scorer,
    check_task,
    mask_filler,
    task_runner,
)
from transformer_jax.inference.encoding.masked import MaskFiller, TokenPrediction
from transformer_jax.inference.encoding.rewards import Rewarded, RewardRunner
from transformer_jax.inference.encoding.task_runner import AnswerSpan
from transformer_jax.inference.exploring import Explorable
from transformer_jax.inference.results import (
    Classification,
    MultiLabelClassification,
    RankedText,
    TaggedWord,
    classification,
)

if TYPE_CHECKING:
    from transformer_jax.inference.pretrained import Pretrained

__all__ = [
    "ClassificationPredictor",
    "EncoderPredictor",
    "QuestionAnsweringPredictor",
    "RegressionPredictor",
    "RewardPredictor",
    "TaggingPredictor",
]


class EncoderPredictor(EncoderCapture, Explorable, Embedding, Predictor):
    """A pre-trained encoder: vectors of texts, and masked tokens."""

    def __init__(self, opened: "Pretrained"):
        super().__init__(opened)
        self.model, self.tokenizer = opened.module, opened.tokenizer
        self._has_head = opened.facts.record.get("masking", {}) is not None
        self._fill: MaskFiller | None = None
        if self._has_head and self.tokenizer.mask is not None:
            self._fill = mask_filler(opened)

    @overload
    def fill_mask(  # type: ignore[overload-overlap]
        self, texts: str, *, top_k: int = ...
    ) -> list[list[TokenPrediction]]: ...
    @overload
    def fill_mask(
        self, texts: Iterable[str], *, top_k: int = ...
    ) -> list[list[list[TokenPrediction]]]: ...
    def fill_mask(self, texts: str | Iterable[str], *, top_k: int = 5) -> Any:
        """Returns the most probable tokens at each ``[MASK]`` of a text or of texts, best first.

        Raises:
            ConfigError: The encoder has no masked-LM head, or ``top_k`` is out of range.
            DataError: A text has no ``[MASK]``, or exceeds the model's context.
        """
        filler = self.filler()
        with warn_of_texts(filler.counts):
            found = filler(listed(texts), top=top_k)
        return found[0] if isinstance(texts, str) else found

    def filler(self) -> MaskFiller:
        """Returns the predictor of masked tokens.

        Raises:
            ConfigError: The encoder has no masked-LM head, or its tokenizer no mask.
        """
        if self._fill is None:
            part = "mask token" if self._has_head else "masked-LM head"
            where = self.opened.facts.source
            raise ConfigError(f"{where}: an encoder without a {part}: use embed")
        return self._fill


class _Task(EncoderCapture, Explorable, Embedding, Predictor):
    """A fine-tuned model."""

    tasks: tuple[str, ...] = ()

    runner: Any

    def __init__(self, opened: "Pretrained"):
        facts, self.opened = opened.facts, opened
        self.head = check_task(facts, *self.tasks)
        self.runner = task_runner(opened)
        self.model, self.tokenizer = opened.module, opened.tokenizer
        self.labels: tuple[str, ...] = self.head.labels
        # Hugging Face models do not specify whether they read pairs.
        self._pairs = None if "published" in facts.record else self.head.pairs
        self._decodes = facts.kind == "decoder-task"
        if not self._decodes:
            super().__init__(opened)

    def embed(self, texts: str | Iterable[str], **how: Any) -> Float[np.ndarray, "*B_and_layers D"]:
        """Returns vectors of texts by the encoder below the head, see :meth:`Embedding.embed`.

        Raises:
            ConfigError: The model is a fine-tuned decoder, or a layer or pooling is unknown.
        """
        if self._decodes:
            raise ConfigError("a fine-tuned decoder has no encoder: no vectors of texts")
        return super().embed(texts, **how)

    def attention(self, text: str, text_pair: str | None = None) -> TextAttention:
        """Returns the attention of the encoder below the head, see :meth:`Embedding.attention`.

        Raises:
            ConfigError: The model is a fine-tuned decoder.
        """
        if self._decodes:
            raise ConfigError("a fine-tuned decoder has no encoder: no attention to show")
        return super().attention(text, text_pair)


# One text, many texts, or many pairs of texts.
TextsOrPairs: TypeAlias = str | Iterable[str] | Iterable[Sequence[str]]
_PAIRS = (list, tuple)


class _TextTask(_Task):
    """A fine-tuned model of whole texts or of pairs of texts."""

    def rank(
        self, query: str, texts: Iterable[str], *, top_k: int | None = None
    ) -> list[RankedText]:
        """Returns texts with the scores of a cross-encoder for a query, the highest first.

        Texts with equal scores keep their order.

        Args:
            query: The first text of each pair.
            texts: The second text of each pair.
            top_k: Number of texts to return; None is all.

        Raises:
            ConfigError: The model does not give one number for a pair of texts.
        """
        check_scorer(self.opened.facts)
        if top_k is not None and top_k < 1:
            raise ArgumentError(f"top_k is {top_k}: at least 1")
        [query], found = listed([query]), listed(texts)
        with warn_of_texts(self.runner.counts):
            scores = self.runner.numbers([query] * len(found), found)
        order = np.argsort(-scores, kind="stable")[:top_k].tolist()
        return [RankedText(i, float(scores[i]), found[i]) for i in order]

    def sides(
        self, texts: TextsOrPairs, pairs: str | Iterable[str] | None
    ) -> tuple[list[str], list[str] | None]:
        """Returns the texts, and the second texts of pairs, as lists."""
        given = [texts] if isinstance(texts, str) else several(texts)
        if pairs is None and given and all(isinstance(one, _PAIRS) for one in given):
            given, pairs = _apart(given)
        first = listed(given)
        if pairs is None:
            if self._pairs:
                raise DataError("this model was trained on pairs of texts: give text_pairs")
            return first, None
        if self._pairs is False:
            raise DataError("this model was trained on single texts: leave text_pairs out")
        second = listed(pairs)
        if len(first) != len(second):
            raise DataError(
                f"{plural(len(first), 'text')} and {plural(len(second), 'second text')}"
            )
        return first, second


def _apart(pairs: Sequence[Sequence[str]]) -> tuple[list[str], list[str]]:
    """Returns the first and the second texts of pairs.

    Raises:
        ArgumentError: An item is not two texts.
    """
    for i, pair in enumerate(pairs):
        if len(pair) != 2:
            raise ArgumentError(f"pair {i + 1} is {repr(pair)[:40]}: two texts are needed")
    first, second = zip(*pairs, strict=True)
    return list(first), list(second)


class ClassificationPredictor(_TextTask):
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
        texts: Sequence[str] | Sequence[Sequence[str]],
        text_pairs: Sequence[str] | None = None,
        *,
        threshold: float = ...,
    ) -> list[Classification | MultiLabelClassification]: ...
    def __call__(
        self,
        texts: TextsOrPairs,
        text_pairs: str | Sequence[str] | None = None,
        *,
        threshold: float = 0.5,
    ) -> Any:
        """Returns the label of a text with its probability, or a list of them.

        Args:
            texts: One text or many; for a model of pairs, also a list of pairs of texts.
            text_pairs: The second text of each pair, for a model of pairs.
            threshold: Minimum probability of a label, for multi-label models.

        Raises:
            DataError: A text has no tokens, or the numbers of texts and second texts differ.
        """
        sides = self.sides(texts, text_pairs)
        with warn_of_texts(self.runner.counts):
            rows = self.runner.classes(*sides)
        found = [self._named(row.tolist(), threshold) for row in rows]
        return found[0] if isinstance(texts, str) else found

    def _named(
        self, row: list[float], threshold: float
    ) -> Classification | MultiLabelClassification:
        if self.head.kind != "multi_label":
            return classification(self.labels, row)
        named = dict(zip(self.labels, row, strict=True))
        ranked = sorted(named, key=lambda label: -named[label])
        above = tuple(label for label in ranked if named[label] >= threshold)
        return MultiLabelClassification(above, named)


class RegressionPredictor(_TextTask):
    """A regression model: a number for a text or a pair of texts."""

    tasks = ("regress",)

    def __call__(
        self, texts: TextsOrPairs, text_pairs: str | Sequence[str] | None = None
    ) -> Float[np.ndarray, " B"]:
        """Returns the number for each text or pair of texts, always as an array.

        Args:
            texts: One text or many; for a model of pairs, also a list of pairs of texts.
            text_pairs: The second text of each pair, for a model of pairs.

        Raises:
            DataError: A text has no tokens, or the numbers of texts and second texts differ.
        """
        sides = self.sides(texts, text_pairs)
        with warn_of_texts(self.runner.counts):
            return np.asarray(self.runner.numbers(*sides))


class RewardPredictor(RegressionPredictor):
    """A reward model: the reward of a text, or of the last message of a conversation."""

    runner: RewardRunner

    def __call__(  # type: ignore[override]
        self, texts: Rewarded | Sequence[Rewarded], text_pairs: str | Sequence[str] | None = None
    ) -> Float[np.ndarray, " B"]:
        """Returns the reward of each text or conversation, always as an array.

        Args:
            texts: One or many texts, objects with ``prompt`` and ``completion``, or conversations:
                lists of messages with ``role`` and ``content``, of which the last is the answer, or
                objects with such ``messages``.
            text_pairs: Must be None: a reward model does not read pairs.

        Raises:
            ConfigError: A conversation is given, but the model was trained on texts.
            DataError: A conversation does not end with an answer, the chat template refuses it, or
                prompt or completion is not text.
        """
        if text_pairs is not None:
            raise DataError("a reward model was trained on single texts: leave text_pairs out")
        given: list[Any] = [texts] if isinstance(texts, str | Mapping) else several(texts)
        if any(isinstance(part, Mapping) and "role" in part for part in given):
            given = [given]  # the messages of one conversation
        given = [_conversation(i, part) for i, part in enumerate(given)]
        with warn_of_texts(self.runner.counts):
            return np.asarray(self.runner.numbers(given))


def _conversation(i: int, part: Any) -> Any:
    """Returns the messages of an object with ``messages``; other values are unchanged."""
    if not isinstance(part, Mapping) or "messages" not in part:
        return part
    try:
        return check_answered(part["messages"])
    except ConfigError as error:
        raise DataError(f"text {i + 1}: {error}") from None


class TaggingPredictor(_Task):
    """A token classifier: tags the words of a sentence.

    Attributes:
        labels: Names of the tags.
    """

    tasks = ("tag", "replaced")

    @overload
    def __call__(self, sentences: str) -> list[TaggedWord]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, sentences: Iterable[str | Sequence[str]]) -> list[list[TaggedWord]]: ...
    def __call__(self, sentences: str | Iterable[str | Sequence[str]]) -> Any:
        """Returns the words of a sentence with their tags, or a list of these.

        Args:
            sentences: One sentence or many, or lists of their words; a string is split at blanks.
        """
        given = [sentences] if isinstance(sentences, str) else several(sentences)
        words = [blank_words(one) if isinstance(one, str) else listed(one) for one in given]
        with warn_of_texts(self.runner.counts):
            found = self.runner.tags(words)
        tagged = [
            [
                TaggedWord(word, self.labels[tag], share)
                for word, (tag, share) in zip(row, tags, strict=True)
            ]
            for row, tags in zip(words, found, strict=True)
        ]
        return tagged[0] if isinstance(sentences, str) else tagged


class QuestionAnsweringPredictor(_Task):
    """Extractive question answering: the span of a text that answers a question."""

    tasks = ("qa",)

    def __call__(
        self, question: str, context: str, *, top_k: int = 1, max_answer_len: int = 30
    ) -> list[AnswerSpan]:
        """Returns the most probable answers to a question, best first; "" means no answer.

        Args:
            question: The question.
            context: The text that may contain the answer.
            top_k: Number of answers.
            max_answer_len: Maximum length of an answer in tokens.

        Raises:
            DataError: The question is blank.
        """
        listed([question, context])
        check_question(self.opened.facts.preparation, question, "text 1")
        with warn_of_texts(self.runner.counts):
            [found] = self.runner.answers([question], [context], best=top_k, longest=max_answer_len)
        return list(found)
