"""The benchmark of a GPU: its profiles, its time, what is not installed, and all of it, tiny."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import jax
import pytest

from benchmarks import __main__ as program
from benchmarks import gpu, gpu_session, kernel_profile
from benchmarks.harness import TREE, Bench, Worker
from transformer_jax.core.errors import ConfigError


def plane(name, lines):
    """A plane of a profile as text: names of lines with their events, name and picoseconds."""
    names = sorted({event for events in lines.values() for event, _ in events})
    metadata = "".join(
        f"event_metadata {{ key: {i} value {{ id: {i} name: {json.dumps(one)} }} }}"
        for i, one in enumerate(names, 1)
    )
    return (
        f"planes {{ name: {json.dumps(name)} {metadata} "
        + "".join(
            f"lines {{ name: {json.dumps(line)} "
            + "".join(
                f"events {{ metadata_id: {names.index(event) + 1} duration_ps: {ps} }}"
                for event, ps in events
            )
            + "}"
            for line, events in lines.items()
        )
        + "}"
    )


STREAMS = {
    "Stream #20(Compute)": [
        ("nvjet_tst_128x256", 4_000_000), ("loop_add_fusion_3", 1_000_000),
        ("loop_add_fusion_7", 1_000_000), ("cudnn_generated_fmha", 3_500_000),
    ],
    "Stream #21(MemcpyD2D)": [("MemcpyD2D", 500_000)],
    "XLA Ops": [("dot.3", 4_000_000), ("fusion.7", 2_000_000)],
    "XLA Modules": [("jit_step", 9_000_000)],
}  # fmt: skip
HOST = {
    "python": [("$threading.py:323 wait", 7_000_000), ("PjitFunction(step)", 9_000_000)],
    "tf_XLAEigen/1": [("dot.3", 3_000_000), ("ThunkExecutor::Execute", 5_000_000)],
}


def kernels(*planes):
    return kernel_profile.summary(
        kernel_profile.events(jax.profiler.ProfileData.from_text_proto("".join(planes)))
    )


def test_kernels_of_a_gpu_are_what_its_streams_ran():
    found = kernels(plane("/device:GPU:0", STREAMS), plane("/host:CPU", HOST))
    shown = kernel_profile.per_step(found, 2, 3)
    assert shown["launches"] == 2.5
    assert shown["busy_ms"] == 0.005  # 10 microseconds in two steps
    assert list(shown["classes"]) == ["product", "attention", "elementwise", "copy"]
    assert [(one["kernel"], one["launches"]) for one in shown["kernels"]] == [
        ("nvjet_tst_128x256", 0.5), ("cudnn_generated_fmha", 0.5), ("loop_add_fusion", 1.0),
    ]  # fmt: skip


def test_without_a_gpu_they_are_operations_not_calls():
    assert [one["kernel"] for one in kernels(plane("/host:CPU", HOST))["kernels"]] == ["dot"]


def test_without_a_gpu_only_a_tiny_model_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_session, "gpu_facts", dict)
    monkeypatch.setattr(gpu_session, "installed", lambda python: {})
    with pytest.raises(ConfigError, match="finds no GPU: --tiny"):
        gpu.main(["--output", str(tmp_path / "results")])
    assert not any(tmp_path.iterdir())


def test_no_section_begins_after_the_time(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(gpu_session, "gpu_facts", dict)
    monkeypatch.setattr(gpu_session, "installed", lambda python: {"jax": "1"})
    monkeypatch.setitem(gpu.SECTIONS, "step", lambda session: pytest.fail("step began"))
    gpu.main(["--tiny", "--only", "step", "--minutes", "-1", "--output", str(tmp_path)])
    assert "step: not begun: the time is over" in capfd.readouterr().err
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_text())["left_out"] == {"step": "the time was over"}
    # A later session under the same conditions keeps what is measured.
    shared = []

    def step(session):
        shared.append(Path(session.folder))
        (shared[0] / "weights").touch()
        session.keep_table("a", [{"name": "x"}], "x")

    monkeypatch.setitem(gpu.SECTIONS, "step", step)
    gpu.main(["--tiny", "--only", "step", "--output", str(tmp_path)])
    assert not shared[0].exists()
    monkeypatch.setitem(
        gpu.SECTIONS, "base", lambda session: session.keep_table("b", [{"name": "x"}], "y")
    )
    gpu.main(["--tiny", "--only", "base", "--output", str(tmp_path)])
    assert [one["title"] for one in json.loads(file.read_text())["tables"]] == ["a", "b"]
    monkeypatch.setattr(gpu_session, "installed", lambda python: {"jax": "2"})
    gpu.main(["--tiny", "--only", "base", "--output", str(tmp_path)])
    assert [one["title"] for one in json.loads(file.read_text())["tables"]] == ["b"]


def test_flags_that_this_version_does_not_know_are_left_out(monkeypatch):
    known = lambda command, env, **_: types.SimpleNamespace(returncode="new" in env["XLA_FLAGS"])
    monkeypatch.setattr(gpu_session.subprocess, "run", known)
    assert gpu_session.accepted(["--xla_a", "--xla_b"]) == ["--xla_a", "--xla_b"]
    assert gpu_session.accepted(["--xla_a", "--xla_new"]) == ["--xla_a"]


CASES = """
import sys
from benchmarks.worker import serve

