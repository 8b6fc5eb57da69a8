"""More characters and subwords for a trained tokenizer, learned from new text."""

import collections
import itertools
import json
import re
import unicodedata
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.backends import SENTINEL
from transformer_jax.data.piece_rules import UNKNOWN_TEXT, name_guard, with_letters
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
_GAIN = 1e-4  # score of a new piece above that of the pieces that it joins


def extend_tokenizer(tokenizer: Tokenizer, texts: Iterable[str], count: int) -> Tokenizer:
    """Returns a tokenizer with up to ``count`` more characters and subwords; ids do not change.

    Characters that the tokenizer does not know come first, the most frequent ones. Then learning
    of merges (Sennrich et al. 2016) continues on ``texts``, which the tokenizer first splits by
    its own rules. Text in a new language then has fewer tokens. Each new subword joins tokens of
    the given tokenizer; text without new subwords keeps its tokens. A byte-pair encoding that is
    extended by the text that it was trained on becomes the one of a larger ``vocab_size``. In a
    unigram vocabulary (Kudo 2018), a new subword has the score of the pieces that it joins, and a
    little more.

    Args:
        tokenizer: A byte-pair encoding or a unigram vocabulary.
        texts: The text to learn from.
        count: Largest number of new tokens; there are fewer if the text provides no more.

    Raises:
        ConfigError: The tokenizer is of another kind, or the vocabulary would be too large.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("bpe", ["low lower lowest"] * 3, 266)
        >>> grown = extend_tokenizer(tokenizer, ["lidem lidem"], 3)
        >>> [t.convert_ids_to_tokens(t.encode("lidem")) for t in (tokenizer, grown)]
        [['l', 'i', 'd', 'e', 'm'], ['lide', 'm']]
    """
    check_extensible(tokenizer, count)
    texts = list(texts)
    file = _File(tokenizer)
    file.add_letters(_unknown_letters(tokenizer, texts)[:count])
    most = tokenizer.vocab_size + count
    if file.next < most:
        words = _words(file.made(), texts, file.reserved)
        for left, right in _learned(words, file.ids, most - file.next, file.reserved):
            if left + right not in file.ids and file.next == most:
                break
            file.join(left, right)
    return file.made()


class _File:
    """The file of a tokenizer that grows.

    Attributes:
        ids: The id of each token.
        next: The id of the next new token.
        reserved: Special tokens and other added tokens, which no subword contains.
    """

    def __init__(self, tokenizer: Tokenizer):
        """Reads the file; its added tokens become part of the vocabulary."""
        self._special, self._first = tokenizer.special, tokenizer.vocab_size
        self._file: dict[str, Any] = json.loads(tokenizer.text)
        self._model = self._file["model"]
        self.next = tokenizer.vocab_size
        outside = {one["content"]: one["id"] for one in self._file.get("added_tokens") or ()}
        self.reserved = {*outside, *map(tokenizer.name, tokenizer.special_ids)}
        # The library numbers added tokens by position, unless the vocabulary has them too.
        if self._model["type"] == "BPE":
            self._model["vocab"] |= outside
            self.ids: dict[str, int] = self._model["vocab"]
            return
        self._scored: list[list[Any]] = self._model["vocab"]
        self.ids = {name: id for id, (name, _) in enumerate(self._scored)}
        self._worth: dict[str, float] = dict(map(tuple, self._scored))
        self._least = min(self._worth.values())
        missing = sorted((id, name) for name, id in outside.items() if name not in self.ids)
        for id, name in missing:
            self.ids[name] = id
            self._scored.append([name, self._least])
        self._guard([name for _, name in missing])

    def _guard(self, names: Sequence[str]) -> None:
        """Keeps text that spells the names of pieces apart."""
        if guard := name_guard(names):
            split = {"type": "Split", "pattern": {"Regex": guard}, "invert": False}
            steps = [split | {"behavior": "MergedWithPrevious"}]
            if (given := self._file["pre_tokenizer"]) is not None:
                steps = [given, *steps]
            self._file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}

    def _add(self, name: str, score: float) -> None:
        self.ids[name] = self.next
        if self._model["type"] != "BPE":
            self._scored.append([name, score])
        self.next += 1

    def add_letters(self, letters: Sequence[str]) -> None:
        """Adds characters."""
        if not letters:
            return
        for letter in letters:
            self._add(letter, score := getattr(self, "_least", 0.0))
            if self._model["type"] != "BPE":
                self._worth[letter] = score
        if (rule := _unknown_rule(self._file)) is not None:
            rule["pattern"]["Regex"] = with_letters(rule["pattern"]["Regex"], letters)

    def join(self, left: str, right: str) -> None:
        """Adds the subword of two tokens, or the merge of two tokens to a known one."""
        name = left + right
        if self._model["type"] == "BPE":
            merges = self._model["merges"]
            as_text = bool(merges) and isinstance(merges[0], str)  # in files of earlier versions
            merges.append(f"{left} {right}" if as_text else [left, right])
            if name not in self.ids:
                self._add(name, 0.0)
            return
        score = self._worth[left] + self._worth[right] + _GAIN
        if name not in self.ids:
            self._add(name, score)
        elif self.ids[name] >= self._first:
            score = max(score, self._worth[name])
            self._scored[self.ids[name]][1] = score
        self._worth[name] = max(score, self._worth.get(name, score))

    def made(self) -> Tokenizer:
        """Returns the tokenizer as it is now."""
        return Tokenizer(json.dumps(self._file, ensure_ascii=False), self._special)


