"""Speech recognizers as functions of files and of arrays of features."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.speech.audio import AudioConfig
from transformer_jax.data.speech.features import Normalization, check_features, read_features
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
from transformer_jax.inference.load_run import load
from transformer_jax.inference.results import GeneratedText
from transformer_jax.inference.runs import as_trained, open_directory
from transformer_jax.inference.transcriber import Recording, Transcriber

__all__ = ["SpeechPredictor", "load_transcriber"]

Speech = str | os.PathLike[str] | np.ndarray


def load_transcriber(
    path: Path,
    checkpoint: str = "best",
    *,
    search: GenerationConfig = TRANSLATION,
    batching: TranslationBatching | None = None,
    loaded: Any = None,
) -> tuple[Transcriber, AudioConfig]:
    """Loads the transcriber of a run, and its settings of computing features.

    Args:
        path: The run directory.
        checkpoint: ``best``, ``last``, a step, or ``average:N``, the mean of the last N.
        search: Settings of beam search.
        batching: Shapes of batches.
        loaded: The result of :func:`.load`, if already loaded.

    Raises:
        ConfigError: The run is of another family.
        CheckpointError: The run does not exist, or its files are damaged.
    """
    loaded = load(path, checkpoint, kind="speech") if loaded is None else loaded
    run = open_directory(path)
    data = run.group("data")
    try:
        audio: AudioConfig = from_dict(AudioConfig, dict(data["audio"]))
        given = dict(data["normalization"])
        normalization: Normalization = from_dict(Normalization, given)
    except (ConfigError, TypeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{run.config}: data: {error}: damaged?") from None
    width = nnx.merge(*loaded[0]).config.features.num_features
    if not len(normalization.mean) == len(normalization.std) == width:
        raise CheckpointError(
            f"{run.config}: data.normalization has {len(normalization.mean)} means, but the model "
            f"reads {width} features: damaged?"
        )
    model, tokenizer = loaded
    return Transcriber(model, tokenizer, normalization, search=search, batching=batching), audio


class SpeechPredictor(Predictor):
    """A trained encoder-decoder of features as a function from recordings to texts.

    Attributes:
        audio: Settings of computing features of waveforms.
    """

    def __init__(self, path: Path, checkpoint: str = "best"):
        loaded = load(path, checkpoint, kind="speech")
        self._transcriber, self.audio = load_transcriber(path, checkpoint, loaded=loaded)
        self.model, self.tokenizer = nnx.merge(*loaded[0]), loaded[1]
        self._prepare_target = as_trained(path)
        self._usual = search_settings(path)

    def __call__(
        self,
        speech: Speech | Sequence[Speech],
        *,
        generation_config: ConfigChoice = None,
        **settings: Any,
    ) -> Any:
        """Returns the text of a recording, or a list of texts.

        Args:
            speech: The path of a ``.wav``, ``.npy`` or ``.npz`` file, features ``[T, F]`` as in
                such files, or a list of these.
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
        one = isinstance(speech, str | os.PathLike | np.ndarray)
        given: Iterable[Speech] = [speech] if one else speech  # type: ignore[list-item, assignment]
        refuse_hf(generation_config, "transcripts")
        changes = changes_of(generation_config, settings)
        search = TRANSLATION.changed(**self._usual | changes)
        recordings, bad = [], BadRows("the recordings", what="recording")
        for i, each in enumerate(given, 1):
            with bad:
                recordings.append(self._recording(each, i))
        bad.check(len(recordings))
        with warn_if_limited(self._transcriber, search):
            done = self._transcriber.translate(recordings, search)
        found: list[GeneratedText] = [generated(each.hypotheses) for each in done]
        return found[0] if one else found

    def attention(
        self, speech: Speech, target: str | None = None, **settings: Any
    ) -> TextAttention:
        """Returns the attention weights of every layer and head for a recording.

        Args:
            speech: A recording, as in a call.
            target: The text; None is the result of beam search.
            **settings: Settings of the search, as in a call.

        Raises:
            ConfigError: The model has no attention.
            DataError: The recording cannot be read, or the recording or target is too long.
        """
        recording = self._recording(speech, 1)
        given = None if target is None else self._prepare_target(one_text(target, "target"))
        search = TRANSLATION.changed(**self._usual | changes_of(None, settings))
        return translation_attention(self._transcriber, recording, given, search)

    def _recording(self, speech: Speech, number: int) -> Recording:
        if isinstance(speech, np.ndarray):
            name = f"recording {number}"
            return Recording(name, check_features(speech, name))
        return Recording(os.fspath(speech), read_features(speech, self.audio)[0])
