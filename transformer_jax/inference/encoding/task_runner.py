"""Runs fine-tuned models on texts: classes, labels, numbers, tags, answers."""

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from transformer_jax.core.errors import DataError
from transformer_jax.data.coverage import unknown_texts
from transformer_jax.data.examples import (
    EncodedExamples,
    OddToken,
    add_special_tokens,
    default_template,
    encode_sentences,
)
from transformer_jax.data.preparation import PlacedText, Preparation
from transformer_jax.data.question_examples import SpanExamples, encode_questions
from transformer_jax.data.row_offsets import flatten
from transformer_jax.data.store import id_dtype
from transformer_jax.data.tagged_examples import encode_tagged
from transformer_jax.data.tokenizer import SpecialTokensTemplate, Tokenizer
from transformer_jax.data.vocabulary_check import check_vocabulary
from transformer_jax.decoding.stored_programs import stored
from transformer_jax.inference.encoding.batching import Batches
from transformer_jax.interop.cross_encoders import ScoreActivation
from transformer_jax.models.build import TaskKind
from transformer_jax.models.partition import Graph
from transformer_jax.training.objectives import encoder_inputs

__all__ = [
    "AnswerSpan",
    "NoTokensError",
    "ReadingForm",
    "ScoredWindow",
    "TaggedTokens",
    "TaskRunner",
    "UnreadTextError",
]


class AnswerSpan(NamedTuple):
    """A span of a context that may answer a question; the empty text means "no answer".

    ``score`` is the sum of the logits of start and end, minus the logits of "no answer".
    """

    text: str
    start: int
    score: float

    def of_original(self, context: str, read: PlacedText) -> "AnswerSpan":
        """Returns the span as the context spells it, of which the model read ``read``."""
        if self.start < 0:
            return self
        start, stop = read.original(self.start, self.start + len(self.text))
        return self._replace(text=context[start:stop], start=start)


class TaggedTokens(NamedTuple):
    """The tokens of a text, without special ones.

    Attributes:
        ids: Their ids.
        spans: Their character spans in the text, end excluded.
        shares: The probability of each tag.
        first: The number of special tokens before them.
    """

    ids: list[int]
    spans: list[tuple[int, int]]
    shares: Float[np.ndarray, "T V"]
    first: int


class ScoredWindow(NamedTuple):
    """A window over a context, after its question.

    Attributes:
        spans: Character span in the context of each token, end excluded; -1 outside of the window.
        words: Character span of the part in the window of each token's word, in the same way.
        logits: Outputs of the head for the start and the end of an answer.
    """

    spans: Int[np.ndarray, "T 2"]
    words: Int[np.ndarray, "T 2"]
    logits: Float[np.ndarray, "T 2"]


class ReadingForm(NamedTuple):
    """A way to read and score texts; the default is that of models trained here.

    Attributes:
        template: The special tokens around texts; None is ``[CLS]`` and ``[SEP]``.
        has_types: Whether tokens of the second text have type 1.
        odd_token: See :func:`.encode_sentences`.
        activation: The activation of numbers.
        preparation: The preparation of texts in training; None if they come prepared.
    """

    template: SpecialTokensTemplate | None = None
    has_types: bool = True
    odd_token: OddToken = "first"
    activation: ScoreActivation = "identity"
    preparation: Preparation | None = None


_TRAINED_HERE = ReadingForm()


class UnreadTextError(DataError):
    """A text that a model cannot read.

    Attributes:
        index: Its index in the call.
    """

    def __init__(self, index: int, reason: str):
        self.index, self._reason = index, reason
        super().__init__(self.about(f"text {index + 1}"))

    def about(self, name: str) -> str:
        """Returns the message, with a name for the text."""
        return f"{name}: {self._reason}"


class NoTokensError(UnreadTextError):
    """A text without any tokens."""

    def __init__(self, index: int):
        super().__init__(index, "is empty, and this model adds no special tokens: leave it out")

    def about(self, name: str) -> str:
        """Returns the message, with a name for the text."""
        return f"{name} {self._reason}"


