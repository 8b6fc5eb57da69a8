"""Speech recognition: an encoder-decoder of features, and error rates."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.config_fields import Rate
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.task_progress import log, show_progress
from transformer_jax.data.plan import Batching
from transformer_jax.data.speech.audio import AudioConfig
from transformer_jax.data.speech.features import Normalization
from transformer_jax.data.speech.recording_store import (
    SpeechStore,
    build_speech_store,
    make_speech_batch,
)
from transformer_jax.data.speech.recordings import (
    FeatureStore,
    Recordings,
    SpeechReadOptions,
    SpeechSplits,
    build_features,
)
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.words import blank_words
from transformer_jax.decoding.length_penalty import learn_length_limit
from transformer_jax.decoding.requests import Translation
from transformer_jax.evaluation.bleu import translation_scores
from transformer_jax.evaluation.error_rates import character_error_rate, word_error_rate
from transformer_jax.evaluation.word_splitting import choose_tokenize, split_words
from transformer_jax.inference.transcriber import Recording, Transcriber
from transformer_jax.models.build import make_model
from transformer_jax.models.recurrent_config import ModelConfig, RecurrentConfig
from transformer_jax.recipes.tasks.fit import Side, check_restored, describe_unknown, log_scored
from transformer_jax.recipes.tasks.settings import RECURRENT, EvaluationConfig
from transformer_jax.recipes.tasks.translation_task import (
    LIMIT,
    decode_texts,
    log_sample,
    regularization,
    step_flops,
    validation_batching,
)
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.training import objectives
from transformer_jax.training.state import split
from transformer_jax.training.task import Data, Task
from transformer_jax.word_vectors.initialization import initial_embeddings

__all__ = ["score_recordings", "shown_scores", "speech_recognition"]

METRICS = (
    Metric("valid_loss", "lower"),
    Metric("wer", "lower"),
    Metric("cer", "lower"),
    Metric("sacrebleu", "higher"),
)


@dataclasses.dataclass(frozen=True)
class SpeechDataSettings:
    """Settings for reading recordings, and for computing and normalizing features."""

    read: SpeechReadOptions = SpeechReadOptions()
    audio: AudioConfig = AudioConfig()
    normalization: Normalization = Normalization()  # empty: computed from the training data


@dataclasses.dataclass(frozen=True)
class SpeechSettings:
    """The settings of a speech recognizer."""

    model: ModelConfig
    data: SpeechDataSettings
    evaluation: EvaluationConfig = EvaluationConfig()

    @property
    def recipe(self) -> str:
        """Returns the name of the recipe for such a run."""
        return f"{RECURRENT * isinstance(self.model, RecurrentConfig)}speech"


@checked_arguments
def speech_recognition(
    data: SpeechSplits,
    config: ModelConfig,
    tokenizer: Tokenizer,
    *,
    settings: SpeechDataSettings = SpeechDataSettings(),
    batching: Batching = Batching(),
    label_smoothing: Rate = 0.1,
    evaluation: EvaluationConfig = EvaluationConfig(),
    cache: Path | None = None,
) -> Task:
    """Returns the task of transcribing recordings with an encoder-decoder of features.

    Validation measures ``valid_loss`` without label smoothing, and ``wer`` and ``cer`` in percent
    and ``sacrebleu`` of greedy transcripts; the best checkpoint is tested with beam search.

    Args:
        data: Recordings for training, validation and tests.
        config: Configuration of the model, with ``features``.
        tokenizer: Tokenizer of the texts.
        settings: Maximum length of recordings, features of waveforms, and normalization of
            features; an empty one is computed from the training recordings.
        batching: Batching of recordings; tokens are positions of stacked frames.
        label_smoothing: Probability spread over the vocabulary in training.
        evaluation: Evaluation during and after training; a length limit of None is derived from the
            training recordings, whose positions are the source tokens.
        cache: Folder for features; None is memory.

    Raises:
        ConfigError: The model does not read features.
        DataError: A file cannot be read as features of the model's size, or no recording is short
            enough.
    """
    if not config.features.num_features:
        raise ConfigError("model.features.num_features is 0: give the number of features per frame")
    width = config.features.num_features
    read = dataclasses.replace(settings.read, normalization=tokenizer.normalization)
    settings = dataclasses.replace(settings, read=read)
    parts = functools.partial(
        build_features, audio=settings.audio, width=width, cache=cache, bad_rows=read.bad_rows
    )
    features = parts(data.train)
    normalization = settings.normalization
    if not normalization.mean:
        normalization = features.normalization()
        settings = dataclasses.replace(settings, normalization=normalization)
    stored = functools.partial(_store, config, tokenizer, settings)
    check_restored(data.train.name, data.train.texts, tokenizer)
    store = stored(features, data.train)
    plan = batching.plan(store.source_lengths, store.target_lengths)
    limit = learn_length_limit(store.source_lengths, store.target_lengths)
    evaluation = evaluation.completed(limit, data.train.texts)
    train = _data(store, plan, tokenizer.pad)
    valid, evaluate = {}, None
    if data.valid is not None:
        held = parts(data.valid)
        kept = stored(held, data.valid)
        batches = validation_batching(batching, kept.source_lengths, kept.target_lengths)
        order = batches.plan(kept.source_lengths, kept.target_lengths, shuffle=False)
        valid["valid"] = _data(kept, order, tokenizer.pad)
        if evaluation.sentences:
            # All sources that fit the model, even if longer than in training.
            most = config.max_length * config.features.stacked_frames
            fits = np.flatnonzero((held.frames > 0) & (held.frames <= most)).tolist()
            first = fits[: evaluation.sentences]
            evaluate = _ErrorRates(kept, data.valid, first, tokenizer, evaluation)
    tests = {name: _all_of(part, parts(part), config) for name, part in data.tests.items()}
    return Task(
        model=lambda rngs: make_model("encoder-decoder", config, rngs=rngs),
        train=train,
        objective=objectives.sequence_to_sequence(tokenizer.bos, label_smoothing),
        valid=valid,
        metrics=METRICS,
        eval_objective=objectives.sequence_to_sequence(tokenizer.bos),
        evaluate=evaluate,
        test=_tester(tests, tokenizer, normalization, evaluation),
        flops=functools.partial(step_flops, config),
        regularization=regularization(config, label_smoothing),
        tokenizer=tokenizer,
        initial=initial_embeddings(config, tokenizer),
        settings=SpeechSettings(config, settings, evaluation),
    )


def _store(
    config: ModelConfig,
    tokenizer: Tokenizer,
    settings: SpeechDataSettings,
    features: FeatureStore,
    recordings: Recordings,
) -> SpeechStore:
    """Returns the recordings that are short enough, and a summary line."""
    max_length = settings.read.max_length
    store = build_speech_store(
        features,
        recordings,
        tokenizer,
        settings.normalization,
        stacked_frames=config.features.stacked_frames,
        max_length=max_length,
    )
    counts = "".join(f", {n} {what}" for what, n in store.counts.items())
    frames = plural(int(features.frames[store.kept].sum()), "frame")
    unknown = describe_unknown(
        recordings.name, Side("", recordings.texts, tokenizer.targets, store.target.ids)
    )
    log(f"{recordings.name}: {plural(len(store), 'recording')}, {frames}{counts}{unknown}")
    if not len(store):
        raise DataError(
            f"{recordings.name}: no recording has at most {plural(max_length, 'position')} and a "
            f"text of as many tokens: raise data.read.max_length"
        )
    return store


def _data(store: SpeechStore, plan: Any, pad: int) -> Data:
    make = lambda items: make_speech_batch(store, items.indices, items.S, items.T, pad)
    return Data.of(plan, make, [store.features.digests.reshape(-1), store.target.ids])


class _ErrorRates:
    """Error rates of the greedy transcripts of the first validation recordings."""

    def __init__(
        self,
        store: SpeechStore,
        recordings: Recordings,
        read: list[int],
        tokenizer: Tokenizer,
        evaluation: EvaluationConfig,
    ):
        self.recordings = [Recording(recordings.title(i), store.features[i]) for i in read]
        self.texts = [recordings.texts[i] for i in read]
        self.tokenizer, self.evaluation = tokenizer, evaluation
        self.normalization = store.normalization
        self.transcriber: Transcriber | None = None

    def __call__(self, model: Any) -> dict[str, float]:
        graph, params = split(model)
        if self.transcriber is None:
            search = self.evaluation.search(num_beams=1)
            self.transcriber = Transcriber(
                (graph, params), self.tokenizer, self.normalization, search=search
            )
        # Compiled programs are reused in later evaluations.
        self.transcriber.params = params
        with show_progress(f"transcribing {plural(len(self.recordings), 'validation recording')}"):
            found = [done.text for done in decode_texts(self.transcriber, self.recordings)]
        for name, text, wanted in list(zip(self.recordings, found, self.texts, strict=True))[
            : self.evaluation.shown
        ]:
            log_sample(recording=str(name), reference=wanted, hypothesis=text)
        scores = _scores(found, self.texts, self.evaluation.tokenize)
        return {name: scores[name] for name in ("wer", "cer", "sacrebleu")}


def _all_of(
    recordings: Recordings, features: FeatureStore, config: ModelConfig
) -> tuple[list[Recording], list[str]]:
    """Returns all recordings of a test set that could be read, with their texts.

    Raises:
        DataError: A recording is too long for the model.
    """
    most = config.max_length * config.features.stacked_frames
    for i in np.flatnonzero(features.frames > most).tolist():
        count = plural(int(features.frames[i]), "frame")
        raise DataError(
            f"{recordings.where(i)}{recordings.title(i)}: {count}, but the model reads at most "
            f"{most:,}: split the recording, or raise "
            f"model.{'positions.' * hasattr(config, 'positions')}max_length"
        )
    kept = np.flatnonzero(features.frames).tolist()  # without bad rows, which are skipped
    found = [Recording(recordings.title(i), features[i]) for i in kept]
    return found, [recordings.texts[i] for i in kept]


def _scores(found: list[str], texts: list[str], tokenize: str | None) -> dict[str, Any]:
    tokenize = choose_tokenize(texts) if tokenize is None else tokenize
    bleu = translation_scores(found, texts, tokenize=tokenize)
    return {
        "wer": word_error_rate(found, texts, tokenize).rate,
        "wer_words": "blanks" if split_words(tokenize) is blank_words else tokenize,
        "cer": character_error_rate(found, texts).rate,
        "sacrebleu": bleu.bleu,
        "sacrebleu_signature": bleu.signature,
        "recordings": len(texts),
    }


def score_recordings(
    transcriber: Transcriber,
    recordings: list[Recording],
    texts: list[str],
    *,
    lowercase: bool = False,
    tokenize: str | None = None,
    limit: str = LIMIT,
) -> tuple[dict[str, Any], list[Translation]]:
    """Returns word and character error rates in percent and sacreBLEU, and the transcripts.

    Args:
        transcriber: A trained model.
        recordings: The recordings to transcribe.
        texts: The reference texts.
        lowercase: Compare in lower case.
        tokenize: Word splitting, a name of :data:`.Tokenize`; None is chosen by the script.
        limit: The setting or flag that raises the length limit, for messages.
    """
    found = decode_texts(transcriber, recordings, limit)
    told = [done.text for done in found]
    sides = [[text.lower() for text in side] if lowercase else side for side in (told, texts)]
    return _scores(sides[0], sides[1], tokenize), found


def _tester(
    tests: Mapping[str, tuple[list[Recording], list[str]]],
    tokenizer: Tokenizer,
    normalization: Normalization,
    evaluation: EvaluationConfig,
) -> Callable[[Any, int], dict[str, Any]]:
    """Prints and returns the metrics of the test sets."""

    def test(model: Any, step: int) -> dict[str, Any]:
        search, found = evaluation.search(evaluation.num_beams), {}
        transcriber = Transcriber(model, tokenizer, normalization, search=search)
        for name, parts in tests.items():
            log_scored(name, plural(len(parts[0]), "recording"), tokenizer, target=parts[1])
            scores, _ = score_recordings(transcriber, *parts, tokenize=evaluation.tokenize)
            found[name] = scores | {"beams": evaluation.num_beams}
            print(f"{name}: {shown_scores(scores)}", flush=True)
        return {"evaluated_step": step, "tests": found}

    return test


def shown_scores(scores: Mapping[str, Any]) -> str:
    """Formats metrics in a line.

    Example:
        >>> shown_scores({"wer": 5.0, "cer": 1.25, "sacrebleu": 90.0, "recordings": 3})
        'WER 5.00 % CER 1.25 % sacreBLEU 90.0 of 3 recordings'
    """
    words = scores.get("wer_words", "blanks")
    split = "" if words == "blanks" else f" (words of {words})"
    return (
        f"WER{split} {scores['wer']:.2f} % CER {scores['cer']:.2f} % sacreBLEU "
        f"{scores['sacrebleu']:.1f} of {plural(scores['recordings'], 'recording')}"
    )
