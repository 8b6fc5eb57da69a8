"""FLOPs of stored runs are those that training counts, step by step (row H15)."""

import json

import pytest

from benchmarks.training_flops import counted_flops
from transformer_jax.cli.main import main
from transformer_jax.core.errors import ConfigError
from transformer_jax.evaluation.bleu_results import training_cost
from transformer_jax.runs.run_directory import RunDirectory

COMMAND = """transformer-jax train small --data.pairs pairs.tsv --tokenizer.vocab-size 300
    --model.d-model 16 --model.encoder-layers 1 --model.decoder-layers 1 --training.max-tokens 128
    --model.attention.num-heads 2 --model.feed-forward.d-ff 16 --training.epochs 2"""


@pytest.mark.slow
def test_h15_flops_of_a_command_are_those_that_its_run_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{'um dois ' * (i % 7 + 1)}\t{'one two ' * (i % 5 + 1)}\n" for i in range(60)]
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    alone = ("--distributed.num-local-devices", "1", "--output", "run")
    assert main([*COMMAND.split()[1:], *alone]) == 0
    run = RunDirectory.open(tmp_path / "run")
    sizes = {name: run.read_results()[name] for name in ("steps", "parameters")}
    found = counted_flops(COMMAND, **sizes)
    assert found == training_cost(run)
    with pytest.raises(ConfigError, match="its FLOPs cannot be counted"):
        counted_flops(COMMAND, **sizes | {"steps": 1})
    assert json.loads(run.config.read_text())["training"]["epochs"] == 2
