"""Predictions of masked tokens by a pre-trained encoder."""

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.trees import device_of
from transformer_jax.data.coverage import unknown_texts
from transformer_jax.data.examples import EncodedExamples, default_template
from transformer_jax.data.row_offsets import flatten, row_offsets
from transformer_jax.data.store import TokenStore, id_dtype
from transformer_jax.data.tokenizer import SpecialTokensTemplate, Tokenizer
from transformer_jax.data.vocabulary_check import check_vocabulary
from transformer_jax.functional.layers import gather_positions
from transformer_jax.inference.encoding.batching import Batches
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.models.transformer.models import Encoder

__all__ = ["MASK", "MaskFiller", "TokenPrediction"]

MASK = "[MASK]"  # the placeholder in texts, whatever the tokenizer's token


class TokenPrediction(NamedTuple):
    """A candidate token and its probability."""

    text: str
    probability: float


class MaskFiller:
    """Predicts the most probable tokens at each mask of a text (Devlin et al. 2019).

    A mask is ``[MASK]`` or the tokenizer's own token. Each mask is predicted with all other masks
    in place. Probabilities are from the softmax over the full vocabulary; special tokens are
    excluded.

    Args:
        model: Graph and parameters of an ``EncoderForMaskedLM``.
        tokenizer: The tokenizer used in training.
        length: Maximum length of a text in tokens, with [CLS] and [SEP]; None is the model's
            positions.
        prepare: Preprocessing of the text around masks, such as lower-casing.
        tokens: Maximum number of tokens per batch, with padding.
        template: The special tokens around texts; None is the default of training here.

    Attributes:
        counts: Numbers of texts so far, ``lines``, and of those with text that the tokenizer does
            not know, ``unknown``.

    Raises:
        ConfigError: The tokenizer has no mask token.
    """

    def __init__(
        self,
        model: tuple[Any, Any],
        tokenizer: Tokenizer,
        *,
        length: int | None = None,
        prepare: Callable[[str], str] = str,
        tokens: int = 1024,
        template: SpecialTokensTemplate | None = None,
    ):
        if tokenizer.mask is None:
            raise ConfigError("the tokenizer of this run has no [MASK] token")
        self.params = model[1]
        whole = with_attention_kernels(nnx.merge(*model), device_of(self.params))
        self._graph, self._config = nnx.graphdef(whole), whole.config
        check_vocabulary(tokenizer, self._config.vocab_size)
        self._tokenizer, self._prepare, self._tokens = tokenizer, prepare, tokens
        self._template = template or default_template(tokenizer)
        self._length = length or self._config.positions.max_length
        begins = ~tokenizer.is_continuation
        begins[list(tokenizer.special_ids)] = False
        # Tokens of such a vocabulary include the blank before a word, and so do predictions.
        self._blank_is_part = bool(tokenizer.is_continuation.any() and begins.sum() > 1)
        self._runs: dict[tuple[int, int | None], Batches] = {}
        self.counts: collections.Counter[str] = collections.Counter()

    def __call__(self, texts: Sequence[str], *, top: int = 5) -> list[list[list[TokenPrediction]]]:
        """Returns the ``top`` most probable tokens of each mask of each text, best first.

        Raises:
            ConfigError: ``top`` is less than 1 or more than the vocabulary.
            DataError: A text has no mask, or too many tokens; the message names the text.
        """
        plain = self._config.vocab_size - len(self._tokenizer.special_ids)
        if not 1 <= top <= plain:
            raise ConfigError(f"top is {top}: from 1 to {plain}, the words of the vocabulary")
        found: list[list[list[TokenPrediction]]] = [[] for _ in texts]
        for number, ids, worth in self._best(texts, top):
            for place, shares in zip(ids.tolist(), worth.tolist(), strict=True):
                names = self._tokenizer.convert_ids_to_tokens(place)
                found[number].append(
                    [TokenPrediction(*pair) for pair in zip(names, shares, strict=True)]
                )
        return found

    def probabilities(self, texts: Sequence[str]) -> list[Float[np.ndarray, "masks V"]]:
        """Returns the probability of every token, special ones too, at each mask of each text.

        Raises:
            DataError: As in a call.
        """
        found = {number: shares for number, _, shares in self._best(texts, None)}
        return [found[number] for number in range(len(texts))]

    def _best(
        self, texts: Sequence[str], top: int | None
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yields the index of each text, and at each mask the best ids and their probabilities.

        Without ``top``, they are those of all tokens, in the order of the vocabulary.
        """
        rows = [self.encode(text, f"text {i}") for i, text in enumerate(texts, 1)]
        if not rows:
            return
        around = [self._prepare(" ".join(self._parts(text))) for text in texts]
        self.counts.update(lines=len(rows), unknown=unknown_texts(around, self._tokenizer))
        every = flatten([rows], id_dtype(self._tokenizer))
        masks = [sum(i == self._tokenizer.mask for i in row) for row in rows]
        run = self._program(max(masks), top)
        examples = EncodedExamples(TokenStore(every.ids, row_offsets(every.lengths)), every.lengths)
        for numbers, (ids, worth) in run(self.params, examples):
            for row, number in enumerate(numbers.tolist()):
                yield number, ids[row, : masks[number]], worth[row, : masks[number]]

    def encode(self, text: str, name: str = "the text") -> list[int]:
        """Returns the ids of a text with masks, within the special tokens of the template.

        Raises:
            DataError: The text has no mask, or too many tokens.
        """
        tokenizer, parts = self._tokenizer, self._parts(text)
        assert tokenizer.mask is not None
        if len(parts) == 1:
            raise DataError(
                f'{name} has no {MASK}: put it in place of a word, as in "the {MASK} dog"'
            )
        if self._blank_is_part:
            parts[:-1] = [part.rstrip() for part in parts[:-1]]
        ids = list(self._template.prefix_ids)
        for i, part in enumerate(tokenizer.encode_batch([self._prepare(p) for p in parts])):
            ids += [tokenizer.mask, *part] if i else part
        ids += self._template.suffix_ids
        if len(ids) > self._length:
            raise DataError(
                f"{name} has {plural(len(ids), 'token')}: at most {self._length} are "
                f"possible: shorten it"
            )
        return ids

    def has_mask(self, text: str) -> bool:
        """Returns whether a text has a mask."""
        return len(self._parts(text)) > 1

    def _parts(self, text: str) -> list[str]:
        """Returns the parts of a text between its masks."""
        assert self._tokenizer.mask is not None
        [own] = self._tokenizer.convert_ids_to_tokens([self._tokenizer.mask])
        return text.replace(own, MASK).split(MASK)

    def _program(self, masks: int, top: int | None) -> Batches:
        """Returns the program that computes ``top`` tokens for up to ``masks`` masks per row."""
        masks = 1 << (masks - 1).bit_length()
        if (masks, top) in self._runs:
            return self._runs[masks, top]
        graph, tokenizer = self._graph, self._tokenizer
        special = np.zeros(self._config.vocab_size, bool)
        special[list(tokenizer.special_ids)] = True

        def program(params: Any, batch: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
            model = nnx.merge(graph, params)
            tokens = batch["tokens"]
            places = jnp.argsort(tokens != tokenizer.mask, axis=1, stable=True)[:, :masks]
            hidden = Encoder.__call__(model, tokens, batch["lengths"], batch["types"])
            shares = jax.nn.softmax(model.mlm_logits(gather_positions(hidden, places)))
            if top is None:
                return jnp.broadcast_to(jnp.arange(shares.shape[-1]), shares.shape), shares
            worth, ids = jax.lax.top_k(jnp.where(special[None, None], -1.0, shares), top)
            return ids, worth

        self._runs[masks, top] = Batches(program, tokens=self._tokens, pad=tokenizer.pad)
        return self._runs[masks, top]
