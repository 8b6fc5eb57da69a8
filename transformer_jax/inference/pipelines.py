"""``transformer_jax.pipeline``: models by tasks, arguments and results of transformers 4.57.

https://huggingface.co/docs/transformers/v4.57.6/en/main_classes/pipelines
"""

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    ClassVar,
    Literal,
    NamedTuple,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_type_hints,
    overload,
)

import numpy as np
from jaxtyping import Float

from transformer_jax.core.arguments import check_values
from transformer_jax.core.config_fields import Count, Range, nearest
from transformer_jax.core.errors import ArgumentError, ConfigError, DataError, pasted
from transformer_jax.data.images.picture_sources import ArrayPictures, PictureFiles
from transformer_jax.data.images.picture_store import ImageStore
from transformer_jax.decoding.hf_config import from_generation_config
from transformer_jax.decoding.requests import TEXT_SETTINGS
from transformer_jax.inference.base import Predictor, listed, several, truncated, warn_of_texts
from transformer_jax.inference.captions import CaptionPredictor
from transformer_jax.inference.encoding.task_runner import ScoredWindow, TaggedTokens
from transformer_jax.inference.generation import LanguageModelPredictor, TranslationPredictor
from transformer_jax.inference.images import ImagePredictor
from transformer_jax.inference.loading import Place, load
from transformer_jax.inference.speech import SpeechPredictor
from transformer_jax.inference.texts import (
    ClassificationPredictor,
    EncoderPredictor,
    QuestionAnsweringPredictor,
    RegressionPredictor,
    RewardPredictor,
    TaggingPredictor,
)

if TYPE_CHECKING:
    from PIL.Image import Image

    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts

__all__ = ["Pipeline", "pipeline"]

# --- Options and results --------------------------------------------------------------------------

Activation = Literal["default", "softmax", "sigmoid", "none"]
Strategy = Literal["none", "simple", "first", "average", "max"]
Vectors: TypeAlias = list[list[list[float]]]


class SearchOptions(TypedDict, total=False):
    """Settings of a search for texts, with the meaning of ``generate()``."""

    max_length: Count
    max_new_tokens: Count
    min_length: int
    min_new_tokens: int
    num_beams: Count
    num_return_sequences: Count
    do_sample: bool
    early_stopping: bool | Literal["never"]
    length_penalty: float
    repetition_penalty: float
    no_repeat_ngram_size: int
    encoder_repetition_penalty: float
    encoder_no_repeat_ngram_size: int
    bad_words_ids: list[list[int]]
    suppress_tokens: list[int]
    begin_suppress_tokens: list[int]
    forced_bos_token_id: int
    forced_eos_token_id: int | list[int]
    renormalize_logits: bool


class TextToTextOptions(SearchOptions, total=False):
    """Options of text2text-generation and summarization."""

    truncation: bool
    clean_up_tokenization_spaces: bool


class TranslationOptions(TextToTextOptions, total=False):
    """Options of translation."""

    src_lang: str
    tgt_lang: str


class TextGenerationOptions(SearchOptions, total=False):
    """Options of text-generation; ``seed`` is not in transformers."""

    temperature: Annotated[float, Range(above=0)]
    top_k: Annotated[int, Range(0)]
    top_p: float
    min_p: float
    seed: Annotated[int, Range(0)]
    prefix: str
    return_full_text: bool
    clean_up_tokenization_spaces: bool


class TextClassificationOptions(TypedDict, total=False):
    """Options of text-classification and sentiment-analysis."""

    top_k: Count | None
    function_to_apply: Activation
    return_all_scores: bool
    truncation: bool


class HypothesisOptions(TypedDict, total=False):
    """Options of a call of zero-shot-classification, beside the labels."""

    hypothesis_template: str
    multi_label: bool


class ZeroShotOptions(HypothesisOptions, total=False):
    """Options of zero-shot-classification."""

    candidate_labels: str | list[str]


class TokenClassificationOptions(TypedDict, total=False):
    """Options of token-classification and ner."""

    aggregation_strategy: Strategy
    grouped_entities: bool
    ignore_subwords: bool
    ignore_labels: list[str]


class QuestionAnsweringOptions(TypedDict, total=False):
    """Options of question-answering."""

    top_k: Count
    topk: Count
    max_answer_len: Count
    handle_impossible_answer: bool
    align_to_words: bool
    max_seq_len: Count
    doc_stride: Annotated[int, Range(0)]
    max_question_len: Count


class FillMaskOptions(TypedDict, total=False):
    """Options of fill-mask."""

    top_k: Count
    targets: str | list[str]


class FeatureOptions(TypedDict, total=False):
    """Options of feature-extraction."""

    truncation: bool
    return_tensors: bool


class ImageClassificationOptions(TypedDict, total=False):
    """Options of image-classification."""

    top_k: Count
    function_to_apply: Activation


class ImageToTextOptions(TypedDict, total=False):
    """Options of image-to-text; ``generate_kwargs`` holds :class:`SearchOptions`."""

    max_new_tokens: Count
    generate_kwargs: dict[str, object]


class SpeechOptions(TypedDict, total=False):
    """Options of automatic-speech-recognition.

    ``generate_kwargs`` holds settings of :class:`.SpeechPredictor`.
    """

    generate_kwargs: dict[str, object]


class GeneratedRecord(TypedDict):
    """A text of text2text-generation or image-to-text."""

    generated_text: str


class SummaryRecord(TypedDict):
    """A summary."""

    summary_text: str


class TranslationRecord(TypedDict):
    """A translation."""

    translation_text: str


class ContinuationRecord(TypedDict):
    """A text of text-generation, or for a conversation its messages with the answer."""

    generated_text: str | list[dict[str, str]]


class LabelScore(TypedDict):
    """A label and its score."""

    label: str
    score: float


class LabelRanking(TypedDict):
    """The candidate labels of a text, most probable first."""

    sequence: str
    labels: list[str]
    scores: list[float]


class TokenEntity(TypedDict):
    """A token with its tag; ``index`` counts the tokens that the model reads, special ones too."""

    entity: str
    score: float
    index: int
    word: str
    start: int
    end: int


class EntityGroup(TypedDict):
    """Neighboring tokens or words with one tag."""

    entity_group: str
    score: float
    word: str
    start: int
    end: int


class AnswerRecord(TypedDict):
    """A span of the context, with its probability."""

    score: float
    start: int
    end: int
    answer: str


class FilledMask(TypedDict):
    """A token in place of a mask, and the text with it."""

    score: float
    token: int
    token_str: str
    sequence: str


Filled: TypeAlias = list[FilledMask] | list[list[FilledMask]]  # for one mask or several


class Transcript(TypedDict):
    """The text of a recording."""

    text: str


Given = TypeVar("Given", bound=Mapping[str, object])
Record = TypeVar("Record")

# Why arguments of pipelines in transformers are not accepted here, by name.
_ELSEWHERE = "the model is computed where it was loaded: tj.pipeline(task, tj.load(path, mesh=...))"
_IN_FOLDER = "the folder of the model has it"
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("device", "device_map"), _ELSEWHERE),
    **dict.fromkeys(("dtype", "torch_dtype", "model_kwargs"), "a model has the type of training"),
    **dict.fromkeys(
        ("tokenizer", "config", "feature_extractor", "image_processor", "processor"), _IN_FOLDER
    ),
    **dict.fromkeys(("revision", "token", "use_auth_token"), "nothing is downloaded"),
    **dict.fromkeys(("framework", "use_fast", "trust_remote_code"), "models run on JAX"),
    **dict.fromkeys(("batch_size", "num_workers"), "a list is computed in batches of like lengths"),
    "padding": "texts of a list are padded as needed",
    "generation_config": "give its settings by name",
    "stop_sequence": "tj.load(path).generate has stop",
    "stride": "split the text",
    "is_split_into_words": "tj.load(path) takes lists of words",
    "timeout": "nothing is downloaded",
    "prompt": "models of pictures and a prompt are not supported",
    "return_timestamps": "a recognizer here returns texts alone",
}


