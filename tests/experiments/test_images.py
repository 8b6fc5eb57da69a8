"""Runs of image classifiers: from nothing and from published models, evaluated, used, exported."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

import transformer_jax as tj
from experiments import encoder_only
from tests.parity import layouts
from transformer_jax.cli.main import main
from transformer_jax.core.trees import flatten_dict
from transformer_jax.inference.pretrained import open_directory
from transformer_jax.runs.checkpoint_reader import load_params, load_parts
from transformer_jax.runs.metrics import read_metrics

SIZE = 8
SHORT = [
    "--training.steps", "12", "--training.batch-size", "16", "--loop.evaluate-every", "6",
    "--loop.checkpoint-every", "6", "--distributed.num-local-devices", "1",
    "--optimizer.schedule.warmup-steps", "2",
]  # fmt: skip
TINY = [
    "--model.d-model", "16", "--model.encoder-layers", "1", "--model.attention.num-heads", "2",
    "--model.feed-forward.d-ff", "16", "--model.image.stem-channels", "4",
]  # fmt: skip


def write_pictures(folder):
    """Bright and dark pictures of two sizes, in folders of their labels."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 8)):
        for label, level in (("dark", 40), ("bright", 200)):
            (folder / split / label).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(level, level + 50, (9 + i % 3, 12, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{i}.png")


@pytest.fixture(scope="module")
def pictures(shared):
    return shared("pictures", write_pictures)


def train(pictures, output, *more):
    command = ["train", *more, *SHORT, "--data.images", str(pictures), "--output", str(output)]
    assert encoder_only.main(command) == 0
    return output


FORM = ["--model.image.image-size", str(SIZE), "--model.image.num-channels", "3"]


@pytest.fixture(scope="module")
def run(pictures, shared):
    """A compact Transformer that tells bright pictures from dark ones."""
    more = ["digits", *TINY, *FORM, "--optimizer.learning-rate", "0.02"]
    return shared("image_run", lambda folder: train(pictures, folder, *more))


@pytest.mark.slow
def test_pictures_are_told_apart(run, pictures, tmp_path, capfd):
    results = json.loads((run / "results.json").read_text())
    assert results["scores"]["test"]["accuracy"] == 1.0
    assert results["scores"]["test"]["macro_f1"] == 1.0
    rows = read_metrics(run / "metrics.jsonl")
    assert {"valid_accuracy", "valid_top5_accuracy"} <= {name for row in rows for name in row}
    assert encoder_only.main(["evaluate", str(run), "--output", str(tmp_path / "a.json")]) == 0
    test = json.loads((tmp_path / "a.json").read_text())["test"]
    assert test == results["scores"]["test"]
    of = ["--data.images", str(pictures / "test")]
    assert encoder_only.main(["evaluate", str(run), *of, "--output", str(tmp_path / "b.json")]) == 0
    assert json.loads((tmp_path / "b.json").read_text())["data"] == test
    capfd.readouterr()
    files = [str(pictures / "test" / label / "1.png") for label in ("dark", "bright")]
    assert main(["classify", str(run), *files]) == 0
    assert [line.split("\t")[0] for line in capfd.readouterr().out.splitlines()] == [
        "dark", "bright"
    ]  # fmt: skip
    assert main(["verify", str(run)]) == 0
    predict = tj.load(run)
    found = predict(files)
    assert [one.label for one in found] == ["dark", "bright"]
    assert predict(files[0]).label == "dark"
    pixels = np.stack([predict.form.preprocessing.pixels(np.asarray(Image.open(file)), SIZE)
                       for file in files])  # fmt: skip
    assert [one.label for one in predict(pixels)] == ["dark", "bright"]
    np.testing.assert_allclose(predict.embed(files), predict.embed(pixels), atol=1e-6)
    for checkpoint in ("last", 6, "average:2"):  # as --checkpoint of the command
        capfd.readouterr()
        assert main(["classify", str(run), files[0], "--checkpoint", str(checkpoint)]) == 0
        shown = float(capfd.readouterr().out.split("\t")[1])
        assert abs(tj.load(run, checkpoint=checkpoint)(files[0]).probability - shown) < 1e-4
    vectors = str(tmp_path / "vectors.npz")
    assert main(["embed", str(run), str(pictures / "test" / "dark"), "--output", vectors]) == 0
    assert np.load(vectors)["vectors"].shape == (8, 16)


@pytest.mark.slow
def test_a_compact_transformer_has_no_published_form(run, tmp_path, capfd):
    assert main(["export", str(run), str(tmp_path / "hf")]) == 2
    assert "image.stem linear instead of convolutions" in capfd.readouterr().err


MISTAKES = [
    (["--data.images", "nowhere"], "nowhere: "),
    (["--task.labels", "a", "b"], "task.labels are read from the training pictures"),
    (["--model.positions.max-length", "9"], "model.positions.max_length is determined by the"),
    (["--model.image.num-channels", "2"], "model.image.num_channels is 2: pictures have 3, or 1"),
    (["--preprocessing.resize", "4"], "preprocessing.resize is 4: must be at least"),
    (["--preprocessing.mean", "0.1", "0.2"], "preprocessing.mean has 2 values: one is needed"),
    (["--augmentation.area", "0.5", "0.2"], "augmentation.area is .*: two shares in order"),
    (["--freeze", "encoder"], "freeze is given without init_from"),
    (["--tokenizer.kind", "bpe"], "train digits has no flag --tokenizer.kind"),
]


@pytest.mark.parametrize(("flags", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_mistakes_are_refused_in_a_line(pictures, tmp_path, flags, said, capfd):
    import re

    output = tmp_path / "run"
    given = ["--data.images", str(pictures), *flags]
    assert encoder_only.main(["train", "digits", *given, "--output", str(output)]) != 0
    [line] = [one for one in capfd.readouterr().err.splitlines() if "error: " in one]
    assert re.search(said, line)
    assert not output.exists()


@pytest.mark.slow
def test_a_truncated_picture_is_refused_before_the_first_step(pictures, tmp_path, capfd):
    copy = shutil.copytree(pictures, tmp_path / "pictures")
    bad = copy / "train" / "dark" / "3.png"
    bad.write_bytes(bad.read_bytes()[:-40])
    command = ["train", "digits", *TINY, *FORM, *SHORT, "--data.images", str(copy)]
    for more in ([], ["--data.read.decode-first", "False"]):
        output = tmp_path / f"run{len(more)}"
        assert encoder_only.main([*command, *more, "--output", str(output)]) != 0
        [line] = [one for one in capfd.readouterr().err.splitlines() if "error: " in one]
        assert "3.png: the picture is damaged or truncated" in line
        assert "unexpected" not in line


@pytest.mark.parametrize("layout", ["vit", "deit"])
@pytest.mark.slow
def test_a_run_starts_from_a_published_model(pictures, tmp_path, layout):
    """With another size of images and another head; frozen parts stay, and it goes back."""
    folder = layouts.write(layout, tmp_path / "published")
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"size": {"height": 36, "width": 36}, "do_center_crop": True,
                    "crop_size": {"height": 32, "width": 32}, "image_mean": [0.1, 0.2, 0.3]})
    )  # fmt: skip
    run = train(
        pictures, tmp_path / "run", "vit", "--init-from", str(folder), "--reinit-head",
        "--freeze", "encoder", "--model.image.image-size", "16",
    )  # fmt: skip
    config = json.loads((run / "config.json").read_text())
    assert config["preprocessing"]["resize"] == 18
    assert config["preprocessing"]["mean"] == [0.1, 0.2, 0.3]
    assert config["task"]["labels"] == ["bright", "dark"]
    before = flatten_dict(open_directory(folder).load_params().params)
    after, trained = flatten_dict(load_params(run, "best").params), load_parts(run, "last").params
    prefixes = 2 if layout == "deit" else 1
    assert after["encoder/positions/table"].shape == (prefixes + 4, 32)
    heads = {"labels", "distilled_labels"} if layout == "deit" else {"labels"}
    assert set(trained) == heads
    for name in before.keys() - {"encoder/positions/table"}:
        if not name.startswith(tuple(heads)):
            assert after[name].tobytes() == before[name].tobytes(), name
    assert main(["export", str(run), str(tmp_path / "hf")]) == 0
    files = sorted(map(str, (pictures / "test" / "dark").iterdir()))
    ours, theirs = (tj.load(path).probabilities(files) for path in (run, tmp_path / "hf"))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_a_head_of_another_size_is_refused(pictures, tmp_path, capfd):
    folder = layouts.write("vit", tmp_path / "published")
    given = ["--data.images", str(pictures), "--output", str(tmp_path / "run")]
    assert encoder_only.main(["train", "vit", "--init-from", str(folder), *given]) == 2
    assert "has a head of 5 labels, and this run needs 2: add --reinit-head" in (
        capfd.readouterr().err
    )
