"""``transformer-jax generate``: prompts in, texts out."""

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from transformer_jax.cli.output import note
from transformer_jax.cli.request_lines import prompt_lines, requests_of
from transformer_jax.cli.run_command import RunCommand
from transformer_jax.cli.written import Writer
from transformer_jax.errors import ConfigError, DataError, plural

if TYPE_CHECKING:
    from transformer_jax.config import TransformerConfig
    from transformer_jax.decoding.requests import GenerationRequest, LanguageModel

__all__ = ["Generate", "longer"]


@dataclasses.dataclass(frozen=True)
class Generate(RunCommand):
    """Go on from a prompt with a language model."""

    run: tyro.conf.Positional[Path]
    """A run directory, of a decoder or an n-gram model."""
    prompt: tyro.conf.Positional[str | None] = None
    """What the text begins with; an empty one begins a text of its own. Without it, and without
    --prompts or --requests, standard input has a prompt a line."""
    prompts: Path | None = None
    """Instead: a file with a prompt a line; - is standard input."""
    requests: Path | None = None
    """Instead: JSON lines, each with "prompt" and settings of its own; - is standard input."""
    tokens: int | None = None
    """At most so many new tokens; None is 128."""
    temperature: float = 1.0
    """Less is more certain, 0 is greedy."""
    top_k: int | None = None
    """Draw from the k most probable tokens."""
    top_p: float | None = None
    """Draw from the fewest tokens that hold this probability."""
    min_p: float | None = None
    """Draw from tokens at least this fraction as probable as the first."""
    repetition_penalty: float | None = None
    """Above 1 makes what was read or written less probable; None is 1."""
    no_repeat_ngram: int | None = None
    """No run of so many tokens comes twice; 0 is free, and so is None."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these."""
    samples: int = 1
    """Texts drawn for each prompt."""
    seed: int = 0
    """Of the draws."""
    beams: int | None = None
    """More than 1 searches for the most probable text instead of drawing; None is 1."""
    nbest: int | None = None
    """Texts that beam search returns; None is 1."""
    json: bool = False
    """Write a JSON object a prompt, with log-probabilities and why each text ended."""
    tsv: bool = False
    """Write a table with a row for each text: prompt and sequence, both counted from 1, score, text
    without its prompt (\\t, \\n and \\\\ stand for a tab, a line end and a backslash). With --beams
    sequence 1 is the best."""
    trace: bool = False
    """Show on standard error, step by step, the five most probable tokens."""
    rules: Literal["ours", "published"] = "ours"
    """published: search as generate() of transformers does; None is then the checkpoint's own."""
    checkpoint: str = "best"
    """best, last, a step, or average:N for the mean of the last N."""
    batch: int = 32
    """Most prompts at once."""
    speculate: int = 0
    """Guess so many tokens at once from what was read; greedy texts stay the same, sooner."""
    too_long: Literal["cut", "refuse"] = "cut"
    """What happens to a prompt beyond the context: its beginning goes, or it is refused."""
    full: Literal["slide", "stop"] = "slide"
    """Where the context is full: go on with its latter half, or stop."""
    context: int | None = None
    """Tokens read at once; more than in training where positions allow it."""
    interpolate: bool = False
    """RoPE position interpolation for contexts beyond training."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of weights and products; None is the run's own."""

    def __call__(self) -> int:
        """Writes each text as it comes, or prompt by prompt if there are several."""
        if self.rules == "published":
            return self.by_published_rules()
        asked = self.asked()
        from transformer_jax.decoding.requests import numbered
        from transformer_jax.predictors.runs import as_trained, counted, load_language
        from transformer_jax.training.run_directory import RunDirectory

        prepare = as_trained(self.run, trim=False)
        # Numbered here, for the model is asked a window at a time.
        asked = numbered([dataclasses.replace(one, prompt=prepare(one.prompt)) for one in asked])
        if counted(RunDirectory.open(self.run)):
            self.check_counted()
        from transformer_jax.decoding.language import BatchingConfig

        rows = tuple(sorted({n for n in (1, 2, 4, 8, 16, 32) if n < self.batch} | {self.batch}))
        shapes = BatchingConfig(
            rows=rows, too_long=self.too_long, full=self.full, num_draft_tokens=self.speculate
        )
        change = longer(self.context, self.interpolate)
        model = load_language(
            self.run,
            self.checkpoint,
            shapes=shapes,
            dtype=self.dtype,
            context=self.context,
            change=change,
        )
        one = len(asked) == 1 and asked[0].samples == 1 and asked[0].beams == 1
        # Why a text ended is known of whole texts alone, and a note may be wanted.
        if one and not (self.json or self.tsv or self.trace or asked[0].stop):
            self.show(model, asked[0])
        else:
            several = len(asked) > 1 or max(asked[0].samples, asked[0].nbest) > 1
            write = Writer("json" if self.json else "tsv" if self.tsv else "plain", several)
            texts = self.traces if self.trace else self.texts
            written = texts(model, asked, write)
            missed = [request for request, met in written if request.stop and not met]
            self.note(missed, len(asked))
        # An n-gram model reads any prompt.
        counts, context = getattr(model, "counts", {}), getattr(model, "context", 0)
        if counts.get("cut"):
            note(
                f"{counts['cut']:,} of {plural(counts['prompts'], 'prompt')} exceeded "
                f"{plural(context - 1, 'token')}; start truncated"
            )
        return 0

    def asked(self) -> "list[GenerationRequest]":
        """All requests, each with its settings.

        Raises:
            ConfigError: No prompts, or prompts in two ways; a setting out of its range.
            DataError: A file cannot be read.
        """
        from transformer_jax.decoding.requests import GenerationRequest

        given = [n for n in ("prompt", "prompts", "requests") if getattr(self, n) is not None]
        allowed = 'a prompt (generate RUN "text"), --prompts FILE and --requests FILE'
        if len(given) > 1:
            raise ConfigError(f"two kinds of prompts: give one of {allowed}")
        if not given and (sys.stdin.isatty() or self.stop):
            how = "pipe prompts in"
            if self.stop:  # which takes all that follows it
                how = "--prompts - to read standard input; a prompt stands before --stop"
            raise ConfigError(f"no prompt: give one of {allowed}, or {how}")
        if self.json and self.tsv:
            raise ConfigError("--json and --tsv exclude each other: give one of them")
        for name, least in (("batch", 1), ("speculate", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"--{name} is {getattr(self, name)}: at least {least}")
        settings = self.settings()
        if self.speculate and self.temperature:
            raise ConfigError("--speculate is for greedy texts: give --temperature 0 too")
        usual = GenerationRequest(self.prompt or "", **settings)  # refused before files are read
        self.check_traced(usual)
        if self.prompt is not None:
            return [usual]
        if self.requests is not None:
            source = self.requests
            made = list(requests_of(source, settings | {"number": None}, self.check_traced))
        else:
            source = self.prompts or Path("-")
            made = [
                GenerationRequest(line, **settings) for line in prompt_lines(source, "--prompts")
            ]
        if not made:
            name = "standard input" if str(source) == "-" else str(source)
            raise DataError(f"{name}: no prompts, it is empty")
        return made

    def check_traced(self, request: "GenerationRequest") -> None:
        """Refuses several texts of a request where the steps of one are told.

        Raises:
            ConfigError: There are several.
        """
        if self.trace and max(request.samples, request.nbest) > 1:
            raise ConfigError("--trace tells of one text: leave out samples and nbest")

    def settings(self) -> dict[str, Any]:
        """What flags say of all requests, and what holds where they say nothing."""
        from transformer_jax.decoding.requests import GenerationRequest

        usual = {field.name: field.default for field in dataclasses.fields(GenerationRequest)}
        del usual["prompt"], usual["number"]
        given = {name: getattr(self, name) for name in usual}
        return usual | {name: value for name, value in given.items() if value is not None}

    def by_published_rules(self) -> int:
        """Writes texts as ``generate()`` of transformers would."""
        from transformer_jax.cli.flags import refuse_flags
        from transformer_jax.predictors.hf_generation import HFTextGenerator

        names = {
            "tokens": "max_new_tokens",
            "beams": "num_beams",
            "nbest": "num_return_sequences",
            "repetition_penalty": "repetition_penalty",
            "no_repeat_ngram": "no_repeat_ngram_size",
        }
        # These rules never draw, so that 0 says nothing against them.
        greedy = ("temperature",) if self.temperature == 0 else ()
        taken = ("prompt", "prompts", *names, "tsv", "checkpoint", "batch", *greedy)
        refuse_flags(self, taken)
        # Whether the flags go together is for the rules to say, which a checkpoint adds to.
        unsaid: dict[str, Any] = dict.fromkeys(names)
        prompts = [one.prompt for one in dataclasses.replace(self, **unsaid).asked()]
        changes = {
            theirs: getattr(self, ours)
            for ours, theirs in names.items()
            if getattr(self, ours) is not None
        }
        write = HFTextGenerator(
            self.run, self.checkpoint, "decoder", batch=self.batch, changes=changes
        )
        several = len(prompts) > 1 or write.rules.num_return_sequences > 1
        shown = Writer("tsv" if self.tsv else "plain", several)
        for prompt, found in zip(prompts, write(prompts), strict=True):
            texts = [(one.text, one.score) for one in found]
            shown.texts(prompt, texts, ranked=write.rules.num_beams > 1)
        return 0

    def show(self, model: "LanguageModel", request: "GenerationRequest") -> None:
        """Prompt and text on standard output, as they are written."""
        out = sys.stdout.buffer
        pieces = iter(model.stream(request))
        first = next(pieces, "")  # a prompt that is refused is not written
        for piece in itertools.chain((request.prompt, first), pieces):
            out.write(piece.encode())
            out.flush()
        out.write(b"\n")
        out.flush()

    def texts(
        self, model: "LanguageModel", asked: "list[GenerationRequest]", write: "Writer"
    ) -> "Iterator[tuple[GenerationRequest, bool]]":
        """Writes all texts; each request, and whether it met a stop string."""
        # A window at a time: a long file starts to answer before it is read to the end.
        for start in range(0, len(asked), 8 * self.batch):
            window = asked[start : start + 8 * self.batch]
            for request, found in zip(window, model.generate(window), strict=True):
                write(request, found)
                yield request, any(one.reason == "stop" for one in found)

    def note(self, missed: "list[GenerationRequest]", asked: int) -> None:
        """Says so if prompts met none of their stop strings."""
        if missed:
            words = ", ".join(sorted({repr(text) for request in missed for text in request.stop}))
            of = "" if asked == 1 else f" after {len(missed)} of {asked} prompts"
            note(f"none of the stop strings ({words}) was met{of}")

    def traces(
        self, model: Any, asked: "list[GenerationRequest]", write: "Writer"
    ) -> "Iterator[tuple[GenerationRequest, bool]]":
        """The same, telling the steps on the way (row L13)."""
        from transformer_jax.cli.translate import traced

        for request in asked:
            found, steps = model.trace(request)
            print(traced(request.prompt, steps), file=sys.stderr, flush=True)
            write(request, [found])
            yield request, found.reason == "stop"

    def check_counted(self) -> None:
        """Refuses what an n-gram model has nothing of, instead of passing over it.

        Raises:
            ConfigError: It names the flag.
        """
        neural = ("trace", "speculate", "context", "interpolate", "dtype", "checkpoint",
                  "too_long", "full")  # fmt: skip
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in neural:
            if getattr(self, name) != defaults[name]:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} is for neural models: {self.run} is an n-gram model")


