"""Models of all families, by name; their modules are imported when one is made."""

from typing import Literal

from flax import nnx

from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.recurrent_config import ModelConfig, RecurrentConfig

__all__ = ["Kind", "TaskKind", "make_model"]

Kind = Literal["encoder", "encoder-task", "decoder", "decoder-task", "encoder-decoder", "image"]
TaskKind = Literal["classify", "multi_label", "pair", "regress", "replaced", "tag", "qa"]


def make_model(
    kind: Kind,
    config: ModelConfig,
    *,
    mlm_head: bool = True,
    next_sentence: bool = True,
    task: TaskKind | None = None,
    labels: int = 0,
    valued: bool = False,
    rngs: nnx.Rngs,
) -> nnx.Module:
    """Makes a model with new parameters.

    Args:
        kind: Model family.
        config: Model configuration.
        mlm_head: Whether an encoder has a masked-language-modelling head.
        next_sentence: Whether that encoder also has a sentence-pair head (NSP or SOP).
        task: Task of a fine-tuned encoder or decoder; image models classify.
        labels: Number of classes or tags.
        valued: Whether a decoder has a value head.
        rngs: Random streams of the initial parameters.

    Example:
        >>> from transformer_jax.models.presets import bert
        >>> model = lambda: make_model("encoder", bert(64, 1), mlm_head=False, rngs=nnx.Rngs(0))
        >>> type(nnx.eval_shape(model)).__name__
        'Encoder'
    """
    if isinstance(config, RecurrentConfig):
        from transformer_jax.models.recurrent_translator import RecurrentEncoderDecoder

        return RecurrentEncoderDecoder(config, rngs=rngs)
    if kind == "decoder":
        from transformer_jax.models.heads import ValuedDecoder
        from transformer_jax.models.transformer.models import Decoder

        return ValuedDecoder(config, rngs=rngs) if valued else Decoder(config, rngs=rngs)
    if kind == "encoder-decoder":
        from transformer_jax.models.transformer.models import TransformerEncoderDecoder

        return TransformerEncoderDecoder(config, rngs=rngs)
    if kind == "image":
        from transformer_jax.models.vision import ImageClassifier, VisionEncoder

        if task is None:
            return VisionEncoder(config, rngs=rngs)
        return ImageClassifier(config, labels=labels, rngs=rngs)
    return _encoder_or_classifier(kind, config, mlm_head, next_sentence, task, labels, rngs)


def _encoder_or_classifier(
    kind: Kind,
    config: TransformerConfig,
    mlm_head: bool,
    next_sentence: bool,
    task: TaskKind | None,
    labels: int,
    rngs: nnx.Rngs,
) -> nnx.Module:
    from transformer_jax.models.heads import (
        DecoderSequenceClassifier,
        EncoderForMaskedLM,
        ReplacedTokenDetector,
        SequenceClassifier,
        TokenClassifier,
    )
    from transformer_jax.models.transformer.models import Encoder

    if kind == "encoder":
        if not mlm_head:
            return Encoder(config, rngs=rngs)
        return EncoderForMaskedLM(config, next_sentence=next_sentence, rngs=rngs)
    labels = {"regress": 1, "qa": 2}.get(task or "", labels)
    if kind == "decoder-task":
        return DecoderSequenceClassifier(config, labels=labels, rngs=rngs)
    if task == "replaced":
        return ReplacedTokenDetector(config, rngs=rngs)
    if task in ("tag", "qa"):
        return TokenClassifier(config, labels=labels, rngs=rngs)
    return SequenceClassifier(config, labels=labels, rngs=rngs)
