"""Translation: an encoder-decoder, cross-entropy, and sacreBLEU of its output."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_jax.core.arguments import check_values, checked_arguments
from transformer_jax.core.config_fields import Rate
from transformer_jax.core.errors import DataError, plural
from transformer_jax.core.task_progress import log, show_progress
from transformer_jax.data.languages import DEFAULT_DIRECTION
from transformer_jax.data.loader import make_batch
from transformer_jax.data.pairs import collect
from transformer_jax.data.plan import Batching
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.sources import Pairs, ReadOptions, Splits
from transformer_jax.data.store import PairStore, build_store
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.length_penalty import learn_length_limit
from transformer_jax.models.build import make_model
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.models.recurrent_config import ModelConfig, RecurrentConfig
from transformer_jax.recipes.tasks.batching import has_dropout
from transformer_jax.recipes.tasks.directions import (
    mean_of,
    mean_scores,
    named,
    plan_of,
    store_lacks,
)
from transformer_jax.recipes.tasks.fit import Side, check_restored, describe_unknown, log_scored
from transformer_jax.recipes.tasks.settings import RECURRENT, EvaluationConfig
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.training import objectives
from transformer_jax.training.state import split
from transformer_jax.training.task import Data, Task
from transformer_jax.word_vectors.initialization import initial_embeddings

if TYPE_CHECKING:
    from transformer_jax.decoding.line_translator import Directions
    from transformer_jax.decoding.requests import Translation
    from transformer_jax.decoding.translator import Translator
    from transformer_jax.evaluation.bleu import BleuScores

__all__ = [
    "LIMIT",
    "EvaluationConfig",
    "decode_pairs",
    "decode_texts",
    "regularization",
    "score_pairs",
    "show",
    "step_flops",
    "translation",
    "validation_batching",
]

LIMIT = "evaluation.max_len_a or evaluation.max_len_b"
_WIDEST = 160  # maximum number of characters of a sentence to print


@dataclasses.dataclass(frozen=True)
class PairSettings:
    """Settings for reading sentence pairs."""

    read: ReadOptions


@dataclasses.dataclass(frozen=True)
class TranslationSettings:
    """The settings of a translator."""

    model: ModelConfig
    data: PairSettings
    evaluation: EvaluationConfig = EvaluationConfig()

    @property
    def recipe(self) -> str:
        """Returns the name of the recipe for such a run."""
        return f"{RECURRENT * isinstance(self.model, RecurrentConfig)}translation"


@checked_arguments
def translation(
    data: Splits | Sequence[tuple[str, str]],
    config: ModelConfig,
    tokenizer: Tokenizer,
    *,
    batching: Batching = Batching(),
    label_smoothing: Rate = 0.1,
    read: ReadOptions = ReadOptions(),
    evaluation: EvaluationConfig = EvaluationConfig(),
    cache: Path | None = None,
) -> Task:
    """Returns the task of translating sentences with an encoder-decoder.

    Validation measures ``valid_loss`` without label smoothing, and ``sacrebleu`` of greedy
    translations; the best checkpoint is tested with beam search on every test set. With several
    directions, both are measured per direction, such as ``sacrebleu_de-en``, and chrF;
    ``valid_loss`` and ``sacrebleu`` are means over trained directions.

    Args:
        data: Sentence pairs for training, validation and tests; a list of ``(source, target)`` is
            for training only. Pairs of several directions need a tokenizer with their languages,
            see :func:`.tag_languages`.
        config: Configuration of the model, a Transformer or recurrent.
        tokenizer: Tokenizer of both sides.
        batching: Batching of pairs.
        label_smoothing: Probability spread over the vocabulary in training.
        read: Maximum length of sentences, prefix of sources, and whether metrics ignore case.
        evaluation: Evaluation during and after training; a length limit and word splitting of None
            are derived from the training pairs.
        cache: Folder for token ids; None is memory.

    Raises:
        ConfigError: The tokenizer does not know the languages of the pairs.
        DataError: No pair is short enough.
    """
    read = dataclasses.replace(read, normalization=tokenizer.normalization)
    if not isinstance(data, Splits):
        for i, pair in enumerate(data):
            pair = tuple(pair) if isinstance(pair, list) else pair
            check_values("translation: ", {f"pair {i}": tuple[str, str]}, {f"pair {i}": pair})
        data = Splits(collect(data, "pairs", Preparation.of(read)), None, {})
    for line in data.overlaps:
        log(line)
    splits = _prefixed(data, read.source_prefix)
    check_restored(splits.train.name, splits.train.targets, tokenizer)
    store = _encode(splits.train, tokenizer, read, cache)
    plan = plan_of(store, splits.train, batching, data.languages.temperature)
    limit = learn_length_limit(store.source_lengths, store.target_lengths)
    directions = splits.train.directions
    evaluation = evaluation.completed(limit, None if directions else splits.train.targets)
    train = _data(store, plan, tokenizer.pad)
    valid, evaluate = {}, None
    if splits.valid is not None:
        encode = functools.partial(_encode, tokenizer=tokenizer, read=read, cache=cache)
        held = {name: encode(part.without_empty()) for name, part in named(splits.valid).items()}
        valid = _validation(held, batching, tokenizer.pad)
        if evaluation.sentences and len(splits.valid):
            evaluate = _Bleu(splits, tokenizer, evaluation, read.lowercase)
    means = {"valid_loss": [f"valid{one}_loss" for one in mean_of(splits)]} if directions else {}
    return Task(
        model=lambda rngs: make_model("encoder-decoder", config, rngs=rngs),
        train=train,
        objective=objectives.sequence_to_sequence(tokenizer.bos, label_smoothing),
        valid=valid,
        metrics=(Metric("valid_loss", "lower"), Metric("sacrebleu", "higher")),
        means=means,
        eval_objective=objectives.sequence_to_sequence(tokenizer.bos),
        evaluate=evaluate,
        test=_tester(splits.tests, tokenizer, evaluation, read.lowercase),
        flops=functools.partial(step_flops, config),
        regularization=regularization(config, label_smoothing),
        tokenizer=tokenizer,
        initial=initial_embeddings(config, tokenizer),
        settings=TranslationSettings(config, PairSettings(read), evaluation),
    )


def step_flops(config: ModelConfig, batch: Mapping[str, Any]) -> float:
    """Returns the FLOPs of a training step on a batch, from its shapes."""
    rows, source = batch["inputs"]["source"].shape[:2]
    return training_flops(config, rows, source, batch["target"].shape[1])


def _prefixed(splits: Splits, prefix: str) -> Splits:
    """Adds the prefix to sources."""
    valid = None if splits.valid is None else splits.valid.with_prefix(prefix)
    tests = {name: pairs.with_prefix(prefix) for name, pairs in splits.tests.items()}
    train = splits.train.with_prefix(prefix)
    return dataclasses.replace(splits, train=train, valid=valid, tests=tests)


def _encode(pairs: Pairs, tokenizer: Tokenizer, read: ReadOptions, cache: Path | None) -> PairStore:
    """Returns sentence pairs as ids, and a summary line."""
    store = build_store(
        pairs, tokenizer, max_length=read.max_length, too_long=read.too_long, cache=cache
    )
    counts = "".join(f", {n} {what}" for what, n in (pairs.counts | store.counts).items())
    lost = store_lacks(store, pairs)
    if lost is not None:
        raise DataError(
            f"{pairs.name}{lost}: no pair has at most {plural(read.max_length, 'token')} per "
            f"side: raise data.read.max_length, or set data.read.too_long to truncate"
        )
    unknown = describe_unknown(
        pairs.name,
        Side("source", _by_direction(pairs, "sources"), tokenizer, store.source.ids),
        Side("target", _by_direction(pairs, "targets"), tokenizer.targets, store.target.ids),
    )
    log(f"{pairs.name}: {plural(len(store), 'pair')}{counts}{unknown}")
    return store


def _by_direction(pairs: Pairs, side: str) -> dict[str, list[str]]:
    """Returns the texts of a side by the name of their direction."""
    if pairs.directions is None:
        return {"": getattr(pairs, side)}
    return {str(way): getattr(part, side) for way, part in pairs.by_direction().items()}


def _data(store: PairStore, plan: Any, pad: int) -> Data:
    make = lambda items: make_batch(store, items.indices, items.S, items.T, pad)
    return Data.of(plan, make, [store.source.ids, store.target.ids])


def _validation(stores: Mapping[str, PairStore], batching: Batching, pad: int) -> dict[str, Data]:
    """Returns batches of all pairs once, sorted by length, independent of training's batch size.

    The shapes of batches are the same for all directions.
    """
    source = np.concatenate([store.source_lengths for store in stores.values()])
    target = np.concatenate([store.target_lengths for store in stores.values()])
    batching = validation_batching(batching, source, target)
    whole = batching.plan(source, target, shuffle=False)
    return {
        f"valid{name}": _data(
            store, whole.with_lengths(store.source_lengths, store.target_lengths), pad
        )
        for name, store in stores.items()
    }


def validation_batching(batching: Batching, *lengths: np.ndarray) -> Batching:
    """Returns batching with room for the longest example, in two shapes."""
    longest = max(int(side.max()) for side in lengths)
    tokens = max(batching.max_tokens, (longest + 4) * batching.required_batch_size_multiple)
    return dataclasses.replace(batching, max_tokens=tokens, num_buckets=2)


def regularization(config: ModelConfig, label_smoothing: float) -> tuple[str, ...]:
    """Returns the names of terms that only the training loss includes."""
    of_labels = (f"label smoothing {label_smoothing:g}",) * bool(label_smoothing)
    return (*of_labels, *("dropout",) * has_dropout(config))


class _Bleu:
    """sacreBLEU of the greedy translations of the first validation sentences.

    With several directions: sacreBLEU and chrF of each, and means over trained directions.
    """

    def __init__(
        self, splits: Splits, tokenizer: Tokenizer, evaluation: EvaluationConfig, lowercase: bool
    ):
        assert splits.valid is not None
        parts = named(splits.valid)
        self.parts = {name: part.first(evaluation.sentences) for name, part in parts.items()}
        self.means = mean_of(splits) if splits.valid.directions else []
        self.tokenizer, self.evaluation, self.lowercase = tokenizer, evaluation, lowercase
        self.translator: Any = None  # a Translator, after the first evaluation

    def __call__(self, model: Any) -> dict[str, float]:
        from transformer_jax.decoding.translator import Translator
        from transformer_jax.evaluation.bleu import translation_scores

        graph, params = split(model)
        if self.translator is None:
            search = self.evaluation.search(num_beams=1)
            self.translator = Translator((graph, params), self.tokenizer, search=search)
        # Compiled programs are reused in later evaluations.
        self.translator.params = params
        count = sum(map(len, self.parts.values()))
        found: dict[str, float] = {}
        shown = -(-self.evaluation.shown // len(self.parts))
        with show_progress(f"translating {plural(count, 'validation sentence')}"):
            for name, pairs in self.parts.items():
                texts = [done.text for done in decode_pairs(self.translator, pairs)]
                show(pairs, texts, shown)
                scores = translation_scores(
                    texts,
                    pairs.targets,
                    lowercase=self.lowercase,
                    tokenize=self.evaluation.tokenize,
                )
                found[f"sacrebleu{name}"] = scores.bleu
                found |= {f"chrf{name}": scores.chrf} if self.means else {}
        for what in ("sacrebleu", "chrf") if self.means else ():
            found[what] = sum(found[f"{what}{one}"] for one in self.means) / len(self.means)
        return found


def show(pairs: Pairs, texts: Sequence[str], count: int) -> None:
    """Logs the first generated texts, with sources and references."""
    for i in range(min(count, len(texts))):
        log_sample(source=pairs.sources[i], reference=pairs.targets[i], hypothesis=texts[i])


def log_sample(**texts: str) -> None:
    """Logs the texts of one example, each on a line after its name."""
    for what, text in texts.items():
        log(f"  {what:<10}  {text if len(text) <= _WIDEST else text[:_WIDEST] + ' …'}")


def decode_pairs(translator: "Translator", pairs: Pairs, limit: str = LIMIT) -> "list[Translation]":
    """Returns the best translation of each source into the language of its pair."""
    return decode_texts(translator, pairs.sources, limit, pairs.directions or DEFAULT_DIRECTION)


def decode_texts(
    translator: "Translator",
    sources: Sequence[Any],
    limit: str = LIMIT,
    directions: "Directions" = DEFAULT_DIRECTION,
) -> "list[Translation]":
    """Returns each source with its best text; logs how many sources and texts were truncated.

    Args:
        translator: The model to translate with.
        sources: The source texts.
        limit: The setting or flag that raises the limit, for the message.
        directions: The direction of all sources, or one per source.
    """
    before = translator.counts.copy()
    texts = list(translator.translate(sources, directions=directions))
    if count := translator.counts["cut"] - before["cut"]:
        log(translator.cut_note(count, len(texts)))
    if count := translator.counts["limited"] - before["limited"]:
        log(f"{translator.limit_note(count, len(texts))}: raise {limit}")
    return texts


def _tester(
    tests: dict[str, Pairs], tokenizer: Tokenizer, evaluation: EvaluationConfig, lowercase: bool
) -> Callable[[Any, int], dict[str, Any]]:
    """Prints and returns the metrics of the test sets."""
    beams = evaluation.num_beams

    def test(model: Any, step: int) -> dict[str, Any]:
        from transformer_jax.decoding.translator import Translator

        search, found = evaluation.search(beams), {}
        translator = Translator(model, tokenizer, search=search)
        for name, pairs in tests.items():
            scores, _ = score_pairs(
                translator, pairs, lowercase=lowercase, tokenize=evaluation.tokenize
            )
            found[name] = scores.to_dict() | {"beams": beams}
            print(f"{name}: {scores}", flush=True)
        if any(pairs.directions for pairs in tests.values()):
            print(f"mean of {plural(len(tests), 'test set')}: {mean_scores(found)}", flush=True)
        return {"evaluated_step": step, "tests": found}

    return test


def score_pairs(
    translator: "Translator",
    pairs: Pairs,
    further: Sequence[Sequence[str]] = (),
    *,
    lowercase: bool = False,
    tokenize: str | None = None,
    limit: str = LIMIT,
) -> "tuple[BleuScores, list[Translation]]":
    """Returns the metrics of translations of the sources of ``pairs``, and the translations.

    Args:
        translator: A trained model.
        pairs: Sources with their references.
        further: Lists of further references; an empty text is none.
        lowercase: Compare in lower case.
        tokenize: Tokenizer of sacreBLEU; None is chosen by the script.
        limit: The setting or flag that raises the length limit, for messages.
    """
    from transformer_jax.evaluation.bleu import translation_scores

    sides = {"source": pairs.sources, "target": pairs.targets}
    tokenizer: Any = translator.tokenizer
    log_scored(pairs.name, plural(len(pairs), "pair"), tokenizer, **sides)
    found = decode_pairs(translator, pairs, limit)
    texts = [done.text for done in found]
    references = [pairs.targets, *further]
    scores = translation_scores(texts, references, lowercase=lowercase, tokenize=tokenize)
    return scores, found
