"""Token ids for fine-tuning encoders: ``[CLS] first [SEP]``, with or without ``second [SEP]``."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Int

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.row_offsets import Slices, flatten, ragged_indices, row_offsets
from transformer_jax.data.store import TokenStore, id_dtype
from transformer_jax.data.tokenizer import SpecialTokensTemplate, Tokenizer

__all__ = [
    "DECODER_TOKENS",
    "EncodedExamples",
    "OddToken",
    "add_special_tokens",
    "collate",
    "decoder_template",
    "default_template",
    "encode_sentences",
    "encode_texts",
]

# Special tokens that decoders get in fine-tuning: see decoder_template.
DECODER_TOKENS = ("<|start|>", "<|delimiter|>", "<|extract|>")
OddToken = Literal["first", "longer", "none"]
TEXTS_AT_ONCE = 8192  # texts encoded at a time, which bounds the memory of Python lists


@dataclasses.dataclass(frozen=True)
class EncodedExamples:
    """Rows of ids: row ``i`` is ``[CLS] first [SEP]``, or ``[CLS] first [SEP] second [SEP]``.

    Attributes:
        store: The rows.
        pair_starts: Start of the second text in each row; the row's length if there is none.
    """

    store: TokenStore
    pair_starts: Int[np.ndarray, " count"]

    def __len__(self) -> int:
        return len(self.store)


def default_template(tokenizer: Tokenizer) -> SpecialTokensTemplate:
    """The special-tokens template of encoders trained here, with ``[CLS]`` and ``[SEP]``.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("characters", ["abc"], 7)
        >>> [tokenizer.convert_ids_to_tokens(ids) for ids in default_template(tokenizer)]
        [['<bos>'], ['<eos>'], ['<eos>']]
    """
    end = (tokenizer.eos,)
    return SpecialTokensTemplate((tokenizer.bos,), end * tokenizer.num_separators, end)


def decoder_template(tokenizer: Tokenizer) -> SpecialTokensTemplate:
    """The special-tokens template of decoders fine-tuned here.

    A text is between start and extract, whose state is classified; a delimiter separates the texts
    of a pair (Radford et al. 2018, section 3.3).

    Raises:
        DataError: The tokenizer lacks one of :data:`DECODER_TOKENS`.

    Example:
        >>> from transformer_jax.data.added_tokens import add_tokens
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = add_tokens(train_tokenizer("bytes", []), (), DECODER_TOKENS)
        >>> [tokenizer.convert_ids_to_tokens(ids) for ids in decoder_template(tokenizer)]
        [['<|start|>'], ['<|delimiter|>'], ['<|extract|>']]
    """
    start, delimiter, extract = map(tokenizer.token_id, DECODER_TOKENS)
    return SpecialTokensTemplate((start,), (delimiter,), (extract,))


def encode_sentences(
    texts: Sequence[str],
    text_pairs: Sequence[str] | None,
    tokenizer: Tokenizer,
    max_length: int,
    template: SpecialTokensTemplate | None = None,
    odd_token: OddToken = "first",
) -> tuple[EncodedExamples, int]:
    """Encodes sentences or pairs; returns the examples and the number of truncated ones.

    Sentences are truncated at the end. Pairs lose the last token of the longer text, or of the
    second if both are equally long, until they fit (Devlin et al. 2019).

    Args:
        texts: The sentences.
        text_pairs: As many second sentences, or None.
        tokenizer: Tokenizer whose ``bos`` is ``[CLS]`` and ``eos`` is ``[SEP]``.
        max_length: Longest example in tokens, including ``[CLS]`` and ``[SEP]``.
        template: Special tokens to use instead of these.
        odd_token: Which text keeps one token more if both are truncated to an odd number: the first
            (Devlin et al. 2019), or the longer one, and the second of two equally long ones (as in
            Hugging Face tokenizers); ``none`` if the first text alone is truncated.

    Raises:
        ConfigError: ``max_length`` is too small for one token of each text.
        DataError: A second text that may not be truncated leaves no room for the first.

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
    first = encode_texts(texts, tokenizer)
    room = max_length - special
    if text_pairs is None:
        lengths = np.minimum(first.lengths, room)
        return add_special_tokens(first._replace(lengths=lengths), None, template), int(
            np.sum(first.lengths > room)
        )
    second = encode_texts(text_pairs, tokenizer)
    # A text is truncated to half of the room, or to more if the other text is shorter.
    half = np.full(first.lengths.shape, room - room // 2)
    if odd_token == "longer":
        half[second.lengths >= first.lengths] = room // 2
    elif odd_token == "none":
        half = room - second.lengths
        if (full := np.flatnonzero(half < 1)).size:
            raise DataError(
                f"second text {full[0] + 1} has {plural(second.lengths[full[0]], 'token')}: at "
                f"most {room - 1} leave room for the first: shorten it"
            )
    a = np.minimum(first.lengths, np.maximum(half, room - second.lengths))
    b = np.minimum(second.lengths, np.maximum(room - half, room - first.lengths))
    cut = int(np.sum(first.lengths + second.lengths > room))
    return add_special_tokens(first._replace(lengths=a), second._replace(lengths=b), template), cut


def collate(
    examples: EncodedExamples, indices: Int[np.ndarray, " B"], T: int, pad: int
) -> dict[str, np.ndarray]:
    """Returns the arrays of one batch, padded to ``T``, the largest allowed row length.

    A row of index -1 is only padding and has length 0.

    Returns:
        ``tokens`` int32 ``[B T]``; ``lengths`` int32 ``[B]``; ``types`` int32 ``[B T]``, 1 for the
        second text with its ``[SEP]`` and 0 elsewhere.

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


def encode_texts(texts: Sequence[str], tokenizer: Tokenizer) -> Slices:
    """Token ids of texts, without special tokens."""
    chunks = (texts[start : start + TEXTS_AT_ONCE] for start in range(0, len(texts), TEXTS_AT_ONCE))
    return flatten((tokenizer.encode_batch(chunk) for chunk in chunks), id_dtype(tokenizer))


def add_special_tokens(
    first: Slices, second: Slices | None, template: SpecialTokensTemplate
) -> EncodedExamples:
    """Adds the special tokens of ``template`` to texts, or pairs of texts."""
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
