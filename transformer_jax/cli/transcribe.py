"""``transformer-jax transcribe``: the texts of recordings."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from transformer_jax.cli.output import TextOutput, note, tsv
from transformer_jax.cli.support.run_command import PredictionCommand
from transformer_jax.core.config_fields import OutputPath, Range
from transformer_jax.core.errors import ConfigError, command
from transformer_jax.recipes.scored_texts import SearchFlags, beam_search

__all__ = ["Transcribe"]


@dataclasses.dataclass(frozen=True)
class Transcribe(SearchFlags, PredictionCommand):
    """Transcribe recordings with a speech recognizer: one line of text per recording."""

    run: tyro.conf.Positional[Path]
    """Run directory of a speech recognizer."""
    files: tyro.conf.Positional[tuple[str, ...]]
    """Recordings: .wav, or features of shape [frames, features] as .npy or .npz; or folders of
    them."""
    output: OutputPath | None = None
    """Output file, .gz allowed; None is standard output."""
    tsv: bool = False
    """Write a table with one row per recording: path, score, text (\\t, \\n and \\\\ stand for a
    tab, a line end and a backslash)."""
    batch_size: Annotated[int, Range(1, 65_536)] = 32
    """Maximum number of recordings in a batch."""

    def __call__(self) -> int:
        """Writes one line per recording, in input order."""
        if not self.files:
            raise ConfigError("transcribe needs recordings: transcribe RUN a.wav b.npy")
        for path in self.files:
            if path.removesuffix(".gz").lower().endswith((".tsv", ".csv", ".jsonl", ".json")):
                scored = command("evaluate", self.run, "--manifest", path, "--output", "texts.txt")
                raise ConfigError(
                    f"{path}: a manifest, and transcribe takes recordings: {scored} writes the "
                    f"transcripts of its recordings, and scores them"
                )
        from transformer_jax.core.task_progress import show_progress, tracked
        from transformer_jax.data.bad_rows import BadRows
        from transformer_jax.data.speech.features import read_features, recordings_in
        from transformer_jax.inference.pretrained import open_pretrained
        from transformer_jax.inference.speech import transcriber_of
        from transformer_jax.inference.transcriber import Recording

        files = recordings_in(self.files)
        opened = open_pretrained(self.run, self.checkpoint, "speech", opening=self.opening())
        transcriber, audio = transcriber_of(opened, search=beam_search(self, opened.facts))
        del opened  # keeps no second copy of the parameters
        transcriber.batching = dataclasses.replace(
            transcriber.batching,
            rows=tuple(sorted({n for n in (1, 8) if n < self.batch_size} | {self.batch_size})),
        )
        with TextOutput(self.output) as out:
            out.write(tsv("path", "score", "text") if self.tsv else b"")
            # Read all recordings first, so that a bad one is refused before any is transcribed.
            recordings, bad = [], BadRows("transcribe", what="recording")
            for path in tracked(files, "reading recordings"):
                with bad:
                    recordings.append(Recording(path, read_features(path, audio)[0]))
            bad.check(len(recordings))
            with show_progress(f"transcribing {len(recordings):,} recordings"):
                for found in transcriber.stream(recordings):
                    row = tsv(found.source, float(found.score), found.text)
                    out.write(row if self.tsv else found.text.encode() + b"\n")
        if limited := transcriber.counts["limited"]:
            said = transcriber.limit_note(limited, len(recordings))
            note(f"{said}: raise --max-len-a or --max-len-b")
        return 0
