"""N-gram language models: the probability of a token given the N - 1 before it, from counts."""

import dataclasses
import io
import json
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int, Integer

from transformer_jax.core.errors import CheckpointError, ConfigError, DataError
from transformer_jax.core.numpy_files import load_arrays
from transformer_jax.core.output_files import draft_file
from transformer_jax.models.ngram_counts import CHUNK, NgramCounts, add_start_symbols, count_ngrams

__all__ = ["AddK", "KneserNey", "NgramModel", "Smoothing", "discounts"]

_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class AddK:
    """``p(w | h) = (c(h w) + k) / (c(h) + k V)``; with ``k = 0``, unseen n-grams are impossible.

    If ``h`` never occurs, all tokens are equally probable.
    """

    k: float | int = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.k < float("inf"):
            raise ConfigError(f"add-k smoothing with k = {self.k}: 0 or more")


@dataclasses.dataclass(frozen=True)
class KneserNey:
    """Interpolated modified Kneser-Ney; its discounts are estimated from the counts.

    Source: Chen and Goodman 1999, section 3; Kneser and Ney 1995.
    """


Smoothing = AddK | KneserNey


class NgramModel:
    """The probability of each token given the ``order - 1`` before it in its document.

    A document begins with a start symbol, so its first tokens have shorter contexts:
    ``p(x₁) p(x₂ | x₁) Π p(xₙ | xₙ₋₂, xₙ₋₁)`` for order 3, where the first tokens are
    also conditioned on the start of the document. With order 1, it is a bag of words.

    Attributes:
        counts: The counts that the model is estimated from.
        smoothing: The smoothing method.
        excluded: Tokens of probability 0, such as padding; all other probabilities sum to 1.
    """

    def __init__(self, counts: NgramCounts, smoothing: Smoothing, excluded: Iterable[int] = ()):
        """Makes the model from counts.

        Raises:
            ConfigError: Nothing is left to predict.
            DataError: An excluded token was counted.
        """
        self.counts = counts
        self.smoothing = smoothing
        self.excluded = tuple(sorted({int(i) for i in excluded}))
        V = counts.vocab_size
        if any(not 0 <= i < V for i in self.excluded) or len(self.excluded) >= V:
            raise ConfigError(
                f"{len(self.excluded)} excluded tokens of a vocabulary of {V}: they must be "
                f"in it, and leave one to predict"
            )
        counted = [i for i in self.excluded if counts.counts[0][i]]
        if counted:
            raise DataError(f"token {counted[0]} is never predicted, but the documents contain it")
        self._uniform = np.full(counts.base, 1 / (V - len(self.excluded)))
        self._uniform[[*self.excluded, V]] = 0
        self._levels = list(_levels(counts, smoothing, V - len(self.excluded)))

    @classmethod
    def train(
        cls,
        ids: Integer[np.ndarray, " total"],
        offsets: Integer[np.ndarray, " ends"],
        *,
        order: int,
        vocab_size: int,
        smoothing: Smoothing | None = None,
        excluded: Iterable[int] = (),
    ) -> "NgramModel":
        """Estimates a model from documents, with Kneser-Ney smoothing by default.

        Args:
            ids: Tokens of all documents, including their end tokens if these are to be predicted.
            offsets: Start of each document, and the end of the last one.
            order: Length of the context plus one.
            vocab_size: Largest possible token plus one.
            smoothing: The smoothing method.
            excluded: Tokens of probability 0, which occur in no document.

        Raises:
            ConfigError: An order below 1, or nothing left to predict.
            DataError: Tokens out of range, or invalid offsets.

        Example:
            >>> ids, offsets = np.array([0, 1, 0, 1, 0, 2]), np.array([0, 6])
            >>> model = NgramModel.train(ids, offsets, order=2, vocab_size=3, smoothing=AddK(0))
            >>> model.distribution([0])
            array([0.        , 0.66666667, 0.33333333])
        """
        counts = count_ngrams(ids, offsets, order=order, vocab_size=vocab_size)
        return cls(counts, smoothing or KneserNey(), excluded)

    def __repr__(self) -> str:
        return f"NgramModel(order={self.order}, V={self.vocab_size}, {self.smoothing})"

    @property
    def order(self) -> int:
        """Length of the context plus one."""
        return self.counts.order

    @property
    def vocab_size(self) -> int:
        """Largest token plus one."""
        return self.counts.vocab_size

    def log_probs(
        self, ids: Integer[np.ndarray, " total"], offsets: Integer[np.ndarray, " ends"]
    ) -> Float[np.ndarray, " total"]:
        """The log-probability of each token given those before it in its document, in nats.

        Raises:
            DataError: A token outside the vocabulary, or invalid offsets.
        """
        stream, age = add_start_symbols(ids, offsets, self.vocab_size)
        likely = np.empty(len(stream))
        for start in range(0, len(stream), CHUNK):
            # The tokens before a chunk, as far as contexts reach, are processed again.
            first, stop = max(0, start - self.order + 1), start + CHUNK
            part = self._probabilities(stream[first:stop], age[first:stop])
            likely[start:stop] = part[start - first :]
        with np.errstate(divide="ignore"):
            return np.log(likely[age > 0])

    def _probabilities(
        self, stream: Integer[np.ndarray, " T"], age: Integer[np.ndarray, " T"]
    ) -> Float[np.ndarray, " T"]:
        uniform = self._uniform[stream]
        own, rest = self._levels[0]
        likely = own[stream] + rest[0] * uniform
        places = stream.astype(np.int64)
        for n, (own, rest) in enumerate(self._levels[1:], 2):
            inside = age >= n - 1
            before = np.where(inside, np.concatenate([[-1], places[:-1]]), -1)
            places = self.counts.find(n, before, stream)
            below = likely if isinstance(self.smoothing, KneserNey) else uniform
            likely = np.where(inside, own[places] + rest[before] * below, likely)
        return likely

    def distribution(
        self, context: Sequence[int] | Int[np.ndarray, " T"]
    ) -> Float[np.ndarray, " V"]:
        """The probability of each next token after the first tokens of a document.

        For a long document, its last ``order - 1`` tokens suffice.
        """
        V = self.vocab_size
        symbols = [V, *context[-self.order :]][1 - self.order :] if self.order > 1 else []
        uniform = self._uniform[:V]
        own, rest = self._levels[0]
        likely = own[:V] + rest[0] * uniform
        place = 0
        for n, (own, rest) in enumerate(self._levels[1 : len(symbols) + 1], 2):
            # An unseen n-gram has no seen extension.
            place = self.counts.index(symbols[1 - n :]) if place >= 0 else -1
            below = likely if isinstance(self.smoothing, KneserNey) else uniform
            likely = rest[place] * below
            if place >= 0:
                runs, tokens = self.counts.continuations(n, place)
                likely[tokens] += own[runs]
        return likely

    def save(self, path: str | pathlib.Path) -> None:
        """Writes the counts and settings into one ``.npz``, atomically.

        Raises:
            CheckpointError: The file cannot be written.
        """
        path = pathlib.Path(path)
        smoothing = dataclasses.asdict(self.smoothing)
        settings = {
            "format": _FORMAT,
            "vocab_size": self.vocab_size,
            "order": self.order,
            "smoothing": {"kind": type(self.smoothing).__name__, **smoothing},
            "excluded": list(self.excluded),
        }
        arrays = {"settings": np.frombuffer(json.dumps(settings).encode(), np.uint8)}
        for n in range(1, self.order + 1):
            arrays[f"keys_{n}"] = self.counts.keys[n - 1]
            arrays[f"counts_{n}"] = self.counts.counts[n - 1]
        try:
            with draft_file(path) as draft, open(draft, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from None

    @classmethod
    def load(cls, path: str | pathlib.Path) -> "NgramModel":
        """Loads a model that :meth:`save` wrote.

        Raises:
            CheckpointError: The file is missing, damaged or not a model.
        """
        path = pathlib.Path(path)
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: is not a regular file")
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}") from None
        try:
            return _read(raw)
        except Exception as error:  # damage raises many kinds of errors
            reason = " ".join(str(error).split())[:150] or type(error).__name__
            raise CheckpointError(
                f"{path}: not an n-gram model, or a damaged one ({reason}): train it again"
            ) from None


