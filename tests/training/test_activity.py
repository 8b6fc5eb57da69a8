"""Something is shown while it takes long: a bar on a terminal, a line now and then elsewhere."""

import io
import time

from rich.console import Console

from transformer_jax.training.activity import said, tracked, working


def av_console(terminal=False):
    return Console(file=io.StringIO(), force_terminal=terminal, width=80)


def test_off_a_terminal_there_is_a_line_once_in_a_while():
    console = av_console()
    with working("compiling", 6, console=console, every=0.1) as activity:
        activity.advance(2)
        time.sleep(0.55)
    lines = console.file.getvalue().splitlines()
    assert 2 <= len(lines) <= 5
    assert set(lines) <= {"compiling: 2/6, 0s", "compiling: 2/6, 1s"}


def test_nothing_is_said_while_others_say_something():
    console = av_console()
    with working("compiling", console=console, every=0.3):
        for _ in range(20):
            said()
            time.sleep(0.02)
    assert console.file.getvalue() == ""


def test_the_innermost_activity_is_what_is_shown():
    console = av_console()
    with working("evaluating", console=console, every=0.1):
        for _ in tracked(range(3), "translating"):
            time.sleep(0.2)
    lines = console.file.getvalue().splitlines()
    assert lines[0].startswith("translating: 0/3")
    assert any(line.startswith("translating: 2/3") for line in lines)


def test_a_terminal_shows_a_bar_that_does_not_stay():
    console = av_console(terminal=True)
    with working("evaluating", 4, console=console) as activity:
        activity.advance()
        time.sleep(0.4)
    shown = console.file.getvalue()
    assert "evaluating: 1/4" in shown
    assert "━" in shown
    assert shown.endswith("\x1b[2K")  # erased


def test_results_printed_meanwhile_stay_on_standard_output(capsys):
    console = av_console(terminal=True)
    with working("evaluating", console=console):
        print("sacreBLEU 12.3")
    assert capsys.readouterr().out == "sacreBLEU 12.3\n"
    assert "sacreBLEU" not in console.file.getvalue()
