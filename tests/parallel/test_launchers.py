"""Every launcher is found by its variables; what is half set is refused, never ignored."""

import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.parallel.coordinator import ProcessLaunch, find_launch

JAX = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
TORCHRUN = {"MASTER_ADDR": "a", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "RANK": "3"}
TORCHRUN_NAMES = ("MASTER_ADDR", "WORLD_SIZE", "RANK")
ADDRESS = {"JAX_COORDINATOR_ADDRESS": "a:1"}
OPEN_MPI_NAMES = ("JAX_COORDINATOR_ADDRESS", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
PMI_NAMES = ("JAX_COORDINATOR_ADDRESS", "PMI_SIZE", "PMI_RANK")
PMI = {"PMI_SIZE": "2", "PMI_RANK": "0"}
HYDRA = PMI | {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SLURM = {"SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "n[1-2]"}


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        ({}, None),
        (JAX, ProcessLaunch("JAX_COORDINATOR_ADDRESS", "a:1", 2, 1)),
        ({"JAX_NUM_PROCESSES": "1"}, None),
        (
            JAX | {"JAX_LOCAL_DEVICE_IDS": "2,3"},
            ProcessLaunch("JAX_COORDINATOR_ADDRESS", "a:1", 2, 1, (2, 3)),
        ),
        (SLURM, ProcessLaunch("SLURM")),
        (SLURM | {"SLURM_NTASKS": "1"}, None),
        ({"SLURM_NTASKS": "2"}, None),  # inside sbatch but not srun: a single process
        # The only task of a node has all its GPUs; of several tasks each has its own.
        (
            SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_GPUS_ON_NODE": "4"},
            ProcessLaunch("SLURM", local_devices=(0, 1, 2, 3)),
        ),
        (
            SLURM | {"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_GPUS_ON_NODE": "4"},
            ProcessLaunch("SLURM"),
        ),
        (OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "x"}, ProcessLaunch("Open MPI")),
        (OPEN_MPI | ADDRESS, ProcessLaunch("Open MPI", "a:1", 4, 3, (1,), OPEN_MPI_NAMES)),
        # An mpirun inside a job of SLURM, whose variables its processes have too.
        (SLURM | OPEN_MPI | ADDRESS, ProcessLaunch("Open MPI", "a:1", 4, 3, (1,), OPEN_MPI_NAMES)),
        (
            SLURM | HYDRA | ADDRESS,
            ProcessLaunch("PMI", "a:1", 2, 0, (0,), PMI_NAMES, one_machine=True),
        ),
        (SLURM | PMI, ProcessLaunch("SLURM")),  # srun --mpi=pmi2
        (PMI | ADDRESS, ProcessLaunch("PMI", "a:1", 2, 0, None, PMI_NAMES)),
        ({"PMI_SIZE": "1", "PMI_RANK": "0"}, None),
        (TORCHRUN, ProcessLaunch("torchrun", "a:29501", 4, 3, None, TORCHRUN_NAMES)),
        (
            TORCHRUN | {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            ProcessLaunch("torchrun", "a:29501", 4, 3, (1,), TORCHRUN_NAMES),
        ),
        (TORCHRUN | {"WORLD_SIZE": "1"}, None),
        ({"RANK": "0"}, None),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
        ({"TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2"}, ProcessLaunch("TPU")),
        ({"MEGASCALE_COORDINATOR_ADDRESS": "a:1"}, ProcessLaunch("TPU")),
        (
            {"JOB_COMPLETION_INDEX": "1"} | JAX,
            ProcessLaunch("JAX_COORDINATOR_ADDRESS", "a:1", 2, 1),
        ),
        ({"JOB_COMPLETION_INDEX": "1", "JAX_NUM_PROCESSES": "1"}, None),
    ],
)
def test_the_launcher_is_found_by_its_variables(environ, launch):
    assert find_launch(environ) == launch


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "without JAX_NUM_PROCESSES, JAX_PROCESS_ID"),
        ({"JAX_NUM_PROCESSES": "2"}, "without JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID"),
        ({"JAX_PROCESS_ID": "0"}, "without JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES"),
        (JAX | {"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES is 'two': a whole number"),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, "set JAX_COORDINATOR_ADDRESS=host:port, or"),
        ({"PMI_RANK": "1"}, "PMI_RANK set without JAX_COORDINATOR_ADDRESS, PMI_SIZE"),
        (OPEN_MPI, "without JAX_COORDINATOR_ADDRESS: set JAX_COORDINATOR_ADDRESS=host:port"),
        ({"MASTER_ADDR": "a", "RANK": "1"}, "without MASTER_PORT, WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE set without MASTER_ADDR, MASTER_PORT, RANK"),
        (TORCHRUN | {"RANK": ""}, "without RANK"),
        (TORCHRUN | {"MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        (SLURM | {"SLURM_NTASKS": "two"}, "SLURM_NTASKS is 'two'"),
        ({"JOB_COMPLETION_INDEX": "0"}, "an indexed job of Kubernetes, without JAX_COORDINATOR"),
    ],
)
def test_what_is_half_set_is_refused(environ, message):
    with pytest.raises(ConfigError, match=message):
        find_launch(environ)
