"""WAV files: their chunks, the layout of samples, and samples as numbers from -1 to 1.

Programs that write to a pipe cannot go back to fill in sizes. Placeholders (0, 0xFFFFFFFF and
similar) therefore mean that the samples extend to the end of the file.
"""

import dataclasses
import io
import math
import os
import struct
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from transformer_jax.core.errors import DataError

__all__ = ["WHOLE", "Segment", "Waveform", "read_wav"]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_MOST_CHANNELS = 64
_MOST_CHUNKS = 4096
_LARGEST = 1 << 31  # bytes of samples
# Writers of streams give the size of the samples as 0, or as about the largest that fits 31 or 32
# bits, minus a header.
_PLACEHOLDER = 0x7FFF0000
_TOLD_APART = 0xFFFFFFFF  # in RF64 files: the size is in the chunk ds64
_ROUNDING = 0.01  # seconds by which the end of a segment, rounded in its table, may pass the file's


class Segment(NamedTuple):
    """A part of a recording, in seconds.

    Example:
        >>> str(Segment(1.5, 2.0)), str(Segment(1.5))
        ('1.5 s to 3.5 s', '1.5 s to its end')
    """

    offset: float = 0.0
    duration: float | None = None  # None is to the end

    def __str__(self) -> str:
        end = "its end" if self.duration is None else f"{self.offset + self.duration:.10g} s"
        return f"{self.offset:.10g} s to {end}"

    def frames(self, count: int, rate: int) -> tuple[int, int]:
        """Returns the first frame, and the one after the last, of ``count`` at ``rate`` a second.

        Both times are rounded to the nearest frame, so adjacent segments share none and leave none
        out. An end less than 10 ms after the last frame, as tables round durations, is the last.

        Raises:
            ValueError: The segment is not inside the recording, or has no frame.

        Example:
            >>> Segment(0.5, 0.25).frames(8000, 8000)
            (4000, 6000)
        """
        start = round(self.offset * rate)
        end = count if self.duration is None else round((self.offset + self.duration) * rate)
        if start >= count or end > count + math.ceil(_ROUNDING * rate):
            raise ValueError(
                f"the recording has {count / rate:.10g} s: correct offset and duration"
            )
        if end <= start:
            raise ValueError("no sample: correct offset and duration")
        return start, min(end, count)


WHOLE = Segment()


class Waveform(NamedTuple):
    """Samples from -1 to 1, and their number per second."""

    samples: Float32[np.ndarray, " N"]
    rate: int


class _Format(NamedTuple):
    """The chunk ``fmt``."""

    rate: int
    channels: int
    dtype: np.dtype  # of one sample; 24 bits are read as bytes
    width: int  # bytes per sample
    order: str  # byte order: "<" is little-endian


@dataclasses.dataclass(frozen=True)
class _Source:
    """A file, read in parts."""

    file: io.BufferedIOBase
    size: int

    def bytes(self, at: int, count: int) -> bytes:
        """Reads ``count`` bytes, or fewer at the end of the file."""
        self.file.seek(at)
        return self.file.read(count)

    def number(self, form: str, at: int) -> int:
        """Reads a whole number."""
        return int(struct.unpack(form, self.bytes(at, struct.calcsize(form)))[0])


def read_wav(file: io.BufferedIOBase, name: str, segment: Segment = WHOLE) -> Waveform:
    """Reads the waveform of a WAV file, averaged over its channels.

    Samples are PCM of 8, 16, 24 or 32 bits, or floating point of 32 or 64 bits. A size left open by
    a program that wrote to a pipe means that the samples extend to the end of the file.

    Args:
        file: The file, of which only the header and the segment are read.
        name: The name of the file, for messages.
        segment: The part to read.

    Raises:
        DataError: The file is damaged or truncated, has samples of another kind, or does not
            contain the segment.
    """
    source = _Source(file, file.seek(0, os.SEEK_END))
    try:
        layout, at, end = _parts(source)
    except (ValueError, struct.error) as error:
        raise DataError(
            f"{name}: no WAV file that can be read ({error}): convert it to PCM of 16 bits (with "
            f"ffmpeg: -c:a pcm_s16le)"
        ) from None
    frame = layout.width * layout.channels
    first, last = 0, (end - at) // frame
    if segment != WHOLE:
        try:
            first, last = segment.frames(last, layout.rate)
        except ValueError as error:
            raise DataError(f"{name}: {error}") from None
    if (last - first) * frame > _LARGEST:
        raise DataError(
            f"{name}: {(last - first) * frame:,} bytes of samples, but at most {_LARGEST:,} are "
            f"allowed: cut the recording"
        )
    samples = _scaled(source.bytes(at + first * frame, (last - first) * frame), layout)
    if layout.channels > 1:
        samples = samples.reshape(-1, layout.channels).mean(axis=1, dtype=np.float32)
    return Waveform(np.ascontiguousarray(samples), layout.rate)


