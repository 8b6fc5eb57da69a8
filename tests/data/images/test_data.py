"""Folders, tables and arrays of pictures; bad ones are refused with file and line."""

import csv
import hashlib
import io
import json

import numpy as np
import pytest
from PIL import Image

from transformer_jax.cli.caption import Caption
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.images.data import (
    ImageData,
    ImageReadOptions,
    open_images,
    open_table,
    overlap,
)
from transformer_jax.data.images.folders import find_pictures
from transformer_jax.data.images.picture_sources import ArrayPictures
from transformer_jax.data.images.picture_store import Pictures, build_image_store
from transformer_jax.data.images.picture_tables import read_images
from transformer_jax.data.loader import prefetched
from transformer_jax.data.plan import ArrayPlan
from transformer_jax.recipes.captions import Captions
from transformer_jax.recipes.clip import Clip
from transformer_jax.recipes.images import Images

RNG = np.random.default_rng(0)
ALL = ImageReadOptions(validation_size=0.0)


def picture(path, size=(5, 7)):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def classes(tmp_path):
    for label in ("cat", "dog"):
        for i in range(10):
            picture(tmp_path / "pets" / label / f"{i}.png")
    (tmp_path / "pets" / ".DS_Store").write_bytes(b"")
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("no picture")
    return tmp_path / "pets"


def texts_of(table):
    return [(table.keys[row], text) for row, text in zip(table.rows, table.texts, strict=True)]


def test_folders_are_labels(classes):
    splits = open_images(ImageData(str(classes)))
    train, valid = splits.train, splits.valid
    assert sorted(texts_of(train) + texts_of(valid)) == sorted(
        (f"{label}/{i}.png", label) for label in ("cat", "dog") for i in range(10)
    )
    assert len(valid) == 2
    assert open_images(ImageData(str(classes))).valid.texts == valid.texts


def test_folders_of_splits(classes):
    root = classes.parent / "splits"
    for split in ("train", "val", "test"):
        classes.parent.joinpath("splits").mkdir(exist_ok=True)
        (root / split).symlink_to(classes)
    splits = open_images(ImageData(str(root)))
    assert [len(part) for part in (splits.train, splits.valid, splits.tests["test"])] == [20] * 3


def test_a_class_may_be_called_train(tmp_path):
    for label in ("train", "test"):
        for i in range(2):
            picture(tmp_path / label / f"{i}.png")
    splits = open_images(ImageData(str(tmp_path), read=ALL))
    assert (set(splits.train.texts), splits.tests) == ({"train", "test"}, {})


def test_evaluation_needs_one_split(classes):
    root = classes.parent / "splits"
    root.mkdir()
    for split in ("train", "test"):
        (root / split).symlink_to(classes)
    with pytest.raises(DataError, match=r"2 splits \(.*train, .*test\): name one of them"):
        open_table(str(root), ALL, "--data.images")
    assert len(open_table(str(root / "test"), ALL, "--data.images")) == 20


def test_pictures_of_tests_that_are_trained_on_are_counted(classes):
    other = classes.parent / "other" / "cat"
    other.mkdir(parents=True)
    picture(other / "new.png")
    for i in range(3):  # under other names
        (other / f"copy {i}.png").write_bytes((classes / "dog" / f"{i}.png").read_bytes())
    images = ImageData(str(classes), test=str(other.parent), read=ALL)
    said = f"{other.parent}: 3 of 4 pictures are also in the training data"
    assert open_images(images).overlaps == (said,)
    for path in other.glob("copy*"):
        path.unlink()
    # Bitmaps of one size that differ at the other end of the file alone.
    tall = np.zeros((64, 64, 3), np.uint8)
    for folder, shade in ((classes / "dog", 0), (other, 1)):
        tall[-1] = shade  # the first bytes: rows of bitmaps go upwards
        Image.fromarray(tall).save(folder / "tall.bmp")
    assert not open_images(images).overlaps
    pixels = RNG.integers(0, 256, (6, 3, 3), np.uint8)
    np.savez(classes.parent / "a.npz", x=pixels[:4], y=np.arange(4))
    np.savez(classes.parent / "b.npz", x=pixels[3:], y=np.arange(3))
    train, test = (read_images(str(classes.parent / f"{name}.npz")) for name in "ab")
    assert overlap(train, test).endswith("b.npz: 1 of 3 pictures are also in the training data")


def test_captions_and_labels_of_one_table(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "a.csv").write_text("file_name,label,caption\na.png,cat,a black cat\n")
    named = Captions().runs["captions"][1].data.read, Clip().runs["clip"][1].data.read
    wanted = {"a black cat": named, "cat": (Images().runs["vit"][1].data.read, ImageReadOptions())}
    for text, options in wanted.items():
        for read in options:
            assert open_table(str(tmp_path / "a.csv"), read, "").texts == [text]


