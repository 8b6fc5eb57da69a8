"""Token ids of prompts with completions, and batches of them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.plan import BatchPlan
from transformer_jax.data.preferences import Preferences, Prompt
from transformer_jax.data.row_offsets import ragged_indices, row_offsets
from transformer_jax.data.store import TokenStore, id_dtype
from transformer_jax.data.tokenizer import Tokenizer

__all__ = [
    "CompletionStore",
    "EncodeAnswers",
    "Truncation",
    "completion_rows",
    "encode_preferences",
]

SIDES = 2
# Whether the rows of a too long example are cut to the same prompt, or each row separately.
Truncation: TypeAlias = Literal["pair", "row"]
# From conversations and an answer to each: the ids before the answer, and the ids of the answer.
EncodeAnswers: TypeAlias = Callable[
    [Sequence[Any], Sequence[str]], list[tuple[list[int], list[int]]]
]


@dataclasses.dataclass(frozen=True)
class CompletionStore:
    """Two rows of ids per example: chosen and rejected, or its own and another completion.

    Attributes:
        store: Rows ``2 i`` and ``2 i + 1`` belong to example ``i``: start token, prompt, completion
            and end token; for conversations, the tokens of their template.
        starts: Index of the first token of the completion in each row.
        labels: Whether the completion of each example is desirable; None for pairs.
        reference: ``log π_ref`` of the completion of each row; None if not precomputed.
        truncated: Number of shortened rows.
        skipped: Number of examples without rows, because both would be equal.
    """

    store: TokenStore
    starts: Int[np.ndarray, " rows"]
    labels: Bool[np.ndarray, " n"] | None = None
    reference: Float[np.ndarray, "n 2"] | None = None
    truncated: int = 0
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.starts) // SIDES

    @property
    def lengths(self) -> Int[np.ndarray, " n"]:
        """Number of tokens in the longer row of each example."""
        return np.asarray(self.store.lengths.reshape(-1, SIDES).max(1))

    def batch(self, items: BatchPlan, pad: int) -> dict[str, np.ndarray]:
        """Returns the arrays of a batch; empty rows have length 0.

        Args:
            items: The examples, and the padded length.
            pad: Padding id.

        Returns:
            ``tokens`` int32 ``[B 2 T]``, ``starts`` and ``lengths`` int32 ``[B 2]``; ``labels``
            bool ``[B]`` and ``reference`` float32 ``[B 2]`` if there are any.
        """
        here, indices = items.indices >= 0, np.maximum(items.indices, 0)
        rows = (SIDES * indices[:, None] + np.arange(SIDES)).ravel()
        lengths = np.where(np.repeat(here, SIDES), self.store.lengths[rows], 0)
        tokens = np.full((len(rows), items.S), pad, np.int32)
        at, columns = ragged_indices(lengths)
        tokens[at, columns] = self.store.ids[self.store.offsets[rows[at]] + columns]
        shape = (len(indices), SIDES)
        made = {
            "tokens": tokens.reshape(*shape, items.S),
            "starts": self.starts[rows].astype(np.int32).reshape(shape),
            "lengths": lengths.astype(np.int32).reshape(shape),
        }
        if self.labels is not None:
            made["labels"] = self.labels[indices] & here
        if self.reference is not None:
            made["reference"] = self.reference[indices].astype(np.float32)
        return made


def encode_preferences(
    data: Preferences,
    tokenizer: Tokenizer,
    first: int,
    max_length: int,
    answers: EncodeAnswers | None = None,
    truncation: Truncation = "pair",
) -> CompletionStore:
    """Encodes pairs, or completions with labels.

    Prompt and completion are tokenized separately, because generation continues the tokens of a
    prompt. The two rows of an example have the same prompt, see :func:`completion_rows`. An example
    whose completions differ but whose rows are equal, for example because they differ beyond
    ``max_length``, expresses no preference: it is skipped and counted. For a completion with a
    label, the second row has the completion of the next example with another prompt, with which KTO
    estimates the KL divergence.

    Args:
        data: Preferences of kind ``pairs`` or ``labels``.
        tokenizer: The model's tokenizer.
        first: The start token.
        max_length: Largest number of tokens in a row, including start and end.
        answers: Encodes conversations, whose rows get no further start and end token.
        truncation: ``row`` truncates each row separately, as version 0.1 did.

    Raises:
        ConfigError: ``max_length`` is below 4.
        DataError: The chat template refuses a conversation; the message names its line. Or both
            rows of every example are equal.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("characters", ["abc"], 7)
        >>> pair = Preferences("example", "pairs", ["a"], [("b", "cc")], [], [1])
        >>> found = encode_preferences(pair, tokenizer, tokenizer.bos, 8)
        >>> ["".join(tokenizer.convert_ids_to_tokens(row.tolist())) for row in found.store]
        ['<bos>ab<eos>', '<bos>acc<eos>']
        >>> found.starts.tolist(), found.lengths.tolist()
        ([2, 2], [5])
    """
    if max_length < 4:
        raise ConfigError(
            f"align.max_length is {max_length}: at least 4, for the start, a token of the prompt, "
            f"one of the completion, and the end"
        )
    if data.conversational:
        assert answers is not None, data.name
        first_ids, (prompts, sides) = [], _of_conversations(data, answers)
    else:
        first_ids, (prompts, sides) = [first], _of_texts(data, tokenizer)
    texts: list[tuple[str, ...]] = data.completions
    if data.kind == "labels":
        [own], others = sides, _of_other_prompts(data.prompts)
        sides = [own, [own[i] for i in others]]
        texts = [(*texts[i], *texts[other]) for i, other in enumerate(others)]
    rows: list[list[int]] = []
    starts: list[int] = []
    kept, truncated = [], 0
    for i, (prompt, *completions) in enumerate(zip(prompts, *sides, strict=True)):
        groups = [completions] if truncation == "pair" else [[one] for one in completions]
        cut = [completion_rows(first_ids, prompt, group, max_length) for group in groups]
        both = [row for part, _ in cut for row in part]
        if truncation == "pair" and both[0] == both[1] and len({*texts[i]}) > 1:
            continue
        kept.append(i)
        rows += both
        starts += [start for part, start in cut for _ in part]
        before = len(first_ids) + len(prompt)
        truncated += sum(
            len(row) < before + len(completion)
            for row, completion in zip(both, completions, strict=True)
        )
    if not kept:
        raise DataError(
            f"{data.name}: all {plural(len(data), 'example')} have two equal rows with "
            f"align.max_length {max_length}, which express no preference: raise it, or give "
            f"completions with different tokens"
        )
    ids = np.concatenate([np.asarray(row, id_dtype(tokenizer)) for row in rows])
    store = TokenStore(ids, row_offsets(np.array([len(row) for row in rows])))
    labels = np.array([data.labels[i] for i in kept]) if data.kind == "labels" else None
    return CompletionStore(
        store, np.array(starts), labels, truncated=truncated, skipped=len(data) - len(kept)
    )


def _of_texts(
    data: Preferences, tokenizer: Tokenizer
) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Ids of prompts and, by side, of completions including their end token."""
    prompts = [list(ids) for ids in tokenizer.encode_batch(data.texts)]
    sides = [
        [[*ids, tokenizer.eos] for ids in tokenizer.encode_batch(list(side))]
        for side in zip(*data.completions, strict=True)
    ]
    return prompts, sides


