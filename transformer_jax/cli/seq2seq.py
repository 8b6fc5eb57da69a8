r"""Train an encoder-decoder: translation, denoising, summaries, speech; resume or evaluate a run.

    python -m experiments.seq2seq train phrasebook
    python -m experiments.seq2seq train base --data.source corpus.de --data.target corpus.en
    python -m experiments.seq2seq train base --data.tfds ted_hrlr_translate/pt_to_en --mesh.fsdp 4
    python -m experiments.seq2seq pretrain bart-mini --data.text corpus.txt
    python -m experiments.seq2seq finetune summarize --init-from runs/bart-mini \
        --data.train texts.jsonl
    python -m experiments.seq2seq train-speech luong --data.train train.tsv
    python -m experiments.seq2seq resume runs/base
    python -m experiments.seq2seq evaluate runs/base --source test.de --target test.en
    python -m experiments.seq2seq evaluate runs/luong --manifest test.tsv

``COMMAND NAME --help`` lists every setting. Training ends with an evaluation: translators with
sacreBLEU and chrF on their test sets, pre-training with the loss next to a trivial baseline,
summarizers with ROUGE next to the leading sentences and the best sentences, speech recognizers with
word and character error rates.
"""

from collections.abc import Sequence

from transformer_jax.cli import training

__all__ = ["main"]

FAMILY = training.TrainingProgram(
    "python -m experiments.seq2seq", __doc__ or "", training.commands_for("encoder-decoders")
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command of ``arguments``, or of the command line; returns its exit code."""
    return training.main(FAMILY, arguments)