class Pipeline:
    """A trained model with the arguments and results of a task of transformers 4.57.

    Options hold for every call, which may change them.

    Args:
        task: Name of the task.
        model: The loaded model.
        given: The options.

    Attributes:
        task: Name of the task.
        model: The predictor that computes, see :func:`transformer_jax.load`.

    Raises:
        ConfigError: The model is not for the task, or there is no such option.
        ArgumentError: An option has the wrong type or is out of range.
    """

    kinds: ClassVar[tuple[type[Predictor], ...]]
    options: ClassVar[type]

    model: Predictor

    def __init__(self, task: str, model: Predictor, given: Mapping[str, object]):
        self.task = task
        if not isinstance(model, self.kinds) or isinstance(model, RewardPredictor):
            fit = [name for name, one in _PIPELINES.items() if isinstance(model, one.kinds)]
            raise ConfigError(
                f"pipeline {task}: this is the model of a {type(model).__name__}, which is for "
                f"{', '.join(fit) or 'no task of pipelines: call it as tj.load returns it'}"
            )
        self.model = model
        self._given = self._checked(given)

    def _checked(self, options: Mapping[str, object]) -> dict[str, object]:
        """Returns options, which must be those of the task.

        Raises:
            ConfigError: There is no such option; the message says what to do instead.
            ArgumentError: A value has the wrong type or is out of range.
        """
        hints = get_type_hints(self.options, include_extras=True)
        for name in options:
            if name not in hints:
                reason = f" ({_REFUSED[name]})" if name in _REFUSED else nearest(name, hints)
                raise ConfigError(
                    f"pipeline {self.task}: {name} is not an option{reason}; allowed are "
                    f"{', '.join(hints)}"
                )
        check_values(f"pipeline {self.task}: ", hints, options)
        return dict(options)

    def _merged(self, options: Given) -> Given:
        """Returns the options of a call, with those of the pipeline."""
        return cast(Given, self._given | self._checked(options))


@contextlib.contextmanager
def _reading(counts: Mapping[str, int], truncation: bool) -> Iterator[None]:
    """Context manager: refuses truncated texts afterwards, or else warns of them.

    Raises:
        DataError: Texts were truncated, which ``truncation`` does not allow.
    """
    before = counts.get("cut", 0)
    with warn_of_texts(counts):
        yield
        if not truncation and (cut := counts.get("cut", 0) - before):
            raise DataError(f"{truncated(cut)}: shorten it, or give truncation=True")


def _activated(
    logits: Float[np.ndarray, "*B V"], activation: Activation, own: Activation
) -> Float[np.ndarray, "*B V"]:
    """Returns scores of labels.

    Args:
        logits: The outputs of a head.
        activation: The activation; ``default`` is ``own``.
        own: The activation of the model.
    """
    name = own if activation == "default" else activation
    if name == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-logits)))
    return _softmax(logits) if name == "softmax" else logits


def _softmax(logits: Float[np.ndarray, "*B V"]) -> Float[np.ndarray, "*B V"]:
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True))


def _own_activation(facts: "Facts", kind: str, count: int) -> Activation:
    """Returns the activation of a classifier by its ``config.json``, as in transformers."""
    fields = {} if facts.published is None else facts.published["fields"]
    problem = fields.get("problem_type") or {
        "multi_label": "multi_label_classification",
        "regress": "single_label_classification" if fields else "regression",
    }.get(kind)
    if problem == "regression":
        return "none"
    return "sigmoid" if problem == "multi_label_classification" or count == 1 else "softmax"


def _ranked(labels: Sequence[str], scores: Float[np.ndarray, " V"]) -> list[LabelScore]:
    """Returns labels with their scores, best first."""
    found = _labeled(labels, scores)
    return sorted(found, key=lambda one: one["score"], reverse=True)


def _labeled(labels: Sequence[str], scores: Float[np.ndarray, " V"]) -> list[LabelScore]:
    pairs = zip(labels, scores.tolist(), strict=True)
    return [{"label": label, "score": score} for label, score in pairs]


# --- Labels of texts ------------------------------------------------------------------------------

Pair: TypeAlias = dict[str, str]


class TextClassificationPipeline(Pipeline):
    """A classifier of texts, or of pairs ``{"text": ..., "text_pair": ...}``."""

    kinds = (ClassificationPredictor, RegressionPredictor)
    options = TextClassificationOptions

    model: ClassificationPredictor | RegressionPredictor

    @overload
    def __call__(
        self, inputs: str, **options: Unpack[TextClassificationOptions]
    ) -> list[LabelScore] | list[list[LabelScore]]: ...
    @overload
    def __call__(
        self, inputs: Pair, **options: Unpack[TextClassificationOptions]
    ) -> LabelScore | list[LabelScore]: ...
    @overload
    def __call__(
        self, inputs: list[str] | list[Pair], **options: Unpack[TextClassificationOptions]
    ) -> list[LabelScore] | list[list[LabelScore]]: ...
    def __call__(self, inputs: object, **options: Unpack[TextClassificationOptions]) -> object:
        """Returns the best label of each text, or with ``top_k`` a list of labels.

        Args:
            inputs: One text or pair, or a list.
            **options: ``top_k`` is the number of labels, None all of them; ``function_to_apply``
                to the outputs is ``softmax``, ``sigmoid`` or ``none``; ``truncation`` truncates
                long texts.

        Returns:
            For a text a list with one label, or with ``top_k`` its list of labels; for a pair a
            label, for a list a list.

        Raises:
            DataError: A text is too long, or the model reads pairs.
        """
        given = self._merged(options)
        one = isinstance(inputs, str | Mapping)
        rows = list(map(_pair_of, [inputs] if one else several(inputs)))
        scores = self._scores(rows, given)
        labels, (ranks, is_list) = self._labels(scores.shape[-1]), self._ranks(options)
        found: list[LabelScore | list[LabelScore]] = []
        for row in scores:
            every = _labeled(labels, row)
            ranked = sorted(every, key=lambda label: label["score"], reverse=True)
            if ranks == 1 and not is_list:
                found.append(ranked[0])
            else:
                found.append(ranked[:ranks] if is_list else every)
        # A text alone has a list around its result unless the call itself has top_k.
        nested = isinstance(inputs, str) and "top_k" not in options
        return found[0] if one and not nested else found

    def _ranks(self, options: TextClassificationOptions) -> tuple[int | None, bool]:
        """Returns the number of labels, and whether they are a ranking.

        ``return_all_scores`` is an earlier form of ``top_k``, so the last of both counts.
        """
        ranks: int | None = 1
        is_list = False
        for given in (cast(TextClassificationOptions, self._given), options):
            if "top_k" in given:
                ranks, is_list = given["top_k"], True
            elif given.get("return_all_scores") is not None:
                ranks = None if given["return_all_scores"] else 1
        return ranks, is_list

    def _scores(
        self, rows: list[tuple[str, str | None]], given: TextClassificationOptions
    ) -> Float[np.ndarray, "B V"]:
        runner, firsts = self.model.runner, [first for first, _ in rows]
        seconds = [second for _, second in rows if second is not None]
        if seconds and len(seconds) < len(rows):
            raise DataError("some inputs are pairs and some are single texts: give one kind a call")
        sides = self.model.sides(firsts, seconds or None)
        with _reading(runner.counts, given.get("truncation", False)):
            logits = runner.logits(*sides)
        kind = self.model.head.kind
        own = _own_activation(self.model.opened.facts, kind, logits.shape[-1])
        return _activated(logits, given.get("function_to_apply", "default"), own)

    def _labels(self, count: int) -> Sequence[str]:
        published = self.model.opened.facts.published
        names = {} if published is None else published["fields"].get("id2label") or {}
        usual = [names.get(str(i), f"LABEL_{i}") for i in range(count)]
        return self.model.labels if len(self.model.labels) == count else usual


