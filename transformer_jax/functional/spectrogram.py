"""Log-mel frames of a signal: framing, window, power spectrum, mel filter bank, logarithm.

Davis and Mermelstein 1980; the mel scale is from O'Shaughnessy 1987, as in HTK.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.array_arguments import as_real, real_arguments
from transformer_jax.functional.mel import mel_filter_weights

__all__ = [
    "count_frames",
    "frame_signal",
    "hann_window",
    "log_mel",
    "mel_filter_bank",
    "power_spectrum",
    "stack_frames",
]


def count_frames(samples: int, length: int, shift: int) -> int:
    """Counts the full frames of a signal: ``1 + floor((samples - length) / shift)``, at least 0.

    Args:
        samples: Length of the signal.
        length: Samples of a frame.
        shift: Samples between the starts of consecutive frames.

    Raises:
        ArgumentError: ``length`` or ``shift`` is below 1.

    Example:
        >>> [count_frames(samples, 400, 160) for samples in (399, 400, 559, 560, 16_000)]
        [0, 1, 1, 2, 98]
    """
    if length < 1 or shift < 1:
        raise ArgumentError(f"frames of {length} samples, {shift} apart: both must be at least 1")
    return max(0, 1 + (samples - length) // shift)


def frame_signal(
    signal: Float[Array, " N"], length: int, shift: int
) -> Float[Array, "frames {length}"]:
    """Overlapping frames of a signal: ``frame_t[n] = signal[t · shift + n]``.

    Samples after the last complete frame are dropped; a signal shorter than a frame has none.

    Args:
        signal: The waveform.
        length: Samples of a frame.
        shift: Samples between the starts of consecutive frames.

    Raises:
        ArgumentError: ``length`` or ``shift`` is below 1.

    Example:
        >>> frame_signal(jnp.arange(6.0), 3, 2)
        Array([[0., 1., 2.],
               [2., 3., 4.]], dtype=float32)
    """
    signal = as_real(signal, "frame_signal: signal")
    count = count_frames(len(signal), length, shift)
    return signal[shift * np.arange(count)[:, None] + np.arange(length)[None]]


def hann_window(length: int) -> Float[Array, " {length}"]:
    """The periodic Hann window: ``w[n] = (1 - cos(2 π n / length)) / 2``.

    Raises:
        ArgumentError: ``length`` is below 1.

    Example:
        >>> hann_window(4)
        Array([0. , 0.5, 1. , 0.5], dtype=float32)
    """
    if length < 1:
        raise ArgumentError(f"a window of {length} samples: at least 1")
    angles = 2 * np.pi * np.arange(length) / length
    return jnp.asarray((1 - np.cos(angles)) / 2, jnp.float32)


def power_spectrum(
    frames: Float[Array, "T N"], window: Float[Array, " N"], fft_size: int
) -> Float[Array, "T {fft_size}//2+1"]:
    """``|Σ_n w[n] x_t[n] exp(-2 π i k n / fft_size)|²`` for ``k`` from 0 to ``fft_size / 2``.

    Bin ``k`` is the frequency ``k · sample_rate / fft_size``. Frames shorter than ``fft_size`` are
    zero-padded at the end, which only adds frequencies: it changes no value at a given frequency.

    Raises:
        ArgumentError: Frames are longer than ``fft_size``, or ``fft_size`` is odd.

    Example:
        >>> power_spectrum(jnp.array([[1.0, 0.0, -1.0, 0.0]]), jnp.ones(4), 4)
        Array([[0., 4., 0.]], dtype=float32)
    """
    frames = as_real(frames, "power_spectrum: frames")
    window = as_real(window, "power_spectrum: window")
    if fft_size < frames.shape[1] or fft_size % 2:
        raise ArgumentError(
            f"an FFT of {fft_size} samples for frames of {frames.shape[1]}: it must be even, and "
            f"at least as long as a frame"
        )
    spectrum = jnp.fft.rfft(frames * window[None], fft_size)
    return jnp.square(spectrum.real) + jnp.square(spectrum.imag)


def mel_filter_bank(
    count: int, fft_size: int, sample_rate: int, low: float = 0.0, high: float | None = None
) -> Float[Array, "{fft_size}//2+1 {count}"]:
    """Triangular filters whose peaks are equidistant on the mel scale.

    With ``count + 2`` frequencies ``f_0 = low ... f_{count+1} = high``, filter ``m`` rises from 0
    at ``f_m`` to 1 at ``f_{m+1}`` and falls to 0 at ``f_{m+2}``.

    Args:
        count: Number of filters.
        fft_size: Samples of the FFT; the rows are its bins.
        sample_rate: Samples per second.
        low: Lowest frequency, in Hz.
        high: Highest frequency, in Hz; None is half the sample rate.

    Raises:
        ArgumentError: The frequencies are out of order or outside 0 to half the sample rate; or a
            filter contains no bin, so it would always be 0.

    Example:
        >>> np.asarray(mel_filter_bank(2, 8, 8000), float).round(2)
        array([[0.  , 0.  ],
               [0.68, 0.32],
               [0.  , 0.91],
               [0.  , 0.45],
               [0.  , 0.  ]])
    """
    return jnp.asarray(mel_filter_weights(count, fft_size, sample_rate, low, high), jnp.float32)


@real_arguments
def log_mel(
    frames: Float[Array, "T N"],
    window: Float[Array, " N"],
    bank: Float[Array, "bins M"],
    floor: float = 1e-10,
) -> Float[Array, "T M"]:
    """``log max(floor, P B)`` with the power spectrum ``P`` of the frames and the filters ``B``.

    Args:
        frames: Frames from :func:`frame_signal`.
        window: Such as :func:`hann_window`.
        bank: Filters from :func:`mel_filter_bank`; the number of rows determines the FFT length.
        floor: Smallest energy, used for silence.

    Raises:
        ArgumentError: Frames are longer than the FFT.

    Example:
        >>> bank = mel_filter_bank(2, 8, 8000)
        >>> log_mel(jnp.zeros((1, 8)), hann_window(8), bank, floor=1e-4).round(2)
        Array([[-9.21, -9.21]], dtype=float32)
    """
    power = power_spectrum(frames, window, 2 * (bank.shape[0] - 1))
    return jnp.log(jnp.maximum(power @ bank, floor))


def stack_frames(features: Float[Array, "T F"], count: int) -> Float[Array, "S {count}*F"]:
    """Stacks ``count`` frames at a time: position ``s`` holds frames from ``s · count`` on.

    The last position is padded with zeros. A hundred frames per second make long sequences for
    attention; stacked by four, they are 25 positions (Chan et al. 2016 halve the length per layer).

    Raises:
        ArgumentError: ``count`` is below 1.

    Example:
        >>> stack_frames(jnp.array([[1.0], [2.0], [3.0]]), 2)
        Array([[1., 2.],
               [3., 0.]], dtype=float32)
    """
    features = as_real(features, "stack_frames: features")
    if count < 1:
        raise ArgumentError(f"{count} frames in each position: at least 1")
    T, F = features.shape
    padded = jnp.pad(features, ((0, -T % count), (0, 0)))
    return padded.reshape(-1, count * F)
