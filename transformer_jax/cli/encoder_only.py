r"""Pre-train an encoder on any text, fine-tune it on labeled examples, train an image encoder.

    python -m experiments.encoder_only pretrain python-docs
    python -m experiments.encoder_only pretrain small --data.text corpus.txt
    python -m experiments.encoder_only finetune classify --init-from runs/small \
        --data.train reviews.tsv
    python -m experiments.encoder_only finetune tag --data.train train.conllu
    python -m experiments.encoder_only train vit --data.images pictures --output runs/vit
    python -m experiments.encoder_only resume runs/small
    python -m experiments.encoder_only evaluate runs/classify --data more.tsv
    python -m experiments.encoder_only glue SST-2=runs/classify MRPC=runs/pair

``COMMAND NAME --help`` lists every setting. Pre-training ends with MLM and sentence-pair accuracy
next to trivial baselines; fine-tuning and image classification end with the scores of the task on
validation and test examples.
"""

from collections.abc import Sequence

from transformer_jax.cli import training
from transformer_jax.cli.glue import Glue

__all__ = ["main"]

FAMILY = training.TrainingProgram(
    "python -m experiments.encoder_only",
    __doc__ or "",
    training.commands_for("encoders"),
    {"glue": Glue},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command of ``arguments``, or of the command line; returns its exit code."""
    return training.main(FAMILY, arguments)
