"""One rule by which commands of pages become short: numbers above those below become those."""

import dataclasses
import typing
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

from transformer_jax.cli import train_word_vectors
from transformer_jax.cli.commands import PROGRAM, load_command
from transformer_jax.cli.flags import flag_of, positional
from transformer_jax.cli.laboratory import COMMANDS as EXPERIMENTS
from transformer_jax.cli.run_flags import asked_run, parse_flags
from transformer_jax.cli.training import EVERY
from transformer_jax.data.corpora import babel, in_context, phrasebook, python_docs, python_library
from transformer_jax.data.images import captioned_pictures as captions

# Of everything that is trained.
LENGTHS = {
    "training.steps": 2, "optimizer.schedule.warmup-steps": 1, "loop.evaluate-every": 2,
    "loop.checkpoint-every": 2, "training.batch-size": 8, "training.max-tokens": 1024,
    "training.num-buckets": 1, "training.sequence-length": 32,
    "evaluation.sentences": 2, "evaluation.texts": 2, "evaluation.captions": 2,
    "evaluation.num-beams": 1, "evaluation.shown": 1, "evaluation.sample": 4,
    "evaluation.max-len-a": 0, "evaluation.max-len-b": 8, "evaluation.max-length": 8,
    "data.read.corpus-size": 400, "data.corpus-size": 40, "data.read.max-length": 64,
    "task.max-length": 32, "task.doc-stride": 8,
    "align.max-length": 40, "align.max-prompt-length": 24, "align.max-new-tokens": 4,
    "align.group-size": 2, "training.epochs": 1,
}  # fmt: skip
# Of models that start from nothing.
SIZES = {
    "d-model": 16, "encoder-layers": 2, "decoder-layers": 2, "num-layers": 1,
    "attention.num-heads": 2, "attention.num-kv-heads": 2, "feed-forward.d-ff": 32,
    "embedding.embedding-size": 16, "positions.max-length": 64, "max-length": 64,
    "image.image-size": 32, "image.patch-size": 16, "head.maxout-size": 16,
}  # fmt: skip
EXPERIMENT = {
    "steps": 2, "distances": (4, 8), "symbols": 4, "parameters": 1_000, "eval-texts": 8,
    "lags": 8, "texts": 4, "trained-distance": 4, "test-lengths": (5, 8), "eval-sentences": 4,
    "batch-size": 8, "sizes": (1, 16), "queries": 8, "samples": 4, "seeds": 1,
}  # fmt: skip
OTHERS = {
    "word-vectors train": {"training.size": 16, "training.epochs": 1, "text.min-count": 1},
    "complexity": {"lengths": (16, 32), "sizes": (16,), "repetitions": 1},
    "generate": {"max-new-tokens": 8},
    "chat": {"max-new-tokens": 8},
    "prefer": {"max-new-tokens": 8},
    "win-rate": {"max-new-tokens": 8, "samples": 2},
    "diversity": {"max-new-tokens": 8, "number": 2},
    "prompt": {"limit": 4, "max-new-tokens": 4, "num-shots": (0, 1)},
    "translate": {"max-len-b": 8},
}


def few_texts(monkeypatch: Any) -> None:
    """Makes the built-in corpora small, including their test sets."""
    for corpus in (phrasebook, in_context, python_docs, python_library):
        monkeypatch.setattr(corpus, "generate", _first(corpus.generate, 40))
    monkeypatch.setattr(babel, "TESTS", 3)
    monkeypatch.setattr(babel, "VALIDATION", 4)
    monkeypatch.setattr(captions, "TEST_SCENES", 4)


def _first(generate: Callable[..., Any], most: int) -> Callable[..., Any]:
    def few(split: str, count: int = most, *rest: Any) -> Any:
        counted = (min(count, most), *rest) if "count" in signature(generate).parameters else ()
        return generate(split, *counted)[:most]

    return few


