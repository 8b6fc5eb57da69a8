"""Scores of outputs against references, by task, and paired tests of two systems.

A metric follows sacreBLEU's protocol: statistics of each output, which are summed and then scored.
So its tests, the paired bootstrap and paired approximate randomization, work for all of them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from sacrebleu.metrics import CHRF
from sacrebleu.metrics.base import Metric, Score, Signature
from sacrebleu.significance import PairedTest, Result

from transformer_jax.core.errors import DataError, plural
from transformer_jax.data.classes import class_numbers, sort_classes
from transformer_jax.data.words import blank_words
from transformer_jax.evaluation.answers import exact_match, normalize_answer, token_f1
from transformer_jax.evaluation.bleu import reference_streams
from transformer_jax.evaluation.captions import caption_words, cider_d_of_each
from transformer_jax.evaluation.classification import (
    class_report,
    confusion_matrix,
    entities,
    entity_report,
    marks_entities,
    report_with_intervals,
)
from transformer_jax.evaluation.correlation import spearman
from transformer_jax.evaluation.error_rates import edit_counts
from transformer_jax.evaluation.rouge import check_installed, choose_words, rouge_of_each
from transformer_jax.evaluation.word_splitting import choose_tokenize, make_bleu, split_words

__all__ = [
    "OutputMetric",
    "OutputTask",
    "PairedMethod",
    "PairedScores",
    "Rows",
    "paired_tests",
    "score_outputs",
    "task_metrics",
    "task_report",
]

OutputTask = Literal[
    "translate", "summarize", "transcribe", "caption",
    "classify", "regress", "tag", "answer", "language",
]  # fmt: skip
PairedMethod = Literal["bootstrap", "randomization"]

# The references of each output, one or more.
References: TypeAlias = Sequence[Sequence[str]]
Rows: TypeAlias = Callable[[Sequence[str], References], Sequence[Sequence[float]]]

_BYTES = 1 << 33  # of all samples, which sacreBLEU holds at once


class _Signature(Signature):
    """The signature of a metric that is not sacreBLEU's own."""

    def __init__(self, args: dict[str, object]):
        super().__init__(args)
        details = args["details"]
        assert isinstance(details, dict)
        self.info |= {"version": None, **details}


class OutputMetric(Metric):
    """A metric for sacreBLEU's tests: statistics of each output, and the score of their sums.

    Args:
        name: Name of the metric.
        rows: From outputs and the references of each to the statistics of each output.
        score: From the sums of the statistics to the score; by default ``first / second``.
        details: Parts of its signature.
    """

    _SIGNATURE_TYPE = _Signature

    def __init__(
        self,
        name: str,
        rows: Rows,
        score: Callable[[Sequence[float]], float] = lambda sums: _share(sums[0], sums[1]),
        details: Mapping[str, str] = {},
    ):
        super().__init__()
        self.name, self._rows, self._score, self.details = name, rows, score, details

    def _extract_corpus_statistics(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str | None]] | None
    ) -> Sequence[Sequence[float]]:
        assert references is not None
        self.num_refs = len(references)
        given = [
            [text for text in row if text is not None] for row in zip(*references, strict=True)
        ]
        return self._rows(hypotheses, given)

    def _aggregate_and_compute(self, stats: Sequence[Sequence[float]] | np.ndarray) -> Score:
        return self._compute_score_from_stats(np.sum(np.asarray(stats, np.float64), axis=0))

    def _compute_score_from_stats(self, stats: Sequence[float] | np.ndarray) -> Score:
        return Score(self.name, self._score(np.asarray(stats, np.float64).tolist()))

    def _preprocess_segment(self, sent: str) -> str:
        raise NotImplementedError

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, object]:
        raise NotImplementedError

    def _compute_segment_statistics(
        self, hypothesis: str, ref_kwargs: dict[str, object]
    ) -> list[float]:
        raise NotImplementedError


