"""Every key of an image processor is applied as by the processor's class, or refused by name."""

import numpy as np
import pytest
from PIL import Image

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.data.images.preprocessing import MAX_SIDE, Preprocessing
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.image_processors import processor_fields, read_processor
from transformer_jax.models.config import ImageConfig

PICTURE = np.random.default_rng(0).integers(0, 256, (12, 20, 3), np.uint8)
BICUBIC = Image.Resampling.BICUBIC


def read(settings, model_type="vit", reads=8, channels=3):
    return read_processor(ConfigReader(settings), model_type, ImageConfig(reads, 1, channels))


def crop(side, read, top, left):
    """CLIP's reading: the short side is resized, here to (side, 5 / 3 * side), and cropped."""
    picture = Image.fromarray(PICTURE).resize((side * 20 // 12, side), BICUBIC)
    return picture.crop((left, top, left + read, top + read))


SQUASHED = Image.fromarray(PICTURE).resize((10, 10), BICUBIC).crop((1, 1, 9, 9))
PREPARED = {
    "CLIP crops the short side": ({"size": 10, "crop_size": 8}, "clip", crop(10, 8, 1, 4)),
    "an odd margin is cropped once": ({"size": 11, "crop_size": 8}, "clip", crop(11, 8, 1, 5)),
    "both margins odd": ({"size": 9, "crop_size": 8}, "clip", crop(9, 8, 0, 3)),
    "DeiT squashes": ({"size": 10, "crop_size": 8}, "deit", SQUASHED),
    "so does its old extractor": (
        {"size": 10, "crop_size": 8, "feature_extractor_type": "DeiTFeatureExtractor"},
        "vit", SQUASHED,
    ),
    "a class goes before the model": (
        {"size": 10, "crop_size": 8, "image_processor_type": "CLIPImageProcessorFast"},
        "deit", crop(10, 8, 1, 4),
    ),
    "a list is of both sides": (
        {"size": [10, 10], "crop_size": [8, 8], "do_center_crop": True, "resample": 3},
        "vit", SQUASHED,
    ),
    "a key decides about one number": (
        {"size": 10, "crop_size": 8, "default_to_square": True}, "clip", SQUASHED,
    ),
    "null is the default": ({"size": 10, "crop_size": 8, "do_center_crop": None}, "deit", SQUASHED),
}  # fmt: skip


@pytest.mark.parametrize("name", PREPARED)
def test_the_class_decides_how_pictures_are_resized(name):
    settings, model_type, wanted = PREPARED[name]
    np.testing.assert_array_equal(read(settings, model_type).pixels(PICTURE, 8), wanted)


def test_missing_keys_are_those_of_the_class():
    clip, vit = read({}, "clip", 224), read({}, "vit", 224)
    assert clip.mean == (0.48145466, 0.4578275, 0.40821073)
    assert (clip.fit, clip.filter, clip.resize) == ("crop", "bicubic", None)
    assert vit == Preprocessing(None, "squash", mean=(0.5,) * 3, std=(0.5,) * 3)


def test_pixels_are_scaled_in_float64_and_normalized_in_float32():
    settings = {"size": 8, "image_mean": [0.1, 0.2, 0.3], "image_std": 0.3, "rescale_factor": 0.007}
    scaled = (np.arange(192).reshape(8, 8, 3).astype(np.float64) * 0.007).astype(np.float32)
    wanted = (scaled - np.float32([0.1, 0.2, 0.3])) / np.float32(0.3)
    pixels = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    np.testing.assert_array_equal(read(settings).normalized(pixels), wanted)
    still = read({"size": 8, "do_rescale": False, "do_normalize": False})
    np.testing.assert_array_equal(still.normalized(pixels), pixels)


REFUSED = {
    "size is 10: the model reads 8 x 8": ({"size": 10}, "vit"),
    "size is 10: the short side, without a crop": ({"size": 10, "do_center_crop": False}, "clip"),
    r"size is \[10, 12\]: one number": (
        {"size": {"height": 10, "width": 12}, "crop_size": 8}, "deit",
    ),
    "size is .*longest_edge.*: one number": (
        {"size": {"shortest_edge": 10, "longest_edge": 20}, "crop_size": 8}, "clip",
    ),
    "size is 6: smaller than the crop": ({"size": 6, "crop_size": 8}, "deit"),
    "size is 50000: one number of pixels for both sides is needed, at most 4,096": (
        {"size": 50_000, "crop_size": 8}, "deit",
    ),
    "size is .*50000.*: allowed are 1 to 4,096": (
        {"size": {"shortest_edge": 50_000}, "crop_size": 8}, "clip",
    ),
    "size is true: one number": ({"size": True}, "vit"),
    r"size is \[8\]: one number": ({"size": [8]}, "vit"),
    "crop_size is 7: the model reads 8 x 8": ({"size": 10, "crop_size": 7}, "deit"),
    "crop_size is missing: the model reads": ({"size": 10, "do_center_crop": True}, "vit"),
    r"image_mean is \[0.4, 0.5\]: one number is needed for each channel, and there are 3": (
        {"size": 8, "image_mean": [0.4, 0.5]}, "vit",
    ),
    "image_std is 0.*: numbers above 0": ({"size": 8, "image_std": 0.0}, "vit"),
    "image_mean is .half.: a list of numbers": ({"size": 8, "image_mean": "half"}, "vit"),
    "resample is 6: allowed are 0 to 5": ({"size": 8, "resample": 6}, "vit"),
    "do_resize is false: only true": ({"size": 8, "do_resize": False}, "vit"),
    "do_pad is true: only false": ({"size": 8, "do_pad": True}, "vit"),
    "do_normalize is 1: true or false": ({"size": 8, "do_normalize": 1}, "vit"),
    "crop_pct is 0.9: no such setting": ({"size": 8, "crop_pct": 0.9}, "vit"),
    "auto_map is": ({"size": 8, "auto_map": {"AutoImageProcessor": "a.B"}}, "vit"),
    "image_processor_type is .ConvNextImageProcessor.: known are Beit": (
        {"image_processor_type": "ConvNextImageProcessor"}, "vit",
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_not_applied_is_refused_by_its_key(said):
    with pytest.raises(CheckpointError, match=f"config.json: {said}"):
        read(*REFUSED[said])


@pytest.mark.parametrize(
    "made",
    [
        Preprocessing(),
        Preprocessing(fit="squash", filter="bicubic", mean=(0.1, 0.2, 0.3)),
        Preprocessing(10, std=(0.2,), scale=1.0),
        Preprocessing(10, "squash", mean=(0.0,)),
    ],
)
def test_preprocessing_is_written_and_read(made):
    again = read(processor_fields(made, 8, 3))
    np.testing.assert_array_equal(made.pixels(PICTURE, 8), again.pixels(PICTURE, 8))
    np.testing.assert_array_equal(made.normalized(PICTURE), again.normalized(PICTURE))


def test_a_size_that_would_fill_the_memory_is_refused():
    with pytest.raises(ConfigError, match=r"preprocessing.resize is 4097: at most 4096"):
        Preprocessing(MAX_SIDE + 1)