def _pair_of(given: object) -> tuple[str, str | None]:
    """Returns the texts of an input.

    Raises:
        ArgumentError: It is neither a text nor a pair.
    """
    if isinstance(given, Mapping) and {*given} <= {"text", "text_pair"} and "text" in given:
        [first], second = listed(given["text"]), given.get("text_pair")
        return first, None if second is None else listed(second)[0]
    if not isinstance(given, str):
        raise ArgumentError(
            f"{str(given)[:40]!r} is {type(given).__name__}: a text, or a pair "
            f'{{"text": ..., "text_pair": ...}}, is needed'
        )
    return given, None


class ZeroShotClassificationPipeline(Pipeline):
    """Labels of texts by a classifier of pairs that knows entailment."""

    kinds = (ClassificationPredictor,)
    options = ZeroShotOptions

    model: ClassificationPredictor

    def __init__(self, task: str, model: Predictor, given: Mapping[str, object]):
        super().__init__(task, model, given)
        labels = [label.lower() for label in self.model.labels]
        entails = [i for i, label in enumerate(labels) if label.startswith("entail")]
        if not entails:
            raise ConfigError(
                f"pipeline {task}: no label of {self.model.opened.facts.source} begins with "
                f"entail: {', '.join(self.model.labels)}; name it in id2label of config.json"
            )
        self._entails = entails[0]

    @overload
    def __call__(
        self,
        sequences: str,
        candidate_labels: str | list[str] | None = ...,
        **options: Unpack[HypothesisOptions],
    ) -> LabelRanking: ...
    @overload
    def __call__(
        self,
        sequences: list[str],
        candidate_labels: str | list[str] | None = ...,
        **options: Unpack[HypothesisOptions],
    ) -> list[LabelRanking]: ...
    def __call__(
        self,
        sequences: str | list[str],
        candidate_labels: str | list[str] | None = None,
        **options: Unpack[HypothesisOptions],
    ) -> LabelRanking | list[LabelRanking]:
        """Returns the candidate labels of each text with their probabilities, best first.

        The probability of a label is the softmax of the entailment of its hypothesis over all
        labels; with ``multi_label``, or one label, over entailment and contradiction.

        Args:
            sequences: One text, or a list.
            candidate_labels: The labels, or a text with commas between them.
            **options: ``hypothesis_template`` has ``{}`` in place of the label.

        Raises:
            ConfigError: There are no labels, or the template has no place for them.
            DataError: A hypothesis leaves no room for the text.
        """
        called: ZeroShotOptions = {**options}
        if candidate_labels is not None:
            called["candidate_labels"] = candidate_labels
        given, texts = self._merged(called), listed(sequences)
        labels = given.get("candidate_labels", [])
        if isinstance(labels, str):
            labels = [label.strip() for label in labels.split(",") if label.strip()]
        template = given.get("hypothesis_template", "This example is {}.")
        if not labels or not texts or template.format(labels[0]) == template:
            raise ConfigError(
                f"pipeline {self.task}: candidate_labels {labels} and hypothesis_template "
                f"{template!r}: at least one text and one label are needed, and {{}} for the label"
            )
        pairs = [(text, template.format(label)) for text in texts for label in labels]
        runner = self.model.runner
        sides = self.model.sides(*map(list, zip(*pairs, strict=True)))
        with warn_of_texts(runner.counts):
            logits = runner.logits(*sides, whole_seconds=True)
        logits = logits.reshape(len(texts), len(labels), -1)
        if given.get("multi_label", False) or len(labels) == 1:
            contradicts = -1 if self._entails == 0 else 0
            scores = _softmax(logits[..., [contradicts, self._entails]])[..., 1]
        else:
            scores = _softmax(logits[..., self._entails])
        found: list[LabelRanking] = []
        for text, row in zip(texts, scores, strict=True):
            order = row.argsort()[::-1]
            names = [labels[i] for i in order]
            found.append({"sequence": text, "labels": names, "scores": row[order].tolist()})
        return found[0] if isinstance(sequences, str) else found


# --- Tags of tokens -------------------------------------------------------------------------------


class _PieceOfText(NamedTuple):
    """A token, or the tokens of a word."""

    word: str
    shares: Float[np.ndarray, " V"]
    start: int
    end: int
    place: int
    continues: bool  # the word of the piece before it


class TokenClassificationPipeline(Pipeline):
    """A tagger of tokens, or of neighboring tokens with one tag."""

    kinds = (TaggingPredictor,)
    options = TokenClassificationOptions

    model: TaggingPredictor

    def __init__(self, task: str, model: Predictor, given: Mapping[str, object]):
        super().__init__(task, model, given)
        if self.model.head.kind != "tag":
            raise ConfigError(f"pipeline {task}: a discriminator of replaced tokens has no tags")

    @overload
    def __call__(
        self, inputs: str, **options: Unpack[TokenClassificationOptions]
    ) -> list[TokenEntity] | list[EntityGroup]: ...
    @overload
    def __call__(
        self, inputs: list[str], **options: Unpack[TokenClassificationOptions]
    ) -> list[list[TokenEntity]] | list[list[EntityGroup]]: ...
    def __call__(
        self, inputs: str | list[str], **options: Unpack[TokenClassificationOptions]
    ) -> object:
        """Returns the tagged tokens of each text, or with a strategy its entities.

        Args:
            inputs: One text, or a list.
            **options: ``aggregation_strategy`` is ``none`` for tokens, ``simple`` for neighboring
                tokens with one tag; ``first``, ``average`` and ``max`` give each word one tag
                before. ``ignore_labels`` are left out, by default ``O``.
        """
        given, texts = self._merged(options), listed(inputs)
        strategy, ignored = self._strategy(options), given.get("ignore_labels", ["O"])
        with warn_of_texts(self.model.runner.counts):
            rows = self.model.runner.tokens(texts)
        found: list[list[TokenEntity] | list[EntityGroup]] = []
        for text, tokens in zip(texts, rows, strict=True):
            pieces = list(_pieces(text, tokens, self.model.tokenizer))
            if strategy in ("first", "average", "max"):
                pieces = _words(pieces, strategy, self.model.tokenizer)
            entities = [_entity(piece, self.model.labels) for piece in pieces]
            if strategy == "none":
                found.append([one for one in entities if one["entity"] not in ignored])
                continue
            groups = _groups(entities, self.model.tokenizer)
            found.append([one for one in groups if one["entity_group"] not in ignored])
        return found[0] if isinstance(inputs, str) else found

    def _strategy(self, options: TokenClassificationOptions) -> Strategy:
        """Returns the strategy, of which ``grouped_entities`` is an earlier form."""
        found: Strategy = "none"
        for given in (cast(TokenClassificationOptions, self._given), options):
            if {"grouped_entities", "ignore_subwords"} & given.keys():
                grouped: Strategy = "first" if given.get("ignore_subwords") else "simple"
                found = grouped if given.get("grouped_entities") else "none"
            else:
                found = given.get("aggregation_strategy", found)
        return found


def _pieces(text: str, tokens: TaggedTokens, tokenizer: "Tokenizer") -> Iterator[_PieceOfText]:
    """Yields the tokens of a text."""
    marks = tokenizer.marks_continuations
    for i, (id, (start, end)) in enumerate(zip(tokens.ids, tokens.spans, strict=True)):
        word = tokenizer.name(id)
        if id == tokenizer.unk:
            word, continues = text[start:end], False
        elif marks:
            continues = len(word) != end - start
        else:
            continues = start > 0 and " " not in text[start - 1 : start + 1]
        yield _PieceOfText(word, tokens.shares[i], start, end, tokens.first + i, continues)


