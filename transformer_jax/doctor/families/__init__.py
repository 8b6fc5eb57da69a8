"""Families of models, each as the functions that laws take."""

from collections.abc import Callable

from flax import nnx

from transformer_jax.core.errors import ConfigError
from transformer_jax.doctor.checks import Check
from transformer_jax.doctor.families.encoder_models import classifier_checks, encoder_checks
from transformer_jax.doctor.families.image_models import image_checks, two_tower_checks
from transformer_jax.doctor.families.language_models import decoder_checks, ngram_checks
from transformer_jax.doctor.families.translation_models import captioner_checks, translator_checks
from transformer_jax.doctor.kernel_laws import kernel_checks
from transformer_jax.models.captioner import Captioner
from transformer_jax.models.heads import DecoderSequenceClassifier
from transformer_jax.models.ngram import NgramModel
from transformer_jax.models.recurrent_translator import RecurrentEncoderDecoder
from transformer_jax.models.transformer.models import Decoder, Encoder, TransformerEncoderDecoder
from transformer_jax.models.two_towers import TwoTowers
from transformer_jax.models.vision import VisionEncoder

__all__ = ["model_checks"]

_FAMILIES: tuple[tuple[type | tuple[type, ...], Callable[..., list[Check]]], ...] = (
    (Captioner, captioner_checks),
    ((TransformerEncoderDecoder, RecurrentEncoderDecoder), translator_checks),
    (DecoderSequenceClassifier, classifier_checks),
    (Decoder, decoder_checks),
    (Encoder, encoder_checks),
    (VisionEncoder, image_checks),
    (TwoTowers, two_tower_checks),
)


def model_checks(model: nnx.Module | NgramModel) -> list[Check]:
    """Returns the laws that apply to a model, ready to run.

    Raises:
        ConfigError: The model is not from a family of this package.
    """
    if isinstance(model, NgramModel):
        return ngram_checks(model)
    for kinds, checks in _FAMILIES:
        if isinstance(model, kinds):
            return [*checks(model), *kernel_checks(model)]
    raise ConfigError(
        f"{type(model).__name__}: doctor knows the models of this package; for other models call "
        f"the functions of transformer_jax.laws, as examples/check_another_library.py does"
    )
