"""The programs in examples/ are short, run, and show what they say."""

import importlib.util
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_own_objective_and_its_run_fit_in_one_short_file(tmp_path):
    assert len((EXAMPLES / "own_objective.py").read_text().splitlines()) < 80
    assert load_example("own_objective").main(str(tmp_path)) > 0.9
    assert (tmp_path / "results.json").exists()
