"""``transformer-jax generate``: continuations of prompts by a language model."""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from transformer_jax.cli.output import Writer, note, note_unknown
from transformer_jax.cli.support.engine_flags import EngineCommand
from transformer_jax.cli.support.input_lines import file_lines, note_prompts, requests_of
from transformer_jax.cli.support.search_flags import SearchFlags
from transformer_jax.core.config_fields import field_problem
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.decoding.generation_config import NEW_TOKENS, GenerationConfig
from transformer_jax.recipes.generation_flags import generation_flags

if TYPE_CHECKING:
    from transformer_jax.decoding.options import BatchingConfig
    from transformer_jax.decoding.requests import (
        CountingLanguageModel,
        GenerationRequest,
        LanguageModel,
    )
    from transformer_jax.inference.facts import Facts
    from transformer_jax.models.config import TransformerConfig

__all__ = ["Generate", "longer"]

TextFlags: Any = generation_flags(
    GenerationConfig(max_new_tokens=NEW_TOKENS),
    *("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("no_repeat_ngram_size", "stop", "num_return_sequences", "seed", "num_beams"),
    num_beams="more than 1 is beam search instead of sampling; None is 1",
)


@dataclasses.dataclass(frozen=True)
class Generate(TextFlags, SearchFlags, EngineCommand):
    """Continue prompts with a language model, by sampling or beam search."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of a language model."""
    prompt: tyro.conf.Positional[str | None] = None
    """The prompt; an empty one generates from the start token. Without a prompt, --prompts and
    --requests, each line of standard input is a prompt."""
    prompts: Path | None = None
    """File with one prompt per line; - is standard input."""
    requests: Path | None = None
    """JSON lines with "prompt", or the "messages" of a conversation to answer, and generation
    settings; - is standard input."""
    adapter: tuple[str, ...] = ()
    """Adapters, NAME=PATH: runs trained on this model with --lora.rank, or folders in PEFT's
    format. "adapter" in a line of --requests chooses one by its name; null is the model without
    adapters. A single adapter is used for all prompts, and needs no name."""
    json: bool = False
    """Write one JSON object per prompt, with log-probabilities and finish reasons."""
    tsv: bool = False
    """Write a table with one row per text: prompt and sequence (both numbered from 1), score, text
    without the prompt (\\t, \\n and \\\\ stand for a tab, a line end and a backslash). With
    --num-beams, sequence 1 is the best."""
    trace: bool = False
    """Print the five most probable tokens of each step on standard error."""
    generation_config: Literal["native", "hf"] = "native"
    """hf: decode like generate() of transformers; settings that are None come from the checkpoint's
    generation config."""
    batch_size: int = 32
    """Maximum number of prompts in a batch."""
    prompt_lookup_num_tokens: int = 0
    """Prompt-lookup decoding: number of tokens to draft; greedy texts are the same, but faster."""
    too_long: Literal["truncate", "error"] = "truncate"
    """Prompts longer than the context: truncate their start, or stop with an error."""
    on_full_context: Literal["slide", "stop"] = "slide"
    """Action when the context is full: continue with its latter half (slide), or stop."""
    context: int | None = None
    """Context length in tokens; may exceed that of training if the positions allow it."""
    rope_interpolation: bool = False
    """RoPE position interpolation for contexts beyond training."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Data type of weights and computation; None is that of the run."""

    def __call__(self) -> int:
        """Prints a single text as it is generated, several texts prompt by prompt."""
        if self.generation_config == "hf":
            return self.by_generation_config()
        asked = self.asked()
        if self.beam_tree is not None and asked[0].num_beams == 1:
            raise ConfigError("--beam-tree draws beam search: give --num-beams 2 or more")
        from transformer_jax.decoding.requests import numbered
        from transformer_jax.inference.folder_generation import GivenSearch, note_unused
        from transformer_jax.inference.pretrained import read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        note_unused(facts, GivenSearch(self.given(), *self.search_choices()))
        # Prompts are shown as the model reads them. Number the requests here: the model gets one
        # window of them at a time.
        read = facts.preparation.text
        asked = numbered([dataclasses.replace(one, prompt=read(one.prompt)) for one in asked])
        if facts.kind == "ngram":
            self.check_counted()
        from transformer_jax.decoding.options import BatchingConfig

        rows = tuple(
            sorted({n for n in (1, 2, 4, 8, 16, 32) if n < self.batch_size} | {self.batch_size})
        )
        shapes = BatchingConfig(
            rows=rows,
            too_long=self.too_long,
            full=self.on_full_context,
            num_draft_tokens=self.prompt_lookup_num_tokens,
        )
        conversations = self.of_conversations(asked)
        model = self.language_model(facts, shapes, asked)
        if conversations:
            from transformer_jax.inference.chats import answering, template_of

            chosen = [self.adapters.get(one.adapter or "") for one in asked]
            chat = answering(facts, facts.chat, model, template_of(facts, chosen))
            model, asked = chat.language, list(map(chat.request, asked))
        if self.beam_tree is not None:
            searched: Any = model  # n-gram models were refused above
            self.draw_tree(asked[0].prompt, *searched.beam_searcher(asked[0]))
        one = len(asked) == 1 and asked[0].num_return_sequences == 1 and asked[0].num_beams == 1
        # The finish reason, which a note may need, is known only for complete texts.
        if one and not (self.json or self.tsv or self.trace or asked[0].stop):
            self.show(model, asked[0])
        else:
            several = len(asked) > 1 or asked[0].num_return_sequences > 1
            write = Writer("json" if self.json else "tsv" if self.tsv else "plain", several)
            texts = self.traces if self.trace else self.texts
            texts = texts if self.exhaustive is None else self.every_text
            written = texts(model, asked, write)
            missed = [request for request, met in written if request.stop and not met]
            self.note(missed, len(asked))
        note_prompts(model)
        return 0

    def of_conversations(self, asked: "list[GenerationRequest]") -> bool:
        """Returns whether the requests are conversations.

        Raises:
            ConfigError: Requests of both kinds are mixed (their texts end differently), or a flag
                does not apply to answers.
        """
        found = {request.messages is not None for request in asked}
        if len(found) > 1:
            raise ConfigError(
                f"--requests {self.requests}: some lines have a prompt, some have messages: use "
                f"a file for each kind"
            )
        if True in found and self.prompt_lookup_num_tokens:
            raise ConfigError(
                "--prompt-lookup-num-tokens does not apply to answers to messages: leave it out"
            )
        return True in found

    def language_model(
        self, facts: "Facts", shapes: "BatchingConfig", asked: "list[GenerationRequest]"
    ) -> "CountingLanguageModel":
        """Loads the language model of the run on its engine, for the requests ``asked``."""
        from transformer_jax.inference.pretrained import Pretrained

        if self.engine == "ctranslate2":
            from transformer_jax.inference.engines import on_ctranslate2

            model: Any = on_ctranslate2(facts, self.engine_config(), "decoder").language(shapes)
            for request in asked:
                model.check(request)
            return model
        # No name outlives this method, so that only the parameters prepared for decoding are kept.
        change = longer(self.context, self.rope_interpolation)
        how: Any = {"dtype": self.dtype, "context": self.context}
        if self.adapters:
            from transformer_jax.inference.adapters import load_adapted

            opened = load_adapted(facts, self.adapters, dtype=self.dtype, change=change)
            return opened.language(shapes, **how)
        return Pretrained.load(facts, "decoder", "ngram", change=change).language(shapes, **how)

    def asked(self) -> "list[GenerationRequest]":
        """Returns all requests, each with its settings.

        Raises:
            ConfigError: Prompts are missing or given in two ways, or a setting is out of range.
            DataError: A file cannot be read.
        """
        from transformer_jax.decoding.requests import GenerationRequest

        given = [n for n in ("prompt", "prompts", "requests") if getattr(self, n) is not None]
        allowed = 'a prompt (generate RUN "text"), --prompts FILE and --requests FILE'
        if len(given) > 1:
            raise ConfigError(f"two kinds of prompts: give one of {allowed}")
        if not given and (sys.stdin.isatty() or self.stop):
            how = "pipe prompts in"
            if self.stop:  # --stop takes all arguments after it
                how = "--prompts - to read standard input; a prompt stands before --stop"
            raise ConfigError(f"no prompt: give one of {allowed}, or {how}")
        self.check_searches()
        if self.json and self.tsv:
            raise ConfigError("--json and --tsv exclude each other: give one of them")
        for name, least in (("batch_size", 1), ("prompt_lookup_num_tokens", 0)):
            if getattr(self, name) < least:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} is {getattr(self, name)}: at least {least}")
        search: dict[str, Any] = {}
        if self.exhaustive is not None:
            beams = max(2, self.num_return_sequences or 1)  # texts are ranked, as in beam search
            search = {"num_beams": beams, "max_new_tokens": self.exhaustive}
        adapter = _chosen_for_all(self.adapters, self.requests)
        usual = self.generation(adapter=adapter, **search)
        if self.prompt_lookup_num_tokens and usual.temperature:
            raise ConfigError(
                "--prompt-lookup-num-tokens needs greedy decoding: give --temperature 0 too"
            )
        one = GenerationRequest.of(self.prompt or "", usual)  # refused before files are read
        self.check_request(one)
        if self.prompt is not None:
            return [one]
        if self.requests is not None:
            source = self.requests
            made = list(requests_of(source, usual, self.check_request))
        else:
            source = self.prompts or Path("-")
            made = [*map(one.with_prompt, file_lines(source, "--prompts", "prompts"))]
        if not made:
            name = "standard input" if str(source) == "-" else str(source)
            raise DataError(f"{name}: no prompts, it is empty")
        return made

    def check_searches(self) -> None:
        """Refuses flags of sampling with exhaustive search.

        Raises:
            ConfigError: It names the flags.
        """
        given = {name: True for name in self.given() if name != "num_return_sequences"}
        given |= {name: bool(getattr(self, name)) for name in ("trace", "requests")}
        self.check_search(**given, prompt_lookup_num_tokens=self.prompt_lookup_num_tokens > 0)

    @functools.cached_property
    def adapters(self) -> dict[str, str]:
        """The paths of ``--adapter`` by name."""
        return _named_adapters(self.adapter)

    def check_request(self, request: "GenerationRequest") -> None:
        """Refuses an adapter that ``--adapter`` does not name, and ``--trace`` with several texts.

        Raises:
            ConfigError: The adapter is unknown, or there are several texts.
        """
        _check_choice(request.adapter, self.adapters)
        if self.trace and request.num_return_sequences > 1:
            raise ConfigError("--trace shows one text: leave out num_return_sequences")

    def by_generation_config(self) -> int:
        """Writes texts as ``generate()`` of transformers would generate them."""
        from transformer_jax.cli.flags import refuse_flags
        from transformer_jax.inference.hf_generation import HFTextGenerator
        from transformer_jax.inference.pretrained import open_pretrained

        names = ("max_new_tokens", "num_beams", "num_return_sequences", "repetition_penalty",
                 "no_repeat_ngram_size")  # fmt: skip
        # This decoding never samples, so temperature 0 changes nothing.
        greedy = ("temperature",) if self.temperature == 0 else ()
        taken = ("prompt", "prompts", *names, "tsv", "checkpoint", "batch_size", *greedy)
        refuse_flags(self, taken)
        # Which flags exclude each other depends on the generation config.
        unsaid: dict[str, Any] = dict.fromkeys(names)
        prompts = [one.prompt for one in dataclasses.replace(self, **unsaid).asked()]
        changes = self.given()
        opened = open_pretrained(self.run, self.checkpoint, "decoder", opening=self.opening())
        write = HFTextGenerator(opened, batch=self.batch_size, changes=changes)
        del opened  # keeps no second copy of the parameters
        several = len(prompts) > 1 or write.generation_config.num_return_sequences > 1
        shown = Writer("tsv" if self.tsv else "plain", several)
        for prompt, found in zip(prompts, write(prompts), strict=True):
            texts = [(one.text, one.score) for one in found]
            shown.texts(prompt, texts, ranked=write.generation_config.num_beams > 1)
        note_unknown(write.counts, "prompt", "texts")
        return 0

    def show(self, model: "LanguageModel", request: "GenerationRequest") -> None:
        """Writes prompt and text to standard output as they are generated."""
        out = sys.stdout.buffer
        pieces = iter(model.stream(request))
        first = next(pieces, "")  # so that an invalid prompt prints nothing
        for piece in itertools.chain((request.prompt, first), pieces):
            out.write(piece.encode())
            out.flush()
        out.write(b"\n")
        out.flush()

    def texts(
        self, model: "LanguageModel", asked: "list[GenerationRequest]", write: "Writer"
    ) -> "Iterator[tuple[GenerationRequest, bool]]":
        """Writes all texts; yields each request, and whether a stop string was found."""
        # Windows let output start before a long file is read to its end.
        for start in range(0, len(asked), 8 * self.batch_size):
            window = asked[start : start + 8 * self.batch_size]
            for request, found in zip(window, model.generate(window), strict=True):
                write(request, found)
                yield request, any(one.finish_reason == "stop" for one in found)

    def every_text(
        self, model: Any, asked: "list[GenerationRequest]", write: "Writer"
    ) -> "Iterator[tuple[GenerationRequest, bool]]":
        """Writes the best of all possible texts of each prompt; yields like :meth:`texts`."""
        from transformer_jax.decoding.inspect_search import every_text

        assert self.exhaustive is not None
        for request in asked:
            searcher, sequence, config = model.beam_searcher(request)
            write(request, every_text(searcher, sequence, config, self.exhaustive))
            yield request, False

    def note(self, missed: "list[GenerationRequest]", asked: int) -> None:
        """Prints a note about texts without any stop string."""
        if missed:
            words = ", ".join(sorted({repr(text) for request in missed for text in request.stop}))
            of = "" if asked == 1 else f" after {len(missed)} of {asked} prompts"
            note(f"none of the stop strings ({words}) was met{of}")

    def traces(
        self, model: Any, asked: "list[GenerationRequest]", write: "Writer"
    ) -> "Iterator[tuple[GenerationRequest, bool]]":
        """Writes all texts with their steps; yields like :meth:`texts`."""
        from transformer_jax.cli.translate import traced

        for request in asked:
            found, steps = model.trace(request)
            print(traced(request.prompt, steps), file=sys.stderr, flush=True)
            write(request, [found])
            yield request, found.finish_reason == "stop"

    def check_counted(self) -> None:
        """Refuses flags that do not apply to n-gram models.

        Raises:
            ConfigError: It names the flag.
        """
        neural = ("adapter", "engine", "trace", "exhaustive", "beam_tree",
                  "prompt_lookup_num_tokens", "context", "dtype",
                  "rope_interpolation", "checkpoint", "too_long", "on_full_context")  # fmt: skip
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in neural:
            if getattr(self, name) != defaults[name]:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} is for neural models: {self.run} is an n-gram model")


