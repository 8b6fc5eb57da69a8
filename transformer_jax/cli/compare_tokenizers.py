"""``transformer-jax compare-tokenizers``: tokens of a text by several tokenizers."""

import dataclasses
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import tyro

from transformer_jax.cli.output import check_file, note, write_json
from transformer_jax.cli.support.run_command import RunCommand
from transformer_jax.cli.tokenize import Tokenize
from transformer_jax.core.config_fields import Count, OutputPath
from transformer_jax.core.errors import DataError, plural
from transformer_jax.core.text_tables import aligned
from transformer_jax.data.tokenizer_kind import TokenizerKind, VocabSize

if TYPE_CHECKING:
    from transformer_jax.data.coverage import Compression

__all__ = ["CompareTokenizers"]


@dataclasses.dataclass(frozen=True)
class CompareTokenizers(RunCommand):
    """Compare kinds of tokenizers on a text: tokens per byte and word, unknown tokens and text.

    One of each kind is trained on FILE.
    """

    file: tyro.conf.Positional[Path]
    """Text file to train on, .gz allowed."""
    test: Path | None = None
    """Text file to compare on; None is FILE."""
    kinds: tuple[TokenizerKind, ...] = (
        "words", "wordpiece", "wordpiece_likelihood", "unigram", "bpe", "characters", "bytes",
    )  # fmt: skip
    """Kinds to train."""
    vocab_size: VocabSize = 8000
    """Maximum size of each vocabulary in tokens."""
    tokenizers: tuple[Path, ...] = ()
    """Run directories, Hugging Face folders or tokenizer.json files to add to the comparison."""
    limit: Count = 100_000
    """Maximum number of lines to read from the start of each file."""
    json: OutputPath | None = None
    """Output file of all counts."""

    def __call__(self) -> int:
        """Prints a row per tokenizer."""
        check_file("--json", self.json, (".json",))
        allowed = self.allow_changed_config
        others = {
            _row_name(path): Tokenize(path, allow_changed_config=allowed).tokenizer()
            for path in self.tokenizers
        }
        train = self.lines(self.file, "FILE")
        test = train if self.test is None else self.lines(self.test, "--test")
        from transformer_jax.core.task_progress import show_progress
        from transformer_jax.data.coverage import compression
        from transformer_jax.data.tokenizer import train_tokenizer

        rows: dict[str, Compression] = {}
        with show_progress("training tokenizers", len(self.kinds)) as activity:
            for kind in dict.fromkeys(self.kinds):
                rows[kind] = compression(train_tokenizer(kind, train, self.vocab_size), test)
                activity.update()
        for name, (tokenizer, prepare) in others.items():
            rows[name] = compression(tokenizer, [prepare(line) for line in test], test)
        print(_table(rows))
        where = f"{self.test or self.file}: {plural(len(test), 'line')}"
        note(f"{where}; restored: lines that decode to the same text, up to composed characters")
        if self.json is not None:
            write_json("--json", self.json, {name: _fields(row) for name, row in rows.items()})
        return 0

    def lines(self, path: Path, flag: str) -> list[str]:
        """Returns the lines of a file that are not blank.

        Raises:
            DataError: There are none, or the file cannot be read.
        """
        from transformer_jax.data.text import read_lines

        first = itertools.islice(read_lines(path, flag), self.limit)
        lines = [line.strip() for line in first if line.strip()]
        if not lines:
            raise DataError(f"{path}: no text: it is empty")
        return lines


def _row_name(path: Path) -> str:
    """Returns the row name of a path, different from the names of kinds."""
    return f"./{path}" if str(path) in get_args(TokenizerKind) else str(path)


def _table(rows: "dict[str, Compression]") -> str:
    head = ("tokenizer", "vocabulary", "tokens/byte", "tokens/word", "unknown tokens",
            "unknown characters", "restored")  # fmt: skip
    cells = [
        (
            name,
            f"{row.vocab_size:,}",
            f"{row.tokens_per_byte:.3f}",
            f"{row.tokens_per_word:.2f}",
            f"{row.unknown_rate:.2%}",
            f"{row.coverage.share:.2%}",
            f"{row.restored_rate:.1%}",
        )
        for name, row in rows.items()
    ]
    return aligned([head, *cells])


def _fields(row: "Compression") -> dict[str, Any]:
    names = ("tokens_per_byte", "tokens_per_word", "unknown_rate", "restored_rate")
    fields = dataclasses.asdict(row) | {name: getattr(row, name) for name in names}
    coverage = fields.pop("coverage")
    return fields | {
        "characters": coverage["characters"],
        "unknown_characters": coverage["unknown"],
        "unknown_character_rate": row.coverage.share,
    }
