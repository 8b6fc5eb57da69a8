"""Nothing in folders and tables of pictures is dropped: it is read, counted or refused."""

import json
import os
import zipfile

import numpy as np
import pytest
from PIL import Image

from transformer_jax.core.errors import DataError
from transformer_jax.data.images.data import ImageData, ImageReadOptions, open_images, open_table
from transformer_jax.data.images.folders import find_pictures
from transformer_jax.data.images.picture_sources import PictureFiles, open_arrays
from transformer_jax.data.images.picture_store import Pictures, build_image_store
from transformer_jax.data.images.picture_tables import read_images
from transformer_jax.data.plan import ArrayPlan
from transformer_jax.recipes.tasks.picture_data import picture_data
from transformer_jax.runs.data_guard import refuse_changed_data
from transformer_jax.training.task import fingerprint

ALL = ImageReadOptions(validation_size=0.0)
SKIP = ImageReadOptions(validation_size=0.0, bad_rows="skip")


def picture(path, shade=90):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (5, 4), (shade, 0, 0)).save(path, "JPEG")


@pytest.fixture
def pets(tmp_path):
    for name in ("cat/a.jpg", "cat/b.jfif", "cat/old/c.JPE", "dog/d.jpeg"):
        picture(tmp_path / "pets" / name)
    for name in ("cat/old/notes.txt", "dog/e.avif", "stray.png", "dog/.hidden.png"):
        (tmp_path / "pets" / name).write_bytes(b"x")
    return tmp_path / "pets"


def test_folders_inside_class_folders_are_read_and_other_files_counted(pets, capfd):
    table = open_images(ImageData(str(pets), read=ALL)).train
    keys = ["cat/a.jpg", "cat/b.jfif", "cat/old/c.JPE", "dog/d.jpeg"]
    assert (table.keys, table.texts) == (keys, ["cat", "cat", "cat", "dog"])
    said = f"{pets}: 3 other files not read (.png 1, .txt 1, .avif 1), such as stray.png"
    assert said in capfd.readouterr().err
    (pets / "stray.png").unlink()
    assert find_pictures(str(pets)) == [str(pets / key) for key in keys]
    assert "2 other files not read (.txt 1, .avif 1)" in capfd.readouterr().err


def test_folders_beside_the_splits_are_counted(pets, tmp_path, capfd):
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train", "val", "extra"):
        (data / name).symlink_to(pets)
    open_images(ImageData(str(data), read=ALL))
    assert "1 other file not read (no suffix 1), such as extra" in capfd.readouterr().err


def test_labels_of_folders_are_prepared_as_other_labels(tmp_path):
    picture(tmp_path / "cafe\u0301" / "a.jpg")
    assert read_images(str(tmp_path)).texts == ["caf\u00e9"]


def test_links_are_followed_only_where_they_are_classes(pets, capfd):
    (pets / "cat" / "more").symlink_to(pets / "dog")
    (pets / "puppy").symlink_to(pets / "dog")
    table = read_images(str(pets))
    assert [key for key in table.keys if "d.jpeg" in key] == ["dog/d.jpeg", "puppy/d.jpeg"]
    assert "other files not read" in capfd.readouterr().err
    (pets / "puppy").unlink()
    (pets / "all").symlink_to(pets)
    with pytest.raises(DataError, match="all: a link to a folder that contains it"):
        read_images(str(pets))
    (pets / "all").unlink()
    (pets / "a").symlink_to(pets / "b")
    (pets / "b").symlink_to(pets / "a")
    for read in (read_images, lambda path: open_table(path, ALL, ""), find_pictures):
        with pytest.raises(DataError, match=r"pets/a: .*symbolic links: remove the link"):
            read(str(pets))


def test_names_that_are_not_utf8_are_refused(pets):
    os.mkdir(os.path.join(os.fsencode(pets), b"caf\xe9"))
    with pytest.raises(DataError, match=r"pets/caf\\xe9: the name is not UTF-8: rename it"):
        read_images(str(pets))
    with pytest.raises(DataError, match="not UTF-8"):
        find_pictures(str(pets))


