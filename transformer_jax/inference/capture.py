"""The activations of an opened model for a text, by name, and with some of them replaced."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.examples import collate
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.inference.attention import (
    DecoderAttention,
    TranslatorAttention,
    one_text,
    pieces,
    read_pair,
    readable_tokens,
)
from transformer_jax.inference.generation_settings import changes_of
from transformer_jax.models.activations import Replacement, capture
from transformer_jax.models.heads import EncoderForMaskedLM
from transformer_jax.models.transformer.models import Encoder

if TYPE_CHECKING:
    from transformer_jax.inference.encoding.masked import MaskFiller
    from transformer_jax.inference.encoding.vectors import Embedder
    from transformer_jax.inference.pretrained import Pretrained

__all__ = ["Activations", "DecoderCapture", "EncoderCapture", "TranslatorCapture"]

Names = Iterable[str] | str
Replace = Mapping[str, Replacement] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Activations(Mapping[str, np.ndarray]):
    """Activations of a model for one text, by name, in the order of its computation.

    Attributes:
        arrays: The arrays by name.
        tokens: The tokens of the text; of an encoder-decoder, those of the source.
        target_tokens: The tokens that a decoder reads next to a source; empty without one.

    Example:
        >>> found = Activations({"logits": np.zeros((1, 5))}, ("a",))
        >>> list(found), found["logits"].shape
        (['logits'], (1, 5))
    """

    arrays: Mapping[str, np.ndarray]
    tokens: tuple[str, ...]
    target_tokens: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


class TranslatorCapture(TranslatorAttention):
    """Mixin: the attention and all other activations of an encoder-decoder."""

    opened: "Pretrained"

    def capture(
        self,
        text: str,
        target: str | None = None,
        *,
        at: Names = ("logits",),
        replace: Replace = None,
        from_: str | None = None,
        to: str | None = None,
        **settings: Any,
    ) -> Activations:
        """Returns activations for a sentence and its translation, by teacher forcing.

        Args:
            text: The sentence.
            target: The translation; None is the result of beam search, by the unchanged model.
            at: Names of activations, or patterns; see :mod:`transformer_jax.models.activations`.
            replace: New values by name, or functions from old values to new ones; 0 as output of a
                head switches it off.
            from_: Language of the sentence, for a multilingual translator.
            to: Language of the translation, for a multilingual translator.
            **settings: Settings of the search, as in a call.

        Raises:
            ArgumentError: There is no such activation, or a new value does not fit; a text is
                empty.
            ConfigError: The model runs on CTranslate2.
            DataError: The target is longer than the model's positions.
        """
        translator, source = self._refuse_engine(), one_text(text, use="capture")
        given = None if target is None else one_text(target, "target", use="capture")
        search = TRANSLATION.changed(**self._usual | changes_of(None, settings))
        direction = self._direction(from_, to)
        _, _, ids, written = read_pair(translator, source, given, search, direction)
        tokenizer = translator.tokenizer
        inputs = [tokenizer.bos, *written[:-1]]
        arrays = jnp.asarray([ids]), jnp.asarray([inputs]), jnp.asarray([len(ids)])
        values = capture(self.opened.module, lambda model: model(*arrays), at, replace)
        names = tuple(readable_tokens(translator.source_names(ids)))
        return Activations(values, names, tuple(pieces(tokenizer, inputs)))


class DecoderCapture(DecoderAttention):
    """Mixin: the attention and all other activations of a decoder."""

    def capture(
        self, text: str, *, at: Names = ("logits",), replace: Replace = None
    ) -> Activations:
        """Returns activations for a text; the logits of a token are of the token after it.

        Args:
            text: The text.
            at: See :meth:`TranslatorCapture.capture`.
            replace: See :meth:`TranslatorCapture.capture`.

        Raises:
            ArgumentError: There is no such activation, or a new value does not fit; the text is
                empty.
            ConfigError: The model is an n-gram model, or runs on CTranslate2.
            DataError: The text is longer than the model's context.
        """
        opened, facts = self.opened, self.opened.facts
        if not opened.on_jax:
            raise ConfigError(f"{facts.source}: capture needs a decoder that runs on JAX")
        read = facts.preparation.text(one_text(text, use="capture"))
        [ids] = opened.tokenizer.encode_batch([read])
        ids = facts.text_start(opened.tokenizer).read(ids)
        longest = opened.module.config.positions.max_length
        if len(ids) > longest:
            raise DataError(
                f"the text has {plural(len(ids), 'token')}: at most {longest} are read; shorten it"
            )
        tokens = jnp.asarray([ids])
        values = capture(opened.module, lambda model: model(tokens), at, replace)
        return Activations(values, tuple(pieces(opened.tokenizer, ids)))


class EncoderCapture:
    """Mixin: the activations of an encoder with a head."""

    opened: "Pretrained"
    vectors: "Embedder"
    _fill: "MaskFiller | None" = None

    def capture(
        self,
        text: str,
        text_pair: str | None = None,
        *,
        at: Names = ("logits",),
        replace: Replace = None,
    ) -> Activations:
        """Returns activations for a text or a pair of texts.

        Logits are over the vocabulary at each token, of which some may be ``[MASK]``, or those of
        the labels, for the text or for each token.

        Args:
            text: The text.
            text_pair: The second text of a pair.
            at: See :meth:`TranslatorCapture.capture`.
            replace: See :meth:`TranslatorCapture.capture`.

        Raises:
            ArgumentError: There is no such activation, or a new value does not fit; a text is
                empty.
            ConfigError: The encoder has no head, or the model is a decoder.
            DataError: The texts are longer than the model's length.
        """
        opened = self.opened
        model, facts, tokenizer = opened.module, opened.facts, opened.tokenizer
        if not isinstance(model, Encoder) or facts.record.get("masking", {}) is None:
            raise ConfigError(f"{facts.source}: capture needs an encoder with a head")
        given = [one_text(text, use="capture")]
        given += [] if text_pair is None else [one_text(text_pair, "text_pair", use="capture")]
        if self._fill is not None and text_pair is None and self._fill.has_mask(text):
            ids = np.asarray(self._fill.encode(text), np.int32)
            types = np.zeros_like(ids)
        else:
            examples = self.vectors.one_example(*given)
            ids = examples.store.ids
            batch = collate(examples, np.array([0]), len(ids), tokenizer.pad)
            [types] = batch["types"] * ((facts.published or {}).get("types") is not False)
        row = ids[None].astype(np.int32), np.array([len(ids)]), types[None]
        arrays = tuple(map(jnp.asarray, row))

        def run(model: Encoder) -> Array:
            if isinstance(model, EncoderForMaskedLM):
                return model.mlm_logits(Encoder.__call__(model, *arrays))
            return model(*arrays)

        values = capture(model, run, at, replace)
        return Activations(values, tuple(pieces(tokenizer, ids.tolist())))
