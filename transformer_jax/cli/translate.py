"""``transformer-jax translate``: translations of lines of text."""

import dataclasses
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from transformer_jax.cli.output import TextOutput, note, note_unknown, tsv, waiting
from transformer_jax.cli.support.engine_flags import EngineCommand
from transformer_jax.cli.support.search_flags import SearchFlags
from transformer_jax.core.config_fields import OutputPath
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.text_tables import aligned
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.recipes.generation_flags import LanguageFlags, generation_flags

if TYPE_CHECKING:
    from transformer_jax.data.languages import Direction
    from transformer_jax.decoding.line_translator import LineTranslator
    from transformer_jax.decoding.options import TranslationBatching
    from transformer_jax.decoding.requests import Translation
    from transformer_jax.decoding.scoring import TraceStep
    from transformer_jax.inference.facts import Facts

__all__ = ["Translate", "traced"]


_DRAWN = ("temperature", "top_k", "top_p", "min_p", "seed")

TranslationFlags: Any = generation_flags(
    TRANSLATION,
    *("num_beams", "normalization", "length_penalty", "num_return_sequences", "max_len_a"),
    *("max_len_b", *_DRAWN),
    num_return_sequences="several are written on one line, with scores; None is 1",
    length_penalty="None is that of the run (0.6 if unset)",
    max_len_a="None is the limit of the run",
    max_len_b="None is the limit of the run",
)


