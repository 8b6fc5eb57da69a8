"""Waveforms: resampling, and log-mel frames."""

import dataclasses
import functools
import math
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float32

from transformer_jax.core.config_fields import Configuration, NotNegative, Range
from transformer_jax.core.errors import ArgumentError, ConfigError, DataError, plural
from transformer_jax.functional.mel import mel_filter_weights

__all__ = ["AudioConfig", "log_mel_frames", "resampled"]

_BLOCK = 128  # frames per call of the compiled program, whatever the length of a recording
# Resampled rates, from a fraction of the target rate to a multiple of it. Speech is recorded at
# 8,000 to 192,000 samples per second; headers with other rates are damaged.
_SLOWEST, _FASTEST = 1 / 16, 64
_LONGEST_FILTER = 1 << 18  # longest filter, up or down; it has 20 taps for each
_MOST_SAMPLES = 1 << 28  # of a resampled recording: 1 GiB, 4.6 hours at 16,000 per second


@dataclasses.dataclass(frozen=True)
class AudioConfig(Configuration, group="data.audio"):
    """Settings of log-mel frames computed from waveforms."""

    sample_rate: Annotated[int, Range(1, 1 << 20)] = 16_000  # samples per second
    resample: bool = False  # resample files of another rate, which are otherwise refused
    frame_length_ms: Annotated[float, Range(above=0, most=10_000)] = 25.0  # length of a frame
    # Time between the starts of consecutive frames.
    frame_shift_ms: Annotated[float, Range(above=0, most=10_000)] = 10.0
    num_mels: Annotated[int, Range(1, 1 << 20)] = 80  # mel filters, and so values per frame
    low_frequency: NotNegative = 20.0  # lowest frequency of the filters, Hz
    high_frequency: NotNegative | None = None  # highest frequency, Hz; None is half the sample rate

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shift < 1 or self.length < 2:
            raise ConfigError(
                f"data.audio.frame_length_ms {self.frame_length_ms} and frame_shift_ms "
                f"{self.frame_shift_ms} are {self.length} and {self.shift} samples: at least 2 and "
                f"1 are needed"
            )
        try:
            mel_filter_weights(*self.filters)
        except ArgumentError as error:
            raise ConfigError(f"data.audio: {error}") from None

    @property
    def length(self) -> int:
        """Samples per frame."""
        return round(self.sample_rate * self.frame_length_ms / 1000)

    @property
    def shift(self) -> int:
        """Samples between the starts of consecutive frames."""
        return round(self.sample_rate * self.frame_shift_ms / 1000)

    @property
    def fft_size(self) -> int:
        """Samples of the FFT: the smallest power of 2 that holds a frame."""
        return 1 << max(1, (self.length - 1).bit_length())

    @property
    def filters(self) -> tuple[int, int, int, float, float | None]:
        """Returns the arguments of :func:`.mel_filter_bank`."""
        frequencies = self.low_frequency, self.high_frequency
        return (self.num_mels, self.fft_size, self.sample_rate, *frequencies)


def resampled(
    samples: Float32[np.ndarray, " N"], rate: int, wanted: int, name: str = "the waveform"
) -> Float32[np.ndarray, " M"]:
    """Resamples a waveform with a polyphase filter.

    Args:
        samples: The waveform.
        rate: Samples per second of the waveform.
        wanted: Samples per second of the result.
        name: Name of the file, for messages.

    Raises:
        DataError: No recording has this rate, or the result would take more than 1 GiB.

    Example:
        >>> resampled(np.zeros(800, np.float32), 8000, 16_000).shape
        (1600,)
    """
    common = math.gcd(rate, wanted)
    up, down = wanted // common, rate // common
    least, most = math.ceil(wanted * _SLOWEST), wanted * _FASTEST
    if not least <= rate <= most:
        raise DataError(
            f"{name}: {plural(rate, 'sample')} a second by its header, which is damaged or of no "
            f"recording: {least:,} to {most:,} are resampled to {wanted:,}: convert the file again "
            f"or leave it out"
        )
    if max(up, down) > _LONGEST_FILTER:
        raise DataError(
            f"{name}: {rate:,} samples a second have too small a common measure with {wanted:,}: "
            f"convert the file to another rate (with ffmpeg: -ar {wanted})"
        )
    if len(samples) * up // down > _MOST_SAMPLES:
        raise DataError(
            f"{name}: {plural(len(samples), 'sample')}, {rate:,} a second by its header, would be "
            f"{len(samples) * up // down:,} at {wanted:,} a second, and {_MOST_SAMPLES:,} are "
            f"allowed: cut the recording, or leave it out"
        )
    from scipy.signal import resample_poly  # late: it takes a while to import

    return np.asarray(resample_poly(samples, up, down), np.float32)


def log_mel_frames(
    samples: Float32[np.ndarray, " N"], config: AudioConfig
) -> Float32[np.ndarray, "T M"]:
    """The log-mel frames of a waveform with the configured sample rate.

    One program of fixed shape computes blocks of frames, so no length needs a new compilation.

    Example:
        >>> log_mel_frames(np.zeros(16_000, np.float32), AudioConfig()).shape
        (98, 80)
    """
    from transformer_jax.functional.spectrogram import count_frames  # imports JAX

    count = count_frames(len(samples), config.length, config.shift)
    blocks = -(-count // _BLOCK)
    step, size = _BLOCK * config.shift, (_BLOCK - 1) * config.shift + config.length
    padded = np.zeros(max(0, blocks - 1) * step + size, np.float32)
    used = min(len(samples), len(padded))
    padded[:used] = samples[:used]
    make = _program(config)
    found = [np.asarray(make(padded[i * step : i * step + size])) for i in range(blocks)]
    return np.concatenate([*found, np.zeros((0, config.num_mels), np.float32)])[:count]


@functools.lru_cache(maxsize=4)
def _program(config: AudioConfig) -> Any:
    """Compiles a function from the samples of a block to its frames."""
    import jax
    import jax.numpy as jnp

    from transformer_jax.functional import spectrogram

    window = spectrogram.hann_window(config.length)
    bank = spectrogram.mel_filter_bank(*config.filters)

    @jax.jit
    def make(samples: Any) -> Any:
        frames = spectrogram.frame_signal(jnp.asarray(samples), config.length, config.shift)
        return spectrogram.log_mel(frames, window, bank)

    return make