def _unknown_rule(file: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the rule that turns a run of characters without pieces into one, if there is one."""
    normalizer = file.get("normalizer") or {}
    rules = (rule for rule in normalizer.get("normalizers", ()) if rule["type"] == "Replace")
    return next((rule for rule in rules if rule["content"] == UNKNOWN_TEXT), None)


def _unknown_letters(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Returns the characters of texts that a tokenizer does not know, frequent ones first."""
    file = json.loads(tokenizer.text)
    if (rule := _unknown_rule(file)) is not None:
        file["normalizer"]["normalizers"].remove(rule)
    backend = open_backend(json.dumps(file))
    backend.encode_special_tokens = True
    counts = collections.Counter[str]()
    for text in texts:
        counts.update(
            text if backend.normalizer is None else backend.normalizer.normalize_str(text)
        )

    def is_unknown(letter: str) -> bool:
        if letter.isspace() or unicodedata.category(letter)[0] == "C" or letter in _BLANKS:
            return False
        ids = backend.encode(letter, add_special_tokens=False).ids
        return all(id == tokenizer.unk or backend.id_to_token(id) in _BLANKS for id in ids)

    return sorted(filter(is_unknown, counts), key=lambda letter: (-counts[letter], letter))


def joined_tokens(tokenizer: Tokenizer, first: int) -> dict[int, tuple[int, ...]]:
    """Returns the tokens that each subword from ``first`` on joins, all of them below ``first``.

    New characters, and subwords of new characters alone, join none.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("bytes", [])
        >>> grown = extend_tokenizer(tokenizer, ["lidem lidem"], 2)
        >>> found = joined_tokens(grown, tokenizer.vocab_size)
        >>> [(grown.name(new), *map(grown.name, old)) for new, old in found.items()]
        [('de', 'd', 'e'), ('ide', 'i', 'd', 'e')]
    """
    file = json.loads(tokenizer.text)
    model = file["model"]
    if model["type"] == "Unigram":
        outside = {one["content"] for one in file.get("added_tokens") or ()}
        return _joined_subwords(model, first, outside)
    if model["type"] != "BPE":
        return {}
    vocab, found = model["vocab"], dict[int, tuple[int, ...]]()
    for merge in model["merges"]:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        # Subwords with a prefix inside words do not join to a name; they are never new.
        if (new := vocab.get("".join(pair), -1)) >= first and new not in found:
            parts = [vocab[name] for name in pair]
            joined = (i for part in parts for i in found.get(part, (part,)))
            found[new] = tuple(i for i in joined if i < first)
    return {new: parts for new, parts in found.items() if parts}


def _joined_subwords(
    model: dict[str, Any], first: int, outside: Container[str]
) -> dict[int, tuple[int, ...]]:
    """Returns the tokens of each piece from ``first`` on in the vocabulary before it."""
    scored = [(name, score) for name, score in model["vocab"]]
    if len(scored) <= first:
        return {}
    old = models.Unigram(scored[:first], model["unk_id"], model.get("byte_fallback", False))
    found = {}
    for id, (name, _) in enumerate(scored[first:], first):
        parts = tuple(one.id for one in old.tokenize(name) if one.id != model["unk_id"])
        if parts and name not in outside:
            found[id] = parts
    return found


def check_extensible(tokenizer: Tokenizer, count: int) -> None:
    """Refuses tokenizers that :func:`extend_tokenizer` cannot extend by ``count`` tokens.

    Raises:
        ConfigError: The tokenizer is no byte-pair encoding and no unigram vocabulary, has separate
            pieces of targets, or the vocabulary would be too large.
    """
    instead = "leave it out, or add whole words with --tokenizer.add-tokens"
    model = json.loads(tokenizer.text)["model"]
    if tokenizer.targets is not tokenizer:
        raise ConfigError(
            f"tokenizer.extend_by: this tokenizer has one vocabulary for sources and one for "
            f"targets, which cannot be extended: {instead}"
        )
    if model["type"] not in ("BPE", "Unigram"):
        raise ConfigError(
            f"tokenizer.extend_by: only byte-pair encodings and unigram vocabularies can be "
            f"extended, and this tokenizer is of the kind {model['type']}: {instead}"
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
    apart = {"", *reserved, *(name for name in backend.get_vocab() if _BYTE.fullmatch(name))}
    # SentencePiece and a vocabulary of bytes do not split texts, but mark the blanks.
    places = backend.encode("a a", add_special_tokens=False).word_ids
    begins = () if len(set(places)) > 1 else _BLANKS
    counts, rest = Words(), iter(texts)
    while batch := list(itertools.islice(rest, _BATCH)):
        for found in backend.encode_batch(batch, add_special_tokens=False):
            word, last = list[str](), None
            for id, token, place in zip(found.ids, found.tokens, found.word_ids, strict=True):
                token = "" if id == tokenizer.unk else token  # an unknown one is named as its text
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
