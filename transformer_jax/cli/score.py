"""``transformer-jax score``: log-probabilities of texts or translations."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from transformer_jax.cli.output import note, note_unknown
from transformer_jax.cli.support.run_command import PredictionCommand
from transformer_jax.core.config_fields import Flag
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.decoding.requests import TextScore, perplexity
from transformer_jax.recipes.generation_flags import LanguageFlags

if TYPE_CHECKING:
    from transformer_jax.inference.facts import Facts

__all__ = ["Score", "row"]

HEADER = ("line", "log_prob", "tokens", "log_prob_per_token", "perplexity")


@dataclasses.dataclass(frozen=True)
class Score(LanguageFlags, PredictionCommand):
    """Print the log-probability of each line of a text, or of each translation, as TSV."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder."""
    text: tyro.conf.Positional[Path | None] = None
    """Text file for a language model; each line is one text."""
    source: Annotated[Path | None, Flag(also=("data.source",))] = None
    """Source file for a translator, one sentence per line ..."""
    target: Annotated[Path | None, Flag(also=("data.target",))] = None
    """... and the file of its translations, line by line."""
    as_one_text: bool = False
    """Score the file as one text instead of line by line."""
    tokens: bool = False
    """Add a column with the log-probability of every token."""

    def __call__(self) -> int:
        """Prints one row per line, and one for the corpus."""
        from transformer_jax.inference.pretrained import read_facts

        if (self.source is None) != (self.target is None):
            missing = "--source" if self.source is None else "--target"
            raise ConfigError(f"{missing} is missing: a translation is scored line by line")
        readers = ("encoder-decoder", "decoder", "ngram")
        facts = read_facts(self.run, self.checkpoint, self.opening())
        kind = facts.require(*readers)
        pair = self.source is not None and self.target is not None
        if kind != "encoder-decoder" and (self.from_language or self.to):
            raise ConfigError(f"{self.run} is a language model: leave --from and --to out")
        if kind == "encoder-decoder" and (self.text is not None or self.as_one_text or not pair):
            raise ConfigError(f"{self.run} is a translator: give --source and --target")
        if kind != "encoder-decoder" and (
            self.text is None or self.source is not None or self.target is not None
        ):
            raise ConfigError(f"{self.run} is a language model: give a text file (score RUN FILE)")
        return self.translations(facts) if pair else self.texts(facts)

    def texts(self, facts: "Facts") -> int:
        """Scores lines or a complete file with a language model; bits are per UTF-8 byte."""
        from transformer_jax.data.text import read_lines
        from transformer_jax.inference.pretrained import Pretrained

        assert self.text is not None
        lines = list(read_lines(self.text, "score"))
        if not lines:
            raise DataError(f"score {self.text}: no text: it is empty")
        prepare: Callable[[str], str] = facts.preparation.text
        if self.as_one_text:  # joined from prepared lines
            lines, prepare = ["".join(f"{prepare(line)}\n" for line in lines)], str
        model = Pretrained.load(facts).language(prepare=prepare)
        write = _writer((*HEADER, "bits_per_byte"), self.tokens)
        scores = model.score(lines)
        for number, score in enumerate(scores, 1):
            cells = (*row(str(number), score.log_prob, len(score.tokens)), _bits(score))
            write(cells, model.tokenizer, score)
        total = TextScore(
            math.fsum(score.log_prob for score in scores),
            tuple(token for score in scores for token in score.tokens),
            (),
            sum(score.characters for score in scores),
            sum(score.bytes for score in scores),
        )
        write((*row("corpus", total.log_prob, len(total.tokens)), _bits(total)))
        note_unknown(model.counts)
        return 0

    def translations(self, facts: "Facts") -> int:
        """Scores translations; the end token of each sentence counts."""
        from transformer_jax.data.aligned import read_aligned
        from transformer_jax.data.text import check_readable
        from transformer_jax.inference.pretrained import Pretrained

        assert self.source is not None
        assert self.target is not None
        for flag in ("source", "target"):
            check_readable(getattr(self, flag), f"--{flag}")
        pairs = read_aligned(self.source, self.target, ("--source", "--target"))
        translator: Any = Pretrained.load(facts).translator()
        direction = facts.direction(translator.tokenizer, self.direction)
        write = _writer(HEADER, self.tokens)
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        scores = translator.score(sources, targets, direction)
        for number, score in enumerate(scores, 1):
            told = row(str(number), score.log_prob, len(score.tokens))
            write(told, translator.tokenizer, score)
        total = math.fsum(score.log_prob for score in scores)
        write(row("corpus", total, sum(len(score.tokens) for score in scores)))
        if cut := translator.counts["cut"]:
            note(translator.cut_note(cut, len(scores)))
        note_unknown(translator.counts)
        return 0


def _writer(header: tuple[str, ...], tokens: bool) -> Callable[..., None]:
    """Prints the header; returns a function that writes rows, with a column of tokens if set."""
    import sys

    def write(cells: Iterable[str], tokenizer: Any = None, score: Any = None) -> None:
        if tokens and score is not None:
            named = zip(tokenizer.convert_ids_to_tokens(score.tokens), score.log_probs, strict=True)
            cells = (*cells, " ".join(f"{_visible(name)}:{value:.4f}" for name, value in named))
        sys.stdout.buffer.write("\t".join(cells).encode() + b"\n")
        sys.stdout.buffer.flush()

    write((*header, "token_log_probs") if tokens else header)
    return write


def _bits(score: TextScore) -> str:
    return f"{score.bits_per_byte:.4f}"


def row(name: str, log_prob: float, tokens: int) -> tuple[str, ...]:
    """Returns the cells of a row: natural logarithms, and ``perplexity = exp(-log_prob / tokens)``.

    Example:
        >>> row("1", -4.0, 2)
        ('1', '-4.0000', '2', '-2.0000', '7.3891')
    """
    mean = log_prob / tokens if tokens else math.nan
    worth = perplexity(log_prob, tokens)
    return name, f"{log_prob:.4f}", str(tokens), f"{mean:.4f}", f"{worth:.4f}"


def _visible(piece: str) -> str:
    return piece.replace(" ", "▁").replace("\t", "⇥").replace("\n", "⏎")
