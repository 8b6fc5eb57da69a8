r"""Train an encoder-decoder: translation, denoising, summaries, speech; resume or evaluate a run.

    python -m experiments.seq2seq train phrasebook
    python -m experiments.seq2seq train base --data.source corpus.de --data.target corpus.en
    python -m experiments.seq2seq train base --data.tfds ted_hrlr_translate/pt_to_en --mesh.fsdp 4
    python -m experiments.seq2seq pretrain bart-mini --data.text corpus.txt
    python -m experiments.seq2seq finetune summarize --init-from runs/bart-mini \
        --data.train texts.jsonl
    python -m experiments.seq2seq train-speech luong --data.train train.tsv
    python -m experiments.seq2seq resume runs/base
    python -m experiments.seq2seq evaluate runs/base --source test.de --target test.en
    python -m experiments.seq2seq evaluate runs/luong --manifest test.tsv

``COMMAND NAME --help`` lists every setting. Translators end with sacreBLEU and chrF on their test
sets, pre-training with the loss beside a trivial baseline, summarizers with ROUGE beside the first
sentences and the best ones, speech recognizers with word and character error rates.
"""

from collections.abc import Sequence
from typing import Any

from transformer_jax.cli import training
from transformer_jax.cli.seq2seq_evaluation import Evaluate, evaluate, kind_of

__all__ = ["Evaluate", "main"]

PROGRAM = "python -m experiments.seq2seq"


def _runs() -> dict[str, tuple[str, Any]]:
    from transformer_jax.runs.translation_settings import RUNS

    return RUNS


def _pretrain_runs() -> dict[str, tuple[str, Any]]:
    from transformer_jax.runs.denoising_settings import RUNS

    return RUNS


def _finetune_runs() -> dict[str, tuple[str, Any]]:
    from transformer_jax.runs.summarization_settings import RUNS

    return RUNS


def _speech_runs() -> dict[str, tuple[str, Any]]:
    from transformer_jax.runs.speech_settings import SPEECH_RUNS

    return SPEECH_RUNS


def _part(run: Any) -> Any:
    """The module that trains a run of this type."""
    from transformer_jax.runs import denoising, speech, summarization, translation
    from transformer_jax.runs.denoising_settings import DenoisingRun
    from transformer_jax.runs.speech_settings import SpeechRun
    from transformer_jax.runs.summarization_settings import SummarizationRun

    if isinstance(run, SummarizationRun):
        return summarization
    if isinstance(run, SpeechRun):
        return speech
    return denoising if isinstance(run, DenoisingRun) else translation


def _part_of(directory: Any) -> Any:
    """The module that trains the run of a directory."""
    from transformer_jax.runs import denoising, speech, summarization, translation

    kind = kind_of(directory)
    named = {"speech": speech, "summaries": summarization, "denoising": denoising}
    return named.get(kind, translation)


def _begin(run: Any, named: Any) -> tuple[Any, Any, Any]:
    return _part(run).begin(run, named)


def _read(directory: Any) -> tuple[Any, Any]:
    part = _part_of(directory)
    run = part.read(directory)
    return run, lambda: part.open_run(run)


def _anew(run: Any) -> Any:
    """Without the normalization, which comes from the recordings."""
    from transformer_jax.runs import speech

    return speech.without_normalization(run) if _part(run) is speech else run


def _train(run: Any, *parts: Any, **how: Any) -> int:
    return _part(run).train(run, *parts, **how)


FAMILY = training.TrainingProgram(
    PROGRAM,
    __doc__ or "",
    {
        "train": _runs,
        "train-speech": _speech_runs,
        "pretrain": _pretrain_runs,
        "finetune": _finetune_runs,
    },
    _begin,
    _read,
    _train,
    anew=_anew,
    others={"evaluate": evaluate},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of ``arguments``, or of the command line; returns its exit code."""
    return training.main(FAMILY, arguments)
