"""Pairs of texts with masked tokens from documents, resampled for every epoch."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Int

from transformer_jax.core.config_fields import Configuration, Range, Share
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.language_model_plans import RowsPlan, pack, places_of
from transformer_jax.data.masking import MLMMasking, mask_tokens
from transformer_jax.data.plan import Batching, BatchShape, rows_within, shuffled, uniform
from transformer_jax.data.sentences import SentenceStore, SentenceTexts

__all__ = [
    "BertPretrainingPlan",
    "MaskingConfig",
    "PackedPretrainingPlan",
    "PackedTexts",
    "PairBatch",
    "SentenceObjective",
]

SentenceObjective = Literal["nsp", "sop", "none"]

# Random streams; masks use the streams below these, four per epoch.
_LABELS, _DRAWS = 1 << 40, 1 << 41
# Fingerprints of plans keep the names that earlier versions used; resuming compares them.
_FINGERPRINT_NAMES = {"nsp": "next", "sop": "order", "none": "none"}


@dataclasses.dataclass(frozen=True)
class MaskingConfig(Configuration, group="masking"):
    """Settings of masking, and of the sentence-pair objective."""

    # Fraction of a text's tokens to mask.
    mlm_probability: Annotated[float, Range(above=0, below=1)] = 0.15
    # Fraction of the masked tokens that become [MASK]; the sum with the next two is 1.
    mask_replace_prob: Share = 0.8
    random_replace_prob: Share = 0.1  # fraction of the masked tokens that become a random token
    unchanged_prob: Share = 0.1  # fraction of the masked tokens that do not change
    whole_word_mask: bool = False  # mask all tokens of a word together
    sentence_objective: SentenceObjective = "nsp"  # second objective: NSP, SOP or none

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = (self.mask_replace_prob, self.random_replace_prob, self.unchanged_prob)
        if abs(sum(shares) - 1) > 1e-6:
            raise ConfigError(
                f"masking.mask_replace_prob, masking.random_replace_prob and "
                f"masking.unchanged_prob are {', '.join(f'{share:g}' for share in shares)}: their "
                f"sum must be 1, such as 1, 0, 0 for [MASK] alone"
            )


@dataclasses.dataclass(frozen=True, eq=False)
class PairBatch:
    """The texts of a batch: indices into the plan (-1 for none), and their padded length."""

    indices: Int[np.ndarray, " B"]
    T: int
    epoch: int

    def __len__(self) -> int:
        return len(self.indices)

    def select(self, rows: Int[np.ndarray, " b"]) -> "PairBatch":
        """Selects rows, such as the rows of one process."""
        return PairBatch(self.indices[rows], self.T, self.epoch)


class BertPretrainingPlan:
    """Texts of up to ``length`` tokens from documents, with pairs for a second objective.

    A text is as many consecutive sentences of a document as fit; a sentence longer than half a
    text is cut. Every sentence is part of one text, and texts are bucketed by length
    (``BucketPlan``). The pairs are resampled for every epoch, from only the seed, the epoch and
    the index of the text:

    - ``nsp``: it is split in two between sentences. In half of the texts, the second part is then
      replaced by sentences of another document, as many as fit (Devlin et al. 2019). A text of a
      single sentence always has its second part replaced.
    - ``sop``: it is split in two, and in half of the texts the parts are swapped (Lan et al.
      2020). A text of a single sentence is split within it.
    - ``none``: it is not split.

    The result is ``[CLS] first [SEP] second [SEP]`` with some tokens masked (``mask_tokens``). No
    part is ever empty.
    """

    shapes: list[BatchShape]
    steps_per_epoch: int
    fingerprint: str
    lengths: Int[np.ndarray, " texts"]  # tokens of each text, with special tokens

    def __init__(
        self,
        store: SentenceStore,
        masking: MLMMasking,
        special: tuple[int, int, int],
        batching: Batching,
        *,
        length: int,
        sentence_objective: SentenceObjective = "nsp",
        shuffle: bool = True,
    ):
        """Makes a plan for the documents of ``store``.

        Args:
            store: The sentences.
            masking: Masking of tokens.
            special: The ids of [CLS], [SEP] and padding.
            batching: Sizes of batches; its seed determines all random choices.
            length: Longest text in tokens, including special tokens.
            sentence_objective: ``nsp``, ``sop`` or ``none``.
            shuffle: False keeps the order of the texts and makes the same choices in every epoch.

        Raises:
            ConfigError: A length below two tokens, or an unknown objective.
            DataError: ``nsp`` with a single document, which leaves no other to take sentences from.
        """
        if sentence_objective not in get_args(SentenceObjective):
            raise ConfigError(
                f"masking.sentence_objective is {sentence_objective}: allowed are "
                f"{', '.join(get_args(SentenceObjective))}"
            )
        self._special = 2 if sentence_objective == "none" else 3
        if length < self._special + 2:
            raise ConfigError(f"length is {length}: a text needs at least {self._special + 2}")
        if sentence_objective == "nsp" and len(store.documents) < 3:
            raise DataError(
                "next-sentence prediction needs two documents, found one: separate documents by "
                "blank lines (data.read.documents blank), or set "
                "masking.sentence_objective to sop or none"
            )
        self._masking, self._ids = masking, special
        self.sentence_objective, self._seed, self._shuffle = (
            sentence_objective,
            batching.seed,
            shuffle,
        )
        self._room = room = length - self._special
        limit = room if sentence_objective == "none" else room // 2
        self._texts = SentenceTexts.of(store, limit=limit, room=room)
        self.lengths = self._natural(room) + self._special
        self._plan = batching.plan(self.lengths, usual=8, shuffle=shuffle)
        self.shapes, self.steps_per_epoch = self._plan.shapes, self._plan.steps_per_epoch
        shares = masking.mask_replace_prob, masking.random_replace_prob
        said = (
            self._plan.fingerprint,
            masking.mlm_probability,
            masking.is_continuation is None,
            _FINGERPRINT_NAMES[sentence_objective],
            length,
            *(() if shares == (0.8, 0.1) else shares),  # plans with BERT's fractions omit them
        )
        self.fingerprint = hashlib.sha256(repr(said).encode()).hexdigest()[:16]
        self._cached: tuple[int, np.ndarray] = (0, self._labels(0))

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def pad(self) -> int:
        """The id of padding."""
        return self._ids[2]

    def most_masked(self, T: int) -> Int[np.ndarray, " texts"]:
        """Returns the largest number of masked tokens of each text in rows of ``T`` tokens."""
        plain = self.lengths - self._special
        share = np.rint(self._masking.mlm_probability * plain)
        return np.clip(share, 1, self._masking.room(T)).astype(np.int64)

    @property
    def non_padding_fraction(self) -> float:
        """The fraction of token positions that are not padding, if no part were replaced."""
        return self._plan.non_padding_fraction

    def needed(self, start: int = 0) -> list[BatchShape]:
        """The shapes, in the order in which the batches after ``start`` steps first need them."""
        return self._plan.needed(start if self._shuffle else 0)

    def padding(self, start: int = 0) -> list[PairBatch]:
        """Empty batches, one of every shape, in the order of :meth:`needed`."""
        return [PairBatch(np.full(rows, -1), T, 0) for rows, T, _ in self.needed(start)]

    def batch(self, step: int) -> PairBatch:
        """The rows of batch ``step``, counted from 0 over all epochs."""
        planned = self._plan.batch(step)
        epoch = step // self.steps_per_epoch if self._shuffle else 0
        return PairBatch(planned.indices, planned.S, epoch)

    def make(self, batch: PairBatch) -> dict[str, np.ndarray]:
        """Returns the arrays of one batch.

        Returns:
            ``tokens`` and ``types`` int32 ``[B T]``, ``lengths`` int32 ``[B]``;
            ``masked_positions`` and ``targets`` int32 ``[B P]`` with ``weights`` float32 ``[B P]``;
            and ``next_sentence_label`` int32 ``[B]``: 0 is "is next" (SOP: in order), 1 is not, -1
            without sentence pairs.
        """
        B, T = len(batch.indices), batch.T
        room = min(T - self._special, self._room)  # T may be rounded up beyond the longest text
        first, sep, pad = self._ids
        labels = self._epoch_labels(batch.epoch)
        tokens, types = np.full((B, T), pad, np.int32), np.zeros((B, T), np.int32)
        lengths, next_sentence = np.zeros(B, np.int32), np.full(B, -1, np.int32)
        allowed = np.zeros((B, T), bool)
        for row, text in enumerate(batch.indices):
            if text < 0:
                continue
            at = 0
            tokens[row, 0] = first
            parts = self._parts(int(text), batch.epoch, bool(labels[text]), room)
            for number, ids in enumerate(parts):
                start, at = at + 1, at + 1 + len(ids)
                tokens[row, start:at] = ids
                tokens[row, at] = sep
                allowed[row, start:at] = True
                types[row, start : at + 1] = number
            lengths[row] = at + 1
            if self.sentence_objective != "none":
                next_sentence[row] = labels[text]
        # The unknown token cannot be predicted.
        allowed &= np.isin(tokens, self._masking.plain)
        hidden = mask_tokens(tokens, allowed, self._masking, batch.indices, self._seed, batch.epoch)
        return hidden._asdict() | {
            "types": types,
            "lengths": lengths,
            "next_sentence_label": next_sentence,
        }

    def arrays(self, step: int) -> dict[str, np.ndarray]:
        """Returns the arrays of batch ``step``."""
        return self.make(self.batch(step))

    def _epoch_labels(self, epoch: int) -> np.ndarray:
        # One assignment of one tuple, so that threads never see an epoch without its labels.
        cached = self._cached
        if cached[0] != epoch:
            self._cached = cached = (epoch, self._labels(epoch))
        return cached[1]

    def _labels(self, epoch: int) -> np.ndarray:
        """1 for the texts, half of them, whose second part is not the next one."""
        count = len(self)
        labels = np.zeros(count, np.int32)
        if self.sentence_objective == "none":
            return labels
        order = shuffled(count, self._seed, _LABELS + epoch)
        if self.sentence_objective == "nsp":
            single = np.diff(self._texts.texts)[order] == 1
            order = np.concatenate([order[single], order[~single]])
            labels[order[: max(count // 2, int(single.sum()))]] = 1
        else:
            labels[order[: count // 2]] = 1
        return labels

    def _natural(self, room: int) -> np.ndarray:
        """The length of each text, including a second part for those that need one."""
        sizes = self._texts.lengths
        if self.sentence_objective != "nsp":
            return np.asarray(np.maximum(sizes, 1 if self.sentence_objective == "none" else 2))
        return np.where(np.diff(self._texts.texts) == 1, np.minimum(2 * sizes, room), sizes)

    def _parts(self, text: int, epoch: int, changed: bool, room: int) -> Sequence[np.ndarray]:
        """The one or two parts of a text."""
        span = self._texts.span
        start, stop = map(int, self._texts.texts[text : text + 2])
        ids = span(start, stop)
        if self.sentence_objective == "none":
            return [ids]
        draw, other = uniform(2 * text + np.arange(2), self._seed, _DRAWS + epoch)
        if stop - start > 1:
            cut = start + 1 + int(draw * (stop - start - 1))
            parts = [span(start, cut), span(cut, stop)]
        elif self.sentence_objective == "sop" and len(ids) > 1:
            at = 1 + int(draw * (len(ids) - 1))
            parts = [ids[:at], ids[at:]]
        else:
            parts = [ids, ids]
        if self.sentence_objective == "sop":
            return parts[::-1] if changed else parts
        return [parts[0], self._foreign(start, other, room - len(parts[0]))] if changed else parts

    def _foreign(self, unit: int, draw: float, room: int) -> np.ndarray:
        """Sentences of a document other than that of ``unit``; the first is cut if too long."""
        begins, units = self._texts.begins, self._texts.units
        here = int(units[unit, 0])
        low, high = int(begins[here]), int(begins[here + 1])
        number = int(draw * (len(units) - (high - low)))
        start = number if number < low else number + high - low
        end = int(begins[int(units[start, 0]) + 1])
        stop, size = start, 0
        while stop < end and size + units[stop, 1] <= room:
            size += int(units[stop, 1])
            stop += 1
        return self._texts.span(start, max(stop, start + 1))[:room]


@dataclasses.dataclass(frozen=True, eq=False)
class PackedTexts:
    """The texts of each row of a batch, -1 for none, and the epoch of their masks."""

    texts: Int[np.ndarray, "B N"]
    epoch: int

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, rows: Int[np.ndarray, " b"]) -> "PackedTexts":
        """Selects rows, such as the rows of one process."""
        return PackedTexts(self.texts[rows], self.epoch)


class PackedPretrainingPlan(RowsPlan[PackedTexts]):
    """The texts of a :class:`BertPretrainingPlan` packed into rows, where they do not attend.

    A row holds several texts, and almost no padding (Warner et al. 2024, section 2.2, where rows
    are one sequence). Each text is masked like in a row of its own: its masks, and so its loss, do
    not depend on the texts around it. Packing happens once, best fit decreasing as in
    ``PackingPlan``; the order of rows is reshuffled for every epoch.
    """

    def __init__(
        self, texts: BertPretrainingPlan, batching: Batching, *, length: int, shuffle: bool = True
    ):
        """Makes a plan for texts.

        Args:
            texts: The texts, without sentence pairs.
            batching: Sizes of batches; rows have ``length`` tokens, rounded up to its multiple.
            length: Longest text in tokens.
            shuffle: False keeps the order of rows and makes the same choices in every epoch.

        Raises:
            ConfigError: There are sentence pairs, or the budget has no room for enough rows.
        """
        if texts.sentence_objective != "none":
            raise ConfigError(
                f"masking.sentence_objective is {texts.sentence_objective}: with training.layout "
                f"packed it is none, since a pair is told from the first token of a row"
            )
        multiple = batching.pad_to_multiple_of or 1
        T = -(-length // multiple) * multiple
        rows = rows_within(batching.max_tokens, T, batching.required_batch_size_multiple)
        self._texts = texts
        self._in_rows, self._offsets = pack(texts.lengths, T, batching.seed)
        super().__init__(len(self._offsets) - 1, T, rows, batching.seed, shuffle)
        masked = np.add.reduceat(texts.most_masked(T)[self._in_rows], self._offsets[:-1])
        self._room = -(-int(masked.max()) // 8) * 8
        said = ("packed", texts.fingerprint, rows, T, shuffle)
        self.fingerprint = hashlib.sha256(repr(said).encode()).hexdigest()[:16]

    def make(self, batch: PackedTexts) -> dict[str, np.ndarray]:
        """Returns the arrays of one batch.

        Returns:
            Those of :meth:`BertPretrainingPlan.make`, with ``segments`` and ``positions`` int32
            ``[B T]``: the text of each token from 1 on, 0 for padding, and its place in the text.
        """
        (B, T), P = (len(batch), self.shapes[0].T), self._room
        row, column = np.nonzero(batch.texts >= 0)
        made = self._texts.make(PairBatch(batch.texts[row, column], T, batch.epoch))
        lengths, real = made["lengths"], np.arange(T) < made["lengths"][:, None]
        starts = _within_rows(row, lengths)
        text, place = np.nonzero(real)
        spread = _Spread((B, T), row[text], starts[text] + place)
        masked, nth = np.nonzero(made["weights"])
        counts = np.bincount(masked, minlength=len(row))
        chosen = _Spread((B, P), row[masked], _within_rows(row, counts)[masked] + nth)
        totals = np.bincount(row, lengths, minlength=B).astype(np.int32)
        return {
            "tokens": spread(made["tokens"][real], fill=self._texts.pad),
            "types": np.zeros((B, T), np.int32),
            "lengths": totals,
            "segments": spread(column[text] + 1),
            "positions": spread(place),
            "masked_positions": chosen(starts[masked] + made["masked_positions"][masked, nth]),
            "targets": chosen(made["targets"][masked, nth]),
            "weights": chosen(made["weights"][masked, nth], dtype=np.float32),
            "next_sentence_label": np.full(B, -1, np.int32),
        }

    def arrays(self, step: int) -> dict[str, np.ndarray]:
        """Returns the arrays of batch ``step``."""
        return self.make(self.batch(step))

    def _weight(self) -> int:
        return int(self._texts.lengths.sum())

    def _rows(self, indices: np.ndarray, epoch: int) -> PackedTexts:
        places, valid = places_of(self._offsets, indices)
        return PackedTexts(
            np.where(valid, self._in_rows[places], -1), epoch if self._shuffle else 0
        )


def _within_rows(row: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns where each part begins in its row; parts are in the order of rows."""
    before = np.cumsum(sizes) - sizes
    within: np.ndarray = before - before[np.searchsorted(row, row)]
    return within


class _Spread(NamedTuple):
    """Arrays of a shape with values at some rows and columns."""

    shape: tuple[int, int]
    row: np.ndarray
    column: np.ndarray

    def __call__(self, values: np.ndarray, *, fill: int = 0, dtype: type = np.int32) -> np.ndarray:
        found: np.ndarray = np.full(self.shape, fill, dtype)
        found[self.row, self.column] = values
        return found
