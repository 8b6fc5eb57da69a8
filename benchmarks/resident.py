"""The memory of processes; nothing here imports more than the standard library."""

from pathlib import Path

__all__ = ["peak"]


def peak(process: int | str = "self") -> int:
    """The most bytes that a process had resident so far; 0 if it has ended but is not waited for.

    Not what ``getrusage`` and ``wait4`` tell: that begins with what the process that started it
    had, so a small child of a large process counts as large.

    Raises:
        FileNotFoundError: There is no such process, or this is not Linux.
    """
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
