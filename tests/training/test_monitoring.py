"""Reports of a run about its devices: rates, memory, profiles, hanging steps, sick devices."""

import logging
import re
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError, NumericsError
from transformer_jax.parallel import health
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.training import monitoring
from transformer_jax.training.monitoring import (
    Profiler,
    Rates,
    Watchdog,
    peak_memory,
    slowest,
    writing_log,
)
from transformer_jax.training.progress import progress_line
from transformer_jax.training.settings import LoopConfig


@pytest.mark.parametrize("setting", ["10", "a:b", "5:4", "0:3", ":", "1:2:3", "-1:4"])
def test_a_window_that_is_none_is_refused(setting):
    with pytest.raises(ConfigError, match=r"loop.profile is .* such as 10:15"):
        LoopConfig(profile=setting)


def test_a_profile_of_some_steps_is_written(tmp_path, capsys):
    profiler = Profiler(range(2, 4), tmp_path / "profile")
    for number in range(1, 6):
        profiler.before(number)
        state = jnp.ones(3) * number
        profiler.after(number, state)
        assert bool(list(tmp_path.rglob("*.xplane.pb"))) == (number >= 3)
    assert "profile of steps 2 to 3" in capsys.readouterr().err


def test_a_run_that_ends_inside_the_window_ends_its_profile(tmp_path, capsys):
    profiler = Profiler(range(2, 90), tmp_path / "profile")
    profiler.before(5)  # resumed inside the window
    profiler.after(5, jnp.ones(3))
    profiler.after(6, jnp.ones(3), stopping=True)
    assert list(tmp_path.rglob("*.xplane.pb"))
    assert "profile of steps 5 to 6" in capsys.readouterr().err


def test_a_step_that_hangs_has_its_stacks_written_once(tmp_path, capsys):
    def a_function_with_a_name_of_its_own():
        deadline = time.monotonic() + 20
        while not list(tmp_path.glob("*.txt")) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)

    watchdog = Watchdog(0.1, tmp_path)
    watchdog.begin(7)
    a_function_with_a_name_of_its_own()
    watchdog.close()
    [file] = tmp_path.glob("*.txt")
    text = file.read_text()
    assert "a_function_with_a_name_of_its_own" in text
    assert text.count("step 7 has not finished for 0s") == 1
    said = capsys.readouterr().err
    assert re.search(r"process 0: step 7 has not finished for 0s: .*stacks_process_0.txt", said)


def test_steps_in_time_and_work_between_them_are_no_hangs(tmp_path):
    watchdog = Watchdog(0.5, tmp_path)
    for number in range(4):
        watchdog.begin(number)
        time.sleep(0.2)
    watchdog.rest()
    time.sleep(0.8)
    watchdog.close()
    assert not list(tmp_path.iterdir())
    never = Watchdog(0, tmp_path)
    never.begin(1)
    assert never._thread is None
    never.close()


def device(kind="NVIDIA H200", **stats):
    return types.SimpleNamespace(device_kind=kind, memory_stats=lambda: stats or None)


def test_rates_are_smoothed_and_those_of_a_known_device_have_mfu():
    rates = Rates([device()] * 2, lambda batch: 989e12 * len(batch["x"]))
    flops = rates.flops({"x": np.ones(3)})
    found = rates.measure(100.0, flops, 10.0)
    assert found == {
        "tokens_per_second": 10.0, "tokens_per_second_per_device": 5.0, "mfu": 0.15
    }  # fmt: skip
    assert rates.measure(100.0, flops, 5.0)["mfu"] == pytest.approx(
        0.95 * 0.15 + 0.05 * 0.3, abs=1e-4
    )
    line = progress_line({"step": 1, "loss": 2.0, **found}, 2, None)
    assert "10 tokens/s (5/device)  MFU 15.0%" in line
    rates = Rates([device()] * 2, counts="answer tokens")
    found = rates.measure(100.0, None, 10.0)
    assert found == {"answer_tokens_per_second": 10.0, "answer_tokens_per_second_per_device": 5.0}
    line = progress_line({"step": 1, "loss": 2.0, **found}, 2, None)
    assert "10 answer tokens/s (5/device)" in line