def longer(
    context: int | None, interpolate: bool
) -> "Callable[[TransformerConfig], TransformerConfig]":
    """Returns a function that sets the context length of a configuration to ``context`` tokens.

    Raises:
        ConfigError: Interpolation is requested without a context length or rotary positions, or the
            context exceeds the learned positions.
    """
    if interpolate and context is None:
        raise ConfigError("--rope-interpolation needs --context, the length to interpolate to")
    if context is not None and context < 2:
        raise ConfigError(f"--context is {context}: at least 2")

    def change(config: "TransformerConfig") -> "TransformerConfig":
        places = config.positions
        if interpolate and places.kind != "rope":
            raise ConfigError(f"--rope-interpolation needs rotary positions, found {places.kind}")
        if interpolate and places.bounded:
            raise ConfigError(
                "--rope-interpolation does not apply to dynamic NTK and LongRoPE, whose angles "
                "already depend on the context length: leave it out"
            )
        if context is None:
            return config
        if context > places.max_length and places.learned:
            raise ConfigError(
                f"--context is {context}: the model has only {places.max_length} learned positions"
            )
        stretch = max(1.0, context / places.max_length) if interpolate else 1.0
        stretch *= places.rope_interpolation
        # Keep all rows of a table of learned positions.
        rows = places.max_length if places.learned else context
        places = dataclasses.replace(places, max_length=rows, rope_interpolation=stretch)
        return dataclasses.replace(config, positions=places)

    return change


