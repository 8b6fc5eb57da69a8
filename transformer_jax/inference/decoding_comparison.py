"""Several texts per line by several decoding methods, from a language model or a translator."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer_jax.core.errors import ConfigError, plural, were
from transformer_jax.core.task_progress import log, show_progress
from transformer_jax.data.coverage import unknown_note
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.line_translator import LineTranslator
from transformer_jax.decoding.requests import (
    Continuation,
    CountingLanguageModel,
    GenerationRequest,
    LanguageModel,
    numbered,
)
from transformer_jax.inference.facts import Facts
from transformer_jax.inference.pretrained import Pretrained

__all__ = ["write_varieties"]

_FAMILIES = ("encoder-decoder", "decoder", "ngram")


def write_varieties(
    facts: Facts,
    lines: Sequence[str],
    ways: Mapping[str, Mapping[str, Any]],
    *,
    max_new_tokens: int = 64,
    seed: int = 0,
    direction: Direction = DEFAULT_DIRECTION,
) -> dict[str, list[list[str]]]:
    """Returns the texts of each line, by the name of the decoding method.

    Args:
        facts: Facts of a language model or a translator.
        lines: Prompts, or sentences to translate.
        ways: Settings of :class:`GenerationRequest` by name of the method; more than one beam is
            beam search.
        max_new_tokens: Maximum number of tokens per text.
        seed: Random seed for sampling.
        direction: The languages, for a multilingual translator.

    Raises:
        ConfigError: The run is of another family, a setting is out of range, or a language is
            unknown or missing.
    """
    found, counts = {}, collections.Counter[str]()
    write: Callable[[Mapping[str, Any]], list[list[Continuation]]]
    reader: LineTranslator | CountingLanguageModel
    if facts.require(*_FAMILIES) == "encoder-decoder":
        reader = translator = Pretrained.load(facts).translator()
        each = [facts.direction(translator.tokenizer, direction)] * len(lines)
        placed = list(zip(lines, each, strict=True))
        write = lambda way: _translations(translator, placed, way, max_new_tokens, seed)
    elif direction != DEFAULT_DIRECTION:
        raise ConfigError(f"--from and --to are for translators: leave them out for {facts.source}")
    else:
        model: Any = Pretrained.load(facts).language()
        reader = model
        write = lambda way: _continuations(model, lines, way, max_new_tokens, seed)
    for name, way in ways.items():
        with show_progress(f"writing: {name}"):
            texts = write(way)
        # Every method reads the same lines.
        counts = counts or reader.counts.copy()
        every = [one for row in texts for one in row]
        if cut := sum(one.finish_reason == "length" for one in every):
            log(
                f"{name}: {cut:,} of {plural(len(every), 'text')} reached the length limit, "
                f"{plural(max_new_tokens, 'token')}: raise max_new_tokens"
            )
        found[name] = [[one.text for one in row] for row in texts]
    total = counts["lines"] or counts["prompts"]
    if cut := counts["cut"]:
        said = f"{cut:,} of {plural(total, 'line')} {were(cut)}"
        log(f"{said} longer than the model reads, and truncated")
    if counts["unknown"]:
        log(unknown_note(counts["unknown"], "line", total))
    return found


def _continuations(
    model: LanguageModel, lines: Sequence[str], way: Mapping[str, Any], most: int, seed: int
) -> list[list[Continuation]]:
    requests = [GenerationRequest(line, max_new_tokens=most, seed=seed, **way) for line in lines]
    return model.generate(numbered(requests))


def _translations(
    translator: LineTranslator,
    placed: Sequence[tuple[str, Direction]],
    way: Mapping[str, Any],
    most: int,
    seed: int,
) -> list[list[Continuation]]:
    lines, directions = [line for line, _ in placed], [direction for _, direction in placed]
    settings = {"max_len_a": 0.0, "max_len_b": most, "num_beams": 1, "seed": seed, **way}
    drawn = settings["num_beams"] == 1 and settings.get("temperature", 1) > 0
    search = TRANSLATION.changed(do_sample=drawn, **settings)
    if not drawn:
        return [list(done.hypotheses) for done in translator.stream(lines, search, directions)]
    # Each sample is a separate line, whose number seeds its tokens.
    samples = search.num_return_sequences
    search = search.changed(num_return_sequences=1)
    repeated = [line for line in lines for _ in range(samples)]
    directions = [direction for direction in directions for _ in range(samples)]
    found: list[list[Continuation]] = [[] for _ in lines]
    for i, done in enumerate(translator.stream(repeated, search, directions)):
        found[i // samples] += done.hypotheses
    return found
