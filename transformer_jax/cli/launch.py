"""``transformer-jax launch``: a command as several processes, or the file that a cluster takes."""

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Annotated

import tyro

from transformer_jax.cli import families
from transformer_jax.errors import ConfigError

__all__ = ["Launch"]

_BOUNDS = {
    "num_processes": (1, 1024),
    "devices_per_process": (1, 1024),
    "rehearse": (1, 1024),
    "restarts": (0, 2**31 - 1),
    "grace": (0, 86_400),
}
_BEGIN = ("train", "pretrain", "finetune")  # commands that take --resume


@dataclasses.dataclass(frozen=True)
class Launch:
    """Run a command as several processes on this machine: launch -n 8 -- train NAME ...

    They find each other, their output has the number of the process before each line, and when
    one of them fails the others end too.
    """

    command: tyro.conf.Positional[tuple[str, ...]] = ()
    """After --: a command of transformer-jax, such as train NAME, or any program."""
    num_processes: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 1
    """Number of processes."""
    devices_per_process: int = 1
    """Devices of each process; emulated on a CPU."""
    rehearse: int | None = None
    """Instead of -n: as many processes, all on the CPU, to try a command for a cluster."""
    restarts: int = 0
    """How often all processes start again after one of them crashed."""
    grace: float = 30.0
    """Seconds that the others have to end after one failed; then SIGKILL."""
    all_output: bool = False
    """Show the output of all processes; without it that of process 0."""
    log_dir: Path = Path("launch-logs")
    """Folder for the output of each process: rank0.log, rank1.log ..."""

    def __call__(self) -> int:
        """Runs the command to its end; returns its exit code."""
        from transformer_jax.launch.supervisor import Processes, supervise

        command = self._checked()
        if self.rehearse is not None and self.num_processes != 1:
            raise ConfigError("--rehearse and --num-processes: both are a number of processes")
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

    def _checked(self) -> list[str]:
        """The command.

        Raises:
            ConfigError: There is none, or a number is out of range.
        """
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                flag = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{flag} is {value}: allowed are {least} to {most:,}")
        if not self.command:
            raise ConfigError("launch needs a command after --: launch -n 2 -- train small")
        return list(self.command)


def with_resume(command: list[str]) -> list[str]:
    """The command that continues what ``command`` began; others than training stay as they are.

    Example:
        >>> with_resume(["train", "small"]), with_resume(["python", "mine.py", "train"])
        (['train', 'small', '--resume'], ['python', 'mine.py', 'train'])
    """
    words = command[1:] if Path(command[0]).name == "transformer-jax" else command
    if words[1:2] == ["-m"] and words[2:3] and words[2].startswith("experiments."):
        words = words[3:]
    begins = bool(words) and words[0] in _BEGIN and "--resume" not in words
    return [*command, "--resume"] if begins else command


def _program(command: list[str]) -> list[str]:
    """A command of transformer-jax in this Python, or a program as it is.

    Raises:
        ConfigError: It is neither.
    """
    from transformer_jax.cli.main import COMMANDS

    if command[0] in (set(COMMANDS) | set(families.COMMANDS)) - {"launch"}:
        return [sys.executable, "-m", "transformer_jax.cli.main", *command]
    if shutil.which(command[0]) is None:
        raise ConfigError(
            f"{command[0]}: is no program and no command of transformer-jax: after -- comes a "
            f"command such as train NAME, or a program with its arguments"
        )
    return command
