"""Texts as the ids an encoder is fine-tuned on: ``[CLS] first [SEP]``, ``second [SEP]`` or not."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from transformer_jax.data.ragged import Slices, flatten, ragged_indices, row_offsets
from transformer_jax.data.squad import Answer
from transformer_jax.data.store import TokenStore, id_dtype
from transformer_jax.data.tokenizer import SpecialTokensTemplate, Tokenizer
from transformer_jax.errors import ConfigError

__all__ = [
    "EncodedExamples",
    "SpanExamples",
    "TaggedExamples",
    "collate",
    "default_template",
    "encode_questions",
    "encode_sentences",
    "encode_tagged",
    "locate_answers",
]

_CHUNK = 8192  # texts encoded at a time, which bounds the memory of Python lists


@dataclasses.dataclass(frozen=True)
class EncodedExamples:
    """Rows of ids: number ``i`` is ``[CLS] first [SEP]``, or ``[CLS] first [SEP] second [SEP]``.

    Attributes:
        store: The rows.
        seconds: Where in each row the second part begins; its length if there is none.
    """

    store: TokenStore
    pair_starts: Int[np.ndarray, " count"]

    def __len__(self) -> int:
        return len(self.store)


@dataclasses.dataclass(frozen=True)
class TaggedExamples:
    """Sentences of words as ids; a long sentence goes on in further examples.

    Attributes:
        examples: The rows, of one part.
        places: Number ``i`` says which token of example ``i`` begins each of its words.
        sentence: Which of the given sentences each example comes from.
        firsts: Which word of that sentence is the first of the example.
    """

    examples: EncodedExamples
    word_starts: TokenStore
    sentence: Int[np.ndarray, " count"]
    firsts: Int[np.ndarray, " count"]

    def __len__(self) -> int:
        return len(self.examples)


@dataclasses.dataclass(frozen=True)
class SpanExamples:
    """Questions and windows over their contexts as ids.

    Attributes:
        examples: The rows; the question comes first, and the window second.
        question: Which of the given questions each example asks.
        spans: From which to before which character of the context each token of the store comes,
            -1 for those that are not of the context.
    """

    examples: EncodedExamples
    question: Int[np.ndarray, " count"]
    spans: Int[np.ndarray, "total 2"]

    def __len__(self) -> int:
        return len(self.examples)

    def row_spans(self, index: int) -> Int[np.ndarray, "length 2"]:
        """The characters of each token of an example."""
        offsets = self.examples.store.offsets
        return self.spans[offsets[index] : offsets[index + 1]]


def default_template(tokenizer: Tokenizer) -> SpecialTokensTemplate:
    """What stands around the texts that encoders are trained on here: ``[CLS]`` and ``[SEP]``.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("characters", ["abc"], 7)
        >>> [tokenizer.convert_ids_to_tokens(ids) for ids in default_template(tokenizer)]
        [['<bos>'], ['<eos>'], ['<eos>']]
    """
    end = (tokenizer.eos,)
    return SpecialTokensTemplate((tokenizer.bos,), end * tokenizer.num_separators, end)


def encode_sentences(
    texts: Sequence[str],
    text_pairs: Sequence[str] | None,
    tokenizer: Tokenizer,
    max_length: int,
    template: SpecialTokensTemplate | None = None,
) -> tuple[EncodedExamples, int]:
    """The ids of sentences or of pairs, and how many were cut to fit.

    Sentences lose their end. Of a pair, the longer side loses its last token until both fit, the
    second if they are as long (Devlin et al. 2019).

    Args:
        texts: The sentences.
        text_pairs: As many second sentences, or None.
        tokenizer: Its ``bos`` is ``[CLS]``, and its ``eos`` ``[SEP]``.
        max_length: Longest example in tokens, ``[CLS]`` and ``[SEP]`` among them.
        template: Other special tokens than these around and between texts.

    Raises:
        ConfigError: ``max_length`` has no room for a token of each side.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("characters", ["abc"], 7)
        >>> examples, cut = encode_sentences(["abc", "a"], ["c", "bca"], tokenizer, 6)
        >>> [" ".join(tokenizer.convert_ids_to_tokens(row.tolist())) for row in examples.store], cut
        (['<bos> a b <eos> c <eos>', '<bos> a <eos> b c <eos>'], 2)
        >>> examples.pair_starts
        array([4, 3])
    """
    template = template or default_template(tokenizer)
    special = len(template.prefix_ids) + len(template.suffix_ids)
    special += 0 if text_pairs is None else len(template.separator_ids)
    least = special + (1 if text_pairs is None else 2)
    if max_length < least:
        raise ConfigError(
            f"max_length is {max_length}: at least {least}, {special} of them special"
        )
    first = _encode(texts, tokenizer)
    room = max_length - special
    if text_pairs is None:
        lengths = np.minimum(first.lengths, room)
        return _joined(first._replace(lengths=lengths), None, template), int(
            np.sum(first.lengths > room)
        )
    second = _encode(text_pairs, tokenizer)
    # A side is cut to half of the room, or to more if the other does not need its half.
    half = room // 2
    a = np.minimum(first.lengths, np.maximum(room - half, room - second.lengths))
    b = np.minimum(second.lengths, np.maximum(half, room - first.lengths))
    cut = int(np.sum(first.lengths + second.lengths > room))
    return _joined(first._replace(lengths=a), second._replace(lengths=b), template), cut


def collate(
    examples: EncodedExamples, indices: Int[np.ndarray, " B"], T: int, pad: int
) -> dict[str, np.ndarray]:
    """The arrays of one batch, padded to ``T``, which no row may be longer than.

    A row of index -1 holds nothing but padding and has length 0.

    Returns:
        ``tokens`` int32 ``[B T]``; ``lengths`` int32 ``[B]``; ``types`` int32 ``[B T]``, 1 for the
        second part with its ``[SEP]`` and 0 elsewhere.

    Example:
        >>> store = TokenStore(np.array([2, 7, 3, 2, 8, 3, 9, 3]), np.array([0, 3, 8]))
        >>> batch = collate(EncodedExamples(store, np.array([3, 3])), np.array([1, -1, 0]), 6, 0)
        >>> batch["tokens"]
        array([[2, 8, 3, 9, 3, 0],
               [0, 0, 0, 0, 0, 0],
               [2, 7, 3, 0, 0, 0]], dtype=int32)
        >>> batch["types"][0], batch["lengths"]
        (array([0, 0, 0, 1, 1, 0], dtype=int32), array([5, 0, 3], dtype=int32))
    """
    store = examples.store
    lengths = np.where(indices < 0, 0, store.lengths[indices])
    if lengths.size and lengths.max() > T:
        raise ValueError(f"a row of {lengths.max()} tokens does not fit {T}")
    rows, columns = ragged_indices(lengths)
    tokens = np.full((len(indices), T), pad, np.int32)
    types = np.zeros((len(indices), T), np.int32)
    tokens[rows, columns] = store.ids[store.offsets[indices[rows]] + columns]
    types[rows, columns] = columns >= examples.pair_starts[indices[rows]]
    return {"tokens": tokens, "lengths": lengths.astype(np.int32), "types": types}


def encode_tagged(
    words: Sequence[Sequence[str]],
    tokenizer: Tokenizer,
    max_length: int,
    template: SpecialTokensTemplate | None = None,
) -> TaggedExamples:
    """The ids of sentences of words, in which every word has exactly one place.

    Words are encoded alone, all but the first of a sentence with a blank before them. A word of
    which no token is left becomes ``unk`` (``eos`` where there is none). A word that is longer
    than an example is cut.

    Args:
        words: The words of each sentence.
        tokenizer: Its ``bos`` is ``[CLS]``, and its ``eos`` ``[SEP]``.
        max_length: Longest example in tokens, with these two.
        template: Other special tokens than these around texts.

    Raises:
        ConfigError: ``max_length`` leaves no room for two tokens beside the special ones.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("bpe", ["to be or not"] * 9, 300)
        >>> tagged = encode_tagged([["to", "be", "not"]], tokenizer, 4)
        >>> [tokenizer.decode(row.tolist()) for row in tagged.examples.store], tagged.firsts
        (['to be', ' not'], array([0, 2]))
        >>> tagged.word_starts[0], tagged.word_starts[1]
        (array([1, 2], dtype=int32), array([1], dtype=int32))
    """
    template = template or default_template(tokenizer)
    special = len(template.prefix_ids) + len(template.suffix_ids)
    room = max_length - special
    if room < 2:
        raise ConfigError(
            f"max_length is {max_length}: at least {special + 2}, {special} of them special tokens"
        )
    counts = np.array([len(sentence) for sentence in words], np.int64)
    pieces, lead = _encode_words(words, tokenizer)
    lengths = np.minimum(pieces.lengths, room)
    ends = np.cumsum(lengths)  # of each word, in tokens of all sentences
    last = np.cumsum(counts)
    starts: list[int] = []  # the word that each example begins with, of all words
    sentence: list[int] = []
    for i, (begin, end) in enumerate(zip((last - counts).tolist(), last.tolist(), strict=True)):
        while True:
            starts.append(begin)
            sentence.append(i)
            before = ends[begin - 1] if begin else 0
            begin += int(np.searchsorted(ends[begin:end], before + room, side="right"))
            if begin >= end:
                break
    first_word = np.array(starts, np.int64)
    owner = np.array(sentence, np.int64)
    sizes = np.diff(np.append(first_word, len(lengths)))  # words of each example
    tokens = np.concatenate([np.zeros(1, np.int64), ends])
    begins = tokens[first_word]
    totals = tokens[first_word + sizes] - begins
    rows, columns = ragged_indices(lengths)
    ids = pieces.ids[pieces.begins[rows] + columns]
    examples = _joined(Slices(ids, begins, totals), None, template)
    example, word = ragged_indices(sizes)
    which = first_word[example] + word
    places = tokens[which] - begins[example] + len(template.prefix_ids) + lead
    firsts = first_word - (last - counts)[owner]
    return TaggedExamples(
        examples, TokenStore(places.astype(np.int32), row_offsets(sizes)), owner, firsts
    )


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
    """The ids of questions, each with as many windows over its context as that needs.

    Every token of a context is in a window. Windows are as long as fits and begin at the context's
    first token; each shares ``stride`` tokens with the one before, and the last may be shorter.

    Args:
        questions: The questions.
        contexts: What each is about.
        tokenizer: Its ``bos`` is ``[CLS]``, and its ``eos`` ``[SEP]``.
        max_length: Longest example in tokens, ``[CLS]`` and ``[SEP]`` among them.
        stride: Tokens that neighbouring windows share.
        max_question: Longer questions are cut to so many tokens; None is 64, or fewer where
            windows need the room.
        template: Other special tokens than these around and between texts.

    Raises:
        ConfigError: Windows have no room to move.
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
    asked = _encode(questions, tokenizer)
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
    examples = _joined(first, window, template)
    found = np.full((len(examples.store.ids), 2), -1, np.int32)
    rows, columns = ragged_indices(window.lengths)
    at = examples.store.offsets[rows] + examples.pair_starts[rows] + columns
    found[at] = spans[begins[rows] + columns]
    return SpanExamples(examples, question, found)


