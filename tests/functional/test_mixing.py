"""MixUp and CutMix: images are mixed as much as the loss says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.functional.mixing import mix_images

B = 6
VALID = jnp.array([True] * (B - 1) + [False])
# Constant images: the mean of a mixture tells the weights of both.
IMAGES = jnp.broadcast_to(jnp.arange(1.0, B + 1)[:, None, None, None], (B, 16, 16, 1))


@pytest.mark.parametrize("alphas", [(0.4, 0.0), (0.0, 1.0), (0.4, 1.0)])
def test_the_weight_is_the_share_of_the_first_image(alphas):
    mix = jax.jit(lambda key: mix_images(IMAGES, VALID, key, *alphas))
    weights = []
    for seed in range(20):
        mixed = mix(jax.random.key(seed))
        assert mixed.partners.tolist() == [0, 4, 3, 2, 1, 5]  # the last row is empty
        both = mixed.weight * IMAGES + (1 - mixed.weight) * IMAGES[mixed.partners]
        means = np.asarray(mixed.images, np.float64).mean((1, 2, 3))
        np.testing.assert_allclose(means, both[:, 0, 0, 0], rtol=1e-5)
        weights.append(float(mixed.weight))
        values = set(np.unique(mixed.images[1]).tolist())
        assert len(values) <= 1 or not alphas[1] or values <= {2.0, 5.0}
    assert 0 <= min(weights) < 0.5 < max(weights) <= 1
