"""More subwords for a trained byte-pair encoding, learned from new text."""

import collections
import itertools
import json
import re
from collections.abc import Container, Iterable, Iterator

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.backends import SENTINEL
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_files.opening import open_backend
from transformer_jax.data.tokenizer_kind import LARGEST_VOCABULARY
from transformer_jax.data.tokenizer_parts import ROLES

__all__ = ["check_extensible", "extend_tokenizer", "joined_tokens"]

Words = collections.Counter[tuple[str, ...]]  # how often each word occurs, as names of its tokens
Pair = tuple[str, str]

_BYTE = re.compile("<0x[0-9A-F]{2}>")
_ROLES = frozenset(itertools.chain(*ROLES.values()))
_BLANKS = ("▁", "Ġ")  # a blank before a word
_FIRST = 0x10000  # from here on, no code point is a surrogate
_BATCH = 1000  # texts


def extend_tokenizer(tokenizer: Tokenizer, texts: Iterable[str], count: int) -> Tokenizer:
    """Returns a byte-pair encoding with up to ``count`` more subwords; known ids do not change.

    Learning of merges (Sennrich et al. 2016) continues on ``texts``, which the tokenizer first
    splits by its own merges. Text in a new language then has fewer tokens. Each new subword joins
    tokens of the given tokenizer; text without new subwords keeps its tokens. Extended by the text
    that it was trained on, a tokenizer becomes the one of a larger ``vocab_size``.

    Args:
        tokenizer: A byte-pair encoding.
        texts: The text to learn from.
        count: Largest number of new subwords; there are fewer if the text provides no more.

    Raises:
        ConfigError: The tokenizer is no byte-pair encoding, or the vocabulary would be too large.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("bpe", ["low lower lowest"] * 3, 266)
        >>> grown = extend_tokenizer(tokenizer, ["lidem lidem"], 3)
        >>> [t.convert_ids_to_tokens(t.encode("lidem")) for t in (tokenizer, grown)]
        [['l', 'i', 'd', 'e', 'm'], ['lide', 'm']]
    """
    check_extensible(tokenizer, count)
    file = json.loads(tokenizer.text)
    added = {one["content"]: one["id"] for one in file.get("added_tokens") or ()}
    # The library numbers added tokens by position, unless the vocabulary has them too.
    vocab: dict[str, int] = file["model"]["vocab"] | added
    reserved = {*added, *map(tokenizer.name, tokenizer.special_ids)}
    merges, first, most = list[Pair](), tokenizer.vocab_size, tokenizer.vocab_size + count
    for left, right in _learned(_words(tokenizer, texts, reserved), vocab, count, reserved):
        if left + right not in vocab:
            if first == most:
                break
            vocab[left + right] = first
            first += 1
        merges.append((left, right))
    known = file["model"]["merges"]
    as_text = bool(known) and isinstance(known[0], str)  # in files of earlier versions
    file["model"]["vocab"] = vocab
    file["model"]["merges"] = known + [" ".join(pair) if as_text else list(pair) for pair in merges]
    return Tokenizer(json.dumps(file, ensure_ascii=False), tokenizer.special)


def joined_tokens(tokenizer: Tokenizer, first: int) -> dict[int, tuple[int, ...]]:
    """Returns the tokens that each subword from ``first`` on joins, all of them below ``first``.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("bytes", [])
        >>> grown = extend_tokenizer(tokenizer, ["lidem lidem"], 2)
        >>> found = joined_tokens(grown, tokenizer.vocab_size)
        >>> [(grown.name(new), *map(grown.name, old)) for new, old in found.items()]
        [('de', 'd', 'e'), ('ide', 'i', 'd', 'e')]
    """
    model = json.loads(tokenizer.text)["model"]
    if model["type"] != "BPE":
        return {}
    vocab, found = model["vocab"], dict[int, tuple[int, ...]]()
    for merge in model["merges"]:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        # Subwords with a prefix inside words do not join to a name; they are never new.
        if (new := vocab.get("".join(pair), -1)) >= first and new not in found:
            parts = [vocab[name] for name in pair]
            found[new] = tuple(i for part in parts for i in found.get(part, (part,)))
    return found


