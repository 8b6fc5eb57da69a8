"""Fit of a tokenizer and the texts of a run: unknown tokens, and targets that decode otherwise."""

import contextlib
import contextvars
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from transformer_jax.core.errors import DataError
from transformer_jax.core.task_progress import log
from transformer_jax.data.preparation import compose
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.evaluation.words import main_script

__all__ = ["Side", "allowing", "check_restored", "describe_unknown", "log_scored", "unknown_share"]

_WARNED, _REFUSED = 0.05, 0.5  # shares
_SHOWN = 5  # examples
_SEARCHED = 2000  # texts that are searched for examples
_BEGINNING = 1000  # characters of each
_SAMPLED = 500  # targets that are decoded again
_CHUNK = 1 << 24  # ids counted at a time

_allowed: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar(
    "allowed", default=frozenset()
)


class Side(NamedTuple):
    """Texts of one side of a data set, and what they became.

    Attributes:
        name: The name of the side, such as ``source``; empty where there is one side.
        ids: Ids of all its texts.
        texts: The texts; only read to name examples.
        tokenizer: The tokenizer that made the ids.
    """

    name: str
    ids: Integer[np.ndarray, " total"]
    texts: Iterable[str]
    tokenizer: Tokenizer


@contextlib.contextmanager
def allowing(*, unknown: bool = False, lossy: bool = False) -> Iterator[None]:
    """Context in which tasks may train on data that they refuse otherwise.

    Args:
        unknown: Whether more than half of the tokens may be unknown.
        lossy: Whether more than half of the targets may be decoded as other texts.
    """
    names = {"unknown": unknown, "lossy": lossy}
    token = _allowed.set(frozenset(name for name, given in names.items() if given))
    try:
        yield
    finally:
        _allowed.reset(token)


def unknown_share(ids: Integer[np.ndarray, " total"], tokenizer: Tokenizer) -> float:
    """Returns the share of unknown tokens among the tokens of text.

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
    """Returns the share of unknown tokens of each side, as the end of a line about a data set.

    Above 5 % it logs a warning that names examples.

    Args:
        name: The data set, for messages.
        sides: Its sides.

    Raises:
        DataError: More than half of the tokens of a side are unknown, and that is not allowed.
    """
    shares = [(side, unknown_share(side.ids, side.tokenizer)) for side in sides]
    for side, share in shares:
        if share <= _WARNED:
            continue
        shown = ", ".join(map(repr, _examples(side))) or "what a template puts around the texts"
        where = f"the {side.name} of {name}" if side.name else name
        said = (
            f"{share:.1%} of the tokens of {where} are unknown to the tokenizer (such as {shown})"
        )
        if share > _REFUSED and "unknown" not in _allowed.get():
            raise DataError(
                f"{said}: choose a tokenizer that knows them (--tokenizer.kind bpe knows every "
                f"character), or train on them as they are with --tokenizer.allow-unknown"
            )
        log(f"warning: {said}: the model cannot read or write them")
    parts = (f"{side.name} {share:.1%}".lstrip() for side, share in shares)
    return f", unknown tokens: {', '.join(parts)}"


def log_scored(name: str, count: str, tokenizer: Tokenizer, **sides: Sequence[str]) -> None:
    """Logs the share of unknown tokens of texts that a trained model is scored on.

    Args:
        name: The data set.
        count: Its size, such as ``12 pairs``.
        tokenizer: The tokenizer of the run.
        sides: Texts by the name of their side; those of ``target`` are what the model writes, and
            ``text`` is the only side.
    """
    made = []
    for side, texts in sides.items():
        splits = tokenizer.targets if side == "target" else tokenizer
        ids = itertools.chain.from_iterable(splits.encode_batch(texts))
        label = "" if side == "text" else side
        made.append(Side(label, np.fromiter(ids, np.int64), texts, splits))
    with allowing(unknown=True):
        log(f"{name}: {count}{describe_unknown(name, *made)}")


def _examples(side: Side) -> list[str]:
    """The first different texts of unknown tokens."""
    found: dict[str, None] = {}
    texts = (text[:_BEGINNING] for text in itertools.islice(side.texts, _SEARCHED))
    while len(found) < _SHOWN and (chunk := list(itertools.islice(texts, 100))):
        for text, (ids, spans) in zip(chunk, side.tokenizer.encode_spans(chunk), strict=True):
            for id, (start, end) in zip(ids, spans, strict=True):
                if id == side.tokenizer.unk and start < end:
                    found.setdefault(text[start : min(end, start + 20)].strip() or text[start:end])
    return list(found)[:_SHOWN]


def check_restored(name: str, targets: Sequence[str], tokenizer: Tokenizer) -> None:
    """Checks that the tokens of targets are decoded as the targets, but for blanks in a row.

    Above 5 % of others it logs a warning with an example. Targets with unknown tokens are left
    out: :func:`describe_unknown` counts these.

    Args:
        name: The data set, for messages.
        targets: Its targets, of which a sample is decoded.
        tokenizer: The tokenizer of the run.

    Raises:
        DataError: More than half of the targets are decoded as other texts, which neither the
            tokenizer's normalization (such as lower case) nor blanks between the words of a
            script without blanks explain, and that is not allowed.
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
    if len(lost) > _REFUSED * len(known) and "lossy" not in _allowed.get():
        raise DataError(
            f"{said}: choose a tokenizer that restores them (--tokenizer.kind bpe restores every "
            f"text), or train on them as they are with --tokenizer.allow-lossy"
        )
    log(f"warning: {said}")


def _with_single_blanks(text: str) -> str:
    return " ".join(compose(text).split())


def _is_lost(text: str, made: str, tokenizer: Tokenizer) -> bool:
    """Returns whether a decoded text differs from its original by more than normalization.

    Blanks in texts of scripts without blanks do not count.
    """
    original, decoded = (tokenizer.normalize(compose(one)) for one in (text, made))
    if main_script([text]) in ("han", "kana", "unspaced"):
        return "".join(original.split()) != "".join(decoded.split())
    return _with_single_blanks(original) != _with_single_blanks(decoded)
