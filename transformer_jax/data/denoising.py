"""Texts from documents with noise in the source, resampled for every epoch (Lewis et al. 2020)."""

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Annotated

import numpy as np
from jaxtyping import Int

from transformer_jax.core.config_fields import Configuration, Range, Share
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.data import noise as noises
from transformer_jax.data.plan import Batching, BatchShape
from transformer_jax.data.sentences import SentenceStore, SentenceTexts
from transformer_jax.data.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformer_jax.data.loader import Batch

__all__ = ["DenoisingPlan", "NoiseConfig", "NoisyBatch", "check_tokenizer", "num_sentinels"]


@dataclasses.dataclass(frozen=True)
class NoiseConfig(Configuration, group="noise"):
    """The noise that corrupts a text, in this order; the target is the original text."""

    sentence_permutation: Share = 1.0  # probability of shuffling the sentences
    document_rotation: Share = 0.0  # probability of rotating the text to begin at a random token
    token_deletion: Share = 0.0  # fraction of the tokens to delete
    token_masking: Share = 0.0  # fraction of the tokens to replace by the mask token
    text_infilling: Share = 0.3  # fraction of the tokens in spans replaced by one mask token each
    # T5, instead of all above: fraction of the tokens in spans replaced by sentinels. The target is
    # these spans.
    span_corruption: Share = 0.0
    # Mean length of spans, for text infilling (Poisson) and span corruption.
    mean_span_length: Annotated[float, Range(1, 1000)] = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = [f.name for f in dataclasses.fields(self) if f.name != "mean_span_length"]
        given = [name for name in shares if getattr(self, name)]
        if not given:
            raise ConfigError("noise is 0 everywhere: there would be nothing to restore")
        if self.span_corruption and len(given) > 1:
            raise ConfigError(
                f"noise.span_corruption is {self.span_corruption}, together with noise.{given[0]} "
                f"{getattr(self, given[0])}: keep one of them, and set the others to 0"
            )

    @property
    def masks(self) -> bool:
        """Returns whether the noise needs a mask token."""
        return self.token_masking > 0 or self.text_infilling > 0


@dataclasses.dataclass(frozen=True, eq=False)
class NoisyBatch:
    """The texts of a batch: indices into the plan (-1 for none), padded lengths, and epoch."""

    indices: Int[np.ndarray, " B"]
    S: int
    T: int
    epoch: int

    def __len__(self) -> int:
        return len(self.indices)

    def select(self, rows: Int[np.ndarray, " b"]) -> "NoisyBatch":
        """Selects rows, such as the rows of one process."""
        return NoisyBatch(self.indices[rows], self.S, self.T, self.epoch)