def locate_answers(
    examples: SpanExamples, answers: Sequence[Sequence[Answer]]
) -> Int[np.ndarray, "count 2"]:
    """The first and the last token of each example that the answer to its question overlaps.

    Both are 0, which is ``[CLS]``, where there is no answer or the window does not hold all of it.

    Args:
        examples: Questions with windows.
        answers: Those of each question, of which the first counts.
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


def _encode(texts: Sequence[str], tokenizer: Tokenizer) -> Slices:
    chunks = (texts[start : start + _CHUNK] for start in range(0, len(texts), _CHUNK))
    return flatten((tokenizer.encode_batch(chunk) for chunk in chunks), id_dtype(tokenizer))


def _encode_spans(
    texts: Sequence[str], tokenizer: Tokenizer
) -> tuple[Slices, Int[np.ndarray, "total 2"]]:
    ids, spans = [], [np.zeros((0, 2), np.int32)]
    for start in range(0, len(texts), _CHUNK):
        rows = tokenizer.encode_spans(texts[start : start + _CHUNK])
        ids.append([row for row, _ in rows])
        pairs = itertools.chain.from_iterable(span for _, row in rows for span in row)
        spans.append(np.fromiter(pairs, np.int32).reshape(-1, 2))
    return flatten(ids, id_dtype(tokenizer)), np.concatenate(spans)


def _encode_words(
    words: Sequence[Sequence[str]], tokenizer: Tokenizer
) -> tuple[Slices, Int[np.ndarray, " words"]]:
    """The ids of all words, and which of a word's tokens is the first that is no blank: 0 or 1."""
    numbers: dict[str, int] = {}
    which = [
        numbers.setdefault(f" {word}" if i else word, len(numbers))
        for sentence in words
        for i, word in enumerate(sentence)
    ]
    rows, leads = [], []
    nothing = tokenizer.eos if tokenizer.unk is None else tokenizer.unk
    for text, (ids, spans) in zip(numbers, tokenizer.encode_spans(list(numbers)), strict=True):
        lead = sum(text[:end].isspace() for _, end in spans[:1])
        rows.append(ids if len(ids) > lead else [*ids, nothing])
        leads.append(lead)
    found = flatten([rows], id_dtype(tokenizer))
    index = np.array(which, np.int64)
    every = Slices(found.ids, found.begins[index], found.lengths[index])
    return every, np.array(leads, np.int64)[index]


def _joined(
    first: Slices, second: Slices | None, template: SpecialTokensTemplate
) -> EncodedExamples:
    """Texts, or pairs of texts, with special tokens around and between."""
    before, between, after = template
    lengths = len(before) + first.lengths
    seconds = lengths + (len(after) if second is None else len(between))
    offsets = row_offsets(seconds if second is None else seconds + second.lengths + len(after))
    ids = np.empty(offsets[-1], first.ids.dtype)
    begins, ends = offsets[:-1], offsets[1:]
    placed = [(before, begins), (after, ends - len(after))]
    parts = [(first, begins + len(before))]
    if second is not None:
        placed.append((between, begins + lengths))
        parts.append((second, begins + seconds))
    for tokens, at in placed:
        for number, token in enumerate(tokens):
            ids[at + number] = token
    for part, at in parts:
        rows, columns = ragged_indices(part.lengths)
        ids[at[rows] + columns] = part.ids[part.begins[rows] + columns]
    return EncodedExamples(TokenStore(ids, offsets), seconds)
