"""``transformer-jax score-file``: all metrics of a task on files of outputs, without a model."""

import dataclasses
from pathlib import Path

import tyro

from transformer_jax.cli.output import write_json, wrote
from transformer_jax.cli.support.output_flags import OutputFlags, signatures
from transformer_jax.core.text_tables import aligned
from transformer_jax.evaluation.output_scores import score_outputs, task_metrics, task_report
from transformer_jax.evaluation.system_outputs import SystemOutputs, read_outputs

__all__ = ["ScoreFile"]


@dataclasses.dataclass(frozen=True)
class ScoreFile(OutputFlags):
    """Print all metrics of a task for a file of outputs, without a model."""

    outputs: tyro.conf.Positional[Path]
    """File of outputs: a text, a class or a number in each line; words and tags for tag; JSON by
    the ids of a SQuAD file for answer; or the predictions.csv of evaluate, with its references."""
    references: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Files of references, line by line; several for translate, summarize, caption and answer."""

    def __call__(self) -> int:
        """Prints a row for each metric, and the report of classes or entities."""
        self.check()
        read: SystemOutputs = read_outputs(self.outputs, self.references, self.task)
        task, texts, references = read
        metrics = task_metrics(
            task, [texts], references, tokenize=self.tokenize, lowercase=self.lowercase
        )
        rows = score_outputs(texts, references, metrics)
        shown = [(name, self.figures(task, score)) for name, score, _ in rows]
        print(aligned([("metric", "score"), *shown]))
        print(f"\n{signatures((name, signature) for name, _, signature in rows)}")
        if report := task_report(task, texts, references):
            print(f"\n{report}")
        if self.json is not None:
            scores = {name: {"score": score, "signature": sign} for name, score, sign in rows}
            about = {"task": task, "outputs": len(texts), "scores": scores}
            write_json("--json", self.json, about)
            wrote(self.json)
        return 0