def test_a_name_with_nul_is_no_file(tmp_path):
    with pytest.raises(DataError, match="the name holds NUL"):
        PictureFiles(["a\0b.png"])[0]
    (tmp_path / "a.jsonl").write_text(json.dumps({"image": "a\0b.png", "label": "cat"}))
    with pytest.raises(DataError, match=r"a.jsonl:1: field 'image' holds NUL"):
        read_images(str(tmp_path / "a.jsonl"))


SECOND = {
    "list": ('{"image": ["a.jpg", "b.jpg"], "label": "x"}', "holds 2 pictures, and one is needed"),
    "empty": ('{"image": [], "label": "x"}', "holds 0 pictures, and one is needed"),
    "key": ('{"image": "a.jpg", "image2": "b.jpg", "label": "x"}', "second picture, 'image2': "),
    "in a list": (
        '{"image": "a.jpg", "more": ["b.jpg"], "label": "x"}',
        "second picture, 'more'",
    ),
}


@pytest.mark.parametrize("name", SECOND)
def test_a_second_picture_is_refused(tmp_path, name):
    row, said = SECOND[name]
    (tmp_path / "a.jsonl").write_text(row)
    with pytest.raises(DataError, match=f"a.jsonl:1: .*{said}"):
        read_images(str(tmp_path / "a.jsonl"))


