"""What is being done while it takes long: a bar on a terminal, a line now and then elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

import jax
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

__all__ = ["Activity", "duration", "log", "said", "shown_by", "tracked", "working"]

Item = TypeVar("Item")

_EVERY = 8.0  # seconds


def duration(seconds: float | int) -> str:
    """Seconds in words.

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
    """A piece of work: its name, how much of it is done, and when it began.

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
        """Count finished work."""
        self.done += by

    def __str__(self) -> str:
        so_far = "" if self.total is None else f"{self.done}/{self.total}, "
        return f"{self.name}: {so_far}{duration(time.monotonic() - self._began)}"

    def __rich__(self) -> RenderableType:
        # Pulses where nobody knows how much there is.
        total = None if self.total is None else float(self.total)
        bar = ProgressBar(total, self.done, width=30, pulse=self.total is None)
        row = Table.grid(padding=(0, 1))
        row.add_row(bar, str(self))
        return row


class _Display:
    """Where activities are shown: one for a process, since a terminal has one last line."""

    def __init__(self) -> None:
        self.quiet = False
        self.live: Live | None = None  # what a terminal shows below lines that stay
        self.stack: list[Activity] = []  # the inner ones last
        self.said = time.monotonic()  # when the last line was written


_display = _Display()


def said() -> None:
    """Notes that a line was written just now, so that the next one can wait."""
    _display.said = time.monotonic()


def log(text: str) -> None:
    """Writes a line to standard error, from the first process alone."""
    if jax.process_index() == 0:
        print(text, file=sys.stderr, flush=True)
        said()


@contextlib.contextmanager
def shown_by(live: Live | None, *, quiet: bool = False) -> Iterator[None]:
    """Within, ``live`` shows activities on a terminal; ``quiet`` shows them nowhere."""
    before = _display.live, _display.quiet
    _display.live, _display.quiet = live, quiet
    try:
        yield
    finally:
        _display.live, _display.quiet = before


def _speaks() -> bool:
    """Whether this is the process that tells people what is done: the first, of several."""
    # Not imported for this: where nobody has done so, there is one process.
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return True
    return bool(jax.process_index() == 0)


@contextlib.contextmanager
def working(
    name: str,
    total: int | None = None,
    *,
    console: Console | None = None,
    every: float = _EVERY,
) -> Iterator[Activity]:
    """Show the progress of long work; nothing of it stays on a terminal.

    Off a terminal a line is written whenever there was none for ``every`` seconds. Of nested
    activities the innermost is shown, of several processes those of the first.

    Args:
        name: What is done, such as ``evaluating``.
        total: How much there is to do, for :meth:`Activity.advance`; None where nobody knows.
        console: Where to; standard error if None.
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
        # Results that are printed meanwhile stay on standard output.
        live = Live(
            activity,
            console=console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
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
                console.print(str(_display.stack[-1]), markup=False, soft_wrap=True)
                said()

    thread = threading.Thread(target=write, name="activity", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def tracked(items: Iterable[Item], name: str, total: int | None = None) -> Iterator[Item]:
    """The same items, while it is shown how many of them were taken.

    Example:
        >>> sum(tracked([1, 2, 3], "adding up"))
        6
    """
    total = len(items) if total is None and isinstance(items, Sized) else total
    with working(name, total) as activity:
        for item in items:
            yield item
            activity.update()
