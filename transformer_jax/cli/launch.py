"""``transformer-jax launch``: a command as several processes, or as a file for a cluster."""

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from transformer_jax.cli.commands import COMMANDS
from transformer_jax.core.config_fields import Configuration, OutputPath, Range
from transformer_jax.core.errors import ConfigError

__all__ = ["Launch"]

_Processes = Annotated[int, Range(1, 1024)]
_OF_CLUSTERS = (
    *("partition", "account", "qos", "constraint", "image", "volume_claim"),
    *("zone", "nfs", "bucket", "install"),
)
_OF_RENDER = (
    *_OF_CLUSTERS,
    "plan",
    "nodes",
    "name",
    "time",
    "warning",
    "tasks_per_node",
    "cluster_paths",
)
_OURS = frozenset(name.partition(" ")[0] for name in COMMANDS) - {"launch"}
# Commands that take --resume.
_BEGIN = ("train", "pretrain", "finetune", "train-speech", "instruct", "align")


@dataclasses.dataclass(frozen=True)
class Launch(Configuration, group="--"):
    """Run a command as several processes on this machine: launch -n 8 -- train NAME ...

    The processes find each other. Output of process 0 is shown with [0] before each line;
    --all-output shows the lines of all processes, each with its number. If one process fails, all
    end.
    """

    command: tyro.conf.Positional[tuple[str, ...]] = ()
    """After --: a command of transformer-jax, such as train NAME, or any program."""
    num_processes: Annotated[_Processes, tyro.conf.arg(aliases=["-n"])] = 1
    """Number of processes."""
    devices_per_process: _Processes = 1
    """Number of devices per process; emulated on a CPU."""
    rehearse: _Processes | None = None
    """Instead of -n: number of processes on the CPU, to try out a command for a cluster."""
    restarts: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Number of times that all processes are restarted after a crash."""
    grace: Annotated[float, Range(0, 86_400)] = 30.0
    """Seconds that the other processes have to exit after one failed, before SIGKILL."""
    all_output: bool = False
    """Show the output of all processes, instead of process 0 only."""
    log_dir: OutputPath = Path("launch-logs")
    """Folder for the output of each process: rank0.log, rank1.log ..."""
    render: Literal["slurm", "jobset", "tpu-vm", "skypilot"] | None = None
    """Print a file that starts the command on a cluster, instead of running it; for the flags
    below."""
    plan: str | None = None
    """Devices: of each machine, such as h200:8; of several, such as h200:2x8 for two machines of
    eight; a TPU slice, such as v5e:4x4; or cpu."""
    nodes: int | None = None
    """Number of machines; for a TPU slice, it follows from the slice."""
    name: str = "transformer-jax"
    """Name of the job."""
    time: str = "24:00:00"
    """Time limit (slurm)."""
    warning: int = 300
    """Seconds for the run to save, before the time limit or after SIGTERM."""
    tasks_per_node: int = 1
    """Processes per machine: 1, or one per GPU (slurm)."""
    cluster_paths: bool = False
    """The files that the command names are on the cluster alone: its settings are checked before
    the file is printed, but not its files."""
    partition: str | None = None
    """Partition (slurm)."""
    account: str | None = None
    """Account (slurm)."""
    qos: str | None = None
    """Quality of service (slurm)."""
    constraint: str | None = None
    """Constraint on nodes (slurm)."""
    image: str | None = None
    """Container image with this package (jobset)."""
    volume_claim: str | None = None
    """Volume claim that all pods mount, for run directories (jobset)."""
    zone: str | None = None
    """Zone, such as us-central1-a (tpu-vm)."""
    nfs: str | None = None
    """SERVER:/PATH of a disk that all machines mount, for run directories (tpu-vm)."""
    bucket: str | None = None
    """gs://BUCKET or s3://BUCKET, for run directories (skypilot)."""
    install: str | None = None
    """Requirement for pip to install (tpu-vm, skypilot); None is this package for the devices."""

    def __call__(self) -> int:
        """Runs the command, or prints a file; returns the exit code."""
        from transformer_jax.parallel.launch.supervisor import Processes, supervise

        command = self._checked()
        if self.render is not None:
            print(self._rendered(command), end="")
            return 0
        if self.rehearse is not None and self.num_processes != 1:
            raise ConfigError(
                "--rehearse and --num-processes both set the number of processes: give one of them"
            )
        processes = Processes(
            self.num_processes if self.rehearse is None else self.rehearse,
            self.devices_per_process,
            self.rehearse is not None,
            self.restarts,
            self.grace,
            self.all_output,
            self.log_dir,
        )
        return supervise(_program(command), processes, again=_program(with_resume(command)))

    def _rendered(self, command: list[str]) -> str:
        from transformer_jax.cli.launch_checks import check_command
        from transformer_jax.parallel.launch.render import Cluster, count_devices, render

        if self.plan is None:
            raise ConfigError(
                f"--render {self.render} needs --plan: the devices of each machine, such as "
                f"h200:8, a TPU slice, such as v5e:4x4, or cpu"
            )
        given = {name: getattr(self, name) for name in _OF_CLUSTERS}
        options = {n.replace("_", "-"): value for n, value in given.items() if value is not None}
        cluster = Cluster(
            self.plan, self.nodes, self.name, self.time, self.warning, self.restarts,
            self.tasks_per_node, options,
        )  # fmt: skip
        words = with_resume(command)
        if words[0] in _OURS:
            words = ["transformer-jax", *words]
        if not self.cluster_paths:
            _program(_ours(command))  # refuses what is neither a program nor a command
        rendered = render(self.render or "", words, cluster)
        plan = f"--plan {self.plan}" + (f" --nodes {self.nodes}" if self.nodes else "")
        check_command(_ours(command), count_devices(cluster), plan, files=not self.cluster_paths)
        return rendered

    def _checked(self) -> list[str]:
        """Returns the command.

        Raises:
            ConfigError: The command is missing, or a flag needs ``--render``.
        """
        if self.render is None:
            for field in dataclasses.fields(self):
                if field.name in _OF_RENDER and getattr(self, field.name) != field.default:
                    flag = f"--{field.name.replace('_', '-')}"
                    raise ConfigError(f"{flag} is for a file for a cluster: add --render")
        if not self.command:
            raise ConfigError("launch needs a command after --: launch -n 2 -- train small")
        return list(self.command)


def with_resume(command: list[str]) -> list[str]:
    """Returns the command that continues a training command; other commands are unchanged.

    Example:
        >>> with_resume(["train", "small"]), with_resume(["python", "mine.py", "train"])
        (['train', 'small', '--resume'], ['python', 'mine.py', 'train'])
    """
    words = _ours(command)
    begins = bool(words) and words[0] in _BEGIN and "--resume" not in words
    return [*command, "--resume"] if begins else command


def _ours(command: list[str]) -> list[str]:
    """Returns the words after the program, if it is one of this package."""
    words = command[1:] if Path(command[0]).name == "transformer-jax" else command
    modules = ("experiments.", "transformer_jax.cli.main")
    if words[1:2] == ["-m"] and words[2:3] and words[2].startswith(modules):
        words = words[3:]
    return words


def _program(command: list[str]) -> list[str]:
    """Returns a command of transformer-jax run by this Python, or a program unchanged.

    Raises:
        ConfigError: It is neither.
    """
    if command[0] in _OURS:
        return [sys.executable, "-m", "transformer_jax.cli.main", *command]
    if shutil.which(command[0]) is None:
        raise ConfigError(
            f"{command[0]}: neither a program nor a command of transformer-jax: after --, give a "
            f"command such as train NAME, or a program with its arguments"
        )
    return command
