"""Laws of attention find planted faults, and say where."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import laws
from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional import masks
from transformer_jax.functional.scores import ScaledDot
from transformer_jax.laws import attention_formula

B, N, K, T, S, H, U = 2, 4, 2, 5, 7, 8, 6
draw = np.random.default_rng(0)
Q, KEYS, V = (
    draw.standard_normal(shape, np.float32) for shape in [(B, N, T, H), (B, K, S, H), (B, K, S, U)]
)
MASK = np.tri(T, S, 1, bool)[None, None] & (np.arange(S) < np.array([[6], [2]]))[:, None, None]
# The last query of the second row sees nothing.
PARTLY = MASK & ~((np.arange(B) == 1)[:, None] & (np.arange(T) == T - 1))[:, None, :, None]


def plain(q, k, v, cotangent, mask):
    return attention_formula(q, k, v, cotangent, mask)


def changed(**options):
    """The formula with other options, or with a changed mask, queries, keys or values."""

    def run(q, k, v, cotangent, mask):
        given = {"q": q, "k": k, "v": v, "cotangent": cotangent, "mask": mask}
        new = {name: f(given[name]) if name in given else f for name, f in options.items()}
        return attention_formula(**(given | new))

    return run


FAULTS = {
    "mask flipped": changed(mask=lambda mask: ~mask),
    "mask never passed": changed(mask=lambda mask: None),
    "mask one ahead": changed(mask=lambda mask: mask | np.roll(mask, 1, -1)),
    "mask of the first row": changed(mask=lambda mask: mask[:1]),
    "scale missing": changed(score=ScaledDot(1.0)),
    "scale of the values": changed(score=ScaledDot(U**-0.5)),
    "soft cap": changed(score=ScaledDot(softcap=2.0)),
    "key positions shifted": changed(k=lambda k: np.roll(k, 1, 2)),
    "heads of keys in the wrong order": changed(k=lambda k: k[:, ::-1], v=lambda v: v[:, ::-1]),
    "a bias": changed(bias=np.linspace(0, 1, S)[None, None, None]),
    "gradient of keys not summed over heads": lambda *args: (
        *plain(*args)[:2], plain(*args)[2] / 2, plain(*args)[3],
    ),
    "gradient not through the softmax": lambda *args: (
        plain(*args)[0], 1.1 * plain(*args)[1], *plain(*args)[2:],
    ),
}  # fmt: skip
# The others are of gradients, and the whole mask.
POLARITY = [name for name in FAULTS if name.startswith("mask")]


@pytest.mark.parametrize("name", FAULTS)
def test_kernels(name):
    laws.attention_kernel(plain, Q, KEYS, V, MASK).require()
    found = laws.attention_kernel(FAULTS[name], Q, KEYS, V, MASK)
    assert found.error > 1e-2
    assert found.where.startswith("gradient of" if "gradient" in name else ("output", "gradient"))


def test_a_kernel_without_gradients_is_compared_by_its_output():
    laws.attention_kernel(lambda *args: plain(*args)[:1], Q, KEYS, V, MASK).require()
    found = laws.attention_kernel(lambda *args: (2 * plain(*args)[0],), Q, KEYS, V, MASK)
    assert found.where.startswith("output: row ")


def test_masks_of_the_package_are_read():
    mask = masks.causal(offset=1) & masks.length_mask(jnp.array([6, 2]))
    given = lambda q, k, v, cotangent, _: plain(q, k, v, cotangent, MASK)
    laws.attention_kernel(given, Q, KEYS, V, mask).require()


@pytest.mark.parametrize("name", POLARITY)
def test_polarity(name):
    output = lambda run: lambda q, k, v, mask: run(q, k, v, 0 * q, mask)[0]
    laws.mask_polarity(output(plain), Q, KEYS, MASK).require()
    found = laws.mask_polarity(output(FAULTS[name]), Q, KEYS, MASK)
    assert not found.holds
    assert "reads key" in found.where or "does not read key" in found.where


def test_fully_masked_rows():
    laws.masked_rows(plain, Q, KEYS, V, PARTLY).require()
    mean = lambda *args: (plain(*args)[0] + args[2].mean() * ~PARTLY.any(-1, keepdims=True),)
    assert laws.masked_rows(mean, Q, KEYS, V, PARTLY).where == "output: row 1, head 0, query 4"
    leaking = lambda *args: (plain(*args)[0], plain(*args)[1] + 1e-9)
    found = laws.masked_rows(leaking, Q, KEYS, V, PARTLY)
    assert found.where == "gradient of queries: row 1, head 0, query 4"
    unseen = lambda *args: (*plain(*args)[:3], plain(*args)[3] + 1e-9)
    found = laws.masked_rows(unseen, Q, KEYS, V, PARTLY)
    assert found.where == "gradient of values: row 0, head 0, key 6"
    with pytest.raises(ArgumentError, match="give a mask with a fully masked row"):
        laws.masked_rows(plain, Q, KEYS, V, MASK)
    absent = lambda *args: (np.where(PARTLY.any(-1)[..., None], plain(*args)[0], np.nan),)
    assert laws.masked_rows(absent, Q, KEYS, V, PARTLY).error == np.inf


def test_rows_of_weights():
    weights = PARTLY / np.maximum(PARTLY.sum(-1, keepdims=True), 1)
    laws.weights_sum_to_one(weights, PARTLY).require()
    laws.weights_sum_to_one(weights[:1]).require()
    assert laws.weights_sum_to_one(weights).where == "row [1, 0, 4]"
    assert "invisible" in laws.weights_sum_to_one(np.full((B, 1, T, S), 1 / S), MASK).where
    assert "below zero" in laws.weights_sum_to_one(np.array([[1.5, -0.5]])).where
    # Dropout, or half precision on the way.
    assert laws.weights_sum_to_one(weights[:1] * 1.001).where.startswith("row [0, 0")
