"""Our cases on a GPU, all in one process: speeds of the device, training steps and decoding."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from benchmarks import kernel_profile, ours, ours_language
from benchmarks.worker import Setup, serve

_TIMES = 10  # calls between two looks at the clock


def speeds(rows: int, width: int, vocab: int, side: int, size: int) -> tuple[Any, dict[str, Any]]:
    """Measures bandwidth, and products in bfloat16 of the shapes of a language model.

    Args:
        rows: Tokens of a batch.
        width: Model dimension; feed-forward layers are four times as wide.
        vocab: Size of the vocabulary.
        side: Rows and columns of a large product.
        size: Number of values of an addition.
    """
    draw = lambda *shape: jax.random.normal(jax.random.key(0), shape, jnp.bfloat16)
    x, up, table, wide = (
        draw(rows, width), draw(width, 4 * width), draw(vocab, width), draw(rows, 4 * width)
    )  # fmt: skip
    part, square, long = x[: rows // 4], draw(side, side), draw(size)
    logits = lambda dtype: lambda x, w: jnp.einsum("rd,vd->rv", x, w, preferred_element_type=dtype)
    of_logits = 2 * len(part) * width * vocab
    jobs: dict[str, tuple[Callable[..., Array], tuple[Array, ...], float]] = {
        "addition_tb_per_s": (lambda x: x + 1, (long,), 4 * size),
        "square_product_tflops": (jnp.matmul, (square, square), 2 * side**3),
        "up_product_tflops": (jnp.matmul, (x, up), 2 * rows * width * 4 * width),
        "up_gradient_tflops": (lambda x, g: x.T @ g, (x, wide), 2 * rows * width * 4 * width),
        "float32_logits_tflops": (logits(jnp.float32), (part, table), of_logits),
        "bfloat16_logits_tflops": (logits(jnp.bfloat16), (part, table), of_logits),
    }  # fmt: skip
    found = {
        name: float(f"{amount / _seconds(jax.jit(call), operands) / 1e12:.4g}")
        for name, (call, operands, amount) in jobs.items()
    }
    return lambda times: None, {"device": jax.devices()[0].device_kind, **found}


def _seconds(call: Callable[..., Array], operands: tuple[Array, ...]) -> float:
    """Returns the median time of a call."""
    jax.block_until_ready(call(*operands))
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(_TIMES):
            out = call(*operands)
        jax.block_until_ready(out)
        taken.append((time.perf_counter() - began) / _TIMES)
    return sorted(taken)[2]


CASES: dict[str, Setup] = {
    "speeds": speeds,
    "language-train": ours_language.train,
    "language-decode": ours_language.decode,
    "train": ours.train,
    "decode": ours.decode,
}

if __name__ == "__main__":
    serve(CASES, kernel_profile.of_jax)
