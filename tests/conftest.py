"""Eight CPU devices, shapes checked at run time, and JAX at its strictest."""

import fcntl
import gc
import importlib.metadata
import os
import random
import shutil
import sys
from pathlib import Path

# Bytecode is kept for the commands that tests start and for the next run, in any environment:
# a third of the time of collection is rewriting assertions and signatures.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Workers share the cores: threads of OpenMP (CTranslate2, BLAS, torch) and of tokenizers that wait
# for work in a loop would take three quarters of their time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAYON_NUM_THREADS", "1")
# Tests compile much and run little: compilers at their quickest halve their time and change no law.
quick = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones do not know it
    quick.append("--xla_cpu_use_fusion_emitters=false")
if os.environ["JAX_PLATFORMS"] == "cpu":
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *quick])

from tests import checked_signatures
from transformer_jax.core.runtime import enable_compilation_cache

ROOT = Path(__file__).parents[1]
collect_ignore = ["stored/make.py"]  # a program for the checkout of 0.1.0
# What one worker, command or run of the tests compiled is compiled by no other; nothing is left
# in the home of who runs them.
os.environ["TRANSFORMER_JAX_CACHE"] = str(ROOT / ".pytest_cache/programs")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
enable_compilation_cache()

checked_signatures.check_signatures(ROOT)

import jax
import pytest
from hypothesis.internal.conjecture import providers

from tests.budget import Budget
from tests.lowering import share_context
from tests.memory import MemoryBound
from tests.slices import Slice

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Nobody reads where a line of a lowered program comes from; to write it takes time.
jax.config.update("jax_include_full_tracebacks_in_locations", False)
share_context()
# Hypothesis would parse the package in each worker for constants to draw; our tests say what they
# draw.
providers.is_local_module_file = lambda path: False


# One for all workers of a run.
SWEEP_SEED = os.environ.setdefault("SWEEP_SEED", str(random.SystemRandom().randrange(10**6)))


def pytest_addoption(parser):
    group = parser.getgroup("cost", "what tests cost")
    say = "fail when the tests take more CPU seconds than so many runs of a reference program"
    group.addoption("--cpu-budget", type=float, metavar="RUNS", help=say)
    say = "and when a worker held more than so many gigabytes"
    group.addoption("--memory-budget", type=float, default=2.0, metavar="GB", help=say)
    say = "of the tests selected otherwise, those of slice I of N, I from 0 to N - 1"
    group.addoption("--slice", type=Slice.parse, metavar="I/N", help=say)


def pytest_configure(config):
    # `make test` checks functions of modules and classes, `make test-all` those within them too.
    checked_signatures.inner_functions = "not slow" not in config.getoption("markexpr")
    config.pluginmanager.register(MemoryBound())
    if config.getoption("cpu_budget") is not None:
        config.pluginmanager.register(Budget(config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if not (chosen := config.getoption("slice")):
        return
    config.hook.pytest_deselected(items=[one for one in items if not chosen.has(one)])
    items[:] = filter(chosen.has, items)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector, name):
    """Cases that their function's ``quick`` does not name are slow; each named one exists."""
    found = yield
    items = [item for item in found if item.get_closest_marker("quick")] if found else []
    ids = [item.callspec.id for item in items]
    for item in items:
        named = item.get_closest_marker("quick").args
        if missing := [one for one in named if one not in ids]:
            raise collector.CollectError(f"{name}: quick names {missing}, the cases are {ids}")
        if item.callspec.id not in named:
            item.add_marker(pytest.mark.slow)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Imports of collection stay to the end: the garbage collector leaves them alone."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()


def pytest_report_header(config):
    if "not parity" in config.getoption("markexpr"):
        return None
    return f"random configurations: SWEEP_SEED={SWEEP_SEED} repeats them"


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """``shared(name, make)``: a folder that one worker makes by ``make(folder)``, for all of them.

    Tests that change it take a copy.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder of its own in there
        root = root.parent
    root = root / "shared"
    root.mkdir(exist_ok=True)

    def once(name, make):
        folder, done = root / name, root / f"{name}.done"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                make(folder)
                done.touch()
        return folder

    return once


@pytest.fixture
def no_curves(monkeypatch):
    """A run ends with an empty ``curves.png``: to draw it takes as long as a few steps."""
    blank = lambda history, path, **how: path.touch()
    monkeypatch.setattr("transformer_jax.training.curves.training_curves", blank)


@pytest.fixture
def key():
    return jax.random.key(0)
