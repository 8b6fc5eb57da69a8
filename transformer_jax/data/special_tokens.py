"""Special tokens of a vocabulary, found by their usual names."""

import itertools
from collections.abc import Mapping, Sequence

import tokenizers

from transformer_jax.core.errors import DataError
from transformer_jax.data.backends import SENTINEL

__all__ = ["ROLES", "SpecialNames", "end_ids", "plain_end", "role_ids", "sentinel_ids"]

ROLES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "bos": ("<bos>", "<s>", "[BOS]", "[CLS]", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("<eos>", "</s>", "[EOS]", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "forced_bos": (),
}
"""Names of the token of each role, in order of preference; a role without has a given name only."""


# Names by role, and under "ends" those of further tokens that end a text.
SpecialNames = Mapping[str, str | Sequence[str]]


def end_ids(vocab: Mapping[str, int], eos: int, given: SpecialNames) -> tuple[int, ...]:
    """Returns the ids of all tokens that end a text, the one that training writes first.

    Args:
        vocab: Ids by token.
        eos: The id of the role ``eos``.
        given: Names by role; ``ends`` are those of further tokens.

    Raises:
        DataError: A name that the vocabulary lacks.

    Example:
        >>> end_ids({"</s>": 1, "<stop>": 2}, 1, {"ends": ["<stop>", "</s>"]})
        (1, 2)
    """
    names = given.get("ends", ())
    absent = [name for name in names if name not in vocab]
    if absent:
        raise DataError(f"the tokenizer has no token {absent[0]!r} to end a text")
    return tuple(dict.fromkeys((eos, *(vocab[name] for name in names))))


def role_ids(vocab: Mapping[str, int], given: SpecialNames) -> dict[str, int]:
    """The id of the token of each role that the vocabulary has one for.

    Args:
        vocab: Ids by token.
        given: Names by role, which go before the usual ones; ``ends`` is no role.

    Raises:
        DataError: An unknown role, or a name that the vocabulary lacks.

    Example:
        >>> role_ids({"<s>": 0, "</s>": 1, "<stop>": 2}, {"eos": "<stop>"})
        {'bos': 0, 'eos': 2}
    """
    given = {role: name for role, name in given.items() if role != "ends"}
    unknown = sorted(set(given) - set(ROLES))
    if unknown:
        raise DataError(f"special token {unknown[0]!r}: the roles are {', '.join(ROLES)}")
    found = {}
    for role, names in ROLES.items():
        if role in given and given[role] not in vocab:
            raise DataError(f"the tokenizer has no token {given[role]!r} to be {role}")
        for name in (str(given[role]),) if role in given else names:
            if name in vocab:
                found[role] = vocab[name]
                break
    return found


def plain_end(backend: tokenizers.Tokenizer, eos: int, given: SpecialNames) -> frozenset[int]:
    """Returns the end token if it is plain text, such as a line end: prompts may hold it.

    Args:
        backend: The tokenizer of the library.
        eos: The id of the role ``eos``.
        given: Names by role that were given beside the file.

    Example:
        >>> backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({".": 0, "</s>": 1}))
        >>> plain_end(backend, 0, {"eos": "."}), plain_end(backend, 1, {"eos": "</s>"})
        (frozenset({0}), frozenset())
    """
    usual = given.get("eos", ROLES["eos"][0]) in ROLES["eos"]
    listed = eos in backend.get_added_tokens_decoder()
    return frozenset() if usual or listed else frozenset((eos,))


def sentinel_ids(vocab: Mapping[str, int]) -> tuple[int, ...]:
    """The ids of ``<extra_id_0>``, ``<extra_id_1>``, ... of T5, as many as there are.

    Example:
        >>> sentinel_ids({"a": 0, "<extra_id_1>": 1, "<extra_id_0>": 2})
        (2, 1)
    """
    names = itertools.takewhile(vocab.__contains__, map(SENTINEL.format, itertools.count()))
    return tuple(vocab[name] for name in names)