@pytest.mark.parametrize(
    "rates", [Rates([device("cpu")], lambda _: 1.0), Rates([device()]), Rates()]
)
def test_without_a_known_device_or_cost_there_is_no_mfu(rates):
    assert rates.measure(8.0, rates.flops({}), 2.0) == {"tokens_per_second": 4.0}


def test_flops_are_known_on_every_device_and_computed_once_for_each_shape():
    seen = []
    rates = Rates([device("cpu")], lambda batch: float(seen.append(batch) or batch["x"].size))
    batches = [{"x": np.ones(shape)} for shape in ((2, 3), (3, 2), (2, 4), (2, 3), (2, 4))]
    assert [rates.flops(batch) for batch in batches] == [6, 6, 8, 6, 8]
    assert len(seen) == 3
    assert Rates([device()]).flops(batches[0]) is None


def test_flops_are_counted_only_where_they_are_not_known_and_the_peak_is():
    counted = {"trace": lambda batch: 8.0}
    assert Rates([device("cpu")], **counted).flops({}) is None
    assert Rates([device()], **counted).flops({}) == 8.0
    assert Rates([device()], lambda batch: 5.0, **counted).flops({}) == 5.0


def test_flops_that_cannot_be_counted_are_said_once_and_stop_nothing(capsys):
    def count(batch):
        if batch["x"].ndim == 2:
            raise TypeError("an array of two axes")
        return 1.0

    rates = Rates([device()], trace=count)
    batches = [{"x": np.ones(shape)} for shape in (3, (3, 2), 3, (2, 2))]
    assert [rates.flops(batch) for batch in batches] == [1.0, None, None, None]
    said = "warning: FLOPs of steps are not counted: TypeError: an array of two axes\n"
    assert capsys.readouterr().err == said
    assert "mfu" not in rates.measure(8.0, rates.flops(batches[0]), 2.0)


def test_the_fullest_device_counts():
    devices = [device(peak_bytes_in_use=3), device(), device(peak_bytes_in_use=5)]
    assert peak_memory(devices) == {"peak_memory_bytes": 5}
    assert peak_memory([device()]) == {}


def test_the_slowest_process_is_named(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    gather = lambda x: np.array([0.1, x, 0.2], np.float32)
    monkeypatch.setattr(monitoring.multihost_utils, "process_allgather", gather)
    assert slowest(0.75) == {"input_seconds": 0.75, "slowest_process": 1}


def test_each_of_several_processes_has_a_log_of_warnings_and_of_its_end(tmp_path, monkeypatch):
    with writing_log(tmp_path / "logs"):
        pass
    assert not (tmp_path / "logs").exists(), "a single process has its terminal"
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)

    def fail():
        with writing_log(tmp_path / "logs"):
            logging.getLogger("transformer_jax.some.module").warning("a kernel was refused")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    logging.getLogger("transformer_jax").warning("after the end")
    text = (tmp_path / "logs" / "process_1.log").read_text()
    assert "process 1 with " in text
    assert "WARNING transformer_jax.some.module: a kernel was refused" in text
    assert "ended by ZeroDivisionError" in text
    assert "Traceback" in text
    assert "after the end" not in text


def test_devices_that_work_pass_and_those_that_do_not_are_named():
    health.check_devices(make_mesh(fsdp=2, tensor=2))
    health.check_devices(make_mesh(devices=jax.devices()[:1]))
    names = [f"gpu:{i}" for i in range(4)]
    with pytest.raises(NumericsError, match=r"gpu:2 computed a different result"):
        health.check_answers(np.array([[4, 1], [4, 1], [4, 2], [4, 1]]), names)
    with pytest.raises(NumericsError, match=r"wrong on gpu:0, gpu:3: check"):
        health.check_answers(np.array([[3, 1], [4, 1], [4, 1], [3, 1]]), names)
