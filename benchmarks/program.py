"""Benchmarks as programs: errors in one line, help of any width, and any standard streams."""

from collections.abc import Callable

from transformer_jax.cli.errors import guarded, run_and_leave
from transformer_jax.cli.streams import as_help

__all__ = ["run_program"]


def run_program(main: Callable[[], int | None]) -> None:
    """Runs ``main`` and exits with its code."""

    def run() -> int:
        with as_help():
            return main() or 0

    run_and_leave(lambda: guarded(run))
