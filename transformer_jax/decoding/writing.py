"""Sequences that are being generated, token by token, and where they stop."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from transformer_jax.decoding.generation_config import NEW_TOKENS
from transformer_jax.decoding.requests import Continuation, FinishReason, GenerationRequest
from transformer_jax.decoding.text_tokenizer import TextTokenizer

__all__ = [
    "GenerationSequence",
    "KeptContext",
    "continuation_text",
    "stable_prefix",
    "truncate_at_stop",
]


@dataclasses.dataclass
class KeptContext:
    """The keys and values of a text that grows, such as a conversation.

    Attributes:
        ids: The tokens that the cache holds.
        origin: Slot of the first of them.
        cache: Their keys and values; None while a program has them, and where nothing is kept.
    """

    ids: list[int] = dataclasses.field(default_factory=list)
    origin: int = 0
    cache: Any = None

    def shared(self, ids: Sequence[int]) -> int:
        """Counts the first tokens of ``ids`` that need not be read, all but the last at most.

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

    def take(self) -> Any:
        """The cache, for a program that uses it up."""
        cache, self.cache = self.cache, None
        return cache

    def hold(self, cache: Any, ids: list[int]) -> None:
        """Keeps a cache of these tokens."""
        self.cache, self.ids = cache, ids


def truncate_at_stop(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """``text`` up to the first of the stop strings in it, and whether there is one.

    The first is the one that ends first, and of those the longest: it is the same one however many
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
    r"""The beginning of ``text`` that nothing written later can take back.

    What may be the beginning of a stop string is held back, and so is a character of which only
    some bytes are written.

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
    """The text of tokens that follow a prompt, without special tokens.

    It begins with the character that the prompt has some bytes of, if the tokens complete it.

    Args:
        tokenizer: Of the tokens.
        prompt_ids: The tokens of the prompt.
        tokens: Those that follow it.
        prompt_text: The text of ``prompt_ids``, where it is known already.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("characters", ["abc"], 7)
        >>> ids = [*tokenizer.encode("abc"), tokenizer.eos]
        >>> continuation_text(tokenizer, ids[:1], ids[1:])
        'bc'
    """
    # Not decoded alone: some tokenizers drop the blank that begins a text.
    before = tokenizer.decode(prompt_ids) if prompt_text is None else prompt_text
    whole = tokenizer.decode([*prompt_ids, *tokens])
    if whole.startswith(before):
        return whole[len(before) :]
    # A character of which the prompt has some bytes belongs to the text that completes it.
    pairs = enumerate(zip(before, whole, strict=False))
    same = next((i for i, (one, other) in pairs if one != other), min(len(before), len(whole)))
    return tokenizer.decode(tokens) if before[same:].strip("\ufffd") else whole[same:]


@dataclasses.dataclass
class GenerationSequence:
    """A sequence in progress: its prompt, its generated tokens, and why it ended."""

    request: GenerationRequest
    index: int  # of the request
    sample: int  # of the request's samples
    prompt_ids: list[int]  # from the model's start token on; empty beside an encoder
    tokenizer: TextTokenizer
    prompt_text: str  # the text of ``prompt_ids``
    source: Any = ()  # what an encoder reads: tokens, or numbers for each position
    begins: tuple[int, ...] = ()  # first tokens of a target, which are no part of its text
    end_tokens: tuple[int, ...] | None = None  # any ends the text; None: those of the tokenizer
    limit: int = NEW_TOKENS  # most tokens of the text
    tokens: list[int] = dataclasses.field(default_factory=list)
    log_prob: float = 0.0
    segment: float = 0.0  # of it, what was written since the model last read anew
    origin: int = 0  # where what the model reads begins
    kept: KeptContext | None = None  # what the model has read before, where it is alone
    finish_reason: FinishReason | None = None  # None while the text is unfinished

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end the text."""
        return self.tokenizer.end_tokens if self.end_tokens is None else self.end_tokens

    @property
    def text(self) -> str:
        """The text written so far, up to a stop string."""
        text = self._continuation()
        before, stopped = truncate_at_stop(self._certain(text), self.request.stop)
        return before if stopped else text

    @property
    def length(self) -> int:
        """Returns the number of tokens before the model."""
        return len(self.prompt_ids) + len(self.tokens) - self.origin

    @property
    def remaining(self) -> int:
        """Returns the number of tokens that may still be generated."""
        return 0 if self.finish_reason else self.limit - len(self.tokens)

    def add(self, tokens: Sequence[int], log_prob: float) -> None:
        """Appends generated tokens; sets ``finish_reason`` where the sequence ends."""
        self.tokens += tokens
        self.log_prob += log_prob
        if tokens and tokens[-1] in self.ends:
            self.finish_reason = "end"
        elif self.stopped():
            self.finish_reason = "stop"
        elif len(self.tokens) >= self.limit:
            self.finish_reason = "length"

    def stopped(self) -> bool:
        """Returns whether a stop string is written."""
        if not self.request.stop:
            return False
        return truncate_at_stop(self._certain(self._continuation()), self.request.stop)[1]

    def _certain(self, text: str) -> str:
        """The text without the last character, if only some bytes of it may be written."""
        return text if self.finish_reason else text.rstrip("\ufffd")

    def _continuation(self) -> str:
        return continuation_text(self.tokenizer, self.prompt_ids, self.tokens, self.prompt_text)

    def completed(
        self, tokens: Sequence[int], log_prob: float, score: float, *, cut: bool = False
    ) -> Continuation:
        """The text that ``tokens`` make of the same prompt, finished.

        Args:
            tokens: Generated tokens.
            log_prob: Of the tokens.
            score: What the text is ranked by.
            cut: Whether a limit of lengths forced the end token among them.
        """
        text = dataclasses.replace(self, tokens=[])
        text.add(tokens, log_prob)
        if cut and text.finish_reason == "end":
            text.finish_reason = "length"
        return text.done(score)

    def done(self, score: float | None = None) -> Continuation:
        """The text, finished; its score is its log-probability if ``score`` is None."""
        reason = self.finish_reason or "length"
        score = self.log_prob if score is None else score
        return Continuation(self.text, tuple(self.tokens), self.log_prob, reason, score)
