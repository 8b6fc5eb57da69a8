"""Progress of long work: a bar on a terminal, a line every few seconds elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from transformer_jax.core.errors import visible
from transformer_jax.core.storage.urls import with_urls

__all__ = ["Activity", "duration", "log", "mark_line_time", "show_progress", "shown_by", "tracked"]

Item = TypeVar("Item")

_EVERY = 8.0  # seconds


def duration(seconds: float | int) -> str:
    """A duration in hours, minutes and seconds.

    Example:
        >>> duration(59.4), duration(3599), duration(7260)
        ('59s', '59m59s', '2h01m')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class Activity:
    """A piece of work: its name, its progress, and the time it began.

    Example:
        >>> work = Activity("evaluating", total=4)
        >>> work.update()
        >>> str(work)
        'evaluating: 1/4, 0s'
    """

    def __init__(self, name: str, total: int | None = None):
        self.name, self.total, self.done = name, total, 0
        self._began = time.monotonic()

    def update(self, by: int = 1) -> None:
        """Counts finished work."""
        self.done += by

    def __str__(self) -> str:
        so_far = "" if self.total is None else f"{self.done}/{self.total}, "
        return f"{self.name}: {so_far}{duration(time.monotonic() - self._began)}"

    def __rich__(self) -> RenderableType:
        # Pulses if the total is unknown.
        total = None if self.total is None else float(self.total)
        bar = ProgressBar(total, self.done, width=30, pulse=self.total is None)
        row = Table.grid(padding=(0, 1))
        row.add_row(bar, str(self))
        return row


class _Display:
    """The display of activities, one per process: a terminal has one last line."""

    def __init__(self) -> None:
        self.quiet = False
        self.live: Live | None = None  # the live line of a terminal
        self.stack: list[Activity] = []  # the inner ones last
        self.said = time.monotonic()  # when the last line was written


_display = _Display()


def mark_line_time() -> None:
    """Notes the time of a line, for the interval to the next one."""
    _display.said = time.monotonic()


def log(text: str) -> None:
    """Writes a line to standard error, in process 0 only."""
    jax = sys.modules.get("jax")  # without JAX there is one process
    if jax is None or jax.process_index() == 0:
        print(visible(with_urls(text)), file=sys.stderr, flush=True)
        mark_line_time()


@contextlib.contextmanager
def shown_by(live: Live | None, *, quiet: bool = False) -> Iterator[None]:
    """Context in which ``live`` shows activities on a terminal; ``quiet`` hides them."""
    before = _display.live, _display.quiet
    _display.live, _display.quiet = live, quiet
    try:
        yield
    finally:
        _display.live, _display.quiet = before


def _speaks() -> bool:
    """Returns whether this is process 0, which prints progress."""
    jax = sys.modules.get("jax")  # without JAX there is one process
    if jax is None or not jax.distributed.is_initialized():
        return True
    return bool(jax.process_index() == 0)


@contextlib.contextmanager
def show_progress(
    name: str, total: int | None = None, *, console: Console | None = None, every: float = _EVERY
) -> Iterator[Activity]:
    """Shows the progress of long work; it is erased from a terminal at the end.

    Off a terminal, a line is written every ``every`` seconds. Only the innermost of nested
    activities is shown, in process 0 only.

    Args:
        name: Name of the work, such as ``evaluating``.
        total: Amount of work, for :meth:`Activity.advance`; None if unknown.
        console: Console of the output; None is standard error.
        every: Seconds without a line before one is written.
    """
    activity, outermost = Activity(name, total), not _display.stack
    console = console or Console(file=sys.stderr, highlight=False)
    _display.stack.append(activity)
    try:
        with contextlib.ExitStack() as shown:
            if console.is_terminal and not _display.quiet and _speaks():
                shown.enter_context(_bar(activity, console))
            elif outermost:
                shown.enter_context(_lines(console, every))
            yield activity
    finally:
        _display.stack.remove(activity)


@contextlib.contextmanager
def _bar(activity: Activity, console: Console) -> Iterator[None]:
    live = _display.live
    if live is None:
        # Results on standard output are not redirected.
        live = Live(
            activity, console=console, refresh_per_second=4, transient=True, redirect_stdout=False
        )
        with live, shown_by(live):
            yield
        return
    before = live.get_renderable()
    live.update(activity)
    try:
        yield
    finally:
        live.update(before)


@contextlib.contextmanager
def _lines(console: Console, every: float) -> Iterator[None]:
    done = threading.Event()

    def write() -> None:
        while not done.wait(min(every / 8, 1.0)):
            silent = time.monotonic() - _display.said
            if silent >= every and _display.stack and not _display.quiet and _speaks():
                console.print(visible(str(_display.stack[-1])), markup=False, soft_wrap=True)
                mark_line_time()

    thread = threading.Thread(target=write, name="activity", daemon=True)
    try:
        thread.start()
        yield
    finally:
        done.set()
        if thread.is_alive():  # a signal may have come before it ran
            thread.join()


def tracked(items: Iterable[Item], name: str, total: int | None = None) -> Iterator[Item]:
    """The items unchanged; the number consumed so far is shown as progress.

    Example:
        >>> sum(tracked([1, 2, 3], "adding up"))
        6
    """
    total = len(items) if total is None and isinstance(items, Sized) else total
    with show_progress(name, total) as activity:
        for item in items:
            yield item
            activity.update()
