"""WAV files: their chunks, the layout of samples, and samples as numbers from -1 to 1.

Programs that write to a pipe cannot go back to fill in sizes. Placeholders (0, 0xFFFFFFFF and
similar) therefore mean that the samples extend to the end of the file.
"""

import struct
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from transformer_jax.core.errors import DataError

__all__ = ["Waveform", "read_wav"]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_MOST_CHANNELS = 64
# Writers of streams give the size of the samples as 0, or as about the largest that fits 31 or 32
# bits, minus a header.
_PLACEHOLDER = 0x7FFF0000
_TOLD_APART = 0xFFFFFFFF  # in RF64 files: the size is in the chunk ds64


class Waveform(NamedTuple):
    """Samples from -1 to 1, and their number per second."""

    samples: Float32[np.ndarray, " N"]
    rate: int


class _Layout(NamedTuple):
    """The chunk ``fmt``."""

    rate: int
    channels: int
    dtype: np.dtype  # of one sample; 24 bits are read as bytes
    width: int  # bytes per sample
    order: str  # byte order: "<" is little-endian


def read_wav(content: bytes, name: str) -> Waveform:
    """Reads the waveform of a WAV file, averaged over its channels.

    Samples are PCM of 8, 16, 24 or 32 bits, or floating point of 32 or 64 bits. A size left open by
    a program that wrote to a pipe means that the samples extend to the end of the file.

    Args:
        content: The bytes of the file.
        name: The name of the file, for messages.

    Raises:
        DataError: The file is damaged or truncated, or has samples of another kind.
    """
    try:
        layout, data = _parts(content)
    except ValueError as error:
        raise DataError(
            f"{name}: no WAV file that can be read ({error}): convert it to PCM of 16 bits (with "
            f"ffmpeg: -c:a pcm_s16le)"
        ) from None
    frame = layout.width * layout.channels
    samples = _scaled(data[: len(data) // frame * frame], layout)
    if layout.channels > 1:
        samples = samples.reshape(-1, layout.channels).mean(axis=1, dtype=np.float32)
    return Waveform(np.ascontiguousarray(samples), layout.rate)


def _parts(content: bytes) -> tuple[_Layout, memoryview]:
    """Returns the layout and the bytes of the samples.

    Raises:
        ValueError: It is not a WAV file, is truncated, or has samples of another kind.
    """
    magic, kind = content[:4], content[8:12]
    if magic not in (b"RIFF", b"RIFX", b"RF64", b"BW64") or kind != b"WAVE":
        raise ValueError("it does not begin with RIFF and WAVE")
    order = ">" if magic == b"RIFX" else "<"
    layout, large, at = None, None, 12
    while at + 8 <= len(content):
        tag = content[at : at + 4]
        (size,) = struct.unpack_from(f"{order}I", content, at + 4)
        at += 8
        if tag == b"data":
            if layout is None:
                raise ValueError("samples before their format")
            if size == _TOLD_APART and large is not None:
                size = large
            end = _end_of_samples(content, order, at, size)
            if end > len(content):
                raise ValueError(
                    f"{size:,} bytes of samples by its header, and {len(content) - at:,} are there"
                )
            return layout, memoryview(content)[at:end]
        if at + size > len(content):
            break
        if tag == b"fmt ":
            layout = _layout(content[at : at + size], order)
        elif tag == b"ds64" and size >= 16:
            (large,) = struct.unpack_from("<Q", content, at + 8)
        at += size + size % 2
    raise ValueError("it ends before its samples")


def _end_of_samples(content: bytes, order: str, start: int, size: int) -> int:
    """Returns the end of the samples: the end of the file if the size is a placeholder."""
    if size >= _PLACEHOLDER and start + size > len(content):
        return len(content)
    # A size of 0 is correct if the file ends there, or continues with other chunks.
    if size == 0 and not _chunks(content, order, start):
        return len(content)
    return start + size


def _chunks(content: bytes, order: str, at: int) -> bool:
    """Returns whether chunks fill the rest of the file."""
    while at + 8 <= len(content):
        if not all(32 <= byte < 127 for byte in content[at : at + 4]):  # its name; silence is 0
            return False
        (size,) = struct.unpack_from(f"{order}I", content, at + 4)
        at += 8 + size + size % 2
    return at in (len(content), len(content) + 1)


def _layout(chunk: bytes, order: str) -> _Layout:
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
        return _Layout(rate, channels, np.dtype(f"{order}f{width}"), width, order)
    if kind == _PCM and width in (1, 2, 3, 4):
        dtype = f"{order}i{width}" if width in (2, 4) else "u1"
        return _Layout(rate, channels, np.dtype(dtype), width, order)
    raise ValueError(f"samples of {bits} bits")


def _scaled(data: memoryview, layout: _Layout) -> Float32[np.ndarray, " N"]:
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
