"""``transformer-jax analogy``: analogies by word vectors, one or a file of them."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from transformer_jax.cli.output import check_file, note, tsv, writing, wrote
from transformer_jax.core.config_fields import Configuration, Count, OutputPath
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.text_tables import aligned

if TYPE_CHECKING:
    from transformer_jax.word_vectors.embeddings import WordEmbeddings

__all__ = ["Analogy"]

_PAIRS = 12  # of a picture


@dataclasses.dataclass(frozen=True)
class Analogy(Configuration, group="--"):
    """Answer a − b + c with word vectors (3CosAdd): paris − france + italy = rome."""

    vectors: tyro.conf.Positional[Path]
    """Word vectors: a file of word2vec (text or binary), or the folder of their training."""
    words: tyro.conf.Positional[tuple[str, ...]] = ()
    """Three words a b c, answered by a − b + c, such as paris france italy."""
    top: Count = 5
    """Number of answers to print."""
    questions: Path | None = None
    """File of questions of four words, athens greece oslo norway, in sections, such as
    questions-words.txt: prints the accuracy by section."""
    section: str | None = None
    """Section of the file to use; None is all."""
    limit: Count = 300_000
    """Size of the vocabulary: the most frequent words."""
    output: OutputPath | None = None
    """Output file of a picture of the words in two dimensions: .png, .svg or .html."""

    def __call__(self) -> int:
        """Prints answers with cosines, or accuracies."""
        self._check()
        from transformer_jax.word_vectors.formats import load_embeddings
        from transformer_jax.word_vectors.questions import read_analogies

        sections = None if self.questions is None else read_analogies(self.questions)
        if sections is not None and self.section is not None:
            if self.section not in sections:
                raise ConfigError(
                    f"--section {self.section}: {self.questions} has {', '.join(sections)}"
                )
            sections = {self.section: sections[self.section]}
        embeddings = load_embeddings(self.vectors, self.limit)
        if sections is None:
            return self._one(embeddings)
        self._answer(embeddings, sections)
        if self.output is not None:
            name, questions = next(iter(sections.items()))
            known = [q for q in questions if all(embeddings.find(word) is not None for word in q)]
            pairs = dict.fromkeys(pair for q in known for pair in (q[:2], q[2:]))
            if not pairs:
                raise DataError(f"--output: no question of {name} has vectors for all its words")
            self._draw(embeddings, list(pairs)[:_PAIRS], (), name)
        return 0

    def _check(self) -> None:
        from transformer_jax.visual.figures import SUFFIXES

        if (len(self.words) != 3) if self.questions is None else self.words:
            raise ConfigError(
                f"{plural(len(self.words), 'word')}: give three, such as analogy VECTORS paris "
                f"france italy, or --questions FILE and none"
            )
        if self.section is not None and self.questions is None:
            raise ConfigError("--section is of a file of questions: add --questions FILE")
        check_file("--output", self.output, SUFFIXES)

    def _one(self, embeddings: "WordEmbeddings") -> int:
        a, b, c = self.words
        answers = embeddings.analogy(a, b, c, self.top)
        for word, cosine in answers:
            print(tsv(word, cosine).decode(), end="")
        if self.output is not None and answers:
            best, others = answers[0][0], [word for word, _ in answers[1:]]
            self._draw(embeddings, [(b, a), (c, best)], others, f"{a} − {b} + {c} = {best}")
        return 0

    def _answer(
        self, embeddings: "WordEmbeddings", sections: dict[str, list[tuple[str, str, str, str]]]
    ) -> None:
        from transformer_jax.word_vectors.questions import AnalogySection, answer_analogies

        found = answer_analogies(embeddings, sections, limit=self.limit)
        sums = (sum(getattr(one, n) for one in found) for n in ("correct", "answered", "questions"))
        total = AnalogySection("total", *sums)
        rows: list[tuple[str, ...]] = [("section", "accuracy", "correct", "answered", "questions")]
        for one in [*found, total] if len(found) > 1 else found:
            accuracy = f"{one.accuracy:.2%}" if one.answered else "-"
            counts = (f"{n:,}" for n in (one.correct, one.answered, one.questions))
            rows.append((one.name, accuracy, *counts))
        print(aligned(rows))
        if left := total.questions - total.answered:
            note(f"{plural(left, 'question')} not answered: a word has no vector")

    def _draw(
        self,
        embeddings: "WordEmbeddings",
        arrows: "list[tuple[str, str]]",
        others: "list[str] | tuple[()]",
        title: str,
    ) -> None:
        from transformer_jax.visual.word_map import plot_words

        assert self.output is not None
        words = list(dict.fromkeys([word for arrow in arrows for word in arrow] + [*others]))
        rows = embeddings.unit[[embeddings.row(word) for word in words]]
        with writing("--output", self.output):
            plot_words(words, rows, self.output, arrows=arrows, title=title)
        wrote(self.output)
