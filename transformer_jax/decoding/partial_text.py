"""Sequences in progress: their tokens, their text, and where they stop."""

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import PyTree

from transformer_jax.decoding.generation_config import NEW_TOKENS
from transformer_jax.decoding.requests import Continuation, FinishReason, GenerationRequest
from transformer_jax.decoding.text_tokenizer import TextTokenizer

__all__ = [
    "GenerationSequence",
    "KeptContext",
    "Source",
    "continuation_text",
    "stable_prefix",
    "truncate_at_stop",
]

# The input of an encoder: tokens, or features of each position.
Source: TypeAlias = Sequence[int] | np.ndarray


@dataclasses.dataclass
class KeptContext:
    """The KV cache of a growing text, such as a conversation.

    Attributes:
        ids: The tokens that the cache holds.
        origin: Slot of the first token.
        cache: Keys and values; None while a program uses them, or if nothing is kept.
    """

    ids: list[int] = dataclasses.field(default_factory=list)
    origin: int = 0
    cache: PyTree = None

    def shared(self, ids: Sequence[int]) -> int:
        """Counts the first tokens of ``ids`` that need not be read again, at most all but the last.

        Example:
            >>> KeptContext([1, 2, 3], 0, "a cache").shared([1, 2, 4, 5])
            2
            >>> KeptContext([1, 2, 3], 0, "a cache").shared([1, 2, 3])
            2
        """
        if self.cache is None:
            return 0
        count = 0
        for mine, theirs in zip(self.ids, ids[:-1], strict=False):
            if mine != theirs:
                break
            count += 1
        return count

    def take(self) -> PyTree:
        """Removes and returns the cache, for a program that donates it."""
        cache, self.cache = self.cache, None
        return cache

    def hold(self, cache: PyTree, ids: list[int]) -> None:
        """Stores a cache with these tokens."""
        self.cache, self.ids = cache, ids


