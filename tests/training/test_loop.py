"""Laws of the training loop: exact resumption, honest measurements, every end in order."""

import functools
import itertools
import json
import logging
import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import laws
from transformer_jax.core.errors import CheckpointError, ConfigError, NumericsError, Stopped
from transformer_jax.runs import manifest
from transformer_jax.runs.checkpoint import Checkpointer, load_params, steps
from transformer_jax.runs.metrics import MetricsLog, read_metrics
from transformer_jax.training.compilation import CompiledStep
from transformer_jax.training.curves import Curves
from transformer_jax.training.loop import FitResult, Loop, fit
from transformer_jax.training.settings import LoopConfig
from transformer_jax.training.state import TrainState, digest


@functools.partial(jax.jit, donate_argnums=0)
def loop_step(state, frozen, batch, key):
    """A step that depends on all it is given, and leaves out what is not finite."""
    noise = jax.random.normal(jax.random.fold_in(key, state.step), (4,))
    grad = noise + batch["x"].sum() - state.params["w"]
    momentum = 0.9 * state.opt_state[0] + grad
    loss = jnp.sum(grad**2)
    ok = jnp.isfinite(loss)
    metrics = {"loss": loss, "weight": batch["x"].size * 1.0, "skipped": 1 - ok.astype(jnp.int32)}
    params = jnp.where(ok, state.params["w"] + 0.1 * momentum, state.params["w"])
    momentum = jnp.where(ok, momentum, state.opt_state[0])
    return TrainState(state.step + 1, {"w": params}, (momentum,)), metrics


def loop_fresh():
    return TrainState(jnp.zeros((), jnp.int32), {"w": jnp.ones(4)}, (jnp.zeros(4),))


class LoopBench:
    """A run in a directory, begun or gone on with by ``fit``."""

    def __init__(self, path):
        self.path = path
        self.poison: set[int] = set()
        self.hook = lambda number: None
        self.evaluate = lambda state: {"valid_loss": 10.0 - float(state.step)}
        self.widths = self.planned = (7,)
        self.step = loop_step
        self.curves = None

    def batch(self, number, width=None):
        width = width or self.widths[number % len(self.widths)]
        x = np.random.default_rng(number).normal(size=(2, width))
        return {"x": jnp.asarray(np.nan * x if number in self.poison else x, jnp.float32)}

    def batches(self, start):
        for number in itertools.count(start):
            self.hook(number)
            yield self.batch(number)

    def run(self, count, **options) -> FitResult:
        config = LoopConfig(**{"evaluate_every": 4, "checkpoint_every": 2, **options})
        checkpointer = Checkpointer(self.path / "checkpoints", keep_last=config.keep_last)
        try:
            restored = checkpointer.restore(loop_fresh())
            loop = Loop(
                CompiledStep(self.step, jax.random.key(1)), self.batches, checkpointer,
                self.path / "metrics.jsonl", config, evaluate=self.evaluate, steps_per_epoch=5,
                curves=self.curves,
            )  # fmt: skip
            return fit(
                restored.state if restored else loop_fresh(),
                loop,
                steps=count,
                start=restored.step if restored else 0,
                padding=[self.batch(0, width) for width in self.planned],
            )
        finally:
            checkpointer.close()


@pytest.fixture
def bench(tmp_path):
    return LoopBench(tmp_path)


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, [5, 10]), (1.0, [5, 12])])
def test_curves_are_redrawn_at_most_once_a_period(bench, monkeypatch, seconds, lines):
    """Drawing takes at most a hundredth of the time; the trainer draws the end."""
    clock, drawn = [0.0], []

    def draw(history, path, **how):
        drawn.append(len(history))
        clock[0] += seconds

    def wait(number):
        clock[0] += 20.0

    monkeypatch.setattr("transformer_jax.training.curves.training_curves", draw)
    monkeypatch.setattr("transformer_jax.training.curves.time.monotonic", lambda: clock[0])
    bench.hook = wait  # a checkpoint every second step, 40 s
    bench.curves = Curves(bench.path / "curves.png", ("training", "validation"), [])
    bench.run(12)
    # A line for each step and for the evaluations of steps 4 and 8. Drawing for a second waits
    # until 100 s later.
    assert drawn == lines