def longer(
    context: int | None, interpolate: bool
) -> "Callable[[TransformerConfig], TransformerConfig]":
    """What becomes of a model's configuration to read ``context`` tokens at once.

    Raises:
        ConfigError: Interpolation without a context, or of positions that are no rotations; more
            tokens than a table of learned positions has rows.
    """
    if interpolate and context is None:
        raise ConfigError("--interpolate needs --context, the length to squeeze")
    if context is not None and context < 2:
        raise ConfigError(f"--context is {context}: at least 2")

    def change(config: "TransformerConfig") -> "TransformerConfig":
        places = config.positions
        if interpolate and places.kind != "rope":
            raise ConfigError(f"--interpolate is for rotary positions, and these are {places.kind}")
        if interpolate and places.bounded:
            raise ConfigError(
                "--interpolate is for angles that do not follow from the length of the context by "
                "themselves, as those of dynamic NTK and LongRoPE do: leave it out"
            )
        if context is None:
            return config
        if context > places.max_length and places.kind == "learned":
            raise ConfigError(
                f"--context is {context}, but the model has learned {places.max_length} positions "
                f"and no more"
            )
        stretch = max(1.0, context / places.max_length) if interpolate else 1.0
        stretch *= places.rope_interpolation
        # A table of learned positions keeps its rows, of which less can be read.
        rows = places.max_length if places.kind == "learned" else context
        places = dataclasses.replace(places, max_length=rows, rope_interpolation=stretch)
        return dataclasses.replace(config, positions=places)

    return change
