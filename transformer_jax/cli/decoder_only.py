r"""Train a language model from any text, align it, resume a run, compare models on a text.

    python -m experiments.decoder_only train python-docs
    python -m experiments.decoder_only train char-cpu --data.text shakespeare.txt
    python -m experiments.decoder_only train gpt2-small --data.text folder/ --mesh.fsdp 4
    python -m experiments.decoder_only train ngram --data.text shakespeare.txt --model.order 5
    python -m experiments.decoder_only instruct sft --init-from models/gpt2 --data.train chats.jsonl
    python -m experiments.decoder_only align dpo --init-from runs/char-cpu --data.train pairs.jsonl
    python -m experiments.decoder_only align grpo --init-from runs/char-cpu \
        --data.train prompts.jsonl --reward.file reward.py
    python -m experiments.decoder_only resume runs/char-cpu
    python -m experiments.decoder_only evaluate runs/char-cpu --text more.txt --compare runs/ngram

``COMMAND NAME --help`` lists every setting. Training on texts ends with perplexity and bits per
character of the test texts, with n-gram baselines; training on conversations, with a sample answer.
"""

from collections.abc import Sequence

from transformer_jax.cli import training

__all__ = ["main"]

FAMILY = training.TrainingProgram(
    "python -m experiments.decoder_only", __doc__ or "", training.commands_for("language models")
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command of ``arguments``, or of the command line; returns its exit code."""
    return training.main(FAMILY, arguments)
