"""The mel scale and its filters in NumPy, so that settings can be checked without a device.

Davis and Mermelstein 1980; the scale is from O'Shaughnessy 1987, as in HTK.
"""

import numpy as np
from jaxtyping import Float

from transformer_jax.core.errors import ArgumentError

__all__ = ["hz_to_mel", "mel_filter_weights", "mel_to_hz"]


def hz_to_mel(frequency: float) -> float:
    """``2595 log10(1 + f / 700)``: 1000 Hz is 1000 mel, and equal steps in mel sound equally large.

    Example:
        >>> round(hz_to_mel(1000.0), 1), round(hz_to_mel(8000.0), 1)
        (1000.0, 2840.0)
    """
    return float(2595 * np.log10(1 + frequency / 700))


def mel_to_hz(mel: float) -> float:
    """``700 (10^(m / 2595) - 1)``, the inverse of :func:`hz_to_mel`.

    Example:
        >>> round(mel_to_hz(hz_to_mel(440.0)), 6)
        440.0
    """
    return float(700 * (10 ** (mel / 2595) - 1))


def mel_filter_weights(
    count: int, fft_size: int, sample_rate: int, low: float = 0.0, high: float | None = None
) -> Float[np.ndarray, "{fft_size}//2+1 {count}"]:
    """The filters of :func:`mel_filter_bank` in float64, computed without a device.

    Raises:
        ArgumentError: As :func:`mel_filter_bank`.

    Example:
        >>> mel_filter_weights(2, 8, 8000).shape
        (5, 2)
    """
    top = sample_rate / 2 if high is None else high
    if not 0 <= low < top <= sample_rate / 2:
        raise ArgumentError(
            f"mel filters from {low:g} to {top:g} Hz: frequencies from 0 to {sample_rate / 2:g}, "
            f"half the sample rate, in ascending order"
        )
    mels = np.linspace(hz_to_mel(low), hz_to_mel(top), count + 2)
    edges = np.array([mel_to_hz(mel) for mel in mels])
    bins = np.arange(fft_size // 2 + 1) * sample_rate / fft_size
    rise = (bins[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])[None]
    fall = (edges[None, 2:] - bins[:, None]) / (edges[2:] - edges[1:-1])[None]
    bank = np.maximum(0, np.minimum(rise, fall))
    if not bank.any(0).all():
        raise ArgumentError(
            f"{count} mel filters from {low:g} to {top:g} Hz: filter "
            f"{int(np.argmin(bank.any(0))) + 1} holds none of the frequencies of an FFT of "
            f"{fft_size} samples: choose fewer filters or a longer FFT"
        )
    return bank
