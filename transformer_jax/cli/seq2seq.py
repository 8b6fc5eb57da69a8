r"""Train a translator, pre-train by denoising, fine-tune on summaries, resume or evaluate a run.

    python -m experiments.seq2seq train phrasebook
    python -m experiments.seq2seq train base --data.source corpus.de --data.target corpus.en
    python -m experiments.seq2seq train base --data.tfds ted_hrlr_translate/pt_to_en --mesh.fsdp 4
    python -m experiments.seq2seq pretrain bart-mini --data.text corpus.txt
    python -m experiments.seq2seq finetune summarize --init-from runs/bart-mini \
        --data.train texts.jsonl
    python -m experiments.seq2seq resume runs/base
    python -m experiments.seq2seq evaluate runs/base --source test.de --target test.en

``train NAME --help`` and the like list every setting. Translators end with sacreBLEU and chrF on
their test sets, pre-training with the loss beside a trivial baseline, summarizers with ROUGE beside
the first sentences and the best ones.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from transformer_jax.cli import training
from transformer_jax.cli.run_command import PredictionCommand
from transformer_jax.cli.run_flags import parse_flags
from transformer_jax.errors import ConfigError

__all__ = ["Evaluate", "main"]

PROGRAM = "python -m experiments.seq2seq"


@dataclasses.dataclass(frozen=True)
class Evaluate(PredictionCommand):
    """Evaluate a run on your text: sacreBLEU and chrF with their signatures; ROUGE of summaries."""

    run: tyro.conf.Positional[str]
    """The run directory."""
    source: str | None = None
    """File of sentences to translate, one per line."""
    target: str | None = None
    """File of their reference translations, one per line."""
    data: str | None = None
    """JSONL file of texts and summaries, for a run of summaries."""
    checkpoint: str = "best"
    """best, last, a step, or average:N (the mean of the last N)."""
    num_beams: int = 4
    """Beam width; 1 is greedy search."""
    lowercase: bool = False
    """Ignore case; the signature states it."""
    output: str | None = None
    """Output file of the translations or summaries, one per line."""


def evaluate(arguments: Sequence[str], program: str) -> int:
    """Translates a file with a run's model and scores it."""
    asked = parse_flags(Evaluate, program, arguments)
    if (asked.source is None) != (asked.target is None):
        missing = "--source" if asked.source is None else "--target"
        raise ConfigError(f"{missing} is missing: translations are scored with both")
    with asked.loading():
        return _evaluate(asked)


def _evaluate(asked: Evaluate) -> int:
    from transformer_jax.predictors.runs import open_directory
    from transformer_jax.runs import denoising, summarization

    directory = open_directory(asked.run)
    part = _part_of(directory)
    if part is denoising:
        raise ConfigError(
            f"{asked.run}: a denoising run, which is not trained to translate: its loss on "
            f"held-out text is in results.json"
        )
    texts = (_summaries if part is summarization else _translations)(asked, directory)
    if asked.output is not None:
        try:
            Path(asked.output).write_text(
                "".join(text.replace("\n", " ") + "\n" for text in texts), "utf-8"
            )
        except OSError as error:
            raise ConfigError(f"--output {asked.output}: {error.strerror}") from None
    return 0


def _translations(asked: Evaluate, directory: Any) -> list[str]:
    """Prints the scores of translations, and returns them."""
    from transformer_jax.data.aligned import read_aligned
    from transformer_jax.decoding.options import BeamSearchConfig
    from transformer_jax.decoding.translator import Translator
    from transformer_jax.predictors.runs import load
    from transformer_jax.runs.translation_settings import Run
    from transformer_jax.tasks.translation_task import score_pairs

    if asked.source is None or asked.target is None or asked.data is not None:
        raise ConfigError(f"{asked.run}: a translator is evaluated on --source and --target")
    search = BeamSearchConfig(num_beams=asked.num_beams)
    lowercase = Run.read(directory).data.read.lowercase
    # Every line counts, empty ones too: a score over a part of a file is another score.
    pairs = read_aligned(asked.source, asked.target, "--source, --target")
    sources = [source.lower() if lowercase else source for source, _ in pairs]
    translator = Translator(*load(Path(asked.run), asked.checkpoint), search=search)
    targets = [target for _, target in pairs]
    scores, texts = score_pairs(
        translator, sources, targets, lowercase=lowercase or asked.lowercase
    )
    print(scores)
    return texts


def _summaries(asked: Evaluate, directory: Any) -> list[str]:
    """Prints ROUGE of summaries beside baselines, and returns them."""
    from transformer_jax.data.summaries import read_summaries
    from transformer_jax.predictors.runs import load
    from transformer_jax.runs import summarization
    from transformer_jax.tasks.summarization_task import score_summaries

    if asked.data is None or asked.source is not None or asked.target is not None:
        raise ConfigError(f"{asked.run}: a run of summaries is evaluated on --data FILE.jsonl")
    if asked.lowercase:
        raise ConfigError("--lowercase: ROUGE ignores case anyway: leave it out")
    run = summarization.read(directory)
    texts = read_summaries(asked.data, run.data.read, "--data")
    evaluation = dataclasses.replace(run.evaluation, num_beams=asked.num_beams)
    return score_summaries(*load(Path(asked.run), asked.checkpoint), texts, evaluation)[1]


def _runs() -> dict[str, tuple[str, Any]]:
    from transformer_jax.runs.translation_settings import RUNS

    return RUNS


def _pretrain_runs() -> dict[str, tuple[str, Any]]:
    from transformer_jax.runs.denoising_settings import RUNS

    return RUNS


def _finetune_runs() -> dict[str, tuple[str, Any]]:
    from transformer_jax.runs.summarization_settings import RUNS

    return RUNS


def _part(run: Any) -> Any:
    """The module that trains a run of this type."""
    from transformer_jax.runs import denoising, summarization, translation
    from transformer_jax.runs.denoising_settings import DenoisingRun
    from transformer_jax.runs.summarization_settings import SummarizationRun

    if isinstance(run, SummarizationRun):
        return summarization
    return denoising if isinstance(run, DenoisingRun) else translation


def _part_of(directory: Any) -> Any:
    """The module that trains the run of a directory."""
    from transformer_jax.runs import denoising, summarization, translation

    fields = directory.read_config()
    data = fields.get("data")
    if isinstance(data, dict) and "train" in data:
        return summarization
    return denoising if "noise" in fields else translation


def _begin(run: Any, named: Any) -> tuple[Any, Any, Any]:
    return _part(run).begin(run, named)


def _read(directory: Any) -> tuple[Any, Any]:
    part = _part_of(directory)
    run = part.read(directory)
    return run, lambda: part.open_run(run)


def _train(run: Any, *parts: Any, **how: Any) -> int:
    return _part(run).train(run, *parts, **how)


FAMILY = training.TrainingProgram(
    PROGRAM,
    __doc__ or "",
    {"train": _runs, "pretrain": _pretrain_runs, "finetune": _finetune_runs},
    _begin,
    _read,
    _train,
    others={"evaluate": evaluate},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of ``arguments``, or of the command line; returns its exit code."""
    return training.main(FAMILY, arguments)
