"""Waveforms of WAV files, and their log-mel frames."""

import dataclasses
import functools
import io
import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from transformer_jax.errors import ArgumentError, ConfigError, DataError
from transformer_jax.functional import spectrogram

__all__ = ["AudioConfig", "Waveform", "log_mel_frames", "read_wav", "resampled"]

_BLOCK = 128  # frames that one compiled program makes, whatever the length of a recording


@dataclasses.dataclass(frozen=True)
class AudioConfig:
    """How waveforms become log-mel frames."""

    sample_rate: int = 16_000  # samples a second
    resample: bool = False  # resample files of another rate, which are else refused
    frame_length_ms: float = 25.0
    frame_shift_ms: float = 10.0  # from the beginning of a frame to that of the next
    num_mels: int = 80  # mel filters, the numbers of a frame
    low_frequency: float = 20.0  # of the filters, Hz
    high_frequency: float | None = None  # None is half the sample rate

    def __post_init__(self) -> None:
        for name in ("sample_rate", "num_mels"):
            value = getattr(self, name)
            if not 1 <= value <= 1 << 20:
                raise ConfigError(f"data.audio.{name} is {value}: allowed are 1 to {1 << 20}")
        for name in ("frame_length_ms", "frame_shift_ms"):
            value = getattr(self, name)
            if not 0 < value <= 10_000:
                raise ConfigError(f"data.audio.{name} is {value}: above 0 and at most 10000")
        if self.shift < 1 or self.length < 2:
            raise ConfigError(
                f"data.audio.frame_length_ms {self.frame_length_ms} and frame_shift_ms "
                f"{self.frame_shift_ms} are {self.length} and {self.shift} samples: at least 2 and "
                f"1 are needed"
            )
        try:
            spectrogram.mel_filter_weights(*self._filters)
        except ArgumentError as error:
            raise ConfigError(f"data.audio: {error}") from None

    @property
    def length(self) -> int:
        """Samples of a frame."""
        return round(self.sample_rate * self.frame_length_ms / 1000)

    @property
    def shift(self) -> int:
        """Samples from the beginning of a frame to that of the next."""
        return round(self.sample_rate * self.frame_shift_ms / 1000)

    @property
    def fft_size(self) -> int:
        """Samples of the FFT: the power of 2 that holds a frame."""
        return 1 << max(1, (self.length - 1).bit_length())

    @property
    def _filters(self) -> tuple[int, int, int, float, float | None]:
        frequencies = self.low_frequency, self.high_frequency
        return (self.num_mels, self.fft_size, self.sample_rate, *frequencies)

    def filters(self) -> Float[Array, "bins M"]:
        """The mel filter bank."""
        return spectrogram.mel_filter_bank(*self._filters)


class Waveform(NamedTuple):
    """Samples from -1 to 1 and their number a second."""

    samples: Float32[np.ndarray, " N"]
    rate: int


def read_wav(content: bytes, name: str) -> Waveform:
    """The waveform of a WAV file: PCM of 8, 16, 24 or 32 bits or floating point; mean of channels.

    Args:
        content: Of the file.
        name: Its name, for messages.

    Raises:
        DataError: It is damaged, is cut, or holds samples of another kind.
    """
    from scipy.io import wavfile  # late: it takes a while to import

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", wavfile.WavFileWarning)
            # Chunks of other programs, such as tags, are no samples.
            warnings.filterwarnings("ignore", "Chunk .non-data. not understood")
            rate, samples = wavfile.read(io.BytesIO(content))
    except Exception as error:  # of damaged bytes the reader raises whatever they lead it to
        raise DataError(
            f"{name}: no WAV file that can be read ({_first_line(error)}): convert it to PCM of 16 "
            f"bits"
        ) from None
    if rate < 1:
        raise DataError(f"{name}: damaged WAV file: {rate} samples a second")
    if samples.dtype == np.uint8:
        scaled = (samples.astype(np.float32) - 128) / 128
    elif np.issubdtype(samples.dtype, np.signedinteger):
        # The reader left-justifies 24 bits in 32.
        scaled = samples.astype(np.float32) / -float(np.iinfo(samples.dtype).min)
    else:
        scaled = samples.astype(np.float32)
    mono = scaled if scaled.ndim == 1 else scaled.mean(axis=1, dtype=np.float32)
    return Waveform(np.ascontiguousarray(mono), int(rate))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:80].rstrip(".")


def resampled(
    samples: Float32[np.ndarray, " N"], rate: int, wanted: int
) -> Float32[np.ndarray, " M"]:
    """The waveform at another rate, by a polyphase filter.

    Args:
        samples: The waveform.
        rate: Its samples a second.
        wanted: Those of the result.

    Example:
        >>> resampled(np.zeros(800, np.float32), 8000, 16_000).shape
        (1600,)
    """
    from scipy.signal import resample_poly

    common = math.gcd(rate, wanted)
    found = resample_poly(samples, wanted // common, rate // common)
    return np.asarray(found, np.float32)


def log_mel_frames(
    samples: Float32[np.ndarray, " N"], config: AudioConfig
) -> Float32[np.ndarray, "T M"]:
    """The log-mel frames of a waveform, of the configuration's sample rate.

    One program of one shape computes blocks of frames, so that no length compiles anything anew.

    Example:
        >>> log_mel_frames(np.zeros(16_000, np.float32), AudioConfig()).shape
        (98, 80)
    """
    count = spectrogram.count_frames(len(samples), config.length, config.shift)
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
    """A compiled function from the samples of a block to its frames."""
    window, bank = spectrogram.hann_window(config.length), config.filters()

    @jax.jit
    def make(samples: Any) -> Any:
        frames = spectrogram.frame_signal(jnp.asarray(samples), config.length, config.shift)
        return spectrogram.log_mel(frames, window, bank)

    return make
