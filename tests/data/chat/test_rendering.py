"""The process in which chat templates run: its limits, and how it ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.chat import render_client, render_process
from transformer_jax.data.chat.template import ChatTemplate

ROOT = Path(__file__).parents[3]
CHAT = [{"role": "user", "content": "Hi"}]
SHOW = ChatTemplate("{{ messages[0].content }}!")
ENDLESS = ChatTemplate("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}")  # fmt: skip # noqa: E501
BEGIN = """
import os, resource, signal, sys, time
from pathlib import Path
from tests.data.chat.test_rendering import CHAT, ENDLESS, SHOW
from transformer_jax.data.chat import render_client
from transformer_jax.core.errors import UserError
def pid():
    return render_client._process._child.pid
"""


def python(program, timeout=60, **how):
    """Runs a program that begins with what it needs; its standard output."""
    command = [sys.executable, "-W", "error", "-c", BEGIN + program]
    done = subprocess.run(
        # By a shell: the memory of a process begins with that of the one it is started from.
        ["/bin/sh", "-c", '"$@"; exit $?', "sh", *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **how,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def gone(pid):
    """Returns whether a process ends within some seconds."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z" and os.getppid() != pid:
            return True
        time.sleep(0.05)
    return False


def test_one_process_renders_all_and_knows_jinja_alone():
    SHOW.render(CHAT)
    first = render_client._process._child.pid
    for number in range(20):
        assert SHOW.render([{"role": "user", "content": f"{number}"}]).text == f"{number}!"
    assert render_client._process._child.pid == first
    mapped = Path(f"/proc/{first}/maps")
    if mapped.exists():
        assert not any(name in mapped.read_text() for name in ("jax", "numpy", "tokenizers"))
        assert render_client._process._limits_memory


def test_any_text_comes_back_as_it_was_given():
    texts = ["", "\n", "\0", "日本😀", "\ud800 alone", "\r\n\u2028", '{"size": 9}\n', "a" * 300_000]
    for text in texts:
        assert SHOW.render([{"role": "user", "content": text}]).text == text + "!"
    values = {1: [None, True, 2.5, 10**30], "x": {"y": ("a", "b")}}
    shown = ChatTemplate("{{ given }}{{ given[1][3] + 1 }}").render(CHAT, given=values).text
    assert shown == "{1: [None, True, 2.5, 1" + "0" * 30 + "], 'x': {'y': ['a', 'b']}}1" + (
        "0" * 29 + "1"
    )
    deep = []
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(DataError, match="too deeply nested"):
        SHOW.render(CHAT, given=deep)


def test_threads_share_the_process():
    found = {}

    def work(number):
        chat = [{"role": "user", "content": f"{number}" * 1000}]
        found[number] = [SHOW.render(chat).text for _ in range(50)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [f"{number}" * 1000 + "!"] * 50 for number in range(8)}


def test_a_stopped_process_is_replaced_and_an_ended_one_reaped():
    SHOW.render(CHAT)
    for sent in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
        before, began = render_client._process._child, time.monotonic()
        os.kill(before.pid, sent)
        assert SHOW.render(CHAT).text == "Hi!"
        assert before.returncode is not None
        assert time.monotonic() - began < render_client._PATIENCE / 2


def test_ctrl_c_ends_a_rendering_and_the_next_is_right():
    program = """
def handler(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, handler)
SHOW.render(CHAT)
first = pid()
os.kill(first, signal.SIGINT)  # it does not listen to the terminal
assert os.getsid(first) == first
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    ENDLESS.render(CHAT)
except KeyboardInterrupt:
    print("stopped")
print(SHOW.render(CHAT).text, pid() != first)
try:
    os.kill(first, 0)
except ProcessLookupError:
    print("reaped")
"""
    assert python(program).split("\n")[:-1] == ["stopped", "Hi! True", "reaped"]


def test_a_forked_process_starts_its_own():
    program = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which libraries start
SHOW.render(CHAT)
first, (source, sink) = pid(), os.pipe()
child = os.fork()
shown = [SHOW.render([{"role": "user", "content": str(child > 0)}]).text for _ in range(99)]
if child == 0:
    os.write(sink, f"{set(shown)} {pid() != first}".encode())
    sys.exit()
os.waitpid(child, 0)
print(os.read(source, 99).decode(), set(shown), pid() == first)
"""
    assert python(program) == "{'False!'} True {'True!'} True\n"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_process_does_not_outlive_its_parent():
    ended = int(python("SHOW.render(CHAT); print(pid())"))
    killed = "SHOW.render(CHAT); print(pid(), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    command = [sys.executable, "-c", BEGIN + killed]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL
    assert gone(ended)
    assert gone(int(done.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("closed", [(0,), (1,), (0, 1, 2)])
def test_standard_streams_may_be_closed(tmp_path, closed):
    program = f"""
for handle in {closed}:
    os.close(handle)
assert SHOW.render(CHAT).text == "Hi!"
if 1 in {closed}:
    assert render_client._process._sink > 2 < render_client._process._source
try:
    ENDLESS.render(CHAT)
except UserError as error:
    Path(r"{tmp_path}/done").write_text(str(error))
os._exit(0)
"""
    python(program, stdin=subprocess.DEVNULL)
    assert "computes longer" in (tmp_path / "done").read_text()


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
def test_memory_is_looked_at_where_the_system_does_not_limit_it(tmp_path, monkeypatch):
    render_client._close()
    script = tmp_path / "unlimited.py"
    script.write_text(
        "import resource, runpy, signal\n"
        "def refuse(*limit):\n"
        "    raise ValueError\n"
        "resource.setrlimit, signal.setitimer = refuse, lambda *which: None\n"
        f"runpy.run_path({render_process.__file__!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(render_process, "__file__", str(script))
    try:
        assert SHOW.render(CHAT).text == "Hi!"
        assert not render_client._process._limits_memory
        hungry = "{% set n = namespace(x='a' * 300000000) %}"
        hungry += "{% for i in range(9000) %}{% set x = n.x | upper %}{% endfor %}"
        with pytest.raises(ConfigError, match="needs more memory"):
            ChatTemplate(hungry).render(CHAT)
    finally:
        render_client._close()


def test_a_python_that_cannot_be_started_is_named(monkeypatch):
    render_client._close()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ConfigError, match="cannot be started with /nowhere/python: No such file"):
        SHOW.render(CHAT)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(ConfigError, match=r"cannot be started with .*/false: it ended with 1"):
        SHOW.render(CHAT)


@pytest.mark.slow
def test_hostile_templates_take_little_memory_and_honest_ones_little_time():
    program = """
import json
from tests.data.chat.hostile import HOSTILE
from transformer_jax.data.chat.template import ChatTemplate
for text in HOSTILE.values():
    try:
        ChatTemplate(text).render(CHAT)
        raise AssertionError(text)
    except UserError:
        pass
SHOW.render(CHAT)
began = time.monotonic()
for _ in range(500):
    SHOW.render(CHAT)
took = time.monotonic() - began
render_client._close()
most = [resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
print(json.dumps([len(HOSTILE), sum(most) / 1024, took / 500]))
"""  # noqa: E501
    count, megabytes, seconds = json.loads(python(program, timeout=400))
    assert count >= 40
    assert megabytes < 300, megabytes
    assert seconds < 1e-3