def works(value):
    return (lambda times: value), {"value": value}

def breaks():
    raise NotImplementedError("no kernel for this")

def ends():
    sys.exit(3)

serve({"works": works, "breaks": breaks, "ends": ends})
"""


def test_cases_share_a_worker_and_one_that_fails_is_named_with_its_reason(tmp_path, capfd):
    (tmp_path / "some_cases.py").write_text(CASES)
    (tmp_path / "benchmarks").symlink_to(TREE / "benchmarks")
    lines = []
    bench = Bench(record=lambda **values: lines.append(values))
    worker = Worker(sys.executable, "some_cases", 1, tmp_path)
    add = lambda name, **arguments: bench.add(name, name, arguments, worker=worker)
    assert add("works", value=1)["value"] == 1
    assert add("works", value=2)["value"] == 2
    assert add("breaks") is None
    (row,) = bench.measure(1, 1, "works")
    assert len(row.process_ms) == 2
    assert len({line["process"] for line in lines if "round" in line}) == 2
    assert bench.profile("works") is None
    bench.remove("works")
    assert bench.cases == []
    assert add("ends") is None
    assert add("works", value=3) is None
    reasons = [one.get("left_out", one.get("no_profile")) for one in lines if "round" not in one]
    assert reasons[0] == "NotImplementedError('no kernel for this')"
    assert reasons[1] == "NotImplementedError('these cases have no profile')"
    assert reasons[2:] == ["the worker ended with code 3"] * 2
    bench.close()
    worker.close()


def test_a_peer_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_session, "gpu_facts", dict)
    monkeypatch.setattr(gpu_session, "installed", lambda python: {"torch": "2.11.0"})
    found = {}

    def section(session):
        with session.table("a table", "tokens", 1, "") as one:
            found["added"] = one.add("CTranslate2", "ctranslate2", "decode", {}, 1)

    monkeypatch.setitem(gpu.SECTIONS, "step", section)
    flags = ["--tiny", "--only", "step", "--peers", "python", "--output", str(tmp_path)]
    gpu.main(flags)
    (file,) = tmp_path.glob("*.json")
    assert found == {"added": False}
    assert json.loads(file.read_text())["left_out"] == {
        "a table: CTranslate2": "python has no transformers, ctranslate2"
    }


def test_commands_of_earlier_versions_measure_the_same_sections(monkeypatch):
    found = []
    monkeypatch.setattr(gpu, "main", found.append)
    words = ["benchmarks", "train", "--rounds", "5", "--device", "gpu", "--minutes", "3.5"]
    monkeypatch.setattr(sys, "argv", words)
    program._main()
    assert found == [["--rounds", "5", "--only", "base", "--minutes", "3.5"]]


# Packages of the library that a machine for measuring need not have.
BLOCK = """
import sys
for name in ("tyro", "grain", "sacrebleu", "jinja2"):
    sys.modules[name] = None
"""


@pytest.mark.slow
def test_all_of_it_runs_with_a_tiny_model_and_few_packages(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    command = [sys.executable, "-m", "benchmarks", "gpu", "--tiny", "--rounds", "1"]
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{TREE}"}
    done = subprocess.run(
        [*command, "--minutes", "15", "--output", str(tmp_path / "out")],
        capture_output=True, text=True, cwd=TREE, timeout=1200, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = (tmp_path / "out").glob("*.json")
    found = json.loads(file.read_text())
    peers = ("nanoGPT", "torch.nn", "transformers", "CTranslate2")
    assert all(any(peer in name for peer in peers) for name in found["left_out"])
    rows = {one["title"]: one["rows"] for one in found["tables"]}
    assert all(row["ms"] > 0 for table in rows.values() for row in table)
    step = next(title for title in rows if "training step, 4 texts" in title)
    assert [len(row["process_ms"]) for row in rows[step] if row["name"] == "transformer_jax"] == [2]
    profile = found["profiles"][f"{step}: transformer_jax"]
    assert 0 < len(profile["kernels"]) <= 30
    assert found["device"]["bfloat16_logits_tflops"] > 0
    lines = [json.loads(line) for line in file.with_suffix(".jsonl").read_text().splitlines()]
    assert sum("wall" in line for line in lines) >= 20
