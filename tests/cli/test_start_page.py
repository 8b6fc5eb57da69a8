"""The page for the first ten minutes: its commands and its Python run as written, shortened."""

import re
import shlex
from pathlib import Path

import pytest

import transformer_jax as tj

PAGE = (Path(__file__).parents[2] / "docs" / "start.md").read_text()
SHORT = "--training.steps 3 --model.encoder-layers 1 --model.decoder-layers 1 --model.d-model 16"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:1 of 1 text reached")  # an untrained model
@pytest.mark.usefixtures("no_curves")
def test_the_page_runs_from_a_file_of_pairs_to_python(tmp_path, monkeypatch, run_command):
    monkeypatch.chdir(tmp_path)
    data, use = re.findall("```python\n(.*?)```", PAGE, re.DOTALL)
    exec(data.replace("5000", "60"), {})
    assert len(Path("pairs.tsv").read_text().splitlines()) == 60
    commands = re.findall(r"^    (?:echo \"(.*?)\" \| )?transformer-jax (.*)$", PAGE, re.MULTILINE)
    assert [shlex.split(line)[0] for _, line in commands] == ["train", "translate", "attention"]
    for text, line in commands:
        words = shlex.split(line.replace("--training.steps 500", SHORT))
        assert run_command(*words, text=text + "\n")[0] == 0
    assert Path("attention.html").exists()
    assert Path("runs/pairs/curves.png").exists()
    exec(use, {})
    assert tj.load("runs/pairs").model.config.d_model == 16
