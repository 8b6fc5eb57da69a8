"""Evaluation of multilingual translators by direction, trained or zero-shot."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.core.config_fields import Configuration, OutputPath
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import log, show_progress
from transformer_jax.data.languages import Direction, LanguageTags, listed
from transformer_jax.data.pairs import Pairs
from transformer_jax.evaluation.word_splitting import Tokenize
from transformer_jax.recipes.direction_texts import DirectionTexts, Sides, open_direction_texts
from transformer_jax.recipes.languages import check_direction
from transformer_jax.recipes.scored_texts import LIMIT_FLAGS, beam_search, choose_words
from transformer_jax.recipes.settings import RunConfig

if TYPE_CHECKING:
    from transformer_jax.decoding.generation_config import GenerationConfig
    from transformer_jax.decoding.translator import Translator
    from transformer_jax.evaluation.directions import DirectionScores, TranslateTexts, Way
    from transformer_jax.evaluation.language_identification import LanguageIdentifier
    from transformer_jax.evaluation.similarity import Similarity
    from transformer_jax.inference.facts import Facts, Opening

__all__ = ["DirectionFlags", "evaluate_directions"]

# Sentences of two languages, by the target language and the two.
Comparisons = dict[tuple[str, str, str], Sides]

_MOST_COMPARED = 1_000  # sentences per pair of languages for the similarity of encoder states


@dataclasses.dataclass(frozen=True)
class DirectionFlags(Configuration, group="--"):
    """Flags for the evaluation by direction."""

    directions: tuple[str, ...] = ()
    """Directions such as de-cs en-de, trained or not, evaluated on the test pairs of the run or on
    --data.pairs de-cs=FILE. Each is translated directly and through a pivot language. Scores are
    sacreBLEU, chrF, exact match, and the off-target rate: the fraction of translations in a wrong
    language, by an identifier trained on the training text."""
    pivot: str | None = None
    """Pivot language of --directions. None is the first language with training text from the source
    and to the target."""
    supervised: str | None = None
    """Run directory of a translator trained on --directions, to compare with."""
    similarity: OutputPath | None = None
    """Output file of a picture (.png, .svg or .html): similarity of encoder states across the
    languages of --directions."""


def evaluate_directions(request: Any, facts: "Facts", given: Mapping[str, Pairs]) -> int:
    """Prints a table of the scores of each direction, and writes the requested files.

    Args:
        request: The flags of :class:`DirectionFlags` and of the evaluation of a translator.
        facts: Facts of the run, with the checkpoint.
        given: Pairs to evaluate on instead of the run's test pairs.

    Raises:
        ConfigError: The run does not know a language or cannot use the pivot, or no two languages
            can be compared.
        DataError: A direction has no text.
    """
    from transformer_jax.evaluation.language_identification import train_identifier
    from transformer_jax.recipes.driver import settings_of
    from transformer_jax.recipes.tasks.scores import write_scores

    _check_picture(request.similarity)
    run, languages = settings_of(facts), _languages_of(facts)
    other = _read_supervised(request, run, facts.opening)
    ways: dict[Direction, Sequence[Way]] = {}
    for name in request.directions:
        direction = Direction.parse(name, "--directions")
        check_direction(direction, languages, "--directions")
        ways[direction] = _ways(request, languages, other, direction)
    texts = open_direction_texts(run.data, given)
    for direction in ways:
        texts.sides(direction)
    compared: Comparisons = {}
    if request.similarity is not None:
        legs = [leg for one in ways for way in ways[one] for leg in way.legs(one)]
        used = [name for name in languages.languages if any(name in leg for leg in legs)]
        compared = _compared(texts, languages, used)
    several = len(texts.training) > 1
    identify = train_identifier(texts.training) if several else None
    search = beam_search(request, facts)
    translator = _translator(facts, search)
    translators = {"": _texts_of(translator, facts)}
    if other is not None:
        translators["supervised"] = _texts_of(_translator(other, search), other)
    rows = _score(request, run, run.evaluation.tokenize, ways, texts, translators, identify)
    _print(rows, identify)
    similarities: list[dict[str, Any]] = []
    if request.similarity is not None:
        similarities = _compare(request.similarity, translator, compared)
    scores = [row.to_dict() for row in rows]
    write_scores(request.output, {"scores": scores, "similarities": similarities})
    return 0


def _check_picture(path: Path | None) -> None:
    from transformer_jax.visual.figures import SUFFIXES

    if path is not None and path.suffix not in SUFFIXES:
        raise ConfigError(f"--similarity {path}: the name ends in {', '.join(SUFFIXES)}")


def _read_supervised(request: DirectionFlags, run: RunConfig, opening: "Opening") -> "Facts | None":
    """Returns the facts of the run to compare with, or None.

    Raises:
        ConfigError: Only one of the runs lower-cases its texts.
    """
    from transformer_jax.inference.pretrained import read_facts
    from transformer_jax.recipes.driver import settings_of

    if (path := request.supervised) is None:
        return None
    facts = read_facts(path, opening=opening)
    other = settings_of(facts)
    if other.data.read.lowercase != run.data.read.lowercase:
        raise ConfigError(
            f"--supervised {path}: its data.read.lowercase is {other.data.read.lowercase}, but the "
            f"run to evaluate has {run.data.read.lowercase}: their scores cannot be compared"
        )
    return facts


def _languages_of(facts: "Facts") -> LanguageTags:
    languages = facts.tokenizer.languages
    if languages is None:
        raise ConfigError(
            f"--directions: {facts.source} translates in one direction, without language "
            f"tags: give --source and --target"
        )
    return languages


def _ways(
    request: Any, languages: LanguageTags, other: "Facts | None", direction: Direction
) -> "list[Way]":
    """Returns the ways to translate a direction: directly, through the pivot, by another run."""
    from transformer_jax.evaluation.directions import Way, choose_pivot

    trained = None if languages.directions is None else direction in languages.directions
    ways = [Way("direct", "", trained)]
    if (pivot := choose_pivot(languages, direction, request.pivot)) is not None:
        ways.append(pivot)
    elif trained is False:
        log(f"{direction}: no pivot with training text for both steps is known: give --pivot")
    if other is not None:
        others = _languages_of(other)
        if direction not in (others.directions or {direction}):
            raise ConfigError(
                f"--supervised {request.supervised}: was not trained on {direction}, but on "
                f"{listed(map(str, sorted(others.directions or ())))}"
            )
        ways.append(Way("supervised", request.supervised, True))
    return ways


def _translator(facts: "Facts", search: "GenerationConfig") -> "Translator":
    from transformer_jax.decoding.translator import Translator
    from transformer_jax.inference.pretrained import Pretrained

    opened = Pretrained.load(facts, "encoder-decoder")
    # The texts are read as prepared texts.
    return Translator(opened.model, opened.tokenizer, search=search)


def _score(
    request: Any,
    run: RunConfig,
    run_words: Tokenize | None,
    ways: "Mapping[Direction, Sequence[Way]]",
    texts: DirectionTexts,
    translators: "Mapping[str, TranslateTexts]",
    identify: "LanguageIdentifier | None",
) -> "list[DirectionScores]":
    """Returns the scores of each direction and way, by translators with the names of ways.

    The run itself, named "", translates all other ways.
    """
    from transformer_jax.evaluation.directions import score_direction

    lowercase = run.data.read.lowercase or request.lowercase
    rows = []
    for direction in ways:
        sides = texts.sides(direction)
        tokenize = choose_words(request.tokenize, run_words, sides[1])
        settings: dict[str, Any] = {
            "identify": identify,
            "lowercase": lowercase,
            "tokenize": tokenize,
        }
        for way in ways[direction]:
            translate = translators.get(way.name, translators[""])
            with show_progress(f"translating {direction}, {way}"):
                rows.append(score_direction(translate, sides, direction, way, **settings))
    return rows


def _texts_of(translator: "Translator", facts: "Facts") -> "TranslateTexts":
    """Returns the translator as a function from texts and a direction to texts."""
    from transformer_jax.recipes.driver import settings_of
    from transformer_jax.recipes.tasks.translation_task import decode_texts

    prefix = settings_of(facts).data.read.source_prefix

    def translate(texts: Sequence[str], direction: Direction) -> list[str]:
        sources = [text and prefix + text for text in texts]
        found = decode_texts(translator, sources, LIMIT_FLAGS, direction)
        return [done.text for done in found]

    return translate


def _print(rows: "Sequence[DirectionScores]", identify: "LanguageIdentifier | None") -> None:
    from transformer_jax.core.text_tables import aligned
    from transformer_jax.evaluation.directions import HEAD

    print(aligned([HEAD, *(row.cells() for row in rows)]))
    for signatures in dict.fromkeys(
        (row.scores.signature, row.scores.chrf_signature) for row in rows
    ):
        print("sacreBLEU {}, chrF {}".format(*signatures))
    if identify is not None:
        held_out = plural(identify.held_out, "held-out training text")
        print(f"identifier: accuracy on the target language, of {held_out} in all languages")


def _compared(texts: DirectionTexts, tags: LanguageTags, languages: Sequence[str]) -> Comparisons:
    """Returns pairs of languages with text, with the target language if the encoder reads its tag.

    An encoder that reads the tag of the target language is evaluated once per target.

    Raises:
        ConfigError: There is no pair of languages.
    """
    reads_target = "to" in (*tags.before, *tags.after)
    found: Comparisons = {}
    for target in languages if reads_target else ("",):
        for first, second in itertools.combinations(languages, 2):
            sides = texts.find(Direction(first, second))
            if sides is not None and target not in (first, second):
                found[target, first, second] = _without_empty(sides)
    if not found:
        raise ConfigError(
            "--similarity: the encoder reads the tag of the target language: give --directions of "
            "three languages, with common test sentences of two of them"
        )
    return found


def _compare(path: Path, translator: "Translator", compared: Comparisons) -> "list[dict[str, Any]]":
    """Writes the picture of the similarity of encoder states, and returns the values."""
    from transformer_jax.evaluation.similarity import parallel_similarity
    from transformer_jax.inference.encoder_means import EncoderMeans
    from transformer_jax.visual.charts import plot_similarity

    means = EncoderMeans(translator)
    found: dict[str, dict[tuple[str, str], Similarity]] = {}
    for (target, first, second), sides in compared.items():
        vectors = [
            means(side[:_MOST_COMPARED], Direction(own, target or other))
            for side, own, other in zip(sides, (first, second), (second, first), strict=True)
        ]
        title = f"encoded to be translated into {target}" if target else "any target"
        found.setdefault(title, {})[first, second] = parallel_similarity(*vectors)
    plot_similarity(path, [*dict.fromkeys(name for _, *two in compared for name in two)], found)
    log(f"wrote {path}")
    return [
        {"encoder": title, "languages": list(pair), **similarity._asdict()}
        for title, pairs in found.items()
        for pair, similarity in pairs.items()
    ]


def _without_empty(sides: Sides) -> Sides:
    """Returns the sentences of two languages without pairs with an empty sentence."""
    kept = [pair for pair in zip(*sides, strict=True) if all(pair)]
    return [first for first, _ in kept], [second for _, second in kept]