def task_metrics(
    task: OutputTask,
    systems: Sequence[Sequence[str]],
    references: References,
    *,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> Sequence[Metric]:
    """Returns the metrics of a task.

    Args:
        task: The task.
        systems: The outputs of each system: texts, or classes, numbers, tags between blanks, or a
            log-probability with a number of tokens.
        references: The references of each output.
        tokenize: Word splitting of texts, a name of :data:`.Tokenize`; None is chosen by the
            script of the references.
        lowercase: Ignore case in sacreBLEU, chrF, WER and CER.

    Raises:
        ConfigError: The tokenizer is unknown, or ROUGE is not installed.
    """
    texts = [text for row in references for text in row]
    if task == "classify":
        return _class_metrics(
            sort_classes({*texts, *(one for outputs in systems for one in outputs)})
        )
    if task == "regress":
        return _number_metrics(np.array(texts, np.float64))
    if task == "tag":
        return _tag_metrics({tag for row in texts for tag in row.split()})
    if task == "answer":
        return _answer_metrics()
    if task == "language":
        return _language_metrics()
    words = choose_tokenize(texts) if tokenize is None else tokenize
    bleu = make_bleu(words, lowercase=lowercase)
    if task == "translate":
        return [bleu, CHRF(lowercase=lowercase)]
    if task == "transcribe":
        return [*_error_metrics(words, lowercase), bleu]
    rouge = _Rouge(tokenize or choose_words(texts))
    if task == "summarize":
        return [rouge.metric(name) for name in ("rouge1", "rouge2", "rougeL", "rougeLsum")]
    split = caption_words if split_words(words) is blank_words else split_words(words)
    exact = lambda outputs, references: _of_mean(
        map(lambda one, row: one in row, outputs, references)
    )
    cider = lambda outputs, references: _of_mean(
        10 * x for x in cider_d_of_each(outputs, references, split)
    )
    by_words = OutputMetric("CIDEr-D", cider, _percent, {"words": words})
    return [OutputMetric("exact", exact, _percent), bleu, by_words, rouge.metric("rougeL")]


def _percent(sums: Sequence[float]) -> float:
    return _share(100 * sums[0], sums[1])


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _of_mean(values: Iterable[float]) -> list[list[float]]:
    """Returns the rows of a mean: each value, and 1."""
    return [[float(value), 1.0] for value in values]


def _class_metrics(labels: Sequence[str]) -> list[Metric]:
    numbers = class_numbers(labels)

    def hits(outputs: Sequence[str], references: References) -> list[list[float]]:
        return _of_mean(one == row[0] for one, row in zip(outputs, references, strict=True))

    def counts(outputs: Sequence[str], references: References) -> list[list[float]]:
        """Twice the right ones of each class, and those predicted and true."""
        rows = np.zeros((len(outputs), 2, len(labels)))
        for i, (one, row) in enumerate(zip(outputs, references, strict=True)):
            rows[i, 0, numbers[one]] = 2.0 * (one == row[0])
            for name in (one, row[0]):
                rows[i, 1, numbers[name]] += 1
        return [list(map(float, row)) for row in rows.reshape(len(outputs), -1)]

    def macro(sums: Sequence[float]) -> float:
        right, both = np.reshape(sums, (2, -1))
        return float(np.mean(right[both > 0] / both[both > 0]))

    return [OutputMetric("accuracy", hits), OutputMetric("macro F1", counts, macro)]


def _number_metrics(references: np.ndarray) -> list[Metric]:
    center, scale = references.mean(), references.std() or 1.0

    def moments(outputs: Sequence[str], references: References) -> list[list[float]]:
        x, y = (
            (np.array(one, np.float64) - center) / scale
            for one in (outputs, [*_firsts(references)])
        )
        return [
            [1.0, a, b, a * a, b * b, a * b] for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]

    def pearson(sums: Sequence[float]) -> float:
        n, x, y, xx, yy, xy = sums
        spread = (n * xx - x * x) * (n * yy - y * y)
        return (n * xy - x * y) / math.sqrt(spread) if spread > 0 else math.nan

    squares = lambda outputs, references: _of_mean(
        (float(one) - float(true)) ** 2
        for one, true in zip(outputs, _firsts(references), strict=True)
    )
    return [OutputMetric("Pearson", moments, pearson), OutputMetric("squared error", squares)]


def _firsts(references: References) -> Iterable[str]:
    return (row[0] for row in references)


def _tag_metrics(tags: set[str]) -> Sequence[Metric]:
    def words(outputs: Sequence[str], references: References) -> list[list[float]]:
        rows = []
        for one, true in zip(outputs, _firsts(references), strict=True):
            both = [a == b for a, b in zip(one.split(), true.split(), strict=True)]
            rows.append([float(sum(both)), float(len(both))])
        return rows

    def found(outputs: Sequence[str], references: References) -> list[list[float]]:
        rows = []
        for one, true in zip(outputs, _firsts(references), strict=True):
            ours, theirs = set(entities(one.split())), set(entities(true.split()))
            rows.append([2.0 * len(ours & theirs), float(len(ours) + len(theirs))])
        return rows

    accuracy = OutputMetric("accuracy", words)
    return [accuracy] + [OutputMetric("entity F1", found)] * marks_entities([*tags])


def _answer_metrics() -> list[Metric]:
    def of(score: Callable[[str, Sequence[str]], float]) -> Rows:
        def rows(outputs: Sequence[str], references: References) -> list[list[float]]:
            given = ([text for text in row if normalize_answer(text)] or [""] for row in references)
            return _of_mean(map(score, outputs, given))

        return rows

    return [OutputMetric("exact match", of(exact_match)), OutputMetric("F1", of(token_f1))]


def _language_metrics() -> list[Metric]:
    def rows(outputs: Sequence[str], references: References) -> list[list[float]]:
        numbers = (map(float, one.split()) for one in outputs)
        return [[-log_prob, tokens] for log_prob, tokens in numbers]

    def lines(outputs: Sequence[str], references: References) -> list[list[float]]:
        return _of_mean(nats for nats, _ in rows(outputs, references))

    perplexity = lambda sums: math.exp(min(_share(sums[0], sums[1]), 700.0))
    return [OutputMetric("nats a line", lines), OutputMetric("perplexity", rows, perplexity)]


def _error_metrics(tokenize: str, lowercase: bool) -> list[Metric]:
    case: Callable[[str], str] = str.lower if lowercase else str

    def of(split: Callable[[str], Sequence[str]]) -> Rows:
        def rows(outputs: Sequence[str], references: References) -> list[list[float]]:
            both = [
                (split(case(a)), split(case(b)))
                for a, b in zip(outputs, _firsts(references), strict=True)
            ]
            return [[float(sum(edit_counts(a, b))), float(len(b))] for a, b in both]

        return rows

    details = {"case": "lc" if lowercase else "mixed"}
    by = "blanks" if split_words(tokenize) is blank_words else tokenize
    words = OutputMetric("WER", of(split_words(tokenize)), _percent, {**details, "words": by})
    return [words, OutputMetric("CER", of(lambda text: [*text.strip()]), _percent, details)]


class _Rouge:
    """ROUGE by rouge-score, which is computed once for all its metrics."""

    def __init__(self, tokenize: str):
        check_installed()
        self._tokenize = tokenize
        self._scores: dict[int, tuple[Sequence[str], list[dict[str, float]]]] = {}

    def metric(self, name: str) -> Metric:
        def rows(outputs: Sequence[str], references: References) -> list[list[float]]:
            if id(outputs) not in self._scores:
                found = list(rouge_of_each(outputs, references, self._tokenize))
                self._scores[id(outputs)] = outputs, found
            return _of_mean(one[name] for one in self._scores[id(outputs)][1])

        details = {"F1": "mean", "words": self._tokenize}
        return OutputMetric(name.replace("rouge", "ROUGE-"), rows, _percent, details)


def task_report(task: OutputTask, outputs: Sequence[str], references: References) -> str:
    """Returns a report of classes or entities as lines of text; empty for other tasks."""
    sides = list(outputs), list(_firsts(references))
    if task == "regress":
        ranks = spearman(*(np.array(side, np.float64) for side in sides))
        return f"Spearman {ranks:.4f}"
    if task == "tag":
        found, true = ([one.split() for one in side] for side in sides)
        if marks_entities(sorted({tag for row in true for tag in row})):
            return entity_report(found, true)
        sides = [tag for row in found for tag in row], [tag for row in true for tag in row]
    elif task != "classify":
        return ""
    labels = sort_classes({*sides[0], *sides[1]})
    numbers = class_numbers(labels)
    predicted, true_classes = (np.array([numbers[one] for one in side]) for side in sides)
    matrix = confusion_matrix(predicted, true_classes, len(labels))
    return report_with_intervals(class_report(matrix, labels))


class PairedScores(NamedTuple):
    """Two systems by one metric.

    Attributes:
        metric: Its name.
        scores: The score of each system.
        means: The mean score of each over resamples; None without the bootstrap.
        intervals: Half of the interval that has 95% of them.
        p_value: Probability of a difference as large as this one between equal systems.
        signature: What sacreBLEU says of the metric and the test.
    """

    metric: str
    scores: tuple[float, float]
    means: tuple[float, float] | None
    intervals: tuple[float, float] | None
    p_value: float
    signature: str


def score_outputs(
    outputs: Sequence[str], references: References, metrics: Sequence[Metric]
) -> list[tuple[str, float, str]]:
    """Returns name, score and signature by each metric.

    Example:
        >>> score_outputs(["yes", "no"], [["yes"], ["yes"]], _class_metrics(("no", "yes")))[0]
        ('accuracy', 0.5, 'nrefs:1')
    """
    streams, rows = reference_streams(references), []
    for metric in metrics:
        found = metric.corpus_score(outputs, streams)  # type: ignore[arg-type]
        rows.append((str(found.name), float(found.score), str(metric.get_signature())))
    return rows


def paired_tests(
    systems: Mapping[str, Sequence[str]],
    references: References,
    metrics: Sequence[Metric],
    method: PairedMethod = "bootstrap",
) -> list[PairedScores]:
    """Returns the comparison of two systems by each metric, by sacreBLEU's paired tests.

    ``bootstrap`` draws the examples anew 1,000 times (Koehn 2004); ``randomization`` exchanges the
    outputs of the systems at random, 10,000 times (Riezler and Maxwell 2005). The seed is
    sacreBLEU's. Systems that differ in no sample have p-value 1, for which sacreBLEU has 1 / 1,001.

    Args:
        systems: The outputs of two systems by their names, of which the first is the baseline.
        references: The references of each output.
        metrics: Of the task.
        method: The test.

    Raises:
        DataError: There are too many outputs for a test in memory.
    """
    outputs, streams, rows = list(systems.items()), reference_streams(references), []
    for metric in metrics:
        one = [references[0][:1]]
        [row] = metric._extract_corpus_statistics(outputs[0][1][:1], one)
        each = 1000 * (4 * len(row) + 8) if method == "bootstrap" else 10_000 * 9
        if each * len(references) > _BYTES:
            raise DataError(
                f"{plural(len(references), 'output')}: too many for a paired test of "
                f"{metric.__class__.__name__} in memory: compare at most {_BYTES // each:,}"
            )
        name = metric.__class__.__name__
        kind = "bs" if method == "bootstrap" else "ar"
        test = PairedTest(outputs, {name: metric}, streams, kind)  # type: ignore[arg-type]
        signatures, found = test()
        for name, signature in signatures.items():
            ours, theirs = (one for one in found[name] if isinstance(one, Result))
            assert theirs.p_value is not None
            scores, p = (ours.score, theirs.score), theirs.p_value
            # sacreBLEU gives its smallest p-value to systems that differ in no sample.
            p = 1.0 if scores[0] == scores[1] and p <= 1 / (1 + test.n_samples) else p
            means, halves = _floats(ours.mean, theirs.mean), _floats(ours.ci, theirs.ci)
            rows.append(PairedScores(name, scores, means, halves, p, str(signature)))
    return rows


def _floats(
    one: float | np.floating | None, other: float | np.floating | None
) -> tuple[float, float] | None:
    """Returns Python's numbers, for JSON."""
    return None if one is None or other is None else (float(one), float(other))