def test_a_metric_that_nothing_measures_is_warned_of_once(bench, capfd):
    bench.evaluate = lambda state: {"valid_los": 1.0}
    assert bench.run(8).best is None
    err = capfd.readouterr().err
    assert err.count("warning: no measurement is called valid_loss") == 1
    assert "there are valid_los" in err


def lp_train_lines(path):
    return [r for r in read_metrics(path / "metrics.jsonl") if "loss" in r]


def lp_without_times(records):
    return [
        {
            k: v
            for k, v in r.items()
            if k not in ("tokens_per_second", "evaluation_seconds", "input_seconds")
        }
        for r in records
    ]


def test_a_run_measures_every_step_once_and_keeps_last_and_best(bench):
    bench.evaluate = lambda state: {"valid_loss": abs(float(state.step) - 4.0)}
    done = bench.run(10, keep_last=2)
    assert (done.step, done.best_step, done.early, done.recompilations) == (10, 4, False, 0)
    lines = read_metrics(bench.path / "metrics.jsonl")
    assert [r["step"] for r in lines if "loss" in r] == list(range(1, 11))
    assert [r["step"] for r in lines if "valid_loss" in r] == [4, 8, 10]
    assert lines[3]["epoch"] == 0.8
    assert {"loss", "skipped", "tokens"} <= set(lines[0])
    assert steps(bench.path / "checkpoints") == [10, 8, 4]
    assert load_params(bench.path).step == 4


@pytest.mark.parametrize("number", [1, 4, 5, 10])
@pytest.mark.quick("5")
def test_stopped_at_any_step_and_resumed_it_is_the_undisturbed_run(bench, tmp_path, number):
    """R1: the state bit by bit, and every line of the measurements."""

    def train(stops):
        bench.path = tmp_path / f"stopped{stops}"
        for stop in stops:
            bench.hook = lambda n, stop=stop: n + 1 == stop and signal.raise_signal(signal.SIGTERM)
            with pytest.raises(Stopped) as caught:
                bench.run(10)
            assert caught.value.exit_code == 143
            assert f"step {stop} is saved" in str(caught.value)
        bench.hook = lambda n: None
        state = digest(bench.run(10).state)
        lines = lp_without_times(read_metrics(bench.path / "metrics.jsonl"))
        return {"state": state, "lines": lines, "best": load_params(bench.path).step}

    laws.resumed(train, [(number,)]).require()


