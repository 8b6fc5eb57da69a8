"""Evaluation of stored translators: sacreBLEU and chrF of translations of files."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

from transformer_jax.core.config_fields import Flag
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction
from transformer_jax.data.pair_files import is_table, named_files, one_or_several, read_named
from transformer_jax.data.pairs import Pairs
from transformer_jax.evaluation.word_splitting import Tokenize
from transformer_jax.recipes.directions import DirectionFlags, evaluate_directions
from transformer_jax.recipes.generation_flags import LanguageFlags
from transformer_jax.recipes.languages import check_direction
from transformer_jax.recipes.read_flags import ColumnFlags, with_read_flags
from transformer_jax.recipes.scored_texts import (
    LIMIT_FLAGS,
    SearchFlags,
    beam_search,
    choose_words,
    required,
    write_texts,
)
from transformer_jax.recipes.settings import RunConfig

if TYPE_CHECKING:
    from transformer_jax.inference.facts import Facts

__all__ = ["EvaluateTranslator", "evaluate_translator", "pairs_of"]


@dataclasses.dataclass(frozen=True)
class EvaluateTranslator(SearchFlags, LanguageFlags, DirectionFlags, ColumnFlags):  # type: ignore[misc]
    """Print sacreBLEU and chrF of translations of a file, or of several directions."""

    source: Annotated[str | None, Flag(also=("data.source",))] = None
    """File of sentences to translate, one per line; without any file, the test files of the run
    are read."""
    target: Annotated[str | tuple[str, ...] | None, Flag(also=("data.target",))] = None
    """File of reference translations, one per line; several files are several references."""
    pairs: Annotated[str | tuple[str, ...] | None, Flag("data.pairs")] = None
    """Instead: one file of both sides, .tsv, .csv or .jsonl, read like the pairs of the run; for a
    multilingual translator, de-en=FILE for each direction."""
    tokenize: Tokenize | None = None
    """Tokenizer of sacreBLEU, part of its signature. flores101, flores200, spm and spBLEU-1K
    download a model once; ja-mecab needs sacrebleu[ja], ko-mecab sacrebleu[ko]. None is the run's
    setting, or depends on the script of the references."""
    lowercase: bool = False
    """Ignore case, as stated in the signature."""


def evaluate_translator(request: EvaluateTranslator, facts: "Facts") -> int:
    """Prints the metrics of translations of a file, or of each direction with their means.

    Args:
        request: The flags.
        facts: Facts of the run, with the checkpoint.

    Raises:
        ConfigError: A flag is missing, flags exclude each other, or a language is unknown or
            missing.
        DataError: A file cannot be read.
    """
    from transformer_jax.decoding.translator import Translator
    from transformer_jax.inference.pretrained import Pretrained
    from transformer_jax.recipes.driver import settings_of
    from transformer_jax.recipes.tasks.directions import mean_scores
    from transformer_jax.recipes.tasks.translation_task import score_pairs

    if request.directions:
        return evaluate_directions(request, facts, _given_texts(request, facts))
    for name in ("pivot", "supervised", "similarity"):
        if getattr(request, name) is not None:
            raise ConfigError(f"--{name} is for --directions: add them, or leave it out")
    search, run = beam_search(request, facts), with_read_flags(settings_of(facts), request)
    tests = pairs_of(request, facts)
    opened = Pretrained.load(facts, "encoder-decoder")
    # The pairs are read as prepared texts.
    translator = Translator(opened.model, opened.tokenizer, search=search)
    lowercase = run.data.read.lowercase or request.lowercase
    further = _further_references(request, facts, tests)
    scores, written, references = {}, [], []
    for name, pairs in tests.items():
        tokenize = choose_words(request.tokenize, run.evaluation.tokenize, pairs.targets)
        scores[name], texts = score_pairs(
            translator, pairs, further, lowercase=lowercase, tokenize=tokenize, limit=LIMIT_FLAGS
        )
        print(f"{name}: {scores[name]}" if name else scores[name])
        written += texts
        references += [list(filter(None, row)) for row in zip(pairs.targets, *further, strict=True)]
    if len(tests) > 1:
        means = mean_scores({name: one.to_dict() for name, one in scores.items()})
        print(f"mean of {plural(len(tests), 'direction')}: {means}")
    return write_texts(request.output, written, references, "source")


def _further_references(
    request: EvaluateTranslator, facts: "Facts", tests: dict[str, Pairs]
) -> list[list[str]]:
    """Returns the references of each file of ``--target`` after the first; an empty one is none."""
    from transformer_jax.data.aligned import read_aligned

    if isinstance(request.target, str | None) or request.source is None:
        return []
    [pairs] = tests.values()
    prepare, found = facts.preparation, []
    for path in request.target[1:]:
        rows = read_aligned(request.source, path, ("--source", "--target"))
        found.append([prepare.line(text) for _, text in rows])
        log(f"{path}: reference {len(found) + 1} of {plural(len(pairs), 'sentence')}")
    return found


def _given_texts(request: Any, facts: "Facts") -> dict[str, Pairs]:
    """Returns the pairs in files for ``--directions``, without the prefix of sources."""
    given = one_or_several(request.pairs, "--data.pairs")
    one_direction = (request.source, request.target, request.from_language, request.to)
    if isinstance(given, str) or set(one_direction) != {None}:
        raise ConfigError(
            "--directions names the languages: give texts as --data.pairs de-cs=FILE, and leave "
            "--source, --target, --from and --to out"
        )
    return {} if given is None else _named_pairs(request, facts, given)


def pairs_of(request: Any, facts: "Facts") -> dict[str, Pairs]:
    """Returns the pairs that flags name, preprocessed as in training, by direction.

    Every line counts, even empty ones, for comparable scores.

    Args:
        request: An object with the flags ``source``, ``target``, ``pairs``, ``from_language`` and
            ``to``.
        facts: Facts of the run.

    Raises:
        ConfigError: A flag is missing, flags exclude each other, or a language is unknown or
            missing.
        DataError: A file cannot be read.
    """
    from transformer_jax.data.aligned import read_aligned
    from transformer_jax.data.sources import read_pair_file
    from transformer_jax.recipes.driver import settings_of

    run, prepare = with_read_flags(settings_of(facts), request), facts.preparation
    request = _with_test_files(request, run)
    if isinstance(request.target, tuple):  # the first of several references
        request = dataclasses.replace(request, target=request.target[0])
    given = one_or_several(request.pairs, "--data.pairs")
    if given is not None and (request.source is not None or request.target is not None):
        raise ConfigError("--data.pairs is one file of both sides: leave --source out")
    if isinstance(given, tuple):
        parts = _named_pairs(request, facts, given)
        prefix = run.data.read.source_prefix
        return {name: part.with_prefix(prefix) for name, part in parts.items()}
    if is_table(given) and run.data.several:
        raise ConfigError(
            f"--data.pairs {given}: a table of pairs is for training only: give a file per "
            f"direction, de-en=FILE en-cs=FILE"
        )
    direction = facts.direction(facts.tokenizer, request.direction)
    if given is None:
        name, target = required(request, facts.title, "source", "target")
        rows = read_aligned(name, target, ("--source", "--target"))
    else:
        name, rows = given, list(read_pair_file(given, run.data.read, "--data.pairs"))
    sources = [prepare.source(text) for text, _ in rows]
    targets = [prepare.line(text) for _, text in rows]
    named = None if direction == DEFAULT_DIRECTION else [direction] * len(rows)
    return {"": Pairs(sources, targets, name, directions=named)}


def _with_test_files(request: Any, run: RunConfig) -> Any:
    """Returns the flags with the test files of the run, if they name no files."""
    from transformer_jax.data.sources import Files

    named = request.source, request.target, request.pairs
    if set(named) != {None} or not isinstance(run.data.test, Files):
        return request
    return dataclasses.replace(request, **dataclasses.asdict(run.data.test))


def _named_pairs(request: Any, facts: "Facts", given: tuple[str, ...]) -> dict[str, Pairs]:
    """Returns the pairs of each direction of a multilingual translator, without prefix."""
    from transformer_jax.recipes.driver import settings_of

    if request.direction != DEFAULT_DIRECTION:
        raise ConfigError("--data.pairs names the languages: leave --from and --to out")
    languages = facts.tokenizer.languages
    if languages is None:
        raise ConfigError(
            f"--data.pairs: {facts.source} translates in one direction: give the file without a "
            f"name"
        )
    files = named_files(given, "--data.pairs")
    for direction in files:
        check_direction(Direction(*direction), languages, "--data.pairs")
    run = with_read_flags(settings_of(facts), request)
    pairs = read_named(files, run.data.read, "--data.pairs", every=True)
    return {str(way): part for way, part in pairs.by_direction().items()}
