"""Something is shown while it takes long: a bar on a terminal, a line now and then elsewhere."""

import functools
import io
import threading
import time
import types

import jax
import pytest
from rich.console import Console

from transformer_jax.core import task_progress
from transformer_jax.core.task_progress import mark_line_time, show_progress, tracked


def av_console(terminal=False):
    return Console(file=io.StringIO(), force_terminal=terminal, width=80)


class Clock:
    """Time that passes only in :meth:`sleep`, step by step as whoever writes lines waits."""

    def __init__(self):
        self.now, self._until = 0.0, 0.0
        self._waits, self._changed = False, threading.Condition()

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        """Returns once the time is over and everything that falls into it was written."""
        with self._changed:
            self._until = self.now + seconds
            self._changed.notify_all()
            over = lambda: self._waits and self.now >= self._until
            assert self._changed.wait_for(over, 60), "nobody waits"

    def wait(self, event, seconds):
        with self._changed:
            self._waits = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: event.is_set() or self.now < self._until)
            self._waits = False
            self.now += seconds
            return event.is_set()

    def event(self):
        event = threading.Event()

        def end():
            with self._changed:
                threading.Event.set(event)
                self._changed.notify_all()

        event.wait, event.set = functools.partial(self.wait, event), end
        return event


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    system = types.SimpleNamespace(Event=clock.event, Thread=threading.Thread)
    monkeypatch.setattr(task_progress, "time", clock)
    monkeypatch.setattr(task_progress, "threading", system)
    monkeypatch.setattr(task_progress, "_display", task_progress._Display())
    return clock


def test_off_a_terminal_there_is_a_line_once_in_a_while(clock):
    console = av_console()
    with show_progress("compiling", 6, console=console, every=8.0) as work:
        work.update(2)
        clock.sleep(7)
        assert console.file.getvalue() == ""
        clock.sleep(23)
    lines = console.file.getvalue().splitlines()
    assert lines == [f"compiling: 2/6, {seconds}s" for seconds in (8, 16, 24)]


def test_nothing_is_said_while_others_say_something(clock):
    console = av_console()
    with show_progress("compiling", console=console, every=8.0):
        for _ in range(20):
            mark_line_time()
            clock.sleep(7)
    assert console.file.getvalue() == ""


def test_of_several_processes_the_first_speaks(clock, monkeypatch):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    for process, said_of in ((1, ""), (0, "compiling: ")):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        for terminal in (False, True):
            console = av_console(terminal)
            with show_progress("compiling", console=console, every=8.0):
                if not terminal:
                    clock.sleep(9)
            assert said_of in console.file.getvalue()
            assert bool(said_of) == bool(console.file.getvalue())


def test_the_innermost_activity_is_what_is_shown(clock):
    console = av_console()
    with show_progress("evaluating", console=console, every=8.0):
        for _ in tracked(range(3), "translating"):
            clock.sleep(9)
        clock.sleep(6)
    assert console.file.getvalue().splitlines() == [
        "translating: 0/3, 8s",
        "translating: 1/3, 16s",
        "translating: 2/3, 24s",
        "evaluating: 32s",
    ]


def test_a_terminal_shows_a_bar_that_does_not_stay():
    console = av_console(terminal=True)
    with show_progress("evaluating", 4, console=console) as work:
        work.update()
        time.sleep(0.4)
    shown = console.file.getvalue()
    assert "evaluating: 1/4" in shown
    assert "━" in shown
    assert shown.endswith("\x1b[2K")  # erased


def test_results_printed_meanwhile_stay_on_standard_output(capsys):
    console = av_console(terminal=True)
    with show_progress("evaluating", console=console):
        print("sacreBLEU 12.3")
    assert capsys.readouterr().out == "sacreBLEU 12.3\n"
    assert "sacreBLEU" not in console.file.getvalue()