@dataclasses.dataclass(frozen=True)
class Translate(TranslationFlags, LanguageFlags, SearchFlags, EngineCommand):
    """Translate lines of standard input, or of a file."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder."""
    input: Path | None = None
    """Text file to translate, .gz allowed; None is standard input."""
    output: OutputPath | None = None
    """Output file, .gz allowed; None is standard output."""
    scores: bool = False
    """Write the score after each translation, separated by a tab."""
    tsv: bool = False
    """Write a table with one row per translation: line, rank, score, text (\\t, \\n and \\\\
    stand for a tab, a line end and a backslash)."""
    trace: bool = False
    """Print the five most probable tokens of each step on standard error."""
    generation_config: Literal["native", "hf"] = "native"
    """hf: decode like generate() of transformers; settings that are None come from the checkpoint's
    generation config."""
    batch_size: int | None = None
    """Maximum number of lines in a batch; default 32, without beams 128."""
    buffer_size: int = 4096
    """Number of lines to read and sort by length at a time: more is faster; 1 at a terminal."""
    too_long: Literal["truncate", "error"] = "truncate"
    """Lines longer than the model's limit: truncate their end, or stop with an error."""
    sample: bool = False
    """Sample instead of beam search."""

    def __call__(self) -> int:
        """Translates lines until the input ends."""
        self.check()
        if self.generation_config == "hf":
            return self.by_generation_config()
        from transformer_jax.inference.folder_generation import GivenSearch, note_unused
        from transformer_jax.inference.pretrained import read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        search, batching = self.options(facts)
        sampling = "" if self.sample else "--sample"
        note_unused(facts, GivenSearch(self.given(), *self.search_choices(), sampling=sampling))
        with self.destination() as out:
            translator = self.translator(facts, search, batching)
            direction = facts.direction(translator.tokenizer, self.direction)
            lines = self.lines()
            out.write(self.header())
            with Counter(self) as counter:
                for i, translation in enumerate(self.translations(translator, lines, direction), 1):
                    out.write(self.written(i, translation))
                    if i % batching.window == 0 or self.trace:
                        out.flush()
                    counter.show(i)
        if cut := translator.counts["cut"]:
            note(translator.cut_note(cut, translator.counts["lines"]))
        note_unknown(translator.counts, "line", "lines")
        if limited := translator.counts["limited"]:
            limit = translator.limit_note(limited, translator.counts["lines"])
            note(f"{limit}: raise --max-len-a or --max-len-b")
        return 0

    def translator(
        self, facts: "Facts", search: GenerationConfig, batching: "TranslationBatching"
    ) -> "LineTranslator":
        """Loads the translator of the run on its engine."""
        from transformer_jax.inference.pretrained import Pretrained

        if self.engine == "jax":
            # The parameters as stored have no name here, so that only those prepared for decoding
            # are kept.
            return Pretrained.load(facts, "encoder-decoder").translator(search, batching)
        from transformer_jax.inference.engines import on_ctranslate2

        opened = on_ctranslate2(facts, self.engine_config(), "encoder-decoder")
        return opened.translator(search, batching)

    def lines(self) -> "Iterator[str]":
        """Yields the lines to translate."""
        from transformer_jax.data.text import decode_lines, read_lines

        if self.input is not None:
            return read_lines(self.input, "--input")
        waiting("sentences")
        return decode_lines(sys.stdin.buffer, "<stdin>")

    def destination(self) -> TextOutput:
        """Returns the output of translations; the input is checked first.

        Raises:
            ConfigError: The output is the input, or cannot be written.
            DataError: The input cannot be read.
        """
        if self.input is not None:
            from transformer_jax.data.text import check_readable

            check_readable(self.input, "--input")
        return TextOutput(self.output, self.input)

    def by_generation_config(self) -> int:
        """Writes translations as ``generate()`` of transformers would generate them."""
        from transformer_jax.decoding.requests import Translation
        from transformer_jax.inference.hf_generation import HFTextGenerator
        from transformer_jax.inference.pretrained import open_pretrained

        destination = self.destination()
        opened = open_pretrained(
            self.run, self.checkpoint, "encoder-decoder", opening=self.opening()
        )
        direction = opened.facts.direction(opened.tokenizer, self.direction)
        write = HFTextGenerator(opened, batch=self.batch_size or 32, changes=self.given())
        del opened  # keeps no second copy of the parameters
        returned = write.generation_config.num_return_sequences
        settings: dict[str, Any] = {"num_return_sequences": returned}
        shown = dataclasses.replace(self, **settings)
        limited = lines = 0
        with destination as out:
            out.write(self.header())
            for lines, texts in enumerate(write(self.lines(), None, direction), 1):
                out.write(shown.written(lines, Translation("", tuple(texts))))
                out.flush()
                limited += texts[0].finish_reason == "length"
        note_unknown(write.counts, "line", "texts")
        if limited:
            note(
                f"{limited:,} of {plural(lines, 'text')} reached the length limit of the "
                f"generation config and may be truncated: raise its max_length or max_new_tokens"
            )
        return 0

    def check(self) -> None:
        """Refuses flags that are out of range or exclude each other.

        Raises:
            ConfigError: A flag is out of range, or two exclude each other.
        """
        if self.generation_config == "hf":
            from transformer_jax.cli.flags import refuse_flags

            taken = ("num_beams", "num_return_sequences", "scores", "tsv", "input", "output",
                     "checkpoint", "batch_size", "from_language", "to")  # fmt: skip
            refuse_flags(self, taken)
        if self.tsv and self.scores:
            raise ConfigError("--scores is a column of --tsv already: leave it out")
        drawn = [name for name in _DRAWN if getattr(self, name) is not None]
        if drawn and not self.sample:
            raise ConfigError(f"--{drawn[0].replace('_', '-')} is for sampling: add --sample")
        several = self.num_return_sequences not in (None, 1)
        search = {
            "num-beams": self.num_beams is not None,
            "num-return-sequences": several,
            "trace": self.trace,
        }
        searched = [name for name, is_given in search.items() if is_given]
        if searched and self.sample:
            raise ConfigError(f"--{searched[0]} is for beam search: leave out --sample")
        limits = {name: getattr(self, name) is not None for name in ("max_len_a", "max_len_b")}
        beams = {"num_beams": self.num_beams is not None, "trace": self.trace}
        self.check_search(sample=self.sample, **beams, **limits)
        if self.beam_tree is not None and (self.sample or self.num_beams == 1):
            raise ConfigError("--beam-tree draws beam search: give --num-beams 2 or more")
        self.given()
        for name in ("batch_size", "buffer_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {value}: at least 1")

    def options(self, facts: "Facts") -> tuple[GenerationConfig, "TranslationBatching"]:
        """Returns the settings of beam search and of batches."""
        from transformer_jax.decoding.options import TranslationBatching
        from transformer_jax.inference.generation_settings import search_settings

        how = search_settings(facts) | self.given()
        if self.sample:
            how |= {"num_beams": 1, "do_sample": True}
        if self.exhaustive is not None:  # a translator returns at most as many texts as beams
            how |= {"num_beams": max(2, self.num_return_sequences or 1)}
        search = self.generation(**how)
        size = self.batch_size
        rows = None if size is None else tuple(sorted({n for n in (1, 8) if n < size} | {size}))
        live = self.input is None and sys.stdin.isatty()
        window = 1 if live or self.trace else self.buffer_size
        return search, TranslationBatching(rows=rows, window=window, too_long=self.too_long)

    def translations(
        self, translator: "LineTranslator", lines: Iterable[str], direction: "Direction"
    ) -> "Iterator[Translation]":
        """Yields translations as flags specify, or with their steps."""
        if self.trace:
            return self.traces(translator, lines, direction)
        if self.exhaustive is not None:
            return self.every_translation(translator, lines, direction, self.exhaustive)
        if self.beam_tree is not None:
            lines = self.drawn(translator, lines, direction)
        return translator.stream(lines, directions=direction)

    def every_translation(
        self, translator: Any, lines: Iterable[str], direction: "Direction", length: int
    ) -> "Iterator[Translation]":
        """Yields the best of all translations of at most ``length`` tokens of each line."""
        from transformer_jax.decoding.inspect_search import every_text

        find = lambda sequence: every_text(translator, sequence, translator.search, length)
        found: Iterator[Translation] = translator.stream(lines, directions=direction, find=find)
        return found

    def drawn(
        self, translator: Any, lines: Iterable[str], direction: "Direction"
    ) -> "Iterator[str]":
        """Yields the lines; draws the tree of the first one that is not blank."""
        undrawn = True
        for number, line in enumerate(lines):
            if undrawn and line.strip():
                undrawn = False
                sequence = translator.sequence(line, translator.search, direction, number)
                self.draw_tree(line, translator, sequence, translator.search)
            yield line

    def traces(
        self, translator: Any, lines: Iterable[str], direction: "Direction"
    ) -> "Iterator[Translation]":
        """Yields translations, after printing their steps on standard error."""
        for line in lines:
            translation, steps = translator.trace(line, direction=direction)
            print(traced(line, steps), file=sys.stderr, flush=True)
            yield translation

    def header(self) -> bytes:
        """Returns the header of a table; empty for plain lines."""
        return tsv("line", "rank", "score", "text") if self.tsv else b""

    def written(self, number: int, translation: "Translation") -> bytes:
        """Returns the output for line ``number``: one line, or rows of a table."""
        if not self.tsv:
            return self.line(translation).encode() + b"\n"
        ranked = enumerate(translation.hypotheses, 1)
        return b"".join(tsv(number, rank, float(h.score), h.text) for rank, h in ranked)

    def line(self, translation: "Translation") -> str:
        """Returns one line of output: texts, and scores with ``--scores``, separated by tabs."""
        # A byte-level model can generate a line feed, but each input line needs one output line.
        if self.num_return_sequences in (None, 1) and not self.scores:
            return translation.text.replace("\n", " ")
        clean = lambda text: text.replace("\n", " ").replace("\t", " ")
        pairs = ((clean(h.text), f"{h.score:.4f}") for h in translation.hypotheses)
        return "\t".join(itertools.chain.from_iterable(pairs))


