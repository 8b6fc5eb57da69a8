"""``transformer-jax word-vectors``: contextual embeddings of a word in several sentences."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from transformer_jax.cli.output import check_file, wrote
from transformer_jax.cli.support.run_command import PredictionCommand
from transformer_jax.core.config_fields import Count, OutputPath
from transformer_jax.core.errors import ConfigError
from transformer_jax.recipes.generation_flags import LanguageFlags

if TYPE_CHECKING:
    from transformer_jax.visual.word_contexts import WordVectors

__all__ = ["WordVectorsCommand"]


@dataclasses.dataclass(frozen=True)
class WordVectorsCommand(LanguageFlags, PredictionCommand):
    """Compare the contextual embeddings of a word in several sentences, layer by layer."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of an encoder or a translator."""
    word: tyro.conf.Positional[str]
    """The word."""
    sentences: tyro.conf.Positional[tuple[str, ...]] = ()
    """Sentences that contain the word, at least twice in total."""
    output: OutputPath | None = None
    """Output file of a page (.html)."""
    top: Count = 5
    """Number of words with the highest attention to print."""

    def __call__(self) -> int:
        """Prints cosines by layer for pairs of sentences, and the words with most attention."""
        check_file("--output", self.output, (".html",))
        if not self.word.strip() or not self.sentences:
            raise ConfigError(
                "a word and sentences with it are needed: "
                'word-vectors RUN "bank" "on the bank" "a bank"'
            )
        from transformer_jax.inference.encoders import EMBEDDING_FAMILIES, vectors_of
        from transformer_jax.inference.pretrained import Pretrained, read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        opened = Pretrained.load(facts, *EMBEDDING_FAMILIES)
        vectors = vectors_of(opened, direction=self.direction)
        word = facts.preparation.line(self.word)
        found = [one for text in self.sentences for one in vectors.word(text, word)]
        if len(found) < 2:
            raise ConfigError(f'"{word}" occurs only once: add a sentence with it')
        from transformer_jax.visual.word_contexts import cosines, word_vectors_html

        names, rows = cosines(found)
        width = max(len(name) for name, _ in rows)
        print(f"{word:<{width}}  " + "  ".join(f"{name:>7}" for name in names))
        for name, values in rows:
            print(f"{name:<{width}}  " + "  ".join(f"{value:7.4f}" for value in values))
        print()
        for number, one in enumerate(found, 1):
            print(f"{number}  {one.sentence}\n   {_reads(one, self.top)}")
        if self.output is not None:
            try:
                self.output.parent.mkdir(parents=True, exist_ok=True)
                self.output.write_text(
                    word_vectors_html(found, word=word, top=self.top), encoding="utf-8"
                )
            except OSError as error:
                raise ConfigError(
                    f"--output {self.output}: cannot be written: {error.strerror}"
                ) from None
            wrote(self.output)
        return 0


def _reads(one: "WordVectors", top: int) -> str:
    said = ", ".join(f"{name} {share:.3f}" for name, share in one.attended(top))
    return f"reads {said or 'no other word'}"
