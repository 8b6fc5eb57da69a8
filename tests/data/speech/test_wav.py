"""Headers of WAV files: sizes that a pipe left open, and values that no recording has."""

import io
import re
import struct
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

from tests.data.speech.test_audio import SIGNAL, SMALL, floating, pcm
from transformer_jax.core.errors import DataError
from transformer_jax.data.speech.audio import AudioConfig, resampled
from transformer_jax.data.speech.features import decode_features
from transformer_jax.data.speech.wav import read_wav

OPEN = [0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0x80000000, 0xFFFFFFFF - 36]
TAG = b"LIST" + struct.pack("<I", 4) + b"INFO"


def header(content, **fields):
    """The file with other fields in its header, at the places of one without further chunks."""
    places = {"riff": (4, "I"), "kind": (20, "H"), "channels": (22, "H"), "rate": (24, "I")}
    places |= {"frame": (32, "H"), "bits": (34, "H"), "data": (40, "I")}
    changed = bytearray(content)
    for name, value in fields.items():
        at, form = places[name]
        struct.pack_into("<" + form, changed, at, value)
    return bytes(changed)


@pytest.mark.parametrize("riff", [*OPEN, 36])
@pytest.mark.parametrize("data", OPEN)
def test_sizes_that_a_pipe_left_open_reach_to_the_end(riff, data):
    content = pcm(SIGNAL, 16)
    expected = read_wav(io.BytesIO(content), "a.wav")
    samples, rate = read_wav(io.BytesIO(header(content, riff=riff, data=data)), "a.wav")
    np.testing.assert_array_equal(samples, expected.samples)
    assert rate == expected.rate
    # A writer that was stopped leaves half a sample.
    cut = read_wav(io.BytesIO(header(content, riff=riff, data=data)[:-1]), "a.wav").samples
    np.testing.assert_array_equal(cut, expected.samples[:-1])


def test_ffmpegs_tag_before_open_sizes_is_passed_over():
    content = header(pcm(SIGNAL, 16), riff=0xFFFFFFFF, data=0xFFFFFFFF)
    tagged = content[:36] + TAG + content[36:]
    assert len(read_wav(io.BytesIO(tagged), "a.wav").samples) == len(SIGNAL)


@pytest.mark.parametrize("content", [pcm(SIGNAL, 16), pcm(0 * SIGNAL, 16)])
def test_samples_behind_a_size_of_0_are_read_whatever_they_are(content):
    for riff in (len(content) - 8, 36, 0):
        samples, _ = read_wav(io.BytesIO(header(content, riff=riff, data=0)), "a.wav")
        assert len(samples) == len(SIGNAL)


@pytest.mark.parametrize("behind", [b"", TAG, TAG + TAG])
def test_no_samples_are_none(behind):
    """A size of 0 is true if the file ends there, or with chunks that are no samples."""
    empty = pcm(SIGNAL[:0], 16) + behind
    for riff in (len(empty) - 8, 36):
        assert len(read_wav(io.BytesIO(header(empty, riff=riff)), "a.wav").samples) == 0


def test_the_size_of_a_large_file_stands_apart():
    content = pcm(SIGNAL, 16)
    apart = b"ds64" + struct.pack("<IQQQI", 28, len(content), 2 * len(SIGNAL), len(SIGNAL), 0)
    large = b"RF64" + b"\xff" * 4 + b"WAVE" + apart + header(content, data=0xFFFFFFFF)[12:] + TAG
    np.testing.assert_array_equal(
        read_wav(io.BytesIO(large), "a.wav").samples, read_wav(io.BytesIO(content), "a").samples
    )


