"""cuDNN's attention on a GPU is the formula of the library: outputs and gradients, random cases.

JAX_PLATFORMS=cuda,cpu python -m pytest tests/device
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import SWEEP_SEED
from tests.drawing import normals
from transformer_jax import laws
from transformer_jax.functional import masks
from transformer_jax.functional.kernels import cudnn, xla
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import Scores

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="there is no GPU")

CASES = 24


def drawn(rng):
    """Returns a random case that the kernel supports: arrays and mask."""
    H, K = int(rng.choice([8, 32, 40, 64, 80, 128, 256])), int(rng.integers(1, 4))
    B, N, T = int(rng.integers(1, 4)), K * int(rng.integers(1, 4)), int(rng.integers(2, 200))
    causal = bool(rng.integers(2))
    S = T if causal else int(rng.integers(2, 200))
    mask = Mask()
    if causal:
        mask = mask & masks.causal()
        if rng.integers(2):
            mask = mask & masks.sliding_window_mask(int(rng.integers(1, T + 1)))
    if mask.window is None and rng.integers(2):
        lengths = jnp.asarray(rng.integers(0, S + 1, B), jnp.int32)
        mask = mask & masks.length_mask(lengths)
    shapes = (B, N, T, H), (B, K, S, H), (B, K, S, H)
    return normals(*shapes, dtype=jnp.bfloat16), mask


def by(run):
    """Returns the kernel in bfloat16, with its gradients, of and in float32."""

    def wide(q, k, v, mask):
        q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
        return run(q, k, v, Scores(mask)).astype(jnp.float32)

    return laws.with_gradients(wide)


@pytest.mark.parametrize("case", range(CASES))
def test_cudnn_is_the_formula(case):
    half, mask = drawn(np.random.default_rng([int(SWEEP_SEED), case]))
    assert cudnn.supports(*half, Scores(mask)) is None
    inputs = [x.astype(jnp.float32) for x in half]
    rounding = laws.attention_kernel(by(xla.run), *inputs, mask).error
    laws.attention_kernel(by(cudnn.run), *inputs, mask, tolerance=2 * rounding + 1e-3).require()
    visible = mask.any_visible(inputs[0].shape[2], inputs[1].shape[2])
    if visible is not None and not visible.all():
        laws.masked_rows(by(cudnn.run), *inputs, mask).require()