def test_a_crash_between_checkpoints_leaves_no_line_twice(bench):
    bench.hook = lambda n: n == 7 and 1 / 0
    with pytest.raises(ZeroDivisionError):
        bench.run(10, checkpoint_every=4)
    with (bench.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')  # a kill in the midst of a line
    bench.hook = lambda n: None
    bench.run(10, checkpoint_every=4)
    assert [r["step"] for r in lp_train_lines(bench.path)] == list(range(1, 11))


def test_control_c_is_130_and_a_signal_during_compilation_saves_nothing(bench):
    bench.hook = lambda n: n == 2 and signal.raise_signal(signal.SIGINT)
    with pytest.raises(Stopped) as caught:
        bench.run(10)
    assert caught.value.exit_code == 130
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_non_finite_steps_are_counted_and_end_the_run_across_resumes(bench):
    """N1: a step that is not finite changes nothing; too many in a row are exit code 5."""
    bench.poison = {3, 4, *range(7, 40)}
    with pytest.raises(
        NumericsError, match=r"5 consecutive steps up to step 12.*warmup_steps"
    ) as caught:
        bench.run(40, max_nonfinite_steps=5)
    assert caught.value.exit_code == 5
    lines = lp_train_lines(bench.path)
    assert [r["step"] for r in lines if r["skipped"]] == [4, 5, 8, 9, 10, 11, 12]
    assert all(r["loss"] is None for r in lines if r["skipped"])
    raw = (bench.path / "metrics.jsonl").read_text()
    assert "NaN" not in raw
    assert "Infinity" not in raw
    # Three of them lie before the checkpoint of step 10: two more are too many.
    with pytest.raises(NumericsError, match="up to step 12"):
        bench.run(40, max_nonfinite_steps=5)


def test_patience_ends_the_run_and_goes_on_ending_it(bench):
    bench.evaluate = lambda state: {"valid_loss": abs(float(state.step) - 4.0)}
    done = bench.run(40, evaluate_every=2, patience=2)
    assert (done.step, done.best_step, done.early) == (8, 4, True)
    before = digest(done.state)
    again = bench.run(40, evaluate_every=2, patience=2)
    assert (again.step, again.early, digest(again.state)) == (8, True, before)


def lp_flip_best(text):
    return text.replace(b'"valid_loss": 2.0', b'"valid_loss": 9.0', 1)


LOOP_DAMAGES = {
    "a byte early": lambda text: text.replace(b'"step": 2,', b'"step"\xff 2,', 1),
    "a byte of the best score": lp_flip_best,
    "the step of a line": lambda text: text.replace(b'"step": 3', b'"step": 9', 1),
    "the end of a line": lambda text: text.replace(b"}\n", b"}\xb8", 1),
    "a zeroed page": lambda text: bytes(len(text) // 2) + text[len(text) // 2 :],
    "cut in the middle": lambda text: text[: len(text) // 2],
    "nothing is left": lambda text: b"",
    "endless brackets": lambda text: b"[" * 100_000 + b"\n" + text,
}


@pytest.mark.parametrize("damage", LOOP_DAMAGES)
@pytest.mark.parametrize("number", [5, 13])
@pytest.mark.slow
def test_damaged_metrics_change_nothing_of_how_a_run_ends(bench, tmp_path, number, damage):
    """Best score at step 4, patience over at step 16; both are in the manifests."""
    losses = {2: 6.0, 4: 2.0, 6: 5.0, 8: 4.0, 10: 3.0, 12: 3.0, 14: 2.5, 16: 8.0}
    bench.evaluate = lambda state: {"valid_loss": losses[int(state.step)]}
    options = {"evaluate_every": 2, "patience": 6, "max_nonfinite_steps": 3}
    bench.path = tmp_path / "whole"
    whole = bench.run(40, **options)
    assert (whole.step, whole.best.value, whole.best_step, whole.early) == (16, 2.0, 4, True)
    bench.path = tmp_path / "cut"
    bench.hook = lambda n: n == number and signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Stopped):
        bench.run(40, **options)
    bench.hook = lambda n: None
    file = bench.path / "metrics.jsonl"
    before = LOOP_DAMAGES[damage](file.read_bytes())
    file.write_bytes(before)
    again = bench.run(40, **options)
    assert digest(again.state) == digest(whole.state)
    assert again[1:5] == whole[1:5]
    kept = file.read_bytes()
    assert kept.startswith(before.rstrip(b"\n"))
    assert load_params(bench.path).step == 4
    assert bench.run(40, **options)[1:5] == whole[1:5]


def test_steps_that_were_not_finite_are_counted_without_metrics(bench):
    bench.poison = set(range(7, 40))
    with pytest.raises(NumericsError, match="5 consecutive steps up to step 12"):
        bench.run(40, max_nonfinite_steps=5)
    (bench.path / "metrics.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(NumericsError, match="5 consecutive steps up to step 12"):
        bench.run(40, max_nonfinite_steps=5)


def test_a_run_of_an_earlier_version_is_judged_by_its_metrics_and_scores(bench):
    bench.evaluate = lambda state: {"valid_loss": abs(float(state.step) - 4.0)}
    bench.run(6, evaluate_every=2, patience=2)
    for path in (bench.path / "checkpoints").iterdir():
        fields = manifest.read(path)
        del fields["progress"]
        manifest.rewrite(path, fields)
    file = bench.path / "metrics.jsonl"
    file.write_bytes(lp_flip_best(file.read_bytes().replace(b'0.0, "ev', b'9.0, "ev')))
    done = bench.run(40, evaluate_every=2, patience=2)
    assert (done.step, done.best.value, done.best_step, done.early) == (8, 0.0, 4, True)


def test_the_best_may_be_the_highest(bench):
    bench.evaluate = lambda state: {"valid_loss": 0.0, "sacrebleu": float(state.step) % 8}
    assert bench.run(10, best_checkpoint_metric="sacrebleu").best_step == 4


def test_a_compile_after_warmup_is_a_defect_that_names_the_shape(bench, caplog):
    bench.widths = (7, 7, 9)
    with caplog.at_level(logging.WARNING):
        done = bench.run(6)
    assert done.recompilations == 1
    (record,) = [r for r in caplog.records if "compiled after warmup" in r.getMessage()]
    assert "x [2, 9]" in record.getMessage()
    bench.planned = (7, 9)
    assert bench.run(12).recompilations == 0


class HeldStep:
    """A step of which some batch widths compile only once they are let go."""

    def __init__(self, held=()):
        self.held = {width: threading.Event() for width in held}
        self.lowered = []

    def __call__(self, state, frozen, batch, key):
        raise AssertionError("compiled twice")

    def lower(self, state, frozen, batch, key):
        self.lowered.append(batch["x"].shape[1])
        return self

    def compile(self):
        width = self.lowered[-1]
        if width in self.held:
            self.held[width].wait(30)
        return loop_step


@pytest.fixture
def held(bench, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    bench.step, bench.widths, bench.planned = HeldStep([9]), (7, 7, 9), (7, 9)
    let_go = bench.step.held[9]
    yield let_go
    let_go.set()


def test_the_first_steps_do_not_wait_for_shapes_that_come_later(bench, held):
    """Shapes compile in the order of need, each once; a step waits for its own alone."""
    done_by_then = []

    def let_go():
        until = time.monotonic() + 10
        while len(done_by_then) < 2 and time.monotonic() < until:
            done_by_then[:] = [r["step"] for r in lp_train_lines(bench.path)]
            time.sleep(0.05)
        held.set()

    bench.hook = lambda n: n == 2 and threading.Thread(target=let_go).start()
    done = bench.run(6, evaluate_every=0, checkpoint_every=0)
    assert (done.step, done.recompilations, bench.step.lowered) == (6, 0, [7, 9])
    assert done_by_then == [1, 2]  # reported before the wait, not after it
    assert [r["step"] for r in lp_train_lines(bench.path)] == list(range(1, 7))


def test_a_signal_ends_the_wait_for_a_program(bench, held, tmp_path):
    """After two steps these are saved, and resuming gives the undisturbed run; before, nothing."""
    bench.hook = lambda n: (
        n == 2 and threading.Timer(0.3, signal.raise_signal, (signal.SIGTERM,)).start()
    )
    with pytest.raises(Stopped, match="the state of step 2 is saved"):
        bench.run(6, checkpoint_every=0)
    assert [r["step"] for r in lp_train_lines(bench.path)] == [1, 2]
    held.set()
    bench.hook = lambda n: None
    again = bench.run(6)
    bench.path, bench.step = tmp_path / "whole", loop_step
    assert digest(bench.run(6).state) == digest(again.state)

    bench.path, bench.step, bench.widths = tmp_path / "none", HeldStep([7]), (7,)
    threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(Stopped, match="no step was taken yet"):
        bench.run(6)
    bench.step.held[7].set()


def test_what_cannot_be_compiled_ends_the_run_with_its_reason(bench, monkeypatch):
    bench.step = HeldStep()
    monkeypatch.setattr(bench.step, "compile", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench.run(2)


def test_warming_up_changes_nothing(bench, tmp_path):
    bench.path, bench.planned = tmp_path / "warm", (7, 9, 8)
    warm = bench.run(3)
    bench.path, bench.planned = tmp_path / "cold", ()
    assert digest(bench.run(3).state) == digest(warm.state)


def test_measurements_that_cannot_be_written_are_named(bench):
    (bench.path / "metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        bench.run(2)


@pytest.mark.slow
def test_tensorboard_is_optional(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path / "metrics.jsonl", tensorboard=tmp_path / "tensorboard")
    log.write({"step": 1, "loss": 2.0, "bad": float("nan")})
    log.close()
    assert any((tmp_path / "tensorboard").iterdir())
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["bad"] is None
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match="needs tensorboardX, which is not installed"):
        MetricsLog(tmp_path / "metrics.jsonl", tensorboard=tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [{"evaluate_every": -1}, {"checkpoint_every": -1}, {"keep_last": 0}, {"patience": 0},
     {"max_nonfinite_steps": 0}],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LoopConfig(**wrong)


def test_processes_that_do_not_write_only_remember(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl", writes=False)
    log.write({"step": 1, "loss": 2.0})
    log.close()
    assert log.history == [{"step": 1, "loss": 2.0}]
    assert not os.listdir(tmp_path)