def _words(
    pieces: Sequence[_PieceOfText], strategy: Strategy, tokenizer: "Tokenizer"
) -> list[_PieceOfText]:
    """Returns words, each with the shares of its first or surest token, or their mean."""
    groups: list[list[_PieceOfText]] = []
    for piece in pieces:
        if groups and piece.continues:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    found = []
    for group in groups:
        shares = group[0].shares
        if strategy == "max":
            shares = max(group, key=lambda piece: piece.shares.max()).shares
        elif strategy == "average":
            shares = np.mean([piece.shares for piece in group], axis=0)
        word = tokenizer.join([piece.word for piece in group])
        found.append(group[0]._replace(word=word, shares=shares, end=group[-1].end))
    return found


def _entity(piece: _PieceOfText, labels: Sequence[str]) -> TokenEntity:
    best = int(np.argmax(piece.shares))
    return {
        "entity": labels[best],
        "score": float(piece.shares[best]),
        "index": piece.place,
        "word": piece.word,
        "start": piece.start,
        "end": piece.end,
    }


def _groups(entities: Sequence[TokenEntity], tokenizer: "Tokenizer") -> list[EntityGroup]:
    """Returns neighbors with one tag as one entity; a tag with B- begins another."""
    groups: list[list[TokenEntity]] = []
    for entity in entities:
        kind = _kind_of(entity["entity"])
        begins = entity["entity"].startswith("B-")
        if groups and not begins and kind == _kind_of(groups[-1][-1]["entity"]):
            groups[-1].append(entity)
        else:
            groups.append([entity])
    return [
        {
            "entity_group": group[0]["entity"].split("-", 1)[-1],
            "score": float(np.mean([one["score"] for one in group])),
            "word": tokenizer.join([one["word"] for one in group]),
            "start": group[0]["start"],
            "end": group[-1]["end"],
        }
        for group in groups
    ]


def _kind_of(tag: str) -> str:
    return tag[2:] if tag.startswith(("B-", "I-")) else tag


# --- Answers --------------------------------------------------------------------------------------

_SEQUENCE = 384  # tokens of question and window
_STRIDE = 128  # tokens that neighboring windows share