def write_table(path, rows):
    if path.suffix == ".jsonl":
        lines = [json.dumps({"file_name": file, "caption": text}) for file, text in rows]
        path.write_text("\n".join(lines))
    else:
        with path.open("w", newline="") as file:
            tab = (
                {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
                if path.suffix == ".tsv"
                else {}
            )
            csv.writer(file, **tab).writerows([("file_name", "caption"), *rows])


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_tables_name_pictures_and_texts(tmp_path, ending):
    """A picture with several texts is one picture, and its texts are held out together."""
    wide = picture(tmp_path / "some" / "a.png")
    picture(tmp_path / "some" / "b.png")
    rows = [("some/a.png", "a cat, red"), ("some/b.png", 'a "dog"'), ("some/a.png", "again")]
    write_table(tmp_path / f"list.{ending}", rows)
    table = read_images(str(tmp_path / f"list.{ending}"))
    assert texts_of(table) == rows
    assert len(table.pictures) == 2
    squares = build_image_store(table.pictures, Pictures(5))
    np.testing.assert_array_equal(squares[0], wide[:, 1:6])
    splits = open_images(ImageData(str(tmp_path / f"list.{ending}")))
    assert not set(splits.train.rows.tolist()) & set(splits.valid.rows.tolist())


def test_lists_of_texts(tmp_path):
    picture(tmp_path / "a.png")
    line = {"file_name": "a.png", "caption": ["one", "two"]}
    (tmp_path / "metadata.jsonl").write_text(json.dumps(line))
    assert texts_of(read_images(str(tmp_path))) == [("a.png", "one"), ("a.png", "two")]


@pytest.mark.parametrize("grey", [False, True])
def test_arrays_have_labels(tmp_path, grey):
    pixels = RNG.integers(0, 256, (4, 6, 6) if grey else (4, 6, 6, 3), np.uint8)
    np.savez(tmp_path / "a.npz", x=pixels, y=np.array([[3], [1], [3], [0]]))
    np.save(tmp_path / "b.npy", pixels)
    (tmp_path / "b.txt").write_text("3\n1\n3\n0\n")
    for name in ("a.npz", "b.npy"):
        table = read_images(str(tmp_path / name))
        assert table.texts == ["3", "1", "3", "0"]
        store = build_image_store(table.pictures, Pictures(6))
        np.testing.assert_array_equal(
            store[2], np.broadcast_to(pixels[2].reshape(6, 6, -1), (6, 6, 3))
        )


@pytest.mark.parametrize("form", [Pictures(4), Pictures(4, channels=1)], ids=["rgb", "grey"])
def test_decoding_first_or_later_gives_the_same(classes, tmp_path, form):
    table = open_images(ImageData(str(classes), read=ALL)).train
    stores = [
        build_image_store(table.pictures, form, cache=tmp_path / "cache", decode=True),
        build_image_store(table.pictures, form, cache=tmp_path / "cache", decode=True),
        build_image_store(table.pictures, form, decode=True),
        build_image_store(table.pictures, form, decode=False),
    ]
    rows = np.array([3, -1, 0, 19])
    batches = [store.batch(rows) for store in stores]
    for batch in batches:
        np.testing.assert_array_equal(batch, batches[0])
    assert batches[0].shape == (4, 4, 4, form.channels)
    assert not batches[0][1].any()
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_threads_keep_the_order(classes):
    table = open_images(ImageData(str(classes), read=ALL)).train
    store, plan = build_image_store(table.pictures, Pictures(4), decode=False), ArrayPlan(20, 4)
    make = lambda items: store.batch(items)
    one, four = (list(prefetched(plan, make, start=2, stop=9, threads=n)) for n in (1, 4))
    np.testing.assert_array_equal(one, four)


def refused(path, message, **read):
    def store():
        splits = open_images(ImageData(str(path), read=ImageReadOptions(**read)))
        return build_image_store(splits.train.pictures, Pictures(4), decode=True)

    with pytest.raises((DataError, ConfigError), match=message) as caught:
        store()
    assert "\n" not in str(caught.value)


def test_bad_pictures_name_file_and_line(tmp_path):
    rows = [("a.png", "one"), ("b.png", "two")]
    write_table(tmp_path / "list.csv", rows)
    picture(tmp_path / "a.png")
    place = r"list.csv:3: \S*b.png: "
    refused(tmp_path / "list.csv", place + "No such file")
    (tmp_path / "b.png").write_text("no picture")
    refused(tmp_path / "list.csv", place + "no picture")
    picture(tmp_path / "b.png", (40, 40))
    refused(tmp_path / "list.csv", place + "40 x 40 pixels, but at most 1,000", max_pixels=1000)
    whole = (tmp_path / "b.png").read_bytes()
    (tmp_path / "b.png").write_bytes(whole[: len(whole) // 2])
    refused(tmp_path / "list.csv", place + "the picture is damaged or truncated")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "a.csv:1: no column of 'file_name', .* only none"),
        ("a.csv", "file,label\n", "a.csv: no pictures: it is empty"),
        ("a.csv", "file,label\na.png,\n", "a.csv:2: no text for a.png"),
        ("a.csv", "file,label\n,cat\n", "a.csv:2: no picture"),
        ("a.csv", "file,label\na.png\n", "a.csv:2: 1 column, but 2 are needed"),
        ("a.csv", 'file,label\n"a.png,cat\n', "a.csv:2: not CSV"),
        ("a.csv", "file,word\na.png,cat\n", "a.csv:1: no column of 'label'.* data.read.text"),
        (
            "a.csv",
            "file;label\na.png;cat\n",
            "a.csv:1: one column, 'file;label': .* commas",
        ),
        ("a.tsv", "file,label\na.png,cat\n", "a.tsv:1: one column, 'file,label': .* tabs"),
        ("a.jsonl", "{}", "a.jsonl:1: no field of 'file_name'"),
        ("a.jsonl", '{"file": 3, "label": "cat"}', "a.jsonl:1: field 'file' is a number"),
        ("a.npy", "no array", "a.npy: no .npy or .npz"),
        ("a.zip", "", "a.zip: pictures come from a folder"),
    ],
)
def test_bad_tables_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    refused(tmp_path / name, message)


