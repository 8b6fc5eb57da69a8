"""Log-mel frames are those of their formulas, of scipy and of librosa; row T1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal

from tests.drawing import normals
from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.mel import hz_to_mel, mel_to_hz
from transformer_jax.functional.spectrogram import (
    count_frames,
    frame_signal,
    hann_window,
    log_mel,
    mel_filter_bank,
    power_spectrum,
    stack_frames,
)


@pytest.mark.parametrize(("samples", "length", "shift"), [(20, 5, 3), (21, 5, 8), (5, 5, 1)])
def test_a_frame_is_a_piece_of_the_signal(samples, length, shift):
    [signal] = normals((samples,))
    found = np.asarray(frame_signal(signal, length, shift))
    # The last frame ends within the signal, and one more would not.
    assert (len(found) - 1) * shift + length <= samples < len(found) * shift + length
    for t, frame in enumerate(found):
        np.testing.assert_array_equal(frame, signal[t * shift : t * shift + length])


def test_a_signal_shorter_than_a_frame_has_none():
    assert frame_signal(jnp.ones(4), 5, 2).shape == (0, 5)
    assert stack_frames(jnp.ones((0, 3)), 4).shape == (0, 12)


@pytest.mark.parametrize("length", [2, 7, 400])
def test_the_window_is_that_of_scipy(length):
    wanted = scipy.signal.get_window("hann", length)
    np.testing.assert_allclose(hann_window(length), wanted, atol=1e-7)


def test_the_power_spectrum_is_its_sum():
    frames, window = normals((3, 10), (10,))
    n, k = np.arange(10), np.arange(9)
    waves = np.exp(-2j * np.pi * k[:, None] * n[None] / 16)
    wanted = np.abs((np.asarray(frames) * np.asarray(window)) @ waves.T) ** 2
    np.testing.assert_allclose(power_spectrum(frames, window, 16), wanted, rtol=1e-4, atol=1e-4)


def test_the_power_of_a_frame_is_that_of_its_spectrum():
    """Parseval: bins other than the first and the last stand for two each."""
    [frames] = normals((4, 64))
    power = np.asarray(power_spectrum(frames, jnp.ones(64), 64))
    twice = power[:, 0] + power[:, -1] + 2 * power[:, 1:-1].sum(1)
    np.testing.assert_allclose(twice / 64, np.square(frames).sum(1), rtol=1e-5)


def test_mel_filters_are_those_of_librosa():
    """Sums of librosa: ``filters.mel(sr=16000, n_fft=512, n_mels=80, htk=True, norm=None)``."""
    bank = np.asarray(mel_filter_bank(80, 512, 16_000))
    assert bank.shape == (257, 80)
    assert bank.sum() == pytest.approx(251.2214, rel=1e-6)
    assert (bank * np.arange(80)[None]).sum() == pytest.approx(13723.2559, rel=1e-6)
    assert (bank * np.arange(257)[:, None]).sum() == pytest.approx(31684.7566, rel=1e-6)


def test_neighbouring_filters_share_each_frequency_between_their_peaks():
    bank = np.asarray(mel_filter_bank(20, 512, 16_000, 100.0, 6000.0))
    bins = np.arange(257) * 16_000 / 512
    step = (hz_to_mel(6000.0) - hz_to_mel(100.0)) / 21
    first, last = (mel_to_hz(hz_to_mel(100.0) + peak * step) for peak in (1, 20))
    inside = (bins >= first) & (bins <= last)
    np.testing.assert_allclose(bank[inside].sum(1), 1.0, rtol=1e-5)
    assert bank[(bins <= 100) | (bins >= 6000)].max() < 1e-6


# log(max(melspectrogram(...), 1e-10)) of librosa 0.11 with center=False, htk=True, norm=None, of
# frames 0 and 5. It puts the window of 200 samples in the middle of 256: 28 samples later.
LIBROSA = [
    [7.46618, 8.01913, 2.54721, -7.10505, -10.85658, -13.12342, -14.93242, -16.67104],
    [-7.76974, -0.50098, 7.90171, 7.64846, -2.78762, -10.39054, -13.58058, -15.81464],
]


def test_log_mel_frames_are_those_of_librosa():
    n = np.arange(1200) / 8000
    chirp = np.sin(2 * np.pi * (200 * n + 0.5 * 9000 * n**2)).astype(np.float32)
    frames = frame_signal(jnp.asarray(chirp[28:]), 200, 80)
    bank = mel_filter_bank(8, 256, 8000, 50.0, 3800.0)
    found = jax.jit(log_mel)(frames, hann_window(200), bank)
    assert len(found) == count_frames(1172, 200, 80) == 13
    np.testing.assert_allclose(np.asarray(found)[[0, 5]], LIBROSA, rtol=2e-3, atol=2e-3)


def test_a_tone_is_loudest_in_the_filter_of_its_frequency():
    bank, peaks = mel_filter_bank(40, 512, 16_000), []
    for number in (4, 17, 30):
        frequency = mel_to_hz(hz_to_mel(8000.0) * (number + 1) / 41)
        tone = jnp.asarray(np.sin(2 * np.pi * frequency * np.arange(800) / 16_000), jnp.float32)
        energy = log_mel(frame_signal(tone, 400, 160), hann_window(400), bank)
        peaks.append(set(np.asarray(energy).argmax(1).tolist()))
    assert peaks == [{4}, {17}, {30}]


def test_louder_by_a_factor_is_a_constant_more():
    [signal] = normals((900,))
    bank, window = mel_filter_bank(10, 512, 16_000), hann_window(400)
    quiet, loud = (log_mel(frame_signal(x, 400, 160), window, bank) for x in (signal, 3 * signal))
    np.testing.assert_allclose(loud - quiet, 2 * np.log(3), rtol=1e-4)


def test_silence_has_the_least_energy():
    bank, window = mel_filter_bank(10, 512, 16_000), hann_window(400)
    found = log_mel(jnp.zeros((2, 400)), window, bank, floor=1e-6)
    np.testing.assert_allclose(found, np.log(1e-6), rtol=1e-6)


@pytest.mark.parametrize(("frames", "count"), [(8, 4), (9, 4), (3, 4), (5, 1)])
def test_stacked_frames_follow_each_other(frames, count):
    [features] = normals((frames, 3))
    found = np.asarray(stack_frames(features, count)).reshape(-1, 3)
    np.testing.assert_array_equal(found[:frames], features)
    assert len(found) == -(-frames // count) * count
    assert not found[frames:].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: count_frames(9, 0, 1), "frames of 0 samples, 1 apart: both must be at least 1"),
        (lambda: frame_signal(jnp.ones(9), 3, 0), "frames of 3 samples, 0 apart"),
        (lambda: hann_window(0), "a window of 0 samples: at least 1"),
        (
            lambda: power_spectrum(jnp.ones((1, 9)), jnp.ones(9), 8),
            "an FFT of 8 samples for frames of 9: it must be even, and at least as long",
        ),
        (lambda: power_spectrum(jnp.ones((1, 9)), jnp.ones(9), 11), "it must be even"),
        (
            lambda: mel_filter_bank(8, 256, 8000, 50.0, 5000.0),
            "mel filters from 50 to 5000 Hz: frequencies from 0 to 4000",
        ),
        (
            lambda: mel_filter_bank(80, 64, 8000),
            "80 mel filters from 0 to 4000 Hz: filter 1 holds none of the frequencies of an FFT",
        ),
        (lambda: stack_frames(jnp.ones((4, 2)), 0), "0 frames in each position: at least 1"),
    ],
)
def test_what_has_no_spectrum_is_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