def discounts(counts: Int[np.ndarray, " runs"]) -> tuple[float, float, float]:
    """Kneser-Ney discounts of n-grams seen once, twice and more often.

    With ``nᵢ`` n-grams seen ``i`` times and ``Y = n₁ / (n₁ + 2 n₂)``: ``i - (i + 1) Y nᵢ₊₁ / nᵢ``.
    If one of these cannot be computed or is not above 0, all three are ``Y``. If no n-gram was seen
    once, or none twice, they are 0.5, 1 and 1.5, as in KenLM.

    Source: Chen and Goodman 1999, section 3.

    Example:
        >>> discounts(np.array([1, 1, 1, 1, 2, 2, 3, 4]))
        (0.5, 1.25, 1.0)
        >>> discounts(np.array([1, 1, 2]))
        (0.5, 0.5, 0.5)
    """
    n1, n2, n3, n4 = (int((counts == i).sum()) for i in (1, 2, 3, 4))
    if not (n1 and n2):
        return 0.5, 1.0, 1.5
    Y = n1 / (n1 + 2 * n2)
    if n3:
        estimates = (1 - 2 * Y * n2 / n1, 2 - 3 * Y * n3 / n2, 3 - 4 * Y * n4 / n3)
        if n4 and min(estimates) > 0:
            return estimates
    return Y, Y, Y


