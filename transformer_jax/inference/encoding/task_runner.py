"""Runs fine-tuned encoders on texts: classes, labels, numbers, tags, answers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from transformer_jax.core.errors import DataError
from transformer_jax.data.examples import EncodedExamples, encode_sentences
from transformer_jax.data.question_examples import SpanExamples, encode_questions
from transformer_jax.data.tagged_examples import encode_tagged
from transformer_jax.data.tokenizer import SpecialTokensTemplate, Tokenizer
from transformer_jax.data.vocabulary import check_vocabulary
from transformer_jax.inference.encoding.batching import Batches
from transformer_jax.models.making import TaskKind
from transformer_jax.training.objectives import encoder_inputs

__all__ = ["AnswerSpan", "NoTokensError", "TaskRunner", "UnreadTextError"]


class AnswerSpan(NamedTuple):
    """A piece of a context that may answer a question; the empty text is "there is no answer".

    ``score`` is the sum of the logits of its two ends, less those of there being no answer.
    """

    text: str
    start: int
    score: float


class UnreadTextError(DataError):
    """A text that a model does not read.

    Attributes:
        index: Its place among those given.
    """

    def __init__(self, index: int, reason: str):
        self.index, self._reason = index, reason
        super().__init__(self.about(f"text {index + 1}"))

    def about(self, name: str) -> str:
        """The message about a text of this name."""
        return f"{name}: {self._reason}"


class NoTokensError(UnreadTextError):
    """A text of which nothing is left to read."""

    def __init__(self, index: int):
        super().__init__(
            index, "is empty, and this model reads nothing around a text: leave it out"
        )

    def about(self, name: str) -> str:
        """The message about a text of this name."""
        return f"{name} {self._reason}"


# The conversion of scores by task; scores of other tasks are fractions of 1.
_SHARES = {
    "replaced": lambda scores: jnp.concatenate(
        [jax.nn.sigmoid(-scores), jax.nn.sigmoid(scores)], axis=-1
    ),
    "multi_label": jax.nn.sigmoid,
    "regress": lambda scores: scores,
    "qa": lambda scores: scores,
}


class TaskRunner:
    """Labels of texts by an encoder, or a decoder, with the head of its task.

    Texts are cut to ``length`` tokens, long sentences of words continue in further rows and
    long contexts are read through overlapping windows.

    Args:
        model: Graph and parameters of a classifier of :mod:`transformer_jax.models.heads`;
            parameters may be None as long as nothing is asked.
        tokenizer: Of the run.
        kind: The task.
        labels: Names of classes or tags; of answers, whether ``"none"`` is among what can be told.
        length: Most tokens of a row.
        stride: Tokens that windows over a long context share.
        tokens: Of a batch, padding included.
        template: The special tokens around texts; None are those of training here.

    Attributes:
        cut: How many texts so far were longer than ``length``.
    """

    def __init__(
        self,
        model: tuple[Any, Any],
        tokenizer: Tokenizer,
        *,
        kind: TaskKind,
        labels: Sequence[str] = (),
        length: int = 128,
        stride: int = 64,
        tokens: int = 4096,
        template: SpecialTokensTemplate | None = None,
    ):
        graph, params = model
        self._graph, self._tokenizer, self.params = graph, tokenizer, params
        self._length, self._stride = length, stride
        self._may_have_none, self.cut = "none" in labels, 0
        self._template = template

        def program(params: Any, batch: dict[str, Any]) -> jax.Array:
            scores = nnx.merge(graph, params)(*encoder_inputs(batch))
            return _SHARES.get(kind, jax.nn.softmax)(scores)

        self._run = Batches(program, tokens=tokens, pad=tokenizer.pad)

    @property
    def params(self) -> Any:
        """The parameters in use; None before there are any, as when a run is about to begin."""
        return self._params

    @params.setter
    def params(self, params: Any) -> None:
        # The model is complete, and can be asked for its vocabulary, only with parameters.
        if params is not None:
            check_vocabulary(self._tokenizer, nnx.merge(self._graph, params).config.vocab_size)
        self._params = params

    def classes(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None
    ) -> Float[np.ndarray, "count V"]:
        """The probability of each class, of each text or pair of texts.

        They add up to 1, but for labels of which a text may have several or none
        (``multi_label``): each has a probability of its own.

        Raises:
            DataError: A text has no tokens, and its model reads nothing around it.
        """
        return self._texts(texts, seconds)

    def numbers(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None
    ) -> Float[np.ndarray, " count"]:
        """The number of each text or pair of texts."""
        return self._texts(texts, seconds)[:, 0]

    def _texts(self, texts: Sequence[str], seconds: Sequence[str] | None) -> np.ndarray:
        examples, cut = encode_sentences(
            texts, seconds, self._tokenizer, self._length, self._template
        )
        self.cut += cut
        nothing = np.flatnonzero(examples.store.lengths == 0)
        if len(nothing):
            raise NoTokensError(int(nothing[0]))
        return self.rows(examples)

    def rows(self, examples: EncodedExamples) -> Float[np.ndarray, "count V"]:
        """Probabilities, or the number, of each example."""
        out: np.ndarray | None = None
        for rows, scores in self._run(self.params, examples):
            if out is None:
                out = np.zeros((len(examples), scores.shape[1]), np.float32)
            out[rows] = scores
        return np.zeros((0, 1), np.float32) if out is None else out

    def tags(self, words: Sequence[Sequence[str]]) -> list[list[tuple[int, float]]]:
        """The tag of each word of each sentence, and its probability."""
        out: list[list[tuple[int, float]]] = [[(0, 0.0)] * len(sentence) for sentence in words]
        tagged = encode_tagged(words, self._tokenizer, self._length, self._template)
        for rows, scores in self._run(self.params, tagged.examples):
            best, worth = scores.argmax(-1), scores.max(-1)
            for row, number in enumerate(rows.tolist()):
                sentence, first = int(tagged.sentence[number]), int(tagged.firsts[number])
                for word, place in enumerate(tagged.word_starts[number].tolist(), first):
                    out[sentence][word] = int(best[row, place]), float(worth[row, place])
        return out

    def answers(
        self, questions: Sequence[str], contexts: Sequence[str], *, best: int = 1, longest: int = 30
    ) -> list[list[AnswerSpan]]:
        """The likeliest answers to each question, best first.

        There being none is among them if the run was trained on such questions, and where a context
        has no tokens.

        Args:
            questions: The questions.
            contexts: What each is about.
            best: How many answers of each.
            longest: Most tokens of an answer.
        """
        how = self._length, self._stride
        spans = encode_questions(
            questions, contexts, self._tokenizer, *how, template=self._template
        )
        found: list[dict[tuple[int, int], float]] = [{} for _ in questions]
        nothing = [float("inf")] * len(questions)
        for rows, scores in self._run(self.params, spans.examples):
            for row, number in enumerate(rows.tolist()):
                question = int(spans.question[number])
                begin, end = scores[row, :, 0], scores[row, :, 1]
                # A question has no answer if no window has one.
                nothing[question] = min(nothing[question], float(begin[0] + end[0]))
                for place, worth in _spans(spans, number, begin, end, best, longest):
                    known = found[question].get(place, -np.inf)
                    found[question][place] = max(known, worth)
        out = []
        for question, context in enumerate(contexts):
            ranked = [
                AnswerSpan(context[start:stop], start, worth - nothing[question])
                for (start, stop), worth in found[question].items()
            ]
            if self._may_have_none or not ranked:
                ranked.append(AnswerSpan("", -1, 0.0))
            out.append(sorted(ranked, key=lambda answer: -answer.score)[:best])
        return out


def _spans(
    spans: SpanExamples,
    number: int,
    begin: Float[np.ndarray, " T"],
    end: Float[np.ndarray, " T"],
    best: int,
    longest: int,
) -> list[tuple[tuple[int, int], float]]:
    """The best pieces of one window, as characters, and the sums of their logits."""
    places = spans.row_spans(number)
    inside: Int[np.ndarray, " some"] = np.flatnonzero(places[:, 0] >= 0)
    if not len(inside):
        return []
    first, last = begin[inside], end[inside]
    total = first[:, None] + last[None, :]
    ahead = np.arange(len(inside))[None, :] - np.arange(len(inside))[:, None]
    total = np.where((ahead >= 0) & (ahead < longest), total, -np.inf)
    count = min(best, total.size)
    chosen = np.argpartition(-total.ravel(), count - 1)[:count]
    out = []
    for flat in chosen.tolist():
        i, j = divmod(flat, len(inside))
        if np.isfinite(total[i, j]):
            where = int(places[inside[i], 0]), int(places[inside[j], 1])
            out.append((where, float(total[i, j])))
    return out