# Conversion of logits by task; other tasks use the softmax.
_SHARES = {
    "replaced": lambda scores: jnp.concatenate(
        [jax.nn.sigmoid(-scores), jax.nn.sigmoid(scores)], axis=-1
    ),
    "multi_label": jax.nn.sigmoid,
    "qa": lambda scores: scores,
}
_ACTIVATIONS: dict[ScoreActivation, Callable[[jax.Array], jax.Array]] = {
    "identity": lambda scores: scores,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}


def _shares_of(
    graph: Graph,
    shares: Callable[[jax.Array], jax.Array],
    params: Any,
    batch: dict[str, Any],
    *,
    has_types: bool,
) -> jax.Array:
    tokens, lengths, types = encoder_inputs(batch)
    types = types if has_types else jnp.zeros_like(types)
    return shares(nnx.merge(graph, params)(tokens, lengths, types))


class TaskRunner:
    """Labels texts with an encoder or a decoder with a head for a task.

    Texts are truncated to ``length`` tokens, long sentences of words continue in further rows, and
    long contexts are read in overlapping windows.

    Args:
        model: Graph and parameters of a classifier of :mod:`transformer_jax.models.heads`;
            parameters may be None before the first call.
        tokenizer: The tokenizer of the run.
        kind: The task.
        labels: Names of classes or tags; for answers, whether ``"none"`` is possible.
        length: Maximum length of a row in tokens.
        stride: Overlap of windows over a long context, in tokens.
        tokens: Maximum number of tokens per batch, with padding.
        form: How texts are read and scored.

    Attributes:
        counts: Numbers so far: ``cut``, of texts that were longer than ``length``, of sentences
            with a word that was, and of questions that were truncated to leave room for their
            context; and ``unknown``, of texts with text that the tokenizer does not know: of the
            different texts of pairs, questions and contexts.
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
        form: ReadingForm = _TRAINED_HERE,
    ):
        graph, params = model
        self._graph, self._tokenizer, self.params = graph, tokenizer, params
        self._length, self._stride = length, stride
        self._may_have_none = "none" in labels
        self.counts: collections.Counter[str] = collections.Counter()
        self._template, self._odd_token = form.template, form.odd_token
        self._preparation = form.preparation
        regress = kind == "regress"
        shares = _ACTIVATIONS[form.activation] if regress else _SHARES.get(kind, jax.nn.softmax)
        self._batches = functools.partial(Batches, tokens=tokens, pad=tokenizer.pad)
        self._program = functools.partial(_shares_of, graph, has_types=form.has_types)
        self._run = self._batches(stored(functools.partial(self._program, shares)))

    @property
    def params(self) -> Any:
        """The parameters in use; None if there are none yet, as before a run begins."""
        return self._params

    @params.setter
    def params(self, params: Any) -> None:
        # Only with parameters is the model complete, with its vocabulary.
        if params is not None:
            check_vocabulary(self._tokenizer, nnx.merge(self._graph, params).config.vocab_size)
        self._params = params

    def classes(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None
    ) -> Float[np.ndarray, "count V"]:
        """Returns the probability of each class for each text or pair of texts.

        They sum to 1, except for multi-label models, with independent probabilities.

        Raises:
            DataError: A text has no tokens, and the model adds no special tokens.
        """
        return self._texts(texts, seconds)

    def numbers(
        self, texts: Sequence[str], seconds: Sequence[str] | None = None
    ) -> Float[np.ndarray, " count"]:
        """Returns the number for each text or pair of texts."""
        return self._texts(texts, seconds)[:, 0]

    def logits(
        self,
        texts: Sequence[str],
        seconds: Sequence[str] | None = None,
        *,
        whole_seconds: bool = False,
    ) -> Float[np.ndarray, "count V"]:
        """Returns the outputs of the head for each text or pair of texts, before any activation.

        Args:
            texts: The texts.
            seconds: The second text of each pair.
            whole_seconds: Whether the first text of a long pair alone is truncated.
        """
        odd = "none" if whole_seconds else self._odd_token
        return self.rows(self._encoded(texts, seconds, odd), self._logits)

    @functools.cached_property
    def _logits(self) -> Batches:
        return self._batches(stored(functools.partial(self._program, _ACTIVATIONS["identity"])))

    def _prepared(self, texts: Sequence[str]) -> list[str]:
        if self._preparation is None:
            return list(texts)
        return list(map(self._preparation.line, texts))

    def _texts(self, texts: Sequence[str], seconds: Sequence[str] | None) -> np.ndarray:
        return self.rows(self._encoded(texts, seconds, self._odd_token))

    def _encoded(
        self, texts: Sequence[str], seconds: Sequence[str] | None, odd_token: OddToken
    ) -> EncodedExamples:
        texts = self._prepared(texts)
        seconds = None if seconds is None else self._prepared(seconds)
        examples, cut = encode_sentences(
            texts, seconds, self._tokenizer, self._length, self._template, odd_token
        )
        self._tell(cut, examples, texts, seconds)
        nothing = np.flatnonzero(examples.store.lengths == 0)
        if len(nothing):
            raise NoTokensError(int(nothing[0]))
        return examples

    def _tell(
        self,
        cut: int,
        examples: EncodedExamples,
        texts: Sequence[str],
        seconds: Sequence[str] | None = None,
    ) -> None:
        """Counts texts that were truncated, and texts with unknown text."""
        # A query may be asked of many texts, and a context may be that of many questions.
        read = texts if seconds is None else list(dict.fromkeys([*texts, *seconds]))
        unknown = unknown_texts(read, self._tokenizer, examples.store.ids)
        self.counts.update(cut=cut, unknown=unknown)

    def rows(
        self, examples: EncodedExamples, run: Batches | None = None
    ) -> Float[np.ndarray, "count V"]:
        """Returns the probabilities or the number of each example, or the outputs of ``run``."""
        out: np.ndarray | None = None
        for rows, scores in (run or self._run)(self.params, examples):
            if out is None:
                out = np.zeros((len(examples), scores.shape[1]), np.float32)
            out[rows] = scores
        return np.zeros((0, 1), np.float32) if out is None else out

    def tags(self, words: Sequence[Sequence[str]]) -> list[list[tuple[int, float]]]:
        """Returns the tag of each word of each sentence, with its probability."""
        words = list(map(self._prepared, words))
        out: list[list[tuple[int, float]]] = [[(0, 0.0)] * len(sentence) for sentence in words]
        tagged = encode_tagged(words, self._tokenizer, self._length, self._template)
        self._tell(tagged.cut, tagged.examples, list(map(" ".join, words)))
        for rows, scores in self._run(self.params, tagged.examples):
            best, worth = scores.argmax(-1), scores.max(-1)
            for row, number in enumerate(rows.tolist()):
                sentence, first = int(tagged.sentence[number]), int(tagged.firsts[number])
                for word, place in enumerate(tagged.word_starts[number].tolist(), first):
                    out[sentence][word] = int(best[row, place]), float(worth[row, place])
        return out

    def tokens(self, texts: Sequence[str]) -> list[TaggedTokens]:
        """Returns the tokens of each text with the probabilities of their tags.

        A text is split into tokens as a whole, and truncated to ``length`` tokens.
        """
        placed, template = self._placed(texts), self._template or default_template(self._tokenizer)
        rows = self._tokenizer.encode_spans([read.text for read in placed])
        ids = flatten([[ids for ids, _ in rows]], id_dtype(self._tokenizer))
        room = self._length - len(template.prefix_ids) - len(template.suffix_ids)
        counts = np.minimum(ids.lengths, room)
        examples = add_special_tokens(ids._replace(lengths=counts), None, template)
        self._tell(int(np.sum(ids.lengths > room)), examples, [read.text for read in placed])
        first = len(template.prefix_ids)
        out = [TaggedTokens([], [], np.zeros((0, 0), np.float32), first)] * len(rows)
        for numbers, shares in self._run(self.params, examples):
            for row, number in enumerate(numbers.tolist()):
                count, (own, spans) = int(counts[number]), rows[number]
                out[number] = TaggedTokens(
                    own[:count],
                    [placed[number].original(*span) for span in spans[:count]],
                    shares[row, first : first + count],
                    first,
                )
        return out

    def windows(
        self, question: str, context: str, *, length: int, stride: int, max_question: int | None
    ) -> list[ScoredWindow]:
        """Returns the windows over a context, with the outputs of the head.

        Args:
            question: The question.
            context: Its context.
            length: Largest number of tokens of question and window, with special ones.
            stride: Number of tokens that neighboring windows share.
            max_question: Largest number of tokens of the question; None is no limit.

        Raises:
            ConfigError: Windows would not move on.
        """
        [read], [question] = self._placed([context]), self._prepared([question])
        template = self._template or default_template(self._tokenizer)
        if max_question is None:
            max_question = max(1, length - stride - 1 - sum(map(len, template)))
        spans = encode_questions(
            [question],
            [read.text],
            self._tokenizer,
            length,
            stride,
            max_question,
            template=template,
        )
        self._tell(spans.cut, spans.examples, [question], [read.text])
        words = self._tokenizer.word_spans(read.text) | {(-1, -1): (-1, -1)}
        original = np.append(read.places, -1)  # place -1 stays
        found: dict[int, ScoredWindow] = {}
        for numbers, scores in self._run(self.params, spans.examples):
            for row, number in enumerate(numbers.tolist()):
                places = spans.row_spans(number)
                inside = places[:, 0] >= 0
                of_words = np.array([words[begin, end] for begin, end in places.tolist()])
                if inside.any():
                    seen = places[inside]
                    of_words[inside] = of_words[inside].clip(seen.min(), seen.max())
                logits = scores[row, : len(places)]
                found[number] = ScoredWindow(original[places], original[of_words], logits)
        return [found[number] for number in sorted(found)]

    def answers(
        self, questions: Sequence[str], contexts: Sequence[str], *, best: int = 1, longest: int = 30
    ) -> list[list[AnswerSpan]]:
        """Returns the most probable answers to each question, best first.

        "No answer" is included if the run was trained on such questions, and if a context has no
        tokens.

        Args:
            questions: The questions.
            contexts: The context of each question.
            best: Number of answers per question.
            longest: Maximum length of an answer in tokens.
        """
        originals, placed = contexts, self._placed(contexts)
        questions, contexts = self._prepared(questions), [read.text for read in placed]
        how = self._length, self._stride
        spans = encode_questions(
            questions, contexts, self._tokenizer, *how, template=self._template
        )
        self._tell(spans.cut, spans.examples, questions, contexts)
        found: list[dict[tuple[int, int], float]] = [{} for _ in questions]
        nothing = [float("inf")] * len(questions)
        for rows, scores in self._run(self.params, spans.examples):
            for row, number in enumerate(rows.tolist()):
                question = int(spans.question[number])
                begin, end = scores[row, :, 0], scores[row, :, 1]
                # There is no answer if no window has one.
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
            ranked = sorted(ranked, key=lambda answer: -answer.score)[:best]
            original, read = originals[question], placed[question]
            out.append([answer.of_original(original, read) for answer in ranked])
        return out

    def _placed(self, contexts: Sequence[str]) -> list[PlacedText]:
        """Returns contexts as the model reads them; one may be that of many questions."""
        preparation = self._preparation or Preparation(normalization="none")
        placed = {context: preparation.placed(context) for context in dict.fromkeys(contexts)}
        return [placed[context] for context in contexts]


def _spans(
    spans: SpanExamples,
    number: int,
    begin: Float[np.ndarray, " T"],
    end: Float[np.ndarray, " T"],
    best: int,
    longest: int,
) -> list[tuple[tuple[int, int], float]]:
    """Returns the best spans of one window, in characters, and the sums of their logits."""
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