def traced(line: str, steps: "list[TraceStep]") -> str:
    """Returns a table of the decoding steps: the token and the most probable tokens."""
    rows = [("step", "written", "probability", "most probable")]
    import math

    visible = lambda piece: piece.replace(" ", "▁").replace("\n", "⏎")
    for t, step in enumerate(steps, 1):
        best = "  ".join(f"{visible(piece)} {math.exp(value):.3f}" for piece, value in step.best)
        rows.append((str(t), visible(step.piece), f"{math.exp(step.log_prob):.4f}", best))
    return f"{line}\n{aligned(rows, left=4)}\n"


class Counter:
    """A line counter on standard error, if that is a terminal and standard output is not."""

    def __init__(self, command: Translate):
        read = command.input is None and sys.stdin.isatty()
        written = command.output is None and sys.stdout.isatty()
        self.live = sys.stderr.isatty() and not read and not written

    def __enter__(self) -> "Counter":
        self.shown = self.began = time.monotonic()
        return self

    def show(self, lines: int) -> None:
        """Shows the number of lines, at most twice a second."""
        now = time.monotonic()
        if self.live and now - self.shown > 0.5:
            self.shown = now
            rate = lines / (now - self.began)
            said = f"{plural(lines, 'line')}, {rate:,.0f} lines/s"
            print(f"\r{said}\033[K", end="", file=sys.stderr)

    def __exit__(self, *error: object) -> None:
        if self.live and self.shown > self.began:
            print("\r\033[K", end="", file=sys.stderr)
