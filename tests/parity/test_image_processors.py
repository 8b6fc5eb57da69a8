"""Random image processors: each gives the pixels that it gives in transformers, or is refused."""

import collections
import json
import os
import random

import numpy as np
import pytest
from PIL import Image

from transformer_jax.core.errors import CheckpointError
from transformer_jax.data.images.picture_sources import ArrayPictures
from transformer_jax.data.images.picture_store import ImageStore, Pictures
from transformer_jax.interop.image_processors import published_preprocessing
from transformer_jax.models.config import ImageConfig

pytestmark = [pytest.mark.parity, pytest.mark.slow]

SEED = os.environ.get("SWEEP_SEED", "0")
CASES = 700
CLASSES = ("Beit", "Bit", "Blip", "ChineseCLIP", "CLIP", "DeiT", "MobileNetV1", "Pvt", "Siglip",
           "ViT")  # fmt: skip
MODELS = ("vit", "deit", "clip", "siglip")
# Settings that are refused, though transformers applies or ignores them.
ODD = (
    {"do_resize": False},
    {"do_pad": True, "pad_size": {"height": 300, "width": 300}},
    {"use_square_size": True},
    {"do_flip_channel_order": True},
    {"crop_pct": 0.9},
    {"image_processor_type": "ConvNextImageProcessor"},
)


def draw_sides(draw, reads):
    """A size and a crop, in one of the forms in which folders have them."""
    side = draw.choice(
        [reads] * 4 + [reads + 1] * 4 + [reads + draw.randrange(2, 40)] * 8 + [reads - 3]
    )
    size = draw.choice((
        side,
        [side, side],
        {"shortest_edge": side},
        {"height": side, "width": side},
        {"shortest_edge": side},
        {"height": side, "width": side},
        {"height": side, "width": side + draw.choice((0, 0, 0, 1))},
    ))  # fmt: skip
    if draw.random() < 0.04:
        size = {"shortest_edge": side, "longest_edge": 2 * side}
    crop = draw.choice((reads, {"height": reads, "width": reads}, [reads, reads]))
    if draw.random() < 0.05:
        crop = {"height": reads, "width": reads + 1}
    made = {"size": size, "crop_size": crop, "do_center_crop": draw.random() < 0.85}
    return {name: made[name] for name in made if draw.random() < 0.9}


def draw_case(number):
    """Settings of a processor, the type and size of its model, and whether they are refused."""
    draw = random.Random(f"{SEED}/{number}")
    reads = draw.choice((32, 33, 224))
    settings = {} if reads == 224 and draw.random() < 0.3 else draw_sides(draw, reads)
    kind = draw.choice(CLASSES)
    form = draw.choice(("new", "new", "fast", "old", "none"))
    if form == "old":
        settings["feature_extractor_type"] = f"{kind}FeatureExtractor"
    elif form != "none":
        settings["image_processor_type"] = f"{kind}ImageProcessor{'Fast' * (form == 'fast')}"
    each = [round(draw.uniform(0.1, 0.9), 3) for _ in range(6)]
    numbers = lambda: draw.choice((each[:3], each[3:], 0.4, [0.5] * 3, each[:3], each[:2]))
    more = {
        "resample": draw.randrange(6),
        "do_normalize": draw.random() < 0.8,
        "do_rescale": draw.random() < 0.8,
        "rescale_factor": draw.choice((1 / 255, 1 / 127.5, 0.01)),
        "image_mean": numbers(),
        "image_std": numbers(),
        "default_to_square": draw.random() < 0.5,
        "do_convert_rgb": draw.random() < 0.7,
        "do_pad": None,
        "data_format": "channels_first",
        "_valid_processor_keys": ["size"],
    }
    settings |= {name: more[name] for name in more if draw.random() < 0.4}
    odd = draw.choice(ODD) if draw.random() < 0.08 else {}
    sides = settings.get("size")
    sides = list(sides.values()) if isinstance(sides, dict) else []
    return settings | odd, draw.choice(MODELS), reads, bool(odd) or len(set(sides)) > 1, draw


def read_theirs(folder, settings, model_type, picture):
    from transformers import AutoImageProcessor

    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    [pixels] = processor(Image.fromarray(picture))["pixel_values"]
    return np.moveaxis(np.asarray(pixels, np.float32), 0, -1)


def read_ours(settings, model_type, picture, reads):
    record = {"preprocessor": settings, "fields": {"model_type": model_type}}
    preprocessing = published_preprocessing(record, ImageConfig(reads, 1))
    store = ImageStore(ArrayPictures(picture[None], "a"), Pictures(reads, 3, preprocessing))
    return store.batch(np.array([0]))[0]


def test_random_processors_prepare_pictures_as_in_transformers(tmp_path):
    pytest.importorskip("torch", reason="compares with transformers")
    pytest.importorskip("transformers", reason="compares with transformers")
    counts: collections.Counter[str] = collections.Counter()
    classes = set()
    for number in range(CASES):
        settings, model_type, reads, odd, draw = draw_case(number)
        sides = draw.sample((draw.randrange(20, 50), draw.randrange(60, 90)), 2)
        picture = np.random.default_rng(number).integers(0, 256, (*sides, 3), np.uint8)
        case = f"SWEEP_SEED={SEED}, case {number}: {model_type} at {reads}: {settings}"
        try:
            theirs = read_theirs(tmp_path, settings, model_type, picture)
        except (ValueError, TypeError, KeyError, AttributeError):
            theirs = None
        ours, why = None, ""
        try:
            ours = read_ours(settings, model_type, picture, reads)
        except CheckpointError as error:
            why = str(error)
        if ours is not None:
            assert theirs is not None, case
            np.testing.assert_array_equal(ours, theirs, case)
            counts["equal"] += 1
            classes |= {name for name in settings.values() if str(name).startswith(CLASSES)}
            continue
        assert any(f": {name} is" in why for name in (*settings, "size", "crop_size")), case
        usable = theirs is not None and theirs.shape == (reads, reads, 3)
        assert odd or not usable or "smaller than the crop" in why, f"{case}: {why}"
        counts["refused, though transformers reads it" if usable else
               "refused, and so by transformers or its model"] += 1  # fmt: skip
    print(dict(counts))
    assert counts["equal"] >= 300
    assert classes >= {
        f"{name}{end}" for name in CLASSES for end in ("ImageProcessor", "FeatureExtractor")
    }
    assert counts["refused, though transformers reads it"] <= CASES // 6