class QuestionAnsweringPipeline(Pipeline):
    """Answers to questions by spans of a context."""

    kinds = (QuestionAnsweringPredictor,)
    options = QuestionAnsweringOptions

    model: QuestionAnsweringPredictor

    def __call__(
        self,
        *inputs: str | Mapping[str, str] | Sequence[Mapping[str, str]],
        question: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        **options: Unpack[QuestionAnsweringOptions],
    ) -> AnswerRecord | list[AnswerRecord] | list[AnswerRecord | list[AnswerRecord]]:
        """Returns the answer to a question, with ``top_k`` a list of answers; or a list of these.

        The score of a span is the product of the probabilities of its start and its end among the
        tokens of a window, summed over spans with the same text.

        Args:
            *inputs: A question and its context, an object with both, or a list of these.
            question: One question, or a list.
            context: The context of all questions, or one for each.
            **options: ``top_k`` answers of up to ``max_answer_len`` tokens; with
                ``handle_impossible_answer``, "" is an answer. A context is read in windows of
                ``max_seq_len`` tokens that share ``doc_stride``.

        Raises:
            ArgumentError: Questions and contexts are not texts, or their numbers differ.
            ConfigError: Windows would not move on.
        """
        given = self._merged(options)
        pairs = _questions(inputs, question, context)
        with warn_of_texts(self.model.runner.counts):
            found = [self._answers(*pair, given) for pair in pairs]
        return found[0] if len(found) == 1 else found

    def _answers(
        self, question: str, context: str, given: QuestionAnsweringOptions
    ) -> AnswerRecord | list[AnswerRecord]:
        length = given.get("max_seq_len", min(self.model.head.length, _SEQUENCE))
        if length > self.model.head.length:
            most = self.model.head.length
            raise ConfigError(f"max_seq_len is {length}: this model reads at most {most}")
        windows = self.model.runner.windows(
            question,
            context,
            length=length,
            stride=given.get("doc_stride", min(length // 2, _STRIDE)),
            max_question=given.get("max_question_len"),
        )
        most = given.get("top_k", given.get("topk", 1))
        align, longest = given.get("align_to_words", True), given.get("max_answer_len", 15)
        # Words may make one answer of several spans.
        spans = [_best_spans(one, 2 * most + 10 if align else most, longest) for one in windows]
        found: dict[str, AnswerRecord] = {}
        for window, best in zip(windows, spans, strict=True):
            places = window.words if align else window.spans
            for first, last, score in best:
                start, end = int(places[first, 0]), int(places[last, 1])
                text = context[start:end]
                known = found.setdefault(
                    text.lower(), {"score": 0.0, "start": start, "end": end, "answer": text}
                )
                known["score"] += score
        answers = list(found.values())
        if given.get("handle_impossible_answer", False):
            nothing = min(map(_null_score, windows))
            answers.append({"score": nothing, "start": 0, "end": 0, "answer": ""})
        answers = sorted(answers, key=lambda one: one["score"], reverse=True)[:most]
        return answers[0] if len(answers) == 1 else answers


def _questions(
    inputs: Sequence[object], question: object, context: object
) -> list[tuple[str, str]]:
    """Returns the questions of a call with their contexts.

    Raises:
        ArgumentError: They are not texts, or their numbers differ.
    """
    if inputs and (question is not None or context is not None):
        raise ArgumentError("give question and context by name, or as the first argument")
    if inputs and not all(isinstance(one, str) for one in inputs):
        rows = [
            row for one in inputs for row in ([one] if isinstance(one, Mapping) else several(one))
        ]
        if not all(isinstance(row, Mapping) and {*row} == {"question", "context"} for row in rows):
            raise ArgumentError('inputs: {"question": ..., "context": ...} or a list is needed')
        question, context = [row["question"] for row in rows], [row["context"] for row in rows]
    elif inputs:
        if len(inputs) != 2:
            raise ArgumentError("a question and its context are needed")
        question, context = inputs
    questions, contexts = listed(question), listed(context)
    if isinstance(context, str):
        contexts = contexts * len(questions)
    if len(questions) != len(contexts) or not all((*questions, *contexts)):
        raise ArgumentError("question, context: as many contexts as questions, none of them empty")
    return list(zip(questions, contexts, strict=True))


def _shares_of(window: ScoredWindow) -> Float[np.ndarray, "T 2"]:
    """Returns the probabilities that an answer starts and ends at each token; 0 is no answer."""
    allowed = window.spans[:, 0] >= 0
    allowed[0] = True
    logits = np.where(allowed[:, None], window.logits, -10_000.0)
    return _softmax(logits.T).T


def _null_score(window: ScoredWindow) -> float:
    return float(np.prod(_shares_of(window)[0]))


def _best_spans(window: ScoredWindow, count: int, longest: int) -> list[tuple[int, int, float]]:
    """Returns the first and last tokens of the most probable spans, with their probabilities."""
    shares = _shares_of(window)
    shares[0] = 0
    products = np.tril(np.triu(np.outer(shares[:, 0], shares[:, 1])), longest - 1)
    best = np.argsort(-products, axis=None, kind="stable")[:count].tolist()
    places = [divmod(flat, len(shares)) for flat in best]
    return [(i, j, float(products[i, j])) for i, j in places if products[i, j] > 0]


# --- Masks and vectors ----------------------------------------------------------------------------


class FillMaskPipeline(Pipeline):
    """The most probable tokens at the masks of a text."""

    kinds = (EncoderPredictor,)
    options = FillMaskOptions

    model: EncoderPredictor

    def __call__(
        self, inputs: str | list[str], **options: Unpack[FillMaskOptions]
    ) -> Filled | list[Filled]:
        """Returns the most probable tokens of a text with a mask, best first.

        Args:
            inputs: One text, or a list; a list of one text is the text.
            **options: ``top_k`` tokens, by default 5, of all or of ``targets``.

        Returns:
            A list; of lists, one per mask, if a text has several; of these for several texts.

        Raises:
            ConfigError: The model does not fill masks, or ``top_k`` is above the vocabulary.
            DataError: A text has no mask, or exceeds the model's context.
        """
        given, texts = self._merged(options), listed(inputs)
        filler = self.model.filler()
        with warn_of_texts(filler.counts):
            shares = filler.probabilities(texts)
        targets = self._targets(given["targets"]) if "targets" in given else None
        count = min(given.get("top_k", 5), len(targets or range(shares[0].shape[-1])))
        found = [
            self._filled(filler.encode(text), row, count, targets)
            for text, row in zip(texts, shares, strict=True)
        ]
        return found[0] if len(found) == 1 else found

    def _filled(
        self,
        ids: list[int],
        shares: Float[np.ndarray, "masks V"],
        count: int,
        targets: list[int] | None,
    ) -> Filled:
        tokenizer = self.model.tokenizer
        places = [i for i, id in enumerate(ids) if id == tokenizer.mask]
        found: list[list[FilledMask]] = []
        for place, row in zip(places, shares, strict=True):
            allowed = np.arange(len(row)) if targets is None else np.array(targets)
            best = allowed[np.argsort(-row[allowed], kind="stable")[:count]]
            filled: list[FilledMask] = []
            for token in best.tolist():
                whole = [*ids[:place], token, *ids[place + 1 :]]
                whole = [id for id in whole if id != tokenizer.pad]
                # With several masks, the others are shown.
                text = tokenizer.decode(whole) if len(places) == 1 else _spelt(whole, tokenizer)
                name = _spelt([token], tokenizer)
                filled.append(
                    {
                        "score": float(row[token]),
                        "token": token,
                        "token_str": name,
                        "sequence": text,
                    }
                )
            found.append(filled)
        return found[0] if len(found) == 1 else found

    def _targets(self, targets: str | list[str]) -> list[int]:
        """Returns the tokens of targets; of a target that is no token, its first token.

        Raises:
            DataError: A target has no tokens.
        """
        found, tokenizer = list[int](), self.model.tokenizer
        for target in listed(targets):
            try:
                found.append(tokenizer.token_id(target))
            except DataError:
                first = tokenizer.encode(target)[:1]
                if not first:
                    raise DataError(f"target {target!r} has no tokens: leave it out") from None
                name = tokenizer.name(first[0])
                warnings.warn(f"target {target!r} is no token: {name!r} is taken", stacklevel=4)
                found += first
        return list(dict.fromkeys(found))


def _spelt(ids: Iterable[int], tokenizer: "Tokenizer") -> str:
    """Returns the text of tokens, special ones too."""
    return tokenizer.join([tokenizer.name(id) for id in ids])


class FeatureExtractionPipeline(Pipeline):
    """Vectors of the tokens of texts, special ones too, by the last layer of an encoder."""

    kinds = (
        EncoderPredictor,
        ClassificationPredictor,
        RegressionPredictor,
        TaggingPredictor,
        QuestionAnsweringPredictor,
    )
    options = FeatureOptions

    model: EncoderPredictor

    @overload
    def __call__(
        self, inputs: str, **options: Unpack[FeatureOptions]
    ) -> Vectors | Float[np.ndarray, "1 T D"]: ...
    @overload
    def __call__(
        self, inputs: list[str], **options: Unpack[FeatureOptions]
    ) -> list[Vectors] | list[Float[np.ndarray, "1 T D"]]: ...
    def __call__(self, inputs: str | list[str], **options: Unpack[FeatureOptions]) -> object:
        """Returns the vectors of each text as nested lists ``[1][tokens][D]``.

        Args:
            inputs: One text, or a list.
            **options: ``truncation`` truncates long texts; ``return_tensors`` gives arrays.

        Raises:
            ConfigError: The model is a fine-tuned decoder.
            DataError: A text is too long.
        """
        given, texts = self._merged(options), listed(inputs)
        vectors = self.model.vectors
        with _reading(vectors.counts, given.get("truncation", False)):
            blocks = list(vectors.embed(texts, pool="none"))
        rows = [
            row[None]
            for block in blocks
            for row in np.split(block.vectors, np.cumsum(block.lengths)[:-1])
        ]
        found = rows if given.get("return_tensors") else [row.tolist() for row in rows]
        return found[0] if isinstance(inputs, str) else found


# --- Generated texts ------------------------------------------------------------------------------

_NEW_TOKENS = 256
_NO_LIMIT = (None, 20)  # of max_length in a folder: 20 is the default of transformers


class _Generating(Pipeline):
    """A search for texts with the settings of a folder, of its task, and of a call."""

    usual: ClassVar[Mapping[str, object]] = {"max_new_tokens": _NEW_TOKENS}

    model: TranslationPredictor | LanguageModelPredictor | CaptionPredictor

    def _published(self, name: Literal["fields", "generation"]) -> Mapping[str, object]:
        published = self.model.opened.facts.published
        return {} if published is None else published[name]

    def _task_settings(self) -> dict[str, object]:
        """Returns what ``config.json`` says about the task: settings, and ``prefix``."""
        tasks = self._published("fields").get("task_specific_params")
        own = tasks.get(self.task) if isinstance(tasks, dict) else None
        return dict(own) if isinstance(own, dict) else {}

    def _search_settings(self, given: Mapping[str, object]) -> dict[str, object]:
        """Returns the settings that override the folder's generation config.

        As in transformers 4.57, the defaults of a pipeline go before the folder's settings, except
        that its ``max_length`` goes before the default ``max_new_tokens``. A length of the call
        goes before all.
        """
        folder, settings = self._published("generation"), dict(self.usual)
        if folder.get("max_length") not in _NO_LIMIT:
            settings.pop("max_new_tokens", None)
        settings |= self._task_settings()
        for length, new in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
            if length in given and new not in given:
                settings[new] = None
        names = get_type_hints(SearchOptions)
        settings |= {name: value for name, value in given.items() if name in names}
        return {name: value for name, value in settings.items() if name in names}

    def _read(self, settings: Mapping[str, object]) -> dict[str, object]:
        """Returns settings with the types of :class:`.GenerationConfig`."""
        both = {**self._published("generation"), **settings}
        read = from_generation_config(both)  # type: ignore[arg-type]
        return {
            name: None if value is None else getattr(read, name) for name, value in settings.items()
        }


def _records(
    rows: Iterable[Sequence[str]], one: bool, record: Callable[[str], Record]
) -> list[Record] | list[list[Record]]:
    """Returns the texts of each input as records: a list, or lists if an input has several."""
    found = [[record(text) for text in row] for row in rows]
    if one:
        return found[0]
    return [row[0] for row in found] if all(len(row) == 1 for row in found) else found


def _cleaned(text: str) -> str:
    """Removes the blanks before punctuation and within English contractions.

    Source: ``clean_up_tokenization`` of Hugging Face transformers.

    Example:
        >>> _cleaned("do n't , he said .")
        "don't, he said."
    """
    for mark in (".", "?", "!", ","):
        text = text.replace(f" {mark}", mark)
    text = text.replace(" ' ", "'")
    for ending in ("n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {ending}", ending)
    return text


class TextToTextPipeline(_Generating):
    """A search for texts by an encoder-decoder."""

    kinds = (TranslationPredictor,)
    options: ClassVar[type] = TextToTextOptions
    usual: ClassVar[Mapping[str, object]] = {"max_new_tokens": _NEW_TOKENS, "num_beams": 4}

    model: TranslationPredictor

    def __init__(self, task: str, model: Predictor, given: Mapping[str, object]):
        super().__init__(task, model, given)
        kind = self.model.opened.facts.record["model"].get("kind")
        if self.model.folder_search is None or kind == "recurrent":
            raise ConfigError(
                f"pipeline {task}: a Transformer on JAX is needed: call this model as tj.load "
                f"returns it"
            )
        self._search = self.model.folder_search
        if self._published("generation").get("do_sample") is True and "do_sample" not in given:
            raise ConfigError(
                f"pipeline {task}: generation_config.json samples, and this is beam search: give "
                f"do_sample=False"
            )

    @overload
    def __call__(
        self, texts: str, **options: Unpack[TextToTextOptions]
    ) -> list[GeneratedRecord]: ...
    @overload
    def __call__(
        self, texts: list[str], **options: Unpack[TextToTextOptions]
    ) -> list[GeneratedRecord] | list[list[GeneratedRecord]]: ...
    def __call__(self, texts: str | list[str], **options: Unpack[TextToTextOptions]) -> object:
        """Returns the texts for a text, best first, or a list for several texts.

        Args:
            texts: One text, or a list.
            **options: Settings of the search, by default 4 beams and 256 new tokens;
                ``truncation`` truncates long texts; ``clean_up_tokenization_spaces`` removes
                blanks before punctuation.

        Raises:
            ConfigError: A setting is not supported, or contradicts another.
            DataError: A text is too long.
        """
        rows = self._texts(texts, self._merged(options))
        return _records(rows, isinstance(texts, str), lambda text: {"generated_text": text})

    def _texts(
        self,
        inputs: str | Sequence[str],
        given: TextToTextOptions,
        from_: str | None = None,
        to: str | None = None,
    ) -> list[list[str]]:
        """Returns the texts for each input, best first."""
        texts = listed(inputs)
        if given.get("do_sample"):
            raise ConfigError(
                f"pipeline {self.task}: do_sample: this is beam search: leave it out, or call "
                f"tj.load(path)(text, do_sample=True, num_beams=1)"
            )
        prefix = self._task_settings().get("prefix") or self._published("fields").get("prefix")
        found = self._search(
            [f"{prefix or ''}{text}" for text in texts],
            self._read(self._search_settings(given)),
            self.model.directions(from_, to, len(texts)),
            too_long="truncate" if given.get("truncation") else "error",
        )
        clean = _cleaned if given.get("clean_up_tokenization_spaces") else str
        with warn_of_texts(self._search.counts):
            return [[clean(one.text) for one in row] for row in found]


class SummarizationPipeline(TextToTextPipeline):
    """A search for summaries."""

    @overload  # type: ignore[override]
    def __call__(self, texts: str, **options: Unpack[TextToTextOptions]) -> list[SummaryRecord]: ...
    @overload
    def __call__(
        self, texts: list[str], **options: Unpack[TextToTextOptions]
    ) -> list[SummaryRecord] | list[list[SummaryRecord]]: ...
    def __call__(self, texts: str | list[str], **options: Unpack[TextToTextOptions]) -> object:
        """Returns the summaries of a text, see :meth:`TextToTextPipeline.__call__`."""
        rows = self._texts(texts, self._merged(options))
        return _records(rows, isinstance(texts, str), lambda text: {"summary_text": text})


class TranslationPipeline(TextToTextPipeline):
    """A search for translations."""

    options: ClassVar[type] = TranslationOptions

    def __init__(self, task: str, model: Predictor, given: Mapping[str, object]):
        super().__init__(task, model, given)
        tasks = self._published("fields").get("task_specific_params")
        names = map(str, tasks) if isinstance(tasks, dict) else ()
        known = [name for name in names if name.startswith("translation")]
        if known and task == "translation":
            self.task = known[0]
            warnings.warn(f"translation: {self.task} is taken, of {', '.join(known)}", stacklevel=4)
        elif known and task not in known:
            raise ConfigError(f"task is {task}: this model has {', '.join(known)}")

    @overload  # type: ignore[override]
    def __call__(
        self, texts: str, **options: Unpack[TranslationOptions]
    ) -> list[TranslationRecord]: ...
    @overload
    def __call__(
        self, texts: list[str], **options: Unpack[TranslationOptions]
    ) -> list[TranslationRecord] | list[list[TranslationRecord]]: ...
    def __call__(self, texts: str | list[str], **options: Unpack[TranslationOptions]) -> object:
        """Returns the translations of a text, see :meth:`TextToTextPipeline.__call__`.

        Args:
            texts: One text, or a list.
            **options: See :meth:`TextToTextPipeline.__call__`; ``src_lang`` and ``tgt_lang`` are
                the languages of a multilingual model.
        """
        given = self._merged(options)
        from_, to = given.get("src_lang"), given.get("tgt_lang")
        named = _DIRECTION.fullmatch(self.task)
        if (from_, to) == (None, None) and named and self.model.languages:
            from_, to = named.groups()
        rows = self._texts(texts, given, from_, to)
        return _records(rows, isinstance(texts, str), lambda text: {"translation_text": text})


_DIRECTION = re.compile("translation_(.+)_to_(.+)")
Chat: TypeAlias = list[dict[str, str]]
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")


class TextGenerationPipeline(_Generating):
    """Continuations of texts, and answers to conversations, by a language model."""

    kinds = (LanguageModelPredictor,)
    options = TextGenerationOptions

    model: LanguageModelPredictor

    @overload
    def __call__(
        self, text_inputs: str | Chat, **options: Unpack[TextGenerationOptions]
    ) -> list[ContinuationRecord]: ...
    @overload
    def __call__(
        self, text_inputs: list[str] | list[Chat], **options: Unpack[TextGenerationOptions]
    ) -> list[list[ContinuationRecord]]: ...
    def __call__(self, text_inputs: object, **options: Unpack[TextGenerationOptions]) -> object:
        """Returns texts that continue a prompt, or for several prompts a list of these.

        Texts are sampled at temperature 0.7 from the 50 most probable tokens, unless ``do_sample``
        is False. The same ``seed`` gives the same texts.

        Args:
            text_inputs: One prompt or a list; or messages with ``role`` and ``content``, or a list
                of conversations.
            **options: Settings of the search, by default 256 new tokens; ``return_full_text``
                False leaves the prompt out; ``prefix`` is read before the prompt.

        Raises:
            ConfigError: A setting is not supported, or contradicts another; or the model has no
                chat template.
        """
        given = self._merged(options)
        given["do_sample"] = given.get("do_sample", True)
        if not given["do_sample"] and (drawn := [name for name in _SAMPLING if name in given]):
            raise ConfigError(
                f"pipeline {self.task}: {drawn[0]} is for sampling: leave it out, or do_sample"
            )
        inputs = [text_inputs] if isinstance(text_inputs, str) else several(text_inputs)
        one = isinstance(text_inputs, str) or (bool(inputs) and isinstance(inputs[0], Mapping))
        if inputs and not isinstance(inputs[0], str):
            chats = cast(list[Chat], [inputs] if one else inputs)
            found = [self._answer(chat, given) for chat in chats]
        else:
            prompts = listed(inputs)
            found = [
                [{"generated_text": self._whole(prompt, text, given)} for text in texts]
                for prompt, texts in zip(prompts, self._texts(prompts, given), strict=True)
            ]
        return found[0] if one else found

    def _texts(self, prompts: list[str], given: TextGenerationOptions) -> list[list[str]]:
        """Returns the continuations of each prompt."""
        prompts = [given.get("prefix", "") + prompt for prompt in prompts]
        if given["do_sample"]:
            found = self.model.generate(prompts, generation_config=None, **self._sampling(given))
            return [[str(text), *map(str, text.alternatives)] for text in found]
        search = self.model.folder_search
        if search is None:
            raise ConfigError(
                f"pipeline {self.task}: do_sample=False needs a decoder on JAX without a choice of "
                f"adapters"
            )
        with warn_of_texts(search.counts):
            rows = search(prompts, self._read(self._search_settings(given)))
            return [[one.text for one in row] for row in rows]

    def _sampling(self, given: TextGenerationOptions) -> dict[str, object]:
        """Returns the settings of sampling: of the call, of the pipeline, and of the folder."""
        folder = self._published("generation")
        settings = {name: folder[name] for name in TEXT_SETTINGS if folder.get(name) is not None}
        settings = {"top_k": 50, **settings, "temperature": 0.7, "num_beams": 1}
        settings |= {name: given[name] for name in _SAMPLING if name in given}  # type: ignore[literal-required]
        settings |= self._search_settings(given)
        return {name: value for name, value in settings.items() if (name, value) != ("top_k", 0)}

    def _whole(self, prompt: str, text: str, given: TextGenerationOptions) -> str:
        """Returns a text after its prompt, without blanks before punctuation."""
        if given.get("clean_up_tokenization_spaces", True):
            tokenizer = self.model.tokenizer
            [ids] = tokenizer.encode_batch([given.get("prefix", "") + prompt])
            read = tokenizer.decode(ids)
            text = _cleaned(read + text)[len(_cleaned(read)) :]
        return prompt + text if given.get("return_full_text", True) else text

    def _answer(self, chat: Chat, given: TextGenerationOptions) -> list[ContinuationRecord]:
        """Returns a conversation with its answer."""
        settings = self._sampling(given)
        if not given["do_sample"]:
            settings = self._search_settings(given) | {"temperature": 0.0}
        text = str(self.model.chat(chat, generation_config=None, **settings))
        if not given.get("return_full_text", True):
            return [{"generated_text": text}]
        return [{"generated_text": [*chat, {"role": "assistant", "content": text}]}]


# --- Pictures and recordings ----------------------------------------------------------------------

Picture: TypeAlias = "str | os.PathLike[str] | Image"


def _pictures(inputs: object, task: str) -> list[str | np.ndarray]:
    """Returns pictures of a call as paths or pixels.

    Raises:
        ArgumentError: One is neither a path nor a picture of Pillow.
        ConfigError: One is an address, since nothing is downloaded.
    """
    from PIL import Image

    given = inputs if isinstance(inputs, list | tuple) else [inputs]
    found: list[str | np.ndarray] = []
    for one in given:
        if isinstance(one, Image.Image):
            found.append(np.asarray(one.convert("RGB")))
            continue
        if not isinstance(one, str | os.PathLike):
            kind = type(one).__name__
            raise ArgumentError(f"{task}: {kind}: a path or a picture of Pillow is needed")
        if str(one).startswith(("http://", "https://")):
            raise ConfigError(
                f"{task}: nothing is downloaded: get the picture with {pasted('curl', '-O', one)}"
            )
        found.append(os.fspath(one))
    return found


class ImageClassificationPipeline(Pipeline):
    """A classifier of pictures."""

    kinds = (ImagePredictor,)
    options = ImageClassificationOptions

    model: ImagePredictor

    @overload
    def __call__(
        self, inputs: Picture, **options: Unpack[ImageClassificationOptions]
    ) -> list[LabelScore]: ...
    @overload
    def __call__(
        self, inputs: list[Picture], **options: Unpack[ImageClassificationOptions]
    ) -> list[list[LabelScore]]: ...
    def __call__(self, inputs: object, **options: Unpack[ImageClassificationOptions]) -> object:
        """Returns the labels of a picture, best first, or for several pictures a list of these.

        Args:
            inputs: A path, a picture of Pillow, or a list.
            **options: ``top_k`` labels, by default 5; ``function_to_apply`` to the outputs is
                ``softmax``, ``sigmoid`` or ``none``.

        Raises:
            ConfigError: The model has no classifier.
            DataError: A file cannot be read as a picture.
        """
        given = self._merged(options)
        logits = self.model.logits(self._images(_pictures(inputs, self.task)))
        own = _own_activation(self.model.opened.facts, "classify", len(self.model.labels))
        activation = given.get("function_to_apply", "default")
        found = [
            _ranked(self.model.labels, _activated(row, activation, own))[: given.get("top_k", 5)]
            for row in logits
        ]
        return found if isinstance(inputs, list | tuple) else found[0]

    def _images(
        self, pictures: list[str | np.ndarray]
    ) -> list[str | np.ndarray] | Float[np.ndarray, "B height width C"]:
        """Returns the paths of pictures, or normalized pixels if some are in memory."""
        if all(isinstance(one, str) for one in pictures):
            return pictures
        read = [
            PictureFiles([one]) if isinstance(one, str) else ArrayPictures(one[None], "picture")
            for one in pictures
        ]
        form = self.model.form
        return np.concatenate([ImageStore(one, form).batch(np.zeros(1, int)) for one in read])


class ImageToTextPipeline(_Generating):
    """Captions of pictures."""

    kinds = (CaptionPredictor,)
    options = ImageToTextOptions

    model: CaptionPredictor

    @overload
    def __call__(
        self, inputs: Picture, **options: Unpack[ImageToTextOptions]
    ) -> list[GeneratedRecord]: ...
    @overload
    def __call__(
        self, inputs: list[Picture], **options: Unpack[ImageToTextOptions]
    ) -> list[list[GeneratedRecord]]: ...
    def __call__(self, inputs: object, **options: Unpack[ImageToTextOptions]) -> object:
        """Returns the captions of a picture, best first, or for several pictures a list of these.

        Args:
            inputs: A path, a picture of Pillow, or a list.
            **options: ``max_new_tokens``, by default 256; ``generate_kwargs`` holds more settings
                of the search by name.

        Raises:
            ConfigError: A setting is not supported, or contradicts another.
            DataError: A file cannot be read as a picture.
        """
        given = self._merged(options)
        search = dict(given.get("generate_kwargs", {}))
        check_values(f"pipeline {self.task}: ", get_type_hints(SearchOptions), search)
        if odd := [name for name in search if name not in get_type_hints(SearchOptions)]:
            raise ConfigError(f"pipeline {self.task}: {odd[0]} is not a setting of the search")
        if "max_new_tokens" in given:
            search["max_new_tokens"] = given["max_new_tokens"]
        if search.pop("do_sample", False):
            raise ConfigError(f"pipeline {self.task}: do_sample: this is beam search: leave it out")
        pictures = _pictures(inputs, self.task)
        read = [self.model.picture(one, i) for i, one in enumerate(pictures, 1)]
        rows = self.model.folder_generator(read, self._read(self._search_settings(search)))
        found = [[{"generated_text": one.text} for one in row] for row in rows]
        return found if isinstance(inputs, list | tuple) else found[0]


Recording: TypeAlias = "str | os.PathLike[str] | np.ndarray | dict[str, object]"


class SpeechRecognitionPipeline(Pipeline):
    """Texts of recordings, by a recognizer that was trained here."""

    kinds = (SpeechPredictor,)
    options = SpeechOptions

    model: SpeechPredictor

    @overload
    def __call__(self, inputs: Recording, **options: Unpack[SpeechOptions]) -> Transcript: ...
    @overload
    def __call__(
        self, inputs: list[Recording], **options: Unpack[SpeechOptions]
    ) -> list[Transcript]: ...
    def __call__(self, inputs: object, **options: Unpack[SpeechOptions]) -> object:
        """Returns the text of a recording, or a list.

        Args:
            inputs: The path of a ``.wav`` file; a waveform with the model's sample rate; a
                dictionary with ``raw`` or ``array``, and ``sampling_rate``; or a list of these.
            **options: ``generate_kwargs`` holds settings of the search by name.

        Raises:
            ConfigError: A setting is unknown or out of range.
            DataError: A recording cannot be read, or has another sample rate.
        """
        settings = self._merged(options).get("generate_kwargs", {})
        several = inputs if isinstance(inputs, list | tuple) else [inputs]
        recordings = list(map(self._recording, several))
        texts = self.model(recordings, rate=None, generation_config=None, **settings)
        found: list[Transcript] = [{"text": str(text)} for text in texts]
        return found if isinstance(inputs, list | tuple) else found[0]

    def _recording(self, given: object) -> str | dict[str, object]:
        if isinstance(given, np.ndarray):
            return {"array": given, "sampling_rate": self.model.audio.sample_rate}
        if isinstance(given, Mapping):
            return {"array": given.get("raw"), **given}
        if not isinstance(given, str | os.PathLike):
            raise ArgumentError(
                f"{self.task}: {type(given).__name__}: the path of a .wav file, a waveform or a "
                f"dictionary is needed"
            )
        return os.fspath(given)


# --- Pipelines by task ----------------------------------------------------------------------------

_PIPELINES: Mapping[str, type[Pipeline]] = {
    "translation": TranslationPipeline,
    "summarization": SummarizationPipeline,
    "text2text-generation": TextToTextPipeline,
    "text-generation": TextGenerationPipeline,
    "text-classification": TextClassificationPipeline,
    "sentiment-analysis": TextClassificationPipeline,
    "zero-shot-classification": ZeroShotClassificationPipeline,
    "token-classification": TokenClassificationPipeline,
    "ner": TokenClassificationPipeline,
    "question-answering": QuestionAnsweringPipeline,
    "fill-mask": FillMaskPipeline,
    "feature-extraction": FeatureExtractionPipeline,
    "image-classification": ImageClassificationPipeline,
    "image-to-text": ImageToTextPipeline,
    "automatic-speech-recognition": SpeechRecognitionPipeline,
}
Model: TypeAlias = Place | Predictor | None
# A model on Hugging Face's hub for each kind of pipeline, for messages.
_EXAMPLES: Mapping[type[Pipeline], str] = {
    TranslationPipeline: "google-t5/t5-base",
    SummarizationPipeline: "sshleifer/distilbart-cnn-12-6",
    TextToTextPipeline: "google-t5/t5-base",
    TextGenerationPipeline: "openai-community/gpt2",
    TextClassificationPipeline: "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
    ZeroShotClassificationPipeline: "FacebookAI/roberta-large-mnli",
    TokenClassificationPipeline: "dbmdz/bert-large-cased-finetuned-conll03-english",
    QuestionAnsweringPipeline: "distilbert/distilbert-base-cased-distilled-squad",
    FillMaskPipeline: "distilbert/distilroberta-base",
    FeatureExtractionPipeline: "distilbert/distilbert-base-cased",
    ImageClassificationPipeline: "google/vit-base-patch16-224",
    ImageToTextPipeline: "ydshieh/vit-gpt2-coco-en",
}


@overload
def pipeline(
    task: Literal["translation"], model: Model = None, **options: Unpack[TranslationOptions]
) -> TranslationPipeline: ...
@overload
def pipeline(
    task: Literal["summarization"], model: Model = None, **options: Unpack[TextToTextOptions]
) -> SummarizationPipeline: ...
@overload
def pipeline(
    task: Literal["text2text-generation"], model: Model = None, **options: Unpack[TextToTextOptions]
) -> TextToTextPipeline: ...
@overload
def pipeline(
    task: Literal["text-generation"], model: Model = None, **options: Unpack[TextGenerationOptions]
) -> TextGenerationPipeline: ...
@overload
def pipeline(
    task: Literal["text-classification", "sentiment-analysis"],
    model: Model = None,
    **options: Unpack[TextClassificationOptions],
) -> TextClassificationPipeline: ...
@overload
def pipeline(
    task: Literal["zero-shot-classification"],
    model: Model = None,
    **options: Unpack[ZeroShotOptions],
) -> ZeroShotClassificationPipeline: ...
@overload
def pipeline(
    task: Literal["token-classification", "ner"],
    model: Model = None,
    **options: Unpack[TokenClassificationOptions],
) -> TokenClassificationPipeline: ...
@overload
def pipeline(
    task: Literal["question-answering"],
    model: Model = None,
    **options: Unpack[QuestionAnsweringOptions],
) -> QuestionAnsweringPipeline: ...
@overload
def pipeline(
    task: Literal["fill-mask"], model: Model = None, **options: Unpack[FillMaskOptions]
) -> FillMaskPipeline: ...
@overload
def pipeline(
    task: Literal["feature-extraction"], model: Model = None, **options: Unpack[FeatureOptions]
) -> FeatureExtractionPipeline: ...
@overload
def pipeline(
    task: Literal["image-classification"],
    model: Model = None,
    **options: Unpack[ImageClassificationOptions],
) -> ImageClassificationPipeline: ...
@overload
def pipeline(
    task: Literal["image-to-text"], model: Model = None, **options: Unpack[ImageToTextOptions]
) -> ImageToTextPipeline: ...
@overload
def pipeline(
    task: Literal["automatic-speech-recognition"],
    model: Model = None,
    **options: Unpack[SpeechOptions],
) -> SpeechRecognitionPipeline: ...
@overload
def pipeline(
    task: str, model: Place | Predictor | None = None, **options: object
) -> "Pipeline | TranslationPipeline": ...
def pipeline(task: str, model: Model = None, **options: object) -> Pipeline:
    """Returns a trained model as a pipeline of Hugging Face transformers 4.57.

    It has the arguments of that version, and returns dictionaries with the same keys in the same
    lists. What it computes is what the model of :func:`transformer_jax.load` computes. See the page
    on pipelines for each task, and for what differs.

    Args:
        task: ``translation`` or ``translation_xx_to_yy``, ``summarization``,
            ``text2text-generation``, ``text-generation``, ``text-classification`` or
            ``sentiment-analysis``, ``zero-shot-classification``, ``token-classification`` or
            ``ner``, ``question-answering``, ``fill-mask``, ``feature-extraction``,
            ``image-classification``, ``image-to-text``, ``automatic-speech-recognition``.
        model: A Hugging Face folder or a run directory, or what ``tj.load`` returned. Nothing is
            downloaded, and there is no default.
        **options: Options of all calls, which calls may change.

    Raises:
        ConfigError: The task or an option is unknown, the folder is missing, or the model is not
            for the task.
        ArgumentError: An option has the wrong type.
        CheckpointError: The path has no trained model, or its files are damaged.
    """
    if not isinstance(task, str):
        raise ArgumentError(f"task is {type(task).__name__}: allowed are {', '.join(_PIPELINES)}")
    kind = TranslationPipeline if _DIRECTION.fullmatch(task) else _PIPELINES.get(task)
    if kind is None:
        raise ConfigError(
            f"task is {task}: allowed are {', '.join(_PIPELINES)} and translation_xx_to_yy"
            f"{nearest(task, _PIPELINES)}"
        )
    if model is None:
        raise ConfigError(f"pipeline {task}: model is missing: {_hint(kind)}")
    predictor = model if isinstance(model, Predictor) else load(model)
    return kind(task, predictor, options)


def _hint(kind: type[Pipeline]) -> str:
    """Returns how to get a model for a pipeline."""
    if kind not in _EXAMPLES:
        return "name a run of train-speech"
    name = _EXAMPLES[kind]
    folder = f"models/{name.rpartition('/')[2]}"
    download = pasted("hf", "download", name, "--local-dir", folder)
    return f"nothing is downloaded: get a folder, such as with {download}, and name it"
