"""Functions of parameters and arrays, exported as separate programs."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax.numpy as jnp
import jaxtyping
from flax import nnx
from jaxtyping import Array, PyTree

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.trees import unflatten_dict
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.options import SpecialTokens, special_tokens
from transformer_jax.decoding.search import search
from transformer_jax.decoding.search_plan import SearchPlan, SearchValues, search_settings
from transformer_jax.decoding.search_state import SearchResult, SearchRows
from transformer_jax.interop.ctranslate2 import never_written
from transformer_jax.interop.family import Model
from transformer_jax.interop.hf_checkpoint import abstract_model

__all__ = ["Function", "functions", "portable"]

_LONGEST = 128  # default limit of generated tokens, unless the model has fewer positions

Weights = Mapping[str, Array]  # by name
Inputs = dict[str, tuple[tuple[int | str, ...], str]]  # shape and dtype of each


class _Sizes(NamedTuple):
    """Sizes of inputs: numbers, or names of what a caller chooses."""

    B: int | str = "B"
    S: int | str = "S"
    T: int | str = "T"
    most: int = 0  # largest S and T


@dataclasses.dataclass(frozen=True)
class Function:
    """An exported function from parameters and arrays to arrays by name.

    Attributes:
        call: The function.
        inputs: Shape and dtype of each array by name; letters are symbolic sizes.
        limits: Constraints on these sizes, such as ``S <= 512``.
    """

    call: Callable[..., dict[str, Array]]
    inputs: Inputs
    limits: tuple[str, ...] = ()


def functions(model: Model, tokenizer: Tokenizer, length: int | None = None) -> dict[str, Function]:
    """Returns the exported functions of a model by name.

    Args:
        model: The model.
        tokenizer: Defines the tokens that begin and end generated texts.
        length: Maximum number of generated tokens; None is 128, or fewer with fewer positions.

    Raises:
        ConfigError: The model has too few positions.
    """
    attention = dataclasses.replace(model.config.attention, implementation="xla")
    config = dataclasses.replace(model.config, attention=attention)
    graph = nnx.split(abstract_model(dataclasses.replace(model, config=config)))[0]
    merged = lambda weights: nnx.merge(graph, unflatten_dict(weights))
    longest, window = config.positions.max_length, config.scores.sliding_window
    sizes = _Sizes(most=longest)
    if window is not None and window < min(longest, _LONGEST):
        # Whether it masks anything depends on the length.
        fixed = min(longest, _LONGEST)
        sizes = sizes._replace(S=fixed, T=fixed)
    elif window is not None:
        sizes = _Sizes(most=min(longest, window))
    make = {"encoder-decoder": _translating, "decoder": _generating}.get(model.kind, _encoding)
    given = len(tokenizer.target_prefix_ids) if model.kind == "encoder-decoder" else 0
    if tokenizer.languages is not None and tokenizer.languages.begins:
        raise ConfigError(
            "StableHLO has no translator whose targets begin with the tag of a language: use "
            "--format ctranslate2, or tag sources (--data.tags source)"
        )
    if length is None:  # leave half of a language model's positions to prompts
        length = min(_LONGEST, longest // 2 if model.kind == "decoder" else longest - given)
    if given and length > longest - given:
        raise ConfigError(
            f"--length {length}: allowed are 1 to {longest - given}: {plural(given, 'position')} "
            f"of {longest} {'has' if given == 1 else 'have'} the first tokens of every target"
        )
    return make(model, merged, tokenizer, sizes, length)


def _translating(
    model: Model,
    merged: Callable[[Weights], PyTree],
    tokenizer: Tokenizer,
    sizes: _Sizes,
    room: int,
) -> dict[str, Function]:
    B, S, T, most = sizes
    suppressed = never_written(tokenizer, model.config.decoder().vocab_size)
    eos, *more = tokenizer.end_tokens
    special = SpecialTokens(eos, tokenizer.pad, suppressed, tuple(more))
    settings = _greedy(special, model.config.decoder().vocab_size, room)
    begins = (tokenizer.bos, *tokenizer.target_prefix_ids)

    def forward(
        weights: Weights, source: Array, source_lengths: Array, target: Array
    ) -> dict[str, Array]:
        return {"logits": merged(weights)(source, target, source_lengths)}

    def translate(
        weights: Weights, source: Array, source_lengths: Array, limits: Array
    ) -> dict[str, Array]:
        module = merged(weights)
        inputs = {"source": source, "source_lengths": source_lengths}
        cache = module.init_cache(inputs, source.shape[0], len(begins) - 1 + room)
        if len(begins) > 1:
            given = jnp.tile(jnp.array(begins[:-1], jnp.int32), (source.shape[0], 1))
            cache = module.prefill(given, cache)[1]
        first = jnp.full(source.shape[:1], begins[-1], jnp.int32)
        rows = SearchRows(first, limits)
        return _written(search(module, cache, rows, *settings, length=room))

    read: Inputs = {"source": ((B, S), "int32"), "source_lengths": ((B,), "int32")}
    limits = tuple(f"{x} <= {most}" for x in (S, T) if isinstance(x, str))
    return {
        "forward": Function(forward, read | {"target": ((B, T), "int32")}, limits),
        "translate": Function(translate, read | {"limits": ((B,), "int32")}, limits[:1]),
    }


def _generating(
    model: Model,
    merged: Callable[[Weights], PyTree],
    tokenizer: Tokenizer,
    sizes: _Sizes,
    room: int,
) -> dict[str, Function]:
    B, T, longest = sizes.B, sizes.T, model.config.positions.max_length
    most = min(longest - room + 1, sizes.most)  # the last token is not read
    special = special_tokens(tokenizer, model.config.vocab_size)
    settings = _greedy(special, model.config.vocab_size, room)

    def forward(weights: Weights, tokens: Array) -> dict[str, Array]:
        return {"logits": merged(weights)(tokens)}

    def write(weights: Weights, tokens: Array, starts: Array, limits: Array) -> dict[str, Array]:
        module = merged(weights)
        rows, columns = tokens.shape
        cache = module.init_cache(None, rows, columns - 1 + room)
        cache = module.prefill(tokens[:, :-1], cache, starts)[1]
        last = SearchRows(tokens[:, -1], limits)
        return _written(search(module, cache, last, *settings, length=room))

    own: Inputs = {"starts": ((B,), "int32"), "limits": ((B,), "int32")}
    if isinstance(T, int):
        P: int | str = min(T, most)
        return {
            "forward": Function(forward, {"tokens": ((B, T), "int32")}),
            "generate": Function(write, {"tokens": ((B, P), "int32"), **own}),
        }
    tokens: Inputs = {"tokens": ((B, T), "int32")}
    return {
        "forward": Function(forward, tokens, (f"T <= {sizes.most}",)),
        "generate": Function(write, tokens | own, ("T >= 2", f"T <= {most}")),
    }


def _encoding(
    model: Model,
    merged: Callable[[Weights], PyTree],
    tokenizer: Tokenizer,
    sizes: _Sizes,
    room: int,
) -> dict[str, Function]:
    config, (B, T) = model.config, (sizes.B, sizes.T)
    inputs: Inputs = {"tokens": ((B, T), "int32"), "lengths": ((B,), "int32")}
    if config.embedding.type_vocab_size:
        inputs["types"] = ((B, T), "int32")

    def forward(weights: Weights, *given: Array) -> dict[str, Array]:
        module = merged(weights)
        out = module(*given)
        if model.kind in ("encoder-task", "decoder-task"):
            return {"scores": out}
        found = {"hidden": out}
        if config.head.pooler:
            found["pooled"] = module.pooled(out)
        if model.words:
            found["words"] = module.mlm_logits(out)
        if model.next_sentence:
            found["nsp_logits"] = module.nsp_logits(out)
        return found

    limits = (f"T <= {sizes.most}",) if isinstance(T, str) else ()
    return {"forward": Function(forward, inputs, limits)}


def _greedy(special: SpecialTokens, vocab: int, length: int) -> tuple[SearchPlan, SearchValues]:
    config = GenerationConfig(normalization="none")
    return search_settings(config, special, vocab=vocab, length=length)


def _written(out: SearchResult) -> dict[str, Array]:
    return {
        "tokens": out.tokens[:, 0],
        "lengths": out.lengths[:, 0],
        "log_probs": out.log_probs[:, 0],
    }


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """Context manager without checks of shapes, since symbolic sizes are not numbers."""
    unchecked = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", unchecked)