class DenoisingPlan:
    """Texts of up to ``length`` tokens from documents: noisy sources, original targets.

    A text is as many sentences of a document as fit (``SentenceTexts``), and texts are bucketed by
    length (``BucketPlan``). The noise of a text depends only on the seed, the epoch and the index
    of the text, so a batch is a pure function of the step.
    """

    shapes: list[BatchShape]
    steps_per_epoch: int
    fingerprint: str

    def __init__(
        self,
        store: SentenceStore,
        tokenizer: Tokenizer,
        noise: NoiseConfig,
        batching: Batching,
        *,
        length: int,
        shuffle: bool = True,
    ):
        """Makes a plan for the documents of ``store``.

        Args:
            store: The sentences.
            tokenizer: The tokenizer that made them, with the tokens that the noise needs.
            noise: The noise to apply.
            batching: Sizes of batches; its seed determines all random choices.
            length: Largest number of tokens in a source and in a target, including special tokens.
            shuffle: False keeps the order of the texts, with the same noise in every epoch.

        Raises:
            ConfigError: The tokenizer lacks tokens, or the length has no room for a text.
        """
        room = _room(tokenizer, noise, length)
        check_tokenizer(tokenizer, noise, length)
        self._tokenizer, self._noise = tokenizer, noise
        self._sentinels = np.array(tokenizer.sentinels, np.int32)
        self._seed, self._shuffle = batching.seed, shuffle
        self._texts = SentenceTexts.of(store, limit=room, room=room)
        lengths = self._texts.lengths
        targets = lengths + len(tokenizer.target_prefix_ids) + 1
        sources = lengths + len(tokenizer.prefix_ids) + len(tokenizer.suffix_ids)
        if noise.span_corruption:
            spans, hidden = np.array([_num_spans(int(n), noise) for n in lengths]).T
            sources, targets = sources - hidden + spans, targets - lengths + hidden + spans + 1
        self._plan = batching.plan(sources, targets, usual=8, shuffle=shuffle)
        self.shapes, self.steps_per_epoch = self._plan.shapes, self._plan.steps_per_epoch
        said = (self._plan.fingerprint, dataclasses.astuple(noise), length)
        self.fingerprint = hashlib.sha256(repr(said).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def non_padding_fraction(self) -> float:
        """The fraction of token positions that are not padding, if noise shortened no source."""
        return self._plan.non_padding_fraction

    def needed(self, start: int = 0) -> list[BatchShape]:
        """The shapes, in the order in which the batches after ``start`` steps first need them."""
        return self._plan.needed(start if self._shuffle else 0)

    def padding(self, start: int = 0) -> list[NoisyBatch]:
        """Empty batches, one of every shape, in the order of :meth:`needed`."""
        return [NoisyBatch(np.full(rows, -1), S, T, 0) for rows, S, T in self.needed(start)]

    def batch(self, step: int) -> NoisyBatch:
        """The rows of batch ``step``, counted from 0 over all epochs."""
        planned = self._plan.batch(step)
        epoch = step // self.steps_per_epoch if self._shuffle else 0
        return NoisyBatch(planned.indices, planned.S, planned.T, epoch)

    def make(self, batch: NoisyBatch) -> "Batch":
        """Returns the arrays of one batch, as for sentence pairs (``loader.make_batch``)."""
        B, pad = len(batch.indices), self._tokenizer.pad
        source, target = (np.full((B, width), pad, np.int32) for width in (batch.S, batch.T))
        source_lengths, lengths = np.zeros((2, B), np.int32)
        for row, text in enumerate(batch.indices):
            if text < 0:
                continue
            noisy, whole = self.pair(int(text), batch.epoch)
            source_lengths[row], lengths[row] = len(noisy), len(whole)
            source[row, : len(noisy)], target[row, : len(whole)] = noisy, whole
        inputs = {"source": source, "source_lengths": source_lengths}
        return {"inputs": inputs, "target": target, "lengths": lengths}

    def pair(
        self, text: int, epoch: int
    ) -> tuple[Int[np.ndarray, " source"], Int[np.ndarray, " target"]]:
        """The source and the target of a text in an epoch, with special tokens."""
        rng = np.random.default_rng((self._seed, epoch, text))
        parts = [part.astype(np.int32) for part in self._texts.parts(text)]
        if self._noise.span_corruption:
            noisy, target = noises.span_corruption(
                np.concatenate(parts),
                rng,
                sentinels=self._sentinels,
                probability=self._noise.span_corruption,
                mean_length=self._noise.mean_span_length,
            )
        else:
            target, noisy = np.concatenate(parts), self._noisy(parts, rng)
        before, after = self._tokenizer.prefix_ids, self._tokenizer.suffix_ids
        source = np.concatenate([np.array(before, np.int32), noisy, np.array(after, np.int32)])
        first, last = self._tokenizer.target_prefix_ids, self._tokenizer.eos
        return source, np.array([*first, *target, last], np.int32)

    def _noisy(
        self, parts: list[Int[np.ndarray, " _"]], rng: np.random.Generator
    ) -> Int[np.ndarray, " m"]:
        """Applies BART's noise to the sentences of a text."""
        noise, mask = self._noise, self._tokenizer.mask or 0
        if rng.random() < noise.sentence_permutation:
            parts = noises.sentence_permutation(parts, rng)
        tokens = np.concatenate(parts)
        if rng.random() < noise.document_rotation:
            tokens = noises.document_rotation(tokens, rng)
        if noise.token_deletion:
            tokens = noises.token_deletion(tokens, rng, probability=noise.token_deletion)
        if noise.token_masking:
            tokens = noises.token_masking(tokens, rng, mask=mask, probability=noise.token_masking)
        if noise.text_infilling:
            tokens = noises.text_infilling(
                tokens,
                rng,
                mask=mask,
                probability=noise.text_infilling,
                mean_length=noise.mean_span_length,
            )
        return tokens


def num_sentinels(noise: NoiseConfig, length: int) -> int:
    """Returns the number of sentinels for texts of up to ``length`` tokens; 0 if unused.

    Example:
        >>> t5 = NoiseConfig(0.0, text_infilling=0.0, span_corruption=0.15)
        >>> num_sentinels(t5, 512), num_sentinels(NoiseConfig(), 512)
        (27, 0)
    """
    if not noise.span_corruption:
        return 0
    return 1 + max(_num_spans(n, noise)[0] for n in range(length + 1))


def check_tokenizer(tokenizer: Tokenizer, noise: NoiseConfig, length: int) -> None:
    """Refuses a tokenizer without the tokens that the noise needs.

    Raises:
        ConfigError: It has no mask token, or too few sentinels; or it splits targets differently
            from sources, although here one text is both; or it has languages, which texts here
            lack.
    """
    if tokenizer.languages is not None:
        raise ConfigError(
            "the tokenizer has languages, like those of NLLB, M2M100 and mBART-50, but texts to "
            "restore have none: start from a model without, or train with named --data.pairs"
        )
    if tokenizer.targets is not tokenizer:
        raise ConfigError(
            "the tokenizer has a model for sources and another one for targets (Marian's "
            "source.spm and target.spm), but a text to restore is both: start from a model with a "
            "single one"
        )
    if noise.masks and tokenizer.mask is None:
        raise ConfigError(
            "the tokenizer has no mask token: train one with this run, give a tokenizer.json that "
            "has <mask> or [MASK], or start a model of spans (T5) as the run t5-mini"
        )
    needed = num_sentinels(noise, length)
    if needed > len(tokenizer.sentinels):
        raise ConfigError(
            f"noise.span_corruption {noise.span_corruption} with texts of {plural(length, 'token')}"
            f" needs {plural(needed, 'sentinel')}, and the tokenizer has "
            f"{len(tokenizer.sentinels)} (<extra_id_0> and so on): train one with this run, or "
            f"lower training.sequence_length"
        )


def _num_spans(n: int, noise: NoiseConfig) -> tuple[int, int]:
    return noises.num_spans(
        n, probability=noise.span_corruption, mean_length=noise.mean_span_length
    )


def _room(tokenizer: Tokenizer, noise: NoiseConfig, length: int) -> int:
    """The largest number of tokens whose source and target have at most ``length`` tokens."""
    around = len(tokenizer.prefix_ids) + len(tokenizer.suffix_ids)
    # A target of spans may have one sentinel more than it hides tokens, one at its end, and EOS.
    own = len(tokenizer.target_prefix_ids)
    room = length - max(around, own + (3 if noise.span_corruption else 1))
    if room < 1:
        raise ConfigError(
            f"training.sequence_length is {length}: a text needs at least {length - room + 1}"
        )
    return room
