"""Translations drawn at random instead of searched for."""

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Key

from transformer_jax.decoding.generate import GenerationOutput, SamplingConfig, generate
from transformer_jax.decoding.lengths import length_penalty
from transformer_jax.decoding.options import BeamSearchConfig
from transformer_jax.decoding.translator import Hypothesis, Translation, Translator
from transformer_jax.numerics import refuse_nonfinite

__all__ = ["sample_translations"]


def sample_translations(
    translator: Translator,
    lines: Iterable[str],
    key: Key[Array, ""],
    sampling: SamplingConfig | None = None,
    search: BeamSearchConfig | None = None,
) -> Iterator[Translation]:
    """A translation of each line, drawn token by token (rows B32-B34); an empty line stays empty.

    What a line becomes depends on ``key``, the line and its number, not on its neighbours.

    Args:
        translator: Whose model, tokenizer and shapes are used.
        lines: One sentence each.
        key: Randomness.
        sampling: How tokens are drawn.
        search: Limits of length, and how scores are divided by it; its beams play no part.
    """
    search = translator.search if search is None else search
    sampling = SamplingConfig() if sampling is None else sampling
    lines, before = iter(lines), 0
    while window := list(itertools.islice(lines, translator.batching.window)):
        sources, cut = translator.encode(window, before)
        lengths = [len(ids) for ids in sources]
        real = [i for i, n in enumerate(lengths) if n > 1]
        translator.counts.update(lines=len(window), empty=len(window) - len(real), cut=sum(cut))
        found: dict[int, Hypothesis] = {}
        for which, (rows, size) in translator.batches(real, lengths):
            source = np.full((rows, size), translator.tokenizer.pad, np.int32)
            counts, limits, seeds = (np.zeros(rows, np.int32) for _ in range(3))
            for row, i in enumerate(which):
                source[row, : lengths[i]] = sources[i]
                counts[row], seeds[row] = lengths[i], before + i
                limits[row] = search.limit(lengths[i], translator.most)
            out = _draw(
                translator.params,
                source,
                counts,
                limits,
                seeds,
                key,
                sampling,
                graph=translator.graph,
                length=search.limit(size, translator.most),
                eos=translator.tokenizer.eos,
                pad=translator.tokenizer.pad,
                bos=translator.tokenizer.bos,
                forbidden=translator.forbidden(search.unknown),
            )
            refuse_nonfinite(out.log_probs[: len(which)])
            found.update(zip(which, _read(translator, out, search), strict=False))
        nothing = Hypothesis("", (), 0.0, 0.0)
        for i, line in enumerate(window):
            yield Translation(line, (found.get(i, nothing),), cut[i])
        before += len(window)


@functools.partial(jax.jit, static_argnames=("graph", "length", "eos", "pad", "bos", "forbidden"))
def _draw(
    params: Any,
    source: Array,
    lengths: Array,
    limits: Array,
    seeds: Array,
    key: Array,
    sampling: SamplingConfig,
    *,
    graph: Any,
    length: int,
    bos: int,
    **special: Any,
) -> GenerationOutput:
    model = nnx.merge(graph, params)
    cache = model.start(source, lengths, length)
    first = jnp.full(source.shape[0], bos, jnp.int32)
    how = special | {"limits": limits, "sampling": sampling, "key": key, "seeds": seeds}
    return generate(model.step, cache, first, length=length, **how)


def _read(
    translator: Translator, out: GenerationOutput, search: BeamSearchConfig
) -> Iterator[Hypothesis]:
    penalty = length_penalty(out.lengths, search.normalization, search.alpha)
    parts = (out.tokens, out.lengths, out.log_probs / penalty, out.log_probs)
    for ids, n, *worth in zip(*(np.asarray(part).tolist() for part in parts), strict=True):
        text = translator.tokenizer.decode(ids[:n]).replace("\r", " ").replace("\n", " ")
        yield Hypothesis(text, tuple(ids[:n]), *worth)
