"""Encoded pictures become pixels of one mode, and bad ones are refused with their file."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from transformer_jax.core.errors import DataError
from transformer_jax.data.images.pixel_decoding import decode, read_header


def encoded(picture, format="PNG", **options):
    file = io.BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8)
RGB = Image.fromarray(PIXELS)


def test_pixels_come_back():
    np.testing.assert_array_equal(decode(encoded(RGB), "a.png"), PIXELS)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "LA", "CMYK", "YCbCr", "LAB"])
@pytest.mark.parametrize("channels", [1, 3])
def test_other_modes_look_alike(mode, channels):
    """Palettes, grey, transparency, CMYK and others become RGB or grey like Pillow's own."""
    smooth = Image.fromarray(np.full((4, 4, 3), (200, 40, 90), np.uint8))
    picture = smooth.convert("L").convert("LA") if mode == "LA" else None
    if mode == "LAB":
        from PIL import ImageCms

        profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        picture = ImageCms.profileToProfile(smooth, *profiles, outputMode="LAB")
    picture = picture or smooth.convert(mode)
    found = decode(
        encoded(picture, "TIFF" if mode in ("CMYK", "YCbCr", "LAB") else "PNG"), "a", channels
    )
    assert found.shape == (4, 4, channels)
    if mode != "LAB":
        plain = picture.convert("RGB").convert("RGB" if channels == 3 else "L")
        assert abs(found.astype(int) - np.asarray(plain).reshape(found.shape)).max() <= 1


def test_transparent_pixels_are_white():
    picture = Image.fromarray(np.array([[[255, 0, 0, 0], [255, 0, 0, 255]]], np.uint8))
    assert decode(encoded(picture), "a.png").tolist() == [[[255, 255, 255], [255, 0, 0]]]


@pytest.mark.parametrize("form", ["TIFF", "PNG", "PPM"])
def test_sixteen_bits_become_eight(form):
    wide = np.array([[0, 257, 65_535]], np.uint16)
    assert decode(encoded(Image.fromarray(wide), form), "a", 1)[..., 0].tolist() == [[0, 1, 255]]


def test_pictures_are_upright():
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    found = decode(encoded(RGB, exif=exif), "a.png")
    np.testing.assert_array_equal(found, np.rot90(PIXELS, -1))


def png(width, height, bits, color, data, clear=None):
    """A PNG of pixels ``data``, with a transparent color, as Pillow writes none of 2 or 16 bits."""
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    chunk = lambda name, data: (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    )
    clear = b"" if clear is None else chunk(b"tRNS", clear)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + clear
        + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    )  # fmt: skip


GREY, COLOR = 0, 2


@pytest.mark.parametrize(
    ("bits", "shades", "clear", "wanted"),
    [
        (1, bytes([0b0100_0000]), 1, [0, 255]),
        (1, bytes([0b0100_0000]), 0, [255, 255]),
        (2, bytes([0b0110_0000]), 1, [255, 170]),
        (4, bytes([0x3A]), 3, [255, 170]),
        (8, bytes([3, 200]), 3, [255, 200]),
        (16, struct.pack(">2H", 771, 772), 771, [255, 3]),  # both are 3 of 8 bits
    ],
)
def test_the_transparent_shade_of_a_grey_png_is_white(bits, shades, clear, wanted):
    made = png(2, 1, bits, GREY, b"\0" + shades, struct.pack(">H", clear))
    assert decode(made, "a.png", 1).ravel().tolist() == wanted


def test_the_transparent_color_of_a_png_is_white_or_refused():
    eight = png(2, 1, 8, COLOR, b"\0\1\2\3\4\5\6", struct.pack(">3H", 1, 2, 3))
    assert decode(eight, "a.png").tolist() == [[[255, 255, 255], [4, 5, 6]]]
    shades = struct.pack(">6H", 256, 511, 771, 1, 2, 3)
    sixteen = png(2, 1, 16, COLOR, b"\0" + shades, shades[:6])
    with pytest.raises(DataError, match=r"a.png: a transparent color of 16 bits per channel: save"):
        decode(sixteen, "a.png")


def bomb(side=60_000):
    """A small PNG that declares a huge picture."""
    return png(side, side, 8, GREY, bytes(100))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.png: no picture: the formats are JPEG"),
        (b"text", "a.png: no picture: the formats are JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "a.png: no picture"),
        (bomb(60_000), "a.png: more than 50,000,000 pixels: make it smaller"),
        (bomb(10_000), "a.png: more than 50,000,000 pixels: make it smaller"),
        (bomb(9_000), "a.png: 9,000 x 9,000 pixels, but at most 50,000,000 are allowed"),
        (encoded(RGB)[:150], "a.png: the picture is damaged or truncated"),
        (encoded(RGB, "JPEG")[:-60], "a.png: the picture is damaged or truncated"),
        (encoded(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"), "a.png: pixels are float"),
        (encoded(Image.fromarray(np.ones((2, 2), np.int32)), "TIFF"), "a.png: pixels are 32-bit"),
    ],
    ids=["empty", "text", "eps", "bomb", "half a bomb", "large", "png", "jpeg", "floats", "wide"],
)  # fmt: skip
def test_bad_pictures_are_refused(content, message):
    with pytest.raises(DataError, match="^" + message) as caught:
        decode(content, "a.png", max_pixels=50_000_000)
    assert "\n" not in str(caught.value)


def test_a_header_tells_the_size_without_decoding():
    assert read_header(encoded(RGB, "JPEG"), "a")[2:] == (9, 6)
    with pytest.raises(DataError, match="9,000 x 9,000"):
        read_header(bomb(9_000), "a", 1_000_000)
