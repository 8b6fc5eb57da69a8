"""Waveforms of every kind of WAV, their frames, and what is refused; row T1."""

import contextlib
import io
import re
import struct
import wave

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.speech.audio import AudioConfig, log_mel_frames, resampled
from transformer_jax.data.speech.wav import read_wav
from transformer_jax.functional.spectrogram import (
    frame_signal,
    hann_window,
    log_mel,
    mel_filter_bank,
)

RATE = 8000
SMALL = AudioConfig(sample_rate=RATE, num_mels=8)
SIGNAL = (0.5 * np.sin(np.arange(1600) * 0.3)).astype(np.float32)


def pcm(samples, bits, rate=RATE):
    """The bytes of a WAV file of integers, ``[N]`` or ``[N channels]``."""
    scale = 2 ** (bits - 1)
    whole = np.clip(np.round(np.asarray(samples, np.float64) * scale), -scale, scale - 1)
    whole = whole.astype(np.int64) + 128 * (bits == 8)
    rows = whole.reshape(-1)
    content = b"".join((int(v) % 2**bits).to_bytes(bits // 8, "little") for v in rows)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1 if whole.ndim == 1 else whole.shape[1])
        out.setsampwidth(bits // 8)
        out.setframerate(rate)
        out.writeframes(content)
    return file.getvalue()


def floating(samples, bits):
    """The bytes of a WAV file of floating-point numbers."""
    content = np.asarray(samples, f"<f{bits // 8}").tobytes()
    form = struct.pack("<HHIIHH", 3, 1, RATE, RATE * bits // 8, bits // 8, bits)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


@pytest.mark.parametrize("bits", [8, 16, 24, 32])
def test_integers_of_any_width_are_the_same_samples(bits):
    samples, rate = read_wav(io.BytesIO(pcm(SIGNAL, bits)), "a.wav")
    assert rate == RATE
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, SIGNAL, atol=0.51 / 2 ** (bits - 1) + 1e-7)


@pytest.mark.parametrize("bits", [32, 64])
def test_floating_point_samples_are_as_they_are(bits):
    np.testing.assert_array_equal(
        read_wav(io.BytesIO(floating(SIGNAL, bits)), "a.wav").samples, SIGNAL
    )


def test_channels_are_averaged():
    both = np.stack([SIGNAL, -SIGNAL / 2], axis=1)
    samples = read_wav(io.BytesIO(pcm(both, 16)), "a.wav").samples
    np.testing.assert_allclose(samples, SIGNAL / 4, atol=1e-4)


def test_other_chunks_of_a_file_are_passed_over():
    content = pcm(SIGNAL, 16)
    tag = b"LIST" + struct.pack("<I", 4) + b"INFO"
    tagged = content[:36] + tag + content[36:]
    tagged = tagged[:4] + struct.pack("<I", len(tagged) - 8) + tagged[8:]
    np.testing.assert_array_equal(
        read_wav(io.BytesIO(tagged), "a.wav").samples,
        read_wav(io.BytesIO(content), "a.wav").samples,
    )


@pytest.mark.parametrize("at", [0, 3, 10, 30, 43, 44, 501])
def test_a_cut_file_is_refused(at):
    with pytest.raises(DataError, match=r"a\.wav: no WAV file that can be read") as refused:
        read_wav(io.BytesIO(pcm(SIGNAL, 16)[:at]), "a.wav")
    assert "\n" not in str(refused.value)


def test_damaged_bytes_give_samples_or_are_refused():
    rng, content = np.random.default_rng(0), pcm(SIGNAL[:50], 16)
    for _ in range(300):
        damaged = bytearray(content)
        for place in rng.integers(0, 44, 3):
            damaged[place] = rng.integers(0, 256)
        with contextlib.suppress(DataError):
            samples, rate = read_wav(io.BytesIO(bytes(damaged)), "a.wav")
            assert samples.ndim == 1
            assert rate > 0


def test_frames_do_not_depend_on_how_many_there_are():
    """Blocks of one shape make them, and each is that of its samples alone."""
    long = np.concatenate([SIGNAL] * 10)[:11_111]
    found = log_mel_frames(long, SMALL)
    frames = frame_signal(jnp.asarray(long), SMALL.length, SMALL.shift)
    wanted = log_mel(frames, hann_window(SMALL.length), mel_filter_bank(*SMALL.filters))
    assert len(found) == 1 + (11_111 - 200) // 80 == 137
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    for samples in (200, 279, 280, 1500, 10_360, 10_440):
        part = log_mel_frames(long[:samples], SMALL)
        assert len(part) == 1 + (samples - 200) // 80
        np.testing.assert_array_equal(part, found[: len(part)])


def test_a_resampled_tone_is_the_tone():
    n = np.arange(8000)
    tone = lambda rate: np.sin(2 * np.pi * 440 * n[:rate] / rate).astype(np.float32)
    found = resampled(tone(8000), 8000, 6000)
    assert len(found) == 6000
    # The filter has no samples before the first and after the last.
    np.testing.assert_allclose(found[100:-100], tone(6000)[100:-100], atol=2e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_rate": 0}, "data.audio.sample_rate is 0: at least 1"),
        ({"num_mels": 0}, "data.audio.num_mels is 0: at least 1"),
        ({"num_mels": 500}, "data.audio: 500 mel filters from 20 to 8000 Hz: filter"),
        ({"frame_shift_ms": 0.0}, "data.audio.frame_shift_ms is 0.0: above 0 and at most 10000"),
        ({"frame_length_ms": float("nan")}, "data.audio.frame_length_ms is nan: above 0"),
        ({"frame_shift_ms": 0.01}, "are 400 and 0 samples: at least 2 and 1 are needed"),
        ({"high_frequency": 9000.0}, "mel filters from 20 to 9000 Hz: frequencies from 0 to 8000"),
    ],
)
def test_settings_without_frames_are_refused(change, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        AudioConfig(**change)