def test_a_second_column_of_pictures_is_refused_unless_one_is_named(tmp_path, capfd):
    for ending, cells in (("csv", ","), ("tsv", "\t")):
        path = tmp_path / f"a.{ending}"
        path.write_text(f"{cells.join(('image', 'mask', 'label'))}\n"
                        f"{cells.join(('a.jpg', 'b.png', 'cat'))}\n")  # fmt: skip
        with pytest.raises(DataError, match=r":2: a second picture, 'mask': name the one to read"):
            read_images(str(path))
        named = ImageReadOptions(image="image").columns
        assert read_images(str(path), named).keys == ["a.jpg"]
        assert f"a.{ending}: column not read: mask" in capfd.readouterr().err
    # Addresses of the same picture are no second one.
    row = {"file_name": "a.jpg", "coco_url": "http://x/a.jpg", "path": "a.jpg", "label": "cat"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    assert read_images(str(tmp_path / "a.jsonl")).keys == ["a.jpg"]


def damage(pets):
    """Twenty-five bad pictures: missing from the beginning of the file, or from its end."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(pets / "dog" / "cut.jpg")
    content = (pets / "dog" / "cut.jpg").read_bytes()
    for i in range(24):
        (pets / "dog" / f"{i:02}.jpg").write_bytes(b"no picture")
    (pets / "dog" / "cut.jpg").write_bytes(content[: len(content) * 2 // 3])


def test_bad_pictures_come_at_once_and_can_be_skipped(pets, capfd):
    damage(pets)
    with pytest.raises(DataError) as error:
        open_images(ImageData(str(pets), read=ALL))
    lines = str(error.value).splitlines()
    assert (
        "24 bad pictures: correct them, or leave out bad pictures with --data.read.bad-rows"
        in (lines[0])
    )
    assert len(lines) == 22
    assert lines[-1].endswith("and 4 more")
    table = open_images(ImageData(str(pets), read=SKIP)).train
    assert table.keys == ["cat/a.jpg", "cat/b.jfif", "cat/old/c.JPE", "dog/d.jpeg"]
    assert [table.where(i).rpartition("/")[2] for i in range(4)] == [
        key.rpartition("/")[2] for key in table.keys
    ]
    assert "25 bad pictures left out, such as" in capfd.readouterr().err
    for path in (pets / "dog").glob("[0-2]*"):
        path.unlink()
    # A cut file shows when it is decoded, and the message names the way out.
    table = open_images(ImageData(str(pets), read=ALL)).train
    with pytest.raises(DataError, match=r"cut.jpg: .*; or leave out bad pictures with"):
        build_image_store(table.pictures, Pictures(4))


def test_bad_rows_of_a_table_come_with_bad_pictures(pets, capfd):
    (pets / "cat" / "bad.jpg").write_bytes(b"no picture")
    rows = ["file_name,label", "cat/a.jpg,cat", "cat/bad.jpg,cat", "cat/none.jpg,cat",
            "dog/d.jpeg,", "cat/bad.jpg,dog", "s3://bucket/x.jpg,cat",
            "cat/b.jfif,cat,more"]  # fmt: skip
    (pets / "a.csv").write_text("\n".join(rows))
    with pytest.raises(DataError, match="6 bad rows") as error:
        open_images(ImageData(str(pets / "a.csv"), read=ALL))
    for said in (":3: ", ":4: ", ":5: no text for dog/d.jpeg", ":7: s3://bucket/x.jpg is on",
                 ":8: 3 columns", "and 1 more"):  # fmt: skip
        assert said in str(error.value)
    table = open_table(str(pets / "a.csv"), SKIP, "")
    assert (table.keys, table.texts, table.rows.tolist()) == (["cat/a.jpg"], ["cat"], [0])
    assert "6 bad rows left out" in capfd.readouterr().err


def test_small_files_do_not_unpack_to_large_arrays(tmp_path, monkeypatch):
    def write(name, array):
        np.savez_compressed(tmp_path / name, x=array, y=np.arange(2))
        return str(tmp_path / name)

    fine = write("fine.npz", np.zeros((2, 64, 64, 3), np.uint8))
    assert read_images(fine).texts == ["0", "1"]
    bomb = write("bomb.npz", np.zeros((2, 1000, 1000), np.uint8))
    monkeypatch.setattr("transformer_jax.core.numpy_files._MOST_UNPACKED", 1 << 20)
    with pytest.raises(DataError, match=r"bomb.npz: .*x.npy unpacks from .* to 2,000,128 bytes"):
        read_images(bomb)
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("x.npy", b"no array")
        archive.writestr("y.npy", b"no array")
    with pytest.raises(DataError, match=r"text.npz: no .npy or .npz file of numbers \(x.npy: "):
        read_images(str(tmp_path / "text.npz"))
    with open_arrays(fine) as arrays:
        assert sorted(arrays) == ["x", "y"]


def test_arrays_that_are_not_read_are_named(tmp_path, capfd):
    np.savez(tmp_path / "a.npz", x=np.zeros((1, 4, 4), np.uint8), y=np.arange(1), z=np.arange(3))
    read_images(str(tmp_path / "a.npz"))
    assert "a.npz: array not read: z" in capfd.readouterr().err


def test_changed_pictures_have_other_checksums_however_they_are_read(pets):
    """Size, path and time are the same: only the content tells."""

    def checksums():
        table = open_images(ImageData(str(pets), read=ALL)).train
        stores = [build_image_store(table.pictures, Pictures(4), decode=first)
                  for first in (True, False)]  # fmt: skip
        return [[part.tobytes() for part in store.parts()] for store in stores]

    before, path = checksums(), pets / "cat" / "a.jpg"
    times, content = path.stat(), path.read_bytes()
    picture(path, 200)
    assert len(path.read_bytes()) == len(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert all(was != now for was, now in zip(before, checksums(), strict=True))
    path.write_bytes(content)
    assert checksums() == before


def test_runs_of_earlier_versions_know_files_by_path_and_size(pets, tmp_path):
    """A run that began before pictures were compared by content can be resumed."""
    table = open_images(ImageData(str(pets), read=ALL)).train
    plan = ArrayPlan(4, 2)
    store = build_image_store(table.pictures, Pictures(4), decode=False)
    data = picture_data(plan, store.batch, store, lambda pictures: [table.rows, *pictures], 1)
    files = [f"{path}\0{os.stat(path).st_size}".encode() for path in table.pictures.paths]
    arrays = [table.rows, *(np.frombuffer(file, np.uint8) for file in files)]
    began = {"fingerprint": fingerprint(plan.fingerprint, arrays)}
    now, earlier = {"fingerprint": data.fingerprint}, data.earlier_fingerprints
    refuse_changed_data(tmp_path, began, now, earlier)
    refuse_changed_data(tmp_path, now, now, earlier)
    with pytest.raises(DataError, match="the training data have changed"):
        refuse_changed_data(tmp_path, {"fingerprint": "other"}, now, earlier)
