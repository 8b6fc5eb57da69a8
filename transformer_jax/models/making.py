"""A model of any family from what says which."""

from typing import Any, Literal

from flax import nnx

from transformer_jax.config import TransformerConfig
from transformer_jax.models.decoder import Decoder
from transformer_jax.models.encoder import Encoder
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.heads import (
    MaskedEncoder,
    ReplacedEncoder,
    TextDecoder,
    TextEncoder,
    TokenEncoder,
)
from transformer_jax.models.vision import ImageClassifier, VisionEncoder

__all__ = ["Kind", "Task", "make_model"]

Kind = Literal["encoder", "encoder-task", "decoder", "decoder-task", "encoder-decoder", "image"]
Task = Literal["classify", "multi_label", "pair", "regress", "replaced", "tag", "span"]


def make_model(
    kind: Kind,
    config: TransformerConfig,
    *,
    words: bool = True,
    next_sentence: bool = True,
    task: Task | None = None,
    labels: int = 0,
    rngs: nnx.Rngs,
) -> Any:
    """A model with fresh parameters.

    Args:
        kind: Its family.
        config: What it is made of.
        words: Of an encoder, whether it has a head for hidden words.
        next_sentence: Of one that has, whether it has one for pairs of texts.
        task: Of a fine-tuned encoder or decoder, what for; images are classified.
        labels: How many classes or tags it tells.
        rngs: Where parameters are drawn from.

    Example:
        >>> from transformer_jax.config import bert
        >>> model = lambda: make_model("encoder", bert(64, 1), words=False, rngs=nnx.Rngs(0))
        >>> type(nnx.eval_shape(model)).__name__
        'Encoder'
    """
    if kind == "decoder":
        return Decoder(config, rngs=rngs)
    if kind == "encoder-decoder":
        return EncoderDecoder(config, rngs=rngs)
    if kind == "encoder":
        if not words:
            return Encoder(config, rngs=rngs)
        return MaskedEncoder(config, next_sentence=next_sentence, rngs=rngs)
    if kind == "image":
        if task is None:
            return VisionEncoder(config, rngs=rngs)
        return ImageClassifier(config, labels=labels, rngs=rngs)
    labels = {"regress": 1, "span": 2}.get(task or "", labels)
    if kind == "decoder-task":
        return TextDecoder(config, labels=labels, rngs=rngs)
    if task == "replaced":
        return ReplacedEncoder(config, rngs=rngs)
    if task in ("tag", "span"):
        return TokenEncoder(config, labels=labels, rngs=rngs)
    return TextEncoder(config, labels=labels, rngs=rngs)
