"""Settings of runs that learn to transcribe speech, and the named runs."""

import dataclasses
from typing import Any

from transformer_jax.config import FeatureConfig
from transformer_jax.recurrent_config import RecurrentConfig
from transformer_jax.runs.settings import TokenizerConfig
from transformer_jax.runs.translation_settings import RUNS, RecurrentRun, Run, read_as
from transformer_jax.speech.recordings import SpeechData
from transformer_jax.training.run_directory import RunDirectory

__all__ = ["SPEECH_RUNS", "RecurrentSpeechRun", "SpeechRun", "has_features"]


@dataclasses.dataclass(frozen=True)
class SpeechRun(Run):
    """One training run of a speech recognizer."""

    data: SpeechData = SpeechData()  # type: ignore[assignment]

    @staticmethod
    def read(directory: RunDirectory) -> "SpeechRun":
        """The run of a directory.

        Raises:
            CheckpointError: ``config.json`` is damaged, or of another kind of run.
        """
        found: SpeechRun = read_as(directory, SpeechRun, RecurrentSpeechRun)
        return found


@dataclasses.dataclass(frozen=True)
class RecurrentSpeechRun(SpeechRun, RecurrentRun):
    """One training run of a recurrent speech recognizer."""

    model: RecurrentConfig = RecurrentConfig()  # type: ignore[assignment]


def has_features(fields: dict[str, Any]) -> bool:
    """Whether the model of a run's ``config.json`` reads features.

    Example:
        >>> has_features({"model": {"features": {"num_features": 80}}}), has_features({})
        (True, False)
    """
    model = fields.get("model")
    features = model.get("features") if isinstance(model, dict) else None
    return isinstance(features, dict) and bool(features.get("num_features"))


def _speech(run: Run) -> SpeechRun:
    """The same model with log-mel frames in place of source tokens."""
    model: Any = run.model
    apart = dataclasses.replace(model.embedding, share_encoder_decoder_embeddings=False)
    model = dataclasses.replace(model, embedding=apart, features=FeatureConfig(80, 4))
    kept = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    kept |= {"model": model, "data": SpeechData()}
    kept |= {"tokenizer": TokenizerConfig("characters", vocab_size=None)}
    return (RecurrentSpeechRun if isinstance(run, RecurrentRun) else SpeechRun)(**kept)


# Every named translator but that of a built-in corpus.
SPEECH_RUNS: dict[str, tuple[str, Run]] = {
    name: (about.replace("Your own pairs", "Your own recordings"), _speech(run))
    for name, (about, run) in RUNS.items()
    if name != "phrasebook"
}
