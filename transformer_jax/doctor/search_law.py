"""The law of beam search, on a few tokens of a model's vocabulary."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from transformer_jax import laws
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.search import search
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.decoding.search_state import SearchRows
from transformer_jax.doctor.checks import Check, Inputs
from transformer_jax.doctor.outputs import program, stride
from transformer_jax.laws import Finding
from transformer_jax.models.protocol import Decodable

__all__ = ["search_check"]

TOKENS, LENGTH = 5, 3  # the first token ends texts, another one starts them
_CONFIG = TRANSLATION.changed(
    num_beams=(TOKENS - 1) ** (LENGTH - 1), num_return_sequences=3, length_penalty=0.5
)


class _FewTokens:
    """A model restricted to a few tokens of its vocabulary, which are renumbered.

    Args:
        model: A ``Decodable``.
        ids: The tokens.
    """

    def __init__(self, model: Decodable, ids: Int[np.ndarray, " K"]):
        self.model, self.ids = model, jnp.asarray(ids)

    def init_cache(self, inputs: PyTree, rows: int, size: int, *, beams: int = 1) -> PyTree:
        """Returns the cache of the model."""
        return self.model.init_cache(inputs, rows, size, beams=beams)

    def step(self, tokens: Int[Array, " R"], cache: PyTree) -> tuple[Float[Array, "R K"], PyTree]:
        """Returns logits of the few tokens, and the next cache of the model."""
        logits, cache = self.model.step(self.ids[tokens], cache)
        return logits[:, self.ids], cache

    def reorder(self, cache: PyTree, parents: Int[Array, "B M"]) -> PyTree:
        """Returns the reordered cache of the model."""
        return self.model.reorder(cache, parents)

    def take(self, cache: PyTree, rows: Int[Array, " N"]) -> PyTree:
        """Returns the cache of some rows of the model."""
        return self.model.take(cache, rows)


def search_check(
    model: Decodable,
    whole: Callable[[Int[np.ndarray, "B T"]], Float[np.ndarray, "B T V"]],
    inputs: Inputs | None,
    tokens: Int[np.ndarray, "B T"],
    vocab_size: int,
) -> list[Check]:
    """Returns the law that a beam as wide as all prefixes finds the texts of exhaustive search.

    Args:
        model: A ``Decodable``.
        whole: Teacher forcing with the condition of the first row in all rows: maps texts ``[B T]``
            to logits of the tokens that :func:`.few` selects.
        inputs: The condition of the texts.
        tokens: Texts, used for their shape.
        vocab_size: The model's vocabulary size; below five tokens, there is no check.
    """
    B, T = tokens.shape
    if vocab_size < TOKENS or T < LENGTH:
        return []
    # From the middle: special tokens at the beginning may be untrained, and tie.
    columns = len(range(0, vocab_size, stride(vocab_size))) // 2 + np.arange(TOKENS) - TOKENS // 2
    ids = stride(vocab_size) * columns
    special, beams = SpecialTokens(0, 1, (1,)), _CONFIG.num_beams
    plan, values = search_settings(_CONFIG, special, vocab=TOKENS, length=LENGTH)

    def find(model: Decodable, inputs: PyTree) -> tuple[Array, Array, Array]:
        few = _FewTokens(model, ids)
        cache = few.init_cache(inputs, 1, LENGTH, beams=beams)
        first = SearchRows(jnp.ones(1, jnp.int32))
        found = search(few, cache, first, plan, values, length=LENGTH)
        return found.tokens[0], found.lengths[0], found.scores[0]

    def texts() -> list[tuple[list[int], float]]:
        first = jax.tree.map(lambda x: x[:1], inputs)
        found = map(np.asarray, program(model, find)(first))
        return [(text[:n].tolist(), float(s)) for text, n, s in zip(*found, strict=True)]

    def scorer(prefixes: Int[np.ndarray, "R N"]) -> Float[np.ndarray, "R N K"]:
        parts = []
        for first in range(0, len(prefixes), B):
            part = ids[prefixes[first : first + B]]
            padded = tokens.copy()
            padded[: len(part), : part.shape[1]] = part
            parts.append(whole(padded)[: len(part), : part.shape[1], columns])
        return np.concatenate(parts)

    def run(tolerance: float) -> Finding:
        return laws.beam_search(
            texts, scorer, special, _CONFIG,
            start=1, vocab_size=TOKENS, length=LENGTH, tolerance=tolerance,
        )  # fmt: skip

    return [Check("beam_search", run)]