@pytest.mark.parametrize("bits", [16, 24, 32])
def test_big_endian_samples_are_the_same(bits):
    content = pcm(SIGNAL, bits)
    sizes = struct.pack(">I", len(content) - 8), struct.pack(">I", len(content) - 44)
    form = struct.pack(">HHIIHH", *struct.unpack("<HHIIHH", content[20:36]))
    width = bits // 8
    data = np.frombuffer(content[44:], np.uint8).reshape(-1, width)[:, ::-1].tobytes()
    big = b"RIFX" + sizes[0] + b"WAVEfmt \0\0\0\x10" + form + b"data" + sizes[1] + data
    np.testing.assert_array_equal(
        read_wav(io.BytesIO(big), "a.wav").samples, read_wav(io.BytesIO(content), "a").samples
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rate": 0}, "0 samples a second"),
        ({"channels": 0}, "0 channels, and 1 to 64 are read"),
        ({"channels": 65_535, "frame": 65_535, "bits": 8}, "65,535 channels, and 1 to 64"),
        ({"frame": 0}, "0 bytes for 1 samples of 16 bits"),
        ({"bits": 0}, "2 bytes for 1 samples of 0 bits"),
        ({"bits": 8}, "2 bytes for 1 samples of 8 bits"),
        ({"frame": 9, "bits": 65}, "samples of 65 bits"),
        ({"kind": 7}, "samples of format 0x0007, neither PCM nor floating point"),
        ({"kind": 3}, "samples of 16 bits"),
        ({"data": 3202}, "3,202 bytes of samples by its header, and 3,200 are there"),
    ],
)
def test_a_header_that_no_recording_has_is_refused(fields, message):
    with pytest.raises(DataError, match=rf"a\.wav: no WAV file .*{re.escape(message)}"):
        read_wav(io.BytesIO(header(pcm(SIGNAL, 16), **fields)), "a.wav")


@pytest.mark.parametrize("rate", [1, 7, 499, 512_001, 100_000_007, 2**31 - 1, 2**32 - 1])
@pytest.mark.parametrize("content", [pcm(np.zeros(160_000), 8), floating(np.zeros(2), 32)])
def test_a_rate_of_no_recording_is_refused_at_once(rate, content):
    audio = AudioConfig(sample_rate=8000, num_mels=8, resample=True)
    start = time.process_time()
    with pytest.raises(DataError, match=rf"a\.wav: {rate:,} samples? a second by its header"):
        decode_features(header(content, rate=rate), ".wav", audio, "a.wav")
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("rate", "wanted", "message"),
    [
        (499_979, 16_000, "499,979 samples a second have too small a common measure with 16,000"),
        (500, 8000, "100,000,000 samples, 500 a second by its header, would be 1,600,000,000"),
    ],
)
def test_what_takes_gigabytes_to_resample_is_refused(rate, wanted, message):
    many = np.broadcast_to(np.float32(0), (100_000_000,))
    with pytest.raises(DataError, match=rf"a\.wav: {re.escape(message)}"):
        resampled(many, rate, wanted, "a.wav")


@pytest.mark.parametrize("rate", [4000, 11_025, 22_050, 44_100, 48_000, 96_000, 192_000, 384_000])
def test_rates_of_recordings_are_resampled(rate):
    audio = AudioConfig(sample_rate=16_000, num_mels=8, resample=True)
    content = header(pcm(np.zeros(rate // 10), 8), rate=rate)
    assert decode_features(content, ".wav", audio, "a.wav").shape == (8, 8)


@pytest.mark.parametrize("value", ["shape", "packed"])
def test_arrays_that_promise_more_than_there_is_take_no_memory(value):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f4", "fortran_order": False, "shape": (50_000_000, 80)}
    )
    suffix = ".npy"
    if value == "packed":
        packed = io.BytesIO()
        with (
            zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            archive.open("features.npy", "w") as out,
        ):
            out.write(file.getvalue())
            for _ in range(300):
                out.write(bytes(1 << 20))
        file, suffix = packed, ".npz"
    tracemalloc.start()
    try:
        with pytest.raises(
            DataError, match=rf"a{suffix}: no {suffix} file that can be read \("
        ) as e:
            decode_features(file.getvalue(), suffix, SMALL, "a" + suffix)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    said = "allowed" if value == "packed" else "16,000,000,000 bytes, and 0 are there"
    assert said in str(e.value)
