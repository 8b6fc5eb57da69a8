"""Sentences of words as the ids of a token classifier."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.examples import EncodedExamples, add_special_tokens, default_template
from transformer_jax.data.row_offsets import Slices, flatten, ragged_indices, row_offsets
from transformer_jax.data.store import TokenStore, id_dtype
from transformer_jax.data.tokenizer import SpecialTokensTemplate, Tokenizer

__all__ = ["TaggedExamples", "encode_tagged"]


@dataclasses.dataclass(frozen=True)
class TaggedExamples:
    """Sentences of words as ids; a long sentence continues in further examples.

    Attributes:
        examples: The rows, with one text each.
        word_starts: Row ``i`` has the index of the first token of each word in example ``i``.
        sentence: Index of the sentence of each example.
        firsts: Index in its sentence of the first word of each example.
        cut: Number of sentences with a word that is longer than an example, and truncated.
    """

    examples: EncodedExamples
    word_starts: TokenStore
    sentence: Int[np.ndarray, " count"]
    firsts: Int[np.ndarray, " count"]
    cut: int

    def __len__(self) -> int:
        return len(self.examples)


def encode_tagged(
    words: Sequence[Sequence[str]],
    tokenizer: Tokenizer,
    max_length: int,
    template: SpecialTokensTemplate | None = None,
) -> TaggedExamples:
    """Encodes sentences of words; every word has exactly one position.

    Words are encoded separately, all but the first of a sentence with a blank before them. A word
    without tokens becomes ``unk`` (or ``eos`` if there is none). A word longer than an example is
    truncated.

    Args:
        words: The words of each sentence.
        tokenizer: Tokenizer whose ``bos`` is ``[CLS]`` and ``eos`` is ``[SEP]``.
        max_length: Longest example in tokens, including these two.
        template: Special tokens to use instead of these.

    Raises:
        ConfigError: ``max_length`` leaves no room for two tokens besides the special ones.

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
    ends = np.cumsum(lengths)  # start of each word, in tokens of all sentences
    last = np.cumsum(counts)
    starts: list[int] = []  # the first word of each example, in words of all sentences
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
    sizes = np.diff(np.append(first_word, len(lengths)))  # number of words in each example
    tokens = np.concatenate([np.zeros(1, np.int64), ends])
    begins = tokens[first_word]
    totals = tokens[first_word + sizes] - begins
    rows, columns = ragged_indices(lengths)
    ids = pieces.ids[pieces.begins[rows] + columns]
    examples = add_special_tokens(Slices(ids, begins, totals), None, template)
    example, word = ragged_indices(sizes)
    which = first_word[example] + word
    places = tokens[which] - begins[example] + len(template.prefix_ids) + lead
    firsts = first_word - (last - counts)[owner]
    cut = len(np.unique(np.repeat(np.arange(len(words)), counts)[pieces.lengths > room]))
    return TaggedExamples(
        examples, TokenStore(places.astype(np.int32), row_offsets(sizes)), owner, firsts, cut
    )


def _encode_words(
    words: Sequence[Sequence[str]], tokenizer: Tokenizer
) -> tuple[Slices, Int[np.ndarray, " words"]]:
    """Encodes all words, with the index (0 or 1) of each word's first token that is not a blank."""
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
