"""Detailed views of a search: all texts, and the tree of beam search."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.decoding.beam_tree import BeamTree, LiveBeams, beam_tree
from transformer_jax.decoding.exhaustive import Scorer, exhaustive_search
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.partial_text import GenerationSequence
from transformer_jax.decoding.programs import Programs, SearchPrompts
from transformer_jax.decoding.requests import Continuation
from transformer_jax.decoding.search_plan import SearchPlan, SearchValues
from transformer_jax.decoding.text_tokenizer import TextTokenizer
from transformer_jax.parallel.placement import round_up_rows

__all__ = ["BeamSearch", "BeamSearcher", "every_text", "scorer_after", "tree_of_beams"]

_ROWS = 256  # texts scored at once


class BeamSearch(NamedTuple):
    """The arguments of a search program."""

    params: PyTree
    prompts: SearchPrompts
    plan: SearchPlan
    values: SearchValues
    length: int

    def run(self, program: Callable[..., PyTree], **options: object) -> PyTree:
        """Runs a program, such as :attr:`.Programs.search`."""
        settings = {"plan": self.plan, "values": self.values, "length": self.length}
        return program(self.params, self.prompts, **settings, **options)


@runtime_checkable
class BeamSearcher(Protocol):
    """The parts of a translator or language model that views of its searches need.

    Attributes:
        run: Its programs.
        vocab: V, the vocabulary size.
        tokenizer: Tokenizer that names tokens.
    """

    run: Programs
    vocab: int
    tokenizer: TextTokenizer

    def beam_search(
        self, batch: list[GenerationSequence], config: GenerationConfig, kept: int | None = None
    ) -> BeamSearch:
        """Returns the beam search of sequences, which are the first rows of the prompts."""

    def search_tokens(self, config: GenerationConfig) -> SpecialTokens:
        """Returns the end tokens, and tokens that are never written."""

    def scorer(self, sequence: GenerationSequence) -> Scorer:
        """Returns the function from continuations, with any first token, to logits.

        Raises:
            ConfigError: They are longer than the model can read.
        """


def scorer_after(
    ids: Sequence[int], logits: Callable[[np.ndarray], Array], context: int, params: PyTree
) -> Scorer:
    """Returns the function from continuations of a prompt, with any first token, to logits.

    Args:
        ids: Ids of the prompt.
        logits: The decoder, from texts ``[R T]`` to ``[R T V]``.
        context: Largest number of tokens that it reads.
        params: Its parameters, which may be on several devices.
    """

    def continued(tokens: Int[np.ndarray, "R T"]) -> Float[np.ndarray, "R T V"]:
        (R, T), P = tokens.shape, len(ids)
        if context < P + T - 1:
            raise ConfigError(
                f"{plural(P, 'token')} of a prompt and {T - 1:,} more: at most {context} are read"
            )
        texts = np.zeros((round_up_rows(R, params), P + T - 1), np.int32)
        texts[:, :P], texts[:R, P:] = ids, tokens[:, 1:]
        return np.asarray(logits(texts))[:R, P - 1 :]

    return continued


def every_text(
    searcher: BeamSearcher, sequence: GenerationSequence, config: GenerationConfig, length: int
) -> list[Continuation]:
    """Returns the best of all texts of at most ``length`` tokens, best first.

    Args:
        searcher: The model and its tokenizer.
        sequence: The sequence that the texts continue or translate.
        config: ``num_return_sequences``, ``normalization``, ``length_penalty`` and ``at_limit``.
        length: Largest number of tokens, including an end token.

    Raises:
        ConfigError: There are more than a million texts.
    """
    special = searcher.search_tokens(config)
    found = exhaustive_search(
        searcher.scorer(sequence),
        special,
        config,
        start=0,  # scorers replace it
        vocab_size=searcher.vocab,
        length=length,
        rows=_ROWS,
    )
    return [sequence.completed(one.tokens, one.log_prob, one.score) for one in found]


def tree_of_beams(
    searcher: BeamSearcher, sequence: GenerationSequence, config: GenerationConfig
) -> BeamTree:
    """Returns the tree of a beam search.

    Args:
        searcher: The model and its tokenizer.
        sequence: The sequence that the texts continue or translate.
        config: The beam search.

    Raises:
        ConfigError: There is only one beam.
    """
    if config.num_beams == 1:
        raise ConfigError("num_beams is 1: a tree needs 2 beams or more")
    search = searcher.beam_search([sequence], config)
    result, trail = jax.device_get(search.run(searcher.run.trail))
    assert search.prompts.limits is not None
    limit, steps = int(search.prompts.limits[0]), int(trail.steps)
    live = LiveBeams(trail.tokens[:steps, 0], trail.parents[:steps, 0], limit, search.plan.cut)
    logits = searcher.scorer(sequence)
    best = result.tokens[0, 0, : result.lengths[0, 0]].tolist()

    def next_log_probs(texts: Sequence[tuple[int, ...]]) -> Float[np.ndarray, "n V"]:
        # A single shape, so only one compilation.
        inputs = np.zeros((config.num_beams, max(1, steps)), np.int32)
        for row, text in enumerate(texts):
            inputs[row, 1 : 1 + len(text)] = text
        last = logits(inputs)[np.arange(len(texts)), [len(text) for text in texts]]
        wide = np.asarray(last, np.float64)
        return wide - np.logaddexp.reduce(wide, axis=1, keepdims=True)

    special = searcher.search_tokens(config)
    return beam_tree(live, next_log_probs, special, best, searcher.tokenizer.convert_ids_to_tokens)
