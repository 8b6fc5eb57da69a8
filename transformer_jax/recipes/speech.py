"""Speech recognition with Transformers or recurrent networks: ``train-speech small``."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from transformer_jax.core.config_fields import Flag
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import show_progress
from transformer_jax.data.speech.features import Normalization
from transformer_jax.data.speech.recordings import SpeechData
from transformer_jax.evaluation.word_splitting import Tokenize
from transformer_jax.models.config import FeatureConfig
from transformer_jax.models.recurrent_config import RecurrentConfig
from transformer_jax.recipes.recipe import Named, Prepared, Recipe
from transformer_jax.recipes.scored_texts import (
    LIMIT_FLAGS,
    SearchFlags,
    beam_search,
    choose_words,
    required,
    write_texts,
)
from transformer_jax.recipes.settings import TokenizerConfig
from transformer_jax.recipes.translation import (
    RecurrentRun,
    RecurrentTranslation,
    Run,
    Translation,
    check_words,
)

if TYPE_CHECKING:
    from transformer_jax.data.speech.recordings import SpeechSplits
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = ["RecurrentSpeech", "RecurrentSpeechRun", "Speech", "SpeechRun"]


@dataclasses.dataclass(frozen=True)
class SpeechRun(Run):
    """One training run of a speech recognizer."""

    data: SpeechData = SpeechData()  # type: ignore[assignment]

    def with_derived(self: "AnySpeechRun", learned: Any) -> "AnySpeechRun":
        """Returns the run with the normalization of its features too, if it had none."""
        run = super().with_derived(learned)
        if run.data.normalization.mean or learned is None:
            return run
        data = dataclasses.replace(run.data, normalization=learned.data.normalization)
        return dataclasses.replace(run, data=data)

    def without_derived(self: "AnySpeechRun") -> "AnySpeechRun":
        """Returns the run without the normalization, which is computed from the recordings."""
        return dataclasses.replace(
            self, data=dataclasses.replace(self.data, normalization=Normalization())
        )


AnySpeechRun = TypeVar("AnySpeechRun", bound=SpeechRun)


@dataclasses.dataclass(frozen=True)
class RecurrentSpeechRun(SpeechRun, RecurrentRun):
    """One training run of a recurrent speech recognizer."""

    model: RecurrentConfig = RecurrentConfig()  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class EvaluateRecognizer(SearchFlags):  # type: ignore[misc]
    """Print error rates and sacreBLEU of the transcripts of recordings."""

    manifest: Annotated[str | None, Flag(also=("data.test",))] = None
    """File of recordings and their texts, .tsv, .csv or .jsonl."""
    tokenize: Tokenize | None = None
    """Word splitting of error rates and of sacreBLEU, part of its signature. None is the run's
    setting, or depends on the script of the references."""
    lowercase: bool = False
    """Ignore case, as stated in the signature."""


class Speech(Recipe[SpeechRun, "SpeechSplits"]):
    """A Transformer, trained on recordings with their texts."""

    name = "speech"
    title = "a speech recognizer"
    config: ClassVar[type] = SpeechRun
    family = "speech"
    reads_features = True
    metrics = ("wer", "cer", "sacrebleu")
    evaluation = EvaluateRecognizer
    like: ClassVar[Translation] = Translation()  # the translators on which its named runs are based

    @functools.cached_property
    def runs(self) -> Named:
        """Returns the named translators, except on a built-in corpus, with frames as source."""
        return {
            name: (about.replace("Your own pairs", "Your own recordings"), self._named(run))
            for name, (about, run) in self.like.runs.items()
            if run.data.corpus is None
        }

    def _named(self, run: Run) -> Any:
        """Returns the run of a translator with log-mel frames instead of source tokens."""
        model: Any = run.model
        apart = dataclasses.replace(model.embedding, share_encoder_decoder_embeddings=False)
        model = dataclasses.replace(model, embedding=apart, features=FeatureConfig(80, 4))
        fields = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
        fields |= {"model": model, "data": SpeechData()}
        fields |= {"tokenizer": TokenizerConfig("characters", vocab_size=None)}
        return self.config(**fields)

    def data(self, run: SpeechRun) -> "SpeechSplits":
        """Returns the recordings."""
        from transformer_jax.data.speech.recordings import load_recordings

        return load_recordings(run.data)

    def check(self, run: SpeechRun, given: "Given[SpeechRun]") -> None:
        """Refuses a tokenizer of metrics whose package is not installed."""
        check_words(run)

    def prepare(
        self, run: SpeechRun, start: "Start | None", given: "Given[SpeechRun]"
    ) -> "Prepared[SpeechRun, SpeechSplits]":
        """Returns the run with the number of features per frame of the recordings.

        Raises:
            ConfigError: Settings do not match each other or the recordings.
            DataError: No recording can be read.
        """
        from transformer_jax.recipes.checks import validated

        run = validated(run, start, given)
        data = self.data(run)
        return Prepared(_with_features(run, data, given), data, lambda: data.train.texts)

    def task(
        self,
        run: SpeechRun,
        directory: "RunDirectory",
        tokenizer: "Tokenizer",
        data: "SpeechSplits",
    ) -> "Task":
        """Returns the task of speech recognition, which computes a missing normalization."""
        from transformer_jax.recipes.tasks.speech_task import SpeechDataSettings, speech_recognition

        return speech_recognition(
            data,
            run.model,
            tokenizer,
            settings=SpeechDataSettings(run.data.read, run.data.audio, run.data.normalization),
            batching=run.training.batching,
            label_smoothing=run.training.label_smoothing,
            evaluation=run.evaluation,
            cache=directory.path / "store",
        )

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints the metrics of transcripts of the recordings in a manifest."""
        from transformer_jax.core.task_progress import tracked
        from transformer_jax.data.bad_rows import BadRows
        from transformer_jax.data.speech.recordings import read_manifest
        from transformer_jax.inference.pretrained import Pretrained
        from transformer_jax.inference.speech import transcriber_of
        from transformer_jax.inference.transcriber import Recording
        from transformer_jax.recipes.driver import settings_of
        from transformer_jax.recipes.tasks.fit import log_scored
        from transformer_jax.recipes.tasks.speech_task import score_recordings, shown_scores

        [manifest] = required(request, self.title, "manifest")
        search, prepare = beam_search(request, facts), facts.preparation
        prepare = dataclasses.replace(prepare, lowercase=prepare.lowercase or request.lowercase)
        listed = read_manifest(manifest, "--manifest", prepare=prepare)
        transcriber, audio = transcriber_of(Pretrained.load(facts, "speech"), search=search)
        recordings, bad = [], BadRows(manifest, what="recording")
        for i in tracked(range(len(listed)), f"reading the recordings of {manifest}"):
            with bad:
                recordings.append(Recording(listed.title(i), listed.read(i, audio)[0]))
        bad.check(len(recordings))
        run_words = settings_of(facts).evaluation.tokenize
        tokenize = choose_words(request.tokenize, run_words, listed.texts)
        counted = plural(len(listed), "recording")
        log_scored(manifest, counted, facts.tokenizer, target=listed.texts)
        scores, texts = score_recordings(
            transcriber,
            recordings,
            listed.texts,
            lowercase=prepare.lowercase,
            tokenize=tokenize,
            limit=LIMIT_FLAGS,
        )
        print(shown_scores(scores))
        return write_texts(request.output, texts, [[text] for text in listed.texts], "recording")

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from recordings to texts."""
        from transformer_jax.inference.pretrained import Pretrained
        from transformer_jax.inference.speech import SpeechPredictor

        return SpeechPredictor(Pretrained.load(facts))

    def model(self, config: Any, fields: Mapping[str, Any], rngs: Any) -> Any:
        """Returns an encoder-decoder that reads features."""
        return self.like.model(config, fields, rngs)


class RecurrentSpeech(Speech):
    """A recurrent encoder-decoder, trained on recordings with their texts."""

    name = "recurrent_speech"
    title = "a recurrent speech recognizer"
    config: ClassVar[type] = RecurrentSpeechRun
    like = RecurrentTranslation()


def _with_features(run: SpeechRun, data: "SpeechSplits", given: "Given[SpeechRun]") -> SpeechRun:
    """Returns the run with the number of features per frame of the recordings.

    Raises:
        ConfigError: The user set a different number, or a normalization of a different size.
        DataError: No recording can be read.
    """
    with show_progress("reading the first recording"):
        width = data.train.first_width(run.data.audio)
    num_features, default = run.model.features.num_features, given.named.model.features.num_features
    if num_features not in (default, width):
        raise ConfigError(
            f"model.features.num_features is {num_features}, but {data.train.title(0)} has "
            f"frames of {width}: leave it out, to take it from the recordings"
        )
    known = len(run.data.normalization.mean)
    if known not in (0, width):
        raise ConfigError(
            f"data.normalization.mean has {known} numbers, but {data.train.title(0)} has "
            f"frames of {width}: leave it out, to take it from the recordings"
        )
    features = dataclasses.replace(run.model.features, num_features=width)
    return dataclasses.replace(run, model=dataclasses.replace(run.model, features=features))
