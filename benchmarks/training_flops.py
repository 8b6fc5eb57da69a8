"""FLOPs of stored training runs, counted from their commands without training.

    python -m benchmarks.training_flops benchmarks/results/multi30k_tiny.json --data DIR

A result has the command of its run (``training`` if another command started it). The command is
started again in a temporary folder: the same text gives the same tokenizer and the same plan of
batches, whose shapes determine the FLOPs of each step. Steps and parameters must equal the stored
ones. ``flops`` is written to the file, for ``transformer-jax report bleu``.
"""

import argparse
import contextlib
import json
import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_jax.cli.run_flags import asked_run
from transformer_jax.cli.training import EVERY
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.plan import BatchPlan
from transformer_jax.models.costs.accounting import count_parameters
from transformer_jax.recipes import driver
from transformer_jax.recipes.explicit_settings import Given
from transformer_jax.recipes.sizing import with_step_intervals

__all__ = ["counted_flops", "main"]


def counted_flops(command: str, *, steps: int, parameters: int) -> float:
    """Returns the FLOPs of all training steps of a command, after reading its data.

    Args:
        command: The command line, of ``transformer-jax`` or ``python -m experiments.seq2seq``.
        steps: Steps of the run.
        parameters: Parameters of the run.

    Raises:
        ConfigError: The current run has different steps or parameters.
    """
    words = shlex.split(command)
    words = words[words.index("train") :]
    with tempfile.TemporaryDirectory() as folder:
        asked = asked_run("transformer-jax train", EVERY.commands, [
            *words[1:], "--output", f"{folder}/run",
        ])  # fmt: skip
        run, directory, data = driver.create_run(asked.run, Given(asked.named))
        task = driver.make_task(run, directory, driver.tokenizer_of(run, directory), data)
        plan = task.train.plan
        run = with_step_intervals(run, plan.steps_per_epoch)
        there = run.training.steps or run.training.epochs * plan.steps_per_epoch
        own = count_parameters(run.model)
        if (there, own) != (steps, parameters):
            raise ConfigError(
                f"{command}: now it has {there:,} steps and {own:,} parameters, but the result "
                f"{steps:,} and {parameters:,}: its FLOPs cannot be counted"
            )
        assert task.flops is not None
        known: dict[Any, float] = {}  # FLOPs by the shapes of a batch
        total = 0.0
        for step in range(steps):
            rows = plan.batch(step)
            assert isinstance(rows, BatchPlan)
            shape = rows.S, rows.T, len(rows)
            if shape not in known:
                known[shape] = task.flops(task.train.make_batch(rows))
            total += known[shape]
    return total


def _runs(content: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, dict[str, int]]]:
    """Yields each run of a file with its command, steps and parameters."""
    for run in content.get("runs", [content]):
        numbers = run | run.get("results", {})
        if {"command", "steps", "parameters"} <= numbers.keys():
            sizes = {name: numbers[name] for name in ("steps", "parameters")}
            yield run, run.get("training", run["command"]), sizes


def main() -> None:
    """Counts the FLOPs of runs in files of results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", nargs="+", type=Path, help="files of results")
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the texts")
    given = parser.parse_args()
    for path in [one.resolve() for one in given.results]:
        content = json.loads(path.read_text())
        for run, command, sizes in _runs(content):
            with contextlib.chdir(given.data):
                run["flops"] = flops = counted_flops(command, **sizes)
            print(path.name, run.get("run", ""), f"{flops:.4g}", flush=True)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")
        os.replace(draft, path)


if __name__ == "__main__":
    main()
