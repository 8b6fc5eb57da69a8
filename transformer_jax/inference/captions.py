"""Captioners as functions of files and of arrays of pixels."""

import functools
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from flax import nnx

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.errors import (
    ArgumentError,
    CheckpointError,
    ConfigError,
    DataError,
    plural,
)
from transformer_jax.core.task_progress import log
from transformer_jax.data.images.picture_sources import ArrayPictures, PictureFiles, PictureSource
from transformer_jax.data.images.transforms import Pixels, centre_crop
from transformer_jax.data.languages import DEFAULT_DIRECTION
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.inference.attention import TextAttention, one_text, translation_attention
from transformer_jax.inference.base import Predictor
from transformer_jax.inference.captioner import ImageCaptioner, Picture
from transformer_jax.inference.folder_generation import unused_settings
from transformer_jax.inference.generation_settings import (
    ConfigChoice,
    changes_of,
    generated,
    is_hf,
    search_settings,
    warn_if_limited,
)
from transformer_jax.inference.hf_captions import HFCaptionGenerator
from transformer_jax.inference.hf_generation import SEARCH_HERE
from transformer_jax.inference.images import pictures_of
from transformer_jax.inference.results import GeneratedText
from transformer_jax.models.config import TransformerConfig
from transformer_jax.parallel.placement import mesh_of
from transformer_jax.visual.heat_maps import HeatMaps, word_maps

if TYPE_CHECKING:
    from transformer_jax.inference.facts import Facts
    from transformer_jax.inference.pretrained import Pretrained

__all__ = ["CaptionPredictor", "encoder_of"]

Image = str | os.PathLike[str] | np.ndarray


