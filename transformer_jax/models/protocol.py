"""Protocols of models: hidden states of whole sequences for losses, single tokens for search."""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Float32, Int, Key, PyTree, Shaped

from transformer_jax.functional.losses import OutputTable

__all__ = ["AnyDecoder", "ArrayModel", "Decodable", "Encoded", "Extendable", "Scorer"]


class Encoded(NamedTuple):
    """The result of any encoder: of tokens, patches or frames, recurrent or not.

    Attributes:
        states: One vector per token, patch or frame.
        mask: Number of non-padding states in each row, or a mask of them; None is all.
        last: The state of each recurrent layer after the last token.
    """

    states: Float[Array, "B S D"]
    mask: Int[Array, " B"] | Bool[Array, "B S"] | None
    last: PyTree = None


@runtime_checkable
class Scorer(Protocol):
    """A model that scores complete sequences, for losses."""

    def hidden(
        self, inputs: PyTree, tokens: Int[Array, "B T"], *, key: Key[Array, ""] | None = None
    ) -> Float[Array, "B T D"]:
        """The hidden state at each of ``tokens``, which does not depend on later tokens.

        Args:
            inputs: The condition: arguments of the encoder by name; for a language model,
                ``segment_ids`` and ``positions`` of packed rows, or None.
            tokens: Decoder inputs.
            key: Random key of dropout; None is no dropout.
        """

    def output_table(self) -> OutputTable:
        """The map from hidden states to logits."""


@runtime_checkable
class Extendable(Protocol):
    """A model that extends texts by one token at a time, after a prompt: all that a search calls.

    The cache is any pytree. Its ``R = B M`` rows are the ``M`` beams of each of ``B`` sequences,
    adjacent per sequence.
    """

    def step(self, tokens: Int[Array, " R"], cache: PyTree) -> tuple[Float32[Array, "R V"], PyTree]:
        """Returns logits of the token after ``tokens``, one per row, and the extended cache."""

    def reorder(self, cache: PyTree, parents: Int[Array, "B M"]) -> PyTree:
        """Returns the cache in which beam ``m`` of sequence ``b`` continues ``parents[b, m]``."""

    def take(self, cache: PyTree, rows: Int[Array, " N"]) -> PyTree:
        """Returns the cache of the sequences ``rows``, with all their beams."""


@runtime_checkable
class Decodable(Extendable, Protocol):
    """A model that decodes one token at a time, Transformer or not.

    Search (:mod:`transformer_jax.decoding.search`) uses only these methods.
    Law: the logits after each token equal those of a forward pass over the complete sequence.
    """

    def init_cache(self, inputs: PyTree, rows: int, size: int, *, beams: int = 1) -> PyTree:
        """An empty cache.

        Args:
            inputs: The condition: arguments of the encoder by name; None for a language model.
            rows: B, the number of sequences.
            size: Largest number of tokens in a sequence.
            beams: M, the beams of each sequence.
        """

    def prefill(
        self, tokens: Int[Array, "B T"], cache: PyTree, starts: Int[Array, " B"] | None = None
    ) -> tuple[Float32[Array, "B V"], PyTree]:
        """Returns logits of the token after each prompt, and the cache filled with the prompts.

        Args:
            tokens: Prompts, left-padded.
            cache: Empty cache from :meth:`init_cache`.
            starts: Index of the first token of each prompt; earlier ones are padding. None is 0.
        """


@runtime_checkable
class ArrayModel(Protocol):
    """A model from arrays with a row per example to one, such as a classifier."""

    def __call__(
        self, *inputs: Shaped[Array, "B ..."], key: Key[Array, ""] | None = None
    ) -> Float[Array, "B ..."]:
        """Returns the outputs of each example."""


@runtime_checkable
class AnyDecoder(Scorer, Decodable, Protocol):
    """A decoder of any encoded states: it scores complete sequences, and decodes them."""
