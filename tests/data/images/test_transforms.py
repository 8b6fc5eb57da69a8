"""Sizes and random changes of pictures, compared with plain forms."""

import numpy as np
import pytest
from PIL import Image

from transformer_jax.data.images.augmentation import (
    OPERATIONS,
    Augmentation,
    KeyedPlan,
    random_augment,
    random_erase,
)
from transformer_jax.data.images.transforms import (
    centre_crop,
    flip,
    random_resized_crop,
    resize_to,
    shifted_crop,
    split,
)
from transformer_jax.data.plan import ArrayPlan

PICTURE = np.random.default_rng(0).integers(0, 256, (12, 20, 3), np.uint8)
SQUARE = PICTURE[:, :12]


@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_resizing_is_pillows(fit):
    picture = Image.fromarray(PICTURE)
    if fit == "squash":
        wanted = picture.resize((8, 8), Image.Resampling.BILINEAR)
    else:
        wanted = picture.resize((13, 8), Image.Resampling.BILINEAR).crop((2, 0, 10, 8))
    np.testing.assert_array_equal(resize_to(PICTURE, 8, fit), wanted)


def test_a_key_decides_everything():
    """The same key gives the same picture, and other keys others, for every change."""
    change = Augmentation("resized", flip=True, operations=2, strength=0.5, erase=0.5)
    seen = {change(PICTURE, key, 8).tobytes() for key in range(20)}
    assert len(seen) > 15
    assert change(PICTURE, 7, 8).tobytes() == change(PICTURE.copy(), 7, 8).tobytes()


def test_shifts_and_flips_are_uniform():
    keys = split(0, 400)
    marked = np.zeros((9, 9, 1), np.uint8)
    marked[4, 4] = 1
    places = [tuple(np.argwhere(shifted_crop(marked, key, 1)[..., 0])[0]) for key in keys]
    counts = [places.count((y, x)) for y in (3, 4, 5) for x in (3, 4, 5)]
    assert len(places) == sum(counts)
    assert min(counts) > 25
    mirrored = sum(np.array_equal(flip(SQUARE, key), SQUARE[:, ::-1]) for key in keys)
    assert 160 < mirrored < 240


def test_parts_have_the_wanted_area():
    """A picture whose pixels tell their place shows the bounds of a part."""
    y, x = np.mgrid[:64, :64].astype(np.uint8)
    place = np.stack([y, x, x], axis=-1)
    shares = []
    for key in split(1, 100):
        part = random_resized_crop(place, key, 64, (0.25, 0.5)).astype(int)
        height, width = (part[..., i].max() - part[..., i].min() + 1 for i in (0, 1))
        shares.append(height * width / 64**2)
        assert 0.70 < width / height < 1.43
    assert min(shares) > 0.22
    assert max(shares) < 0.53
    assert np.std(shares) > 0.05


@pytest.mark.parametrize("channels", [1, 3])
def test_every_operation_of_randaugment_runs(channels):
    picture = Image.fromarray(SQUARE if channels == 3 else SQUARE[..., 0])
    for name, (largest, signed, operation) in OPERATIONS.items():
        for value in (0.0, largest, -largest if signed else largest / 2):
            changed = operation(picture, value)
            assert changed.size == picture.size
            assert changed.mode == picture.mode, name
    pixels = SQUARE[..., :channels]
    assert random_augment(pixels, 3, 4, 1.0).shape == pixels.shape


def test_without_strength_most_operations_change_nothing():
    still = [name for name, (largest, _, _) in OPERATIONS.items() if largest]
    picture = Image.fromarray(SQUARE)
    for name in still:
        np.testing.assert_array_equal(OPERATIONS[name][2](picture, 0.0), SQUARE, name)


def test_a_rectangle_is_erased():
    erased = np.array(
        [(random_erase(SQUARE, key, 1.0) != SQUARE).any(-1).mean() for key in range(50)]
    )
    assert erased.min() > 0
    assert erased.max() < 0.45
    assert np.array_equal(random_erase(SQUARE, 0, 0.0), SQUARE)


def test_keys_follow_the_row_and_the_step():
    plan = KeyedPlan(ArrayPlan(10, 4), seed=3)
    batch = plan.batch(5)
    some = batch.select(np.array([1, 3]))
    np.testing.assert_array_equal(some.keys, batch.keys[[1, 3]])
    np.testing.assert_array_equal(some.items, batch.items[[1, 3]])
    assert not set(batch.keys.tolist()) & set(plan.batch(6).keys.tolist())


def test_a_long_strip_is_resized_in_its_middle_alone():
    """All of this one would need 45 GB."""
    strip = np.full((1, 300_000, 3), 7, np.uint8)
    strip[:, 150_000:] = 9
    for picture in (strip, strip.swapaxes(0, 1)):
        square = resize_to(picture, 224)
        assert square.shape == (224, 224, 3)
        assert set(np.unique(square)) <= {7, 8, 9}


@pytest.mark.parametrize("filter", ["nearest", "bilinear", "hamming"])
def test_the_middle_of_a_strip_is_that_of_the_whole(monkeypatch, filter):
    strip = np.random.default_rng(1).integers(0, 256, (5, 300, 3), np.uint8)
    for picture in (strip, strip.swapaxes(0, 1)):
        wanted = resize_to(picture, 13, filter=filter, read=8).astype(int)
        with monkeypatch.context() as patch:
            patch.setattr("transformer_jax.data.images.transforms._MOST_RESIZED", 13 * 13)
            part = resize_to(picture, 13, filter=filter, read=8)
        assert np.abs(part - wanted).max() <= 1


@pytest.mark.parametrize("side", range(8, 13))
@pytest.mark.parametrize("length", range(20, 24))
def test_a_crop_of_a_crop_is_the_crop(side, length):
    """The center of a square, as random changes keep it, is the center of the picture."""
    line = np.arange(length * side, dtype=np.uint8).reshape(side, length, 1)
    square = resize_to(line, side, read=8)
    assert square.shape == (side, side, 1)
    np.testing.assert_array_equal(centre_crop(square, 8, 8), centre_crop(line, 8, 8))
