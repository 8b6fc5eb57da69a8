"""Hugging Face models of images where commands take a run."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import transformer_jax as tj
from tests.parity import layouts
from transformer_jax.core.errors import ArgumentError, CheckpointError, ConfigError
from transformer_jax.data.images.picture_store import Pictures
from transformer_jax.data.images.preprocessing import Preprocessing
from transformer_jax.inference.images import picture_batches
from transformer_jax.inference.pretrained import open_pretrained
from transformer_jax.interop.hf_run_directory import HFRunDirectory

NAMES = ("vit", "vit_bare")
HOW = {"do_normalize": True, "image_mean": [0.5, 0.5, 0.5], "size": {"height": 32, "width": 32}}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    for name in (*NAMES, "bert"):
        layouts.write(name, root / name)
    (root / "vit" / "preprocessor_config.json").write_text(json.dumps(HOW))
    return lambda name: root / name


@pytest.mark.parametrize("name", NAMES)
def test_describing_counts_every_parameter(published, run_command, name):
    code, out, err = run_command("describe", published(name))
    assert code == 0, err
    count = sum(array.size for array in layouts.weights(name).values())
    assert f": {count:,} parameters" in out[0]
    text = "\n".join(out)
    channels = layouts.LAYOUTS[name]["config"]["num_channels"]
    assert f"linear  8 × 8 × {channels} → 32, 16 patches" in text
    assert f"images [B, 32, 32, {channels}]" in text
    assert "One forward pass of 1 × 17 vectors of an image" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_becomes_a_run_and_goes_back_bit_by_bit(published, run_command, tmp_path, name):
    run, images = tmp_path / "run", jnp.asarray(layouts.inputs(name)["pixel_values"])
    code, _, err = run_command("convert", published(name), run)
    assert code == 0, err
    assert run_command("verify", run)[0] == 0
    described = [run_command("describe", path)[1][1:] for path in (published(name), run)]
    assert described[0] == described[1]
    given = jnp.moveaxis(images, 1, -1)
    outputs = [jax.jit(tj.load(path).model)(given) for path in (published(name), run)]
    np.testing.assert_array_equal(*outputs)
    for path in (published(name), run):
        out = tmp_path / f"from {path.name}"
        code, _, err = run_command("export", path, out)
        assert code == 0, err
        back, there = load_file(out / "model.safetensors"), layouts.weights(name)
        assert back.keys() == there.keys()
        for tensor, value in there.items():
            assert back[tensor].tobytes() == value.tobytes(), tensor
        assert json.loads((out / "config.json").read_text()) == layouts.LAYOUTS[name]["config"]
        how = out / "preprocessor_config.json"
        assert (json.loads(how.read_text()) == HOW) if name == "vit" else not how.exists()


@pytest.mark.parametrize(
    "command",
    ["generate", "translate", "score", "fill-mask", "attention"],
)
def test_commands_of_texts_name_the_one_of_images(published, run_command, tmp_path, command):
    (tmp_path / "text").write_text("a\n")
    more = [] if command == "translate" else [tmp_path / "text"]
    code, _, err = run_command(command, published("vit"), *more)
    assert code == 2
    assert re.search(r"an image model, which this command does not support: try .* classify ", err)
    assert len(err.strip().splitlines()) == 1


def test_a_model_of_words_is_no_model_of_images(published, tmp_path):
    with pytest.raises(ConfigError, match="a pre-trained encoder is bidirectional"):
        open_pretrained(published("bert"), "best", "image")
    with pytest.raises(CheckpointError, match="no such run directory"):
        open_pretrained(tmp_path / "nothing", "best", "image")
    (tmp_path / "config.json").write_text(json.dumps({"model": {"image": {"image_size": 0}}}))
    with pytest.raises(CheckpointError, match=r"it has no tokenizer\.json"):
        open_pretrained(tmp_path, "best", "image")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            {"image_size": 64},
            r"position_embeddings is \[1, 17, 32\], but \[1, 65, 32\] in",
            marks=pytest.mark.slow,
        ),
        ({"image_size": [32, 48]}, r"image_size is \[32, 48\]: a whole number"),
        ({"patch_size": 5}, "image.patch_size 5 does not divide image.image_size 32"),
        pytest.param(
            {"patch_size": 16},
            r"projection.weight is \[32, 3, 8, 8\], but \[32, 3, 16, 16\] in",
            marks=pytest.mark.slow,
        ),
        ({"num_channels": 1}, r"projection.weight is \[32, 3, 8, 8\], but \[32, 1, 8, 8\] in"),
        (
            {"image_size": 8 * 10**9},
            r"at most 65536 \(image_size 8000000000",
        ),
        ({"num_channels": 10**9}, "image.num_channels is 1000000000: at most 65536"),
        ({"image_size": 40_000}, "number of positions means 800,000,032 values, which exceed"),
        ({"num_channels": 60_000}, "patches means 122,880,000 values, which exceed"),
        ({"hidden_act": "evil"}, "hidden_act is .evil.: known are"),
        ({"problem_type": "regression"}, "problem_type is .regression.: only"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(published, tmp_path, change, said):
    folder = layouts.write("vit", tmp_path / "x")
    fields = layouts.LAYOUTS["vit"]["config"] | change
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=said) as error:
        open_pretrained(folder, "best", "image")
    assert "\n" not in str(error.value)


def test_floating_point_pixels_must_be_normalized():
    form = Pictures(4, 3, Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.25,)))
    pixels = np.random.default_rng(0).integers(0, 256, (1, 4, 4, 3), np.uint8)
    normal = form.preprocessing.normalized(pixels)
    for accepted in (pixels, normal, 3 * normal):
        [(batch, count)] = picture_batches(form, accepted)
        assert (batch.shape, count) == ((1, 4, 4, 3), 1)
    for raw in (pixels.astype(np.float32), pixels.astype(np.float64)[0]):
        with pytest.raises(ArgumentError, match=r"floating-point pixels up to 2\d\d, but normal"):
            list(picture_batches(form, raw))


def test_the_settings_of_a_processor_of_images_and_texts_are_read(tmp_path, capfd):
    folder = layouts.write("vit", tmp_path / "vit")
    settings = lambda: HFRunDirectory(folder).read_config()["published"]["preprocessor"]
    assert settings() is None
    assert "prepared with the defaults of ViT" in capfd.readouterr().err
    (folder / "preprocessor_config.json").write_text(json.dumps(HOW))
    both = folder / "processor_config.json"
    both.write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    assert settings() == HOW
    both.write_text(json.dumps({"image_processor": {**HOW, "resample": 3}}))
    assert settings() == {**HOW, "resample": 3}
    both.write_text(json.dumps({"image_processor": {**HOW, "crop_pct": 0.9}}))
    with pytest.raises(CheckpointError, match=r"processor_config.json: image_processor: crop_pct"):
        settings()


@pytest.mark.slow
def test_an_image_gets_what_it_gets_among_others(published):
    classify, encoder = tj.load(published("vit")), tj.load(published("vit_bare"))
    given = np.moveaxis(layouts.inputs("vit")["pixel_values"], 1, -1)
    assert classify(given[0]).label == classify(given)[0].label
    shape = (2, 32, 32, encoder.model.config.image.num_channels)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.testing.assert_allclose(encoder.embed(pixels[0]), encoder.embed(pixels)[0], atol=1e-4)


@pytest.mark.slow
def test_images_get_labels_and_vectors(published):
    classify, encoder = tj.load(published("vit")), tj.load(published("vit_bare"))
    given = np.moveaxis(layouts.inputs("vit")["pixel_values"], 1, -1)
    found = classify(given)
    logits = np.asarray(jax.jit(classify.model)(given))
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for one, row in zip(found, expected, strict=True):
        np.testing.assert_allclose(list(one.probabilities.values()), row, atol=1e-5)
        assert one.label == classify.labels[row.argmax()]
    channels = encoder.model.config.image.num_channels
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, channels), np.uint8)
    vectors = encoder.embed(pixels)
    hidden = jax.jit(encoder.model)(pixels.astype(np.float32) / 127.5 - 1)
    np.testing.assert_allclose(vectors, hidden[:, 0], atol=1e-4)
    with pytest.raises(ConfigError, match="without a classifier: use embed"):
        encoder(pixels)
    with pytest.raises(ConfigError, match=r"shape \[32, 32\]: must be \[B, height"):
        encoder.embed(pixels[0, :, :, 0])
