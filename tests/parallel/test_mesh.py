"""The mesh fits its devices, and every row of a batch has its place."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from transformer_jax.core.errors import ConfigError
from transformer_jax.parallel import coordinator
from transformer_jax.parallel.coordinator import initialize
from transformer_jax.parallel.mesh import (
    devices_of,
    is_main_process,
    local_rows,
    make_mesh,
    shard_batch,
    sync_global_devices,
)
from transformer_jax.parallel.settings import DistributedConfig, MeshConfig


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (MeshConfig(), (8, 1, 1, 1)),
        (MeshConfig(fsdp=4), (2, 4, 1, 1)),
        (MeshConfig(2, 2, 2), (2, 2, 1, 2)),
        (MeshConfig(tensor=8), (1, 1, 1, 8)),
        (MeshConfig(fsdp=2, context=2), (2, 2, 2, 1)),
    ],
)
def test_the_rest_of_the_devices_is_data(config, shape):
    mesh = make_mesh(config)
    assert tuple(mesh.shape.values()) == shape
    assert mesh.axis_names == ("data", "fsdp", "context", "tensor")
    assert set(mesh.axis_types) == {AxisType.Auto}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MeshConfig(fsdp=3), r"--mesh.fsdp 3 .* 3 devices, and there are 8: write --mesh.fsdp 2$"),
        (MeshConfig(fsdp=4, tensor=4), r" 16 .* are 8: write --mesh.fsdp 4 --mesh.tensor 2$"),
        (MeshConfig(data=2, fsdp=2), r"2 x 2 x 1 = 4 devices, but there are 8.*data must be 4"),
        (MeshConfig(data=16), r"16 devices, but there are 8"),
        (MeshConfig(context=3), r"^--mesh.context 3 needs .* write --mesh.context 2$"),
        (
            MeshConfig(data=2, context=2),
            r"with mesh.fsdp 1, mesh.context 2 and mesh.tensor 1, .* 4",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_says_what_would(config, message):
    with pytest.raises(ConfigError, match=message):
        make_mesh(config)


def test_a_process_alone_uses_as_many_devices_as_it_is_told(monkeypatch):
    few = DistributedConfig(num_local_devices=3)
    assert devices_of(few) == jax.devices()[:3]
    assert devices_of(DistributedConfig()) == jax.devices()
    with pytest.raises(ConfigError, match=r"num_local_devices is 9: .* allowed are 1 to 8"):
        devices_of(DistributedConfig(num_local_devices=9))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert devices_of(few) == jax.devices()


@pytest.mark.parametrize("config", [MeshConfig(), MeshConfig(2, 2, 2), MeshConfig(tensor=8)])
def test_a_batch_arrives_whole_and_split_by_rows(config):
    mesh = make_mesh(config)
    batch = {"ids": np.arange(48, dtype=np.int32).reshape(16, 3), "lengths": np.arange(16)}
    there = shard_batch(batch, mesh)
    for name, x in batch.items():
        np.testing.assert_array_equal(there[name], x)
        parts = {s.data.shape[0] for s in there[name].addressable_shards}
        assert parts == {16 // (mesh.shape["data"] * mesh.shape["fsdp"])}
    np.testing.assert_array_equal(local_rows(mesh, 16), np.arange(16))


def test_rows_that_do_not_fit_are_refused():
    mesh = make_mesh(MeshConfig(fsdp=4))
    with pytest.raises(ConfigError, match="12 rows does not divide by 8"):
        shard_batch({"ids": np.zeros((12, 3))}, mesh)
    with pytest.raises(ConfigError, match=r"batch\['ids'\] has 8 rows"):
        shard_batch({"ids": np.zeros((8, 3))}, mesh, rows=16)


def test_a_single_process_needs_nothing(monkeypatch):
    for name in ("JAX_COORDINATOR_ADDRESS", "SLURM_NTASKS", "TPU_WORKER_HOSTNAMES", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert not initialize()
    assert not initialize(DistributedConfig("localhost:1", 1, 0))
    assert is_main_process()
    sync_global_devices("nobody to wait for")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DistributedConfig(coordinator_address="a:1"), "without distributed.num_processes, dist"),
        (DistributedConfig(num_processes=2, process_id=0), "without distributed.coordinator_a"),
        (DistributedConfig("a:1", 2, 2), r"distributed.process_id is 2 .* allowed are 0 to 1"),
        (DistributedConfig("a", 2, 0), "must be host:port"),
    ],
)
def test_flags_that_contradict_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        initialize(config)


def test_flags_reach_jax(monkeypatch):
    seen = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *a, **k: seen.update(k, where=a))
    monkeypatch.setattr(coordinator, "wait_for_coordinator", lambda *a: seen.update(waited=a))
    assert initialize(DistributedConfig("a:1", 2, 1, num_local_devices=3))
    assert seen["waited"] == ("a:1", "distributed.coordinator_address", 300)
    assert seen["where"] == ("a:1", 2, 1)
    assert seen["local_device_ids"] == [0, 1, 2]
    assert seen["heartbeat_timeout_seconds"] == 30
    assert seen["cluster_detection_method"] == "deactivate"
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-2]")
    assert initialize()
    assert seen["where"] == (None, None, None)
    assert seen["cluster_detection_method"] is None


def test_messages_name_the_variables_of_the_launcher(monkeypatch):
    torchrun = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "5"}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="RANK is 5 of WORLD_SIZE 4: allowed are 0 to 3"):
        initialize()
    local = {"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in local.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="torchrun gives each process of a machine one device"):
        initialize(DistributedConfig(num_local_devices=1))
