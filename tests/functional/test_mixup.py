"""MixUp and CutMix: images are mixed as much as the loss says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.functional.losses import token_cross_entropy
from transformer_jax.functional.mixup import mix_images
from transformer_jax.training.objectives import image_classification

B = 6
VALID = jnp.array([True] * (B - 1) + [False])
# Constant images: the mean of a mixture tells the weights of both.
IMAGES = jnp.broadcast_to(jnp.arange(1.0, B + 1)[:, None, None, None], (B, 16, 16, 1))


@pytest.mark.quick("alphas0")
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


@pytest.mark.slow
def test_the_loss_is_that_of_both_labels():
    """A row whose partner is empty has its own label twice, and the empty row counts nothing."""
    labels, key = jnp.array([1, 0, 2, 1, 2, -1]), jax.random.key(3)
    model = lambda images, key: images.mean((1, 2)) * jnp.array([[0.1, -0.2, 0.3]])
    sums = image_classification(mixup=0.4)(model, {"images": IMAGES, "labels": labels}, key)
    mixed = mix_images(IMAGES, labels >= 0, jax.random.split(key)[1], 0.4)
    assert 0.01 < mixed.weight < 0.99
    logits = model(mixed.images, None)
    one, other = jnp.array([1, 0, 2, 1, 2]), jnp.array([1, 2, 1, 2, 0])
    loss = lambda wanted: token_cross_entropy(logits[:5], wanted).sum()
    wanted = mixed.weight * loss(one) + (1 - mixed.weight) * loss(other)
    np.testing.assert_allclose(sums["loss"][0], wanted, rtol=1e-5)
    assert sums["loss"][1] == 5
