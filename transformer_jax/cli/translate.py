"""``transformer-jax translate``: lines in, translations out."""

import dataclasses
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from transformer_jax.cli.output import TextOutput, note, tsv, waiting
from transformer_jax.cli.run_command import RunCommand
from transformer_jax.errors import ConfigError, plural

if TYPE_CHECKING:
    from transformer_jax.decoding.forced import TraceStep
    from transformer_jax.decoding.options import BeamSearchConfig, TranslationBatching
    from transformer_jax.decoding.translator import Translation, Translator

__all__ = ["Translate", "traced"]


@dataclasses.dataclass(frozen=True)
class Translate(RunCommand):
    """Translate line by line, from standard input to standard output or from file to file."""

    run: tyro.conf.Positional[Path]
    """A run directory."""
    input: Path | None = None
    """The file to translate, .gz or not; None is standard input."""
    output: Path | None = None
    """The file to write, .gz or not; None is standard output."""
    beams: int | None = None
    """Hypotheses side by side; 1 is greedy search; None is 4."""
    normalization: Literal["gnmt", "power", "none"] = "gnmt"
    """How scores are divided by length."""
    alpha: float = 0.6
    """Exponent of the length: 0 prefers short translations."""
    nbest: int | None = None
    """Translations of each line, at most as many as beams, all on one line, with scores if several;
    None is 1."""
    scores: bool = False
    """Write the score after each translation, separated by a tab."""
    tsv: bool = False
    """Write a table with a row for each translation: line, rank, score, text (\\t, \\n and \\\\
    stand for a tab, a line end and a backslash)."""
    trace: bool = False
    """Show on standard error, step by step, the five most probable tokens."""
    rules: Literal["ours", "published"] = "ours"
    """published: search as generate() of transformers does; None is then the checkpoint's own."""
    checkpoint: str = "best"
    """best, last, a step, or average:N for the mean of the last N."""
    batch: int = 32
    """Most lines at once."""
    read_ahead: int = 4096
    """Lines read before the first is translated: more is faster. 1 at a terminal."""
    length_ratio: float = 2.0
    """At most so many tokens are written for each token read ..."""
    length_extra: int = 10
    """... and so many more."""
    too_long: Literal["cut", "refuse"] = "cut"
    """What happens to a line beyond the longest that the model reads."""
    sample: bool = False
    """Draw tokens at random instead of searching."""
    temperature: float = 1.0
    """Of sampling: less is more certain, 0 is greedy."""
    top_k: int | None = None
    """Sample from the k most probable tokens."""
    top_p: float | None = None
    """Sample from the fewest tokens that hold this probability."""
    min_p: float | None = None
    """Sample from tokens at least this fraction as probable as the first."""
    seed: int = 0
    """Of sampling."""

    def __call__(self) -> int:
        """Reads, translates and writes until the input ends."""
        self.check()
        if self.rules == "published":
            return self.by_published_rules()
        search, batching = self.options()
        from transformer_jax.decoding.translator import Translator
        from transformer_jax.predictors.runs import as_trained, load

        with self.destination() as out:
            model = load(self.run, self.checkpoint)
            translator = Translator(*model, search=search, batching=batching)
            lines = map(as_trained(self.run), self.lines())
            out.write(self.header())
            with Counter(self) as counter:
                for i, translation in enumerate(self.translations(translator, lines), 1):
                    out.write(self.written(i, translation))
                    if i % batching.window == 0 or self.trace:
                        out.flush()
                    counter.show(i)
        cut, read = translator.counts["cut"], plural(translator.counts["lines"], "line")
        if cut:
            room = plural(translator.room, "token")
            note(f"{cut:,} of {read} exceeded {room}; end truncated")
        return 0

    def lines(self) -> "Iterator[str]":
        """The lines to translate."""
        from transformer_jax.data.text import decode_lines, read_lines

        if self.input is not None:
            return read_lines(self.input, "--input")
        waiting("sentences")
        return decode_lines(sys.stdin.buffer, "<stdin>")

    def destination(self) -> TextOutput:
        """Where translations go; what is to be read is there.

        Raises:
            ConfigError: It is the file that is read, or cannot be written.
            DataError: The file to be read cannot be.
        """
        if self.input is not None:
            from transformer_jax.data.text import check_readable

            check_readable(self.input, "--input")
        return TextOutput(self.output, self.input)

    def by_published_rules(self) -> int:
        """The same, as ``generate()`` of transformers would."""
        from transformer_jax.decoding.translator import Hypothesis, Translation
        from transformer_jax.predictors.hf_generation import HFTextGenerator

        destination = self.destination()
        changes: dict[str, int] = {} if self.beams is None else {"num_beams": self.beams}
        changes |= {} if self.nbest is None else {"num_return_sequences": self.nbest}
        write = HFTextGenerator(
            self.run, self.checkpoint, "encoder-decoder", batch=self.batch, changes=changes
        )
        shown = dataclasses.replace(self, nbest=write.rules.num_return_sequences)
        with destination as out:
            out.write(self.header())
            for i, texts in enumerate(write(self.lines()), 1):
                ways = tuple(
                    Hypothesis(one.text, one.tokens, one.score, one.score) for one in texts
                )
                out.write(shown.written(i, Translation("", ways)))
                out.flush()
        return 0

    def check(self) -> None:
        """Refuses flags that would have no effect together.

        Raises:
            ConfigError: It names them.
        """
        if self.rules == "published":
            from transformer_jax.cli.flags import refuse_flags

            taken = ("beams", "nbest", "scores", "tsv", "input", "output", "checkpoint", "batch")
            refuse_flags(self, taken)
        if self.tsv and self.scores:
            raise ConfigError("--scores is a column of --tsv already: leave it out")
        drawn = ("temperature", "top_k", "top_p", "min_p", "seed")
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        given = [name for name in drawn if getattr(self, name) != defaults[name]]
        if given and not self.sample:
            raise ConfigError(f"--{given[0].replace('_', '-')} is for --sample, which is not given")
        several = self.nbest not in (None, 1)
        told = {"beams": self.beams is not None, "nbest": several, "trace": self.trace}
        searched = [name for name, is_told in told.items() if is_told]
        if searched and self.sample:
            raise ConfigError(f"--{searched[0]} is for searching, and --sample draws at random")
        if self.temperature < 0:
            raise ConfigError(f"--temperature {self.temperature}: it must be 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"--top-k {self.top_k}: at least 1")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ConfigError(f"--{name.replace('_', '-')} {value}: above 0 and at most 1")
        for name in ("batch", "read_ahead"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: at least 1")

    def options(self) -> tuple["BeamSearchConfig", "TranslationBatching"]:
        """How to search, and in which shapes."""
        from transformer_jax.decoding.options import BeamSearchConfig, TranslationBatching

        beams = 1 if self.sample else 4 if self.beams is None else self.beams
        search = BeamSearchConfig(
            num_beams=beams,
            normalization=self.normalization,
            length_penalty=self.alpha,
            nbest=1 if self.nbest is None else self.nbest,
            max_len_a=self.length_ratio,
            max_len_b=self.length_extra,
        )
        rows = tuple(sorted({n for n in (1, 8) if n < self.batch} | {self.batch}))
        live = self.input is None and sys.stdin.isatty()
        window = 1 if live or self.trace else self.read_ahead
        return search, TranslationBatching(rows=rows, window=window, too_long=self.too_long)

    def translations(
        self, translator: "Translator", lines: Iterable[str]
    ) -> "Iterator[Translation]":
        """What the flags ask for, line by line."""
        if self.sample:
            from transformer_jax.decoding.generate import SamplingConfig
            from transformer_jax.keys import key_for

            sampling = SamplingConfig(self.temperature, self.top_k, self.top_p, self.min_p)
            key = key_for(self.seed, "sampling")
            return translator.stream(lines, sampling=sampling, key=key)
        if self.trace:
            return self.traces(translator, lines)
        return translator.stream(lines)

    def traces(self, translator: "Translator", lines: Iterable[str]) -> "Iterator[Translation]":
        """The same as without ``--trace``, telling the steps on the way."""
        for line in lines:
            translation, steps = translator.trace(line)
            print(traced(line, steps), file=sys.stderr, flush=True)
            yield translation

    def header(self) -> bytes:
        """What is written before any line: the names of a table's columns."""
        return tsv("line", "rank", "score", "text") if self.tsv else b""

    def written(self, number: int, translation: "Translation") -> bytes:
        """What is written of line ``number``: one line, or rows of a table."""
        if not self.tsv:
            return self.line(translation).encode() + b"\n"
        ranked = enumerate(translation.hypotheses, 1)
        return b"".join(tsv(number, rank, float(h.score), h.text) for rank, h in ranked)

    def line(self, translation: "Translation") -> str:
        """One line of output: texts, and scores if asked for, separated by tabs."""
        # A model of bytes can write a line feed; one line in is one line out all the same.
        if self.nbest in (None, 1) and not self.scores:
            return translation.text.replace("\n", " ")
        clean = lambda text: text.replace("\n", " ").replace("\t", " ")
        pairs = ((clean(h.text), f"{h.score:.4f}") for h in translation.hypotheses)
        return "\t".join(itertools.chain.from_iterable(pairs))


def traced(line: str, steps: "list[TraceStep]") -> str:
    """A translation step by step: what was written, and the most probable tokens (row L13)."""
    rows = [("step", "written", "probability", "most probable")]
    import math

    visible = lambda piece: piece.replace(" ", "▁").replace("\n", "⏎")
    for t, step in enumerate(steps, 1):
        best = "  ".join(f"{visible(piece)} {math.exp(value):.3f}" for piece, value in step.best)
        rows.append((str(t), visible(step.piece), f"{math.exp(step.log_prob):.4f}", best))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    table = [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    return "\n".join([line, *(row.rstrip() for row in table), ""])


class Counter:
    """How many lines are done, on standard error if that is a terminal and nothing else is."""

    def __init__(self, command: Translate):
        read = command.input is None and sys.stdin.isatty()
        written = command.output is None and sys.stdout.isatty()
        self.live = sys.stderr.isatty() and not read and not written

    def __enter__(self) -> "Counter":
        self.shown = self.began = time.monotonic()
        return self

    def show(self, lines: int) -> None:
        """Shows it, twice a second at most."""
        now = time.monotonic()
        if self.live and now - self.shown > 0.5:
            self.shown = now
            rate = lines / (now - self.began)
            said = f"{plural(lines, 'line')}, {rate:,.0f} lines/s"
            print(f"\r{said}\033[K", end="", file=sys.stderr)

    def __exit__(self, *error: object) -> None:
        if self.live and self.shown > self.began:
            print("\r\033[K", end="", file=sys.stderr)
