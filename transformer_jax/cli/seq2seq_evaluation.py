"""``evaluate`` of encoder-decoders: translations, summaries or transcripts of a file, scored."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from transformer_jax.cli.output import note
from transformer_jax.cli.run_command import PredictionCommand
from transformer_jax.cli.run_flags import parse_flags
from transformer_jax.errors import ConfigError, plural

if TYPE_CHECKING:
    from transformer_jax.decoding.options import BeamSearchConfig

__all__ = ["Evaluate", "evaluate", "kind_of"]

Kind = Literal["translation", "summaries", "speech", "denoising"]
# What a run of each kind is called, and the flags that say what it is evaluated on.
_READS: dict[Kind, tuple[str, tuple[str, ...]]] = {
    "translation": ("a translator", ("source", "target")),
    "summaries": ("summaries", ("data",)),
    "speech": ("a speech recognizer", ("manifest",)),
}


@dataclasses.dataclass(frozen=True)
class Evaluate(PredictionCommand):
    """Evaluate a run on your own data.

    Translations have sacreBLEU and chrF, summaries ROUGE, speech error rates and sacreBLEU.
    """

    run: tyro.conf.Positional[str]
    """The run directory."""
    source: str | None = None
    """File of sentences to translate, one per line."""
    target: str | None = None
    """File of their reference translations, one per line."""
    data: str | None = None
    """Of a run of summaries: JSONL file of texts and summaries."""
    manifest: str | None = None
    """Of a speech recognizer: .tsv or .jsonl of recordings and their texts."""
    checkpoint: str = "best"
    """best, last, a step, or average:N (the mean of the last N)."""
    num_beams: int = 4
    """Beam width; 1 is greedy search."""
    max_len_a: float | None = None
    """Maximum length of a text: this many tokens per source token (per position of a recording) ...
    None is that of the run."""
    max_len_b: int | None = None
    """... plus this many tokens. None is that of the run."""
    tokenize: (
        Literal[
            "13a", "intl", "zh", "char", "ja-mecab", "ko-mecab",
            "flores101", "flores200", "spm", "spBLEU-1K", "none", "latin",
        ]
        | None
    ) = None  # fmt: skip
    """Words of sacreBLEU, which the signature states, of ROUGE (latin is that of rouge-score) and
    of error rates. flores101, flores200, spm and spBLEU-1K download a model once; ja-mecab needs
    sacrebleu[ja], ko-mecab sacrebleu[ko]. None is that of the run, or follows from the script of
    the references."""
    lowercase: bool = False
    """Ignore case; the signature states it."""
    output: str | None = None
    """Output file of the translations, summaries or transcripts, one per line."""

    def check(self) -> None:
        """Refuses flags that are what no kind of run is evaluated on.

        Raises:
            ConfigError: One is missing, or two exclude each other.
        """
        flags = ("source", "target", "data", "manifest")
        given = [name for name in flags if getattr(self, name) is not None]
        for kind in ("summaries", "speech"):
            name, (flag,) = _READS[kind]  # type: ignore[index]
            if flag in given and len(given) > 1:
                raise ConfigError(f"--{flag} is for {name}: give it alone")
        missing = next((name for name in ("source", "target") if name not in given), None)
        if missing is not None and given not in (["data"], ["manifest"]):
            raise ConfigError(
                f"--{missing} is missing: give --source and --target, or of a speech recognizer "
                f"--manifest, or of summaries --data"
            )

    def search(self) -> "BeamSearchConfig":
        """The beam search of the flags, with the run's length limit where they give none."""
        from transformer_jax.decoding.options import BeamSearchConfig
        from transformer_jax.predictors.length_limits import length_limit

        limit = length_limit(self.run, self.max_len_a, self.max_len_b)
        return BeamSearchConfig(num_beams=self.num_beams, **limit._asdict())

    def words(self, kept: str | None, references: Sequence[str]) -> str | None:
        """Returns the word splitting of the flag or of the run; None follows from the script.

        A note says so where the script has no blanks that could split words.

        Args:
            kept: The setting of the run.
            references: Texts that scores compare with.

        Raises:
            ConfigError: A package is missing, or a model cannot be downloaded.
        """
        from transformer_jax.evaluation.words import check_tokenize, choose_tokenize

        if self.tokenize is not None:
            if self.tokenize != "latin":
                check_tokenize(self.tokenize, "--tokenize")
            return self.tokenize
        by_script = choose_tokenize(references)
        if kept is None and by_script != "13a":
            note(f"words are split by {by_script}, from the script of the references: --tokenize")
        elif kept in ("13a", "latin") and by_script != "13a":
            note(
                f"words are split by {kept}, as the run has it, and the script of the references "
                f"asks for {by_script}: give --tokenize {by_script}"
            )
        return kept

    def needed(self, kind: Kind) -> list[str]:
        """The values of the flags that say what a run of a kind is evaluated on.

        Raises:
            ConfigError: They are for another kind of run.
        """
        name, flags = _READS[kind]
        values = [getattr(self, flag) for flag in flags]
        if None in values:
            asked = " and ".join(f"--{flag}" for flag in flags)
            raise ConfigError(f"{self.run}: the run of {name}: give {asked}, and nothing else")
        return values


