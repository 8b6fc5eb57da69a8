"""Tokenizers of each kind, as objects of Hugging Face ``tokenizers``; WordPiece by likelihood."""

import collections
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

__all__ = [
    "BERT_SPECIAL",
    "MAKE",
    "SENTINEL",
    "SPECIAL",
    "byte_alphabet",
    "join_subwords",
    "likelihood_merges",
]

Special = tuple[str, ...]
Counts = Mapping[str, int]
Vocabulary = dict[str, int]
Learn = Callable[[Counts, int, Special], Vocabulary]

# The words of GPT-2 (Radford et al. 2019), whose letters keep their marks and joiners: tokens of
# Hindi or Thai would end before each vowel sign.
_LETTERS = "\\p{L}[\\p{L}\\p{M}\u200c\u200d]*"
_WORDS = rf"'s|'t|'re|'ve|'m|'ll|'d| ?{_LETTERS}| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_BLANK = "▁"  # stands for a blank, as in SentencePiece

SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>")
"""The special tokens of a tokenizer trained here; their ids are 0, 1, 2, 3."""

BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The same for encoders, in the same order, with the mask token."""

SENTINEL = "<extra_id_{}>"
"""The names of sentinels, numbered from 0 (T5)."""


def byte_alphabet() -> list[str]:
    """The character that represents each byte in a byte-level vocabulary (Radford et al. 2019).

    Printable bytes represent themselves; the others map to characters from U+0100 on.

    Example:
        >>> alphabet = byte_alphabet()
        >>> alphabet[ord("A")], alphabet[ord(" ")], len(set(alphabet))
        ('A', 'Ġ', 256)
    """
    prints = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in prints else chr(next(others)) for byte in range(256)]


def _byte_level(model: models.Model, words: bool = True) -> Backend:
    backend = Backend(model)
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words_apart = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([words_apart, level]) if words else level
    backend.decoder = decoders.ByteLevel()
    return backend


def _with_special(backend: Backend, special: Special) -> Backend:
    backend.add_special_tokens(list(special))
    return backend


def _bpe(texts: Iterable[str], vocab_size: int, special: Special) -> Backend:
    backend = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=byte_alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _unigram(texts: Iterable[str], vocab_size: int, special: Special) -> Backend:
    backend = _byte_level(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        unk_token=special[1],
        initial_alphabet=byte_alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    learnt = json.loads(backend.to_str())["model"]["vocab"][len(special) :]
    # The trainer iterates over hash tables: bytes missing from the text get scores just above the
    # lowest in random order, and sums differ in their last digits. Both effects are removed here.
    lowest = min(score for _, score in learnt)
    scores = {
        piece: round(lowest if len(piece) == 1 and score < lowest + 0.03 else score, 6)
        for piece, score in learnt
    }
    pieces = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    vocab = [*((token, 0.0) for token in special), *pieces]
    return _with_special(_byte_level(models.Unigram(vocab, unk_id=1)), special)


def _bytes(texts: Iterable[str], vocab_size: int, special: Special) -> Backend:
    del texts, vocab_size  # nothing to learn
    vocab = _numbered([*special, *byte_alphabet()])
    backend = _byte_level(models.BPE(vocab=vocab, merges=[]), words=False)
    return _with_special(backend, special)


def _wordpiece(texts: Iterable[str], vocab_size: int, special: Special) -> Backend:
    return _of_words(models.WordPiece, _by_frequency, texts, vocab_size, special)


def _wordpiece_likelihood(texts: Iterable[str], vocab_size: int, special: Special) -> Backend:
    return _of_words(models.WordPiece, _by_likelihood, texts, vocab_size, special)


def _words(texts: Iterable[str], vocab_size: int, special: Special) -> Backend:
    return _of_words(models.WordLevel, _most_common, texts, vocab_size, special)


def _of_words(
    model: Callable[..., models.Model],
    learn: Learn,
    texts: Iterable[str],
    vocab_size: int,
    special: Special,
) -> Backend:
    """A tokenizer of words or subwords.

    Args:
        model: The class of its model.
        learn: Makes the vocabulary from word counts, vocabulary size and special tokens.
        texts: The training texts.
        vocab_size: Largest number of tokens.
        special: The special tokens.
    """
    # Encoders never decode: their subwords do not mark blanks, so a word has the same tokens in a
    # text and in a list of words.
    joined = special != BERT_SPECIAL
    words = _marked_words() if joined else pre_tokenizers.BertPreTokenizer()
    mark = (lambda text: _BLANK + text.replace(" ", _BLANK)) if joined else str
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(word for word, _ in words.pre_tokenize_str(mark(text)))
    learnt = learn(counts, vocab_size, special)
    backend = Backend(model(learnt, unk_token=special[1]))
    backend.pre_tokenizer = words
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    if joined:
        # White space missing from the texts, such as a tab, is read as a blank, not as unknown.
        known = "".join(sorted(token for token in learnt if len(token) == 1 and token.isspace()))
        backend.normalizer = normalizers.Sequence(
            [
                normalizers.Replace(Regex(rf"[^\S{known}]"), " "),
                normalizers.Prepend(_BLANK),
                normalizers.Replace(" ", _BLANK),
            ]
        )
        backend.decoder = decoders.Sequence(
            [
                decoders.Replace(Regex("^##"), ""),
                decoders.Fuse(),
                decoders.Replace(_BLANK, " "),
                decoders.Strip(" ", 1, 0),
            ]
        )
    return _with_special(backend, special)


def _by_frequency(counts: Counts, vocab_size: int, special: Special) -> Vocabulary:
    """A subword vocabulary by merging the most frequent pairs."""
    backend = Backend(models.WordPiece(unk_token=special[1]))
    backend.pre_tokenizer = pre_tokenizers.Split("\0", "removed")  # no text holds it
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        # The trainer would number these in hash-table order, which would break ties at random.
        special_tokens=[*special, *_inside(counts)],
        continuing_subword_prefix="##",
        show_progress=False,
    )
    backend.train_from_iterator(("\0".join([w] * n) for w, n in sorted(counts.items())), trainer)
    learnt: Vocabulary = json.loads(backend.to_str())["model"]["vocab"]
    return learnt


def _by_likelihood(counts: Counts, vocab_size: int, special: Special) -> Vocabulary:
    """A subword vocabulary by merging the pairs that increase the likelihood of the text most."""
    letters = sorted({character for word in counts for character in word})
    vocab = _numbered([*special, *_inside(counts), *letters])
    for merge in likelihood_merges(counts):
        if len(vocab) >= vocab_size:
            break
        vocab.setdefault(join_subwords(*merge), len(vocab))
    return vocab


def _most_common(counts: Counts, vocab_size: int, special: Special) -> Vocabulary:
    """The most frequent words; of equally frequent ones, the first by code points."""
    common = sorted(counts, key=lambda word: (-counts[word], word))
    return _numbered([*special, *common[: vocab_size - len(special)]])


def _inside(counts: Counts) -> list[str]:
    """The characters within words, each prefixed with ``##``."""
    return sorted({f"##{character}" for word in counts for character in word[1:]})


