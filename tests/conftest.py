"""Eight CPU devices, shapes checked at run time, and JAX at its strictest."""

import importlib.metadata
import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile much and run little: compilers at their quickest halve their time and change no law.
quick = ["--xla_backend_optimization_level=0"]
if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones do not know it
    quick.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *quick])

from jaxtyping import install_import_hook

from transformer_jax.compiled import keep_compiled

# What one worker, command or run of the tests compiled is compiled by no other; nothing is left
# in the home of who runs them.
os.environ["TRANSFORMER_JAX_CACHE"] = str(Path(__file__).parents[1] / ".pytest_cache/programs")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
keep_compiled()

install_import_hook("transformer_jax", "beartype.beartype")

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def key():
    return jax.random.key(0)
