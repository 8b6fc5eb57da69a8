"""Speech recognizers as functions of files and of arrays of features."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.errors import CheckpointError, ConfigError, DataError
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.speech.audio import AudioConfig
from transformer_jax.data.speech.features import (
    Normalization,
    check_features,
    read_features,
    waveform_features,
)
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.options import TranslationBatching
from transformer_jax.inference.attention import TextAttention, one_text, translation_attention
from transformer_jax.inference.base import Predictor
from transformer_jax.inference.generation_settings import (
    ConfigChoice,
    changes_of,
    generated,
    refuse_hf,
    search_settings,
    warn_if_limited,
)
from transformer_jax.inference.results import GeneratedText
from transformer_jax.inference.transcriber import Recording, Transcriber

if TYPE_CHECKING:
    from transformer_jax.inference.pretrained import Pretrained

__all__ = ["SpeechPredictor", "transcriber_of"]

Speech = str | os.PathLike[str] | np.ndarray | Mapping[str, object]


def transcriber_of(
    opened: "Pretrained",
    *,
    search: GenerationConfig = TRANSLATION,
    batching: TranslationBatching | None = None,
) -> tuple[Transcriber, AudioConfig]:
    """Returns the transcriber of a speech recognizer, and its settings of computing features.

    Args:
        opened: The opened model.
        search: Settings of beam search.
        batching: Shapes of batches.

    Raises:
        CheckpointError: The settings of features are damaged.
    """
    facts = opened.facts
    data = facts.group("data")
    try:
        audio: AudioConfig = from_dict(AudioConfig, dict(data["audio"]))
        given = dict(data["normalization"])
        normalization: Normalization = from_dict(Normalization, given)
    except (ConfigError, TypeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{facts.file}: data: {error}: damaged?") from None
    width = facts.layers.features.num_features
    if not len(normalization.mean) == len(normalization.std) == width:
        raise CheckpointError(
            f"{facts.file}: data.normalization has {len(normalization.mean)} means, but the model "
            f"reads {width} features: damaged?"
        )
    transcriber = Transcriber(
        opened.model,
        opened.tokenizer,
        normalization,
        search=search,
        batching=batching,
        preparation=facts.preparation,
    )
    return transcriber, audio


class SpeechPredictor(Predictor):
    """A trained encoder-decoder of features as a function from recordings to texts.

    Attributes:
        audio: Settings of computing features of waveforms.
    """

    def __init__(self, opened: "Pretrained"):
        self._transcriber, self.audio = transcriber_of(opened)
        self.opened, self.model, self.tokenizer = opened, opened.module, opened.tokenizer
        self._usual = search_settings(opened.facts)

    def __call__(
        self,
        speech: Speech | Sequence[Speech],
        *,
        rate: int | None = None,
        generation_config: ConfigChoice = None,
        **settings: Any,
    ) -> Any:
        """Returns the text of a recording, or a list of texts.

        Args:
            speech: The path of a ``.wav``, ``.npy`` or ``.npz`` file, features ``[T, F]`` as in
                such files, a waveform with its ``rate``, a dictionary with ``array`` and
                ``sampling_rate``, or a list of these.
            rate: Number of samples in a second: arrays are waveforms ``[N]``, from -1 to 1 or of
                whole numbers as in WAV files. Another rate than the model's is refused, or
                resampled if its training did.
            generation_config: Settings of the search; None is beam search with 4 beams, scores
                normalized for length (Wu et al. 2016) and the length limit of the run.
            **settings: Settings of :class:`.GenerationConfig` that override these, such as
                ``num_beams``, ``num_return_sequences`` (all but the best are ``alternatives``),
                ``length_penalty``, ``max_len_a`` (tokens per position of stacked frames) and
                ``max_len_b``; None is ignored.

        Raises:
            ConfigError: A setting is unknown or out of range.
            DataError: A file is missing or damaged, has another sample rate, contains NaN, or is
                too long for the model; or features have the wrong size.
            NumericsError: The model computed NaN or infinity.
        """
        one = isinstance(speech, str | os.PathLike | np.ndarray | Mapping)
        given: Iterable[Speech] = [speech] if one else speech  # type: ignore[list-item, assignment]
        refuse_hf(generation_config, "transcripts")
        changes = changes_of(generation_config, settings)
        search = TRANSLATION.changed(**self._usual | changes)
        recordings, bad = [], BadRows("the recordings", what="recording")
        for i, each in enumerate(given, 1):
            with bad:
                recordings.append(self._recording(each, i, rate))
        bad.check(len(recordings))
        with warn_if_limited(self._transcriber, search):
            done = self._transcriber.translate(recordings, search)
        found: list[GeneratedText] = [generated(each.hypotheses) for each in done]
        return found[0] if one else found

    def attention(
        self, speech: Speech, target: str | None = None, *, rate: int | None = None, **settings: Any
    ) -> TextAttention:
        """Returns the attention weights of every layer and head for a recording.

        Args:
            speech: A recording, as in a call.
            target: The text; None is the result of beam search.
            rate: Number of samples in a second of a waveform, as in a call.
            **settings: Settings of the search, as in a call.

        Raises:
            ConfigError: The model has no attention.
            DataError: The recording cannot be read, or the recording or target is too long.
        """
        recording = self._recording(speech, 1, rate)
        given = None if target is None else one_text(target, "target")
        search = TRANSLATION.changed(**self._usual | changes_of(None, settings))
        return translation_attention(self._transcriber, recording, given, search)

    def _recording(self, speech: Speech, number: int, rate: int | None) -> Recording:
        name = f"recording {number}"
        if isinstance(speech, Mapping):
            given = speech.get("sampling_rate")
            if rate is not None or "array" not in speech or not isinstance(given, int | np.integer):
                raise DataError(
                    f"{name}: a dictionary has the keys array and sampling_rate, and no rate beside"
                )
            rate, speech = int(given), np.asarray(speech["array"])
        if isinstance(speech, np.ndarray):
            if rate is not None:
                return Recording(name, waveform_features(speech, rate, self.audio, name))
            if speech.ndim == 1:
                raise DataError(
                    f"{name}: an array with one axis is a waveform: say how many samples it has in "
                    f"a second, such as rate={self.audio.sample_rate}"
                )
            return Recording(name, check_features(speech, name))
        if rate is not None:
            raise ConfigError("rate is for arrays: a .wav file has its own")
        return Recording(os.fspath(speech), read_features(speech, self.audio)[0])