def shorten(arguments: list[str], *, alone: bool = True) -> list[str]:
    """Returns a command with flags that make it short, and that come last, so that they count.

    Args:
        arguments: The command.
        alone: Whether one process runs it, on one device unless the command has a mesh.
    """
    name = " ".join(arguments[:2]) if arguments[0] == "word-vectors" else arguments[0]
    if name == "launch":
        return _launched(arguments)
    if {"--plan", "--help"} & {*arguments}:
        return arguments
    if name in EVERY.commands:
        return [*arguments, *_of_training(name, arguments, alone)]
    if name == "laboratory":
        asked = parse_flags(EXPERIMENTS[arguments[1]], PROGRAM, arguments[2:])
        return _with(arguments, _lowered(asked, EXPERIMENT))
    if name in OTHERS:
        kind = train_word_vectors.COMMANDS.get(arguments[1]) if "vectors" in name else None
        rest = arguments[2:] if kind else arguments[1:]
        asked = parse_flags(kind or load_command(name), PROGRAM, rest)
        return _with(arguments, _lowered(asked, OTHERS[name]))
    return arguments


def _with(arguments: list[str], flags: list[str]) -> list[str]:
    """Arguments with flags in place of those of the same names, whose values would add up."""
    kept, names = [], {word for word in flags if word.startswith("--")}
    open_flag = ""
    for word in arguments:
        open_flag = word if word.startswith("--") else open_flag
        if open_flag not in names:
            kept.append(word)
    return [*kept, *flags]


def _of_training(name: str, arguments: list[str], alone: bool) -> list[str]:
    words = [word for word in arguments[1:] if word != "--resume"]
    run = asked_run(f"{PROGRAM} {name}", EVERY.commands, words).run
    numbers: dict[str, Any] = dict(LENGTHS)
    groups = [("model", "--init-from"), ("encoder", "--init-encoder")]
    for group, start in groups:
        if not any(word.endswith(start) or word.endswith("init-from") for word in words):
            sizes = SIZES
            if getattr(getattr(run, group, None), "image", None) is not None:
                sizes = {flag: n for flag, n in SIZES.items() if "max-length" not in flag}
            numbers |= {f"{group}.{flag}": value for flag, value in sizes.items()}
            numbers |= {"tokenizer.vocab-size": 320} if group == "model" else {}
    found = _lowered(run, numbers)
    if alone and hasattr(run, "mesh") and not any(word.startswith("--mesh") for word in words):
        found += ["--distributed.num-local-devices", "1"]
    return found


def _lowered(settings: Any, numbers: dict[str, Any]) -> list[str]:
    """The flags of numbers that are lower than those of settings, or that settings leave open."""
    found = []
    for flag, value, kinds in _values(settings):
        number = numbers.get(flag)
        if number is None or kinds.isdisjoint({int, float, tuple}):
            continue
        if value is None:
            longer = flag in LENGTHS
        else:
            longer = value > number if isinstance(number, int) else len(value) > 2
        if longer:
            words = number if isinstance(number, tuple) else (number,)
            found += [f"--{flag}", *map(str, words)]
    return found


def _values(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any, set[Any]]]:
    """Each flag of settings with its value, and the types that it may have."""
    hints = typing.get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        if positional(field):
            continue
        value, hint = getattr(settings, field.name), hints[field.name]
        flag = flag_of(type(settings), field.name, prefix)
        if dataclasses.is_dataclass(value):
            yield from _values(value, f"{flag}.")
        else:
            kinds = {typing.get_origin(one) or one for one in (hint, *typing.get_args(hint))}
            yield flag, value, kinds


def _launched(arguments: list[str]) -> list[str]:
    """Two processes in place of many, each command that they run shortened."""
    if "--render" in arguments:
        return arguments
    two = {"-n", "--rehearse", "--mesh.fsdp"}
    found = ["2" if before in two else word
             for before, word in zip(["", *arguments], arguments, strict=False)]  # fmt: skip
    end = found.index("--") + 1
    return [*found[:end], *shorten(found[end:], alone=False)]
