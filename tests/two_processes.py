"""Programs that run as two processes, which find each other over loopback."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def free_port() -> str:
    """A port that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def reports(program: str, *arguments: str, timeout: float = 180) -> list[Any]:
    """The JSON that each process prints after ``REPORT``.

    The program's arguments are the port of the coordinator, the number of the process, and
    ``arguments``.
    """
    environ = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    port = free_port()
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, port, str(n), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ,
        )
        for n in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=timeout) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (_, errors) in zip(running, said, strict=True):
        assert process.returncode == 0, errors[-3000:]
    # Gloo writes to stdout too, also on the same line.
    return [json.JSONDecoder().raw_decode(out.split("REPORT ")[1])[0] for out, _ in said]
