"""The page about training from Python runs as written."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import transformer_jax as tj

PAGE = (Path(__file__).parents[2] / "docs" / "training-in-python.md").read_text()
TEXT = "The quick brown fox jumps over the lazy dog.\n" * 40


@pytest.mark.slow
@pytest.mark.usefixtures("no_curves")
def test_the_page_about_training_runs_as_written(tmp_path, monkeypatch):
    """On one device, as most machines have; to compile for all takes longer."""
    devices = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: devices)
    imports, *blocks = re.findall("```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "corpus.txt").write_text(TEXT)
    code = "\n".join([imports, *blocks])
    for path in ("corpus.txt", "runs/mine", "runs/z", "runs/own"):
        assert f'"{path}"' in code
        code = code.replace(f'"{path}"', repr(str(tmp_path / path)))
    names = {}
    exec(code, names)
    assert names["result"].step == 4
    assert isinstance(names["text"], str)
    assert tj.load(tmp_path / "runs" / "mine", checkpoint="last").model.config.d_model == 32
    assert (tmp_path / "runs" / "mine" / "curves.png").exists()
    assert names["accuracy"].name == "valid_accuracy"
    assert names["best"].name == "valid_loss"
    assert names["net"](jnp.ones((1, 8))).shape == (1, 8)
    assert (tmp_path / "runs" / "own" / "results.json").exists()
    assert int(names["state"].step) == 4