def truncate_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Returns ``text`` up to the first stop string in it, and whether there is one.

    The first is the one that ends first, and the longest of those: this does not depend on how many
    characters are added to the text at a time.

    Example:
        >>> truncate_at_stop("one two three", ["three", "two"])
        ('one ', True)
        >>> truncate_at_stop("abcd", ["abcd", "bc"])
        ('a', True)
    """
    places = ((text.find(word), word) for word in stop)
    found = [(at + len(word), at) for at, word in places if at >= 0]
    return (text[: min(found)[1]], True) if found else (text, False)


def stable_prefix(text: str, stop: Sequence[str]) -> str:
    r"""Returns the beginning of ``text`` that later tokens cannot change.

    A possible beginning of a stop string is held back, and so is a character of which only some
    bytes are written.

    Example:
        >>> stable_prefix("so far, so go", ["good"]), stable_prefix("caf\ufffd", [])
        ('so far, so ', 'caf')
    """
    text = text.rstrip("\ufffd")
    for size in range(max(map(len, stop), default=0) - 1, 0, -1):
        if any(text.endswith(word[:size]) for word in stop if len(word) > size):
            return text[:-size]
    return text


def continuation_text(
    tokenizer: TextTokenizer,
    prompt_ids: Sequence[int],
    tokens: Sequence[int],
    prompt_text: str | None = None,
) -> str:
    """Returns the text of the tokens after a prompt, without special tokens.

    If the tokens complete a character that the prompt has some bytes of, the text begins with it.

    Args:
        tokenizer: The tokenizer.
        prompt_ids: Tokens of the prompt.
        tokens: Tokens after it.
        prompt_text: Text of ``prompt_ids``, if already known.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("characters", ["abc"], 7)
        >>> ids = [*tokenizer.encode("abc"), tokenizer.eos]
        >>> continuation_text(tokenizer, ids[:1], ids[1:])
        'bc'
    """
    # Not decoded separately: some tokenizers drop the blank at the start of a text.
    before = tokenizer.decode(prompt_ids) if prompt_text is None else prompt_text
    whole = tokenizer.decode([*prompt_ids, *tokens])
    if whole.startswith(before):
        return whole[len(before) :]
    # A character that the prompt has some bytes of belongs to the text that completes it.
    pairs = enumerate(zip(before, whole, strict=False))
    same = next((i for i, (one, other) in pairs if one != other), min(len(before), len(whole)))
    return tokenizer.decode(tokens) if before[same:].strip("\ufffd") else whole[same:]


@dataclasses.dataclass
class GenerationSequence:
    """A sequence in progress: its prompt, its generated tokens, and why it ended."""

    request: GenerationRequest
    index: int  # index of the request
    sample: int  # index among the request's samples
    prompt_ids: list[int]  # including the model's start token; empty with an encoder
    tokenizer: TextTokenizer
    prompt_text: str  # the text of ``prompt_ids``
    source: Source = ()  # input of an encoder
    begins: tuple[int, ...] = ()  # first tokens of a target, which are not part of its text
    end_tokens: tuple[int, ...] | None = None  # any ends the text; None uses the tokenizer's
    limit: int = NEW_TOKENS  # largest number of tokens in the text
    tokens: list[int] = dataclasses.field(default_factory=list)
    log_prob: float = 0.0
    segment: float = 0.0  # its part since the model last read the text
    origin: int = 0  # index at which the model's input begins
    kept: KeptContext | None = None  # the cache from earlier turns, if the text is generated alone
    finish_reason: FinishReason | None = None  # None while the text is unfinished

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end the text."""
        return self.tokenizer.end_tokens if self.end_tokens is None else self.end_tokens

    @property
    def text(self) -> str:
        """The text written so far, up to a stop string."""
        text = self._continuation()
        before, stopped = truncate_at_stop(self._certain(text), self.request.stop_spellings)
        return before if stopped else text

    @property
    def length(self) -> int:
        """Returns the number of tokens in the model's input."""
        return len(self.prompt_ids) + len(self.tokens) - self.origin

    @property
    def remaining(self) -> int:
        """Returns the number of tokens that may still be generated."""
        return 0 if self.finish_reason else self.limit - len(self.tokens)

    def add(self, tokens: Sequence[int], log_prob: float) -> None:
        """Appends generated tokens; sets ``finish_reason`` if the sequence ends."""
        self.tokens += tokens
        self.log_prob += log_prob
        if tokens and tokens[-1] in self.ends:
            self.finish_reason = "end"
        elif self.stopped():
            self.finish_reason = "stop"
        elif len(self.tokens) >= self.limit:
            self.finish_reason = "length"

    def stopped(self) -> bool:
        """Returns whether a stop string has been written."""
        if not self.request.stop:
            return False
        return truncate_at_stop(self._certain(self._continuation()), self.request.stop_spellings)[1]

    def _certain(self, text: str) -> str:
        """Removes the last character, if possibly only some of its bytes are written."""
        return text if self.finish_reason else text.rstrip("\ufffd")

    def _continuation(self) -> str:
        return continuation_text(self.tokenizer, self.prompt_ids, self.tokens, self.prompt_text)

    def completed(
        self, tokens: Sequence[int], log_prob: float, score: float, *, cut: bool = False
    ) -> Continuation:
        """Returns the finished text that ``tokens`` make of the same prompt.

        Args:
            tokens: Generated tokens.
            log_prob: Log-probability of the tokens.
            score: Score that ranks the text.
            cut: Whether a length limit forced the end token among them.
        """
        text = dataclasses.replace(self, tokens=[])
        text.add(tokens, log_prob)
        if cut and text.finish_reason == "end":
            text.finish_reason = "length"
        return text.done(score)

    def done(self, score: float | None = None) -> Continuation:
        """Returns the finished text; its score is its log-probability if ``score`` is None."""
        reason = self.finish_reason or "length"
        score = self.log_prob if score is None else score
        return Continuation(self.text, tuple(self.tokens), self.log_prob, reason, score)
