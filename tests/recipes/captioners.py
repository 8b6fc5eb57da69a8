"""A small captioner, and the pictures that it is trained on."""

import csv

from PIL import Image

from transformer_jax.cli.main import main

SIZES = [
    *("--encoder.image.image-size", "8", "--encoder.image.patch-size", "4"),
    *("--encoder.d-model", "16", "--encoder.encoder-layers", "1"),
    *("--encoder.attention.num-heads", "2", "--encoder.feed-forward.d-ff", "16"),
]
DECODER = [
    *("--model.d-model", "12", "--model.decoder-layers", "1"),
    *("--model.attention.num-heads", "2", "--model.feed-forward.d-ff", "16"),
    *("--model.positions.max-length", "40"),
]
FEW = [
    *("--distributed.num-local-devices", "1", "--training.steps", "4", "--training.batch-size"),
    *("4", "--training.sequence-length", "32", "--loop.evaluate-every", "2"),
    *("--loop.checkpoint-every", "2", "--evaluation.captions", "2", "--evaluation.num-beams", "1"),
    *("--tokenizer.kind", "characters", "--data.read.validation-size", "0.2"),
]


def table(folder, count=10):
    """A table of pictures of one color each; the first two have a second caption."""
    folder.mkdir(parents=True)
    rows = [("file_name", "caption")]
    for i in range(count):
        color = ("red", "green", "blue")[i % 3]
        Image.new("RGB", (9 + i, 12), color).save(folder / f"{i}.png")
        rows.append((f"{i}.png", f"it is {color}"))
    rows += [(f"{i}.png", "a picture") for i in range(2)]
    with (folder / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


def train(folder, pictures):
    """Trains a captioner on a :func:`table`."""
    flags = ["train", "captions", "--data.images", str(pictures), *SIZES, *DECODER, *FEW]
    assert main([*flags, "--data.test", str(pictures), "--output", str(folder)]) == 0
