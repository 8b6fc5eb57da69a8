"""Questions with windows over their contexts as ids, for extractive question answering."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.examples import (
    TEXTS_AT_ONCE,
    EncodedExamples,
    add_special_tokens,
    default_template,
    encode_texts,
)
from transformer_jax.data.row_offsets import Slices, flatten, ragged_indices
from transformer_jax.data.squad import SquadAnswer
from transformer_jax.data.store import id_dtype
from transformer_jax.data.tokenizer import SpecialTokensTemplate, Tokenizer

__all__ = ["SpanExamples", "encode_questions", "locate_answers"]


@dataclasses.dataclass(frozen=True)
class SpanExamples:
    """Questions with windows over their contexts as ids.

    Attributes:
        examples: The rows: first the question, then the window.
        question: Index of the question of each example.
        spans: Start and end character in the context for each token of the store, end excluded;
            -1 outside the context.
        cut: Number of questions that were truncated.
    """

    examples: EncodedExamples
    question: Int[np.ndarray, " count"]
    spans: Int[np.ndarray, "total 2"]
    cut: int = 0

    def __len__(self) -> int:
        return len(self.examples)

    def row_spans(self, index: int) -> Int[np.ndarray, "length 2"]:
        """Returns the character span of each token of an example."""
        offsets = self.examples.store.offsets
        return self.spans[offsets[index] : offsets[index + 1]]


def encode_questions(
    questions: Sequence[str],
    contexts: Sequence[str],
    tokenizer: Tokenizer,
    max_length: int = 384,
    stride: int = 128,
    max_question: int | None = None,
    *,
    template: SpecialTokensTemplate | None = None,
) -> SpanExamples:
    """Encodes questions, each with windows over its context.

    Every token of a context is in a window. Windows are as long as possible and begin at the
    context's first token; each shares ``stride`` tokens with the previous one, and the last may be
    shorter.

    Args:
        questions: The questions.
        contexts: The context of each question.
        tokenizer: Tokenizer whose ``bos`` is ``[CLS]`` and ``eos`` is ``[SEP]``.
        max_length: Longest example in tokens, including ``[CLS]`` and ``[SEP]``.
        stride: Number of tokens that neighboring windows share.
        max_question: Largest number of tokens of a question; None is 64, or fewer if windows need
            the room.
        template: Special tokens to use instead of these.

    Raises:
        ConfigError: ``max_length`` is too small for windows to advance.
    """
    template = template or default_template(tokenizer)
    special = sum(map(len, template))
    if max_question is None:
        max_question = min(64, max_length - stride - 1 - special)
    if stride < 0 or max_question < 1 or max_length - max_question - special <= stride:
        raise ConfigError(
            f"max_length {max_length}, stride {stride}, max_question {max_question}: max_length "
            f"is at least stride + max_question + {special + 1}, so that windows move on"
        )
    asked = encode_texts(questions, tokenizer)
    cut = int(np.sum(asked.lengths > max_question))
    asked = asked._replace(lengths=np.minimum(asked.lengths, max_question))
    contexts = list(contexts)
    numbers = {text: i for i, text in enumerate(dict.fromkeys(contexts))}
    text, spans = _encode_spans(list(numbers), tokenizer)
    which = np.array([numbers[context] for context in contexts], np.int64)
    width = max_length - special - asked.lengths
    over = np.maximum(text.lengths[which] - width, 0)
    windows = 1 - -over // (width - stride)  # 1 + the quotient, rounded up
    question, number = ragged_indices(windows)
    start = number * (width - stride)[question]
    begins = text.begins[which[question]] + start
    left = text.lengths[which[question]] - start
    window = Slices(text.ids, begins, np.minimum(left, width[question]))
    first = Slices(asked.ids, asked.begins[question], asked.lengths[question])
    examples = add_special_tokens(first, window, template)
    found = np.full((len(examples.store.ids), 2), -1, np.int32)
    rows, columns = ragged_indices(window.lengths)
    at = examples.store.offsets[rows] + examples.pair_starts[rows] + columns
    found[at] = spans[begins[rows] + columns]
    return SpanExamples(examples, question, found, cut)


def locate_answers(
    examples: SpanExamples, answers: Sequence[Sequence[SquadAnswer]]
) -> Int[np.ndarray, "count 2"]:
    """The first and last token of each example that overlap the answer to its question.

    Both are 0, the position of ``[CLS]``, if there is no answer or the window does not contain it.

    Args:
        examples: Questions with windows.
        answers: Answers to each question, of which the first counts.
    """
    found = np.zeros((len(examples), 2), np.int64)
    for i, question in enumerate(examples.question.tolist()):
        if not answers[question]:
            continue
        text, start = answers[question][0].text, answers[question][0].start
        stop = start + len(text.rstrip())
        start += len(text) - len(text.lstrip())
        at = int(examples.examples.pair_starts[i])
        spans = examples.row_spans(i)[at:-1]
        if not len(spans) or start < spans[0, 0] or stop > spans[-1, 1]:
            continue
        first = np.searchsorted(spans[:, 1], start, side="right")
        last = np.searchsorted(spans[:, 0], stop, side="left") - 1
        if first <= last:
            found[i] = at + first, at + last
    return found


def _encode_spans(
    texts: Sequence[str], tokenizer: Tokenizer
) -> tuple[Slices, Int[np.ndarray, "total 2"]]:
    ids, spans = [], [np.zeros((0, 2), np.int32)]
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        rows = tokenizer.encode_spans(texts[start : start + TEXTS_AT_ONCE])
        ids.append([row for row, _ in rows])
        pairs = itertools.chain.from_iterable(span for _, row in rows for span in row)
        spans.append(np.fromiter(pairs, np.int32).reshape(-1, 2))
    return flatten(ids, id_dtype(tokenizer)), np.concatenate(spans)
