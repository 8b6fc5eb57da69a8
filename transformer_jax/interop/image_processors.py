"""Image processors of Hugging Face folders, read from and written as ``preprocessor_config.json``.

As in transformers, the processor's class decides what a key means and what a missing key is: one
number as the size is the short side for CLIP, and both sides for DeiT.
https://huggingface.co/docs/transformers/main_classes/image_processor
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast, get_args

from transformer_jax.core.json_types import Json
from transformer_jax.data.images.preprocessing import MAX_SIDE, Preprocessing
from transformer_jax.data.images.transforms import Filter, Fit
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.models.config import ImageConfig

__all__ = ["processor_fields", "published_preprocessing", "read_processor"]

Channels = tuple[float, float, float]
_HALF: Channels = (0.5, 0.5, 0.5)
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


class Defaults(NamedTuple):
    """The default settings of a class of image processors.

    Attributes:
        size: The size.
        crop: The size of the crop; None without one.
        crops: Whether pictures are cropped.
        square: Whether a single number as the size is for both sides, not for the short one.
        resample: Number of Pillow's filter.
        mean: Mean of each channel.
        std: Standard deviation of each channel.
    """

    size: dict[str, int]
    crop: int | None = None
    crops: bool = False
    square: bool = True
    resample: int = 3
    mean: Channels = _HALF
    std: Channels = _HALF


_BOTH, _SHORT = {"height": 224, "width": 224}, {"shortest_edge": 224}
_CLIP = Defaults(_SHORT, 224, True, False, 3, *_OPENAI)
_CLASSES = {
    "BeitImageProcessor": Defaults(_BOTH, 224),
    "BitImageProcessor": _CLIP,
    "BlipImageProcessor": Defaults({"height": 384, "width": 384}, None, False, True, 3, *_OPENAI),
    "ChineseCLIPImageProcessor": _CLIP,
    "CLIPImageProcessor": _CLIP,
    "DeiTImageProcessor": Defaults({"height": 256, "width": 256}, 224, True),
    "MobileNetV1ImageProcessor": Defaults({"shortest_edge": 256}, 224, True, False, 2),
    "PvtImageProcessor": Defaults(_BOTH, None, False, True, 3, *_IMAGENET),
    "SiglipImageProcessor": Defaults(_BOTH, None, False, False),
    "ViTImageProcessor": Defaults(_BOTH, resample=2),
}
# The classes of models, for folders that do not name one.
_OF_MODELS = {
    "clip": "CLIPImageProcessor",
    "deit": "DeiTImageProcessor",
    "siglip": "SiglipImageProcessor",
    "vit": "ViTImageProcessor",
}
_READ = {
    "crop_size", "default_to_square", "do_center_crop", "do_normalize", "do_pad", "do_rescale",
    "do_resize", "feature_extractor_type", "image_mean", "image_processor_type", "image_std",
    "resample", "rescale_factor", "size", "use_square_size",
}  # fmt: skip
# Keys about arguments, outputs, label maps and other processors, which change no pixel here:
# pictures have as many channels as the model reads, whatever do_convert_rgb is.
_WITHOUT_EFFECT = {
    "_processor_class", "_valid_processor_keys", "data_format", "device", "disable_grouping",
    "do_convert_rgb", "do_reduce_labels", "image_seq_length", "input_data_format", "pad_size",
    "processor_class", "reduce_labels", "return_tensors",
}  # fmt: skip


def read_processor(fields: ConfigReader, model_type: str, image: ImageConfig) -> Preprocessing:
    """Returns the preprocessing that an image processor describes.

    Args:
        fields: The keys of the processor.
        model_type: The type of the image model, for processors without a class of their own.
        image: Image sizes of the model.

    Raises:
        CheckpointError: A key is unknown, or has a value that is not supported, such as padding, or
            that does not fit the model.

    Example:
        >>> settings = {"size": 256, "crop_size": 224, "image_processor_type": "DeiTImageProcessor"}
        >>> made = read_processor(ConfigReader(settings), "vit", ImageConfig(224))
        >>> made.resize, made.fit, made.filter
        (256, 'squash', 'bicubic')
        >>> read_processor(ConfigReader({"do_flip_channel_order": True}), "vit", ImageConfig(224))
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.CheckpointError: config.json: do_flip_channel_order is true: ...
    """
    usual = _class_of(fields, model_type)
    for name, value in fields.values.items():
        if name not in _READ | _WITHOUT_EFFECT and value is not None and value is not False:
            raise fields.refused(name, value, "no such setting of a picture is supported")
    fields.only(do_resize=True, do_pad=False, use_square_size=False)
    fit, side = _size(fields, usual)
    _check_sides(fields, usual, fit, side, image.image_size)
    filters = get_args(Filter)
    number = fields.whole("resample", default=usual.resample, least=0)
    if number >= len(filters):
        raise fields.refused("resample", number, f"allowed are 0 to {len(filters) - 1}")
    normalizes = fields.flag("do_normalize", True)
    channels = [_channels(fields, name, default, image.num_channels) if normalizes else plain
                for name, default, plain in (("image_mean", usual.mean, (0.0,)),
                                             ("image_std", usual.std, (1.0,)))]  # fmt: skip
    rescales = fields.flag("do_rescale", True)
    scale = fields.number("rescale_factor", default=1 / 255, above=0) if rescales else 1.0
    return Preprocessing(
        resize=None if side == image.image_size else side,
        fit=fit,
        filter=filters[number],
        mean=channels[0],
        std=channels[1],
        scale=scale,
    )


def _class_of(fields: ConfigReader, model_type: str) -> Defaults:
    """Returns the defaults of a processor's class; feature extractors are its older names."""
    named = next(
        (name for name in ("image_processor_type", "feature_extractor_type")
         if fields.values.get(name) is not None),
        None,
    )  # fmt: skip
    if named is None:
        return _CLASSES[_OF_MODELS.get(model_type, "ViTImageProcessor")]
    told = fields.values[named]
    name = str(told).replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast")
    if name.removesuffix("Pil") not in _CLASSES:
        raise fields.refused(named, told, f"known are {', '.join(_CLASSES)}")
    return _CLASSES[name.removesuffix("Pil")]