def encoder_of(facts: "Facts") -> TransformerConfig:
    """Returns the configuration of the image encoder of a stored captioner or image model.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    fields = facts.record
    try:
        return from_dict(TransformerConfig, fields.get("encoder") or fields["model"])
    except (ConfigError, TypeError, KeyError) as error:
        raise CheckpointError(f"{facts.file}: encoder: {error}: damaged?") from None


class CaptionPredictor(Predictor):
    """A trained captioner as a function from pictures to texts.

    Attributes:
        form: Preprocessing of pictures.
        captioner: Batched search on preprocessed pictures.
        batch_size: Maximum number of pictures per batch with a folder's generation config.
    """

    def __init__(self, opened: "Pretrained"):
        self.opened, self.model, self.tokenizer = opened, opened.module, opened.tokenizer
        facts = opened.facts
        self.captioner = ImageCaptioner(
            opened.model, opened.tokenizer, preparation=facts.preparation
        )
        self.form, self.batch_size = pictures_of(facts.record, self.captioner.image), 32
        # Folders of transformers, and runs that were converted from one, have a generation config.
        self._published = "published" in facts.record and "evaluation" not in facts.record
        # The length limit of a caption does not depend on the picture.
        self._usual = search_settings(facts) | {"max_len_a": 0.0}

    def __call__(
        self, images: Any, *, generation_config: ConfigChoice = None, **settings: Any
    ) -> Any:
        """Returns the caption of a picture, or a list of captions.

        Args:
            images: The path of a picture; pixels from 0 to 255, ``[height, width, channels]``; a
                list of these, or pixels ``[B, height, width, channels]``. Pictures of any size are
                resized as in training.
            generation_config: Settings of the search; None is beam search with 4 beams, scores
                normalized for length (Wu et al. 2016) and the length limit of the run. For a folder
                of transformers it is ``"hf"``: the folder's generation config, as in
                ``generate(do_sample=False)`` there.
            **settings: Settings of :class:`.GenerationConfig` that override these, such as
                ``num_beams``, ``num_return_sequences`` (all but the best are ``alternatives``),
                ``max_len_b``, or ``do_sample`` and ``num_beams=1`` with ``temperature``, ``top_k``,
                ``top_p`` and ``seed``; None is ignored. The last three lines are settings of the
                search here, which replaces a folder's generation config; a line of the log says so.

        Raises:
            ArgumentError: The value is neither a path nor pixels.
            ConfigError: A setting is unknown or out of range.
            DataError: A picture is missing, damaged, truncated, or too large.
            NumericsError: The model computed NaN or infinity.
        """
        one = _is_one(images)
        by_folder = self.follows_folder(generation_config, settings)
        search = None if by_folder else self.search(generation_config, settings)
        pictures = [self.picture(each, i) for i, each in enumerate([images] if one else images, 1)]
        found: list[GeneratedText]
        if search is None:
            changes = changes_of(None, settings)
            found = [generated(texts) for texts in self.folder_generator(pictures, changes)]
            _warn_if_cut(found)
        else:
            with warn_if_limited(self.captioner, search):
                done = self.captioner.translate(pictures, search)
            found = [generated(each.hypotheses) for each in done]
        return found[0] if one else found

    @functools.cached_property
    def folder_generator(self) -> HFCaptionGenerator:
        """The function from pictures to captions by the folder's generation config."""
        return HFCaptionGenerator(self.opened, batch=self.batch_size)

    def follows_folder(self, generation_config: ConfigChoice, settings: Mapping[str, Any]) -> bool:
        """Returns whether the generation config of the folder decides about a call.

        Args:
            generation_config: Settings of the search, as in a call.
            settings: Further settings, as in a call.

        Raises:
            ConfigError: The generation config is neither a configuration, ``"hf"`` nor None.
        """
        if is_hf(generation_config):
            return True
        if generation_config is not None or not self._published:
            return False
        here = [name for name, value in settings.items()
                if value is not None and name in SEARCH_HERE | {"do_sample"}]  # fmt: skip
        if mesh_of(nnx.state(self.model)) is not None:
            here.append("a mesh")
        if here:
            facts = self.opened.facts
            names = ", ".join(unused_settings(facts.record["published"]["generation"], settings))
            log(
                f"{facts.source}: its generation config{names and f' ({names})'} is not applied, "
                f"since transformers does not search with {', '.join(here)}"
            )
        return not here

    def search(self, generation_config: ConfigChoice, settings: dict[str, Any]) -> GenerationConfig:
        """Returns the search settings of a call.

        Raises:
            ConfigError: A setting is unknown or out of range.
        """
        usual = dict(self._usual)
        if self._published:
            positions = self.model.config.positions.max_length
            own = self.folder_generator.generation_config
            usual["max_len_b"] = own.longest(1, positions) - 1
        return TRANSLATION.changed(**usual | changes_of(generation_config, settings))

    def attention(self, image: Image, target: str | None = None, **settings: Any) -> TextAttention:
        """Returns the attention weights of every layer and head for a picture.

        Args:
            image: A picture, as in a call.
            target: The caption; None is the result of the search.
            **settings: Settings of the search, as in a call.

        Raises:
            DataError: The picture cannot be read, or the caption is too long.
        """
        if target is None and self.follows_folder(None, settings):
            target, settings = str(self(image, **settings)), {}
        given = None if target is None else one_text(target, "target")
        search = self.search(None, settings)
        return translation_attention(self.captioner, self.picture(image, 1), given, search)

    def heat_maps(self, image: Image, target: str | None = None, **settings: Any) -> HeatMaps:
        """Returns the cross-attention over a picture for each word of its caption.

        Args:
            image: A picture, as in a call.
            target: The caption; None is the result of the search.
            **settings: Settings of the search, as in a call.

        Raises:
            DataError: The picture cannot be read, or the caption is too long.
        """
        text = str(self(image, **settings)) if target is None else target
        found = self.attention(image, text)
        frames = self.captioner.frames(DEFAULT_DIRECTION, 1)
        [ids] = self.captioner.encode_targets([found.text], frames)
        pixels = self.pixels(_source(image, 1), 0)
        return word_maps(found.title, pixels, found["cross"].weights, ids, self.tokenizer.decode)

    def picture(self, image: Any, number: int) -> Picture:
        """Returns the preprocessed picture of a call.

        Args:
            image: A picture, as in a call.
            number: Its position in the call, for messages.

        Raises:
            ArgumentError: The value is neither a path nor pixels.
            DataError: The file cannot be read.
        """
        return self.read(_source(image, number), 0)

    def read(self, source: PictureSource, index: int) -> Picture:
        """Returns a preprocessed picture of a source.

        Raises:
            DataError: The picture cannot be read.
        """
        pixels = self.form.preprocessing.normalized(self.pixels(source, index))
        return Picture(source.where(index), pixels)

    def pixels(self, source: PictureSource, index: int) -> Pixels:
        """Returns the pixels of a picture of a source, before normalization.

        Raises:
            DataError: The picture cannot be read.
        """
        return centre_crop(self.form.square(source, index), self.form.size, self.form.size)


def _warn_if_cut(captions: Sequence[GeneratedText]) -> None:
    """Warns of captions that reached the length limit of a generation config."""
    if cut := sum(caption.finish_reason == "length" for caption in captions):
        warnings.warn(
            f"{cut:,} of {plural(len(captions), 'caption')} reached the length limit of the "
            f"generation config and may be truncated: raise max_length or max_new_tokens",
            stacklevel=3,
        )


def _source(image: Any, number: int) -> PictureSource:
    """Returns a source with the single picture of a call.

    Raises:
        ArgumentError: The value is neither a path nor pixels.
    """
    if isinstance(image, str | os.PathLike):
        return PictureFiles([os.fspath(image)])
    if not isinstance(image, np.ndarray):
        raise ArgumentError(
            f"picture {number} is {type(image).__name__}: a path or pixels [height, width, "
            f"channels] are needed"
        )
    try:
        return ArrayPictures(image[None], f"picture {number}")
    except DataError as error:
        raise ArgumentError(str(error)) from None


def _is_one(images: Any) -> bool:
    """Returns whether a call has one picture.

    Raises:
        ArgumentError: The value is neither a path, nor pixels, nor a list of these.
    """
    if isinstance(images, str | os.PathLike):
        return True
    if isinstance(images, np.ndarray):
        return images.ndim < 4
    if not isinstance(images, Sequence):
        raise ArgumentError(
            f"images is {type(images).__name__}: a path, pixels [height, width, channels], or a "
            f"list of these is needed"
        )
    return False
