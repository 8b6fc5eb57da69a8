"""Decoding of pictures to arrays of pixels, by Pillow: bounded, upright, and in one mode."""

import io
import warnings
from typing import BinaryIO, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageFile, ImageOps

from transformer_jax.core.errors import DataError

__all__ = ["FORMATS", "MAX_PIXELS", "SUFFIXES", "decode", "read_header"]

# Formats that are only decoded: some of Pillow's start programs (EPS) or open further files.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
SUFFIXES = (
    ".jpg", ".jpeg", ".jfif", ".jpe", ".png", ".apng", ".gif", ".bmp", ".webp", ".tif", ".tiff",
    ".ppm", ".pgm", ".pbm", ".pnm",
)  # fmt: skip
MAX_PIXELS = 89_478_485
"""The largest number of pixels that Pillow decodes without a warning."""

# Beyond MAX_PIXELS, an error instead of a warning: the picture is refused.
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)


class Header(NamedTuple):
    """Format, mode and size of an encoded picture."""

    format: str
    mode: str
    width: int
    height: int


def read_header(content: bytes | BinaryIO, where: str, max_pixels: int = MAX_PIXELS) -> Header:
    """Reads the format, mode and size of an encoded picture.

    Args:
        content: The file; an open file is read no further than needed.
        where: Name of the file, with which messages begin.
        max_pixels: Largest number of pixels.

    Raises:
        DataError: It is not a picture of a known format, or has more pixels.

    Example:
        >>> read_header(b"P6 2 1 255 " + bytes(6), "dot.ppm")
        Header(format='PPM', mode='RGB', width=2, height=1)
        >>> read_header(b"hello", "dot.png")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.DataError: dot.png: no picture: the formats are JPEG, PNG, ...
    """
    with _opened(content, where, max_pixels) as picture:
        return Header(str(picture.format), picture.mode, *picture.size)


def decode(
    content: bytes, where: str, channels: int = 3, max_pixels: int = MAX_PIXELS
) -> UInt8[np.ndarray, "height width {channels}"]:
    """Decodes a picture; of an animation, the first frame.

    - It is turned upright according to its EXIF orientation.
    - Transparent pixels are blended over white; so is the transparent colour of a PNG.
    - 16 bits of grey become 8, by division by 257; of a colour, the upper 8 remain.
    - Palettes, CMYK, YCbCr, LAB and HSV become RGB, or grey if ``channels`` is 1; grey becomes
      three equal channels.

    Args:
        content: The file.
        where: Name of the file, with which messages begin.
        channels: 3 for RGB, 1 for grey.
        max_pixels: Largest number of pixels, checked before decoding.

    Raises:
        DataError: It is not a picture of a known format, is truncated or damaged, has more pixels,
            contains floating-point numbers or 32-bit integers, or has a transparent colour of 16
            bits per channel.

    Example:
        >>> decode(b"P5 2 1 255 " + bytes([0, 255]), "dots.pgm").tolist()
        [[[0, 0, 0], [255, 255, 255]]]
    """
    with _opened(content, where, max_pixels) as picture:
        # Other formats hold at most 16 bits in this mode.
        whole = picture.mode == "I" and picture.format == "TIFF"
        if whole or picture.mode == "F":
            kind = "32-bit integers" if whole else "floating-point numbers"
            raise DataError(f"{where}: pixels are {kind}: save it with 8 bits")
        _scale_transparent_grey(picture, where)
        try:
            upright = ImageOps.exif_transpose(picture)
            pixels = np.asarray(_in_mode(upright, "L" if channels == 1 else "RGB"))
        except Exception as error:  # Pillow's readers raise errors of many classes
            raise DataError(
                f"{where}: the picture is damaged or truncated ({_line(error)}): replace the file, "
                f"or leave it out"
            ) from None
    return pixels[..., None] if channels == 1 else pixels


def _opened(content: bytes | BinaryIO, where: str, max_pixels: int) -> ImageFile.ImageFile:
    file = io.BytesIO(content) if isinstance(content, bytes) else content
    try:
        picture = Image.open(file, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(
            f"{where}: more than {min(max_pixels, MAX_PIXELS):,} pixels: make it smaller, or leave "
            f"it out"
        ) from None
    except Exception as error:  # Pillow's readers raise errors of many classes
        known = ", ".join(FORMATS)
        detail = "" if isinstance(error, Image.UnidentifiedImageError) else f" ({_line(error)})"
        raise DataError(f"{where}: no picture{detail}: the formats are {known}") from None
    if picture.width * picture.height > max_pixels:
        raise DataError(
            f"{where}: {picture.width:,} x {picture.height:,} pixels, but at most {max_pixels:,} "
            f"are allowed: make it smaller, or raise data.read.max_pixels"
        )
    return picture


def _in_mode(picture: Image.Image, mode: str) -> Image.Image:
    """Converts a picture to RGB or grey; see :func:`decode`."""
    if picture.mode.startswith("I"):
        wide = np.asarray(picture).astype(np.int64).clip(0, 65_535)
        # Compared before division, as shades next to the transparent one are opaque.
        clear = wide == picture.info.get("transparency", -1)
        picture = Image.fromarray(np.where(clear, 255, wide // 257).astype(np.uint8))
    if picture.has_transparency_data:
        with_alpha = picture.convert("RGBA")
        white = Image.new("RGBA", with_alpha.size, "white")
        picture = Image.alpha_composite(white, with_alpha)
    # Not every mode converts to grey directly.
    return (
        picture.convert(mode)
        if picture.mode in ("1", "L")
        else picture.convert("RGB").convert(mode)
    )


def _scale_transparent_grey(picture: ImageFile.ImageFile, where: str) -> None:
    """Scales the transparent shade of a PNG with 2 or 4 bits as Pillow scales its pixels.

    Raises:
        DataError: The transparent color has 16 bits per channel, of which Pillow reads 8.
    """
    shade, raw = picture.info.get("transparency"), str(picture.tile[0].args) if picture.tile else ""
    if picture.format != "PNG" or shade is None:
        return
    if raw.startswith("RGB;16"):
        raise DataError(f"{where}: a transparent color of 16 bits per channel: save it with 8 bits")
    if raw in ("L;2", "L;4"):
        picture.info["transparency"] = shade * 255 // (2 ** int(raw[-1]) - 1)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
