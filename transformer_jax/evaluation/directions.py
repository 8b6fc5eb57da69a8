"""Scores of multilingual translators: by direction, direct and through a pivot."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypedDict, Unpack

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.data.languages import Direction, LanguageTags
from transformer_jax.evaluation.bleu import BleuScores, translation_scores
from transformer_jax.evaluation.language_identification import LanguageIdentifier, off_target_rate

__all__ = ["HEAD", "DirectionScores", "TranslateTexts", "Way", "choose_pivot", "score_direction"]

TranslateTexts = Callable[[Sequence[str], Direction], list[str]]

HEAD = ("direction", "way", "", "sacreBLEU", "chrF", "exact", "off-target", "identifier")


class Way(NamedTuple):
    """A way to translate a direction.

    Attributes:
        name: ``direct``, through a ``pivot`` language, or ``supervised``: direct by another run,
            which was trained on the direction.
        by: The pivot language, or the other run.
        trained: Whether the model was trained on the direction, or on both steps through the pivot;
            None if unknown.
    """

    name: Literal["direct", "pivot", "supervised"] = "direct"
    by: str = ""
    trained: bool | None = None

    def legs(self, direction: Direction) -> list[Direction]:
        """Returns the directions of successive translations.

        Example:
            >>> [str(leg) for leg in Way("pivot", "en").legs(Direction("de", "cs"))]
            ['de-en', 'en-cs']
        """
        if self.name != "pivot":
            return [direction]
        return [Direction(direction.source, self.by), Direction(self.by, direction.target)]

    def __str__(self) -> str:
        return f"{self.name} {self.by}".rstrip()


DIRECT = Way()


@dataclasses.dataclass(frozen=True)
class DirectionScores:
    """The scores of one direction and way.

    Attributes:
        direction: The languages.
        way: The way.
        scores: SacreBLEU and chrF.
        exact_match: The fraction of translations equal to their reference, 0 to 1.
        off_target: The fraction of translations identified as a different language; None without an
            identifier of the language.
        identified: The accuracy of the identifier on held-out texts of the target language; None
            like ``off_target``.
    """

    direction: Direction
    way: Way
    scores: BleuScores
    exact_match: float
    off_target: float | None
    identified: float | None

    def to_dict(self) -> dict[str, Json]:
        """Returns the scores by name."""
        return {
            "direction": str(self.direction),
            "way": self.way.name,
            "by": self.way.by,
            "trained": self.way.trained,
            **self.scores.to_dict(),
            "exact_match": self.exact_match,
            "off_target": self.off_target,
            "identifier_accuracy": self.identified,
        }

    def cells(self) -> tuple[str, ...]:
        """Returns the cells of a row of a table with the header :data:`HEAD`."""
        share = lambda value: "–" if value is None else f"{value:.1%}"
        kinds = {True: "trained", False: "zero-shot", None: ""}
        return (
            str(self.direction),
            str(self.way),
            kinds[self.way.trained],
            f"{self.scores.bleu:.1f}",
            f"{self.scores.chrf:.1f}",
            *map(share, (self.exact_match, self.off_target, self.identified)),
        )


class ScoreSettings(TypedDict, total=False):
    """Settings of :func:`.translation_scores`."""

    lowercase: bool
    tokenize: str | None


def score_direction(
    translate: TranslateTexts,
    pairs: tuple[Sequence[str], Sequence[str]],
    direction: Direction,
    way: Way = DIRECT,
    *,
    identify: LanguageIdentifier | None = None,
    **settings: Unpack[ScoreSettings],
) -> DirectionScores:
    """Returns the scores of translations of texts in one direction.

    Args:
        translate: Function from texts and a direction to translations.
        pairs: Sources and references.
        direction: The languages.
        way: The way to translate.
        identify: A language identifier.
        **settings: Settings of :func:`.translation_scores`.

    Example:
        >>> shout = lambda texts, direction: [text.upper() for text in texts]
        >>> score_direction(shout, (["a b", "c"], ["A B", "D"]), Direction("x", "y")).exact_match
        0.5
    """
    texts, references = list(pairs[0]), pairs[1]
    for leg in way.legs(direction):
        texts = translate(texts, leg)
    scores = translation_scores(texts, references, **settings)
    exact = sum(map(str.__eq__, texts, references)) / len(texts)
    target, off_target, identified = str(direction.target), None, None
    if identify is not None and target in identify.languages:
        off_target = off_target_rate(identify, texts, target)
        identified = identify.accuracies.get(target)
    return DirectionScores(direction, way, scores, exact, off_target, identified)


def choose_pivot(
    languages: LanguageTags, direction: Direction, given: str | None = None
) -> Way | None:
    """Returns the way through another language, or None if there is none.

    This is the first language with training text from the source and to the target. If the trained
    directions are unknown, there is none.

    Args:
        languages: The languages of the model.
        direction: The direction.
        given: The requested pivot, or None.

    Raises:
        ConfigError: The model cannot translate through ``given``.

    Example:
        >>> trained = frozenset(map(Direction.parse, ("a-b", "b-a", "b-c", "c-b")))
        >>> tags = LanguageTags({"a": 1, "b": 2, "c": 3}, ("to",), (), directions=trained)
        >>> str(choose_pivot(tags, Direction("a", "c"))), choose_pivot(tags, Direction("a", "b"))
        ('pivot b', None)
    """
    known = None if languages.directions is None else True
    others = [name for name in languages.languages if name not in direction]
    possible = languages.directions or frozenset()
    trained = [name for name in others if possible.issuperset(Way("pivot", name).legs(direction))]
    if given is None:
        return Way("pivot", trained[0], known) if trained else None
    if given in (trained if known else others):
        return Way("pivot", given, known)
    if given not in languages.languages:
        problem = "the model does not know it"
    elif given in direction:
        problem = "it is one of the two languages"
    else:
        problem = "the model was not trained on both steps"
    allowed = ", ".join(trained if known else others) or "none"
    raise ConfigError(f"--pivot {given}: not for {direction}: {problem}: allowed are {allowed}")
