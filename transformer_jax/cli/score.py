"""``transformer-jax score``: how probable given translations are."""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

import tyro

__all__ = ["Score", "row"]

HEADER = ("line", "log_prob", "tokens", "log_prob_per_token", "perplexity")


@dataclasses.dataclass(frozen=True)
class Score:
    """Print the log-probability of each target line given its source line, as TSV."""

    run: tyro.conf.Positional[Path]
    """A run directory."""
    source: Path
    """A text file, one sentence a line."""
    target: Path
    """Its translation, line by line."""
    tokens: bool = False
    """One more column: every token with its log-probability."""
    checkpoint: str = "best"
    """best, last, a step, or average:N for the mean of the last N."""

    def __call__(self) -> int:
        """One row a line, with the end of the sentence as a token; the last is the corpus."""
        import sys

        from transformer_jax.cli.loading import as_trained, load
        from transformer_jax.data.aligned import read_aligned
        from transformer_jax.data.text import open_bytes
        from transformer_jax.decoding.translator import Translator

        for flag in ("source", "target"):
            open_bytes(getattr(self, flag), f"--{flag}").close()
        pairs = read_aligned(self.source, self.target, "score")
        model, tokenizer = load(self.run, self.checkpoint)
        translator = Translator(model, tokenizer)
        out = sys.stdout.buffer

        def write(cells: Iterable[str]) -> None:
            out.write("\t".join(cells).encode() + b"\n")

        write((*HEADER, "token_log_probs") if self.tokens else HEADER)
        prepare = as_trained(self.run)
        scores = translator.score([prepare(s) for s, _ in pairs], [prepare(t) for _, t in pairs])
        for number, score in enumerate(scores, 1):
            cells = row(str(number), score.log_prob, len(score.tokens))
            if self.tokens:
                named = zip(tokenizer.pieces(score.tokens), score.log_probs, strict=True)
                cells += (" ".join(f"{_visible(name)}:{value:.4f}" for name, value in named),)
            write(cells)
        total = math.fsum(score.log_prob for score in scores)
        write(row("corpus", total, sum(len(score.tokens) for score in scores)))
        out.flush()
        return 0


def row(name: str, log_prob: float, tokens: int) -> tuple[str, ...]:
    """The cells of one row: natural logarithms, and ``perplexity = exp(-log_prob / tokens)``.

    Example:
        >>> row("1", -4.0, 2)
        ('1', '-4.0000', '2', '-2.0000', '7.3891')
    """
    mean = log_prob / tokens
    return name, f"{log_prob:.4f}", str(tokens), f"{mean:.4f}", f"{math.exp(-mean):.4f}"


def _visible(piece: str) -> str:
    return piece.replace(" ", "▁").replace("\t", "⇥").replace("\n", "⏎")
