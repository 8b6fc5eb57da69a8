"""Settings that recipes of pictures have in common, and the pictures that are scored."""

import dataclasses

import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.images.preprocessing import Preprocessing
from transformer_jax.inference.images import pictures_of
from transformer_jax.models.image_config import ImageConfig
from transformer_jax.recipes.captions import CaptionRun, Captions
from transformer_jax.recipes.clip import Clip, ClipRun
from transformer_jax.recipes.given import settings_given
from transformer_jax.recipes.images import ImageRun, Images
from transformer_jax.recipes.pictures import scored_pictures

RECIPES = pytest.mark.parametrize(
    ("recipe", "run", "part"),
    [
        (Images(), ImageRun(), "model"),
        (Captions(), CaptionRun(), "encoder"),
        (Clip(), ClipRun(), "encoder"),
    ],
    ids=["images", "captions", "clip"],
)


@RECIPES
def test_settings_of_pictures_are_checked_before_data_are_read(recipe, run, part):
    recipe.check(run, None)
    config = getattr(run, part)
    image = dataclasses.replace(config.image, num_channels=2)
    two = dataclasses.replace(run, **{part: dataclasses.replace(config, image=image)})
    with pytest.raises(ConfigError, match=rf"{part}\.image\.num_channels is 2"):
        recipe.check(two, None)
    for prepare, said in (
        (Preprocessing(mean=(0.5, 0.5)), "preprocessing.mean has 2 values"),
        (Preprocessing(std=(0.5, 0.5)), "preprocessing.std has 2 values"),
        (Preprocessing(resize=8), "preprocessing.resize is 8: the model reads 224"),
    ):
        with pytest.raises(ConfigError, match=said):
            recipe.check(dataclasses.replace(run, preprocessing=prepare), None)


@RECIPES
def test_settings_that_would_be_ignored_are_refused(recipe, run, part):
    with (
        settings_given(frozenset({f"{part}.positions.max_length"})),
        pytest.raises(ConfigError, match="follows from the image"),
    ):
        recipe.check(run, None)
    with settings_given(frozenset({f"{part}.compute.dtype"})):
        if part == "model":
            recipe.check(run, None)
            return
        with pytest.raises(ConfigError, match=r"give model\.compute\.dtype"):
            recipe.check(run, None)


@RECIPES
def test_a_model_without_pictures_of_its_own_asks_for_some(recipe, run, part):
    """A Hugging Face folder names no data."""
    with pytest.raises(ConfigError, match="folder: has no test or validation pictures: give --dat"):
        scored_pictures(run, recipe.open_data, "folder")


def test_a_stored_run_reads_pictures_as_large_as_in_training():
    image, fields = ImageConfig(8, 4), {"preprocessing": {"resize": 9}}
    assert pictures_of(fields, image).max_pixels == 50_000_000
    fields["data"] = {"read": {"max_pixels": 7}}
    assert pictures_of(fields, image).max_pixels == 7
    assert pictures_of(fields, image).side == 9
