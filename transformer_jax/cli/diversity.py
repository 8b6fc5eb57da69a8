"""``transformer-jax diversity``: diversity of texts of greedy search, beam search and sampling."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from transformer_jax.cli.output import check_file, escaped, note, write_json, writing, wrote
from transformer_jax.cli.support.run_command import PredictionCommand
from transformer_jax.core.config_fields import Amount, Count, Fraction, OutputPath, Range, Seed
from transformer_jax.core.errors import DataError, plural
from transformer_jax.core.text_tables import aligned
from transformer_jax.recipes.generation_flags import LanguageFlags

if TYPE_CHECKING:
    from transformer_jax.evaluation.diversity import Diversity

__all__ = ["DiversityCommand"]


@dataclasses.dataclass(frozen=True)
class DiversityCommand(LanguageFlags, PredictionCommand):
    """Compare how diverse a model's texts are under greedy search, beam search and sampling."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of a language model or a translator."""
    file: tyro.conf.Positional[Path]
    """File with one prompt, or one sentence to translate, per line; - is standard input."""
    number: Annotated[int, Range(2, 1_000)] = 5
    """Number of texts per line: of beams, or of samples."""
    max_new_tokens: Annotated[int, Range(1, 1_000_000)] = 64
    """Maximum number of new tokens per text."""
    temperatures: tuple[Annotated[float, Range(above=0, most=1e6)], ...] = (0.7, 1.0)
    """Temperatures to sample with; greedy search (temperature 0) is always included."""
    top_k: Count = 40
    """Also sample from the k most probable tokens."""
    top_p: Fraction = 0.9
    """Also sample from the nucleus of this probability."""
    tokenize: (
        Literal[
            "13a", "intl", "zh", "char", "ja-mecab", "ko-mecab",
            "flores101", "flores200", "spm", "spBLEU-1K", "none",
        ]
        | None
    ) = None  # fmt: skip
    """sacreBLEU tokenizer that splits words: 13a, intl and none split at blanks (for self-BLEU, 13a
    and intl also at punctuation); zh, char, ja-mecab ... are for scripts without blanks. None
    chooses by the script of the texts."""
    seed: Seed = 0
    """Random seed for sampling."""
    show: Amount = 0
    """Number of lines whose texts are printed."""
    json: OutputPath | None = None
    """Output file of all texts and figures."""
    output: OutputPath | None = None
    """Output file of the picture: .png, .svg or .html."""

    def __call__(self) -> int:
        """Prints a row per decoding method, and writes the requested files."""
        self.check()
        from transformer_jax.cli.support.input_lines import file_lines
        from transformer_jax.inference.pretrained import read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        lines = [line for line in file_lines(self.file, "FILE", "requests") if line.strip()]
        if not lines:
            raise DataError(f"{self.file}: no lines: it is empty")
        from transformer_jax.evaluation.diversity import diversity
        from transformer_jax.evaluation.word_splitting import choose_tokenize
        from transformer_jax.inference.decoding_comparison import write_varieties

        found = write_varieties(
            facts, lines, self.ways(), max_new_tokens=self.max_new_tokens, seed=self.seed,
            direction=self.direction,
        )  # fmt: skip
        every = [text for texts in found.values() for row in texts for text in row]
        tokenize = self.tokenize or choose_tokenize(every)
        rows = {name: diversity(texts, tokenize) for name, texts in found.items()}
        print(_table(rows))
        note(
            f"{plural(len(lines), 'line')}; words split by sacreBLEU's {tokenize}; "
            f"self-BLEU compares the {plural(self.number, 'text')} of each line; distinct n-grams "
            f"are counted over all texts of a method, and decrease with the number of texts"
        )
        for i in range(min(self.show, len(lines))):
            for name, texts in found.items():
                for text in texts[i]:
                    print(f"{i + 1}\t{name}\t{escaped(text)}")
        translates, prepare = facts.kind == "encoder-decoder", facts.preparation
        read = map(prepare.source if translates else prepare.text, lines)
        self.write(list(read), found, rows)
        return 0

    def check(self) -> None:
        """Refuses invalid settings before anything is read.

        Raises:
            ConfigError: A file name has the wrong suffix, or the tokenizer is unavailable.
        """
        from transformer_jax.visual.figures import SUFFIXES

        check_file("--json", self.json, (".json",))
        check_file("--output", self.output, SUFFIXES)
        if self.tokenize is not None:
            from transformer_jax.evaluation.word_splitting import check_tokenize

            check_tokenize(self.tokenize, "--tokenize")

    def ways(self) -> dict[str, dict[str, Any]]:
        """Returns the settings of each decoding method, by name."""
        samples = {"num_return_sequences": self.number}
        warm = {
            f"temperature {value:g}": samples | {"temperature": value}
            for value in self.temperatures
        }
        return {
            "greedy": {"temperature": 0.0},
            f"beam search, {self.number}": samples | {"num_beams": self.number},
            **warm,
            f"top-k {self.top_k}": samples | {"top_k": self.top_k},
            f"top-p {self.top_p:g}": samples | {"top_p": self.top_p},
        }

    def write(
        self, lines: Sequence[str], found: dict[str, list[list[str]]], rows: "dict[str, Diversity]"
    ) -> None:
        """Writes the JSON file and the picture, if requested."""
        if self.json is not None:
            content = {
                name: dataclasses.asdict(row) | {"texts": found[name]} for name, row in rows.items()
            }
            write_json("--json", self.json, {"lines": list(lines), "ways": content})
        if self.output is not None:
            from transformer_jax.visual.charts import plot_diversity

            with writing("--output", self.output):
                plot_diversity(self.output, rows, self.number)
        if written := [path for path in (self.json, self.output) if path is not None]:
            wrote(*written)


def _table(rows: "dict[str, Diversity]") -> str:
    head = ("way", "distinct-1", "distinct-2", "self-BLEU", "words")
    cells = [
        (
            name,
            f"{row.distinct_1:.3f}",
            f"{row.distinct_2:.3f}",
            "–" if row.self_bleu is None else f"{row.self_bleu:.1f}",
            f"{row.words:.1f}",
        )
        for name, row in rows.items()
    ]
    return aligned([head, *cells])