def _parts(source: _Source) -> tuple[_Format, int, int]:
    """Returns the layout of the samples, their start and their end in the file.

    Raises:
        ValueError: It is not a WAV file, is truncated, or has samples of another kind.
    """
    magic, kind = source.bytes(0, 4), source.bytes(8, 4)
    if magic not in (b"RIFF", b"RIFX", b"RF64", b"BW64") or kind != b"WAVE":
        raise ValueError("it does not begin with RIFF and WAVE")
    order = ">" if magic == b"RIFX" else "<"
    layout, large, at = None, None, 12
    for _ in range(_MOST_CHUNKS):
        if at + 8 > source.size:
            break
        tag, size = source.bytes(at, 4), source.number(f"{order}I", at + 4)
        at += 8
        if tag == b"data":
            if layout is None:
                raise ValueError("samples before their format")
            if size == _TOLD_APART and large is not None:
                size = large
            end = _end_of_samples(source, order, at, size)
            if end > source.size:
                raise ValueError(
                    f"{size:,} bytes of samples by its header, and {source.size - at:,} are there"
                )
            return layout, at, end
        if at + size > source.size:
            break
        if tag == b"fmt ":
            layout = _layout(source.bytes(at, min(size, 64)), order)
        elif tag == b"ds64" and size >= 16:
            large = source.number("<Q", at + 8)
        at += size + size % 2
    raise ValueError("it ends before its samples")


def _end_of_samples(source: _Source, order: str, start: int, size: int) -> int:
    """Returns the end of the samples: the end of the file if the size is a placeholder."""
    if size >= _PLACEHOLDER and start + size > source.size:
        return source.size
    # A size of 0 is correct if the file ends there, or continues with other chunks.
    if size == 0 and not _chunks(source, order, start):
        return source.size
    return start + size


def _chunks(source: _Source, order: str, at: int) -> bool:
    """Returns whether chunks fill the rest of the file."""
    for _ in range(_MOST_CHUNKS):
        if at + 8 > source.size:
            break
        # The name of a chunk; silence is 0.
        if not all(32 <= byte < 127 for byte in source.bytes(at, 4)):
            return False
        size = source.number(f"{order}I", at + 4)
        at += 8 + size + size % 2
    return at in (source.size, source.size + 1)


def _layout(chunk: bytes, order: str) -> _Format:
    """Parses the chunk ``fmt``.

    Raises:
        ValueError: It is truncated, contradicts itself, or specifies another kind of samples.
    """
    if len(chunk) < 16:
        raise ValueError("its format is cut")
    kind, channels, rate, _, frame, bits = struct.unpack_from(f"{order}HHIIHH", chunk)
    if kind == _EXTENSIBLE and len(chunk) >= 26:
        (kind,) = struct.unpack_from(f"{order}H", chunk, 24)
    if kind not in (_PCM, _FLOAT):
        raise ValueError(f"samples of format {kind:#06x}, neither PCM nor floating point")
    if rate < 1:
        raise ValueError(f"{rate} samples a second")
    if not 1 <= channels <= _MOST_CHANNELS:
        raise ValueError(f"{channels:,} channels, and 1 to {_MOST_CHANNELS} are read")
    width = frame // channels
    if frame % channels or (bits + 7) // 8 != width:
        raise ValueError(f"{frame:,} bytes for {channels} samples of {bits} bits")
    if kind == _FLOAT and width in (4, 8):
        return _Format(rate, channels, np.dtype(f"{order}f{width}"), width, order)
    if kind == _PCM and width in (1, 2, 3, 4):
        dtype = f"{order}i{width}" if width in (2, 4) else "u1"
        return _Format(rate, channels, np.dtype(dtype), width, order)
    raise ValueError(f"samples of {bits} bits")


def _scaled(data: bytes, layout: _Format) -> Float32[np.ndarray, " N"]:
    values = np.frombuffer(data, layout.dtype)
    if layout.width == 3:  # to the upper bytes of 32 bits
        wide = np.zeros((len(values) // 3, 4), np.uint8)
        wide[:, 1:] = values.reshape(-1, 3)[:, :: 1 if layout.order == "<" else -1]
        values = wide.view("<i4").reshape(-1)
    elif layout.width == 1:
        return (values.astype(np.float32) - 128) / 128
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return values.astype(np.float32)
    return values.astype(np.float32) / -float(np.iinfo(values.dtype).min)
