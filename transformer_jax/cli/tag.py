"""``transformer-jax tag``: token classification."""

import dataclasses
import sys
from pathlib import Path

import tyro

from transformer_jax.cli.output import note, note_unknown
from transformer_jax.cli.support.run_command import PredictionCommand
from transformer_jax.core.errors import plural

__all__ = ["Tag"]

READ_AHEAD = 1024
TASKS = ("tag", "replaced")


@dataclasses.dataclass(frozen=True)
class Tag(PredictionCommand):
    """Tag the words of each line with a fine-tuned encoder: word/TAG word/TAG.

    With ELECTRA's discriminator, detect replaced words.
    """

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of a token classifier."""
    texts: tyro.conf.Positional[tuple[str, ...]] = ()
    """Sentences with blanks between words; without any, the lines of standard input."""
    columns: bool = False
    """Print one word per line with tag and probability; an empty line ends a sentence."""

    def __call__(self) -> int:
        """Tags lines until the input ends."""
        from transformer_jax.cli.support.input_lines import given_texts, windows, write
        from transformer_jax.data.words import blank_words
        from transformer_jax.inference.encoders import check_task, task_runner
        from transformer_jax.inference.pretrained import Pretrained, read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        names = check_task(facts, *TASKS).labels
        predictor = task_runner(Pretrained.load(facts))
        for window in windows(given_texts(self.texts), READ_AHEAD):
            sentences = [blank_words(text) for _, text in window]
            found = predictor.tags(sentences)
            for words, tags in zip(sentences, found, strict=True):
                if not self.columns:
                    pairs = zip(words, tags, strict=True)
                    write(" ".join(f"{word}/{names[tag]}" for word, (tag, _) in pairs))
                    continue
                for word, (tag, share) in zip(words, tags, strict=True):
                    write(word, names[tag], f"{share:.4f}")
                write("")
            sys.stdout.buffer.flush()
        note_unknown(predictor.counts, "sentence")
        if cut := predictor.counts["cut"]:
            note(
                f"{plural(cut, 'sentence')} with a word that is longer than the model reads, and "
                f"truncated"
            )
        return 0