def _of_conversations(
    data: Preferences, encode: EncodeAnswers
) -> tuple[list[list[int]], list[list[list[int]]]]:
    """The same for conversations and answers."""
    sides = []
    for side in zip(*data.completions, strict=True):
        try:
            found = encode(data.prompts, side)
        except DataError:
            found = [_named(data, i, encode, text) for i, text in enumerate(side)]
        sides.append([answer for _, answer in found])
        prompts = [prompt for prompt, _ in found]
    return prompts, sides


def _named(
    data: Preferences, i: int, encode: EncodeAnswers, text: str
) -> tuple[list[int], list[int]]:
    try:
        return encode([data.prompts[i]], [text])[0]
    except DataError as error:
        raise DataError(f"{data.place(i)}: {error}") from None


def _of_other_prompts(prompts: Sequence[Prompt]) -> list[int]:
    """For each example, one with another prompt: at the same place among those of the next prompt.

    Neighbours may share a prompt; if all examples share one, it is the next example.
    """
    n = len(prompts)
    begins = [i for i in range(n) if prompts[i] != prompts[i - 1]] or list(range(n))
    ends = [*begins[1:], begins[0] + n]  # the last group may wrap around to the beginning
    found = [0] * n
    for k, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        other = (k + 1) % len(begins)
        size = ends[other] - begins[other]
        for i in range(begin, end):
            found[i % n] = (begins[other] + (i - begin) % size) % n
    return found


def completion_rows(
    first: list[int], prompt: list[int], completions: Sequence[list[int]], most: int
) -> tuple[list[list[int]], int]:
    """Returns one row per completion of a prompt, and the index at which completions start.

    All rows have the same prompt, so completions are compared under one condition. If the longest
    row has more than ``most`` tokens, the prompt loses its beginning, down to one token;
    completions that are still too long then lose their end.

    Args:
        first: The start token, or none.
        prompt: Ids of the prompt.
        completions: Ids of the completions, including their end tokens.
        most: Longest row: at least ``first``, one token of the prompt and one more.

    Example:
        >>> completion_rows([1], [5, 6, 7], [[8, 2], [8, 9, 2]], 5)
        ([[1, 7, 8, 2], [1, 7, 8, 9, 2]], 2)
        >>> completion_rows([1], [5, 6, 7], [[8, 9, 2]], 4)
        ([[1, 7, 8, 9]], 2)
    """
    longest = most - len(first) - min(1, len(prompt))
    completions = [completion[:longest] for completion in completions]
    room = most - len(first) - max(map(len, completions))
    prompt = prompt[max(0, len(prompt) - room) :]
    rows = [[*first, *prompt, *completion] for completion in completions]
    return rows, len(first) + len(prompt)