def _numbered(tokens: Iterable[str]) -> Vocabulary:
    return {token: id for id, token in enumerate(dict.fromkeys(tokens))}


def _marked_words() -> pre_tokenizers.PreTokenizer:
    """Splits words with a mark for the blank before them, and punctuation likewise."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_BLANK, "merged_with_next"),
            pre_tokenizers.Split(Regex(r"\s"), "isolated"),
            pre_tokenizers.Punctuation("isolated"),
        ]
    )


def _characters(texts: Iterable[str], vocab_size: int, special: Special) -> Backend:
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(text)
    common = sorted(counts, key=lambda character: (-counts[character], character))
    vocab = _numbered([*special, *common[: vocab_size - len(special)]])
    backend = Backend(models.WordLevel(vocab, unk_token=special[1]))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return _with_special(backend, special)


MAKE: dict[str, Callable[[Iterable[str], int, Special], Backend]] = {
    "bpe": _bpe,
    "unigram": _unigram,
    "bytes": _bytes,
    "wordpiece": _wordpiece,
    "wordpiece_likelihood": _wordpiece_likelihood,
    "words": _words,
    "characters": _characters,
}
"""Functions by kind, from texts, vocabulary size and special tokens to a trained tokenizer."""


# Fewest occurrences of a merged pair: any pair of subwords that occur once has the highest score.
_LEAST = 2


def likelihood_merges(words: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yields WordPiece merges, each of the pair with the highest ``f(ab) / (f(a) f(b))``.

    ``f`` counts subwords, and pairs of neighbours within words. The score compares how often a pair
    occurs with how often it would by chance, which is what each of its occurrences adds to the
    likelihood of the text. Ties go to the more frequent pair, then to the first by code points.
    Pairs that occur once are not merged. Schuster and Nakajima 2012.

    Args:
        words: Number of occurrences of each word.

    Example:
        >>> words = {"aa": 4, "ab": 2, "cd": 2}
        >>> list(itertools.islice(likelihood_merges(words), 2))
        [('c', '##d'), ('a', '##a')]
    """
    text = _Text(words)
    while (pair := text.best()) is not None:
        yield text.names[pair[0]], text.names[pair[1]]
        text.merge(pair)


