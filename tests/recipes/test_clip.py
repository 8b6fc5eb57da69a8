"""Two towers: trained, resumed, used, exported and started from again."""

import json
import shutil

import jax
import numpy as np
import pytest
from PIL import Image

import transformer_jax as tj
from transformer_jax.cli.main import main
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.images import captioned_pictures as captions
from transformer_jax.runs.run_directory import RunDirectory

pytestmark = pytest.mark.slow

SMALL = """--data.corpus scenes --data.corpus-size 40 --training.batch-size 16 --training.steps 4
--training.gradient-accumulation-steps 2 --loop.evaluate-every 100 --loop.checkpoint-every 2
--augmentation.crop shift --contrast.projection-dim 8
--model.d-model 16 --model.decoder-layers 1 --model.attention.num-heads 2
--model.feed-forward.d-ff 16 --model.positions.max-length 16
--encoder.d-model 16 --encoder.encoder-layers 1 --encoder.attention.num-heads 2
--encoder.feed-forward.d-ff 16 --encoder.image.image-size 48 --encoder.image.patch-size 16"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captions, "TEST_SCENES", 16)
        assert main(["train", "clip", "--output", str(path), *SMALL.split()]) == 0
    return path


def parameters(path):
    return jax.tree.leaves(RunDirectory.open(path).load_params("last").params)


def pixels():
    return np.random.default_rng(0).integers(0, 256, (2, 48, 48, 3)).astype(np.uint8)


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(run, tmp_path, monkeypatch):
    monkeypatch.setattr(captions, "TEST_SCENES", 16)
    again = shutil.copytree(run, tmp_path / "again")
    shutil.rmtree(again / "checkpoints" / "step_00000004")
    assert main(["resume", str(again)]) == 0
    for found, wanted in zip(parameters(again), parameters(run), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_an_export_gives_the_same_vectors(run, tmp_path):
    assert main(["export", str(run), str(tmp_path / "out"), "--format", "hf"]) == 0
    one, two = tj.load(run), tj.load(tmp_path / "out")
    texts = ["a small red circle", "two large blue squares"]
    np.testing.assert_array_equal(one.embed_texts(texts), two.embed_texts(texts))
    np.testing.assert_array_equal(one.embed_images(pixels()), two.embed_images(pixels()))


def test_texts_that_are_not_read_to_their_end_are_counted(run):
    model = tj.load(run)
    with pytest.warns(UserWarning, match="1 text was longer than the model reads, and truncated"):
        model.embed_texts(["a small red circle", "a small red circle " * 50])


def test_pictures_are_searched_and_labeled(run, tmp_path, capsys):
    for name, one in zip("ab", pixels(), strict=True):
        Image.fromarray(one).save(tmp_path / f"{name}.png")
    query = "a small red circle"
    clip = tj.load(run)
    worth = clip.embed_images([tmp_path / f"{n}.png" for n in "ab"]) @ clip.embed_texts(query)
    assert main(["semantic-search", str(run), "--images", str(tmp_path), query]) == 0
    first = capsys.readouterr().out.splitlines()[1]
    assert first == f"{worth.max():.4f}\t{tmp_path / 'ab'[worth.argmax()]}.png"
    found = clip(pixels()[0], ["red circle", "blue square"])
    assert abs(sum(found.probabilities.values()) - 1) < 1e-6
    picture = str(tmp_path / "a.png")
    assert main(["classify", str(run), picture, "--labels", "red circle", "blue square"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.split("\t")[0] in ("red circle", "blue square")
    assert main(["classify", str(run), str(tmp_path), "--labels", "red circle", "blue square"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == first  # the folder's pictures by their names


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["classify", "RUN", "a.png"], "give --labels"),
        (["semantic-search", "RUN", "texts.txt", "a query"], "--images FOLDER QUERY"),
        (["semantic-search", "RUN", "--images", "nowhere", "a query"], "nowhere"),
        (["semantic-search", "RUN", "--images", ".", ""], "the query is empty"),
        (["semantic-search", "RUN", "--images", ".", "  "], "the query is empty"),
        (
            ["semantic-search", "RUN", "--images", ".", "query", "--to", "de"],
            "--to is for",
        ),
        (["semantic-search", "RUN", "--images", ".", "query", "--from", "de"], "--from is for"),
        (["classify", "RUN", "a.png", "--labels", "red", ""], "labels: a label is empty"),
        (["train", "clip", "--data.corpus", "scenes", "--training.mode", "pmap"], "use jit"),
        (["train", "clip", "--data.corpus", "scenes", "--augmentation.mixup", "1"], "mixed"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(run, tmp_path, capsys, arguments, said):
    given = [str(run) if each == "RUN" else each for each in arguments]
    given += ["--output", str(tmp_path / "x")] if given[0] == "train" else []
    assert main(given) != 0
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in error
    assert "unexpected" not in error


def test_bad_pictures_come_at_once_or_are_left_out_by_name(run, tmp_path, capsys):
    folder, vectors = tmp_path / "pictures", tmp_path / "found.npz"
    folder.mkdir()
    for name, one in zip("ab", pixels(), strict=True):
        Image.fromarray(one).save(folder / f"{name}.png")
    for i in range(21):
        (folder / f"bad{i:02}.png").write_bytes(b"no picture")
    commands = {
        "semantic-search": [str(run), "--images", str(folder), "a red circle"],
        "classify": [str(run), str(folder), "--labels", "red circle", "blue square"],
        "embed": [str(run), str(folder), "--output", str(vectors)],
    }
    for name, arguments in commands.items():
        assert main([name, *arguments]) == 3
        out, err = capsys.readouterr()
        assert "pictures: 21 bad pictures: correct them, or leave out bad pictures with" in err
        assert err.count("bad") > 20
        assert "--skip-bad-pictures" in err
        assert "and 1 more" in err
        assert not out
    assert not vectors.exists()
    for name, arguments in commands.items():
        assert main([name, *arguments, "--skip-bad-pictures"]) == 0
        out, err = capsys.readouterr()
        assert f"{folder / 'bad20.png'} is left out" in err
        assert "pictures: 21 bad pictures left out" in err
        assert name == "embed" or len(out.splitlines()) == 2 + (name == "semantic-search")
    assert np.load(vectors)["vectors"].shape[0] == 2


def test_a_list_of_pictures_is_no_text(run, tmp_path, capsys):
    picture, listed = tmp_path / "a.png", tmp_path / "list.txt"
    Image.fromarray(pixels()[0]).save(picture)
    listed.write_text(f"a red circle\n{picture}\n")
    output = ["--output", str(tmp_path / "found.npz")]
    assert main(["embed", str(run), str(listed), *output]) == 3
    assert f"{listed}:2: {picture} is a picture, and lines" in capsys.readouterr().err
    assert not (tmp_path / "found.npz").exists()
    listed.write_text("a red circle\nnowhere.png\n")
    assert main(["embed", str(run), str(listed), *output]) == 0


def test_labels_are_refused_without_a_place_for_them(run):
    with pytest.raises(ConfigError, match="it needs"):
        tj.load(run)(pixels()[0], ["red"], template="a picture")


CAPTIONS = ("{} square", "one {} square", "a square, {}", "{}", "all is {}")


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_five_captions_of_a_picture_are_learnt_together(tmp_path, capsys, loss):
    """Their loss falls below ln 5, which it could not if they were negatives of each other."""
    lines = []
    for name, color in (("red", (255, 0, 0)), ("blue", (0, 0, 255)), ("green", (0, 255, 0))):
        Image.new("RGB", (48, 48), color).save(tmp_path / f"{name}.png")
        lines += [f"{name}.png\t{text.format(name)}" for text in CAPTIONS]
    table = tmp_path / "captions.tsv"
    table.write_text("\n".join(["file_name\tcaption", *lines]))
    small = SMALL.replace("--data.corpus scenes --data.corpus-size 40", "")
    small = small.replace("--training.steps 4", "--training.steps 60").replace("shift", "none")
    small = small.replace("--training.gradient-accumulation-steps 2", "")
    more = ["--data.images", str(table), "--data.valid", str(table), "--contrast.loss", loss]
    more += ["--optimizer.learning-rate", "1e-2", "--optimizer.schedule.warmup-steps", "0"]
    assert main(["train", "clip", "--output", str(tmp_path / "run"), *small.split(), *more]) == 0
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    last = [row for row in rows if "valid_accuracy" in row][-1]
    assert last["valid_accuracy"] == 1
    assert last["valid_loss"] < np.log(5) / 2
