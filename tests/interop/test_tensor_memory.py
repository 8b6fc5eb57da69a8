"""Memory that arrays share: never overlapping, and given back when it should be."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from transformer_jax.interop.tensor_memory import Shared

SIZES = [3, 700, 1 << 14, (1 << 14) + 1, 1 << 18, (1 << 20) + 7]


def test_arrays_are_aligned_and_keep_what_is_written_to_them():
    """Also when threads ask at once."""
    memory = Shared()
    with ThreadPoolExecutor(4) as pool:
        arrays = list(pool.map(lambda size: memory((size,), np.float32), SIZES * 20))
    for number, array in enumerate(arrays):
        assert array.ctypes.data % 64 == 0
        array[...] = number
    assert all((array == number).all() for number, array in enumerate(arrays))


@pytest.mark.parametrize("shape", [(), (0,), (4, 0, 3), (5, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.float64])
def test_any_shape_and_type(shape, dtype):
    array = Shared()(shape, dtype)
    assert (array.shape, array.dtype) == (shape, dtype)
    array[...] = 1


def test_small_arrays_hold_no_others_back():
    """Biases stay where they are when kernels are laid out anew."""
    tracemalloc.start()
    memory = Shared()
    biases, kernels = [], []
    for _ in range(80):
        kernels.append(memory((512, 512), np.float32))
        biases.append(memory((512,), np.float32))
    assert tracemalloc.get_traced_memory()[0] > 80 << 20
    kernels.clear()
    # The last piece waits for more.
    assert tracemalloc.get_traced_memory()[0] < 36 << 20
    assert len(biases) == 80
    tracemalloc.stop()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the law is of a CPU")
def test_jax_takes_it_over_without_a_copy():
    array = Shared()((300, 300), np.float32)
    array[...] = 1
    placed = jax.device_put(array)
    assert placed.unsafe_buffer_pointer() == array.ctypes.data
