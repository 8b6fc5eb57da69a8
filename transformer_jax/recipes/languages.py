"""Languages of translators: the tags of a run with named pairs, and checks of directions."""

import dataclasses
from typing import TYPE_CHECKING, TypeVar

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.task_progress import log
from transformer_jax.data.added_tokens import tag_languages
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction, LanguageTags, listed
from transformer_jax.data.pair_files import named_files
from transformer_jax.data.sources import PairData
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.recipes.settings import RunConfig

if TYPE_CHECKING:
    from transformer_jax.recipes.start import Start

Pairs = TypeVar("Pairs", bound=RunConfig)  # the settings of a run on pairs

__all__ = ["check_default", "check_direction", "with_directions", "with_tags"]

_NONE = LanguageTags({}, (), (), (), (), (), frozenset())  # before any training


def with_directions(run: Pairs, start: "Start | None") -> Pairs:
    """Returns a run with the tags of its languages among its special tokens.

    Args:
        run: The settings.
        start: What the run starts from, or None.

    Raises:
        ConfigError: The start has languages, but the pairs have no names or tags are placed
            differently; or validation or test pairs have an untrained language.
    """
    known = None if start is None else start.tokenizer.languages
    if not run.data.several:
        if start is not None:
            remedy = "name the pairs, --data.pairs de-en=FILE"
            check_default(known, run.init_from, remedy)
        return run
    data, trained = run.data, _trained(run.data)
    if start is None:
        settings = dataclasses.replace(data.languages, tags=data.languages.tags or "source")
        data = dataclasses.replace(data, languages=settings)
        names = dict.fromkeys(one for way in trained for one in way if one)
        planned = _NONE.trained_on(trained, dict.fromkeys(names, 0))
    else:
        tokenizer = tag_languages(start.tokenizer, trained, data.languages.tags)
        assert tokenizer.languages is not None
        planned = tokenizer.languages
    for split in ("valid", "test"):
        pairs = getattr(data, split).pairs
        for direction in named_files(pairs, f"data.{split}.pairs") if pairs else ():
            check_direction(direction, planned, f"data.{split}.pairs")
    new = [planned.token(one) for one in planned.tags if known is None or one not in known.tags]
    added = tuple(dict.fromkeys((*run.tokenizer.add_special_tokens, *new)))
    tokens = dataclasses.replace(run.tokenizer, add_special_tokens=added)
    return dataclasses.replace(run, data=data, tokenizer=tokens)


def with_tags(data: PairData, tokenizer: Tokenizer) -> Tokenizer:
    """Adds the languages of named pairs to a tokenizer."""
    if not data.several:
        return tokenizer
    return tag_languages(tokenizer, _trained(data), data.languages.tags)


def _trained(data: PairData) -> list[Direction]:
    """Returns the trained directions of named pairs; directions of copies are last."""
    assert isinstance(data.pairs, tuple)
    named = list(named_files(data.pairs, "data.pairs"))
    if not data.languages.autoencoding:
        return named
    names = dict.fromkeys(one for way in named for one in way)
    return named + [Direction(one, one) for one in names]


def check_default(languages: LanguageTags | None, start: str | None, remedy: str) -> None:
    """Refuses texts without languages for a start that has no default direction.

    Args:
        languages: The languages of the start; None translates in one direction.
        start: Path of the start.
        remedy: The advice in the message.

    Raises:
        ConfigError: The direction is missing.
    """
    if languages is None:
        return
    try:
        languages.frame(DEFAULT_DIRECTION)
    except ConfigError:
        raise ConfigError(
            f"init_from: {start} translates between {listed(languages.languages)}: {remedy}"
        ) from None


def check_direction(direction: Direction, languages: LanguageTags, where: str) -> None:
    """Refuses a direction with untrained languages; logs a note about a zero-shot direction.

    Args:
        direction: The direction of some pairs.
        languages: The languages of the translator.
        where: The setting or flag that names the direction.

    Raises:
        ConfigError: No training pair has the language on this side.
    """
    for side, name in direction._asdict().items():
        allowed = getattr(languages, f"{side}s") or languages.languages
        if name is not None and name not in allowed:
            raise ConfigError(
                f"{where}: {direction}: {name} is not a {side} language of any training pair; "
                f"these are {listed(allowed)}"
            )
    if not languages.is_trained(direction):
        log(f"{where}: {direction} is zero-shot: no training pair has this direction")