def test_blanks_around_the_name_of_a_file_are_no_part_of_it(tmp_path):
    (tmp_path / "a.csv").write_text("file , label\n a.png , cat\na.png, dog\n")
    table = read_images(str(tmp_path / "a.csv"))
    assert (table.keys, table.texts, table.rows.tolist()) == (["a.png"], ["cat", "dog"], [0, 0])


def test_bad_folders_and_arrays_are_refused(tmp_path, classes):
    refused(tmp_path / "nowhere", "nowhere: no|nowhere")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "empty: no pictures: it has neither a folder")
    (classes / "bird").mkdir()
    refused(classes, "pets/bird: no pictures")
    np.save(tmp_path / "a.npy", np.zeros((3, 4, 4, 3), np.float32))
    refused(tmp_path / "a.npy", "a.npy: an array of float32")
    np.save(tmp_path / "a.npy", np.zeros((3, 4, 4, 3), np.uint8))
    (tmp_path / "a.txt").write_text("1\n2\n")
    refused(tmp_path / "a.npy", "a.txt: 2 texts for 3 pictures")
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 4, 4), np.uint8), names=np.array(["a", "b"]))
    refused(tmp_path / "a.npz", "no array of 'label'.* only 'images', 'names'")
    with pytest.raises(ConfigError, match="no training pictures"):
        open_images(ImageData())


def test_prepared_pictures_of_tfds(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("array_record.python.array_record_module")
    pixels = RNG.integers(0, 256, (6, 5, 5, 3), np.uint8)

    def generate(self, rows):
        for i in rows:
            file = io.BytesIO()
            Image.fromarray(pixels[i]).save(file, "PNG")
            yield i, {"image": io.BytesIO(file.getvalue()), "label": "dog" if i % 2 else "cat"}

    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(5, 5, 3)),
            "label": tfds.features.ClassLabel(names=["cat", "dog"]),
        }
    )
    body = {
        "VERSION": tfds.core.Version("1.0.0"),
        "_info": lambda self: self.dataset_info_from_configs(features=features),
        "_split_generators": lambda self, manager: {
            "train": self._generate_examples(range(4)), "test": self._generate_examples(range(4, 6))
        },
        "_generate_examples": generate,
        "name": "tiny_pictures",
        "__module__": __name__,
    }  # fmt: skip
    kind = type("TinyPictures", (tfds.core.GeneratorBasedBuilder,), body, skip_registration=True)
    kind(data_dir=str(tmp_path), file_format="array_record").download_and_prepare()
    splits = open_images(ImageData(tfds="tiny_pictures", tfds_dir=str(tmp_path), read=ALL))
    seen = []
    for part in (splits.train, splits.tests["test"]):
        store = build_image_store(part.pictures, Pictures(5))
        seen += [(store[i].tobytes(), text) for i, text in enumerate(part.texts)]
    assert sorted(seen) == sorted(
        (one.tobytes(), "dog" if i % 2 else "cat") for i, one in enumerate(pixels)
    )
    with pytest.raises(ConfigError, match=r"data.read.text image: tiny_pictures has"):
        open_images(
            ImageData(
                tfds="tiny_pictures", tfds_dir=str(tmp_path), read=ImageReadOptions(text="image")
            )
        )


def test_each_picture_counts_with_its_whole_digest():
    """Also where a digest holds zeros, which separate the fields of files."""
    array = np.arange(256, dtype=np.uint8).reshape(-1, 1, 1, 1)
    store = build_image_store(ArrayPictures(array, "grey.npy"), Pictures(1), decode=False)
    digests = [hashlib.sha256(picture.tobytes()).digest() for picture in array]
    assert any(b"\0" in digest for digest in digests)
    assert [part.tobytes() for part in store.parts()] == digests


def test_pictures_of_a_folder_are_those_of_its_subfolders_too(tmp_path):
    for name in ("b/z.PNG", "b/._z.png", "a.jpg", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [str(tmp_path / name) for name in ("a.jpg", "b/z.PNG")]
    assert find_pictures(str(tmp_path)) == found
    assert Caption(tmp_path, (str(tmp_path),)).given_pictures() == [("", path) for path in found]
    with pytest.raises(DataError, match="none: no such folder of pictures"):
        find_pictures(str(tmp_path / "none"))
