"""Rewards of texts and conversations by a model trained on pairs (Ouyang et al. 2022)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.chat.encoding import ChatEncoder
from transformer_jax.data.conversations import Message, check_answered
from transformer_jax.data.examples import EncodedExamples
from transformer_jax.data.preference_examples import completion_rows
from transformer_jax.data.row_offsets import row_offsets
from transformer_jax.data.store import TokenStore, id_dtype
from transformer_jax.data.text import flaw_of
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.inference.encoding.task_runner import TaskRunner, UnreadTextError

__all__ = ["RewardRunner", "Rewarded"]

# A text; an object with prompt and completion; or a conversation whose last message is the answer
# to reward.
Rewarded: TypeAlias = str | Mapping[str, str] | Sequence[Message]
# Ids of the start, the context, and the rewarded text with its end.
_Parts: TypeAlias = tuple[list[int], list[int], list[int]]


class RewardRunner(TaskRunner):
    """Rewards of texts and of answers to conversations, tokenized as in training.

    Args:
        model: See :class:`TaskRunner`.
        tokenizer: The tokenizer of the run.
        first: The start token of texts.
        length: Maximum length of a row in tokens; the start of the prompt is truncated, then the
            end of the completion.
        tokens: Maximum number of tokens per batch, with padding.
        chats: Encoder of conversations; None for a model trained on texts.
        prepare: Preprocesses the text of a message as in training.
    """

    def __init__(
        self,
        model: tuple[Any, Any],
        tokenizer: Tokenizer,
        *,
        first: int,
        length: int,
        tokens: int = 4096,
        chats: ChatEncoder | None = None,
        prepare: Callable[[str], str] = lambda text: text,
    ):
        super().__init__(model, tokenizer, kind="regress", length=length, tokens=tokens)
        self._first, self.chats, self._prepare = first, chats, prepare

    def numbers(
        self, texts: Sequence[Rewarded], seconds: Sequence[str] | None = None
    ) -> Float[np.ndarray, " count"]:
        """Returns the reward of each text, or of the last message of each conversation.

        Training tokenizes prompt and completion separately, so the tokens of the concatenated text
        may differ. Completions of one prompt in a call share the tokens of the prompt, as pairs
        do in training: if the longest row is too long, the start of the prompt is truncated for
        all.

        Args:
            texts: Texts (without end token), prompts with completions, and conversations.
            seconds: Must be None: a reward model does not read pairs.

        Raises:
            ConfigError: Conversations are given, but the model was trained on texts.
            UnreadTextError: The last message is not from the assistant, or is empty; the chat
                template refuses the conversation; or prompt or completion is not text.
        """
        assert seconds is None, "reward models do not read pairs"
        texts = [self._prepare(text) if isinstance(text, str) else text for text in texts]
        parts: dict[int, _Parts] = {}
        alone = {i: text for i, text in enumerate(texts) if isinstance(text, str)}
        ids = self._tokenizer.encode_batch(list(alone.values()))
        for i, row in zip(alone, ids, strict=True):
            parts[i] = [self._first], list(row), [self._tokenizer.eos]
        for i, text in enumerate(texts):
            if isinstance(text, Mapping):
                parts[i] = self._of_completion(i, text)
            elif not isinstance(text, str):
                parts[i] = self._of_conversation(i, text)
        rows = self._rows([parts[i] for i in range(len(texts))])
        cut = sum(len(row) < sum(map(len, parts[i])) for i, row in enumerate(rows))
        flat = np.array([id for row in rows for id in row], id_dtype(self._tokenizer))
        lengths = np.array([len(row) for row in rows], np.int64)
        examples = EncodedExamples(TokenStore(flat, row_offsets(lengths)), lengths)
        self._tell(cut, examples, list(map(_text_of, texts)))
        return self.rows(examples)[:, 0]

    def _rows(self, parts: Sequence[_Parts]) -> list[list[int]]:
        """Returns rows of at most ``length`` tokens; completions of one prompt share its tokens."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, (first, prompt, _) in enumerate(parts):
            groups.setdefault((*first, *prompt), []).append(i)
        rows: dict[int, list[int]] = {}
        for numbers in groups.values():
            first, prompt, _ = parts[numbers[0]]
            completions = [parts[i][2] for i in numbers]
            found, _ = completion_rows(first, prompt, completions, self._length)
            rows.update(zip(numbers, found, strict=True))
        return [rows[i] for i in range(len(parts))]

    def _of_completion(self, i: int, given: Mapping[str, str]) -> _Parts:
        if self.chats is not None:
            trained = "this reward model was trained on conversations"
            raise UnreadTextError(i, f"a prompt with a completion, but {trained}: give messages")
        texts = [self._prepare(_field(i, given, name)) for name in ("prompt", "completion")]
        if not texts[1]:
            raise UnreadTextError(i, "the completion is empty: fill it in, or leave the line out")
        asked, written = self._tokenizer.encode_batch(texts)
        return [self._first], list(asked), [*written, self._tokenizer.eos]

    def _of_conversation(self, i: int, messages: Sequence[Message]) -> _Parts:
        if self.chats is None:
            raise ConfigError(
                "this reward model was trained on texts, and reads no conversations: give texts, "
                "or train one on conversations"
            )
        try:
            checked = check_answered(messages)
            *asked, answer = ({**one, "content": self._prepare(one["content"])} for one in checked)
            [(prompt, written)] = self.chats.encode_answers([asked], [answer["content"]])
        except (ConfigError, DataError) as error:
            raise UnreadTextError(i, str(error)) from None
        return [], prompt, written


def _text_of(given: Rewarded) -> str:
    """Returns all text of a text, a completion with its prompt, or a conversation."""
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        return "\n".join((given["prompt"], given["completion"]))
    return "\n".join(str(message["content"]) for message in given)


def _field(i: int, given: Mapping[str, Any], name: str) -> str:
    """Returns the prompt or the completion of an object."""
    if name not in given:
        raise UnreadTextError(
            i,
            f"no field {name!r}: give a text, "
            f'{{"prompt": "...", "completion": "..."}}, or messages that end with an answer',
        )
    if not isinstance(text := given[name], str):
        raise UnreadTextError(i, f"{name} is {type(text).__name__}; text is needed")
    if (flaw := flaw_of(text)) is not None:
        raise UnreadTextError(i, f"{name} {flaw}")
    return text