def join_subwords(left: str, right: str) -> str:
    """Returns the subword that joins two neighbours.

    Example:
        >>> join_subwords("un", "##able"), join_subwords("##a", "##b")
        ('unable', '##ab')
    """
    return left + right.removeprefix("##")


class _Text:
    """The words of a text in subwords, with the counts of subwords and pairs.

    Attributes:
        names: The name of each subword.
    """

    names: list[str]

    def __init__(self, words: Mapping[str, int]):
        self.names, self._ids = [], dict[str, int]()
        self._frequency = np.zeros(1024, np.int64)  # occurrences of each word
        self._pairs: dict[tuple[int, int], int] = {}  # their columns
        self._left, self._right, self._counts = np.zeros((3, 1024), np.int64)
        self._places: dict[tuple[int, int], set[int]] = collections.defaultdict(set)
        self._words = [
            [self._id(word[0]), *(self._id(f"##{letter}") for letter in word[1:])]
            for word in words
            if word
        ]
        self._times = [times for word, times in words.items() if word]
        for number in range(len(self._words)):
            self._count(number, 1)

    def best(self) -> tuple[int, int] | None:
        """Returns the next pair to merge; None if no pair occurs twice."""
        n = len(self._pairs)
        left, right, counts = self._left[:n], self._right[:n], self._counts[:n]
        enough = counts >= _LEAST
        if not enough.any():
            return None
        # A pair that no longer occurs may contain subwords that no longer occur.
        by_chance = np.where(enough, self._frequency[left] * self._frequency[right], 1)
        scores = np.where(enough, counts / by_chance, 0.0)
        places = np.flatnonzero(scores == scores.max())
        places = places[counts[places] == np.max(counts[places])]
        pairs = ((int(left[place]), int(right[place])) for place in places)
        return min(pairs, key=lambda pair: (self.names[pair[0]], self.names[pair[1]]))

    def merge(self, pair: tuple[int, int]) -> None:
        """Merges a pair wherever it occurs."""
        subword = self._id(join_subwords(*(self.names[part] for part in pair)))
        for number in tuple(self._places[pair]):
            self._count(number, -1)
            self._words[number] = _join(self._words[number], pair, subword)
            self._count(number, 1)

    def _id(self, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = len(self.names)
            self.names.append(name)
            if len(self.names) > len(self._frequency):
                self._frequency = np.concatenate([self._frequency, np.zeros_like(self._frequency)])
        return self._ids[name]

    def _count(self, number: int, sign: int) -> None:
        """Adds a word to the counts, or removes it."""
        word, times = self._words[number], sign * self._times[number]
        for subword in word:
            self._frequency[subword] += times
        for pair in itertools.pairwise(word):
            column = self._column(pair)  # first, since it may replace the arrays
            self._counts[column] += times
            if sign > 0:
                self._places[pair].add(number)
            else:
                self._places[pair].discard(number)

    def _column(self, pair: tuple[int, int]) -> int:
        column = self._pairs.setdefault(pair, len(self._pairs))
        if column == len(self._counts):
            grown = (self._left, self._right, self._counts)
            self._left, self._right, self._counts = (
                np.concatenate([array, np.zeros_like(array)]) for array in grown
            )
        self._left[column], self._right[column] = pair
        return column


def _join(word: Sequence[int], pair: tuple[int, int], subword: int) -> list[int]:
    out: list[int] = []
    for part in word:
        if out and (out[-1], part) == pair:
            out[-1] = subword
        else:
            out.append(part)
    return out