def _size(fields: ConfigReader, usual: Defaults) -> tuple[Fit, int]:
    """Returns whether both sides are resized or the short one, and to which size."""
    square = fields.flag("default_to_square", usual.square)
    size: Any = fields.values.get("size")
    if size is None:
        size = usual.size
    if isinstance(size, int) and not square:
        size = {"shortest_edge": size}
    short = isinstance(size, dict) and set(size) == {"shortest_edge"}
    side = size["shortest_edge"] if short else _square(fields, "size", size)
    if not _is_side(side):
        raise fields.refused("size", size, f"allowed are 1 to {MAX_SIDE:,} pixels")
    return "crop" if short else "squash", side


def _square(fields: ConfigReader, name: str, size: Json) -> int:
    """Returns the side of a square: from a number, height and width by name, or a list of both."""
    if isinstance(size, dict) and set(size) == {"height", "width"}:
        size = [size["height"], size["width"]]
    sides = size if isinstance(size, list) else [size, size]
    if len(sides) != 2 or sides[0] != sides[1] or not _is_side(sides[0]):
        raise fields.refused(
            name, size, f"one number of pixels for both sides is needed, at most {MAX_SIDE:,}"
        )
    return cast(int, sides[0])


def _is_side(side: object) -> bool:
    return isinstance(side, int) and not isinstance(side, bool) and 1 <= side <= MAX_SIDE


def _check_sides(fields: ConfigReader, usual: Defaults, fit: Fit, side: int, wanted: int) -> None:
    """Refuses sizes whose result is not the square that the model reads."""
    reads = f"the model reads {wanted} x {wanted} pixels"
    size = fields.values.get("size", usual.size)
    if not fields.flag("do_center_crop", usual.crops):
        if fit == "crop":
            raise fields.refused("size", size, f"the short side, without a crop, and {reads}")
        if side != wanted:
            raise fields.refused("size", size, reads)
        return
    crop = fields.values.get("crop_size")
    crop = usual.crop if crop is None else crop
    if crop is None or _square(fields, "crop_size", crop) != wanted:
        raise fields.refused("crop_size", crop, reads)
    if side < wanted:
        raise fields.refused("size", size, f"smaller than the crop, and {reads}")


def _channels(
    fields: ConfigReader, name: str, default: Channels, channels: int
) -> tuple[float, ...]:
    """Returns one number for all channels, or a number for each."""
    value = fields.values.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        numbers: tuple[float, ...] = (fields.number(name),)
    else:
        numbers = default if value is None else fields.numbers(name)
        if len(numbers) != channels:
            raise fields.refused(
                name, value or default, f"one number is needed for each channel, and there "
                                        f"are {channels}"
            )  # fmt: skip
    if name == "image_std" and min(numbers) <= 0:
        raise fields.refused(name, value, "numbers above 0 are needed")
    return numbers


def published_preprocessing(
    published: Mapping[str, Any], image: ImageConfig, where: str = "preprocessor_config.json"
) -> Preprocessing:
    """Returns the preprocessing of a published model; without a processor, the defaults of ViT.

    Args:
        published: The record of the original folder in ``config.json`` of a run.
        image: Image sizes of the model.
        where: The file of the processor, for messages.

    Raises:
        CheckpointError: As for :func:`read_processor`.

    Example:
        >>> fields = {"model_type": "vision-encoder-decoder", "encoder": {"model_type": "deit"}}
        >>> published_preprocessing({"fields": fields, "preprocessor": {}}, ImageConfig(224)).resize
        256
    """
    if published.get("preprocessor") is None:
        return Preprocessing()
    fields = published.get("fields") or {}
    name = (fields.get("encoder") or fields).get("model_type")
    return read_processor(ConfigReader(published["preprocessor"], where), str(name), image)


def processor_fields(
    preprocessing: Preprocessing, image_size: int, channels: int
) -> Mapping[str, Any]:
    """Returns the content of a ``preprocessor_config.json``.

    Example:
        >>> made = processor_fields(Preprocessing(resize=256, mean=(0.0,)), 224, 3)
        >>> read_processor(ConfigReader(made), "vit", ImageConfig(224)) == Preprocessing(
        ...     resize=256, mean=(0.0, 0.0, 0.0), std=(0.5, 0.5, 0.5)
        ... )
        True
    """
    size = preprocessing.resize or image_size
    short = preprocessing.fit == "crop"
    cropped = short or size != image_size
    per_channel = lambda values: list(values * (channels if len(values) == 1 else 1))
    return {
        # Of the two processors that crop, CLIP's resizes the short side and DeiT's both.
        "image_processor_type": "CLIPImageProcessor" if short else
        "DeiTImageProcessor" if cropped else "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": size} if short else {"height": size, "width": size},
        "resample": get_args(Filter).index(preprocessing.filter),
        "do_center_crop": cropped,
        **({"crop_size": {"height": image_size, "width": image_size}} if cropped else {}),
        "do_rescale": True,
        "rescale_factor": preprocessing.scale,
        "do_normalize": True,
        "image_mean": per_channel(preprocessing.mean),
        "image_std": per_channel(preprocessing.std),
        "do_convert_rgb": channels == 3,
    }  # fmt: skip
