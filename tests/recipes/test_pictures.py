"""Settings that recipes of pictures have in common, and the pictures that are scored."""

import dataclasses

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.images.augmentation import Augmentation
from transformer_jax.data.images.captioned_pictures import scenes_table
from transformer_jax.data.images.data import ImageSplits
from transformer_jax.data.images.preprocessing import Preprocessing
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.inference.images import pictures_of
from transformer_jax.models.config import ImageConfig, TransformerConfig
from transformer_jax.models.presets import vit
from transformer_jax.recipes.captions import CaptionRun, Captions
from transformer_jax.recipes.clip import Clip, ClipRun
from transformer_jax.recipes.explicit_settings import Given
from transformer_jax.recipes.images import ImageRun, Images
from transformer_jax.recipes.pictures import scored_pictures
from transformer_jax.recipes.start_labels import as_in_start
from transformer_jax.recipes.tasks.caption_task import CaptionBatches, PictureSettings, captioning
from transformer_jax.recipes.tasks.contrast_task import Towers, contrast
from transformer_jax.recipes.tasks.image_task import ImageBatching, image_classification

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
    recipe.check(run, Given(run))
    config = getattr(run, part)
    image = dataclasses.replace(config.image, num_channels=2)
    two = dataclasses.replace(run, **{part: dataclasses.replace(config, image=image)})
    with pytest.raises(ConfigError, match=rf"{part}\.image\.num_channels is 2"):
        recipe.check(two, Given(run))
    for prepare, said in (
        (Preprocessing(mean=(0.5, 0.5)), "preprocessing.mean has 2 values"),
        (Preprocessing(std=(0.5, 0.5)), "preprocessing.std has 2 values"),
        (Preprocessing(resize=8), "preprocessing.resize is 8: must be at least"),
    ):
        with pytest.raises(ConfigError, match=said):
            recipe.check(dataclasses.replace(run, preprocessing=prepare), Given(run))


@RECIPES
def test_settings_that_would_be_ignored_are_refused(recipe, run, part):
    given = Given(run, frozenset({f"{part}.positions.max_length"}))
    with pytest.raises(ConfigError, match="is determined by the image"):
        recipe.check(run, given)
    given = Given(run, frozenset({f"{part}.compute.dtype"}))
    if part == "model":
        recipe.check(run, given)
        return
    with pytest.raises(ConfigError, match=r"give model\.compute\.dtype"):
        recipe.check(run, given)


@RECIPES
def test_a_model_without_pictures_of_its_own_asks_for_some(recipe, run, part):
    """A Hugging Face folder names no data."""
    with pytest.raises(ConfigError, match="folder: no test or validation pictures: give --dat"):
        scored_pictures(run, recipe.data, "folder")


def test_a_stored_run_reads_pictures_as_large_as_in_training():
    image, fields = ImageConfig(8, 4), {"preprocessing": {"resize": 9}}
    assert pictures_of(fields, image).max_pixels == 50_000_000
    fields["data"] = {"read": {"max_pixels": 7}}
    assert pictures_of(fields, image).max_pixels == 7
    assert pictures_of(fields, image).side == 9


def task(name, splits, change):
    """A task of eight pictures a batch."""
    image, text = vit(8, 1, image_size=48, patch_size=16), TransformerConfig(d_model=8)
    if name == "images":
        batching = ImageBatching(8)
        return image_classification(splits, image, augmentation=change, batching=batching)
    tokenizer = train_tokenizer("characters", splits.train.texts)
    if name == "clip":
        towers = Towers(image, text)
        return contrast(splits, towers, tokenizer, augmentation=change, batching=ImageBatching(8))
    pictures = PictureSettings(augmentation=change)
    batches = CaptionBatches(8)
    return captioning(splits, image, text, tokenizer, pictures=pictures, batches=batches)


@pytest.mark.parametrize("name", ["images", "captions", "clip"])
def test_pictures_are_changed_at_random_in_training_alone(name):
    """Each validation picture is there once, as it is."""
    table = scenes_table("train", 11)
    splits = ImageSplits(table, table.select(range(11), "valid"))
    made = task(name, splits, Augmentation(flip=True, erase=1.0))

    def pictures(data, step):
        batch = data.make_batch(data.plan.batch(step))
        return np.asarray(batch["images"] if "images" in batch else batch["inputs"]["images"])

    valid = made.valid["valid"]
    assert valid.plan.steps_per_epoch == 2
    seen = np.concatenate([pictures(valid, step) for step in range(2)])
    wanted = Preprocessing().normalized(table.pictures.array)
    np.testing.assert_array_equal(seen[:11], wanted)
    assert not seen[11:].any()
    plain = {one.tobytes() for one in wanted}
    assert not any(one.tobytes() in plain for one in pictures(made.train, 0))


def test_labels_of_the_same_names_keep_their_rows(capfd):
    def order(*labels):
        return as_in_start("x", ("cat", "dog", "fox"), labels, "--reinit-head")

    assert order("cat", "dog", "fox") == ("cat", "dog", "fox")
    assert not capfd.readouterr().err
    assert order("ant", "cat", "dog") == ("cat", "dog", "ant")
    assert "other labels of x: ant from fox; --reinit-head" in capfd.readouterr().err
    assert order("ant", "bee", "fox") == ("ant", "bee", "fox")
    with pytest.raises(ConfigError, match="has a head of 3 labels"):
        order("ant", "bee")
