"""Positions for images of another size."""

import numpy as np
import pytest

from transformer_jax.models.config import ImageConfig
from transformer_jax.models.image_positions import resized_positions

TABLE = np.random.default_rng(0).standard_normal((1 + 16, 8)).astype(np.float32)
SIZES = ImageConfig(16, patch_size=4)


def test_positions_of_the_same_size_stay():
    assert resized_positions(TABLE, SIZES, ImageConfig(32, patch_size=8)) is TABLE


@pytest.mark.slow
def test_other_embeddings_before_the_patches():
    distilled = ImageConfig(16, patch_size=4, distillation="head")
    pooled = ImageConfig(16, patch_size=4, pooling="sequence")
    found = resized_positions(TABLE, SIZES, distilled)
    np.testing.assert_allclose(found[2:], TABLE[1:], atol=1e-6)
    assert (found[0] == TABLE[0]).all()
    assert not found[1].any()
    np.testing.assert_allclose(resized_positions(TABLE, SIZES, pooled), TABLE[1:], atol=1e-6)


@pytest.mark.parity
@pytest.mark.parametrize("size", [8, 12, 28, 48])
def test_positions_are_those_of_transformers(size):
    """Bicubic interpolation of ``ViTModel`` with ``interpolate_pos_encoding``."""
    torch = pytest.importorskip("torch")
    vit = pytest.importorskip("transformers.models.vit.modeling_vit")
    from transformers import ViTConfig

    config = ViTConfig(hidden_size=8, image_size=16, patch_size=4, num_attention_heads=2)
    embeddings = vit.ViTEmbeddings(config)
    embeddings.position_embeddings.data = torch.tensor(TABLE[None])
    other = ImageConfig(size, patch_size=4)
    rows = torch.zeros(1, other.sequence_length, 8)
    wanted = embeddings.interpolate_pos_encoding(rows, size, size)[0].detach().numpy()
    np.testing.assert_allclose(resized_positions(TABLE, SIZES, other), wanted, atol=1e-5)
