"""A training step of every family and task is that of one device, on every mesh."""

import functools
import json
import random

import jax
import numpy as np
import pytest

from tests.training import families
from tests.two_processes import reports
from transformer_jax import laws
from transformer_jax.functional.kernels import choice as kernels
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.settings import MeshConfig

MESHES = {
    "8x1x1": MeshConfig(8),
    "1x8x1": MeshConfig(1, 8),
    "1x4x2": MeshConfig(1, 4, 2),
    "2x2x2": MeshConfig(2, 2, 2),
    "1x1x8": MeshConfig(1, 1, 8),  # more than there are heads
    "1x2x1x4": MeshConfig(1, 2, 1, 4),
    "1x2x2x2": MeshConfig(1, 2, 2, 2),
}


@functools.lru_cache
def alone(task, length):
    params, loss = families.step_on(
        make_mesh(MeshConfig(1), jax.devices()[:1]), families.draw(task, length=length)
    )
    return jax.tree.map(np.asarray, params), loss


def assert_as_alone(task, mesh, kernel, length=24):
    case = families.draw(task, kernel, length)
    expected = alone(task, length)

    def step(mesh):
        """Parameters and the loss, each by its scale: float32 numbers near 70 are 8e-6 apart."""
        found = families.step_on(make_mesh(MESHES[mesh]), case) if mesh else expected
        return jax.tree.map(lambda x, whole: np.asarray(x) / families.scale(whole), found, expected)

    found = laws.sharded(step, [mesh])
    said = f"SWEEP_SEED={families.SEED}: {case.config}, accumulation {case.accumulation}"
    assert found.holds, f"{found}; {said}"


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("task", families.TASKS)
@pytest.mark.apart("task")
@pytest.mark.slow
def test_a_step_is_that_of_one_device(task, mesh):
    # Where devices share a text its keys may also go round.
    names = ("xla", "chunked", "ring")[: 3 if MESHES[mesh].context > 1 else 2]
    draw = random.Random(f"{families.SEED}/{task}/{mesh}")
    assert_as_alone(task, mesh, draw.choice(names))


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "length"), [("1x4x2", 128), ("1x2x2x2", 256)])
@pytest.mark.parametrize("task", ["translation", "packed texts", "masked texts"])
def test_a_step_with_a_fused_kernel_is_that_of_one_device(task, mesh, length, monkeypatch):
    monkeypatch.setitem(kernels.KERNELS, "splash", kernels.KERNELS["splash"])
    families.interpret_splash()
    assert_as_alone(task, mesh, "splash", length)


# What each of two processes of four devices runs: tests/training/families.py.
PROGRAM = """
import json, sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
from transformer_jax.parallel.coordinator import initialize
from transformer_jax.parallel.mesh import *
from transformer_jax.parallel.settings import DistributedConfig, MeshConfig
port, process, asked = sys.argv[1:]
assert initialize(DistributedConfig("127.0.0.1:" + port, 2, int(process)))
import numpy as np
from tests.training import families
found = {}
for task, sizes in json.loads(asked):
    alone = make_mesh(MeshConfig(1), jax.local_devices()[:1])
    expected, loss = families.step_on(alone, families.draw(task))
    expected = jax.tree.map(np.asarray, expected)
    params, other = families.step_on(make_mesh(MeshConfig(*sizes)), families.draw(task, "chunked"))
    worst = families.worst_difference(params, expected)
    found[task + " " + str(sizes)] = [abs(other - loss) / families.scale(loss), worst]
    sync_global_devices(task)
print("REPORT", json.dumps(found), flush=True)
"""


SIZES = ((8, 1, 1, 1), (1, 8, 1, 1), (2, 2, 2, 1), (1, 2, 1, 4), (1, 1, 4, 2))


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.parametrize("first", range(len(SIZES)))
def test_two_processes_of_four_devices_compute_what_one_device_does(first):
    """Every fifth family, each of them on one mesh."""
    asked = [(task, SIZES[first]) for task in [*families.TASKS][first :: len(SIZES)]]
    for found in reports(PROGRAM, json.dumps(asked), timeout=1100):
        assert len(found) == len(asked)
        for case, (loss, gradient) in found.items():
            assert max(loss, gradient) < 1e-5, (case, f"SWEEP_SEED={families.SEED}")