Level = tuple[Float[np.ndarray, " _"], Float[np.ndarray, " _"]]


def _levels(counts: NgramCounts, smoothing: Smoothing, tokens: int) -> Iterable[Level]:
    """Yields, by length, each n-gram's own probability and the mass that its context leaves over.

    The level below distributes that mass. Both arrays have one more entry, at index -1: an unseen
    n-gram has probability 0, and as a context it leaves everything.
    """
    seen = _adjusted(counts) if isinstance(smoothing, KneserNey) else list(counts.counts)
    for n in range(1, counts.order + 1):
        number = seen[n - 1].copy()
        if n == 1:
            number[counts.vocab_size] = 0  # the start symbol is never predicted
        before = counts.before(n)
        contexts = len(counts.keys[n - 2]) if n > 1 else 1
        total = np.bincount(before, number, contexts)
        if isinstance(smoothing, KneserNey):
            less = np.array([0.0, *discounts(number)])[np.minimum(number, 3)]
            rest = np.bincount(before, less, contexts)
        else:
            less = np.zeros(len(number))
            rest = np.full(contexts, smoothing.k * tokens)
            total = total + rest
        nothing = total == 0
        safe = np.where(nothing, 1, total)
        own = (number - less) / safe[before]
        yield np.append(own, 0.0), np.append(np.where(nothing, 1, rest / safe), 1.0)


def _adjusted(counts: NgramCounts) -> list[Int[np.ndarray, " _"]]:
    """Counts the longest n-grams, and for all others the different symbols before them.

    Nothing precedes the start of a document: n-grams that begin with it keep their counts.
    """
    beginning = np.arange(counts.base) == counts.vocab_size
    endings = counts.suffixes()
    adjusted = []
    for n in range(1, counts.order):
        if n > 1:
            beginning = beginning[counts.before(n)]
        different = np.bincount(endings[n], minlength=len(counts.keys[n - 1]))
        adjusted.append(np.where(beginning, counts.counts[n - 1], different))
    return [*adjusted, counts.counts[-1]]


def _read(raw: bytes) -> NgramModel:
    with load_arrays(io.BytesIO(raw)) as file:
        settings = json.loads(file["settings"].tobytes())
        if settings["format"] != _FORMAT:
            raise ValueError(f"its format is {settings['format']}, this version reads {_FORMAT}")
        levels = range(1, settings["order"] + 1)
        keys = tuple(file[f"keys_{n}"] for n in levels)
        counts = tuple(file[f"counts_{n}"] for n in levels)
    base = settings["vocab_size"] + 1
    if not (keys and np.array_equal(keys[0], np.arange(base))):
        raise ValueError("its tokens do not match its vocabulary")
    runs = base
    for n, (some, often) in enumerate(zip(keys, counts, strict=True), 1):
        whole = some.dtype == often.dtype == np.int64 and some.ndim == 1 and (often >= 0).all()
        if not (whole and some.shape == often.shape and (np.diff(some) > 0).all()):
            raise ValueError(f"its counts of {n} tokens are out of order")
        if n > 1 and len(some) and not 0 <= some[0] <= some[-1] < runs * base:
            raise ValueError(f"its runs of {n} tokens have no beginning")
        runs = len(some)
    smoothing = dict(settings["smoothing"])
    kinds = {"AddK": AddK, "KneserNey": KneserNey}
    made = kinds[smoothing.pop("kind")](**smoothing)
    return NgramModel(NgramCounts(settings["vocab_size"], keys, counts), made, settings["excluded"])
