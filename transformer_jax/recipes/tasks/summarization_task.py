"""Summarization: an encoder-decoder, and ROUGE of its summaries."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.config_fields import Rate
from transformer_jax.core.errors import plural
from transformer_jax.core.task_progress import log, show_progress
from transformer_jax.core.text_tables import aligned
from transformer_jax.data.plan import Batching
from transformer_jax.data.sources import ReadOptions, Splits
from transformer_jax.data.store import encode_targets
from transformer_jax.data.summaries import Summaries, SummaryOptions, SummarySplits
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.length_penalty import learn_longest
from transformer_jax.decoding.requests import Translation
from transformer_jax.decoding.translator import Translator
from transformer_jax.evaluation.rouge import RougeScores, choose_words, lead, oracle, rouge_scores
from transformer_jax.models.recurrent_config import ModelConfig
from transformer_jax.recipes.tasks.fit import log_scored
from transformer_jax.recipes.tasks.settings import EvaluationConfig, SummaryEvaluation
from transformer_jax.recipes.tasks.translation_task import decode_texts, show, translation
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.training.state import split
from transformer_jax.training.task import Task

__all__ = ["SummaryEvaluation", "score_summaries", "summarization"]

_NAMES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_LIMIT = "evaluation.max_length"


@dataclasses.dataclass(frozen=True)
class SummarySettings:
    """Settings for reading texts and summaries."""

    read: SummaryOptions


@dataclasses.dataclass(frozen=True)
class SummarizationSettings:
    """The settings of a summarizer."""

    model: ModelConfig
    data: SummarySettings
    evaluation: SummaryEvaluation = SummaryEvaluation()

    recipe: ClassVar[str] = "summarization"


@checked_arguments
def summarization(
    data: SummarySplits,
    config: ModelConfig,
    tokenizer: Tokenizer,
    *,
    batching: Batching = Batching(),
    label_smoothing: Rate = 0.1,
    read: SummaryOptions = SummaryOptions(),
    evaluation: SummaryEvaluation = SummaryEvaluation(),
    cache: Path | None = None,
) -> Task:
    """Returns the task of summarizing texts by an encoder-decoder: translation into fewer words.

    Every reference is a training target. Validation measures ``valid_loss`` without label
    smoothing, and ROUGE of greedy summaries; the best checkpoint is tested with beam search, and
    compared with the leading sentences and the extractive oracle.

    Args:
        data: Texts and summaries for training, validation and tests.
        config: Configuration of the model, a Transformer or recurrent.
        tokenizer: Tokenizer of texts and summaries.
        batching: Batching of texts.
        label_smoothing: Probability spread over the vocabulary in training.
        read: Maximum length of texts, and their prefix.
        evaluation: Evaluation during and after training; a length limit and word splitting of None
            are derived from the training summaries.
        cache: Folder for token ids; None is memory.

    Raises:
        ConfigError: ``rouge-score`` is needed, but not installed.
    """
    read = dataclasses.replace(read, normalization=tokenizer.normalization)
    data = _prefixed(data, read.source_prefix)
    evaluation = _completed(evaluation, data.train, tokenizer)
    valid = None if data.valid is None else data.valid.pairs()
    task = translation(
        Splits(data.train.pairs(every=True), valid, {}, data.overlaps),
        config,
        tokenizer,
        batching=batching,
        label_smoothing=label_smoothing,
        read=ReadOptions(max_length=read.max_length, too_long="truncate"),
        evaluation=EvaluationConfig(sentences=0),
        cache=cache,
    )
    measured = None
    if data.valid is not None and evaluation.texts:
        rows = data.valid.with_references[: evaluation.texts]
        measured = _SummaryScores(data.valid.select(rows, data.valid.name), tokenizer, evaluation)
    return dataclasses.replace(
        task,
        metrics=(Metric("valid_loss", "lower"), *(Metric(name, "higher") for name in _NAMES)),
        evaluate=measured,
        test=_tester(data, tokenizer, evaluation),
        settings=SummarizationSettings(config, SummarySettings(read), evaluation),
    )


def _completed(
    evaluation: SummaryEvaluation, texts: Summaries, tokenizer: Tokenizer
) -> SummaryEvaluation:
    """Returns the settings with None replaced by values derived from the training summaries."""
    summaries, learned = texts.pairs(every=True).targets, dict[str, Any]()
    if evaluation.max_length is None:
        learned["max_length"] = learn_longest(encode_targets(summaries, tokenizer).lengths)
    if evaluation.tokenize is None:
        learned["tokenize"] = choose_words(summaries)
    return dataclasses.replace(evaluation, **learned)


def _prefixed(data: SummarySplits, prefix: str) -> SummarySplits:
    """Adds the prefix to texts."""
    with_prefix = lambda texts: dataclasses.replace(texts, source_prefix=prefix)
    valid = None if data.valid is None else with_prefix(data.valid)
    tests = {name: with_prefix(texts) for name, texts in data.tests.items()}
    return SummarySplits(with_prefix(data.train), valid, tests, data.overlaps)


class _SummaryScores:
    """ROUGE of greedy summaries of validation texts."""

    def __init__(self, texts: Summaries, tokenizer: Tokenizer, evaluation: SummaryEvaluation):
        self.texts, self.tokenizer, self.evaluation = texts, tokenizer, evaluation
        self.translator: Translator | None = None

    def __call__(self, model: Any) -> Mapping[str, float]:
        graph, params = split(model)
        if self.translator is None:
            search = self.evaluation.search(num_beams=1)
            self.translator = Translator((graph, params), self.tokenizer, search=search)
        # Compiled programs are reused in later evaluations.
        self.translator.params = params
        with show_progress(f"summarizing {plural(len(self.texts), 'validation text')}"):
            found = decode_texts(self.translator, self.texts.sources, _LIMIT)
            written = [done.text for done in found]
        show(self.texts.pairs(), written, self.evaluation.shown)
        tokenize = self.evaluation.tokenize
        scores = dataclasses.asdict(rouge_scores(written, self.texts.references, tokenize))
        return {name: scores[name] for name in _NAMES}


def _tester(
    data: SummarySplits, tokenizer: Tokenizer, evaluation: SummaryEvaluation
) -> Callable[[Any, int], dict[str, Any]]:
    """Prints and returns ROUGE of a model on test (or else validation) texts."""
    parts = data.tests or ({} if data.valid is None else {"valid": data.valid})

    def test(model: Any, step: int) -> dict[str, Any]:
        found = {}
        for name, texts in parts.items():
            print(f"{name}: {plural(len(texts), 'text')}", flush=True)
            search = evaluation.search(evaluation.num_beams)
            found[name] = score_summaries(model, tokenizer, texts, evaluation, search)[0]
        return {"evaluated_step": step, "tests": found}

    return test


def score_summaries(
    model: Any,
    tokenizer: Tokenizer,
    texts: Summaries,
    evaluation: SummaryEvaluation,
    search: GenerationConfig,
    limit: str = _LIMIT,
) -> tuple[dict[str, dict[str, Any]], list[Translation]]:
    """Prints ROUGE of a model's summaries and of baselines; returns the scores and the summaries.

    Args:
        model: The summarizer.
        tokenizer: Of the model.
        texts: Texts with their summaries.
        evaluation: The baselines.
        search: Settings of beam search.
        limit: The setting or flag that raises the length limit, for messages.
    """
    references = [text for row in texts.references for text in row]
    sides = {"source": texts.sources, "target": references}
    log_scored(texts.name, plural(len(texts), "text"), tokenizer, **sides)
    translator = Translator(model, tokenizer, search=search)
    written = decode_texts(translator, texts.sources, limit)
    scored = texts.with_references
    if missing := len(texts) - len(scored):
        count = f"{missing:,} of {plural(len(texts), 'text')}"
        log(f"{texts.name}: {count} without a summary: left out of the scores")
    given = [texts.references[i] for i in scored]
    pairs = [(texts.parts[i], texts.references[i]) for i in scored]
    tokenize = evaluation.tokenize or choose_words(references)
    rows = {
        f"model, {plural(search.num_beams, 'beam')}": [written[i].text for i in scored],
        f"lead-{evaluation.lead}": [lead(parts, evaluation.lead) for parts, _ in pairs],
        f"oracle-{evaluation.oracle}": [
            oracle(parts, wanted, most=evaluation.oracle, tokenize=tokenize)
            for parts, wanted in pairs
        ],
    }
    scores = {name: rouge_scores(found, given, tokenize) for name, found in rows.items()}
    print(_table(scores), flush=True)
    return {name: dataclasses.asdict(found) for name, found in scores.items()}, written


def _table(scores: Mapping[str, RougeScores]) -> str:
    """Formats a table with a row for the model and for each baseline."""
    rows = [["summaries", "ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Lsum"]]
    for name, found in scores.items():
        rows.append([name, *(f"{getattr(found, one):.2f}" for one in _NAMES)])
    return f"{aligned(rows)}\n{next(iter(scores.values())).signature}"
