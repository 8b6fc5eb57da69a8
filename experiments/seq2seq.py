"""Train a translator from sentence pairs, go on with a run, score one.

    python -m experiments.seq2seq train phrasebook
    python -m experiments.seq2seq train base --data.source corpus.de --data.target corpus.en
    python -m experiments.seq2seq train base --data.tfds ted_hrlr_translate/pt_to_en --mesh.fsdp 4
    python -m experiments.seq2seq resume runs/base
    python -m experiments.seq2seq evaluate runs/base --source test.de --target test.en

``train NAME --help`` lists every setting. A run ends with sacreBLEU and chrF on its test sets.
"""

import dataclasses
import difflib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import tyro

from transformer_jax.allocator import keep_memory
from transformer_jax.cli.errors import guarded, leave, run_log
from transformer_jax.errors import ConfigError, Stopped

__all__ = ["Evaluate", "main"]

PROGRAM = "python -m experiments.seq2seq"


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Score a run on text of your own: sacreBLEU and chrF with their signatures."""

    run: tyro.conf.Positional[str]
    """The run directory."""
    source: str
    """Sentences to translate, one a line."""
    target: str
    """Their reference translations, line by line."""
    checkpoint: str = "best"
    """best, last, a step, or average:N (the mean of the last N)."""
    beams: int = 4
    """Hypotheses of beam search; 1 is greedy search."""
    lowercase: bool = False
    """Score without regard to case, which the signature then says."""
    output: str | None = None
    """Where the translations go, one a line."""


def train(arguments: Sequence[str]) -> int:
    """Begins a run and sees it through."""
    from experiments.settings import RUNS

    name = _named_run(arguments)
    run = tyro.extras.overridable_config_cli(
        RUNS, prog=f"{PROGRAM} train", description="Begin a run.", args=list(arguments)
    )
    run = dataclasses.replace(run, output=run.output or f"runs/{name}")
    from experiments import translation
    from transformer_jax.parallel.mesh import initialize

    initialize(run.distributed)
    # Refused before minutes of reading, not after; `begin` looks once more.
    _check_output(run)
    vocab_given = run.model.vocab != RUNS[name][1].model.vocab
    run, directory, splits = translation.begin(run, vocab_given=vocab_given)
    run_log(directory.log)
    return translation.train(run, directory, splits, resume=False)


def _check_output(run: Any) -> None:
    from transformer_jax.parallel.mesh import barrier, is_main
    from transformer_jax.training.run_directory import RunDirectory

    if is_main():
        RunDirectory.check_free(run.output, overwrite=run.overwrite)
    barrier("output is free")


def _named_run(arguments: Sequence[str]) -> str:
    from experiments.settings import RUNS

    if arguments and (arguments[0] in RUNS or arguments[0] in ("-h", "--help")):
        return arguments[0]
    known = ", ".join(RUNS)
    if not arguments or arguments[0].startswith("-"):
        raise ConfigError(f"train needs the name of a run first: {known}")
    near = difflib.get_close_matches(arguments[0], RUNS, 1, 0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ConfigError(f"no run is called {arguments[0]}: {hint}there are {known}")


def resume(arguments: Sequence[str]) -> int:
    """Goes on with a run from its newest good checkpoint, on any mesh."""
    from experiments.settings import Run
    from transformer_jax.data.sources import load_splits
    from transformer_jax.parallel.mesh import DistributedConfig, MeshConfig, initialize
    from transformer_jax.training.loop import LoopConfig
    from transformer_jax.training.run_directory import RunDirectory

    @dataclasses.dataclass(frozen=True)
    class Resume:
        """Go on with a run; what is not given stays as it was."""

        run: tyro.conf.Positional[str]
        """The run directory."""
        loop: LoopConfig = LoopConfig()
        mesh: MeshConfig = MeshConfig()
        distributed: DistributedConfig = DistributedConfig()

    default = None
    if not arguments:
        raise ConfigError("resume needs a run directory: resume runs/NAME")
    if not arguments[0].startswith("-"):
        directory = RunDirectory.open(arguments[0])
        run = Run.read(directory)
        default = Resume(arguments[0], run.loop, run.mesh, DistributedConfig())
    asked = tyro.cli(Resume, prog=f"{PROGRAM} resume", args=list(arguments), default=default)
    assert asked is not None
    from experiments import translation

    directory = RunDirectory.open(asked.run)
    run_log(directory.log)
    run = dataclasses.replace(
        Run.read(directory), loop=asked.loop, mesh=asked.mesh, distributed=asked.distributed
    )
    initialize(run.distributed)
    return translation.train(run, directory, load_splits(run.data), resume=True)


def evaluate(arguments: Sequence[str]) -> int:
    """Translates a file with a run's model and scores it."""
    asked = tyro.cli(Evaluate, prog=f"{PROGRAM} evaluate", args=list(arguments))
    from experiments.settings import Run
    from experiments.translation import score_pairs
    from transformer_jax.cli.loading import load
    from transformer_jax.data.aligned import read_aligned
    from transformer_jax.decoding.options import Search
    from transformer_jax.decoding.translator import Translator
    from transformer_jax.training.run_directory import RunDirectory

    search = Search(beams=asked.beams)
    lowercase = Run.read(RunDirectory.open(asked.run)).data.read.lowercase
    # Every line counts, empty ones too: a score over a part of a file is another score.
    pairs = read_aligned(asked.source, asked.target, "--source, --target")
    model, tokenizer = load(Path(asked.run), asked.checkpoint)
    sources = [source.lower() if lowercase else source for source, _ in pairs]
    translator = Translator(model, tokenizer, search=search)
    targets = [target for _, target in pairs]
    scores, texts = score_pairs(
        translator, sources, targets, lowercase=lowercase or asked.lowercase
    )
    if asked.output is not None:
        try:
            Path(asked.output).write_text(
                "".join(text.replace("\n", " ") + "\n" for text in texts), "utf-8"
            )
        except OSError as error:
            raise ConfigError(f"--output {asked.output}: {error.strerror}") from None
    print(scores)
    return 0


COMMANDS = {"train": train, "resume": resume, "evaluate": evaluate}


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    if arguments[0] not in COMMANDS:
        near = difflib.get_close_matches(arguments[0], COMMANDS, 1, 0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"unknown command {arguments[0]}: {hint}there are {', '.join(COMMANDS)}")
    keep_memory()
    return COMMANDS[arguments[0]](arguments[1:])


def _terminated(number: int, frame: FrameType | None) -> None:
    del frame
    raise Stopped("stopped by a signal before or after training", number)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of what ``arguments``, or the command line, ask for."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    outside = threading.current_thread() is not threading.main_thread()
    before = None if outside else signal.signal(signal.SIGTERM, _terminated)
    try:
        return guarded(lambda: _run(given))
    finally:
        run_log(None)
        # Several processes share a handler of JAX's own, which stays.
        if before is not None and signal.getsignal(signal.SIGTERM) is _terminated:
            signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    leave(main())
