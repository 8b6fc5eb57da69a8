"""A signal is heard between steps, once; the second ends the process at once."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from transformer_jax.core.errors import RESTART, Stopped
from transformer_jax.training import signals
from transformer_jax.training.signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_only_sets_a_flag_and_handlers_come_back(number, capfd):
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert stop.reached(1) is None
        signal.raise_signal(number)
        assert stop.reached(2) == stop.received == number
    assert signal.getsignal(number) is before
    assert "saving after this step" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_at_once(number):
    # Without JAX: what is tested is the handler, and importing takes seconds.
    code = (
        "import sys, types, signal, importlib.util as u;"
        "sys.modules['jax'] = types.SimpleNamespace(process_count=lambda: 1);"
        f"s = u.spec_from_file_location('signals', {signals.__file__!r});"
        "m = u.module_from_spec(s); s.loader.exec_module(m); stop = m.StopSignals();"
        f"stop.__enter__(); signal.raise_signal({int(number)}); signal.raise_signal({int(number)});"
        "print('never')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + number
    assert done.stdout == ""


def test_outside_the_main_thread_signals_stay_as_they_are():
    seen = []

    def enter():
        with StopSignals() as stop:
            seen.append((signal.getsignal(signal.SIGTERM), stop.reached(1)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [(signal.SIG_DFL, None)]


def test_many_processes_leave_sigterm_to_jax_and_pass_sigint_on(monkeypatch):
    """All stop at the step that JAX agrees on, whichever of them was hit."""
    from jax.experimental import multihost_utils

    sent, answers = [], iter([False, True, True])
    monkeypatch.setattr(signals.jax, "process_count", lambda: 2)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(
        multihost_utils, "reached_preemption_sync_point", lambda step: next(answers)
    )
    others = [0]
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda own: [own, *others])
    with StopSignals() as stop:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert stop.reached(1) is None
        assert stop.reached(2) == signal.SIGTERM  # another process was hit
        signal.raise_signal(signal.SIGINT)
        assert sent == [(os.getpid(), signal.SIGTERM)]
        assert stop.received is None
        answers = iter([True, True])
        others[:] = [signal.SIGUSR1]  # Ctrl-C here counts more than a warning there
        assert stop.reached(3) == signal.SIGINT
        signal.raise_signal(signal.SIGUSR1)
        stop._received = None
        assert stop.reached(4) == signal.SIGUSR1


def test_a_second_warning_of_a_time_limit_changes_nothing(monkeypatch):
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail(f"ended with {code}"))
    with StopSignals() as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGUSR1)
        assert stop.reached(1) == signal.SIGUSR1
    assert Stopped("", signal.SIGUSR1).exit_code == RESTART == 75
    assert Stopped("", signal.SIGTERM).exit_code == 143
