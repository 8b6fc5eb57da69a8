"""Benchmarks as programs: errors in one line, help of any width, and any standard streams."""

from collections.abc import Callable

from benchmarks.harness import kill_workers
from transformer_jax.cli.process import as_help, guarded, run_and_leave, terminated

__all__ = ["run_program"]


def run_program(main: Callable[[], int | None]) -> None:
    """Runs ``main`` and exits with its code; no worker outlives it."""

    def run() -> int:
        try:
            with terminated("stopped by a signal"), as_help():
                return main() or 0
        finally:
            kill_workers()

    run_and_leave(lambda: guarded(run))
