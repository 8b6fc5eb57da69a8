"""Eight CPU devices, shapes checked at run time, and JAX at its strictest."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile much and run little: LLVM at its quickest halves their time and changes no law.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
os.environ["TRANSFORMER_JAX_CACHE"] = "off"  # nothing is left in the home of who runs the tests

from jaxtyping import install_import_hook

install_import_hook("transformer_jax", "beartype.beartype")

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key():
    return jax.random.key(0)