def check_extensible(tokenizer: Tokenizer, count: int) -> None:
    """Refuses tokenizers that :func:`extend_tokenizer` cannot extend by ``count`` subwords.

    Raises:
        ConfigError: The tokenizer is no byte-pair encoding, or the vocabulary would be too large.
    """
    model = json.loads(tokenizer.text)["model"]
    if tokenizer.targets is not tokenizer or model["type"] != "BPE":
        raise ConfigError(
            "tokenizer.extend_by: only a byte-pair encoding can be extended, and this tokenizer is "
            "none: leave it out, or add whole words with --tokenizer.add-tokens"
        )
    if model.get("continuing_subword_prefix"):
        raise ConfigError(
            f"tokenizer.extend_by: the subwords of this tokenizer begin with "
            f"{model['continuing_subword_prefix']!r} inside words: it cannot be extended"
        )
    if tokenizer.vocab_size + count > LARGEST_VOCABULARY:
        raise ConfigError(
            f"tokenizer.extend_by is {count}: a vocabulary has at most {LARGEST_VOCABULARY:,} "
            f"tokens, and this tokenizer has {tokenizer.vocab_size:,}"
        )


def _words(tokenizer: Tokenizer, texts: Iterable[str], reserved: Iterable[str]) -> Words:
    """Counts words of several tokens; reserved tokens and those of bytes are not part of words."""
    backend = open_backend(tokenizer.text)
    backend.encode_special_tokens = True
    apart = {*reserved, *(name for name in backend.get_vocab() if _BYTE.fullmatch(name))}
    # SentencePiece and a vocabulary of bytes do not split texts, but mark the blanks.
    places = backend.encode("a a", add_special_tokens=False).word_ids
    begins = () if len(set(places)) > 1 else _BLANKS
    counts, rest = Words(), iter(texts)
    while batch := list(itertools.islice(rest, _BATCH)):
        for found in backend.encode_batch(batch, add_special_tokens=False):
            word, last = list[str](), None
            for token, place in zip(found.tokens, found.word_ids, strict=True):
                if place != last or token in apart or token.startswith(begins):
                    counts[tuple(word)] += 1
                    word, last = [], place
                word += [token] * (token not in apart)
            counts[tuple(word)] += 1
    return Words({word: count for word, count in counts.items() if len(word) > 1})


def _learned(
    words: Words, vocab: dict[str, int], count: int, reserved: Container[str]
) -> Iterator[Pair]:
    """Yields merges in the order of learning, except those that make a reserved token or role."""
    # To the trainer, each token is a character.
    tokens = sorted({token for word in words for token in word}, key=vocab.__getitem__)
    character = {token: chr(_FIRST + i) for i, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Split("\0", "removed")
    # Some merges make tokens that exist, so more merges than new tokens are learned.
    trainer = trainers.BpeTrainer(vocab_size=len(tokens) + 2 * count, show_progress=False)
    spelled = ("".join(map(character.__getitem__, word)) for word in words)
    lines = ("\0".join([word] * n) for word, n in zip(spelled, words.values(), strict=True))
    backend.train_from_iterator(lines, trainer)
    refused = set[str]()
    for merge in json.loads(backend.to_str())["model"]["merges"]:
        left, right = ("".join(tokens[ord(one) - _FIRST] for one in half) for half in merge)
        if left in refused or right in refused or _is_special(left + right, reserved):
            refused.add(left + right)
        else:
            yield left, right


def _is_special(name: str, reserved: Container[str]) -> bool:
    """Returns whether a tokenizer takes a token of this name for a special one."""
    return name in reserved or name in _ROLES or name == SENTINEL.format(name[10:-1])
