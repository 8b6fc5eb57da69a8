"""Checks of a tokenizer on the texts of a run: unknown tokens, and targets changed by decoding."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from transformer_jax.core.errors import DataError
from transformer_jax.core.task_progress import log
from transformer_jax.data.coverage import Coverage, text_coverage
from transformer_jax.data.preparation import compose
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.evaluation.word_splitting import main_script

__all__ = ["Side", "check_restored", "describe_unknown", "log_scored", "unknown_share"]

_WARNED, _REFUSED = 0.05, 0.5  # fractions
_TEMPLATE = "the parts of a template around the texts"
_SAMPLED = 500  # targets to decode
_CHUNK = 1 << 24  # ids to count at a time


class Side(NamedTuple):
    """Texts of one side of a data set.

    Attributes:
        name: The name of the side, such as ``source``; empty if there is only one.
        texts: The texts; or those of each part, such as a direction, by its name.
        tokenizer: The tokenizer of the side.
        ids: Ids of all texts, with what a template adds, if they are there.
    """

    name: str
    texts: Iterable[str] | Mapping[str, Sequence[str]]
    tokenizer: Tokenizer
    ids: Integer[np.ndarray, " total"] | None = None

    def coverage(self) -> dict[str, Coverage]:
        """Returns how much of the texts the tokenizer knows, by the name of the part."""
        parts = self.texts if isinstance(self.texts, Mapping) else {"": self.texts}
        without = self.ids is not None and not self.unknown_tokens
        return {
            name: text_coverage(texts, self.tokenizer, without_unknown=without)
            for name, texts in parts.items()
        }

    @property
    def unknown_tokens(self) -> float:
        """The fraction of unknown tokens, as far as ids are there."""
        return 0.0 if self.ids is None else unknown_share(self.ids, self.tokenizer)


def unknown_share(ids: Integer[np.ndarray, " total"], tokenizer: Tokenizer) -> float:
    """Returns the fraction of unknown tokens.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("characters", ["ab"], 6)
        >>> unknown_share(np.array([*tokenizer.encode("abcd"), tokenizer.eos]), tokenizer)
        0.5
    """
    if tokenizer.unk is None:
        return 0.0
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    for start in range(0, len(ids), _CHUNK):
        part = np.bincount(ids[start : start + _CHUNK], minlength=len(counts))
        counts += part[: len(counts)]
    unknown = int(counts[tokenizer.unk])
    silent = [id for id in tokenizer.special_ids if id != tokenizer.unk]
    total = int(counts.sum() - counts[silent].sum())
    return unknown / total if total else 0.0


def describe_unknown(name: str, *sides: Side) -> str:
    """Returns the fraction of unknown text of each side, to append to the summary of a data set.

    Above 5 % in a part of a side, logs a warning with examples.

    Args:
        name: The data set, for messages.
        sides: The sides of the data set.

    Raises:
        DataError: More than half of the text of a part is unknown, unless the tokenizer allows it.
    """
    found = [side.coverage() for side in sides]
    if not any(part.unknown for parts in found for part in parts.values()):
        tokens = [round(1000 * side.unknown_tokens) for side in sides]
        found = [{"": Coverage(1000, unknown, (_TEMPLATE,))} for unknown in tokens]
    for side, parts in zip(sides, found, strict=True):
        for part, covered in parts.items():
            where = " of ".join(filter(None, (side.name and f"the {side.name}", part, name)))
            _check(covered, where, allowed="unknown" in side.tokenizer.allowed)
    shares = [sum(parts.values(), Coverage()).share for parts in found]
    shown = (f"{side.name} {one:.1%}".lstrip() for side, one in zip(sides, shares, strict=True))
    return f", unknown text: {', '.join(shown)}"


def _check(found: Coverage, where: str, *, allowed: bool) -> None:
    """Warns of unknown text, or refuses it."""
    if found.share <= _WARNED:
        return
    examples = ", ".join(one if one == _TEMPLATE else repr(one) for one in found.examples)
    said = (
        f"{found.share:.1%} of the text of {where} is unknown to the tokenizer (such as {examples})"
    )
    if found.share > _REFUSED and not allowed:
        raise DataError(
            f"{said}: choose a tokenizer that knows it (--tokenizer.kind bpe knows every "
            f"character; a run with init_from keeps the tokenizer of its start, and learns the "
            f"characters and subwords of new text with --tokenizer.extend-by 1000), or allow it "
            f"with --tokenizer.allow-unknown"
        )
    log(f"warning: {said}: the model cannot read or write it")


def log_scored(name: str, count: str, tokenizer: Tokenizer, **sides: Sequence[str]) -> None:
    """Logs the fraction of unknown text in the evaluation texts of a trained model.

    Args:
        name: The data set.
        count: Its size, such as ``12 pairs``.
        tokenizer: The tokenizer of the run.
        sides: Texts by the name of their side; ``target`` is the output of the model, and ``text``
            is a single side.
    """
    tokenizer = tokenizer.allowing("unknown")
    made = [
        Side(
            "" if [*sides] == ["text"] else side,
            texts,
            tokenizer.targets if side == "target" else tokenizer,
        )
        for side, texts in sides.items()
    ]
    log(f"{name}: {count}{describe_unknown(name, *made)}")


def check_restored(name: str, targets: Sequence[str], tokenizer: Tokenizer) -> None:
    """Checks that decoding restores targets, except for repeated blanks.

    If more than 5 % differ, logs a warning with an example. Targets with unknown tokens are
    skipped: :func:`describe_unknown` counts them.

    Args:
        name: The data set, for messages.
        targets: The targets, of which a sample is decoded.
        tokenizer: The tokenizer of the run.

    Raises:
        DataError: Decoding changes more than half of the targets, beyond the tokenizer's
            normalization (such as lower case) and blanks between words of scripts without blanks,
            unless the tokenizer allows it.
    """
    sample = targets[:: max(1, len(targets) // _SAMPLED)]
    rows = tokenizer.targets.encode_batch(sample)
    known = [
        (text, ids) for text, ids in zip(sample, rows, strict=True) if tokenizer.unk not in ids
    ]
    texts = tokenizer.decode_batch([ids for _, ids in known])
    others = [
        (text, made)
        for (text, _), made in zip(known, texts, strict=True)
        if _with_single_blanks(made) != _with_single_blanks(text)
    ]
    share = len(others) / len(known) if known else 0.0
    if share <= _WARNED:
        return
    lost = [pair for pair in others if _is_lost(*pair, tokenizer.targets)]
    text, made = min(lost or others, key=lambda pair: len(pair[0]))
    said = (
        f"the tokenizer does not restore {share:.1%} of the targets of {name}: {text[:80]!r} "
        f"becomes {made[:80]!r}"
    )
    if len(lost) > _REFUSED * len(known) and "lossy" not in tokenizer.allowed:
        raise DataError(
            f"{said}: choose a tokenizer that restores them (--tokenizer.kind bpe restores every "
            f"text; a run with init_from keeps that of its start), or allow this with "
            f"--tokenizer.allow-lossy"
        )
    log(f"warning: {said}")


def _with_single_blanks(text: str) -> str:
    return " ".join(compose(text).split())


def _is_lost(text: str, made: str, tokenizer: Tokenizer) -> bool:
    """Returns whether a decoded text differs from the original by more than normalization.

    Blanks are ignored in scripts without blanks.
    """
    original, decoded = (tokenizer.normalize(compose(one)) for one in (text, made))
    if main_script([text]) in ("han", "kana", "unspaced"):
        return "".join(original.split()) != "".join(decoded.split())
    return _with_single_blanks(original) != _with_single_blanks(decoded)
