"""Images cut into patches: Dosovitskiy et al. 2021, section 3.1 (row L3)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.functional.patches import patchify

IMAGES = np.random.default_rng(0).standard_normal((2, 6, 9, 4)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_each_patch_is_a_square_of_its_image(dtype):
    images = (50 * IMAGES).astype(dtype)
    found = np.asarray(patchify(jnp.asarray(images), 3))
    assert found.shape == (2, 2 * 3, 3 * 3 * 4)
    assert found.dtype == dtype
    for row in range(2):
        for column in range(3):
            square = images[:, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3]
            np.testing.assert_array_equal(found[:, 3 * row + column], square.reshape(2, -1))


def test_a_map_of_patches_is_a_convolution_with_their_stride():
    kernel = np.random.default_rng(1).standard_normal((3, 3, 4, 5)).astype(np.float32)
    found = patchify(jnp.asarray(IMAGES), 3) @ kernel.reshape(-1, 5)
    wanted = jax.lax.conv_general_dilated(
        IMAGES, kernel, (3, 3), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(found, wanted.reshape(2, 6, 5), atol=1e-5)


@pytest.mark.parametrize("size", [0, -3, 2, 4, 6, 9])
def test_a_size_that_does_not_divide_is_refused(size):
    with pytest.raises(ValueError, match="6 x 9 pixels cannot be cut into patches of"):
        patchify(jnp.asarray(IMAGES), size)