# --- Adapters ---------------------------------------------------------------------------------


def _named_adapters(given: Sequence[str]) -> dict[str, str]:
    """Returns the paths of ``--adapter`` by name; the path itself is the name if none is given.

    A name contains no slash: a value with a slash before its first ``=`` is a path.

    Args:
        given: The values of the flag, ``NAME=PATH`` or ``PATH``.

    Raises:
        ConfigError: A name or a path is empty, a name is given twice, or no file system allows the
            path.

    Example:
        >>> _named_adapters(["a=runs/mine", "peft/other", "runs/lr=0.1"])
        {'a': 'runs/mine', 'peft/other': 'peft/other', 'runs/lr=0.1': 'runs/lr=0.1'}
    """
    found: dict[str, str] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals or "/" in name:
            name = path = one
        if not name or not path:
            raise ConfigError(
                f"--adapter {one!r}: {'a path' if name else 'a name'} is missing: give NAME=PATH, "
                f"or PATH alone"
            )
        if name in found:
            raise ConfigError(f"--adapter: two adapters are called {name}: give each another name")
        if (problem := field_problem(Path(path), Path)) is not None:
            raise ConfigError(f"--adapter: {problem}")
        found[name] = path
    return found


def _chosen_for_all(adapters: Mapping[str, str], requests: Path | None) -> str | None:
    """Returns the adapter of requests that choose none: the only one, or None for the plain model.

    Raises:
        ConfigError: There are several adapters, and the prompts cannot choose.

    Example:
        >>> _chosen_for_all({"a": "runs/mine"}, None)
        'a'
    """
    if len(adapters) > 1 and requests is None:
        raise ConfigError(
            f"--adapter names {len(adapters)} adapters, and a prompt chooses none: give --requests "
            f'FILE, whose lines have "adapter", or a single one; a prompt stands before --adapter'
        )
    return next(iter(adapters)) if len(adapters) == 1 else None


def _check_choice(adapter: str | None, known: Mapping[str, str]) -> None:
    """Refuses a request for an unknown adapter.

    Raises:
        ConfigError: The message names the known adapters.

    Example:
        >>> _check_choice("b", {"a": "runs/mine"})
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: adapter is b: --adapter names a, and null is ...
    """
    if adapter is None or adapter in known:
        return
    if not known:
        raise ConfigError(f"adapter is {adapter}: no --adapter {adapter}=PATH is given")
    raise ConfigError(
        f"adapter is {adapter}: --adapter names {', '.join(known)}, and null is the model alone"
    )