def kind_of(directory: Any) -> Kind:
    """Returns the kind of a run by its ``config.json``."""
    from transformer_jax.runs.speech_settings import has_features

    fields = directory.read_config()
    if has_features(fields):
        return "speech"
    data = fields.get("data")
    if isinstance(data, dict) and "train" in data:
        return "summaries"
    return "denoising" if "noise" in fields else "translation"


def evaluate(arguments: Sequence[str], program: str) -> int:
    """Scores what a run writes for a file."""
    asked = parse_flags(Evaluate, program, arguments)
    asked.check()

    with asked.loading():
        return _evaluate(asked)


def _evaluate(asked: Evaluate) -> int:
    from transformer_jax.predictors.runs import open_directory

    directory = open_directory(asked.run)
    kind = kind_of(directory)
    if kind == "denoising":
        raise ConfigError(
            f"{asked.run}: a denoising run, which is not trained to translate: its loss on "
            f"held-out text is in results.json"
        )
    scored: dict[str, Any] = {
        "speech": _transcripts,
        "summaries": _summaries,
        "translation": _translations,
    }
    texts = scored[kind](asked, directory, *asked.needed(kind))
    if asked.output is not None:
        try:
            Path(asked.output).write_text(
                "".join(text.replace("\n", " ") + "\n" for text in texts), "utf-8"
            )
        except OSError as error:
            raise ConfigError(f"--output {asked.output}: {error.strerror}") from None
    return 0


def _translations(asked: Evaluate, directory: Any, source: str, target: str) -> list[str]:
    """Prints the scores of translations, and returns them."""
    from transformer_jax.data.aligned import read_aligned
    from transformer_jax.data.pairs import Pairs
    from transformer_jax.decoding.translator import Translator
    from transformer_jax.predictors.runs import load, preparation
    from transformer_jax.runs.translation_settings import Run
    from transformer_jax.tasks.translation_task import score_pairs

    search = asked.search()
    run = Run.read(directory)
    lowercase = run.data.read.lowercase
    # Every line counts, empty ones too: a score over a part of a file is another score.
    pairs = read_aligned(source, target, "--source, --target")
    prepare = preparation(directory)
    sources = [prepare.source(source) for source, _ in pairs]
    targets = [prepare.line(target) for _, target in pairs]
    translator = Translator(*load(Path(asked.run), asked.checkpoint), search=search)
    tokenize = asked.words(run.evaluation.tokenize, targets)
    scores, texts = score_pairs(
        translator,
        Pairs(sources, targets, source),
        lowercase=lowercase or asked.lowercase,
        tokenize=tokenize,
    )
    print(scores)
    return texts


def _summaries(asked: Evaluate, directory: Any, data: str) -> list[str]:
    """Prints ROUGE of summaries beside baselines, and returns them."""
    from transformer_jax.data.summaries import read_summaries
    from transformer_jax.predictors.runs import load
    from transformer_jax.runs import summarization
    from transformer_jax.tasks.summarization_task import score_summaries

    if asked.lowercase:
        raise ConfigError("--lowercase: ROUGE ignores case anyway: leave it out")
    run = summarization.read(directory)
    texts = read_summaries(data, run.data.read, "--data", every=True)
    references = [text for texts in texts.references for text in texts]
    words: Any = asked.words(run.evaluation.tokenize, references)
    evaluation = dataclasses.replace(run.evaluation, tokenize=words)
    loaded = load(Path(asked.run), asked.checkpoint)
    return score_summaries(*loaded, texts, evaluation, asked.search())[1]


def _transcripts(asked: Evaluate, directory: Any, manifest: str) -> list[str]:
    """Prints the scores of the transcripts of a manifest's recordings, and returns them."""
    from transformer_jax.predictors.runs import preparation
    from transformer_jax.predictors.speech import load_transcriber
    from transformer_jax.runs.speech_settings import SpeechRun
    from transformer_jax.speech.recordings import read_manifest
    from transformer_jax.speech.transcriber import Recording
    from transformer_jax.tasks.fit import log_scored
    from transformer_jax.tasks.speech_task import score_recordings, shown_scores
    from transformer_jax.training.activity import tracked

    run = SpeechRun.read(directory)
    prepare = preparation(directory)
    prepare = dataclasses.replace(prepare, lowercase=prepare.lowercase or asked.lowercase)
    search = asked.search()
    recordings = read_manifest(manifest, "--manifest", prepare=prepare)
    transcriber, audio = load_transcriber(Path(asked.run), asked.checkpoint, search=search)
    read = [
        Recording(recordings.paths[i], recordings.read(i, audio)[0])
        for i in tracked(range(len(recordings)), f"reading the recordings of {manifest}")
    ]
    tokenize = asked.words(run.evaluation.tokenize, recordings.texts)
    counted = plural(len(recordings), "recording")
    log_scored(manifest, counted, directory.load_tokenizer(), target=recordings.texts)
    scores, texts = score_recordings(
        transcriber, read, recordings.texts, lowercase=prepare.lowercase, tokenize=tokenize
    )
    print(shown_scores(scores))
    return texts
