"""Data sets prepared in array_record are read without TensorFlow, and damage is never silent."""

import importlib
import json
import pathlib
import shutil
import sys
import time
import types

import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data import tfds
from transformer_jax.data.sources import PairData, ReadOptions, load_splits
from transformer_jax.data.tfds import find_prepared, open_translation

pytest.importorskip("tensorflow_datasets")
pytest.importorskip("array_record.python.array_record_module")

PAIRS = [(f"olá número {i} \u2028 é", f"hello number {i}") for i in range(40)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder of prepared data sets: tiny_translate, and the same with configurations."""
    import tensorflow_datasets as tfds

    def write(folder, name, config=None):
        language = tfds.features.Translation(languages=["en", "pt"])

        class Config(tfds.core.BuilderConfig):
            pass

        def info(self):
            keys = ("pt", "en") if config is None else None
            return self.dataset_info_from_configs(features=language, supervised_keys=keys)

        def splits(self, manager):
            parts = {"train": PAIRS[:30], "validation": PAIRS[30:34], "test": PAIRS[34:]}
            return {key: self._generate_examples(rows) for key, rows in parts.items()}

        def generate(self, rows):
            for i, (source, target) in enumerate(rows):
                yield i, {"pt": source, "en": target}

        body = {
            "VERSION": tfds.core.Version("1.0.0"),
            "_info": info,
            "_split_generators": splits,
            "_generate_examples": generate,
            "name": name,
            "__module__": __name__,
        }
        if config:
            body["BUILDER_CONFIGS"] = [Config(name=config)]
        kind = type(name, (tfds.core.GeneratorBasedBuilder,), body, skip_registration=True)
        kind(data_dir=str(folder), file_format="array_record").download_and_prepare()

    root = tmp_path_factory.mktemp("tfds")
    write(root, "tiny_translate")
    for config in ("pt_to_en", "pt_to_xx"):
        write(root, "tiny_many", config)
    return root


@pytest.fixture
def copied(prepared, tmp_path):
    return pathlib.Path(shutil.copytree(prepared, tmp_path / "copy"))


def test_all_pairs_of_all_splits_come_back(prepared):
    splits = load_splits(PairData(tfds="tiny_translate", tfds_dir=str(prepared)))
    for part, wanted in (
        (splits.train, PAIRS[:30]),
        (splits.valid, PAIRS[30:34]),
        (splits.tests["test"], PAIRS[34:]),
    ):
        assert sorted(zip(part.sources, part.targets, strict=True)) == sorted(wanted)
    assert "tensorflow" not in sys.modules


def test_the_direction_may_be_turned(prepared):
    read = ReadOptions(fields=("en", "pt"), lowercase=True)
    splits = load_splits(PairData(tfds="tiny_translate", tfds_dir=str(prepared), read=read))
    assert set(splits.train.sources) == {target for _, target in PAIRS[:30]}
    with pytest.raises(ConfigError, match=r"fields pt fr: tiny_translate has .*pt"):
        open_translation("tiny_translate", str(prepared), ("pt", "fr"))


def test_a_data_set_is_found_by_name_configuration_version_or_folder(prepared, monkeypatch):
    many = prepared / "tiny_many" / "pt_to_en" / "1.0.0"
    for name in ("tiny_many/pt_to_en", "tiny_many/pt_to_en:1.0.0"):
        assert find_prepared(name, str(prepared)) == many
    assert find_prepared("tiny_many/pt_to_en", str(many)) == many
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared))
    assert find_prepared("tiny_many/pt_to_en") == many
    # Without supervised keys the order is that of the data set.
    assert open_translation("tiny_many/pt_to_en").fields == ("en", "pt")
    with pytest.raises(DataError, match="name one: tiny_many/pt_to_en, tiny_many/pt_to_xx"):
        find_prepared("tiny_many", str(prepared))


def test_the_newest_version_is_taken_by_number(copied):
    base = copied / "tiny_translate"
    for version in ("1.9.0", "1.10.0"):
        shutil.copytree(base / "1.0.0", base / version)
    assert find_prepared("tiny_translate", str(copied)).name == "1.10.0"
    assert find_prepared("tiny_translate:1.9.0", str(copied)).name == "1.9.0"


@pytest.mark.parametrize("name", ["ted_hrlr_translate/pt_to_en", "tiny_translate:2.0.0", "no_such"])
def test_what_is_not_prepared_is_refused_at_once_with_the_command(prepared, name):
    began = time.monotonic()
    with pytest.raises(DataError) as error:
        load_splits(PairData(tfds=name, tfds_dir=str(prepared)))
    assert time.monotonic() - began < 5
    message = str(error.value)
    assert "\n" not in message
    assert f"not prepared in {prepared}" in message
    assert "file_format='array_record').download_and_prepare()" in message


def test_missing_packages_are_named_with_the_extra(prepared, monkeypatch):
    whole = importlib.import_module

    def without(name, *rest):
        if name == "tensorflow_datasets":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return whole(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(
        ConfigError, match=r"tensorflow_datasets\): `pip install 'transformer-jax\["
    ):
        open_translation("tiny_translate", str(prepared))


def as_tfrecord(folder):
    path = folder / "1.0.0" / "dataset_info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "fileFormat": "tfrecord"}))
    return path


@pytest.mark.parametrize("name", ["tiny_translate", "tiny_many/pt_to_en"])
def test_tfrecord_without_tensorflow_is_refused_with_the_line_that_mends_it(
    copied, monkeypatch, name
):
    monkeypatch.setattr("transformer_jax.data.tfds._has_tensorflow", lambda: False)
    as_tfrecord(copied / name)
    with pytest.raises(DataError, match="prepared as tfrecord, which needs TensorFlow") as error:
        open_translation(name, str(copied))
    message, elsewhere = str(error.value), str(copied / "array_record")
    assert f"tfds.builder({name!r}, data_dir={elsewhere!r}, file_format='array_record')" in message
    assert message.endswith(f"--data.tfds-dir {elsewhere}")
    assert "\n" not in message


def test_tfrecord_is_read_where_tensorflow_is(copied, monkeypatch):
    """TensorFlow itself is stood in for; what it gives are dictionaries of bytes."""
    rows = [{"pt": pt.encode(), "en": en.encode()} for pt, en in PAIRS[:30]]
    monkeypatch.setattr("transformer_jax.data.tfds._has_tensorflow", lambda: True)
    monkeypatch.setattr("transformer_jax.data.tfds._tensorflow_rows", lambda *_: iter(rows))
    as_tfrecord(copied / "tiny_translate")
    reader = open_translation("tiny_translate", str(copied))
    assert list(reader.rows("train")) == PAIRS[:30]
    rows.pop()
    with pytest.raises(DataError, match=r"29 records where dataset_info\.json has 30"):
        list(reader.rows("train"))
    rows[3] = {"pt": b"\xff", "en": b""}
    with pytest.raises(DataError, match="record 3 is not UTF-8"):
        list(reader.rows("train"))

    def broken(*_):
        yield rows[0]
        raise RuntimeError("corrupted record\nat 9")

    monkeypatch.setattr("transformer_jax.data.tfds._tensorflow_rows", broken)
    with pytest.raises(DataError, match=r"record 1 cannot be read \(corrupted record at 9\)"):
        list(reader.rows("train"))


def test_shards_are_read_one_after_another(monkeypatch):
    """TensorFlow would take their records in turns."""
    shards = [[1, 2], [3, 4], [5, 6]]

    class Builder:
        def as_dataset(self, *, split, shuffle_files, read_config):
            assert (split, shuffle_files) == ("train", False)
            in_turns = read_config.interleave_cycle_length != 1
            return [row for part in (zip(*shards) if in_turns else shards) for row in part]  # noqa: B905

    config = lambda **how: types.SimpleNamespace(**{"interleave_cycle_length": 16} | how)
    package = types.SimpleNamespace(ReadConfig=config, as_numpy=lambda rows: rows)
    monkeypatch.setattr(tfds, "_package", lambda: package)
    assert list(tfds._tensorflow_rows(Builder(), "train")) == [1, 2, 3, 4, 5, 6]


def test_a_damaged_description_is_named(copied):
    path = copied / "tiny_translate" / "1.0.0" / "dataset_info.json"
    for content in ("{", "[]", ""):
        path.write_text(content)
        with pytest.raises(DataError, match=r"dataset_info\.json: cannot be read"):
            open_translation("tiny_translate", str(copied))


def read_all(root):
    reader = open_translation("tiny_translate", str(root))
    return [pair for split in reader.splits for pair in reader.rows(split)]


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_t3_a_cut_shard_is_never_silently_shorter(copied, share):
    shard = next((copied / "tiny_translate" / "1.0.0").glob("*train.array_record*"))
    data = shard.read_bytes()
    shard.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(DataError, match=r"train.* prepare the data set again") as error:
        read_all(copied)
    assert "\n" not in str(error.value)


def test_t3_a_whole_shard_with_other_records_is_told_by_their_number(copied):
    folder = copied / "tiny_translate" / "1.0.0"
    train, other = (next(folder.glob(f"*{part}.array_record*")) for part in ("train", "test"))
    shutil.copy(other, train)
    with pytest.raises(DataError, match=r"train.*: 6 records where dataset_info\.json has 30"):
        read_all(copied)


def test_t3_a_missing_shard_is_named(copied):
    shard = next((copied / "tiny_translate" / "1.0.0").glob("*train.array_record*"))
    shard.unlink()
    with pytest.raises(DataError, match=r"train.*the shard is missing"):
        read_all(copied)


@pytest.mark.parametrize("seed", range(20))
def test_t3_a_flipped_bit_is_noticed_or_harmless(copied, seed):
    shard = next((copied / "tiny_translate" / "1.0.0").glob("*train.array_record*"))
    data = bytearray(shard.read_bytes())
    # The file is padded to blocks with what no record uses: flip within what is not zero.
    used = [i for i, byte in enumerate(data) if byte]
    data[used[len(used) * seed // 20]] ^= 1 << seed % 8
    shard.write_bytes(data)
    try:
        found = read_all(copied)
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert sorted(found) == sorted(PAIRS)
