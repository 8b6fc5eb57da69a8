"""``transformer-jax probe``: linear probing of the layers of an encoder."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from transformer_jax.cli.output import check_file, note, note_unknown, writing, wrote
from transformer_jax.cli.support.run_command import PredictionCommand
from transformer_jax.core.config_fields import Flag, OutputPath, Range
from transformer_jax.core.errors import DataError, UserError, plural
from transformer_jax.recipes.generation_flags import LanguageFlags

if TYPE_CHECKING:
    from transformer_jax.data.labeled import Labeled
    from transformer_jax.data.preparation import Preparation
    from transformer_jax.inference.encoding.probing import ProbeResult
    from transformer_jax.inference.encoding.vectors import Embedder, Pools

__all__ = ["Probe"]

_OFFER = re.compile(r"(; or|, or) leave out bad \w+ with --data\.read\.bad-rows skip")


@dataclasses.dataclass(frozen=True)
class Probe(LanguageFlags, PredictionCommand):
    """Linear probing of each layer's frozen embeddings on the labels of a file."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of an encoder or a translator."""
    file: tyro.conf.Positional[Path]
    """Sentences with classes (.tsv, .jsonl), or words with tags (.conllu, or .jsonl with --tag)."""
    valid: Annotated[Path | None, Flag(also=("data.valid",))] = None
    """Validation file in the same format; without it, a fifth of the texts is held out."""
    text: Annotated[str, Flag(also=("data.read.text",))] = "text"
    """Column or key of the text: a name, or for TSV also a number from 1."""
    label: Annotated[str, Flag(also=("data.read.label",))] = "label"
    """Column or key of the class."""
    tag: Annotated[str | None, Flag(also=("data.read.tag",))] = None
    """Probe tags instead of classes: upos or xpos of CoNLL-U, or a key of JSONL."""
    pool: Literal["mean", "cls"] | None = None
    """Pooling: mean over all tokens, or the first token ([CLS]). None is the pooling in a sentence
    encoder's configuration, or else the mean."""
    output: OutputPath | None = None
    """Output file of the picture: .png, .svg or .html."""
    limit: Annotated[int, Range(2)] = 10_000
    """Maximum number of training and of held-out examples, taken from the start."""

    def __call__(self) -> int:
        """Prints and plots the held-out accuracy of each layer."""
        from transformer_jax.visual.figures import SUFFIXES

        check_file("--output", self.output, SUFFIXES)
        from transformer_jax.inference.encoders import EMBEDDING_FAMILIES, pools_of, vectors_of
        from transformer_jax.inference.pretrained import Pretrained, read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        prepare = facts.preparation
        lower = prepare.lowercase or "lowercase" in facts.sentence
        train, valid = self.examples(dataclasses.replace(prepare, lowercase=lower))
        # Tagging uses one vector per word, without pooling.
        pool = "mean" if self.tagged else pools_of(facts, self.pool)
        # The examples are read as prepared texts, without the prefix of sources.
        vectors = vectors_of(
            Pretrained.load(facts, *EMBEDDING_FAMILIES),
            direction=self.direction,
            prepare=lambda text, prompt: text,
        )
        from transformer_jax.inference.encoding.probing import majority, probe_layers

        (items, given), (others, wanted) = self.items(train), self.items(valid)
        names = sorted(set(given))
        if len(names) < 2:
            raise DataError(f"{train.name}: all labels are {names[0]!r}: at least two are needed")
        numbers = {name: i for i, name in enumerate(names)}
        import numpy as np

        labels = np.array([numbers[name] for name in given])
        # A class without training examples is never predicted.
        answers = np.array([numbers.get(name, -1) for name in wanted])
        first, share = majority(labels, answers)
        made = [self.vectors_of(vectors, part, pool) for part in (items, others)]
        rows = probe_layers(made[0], labels, made[1], answers)
        what = "words" if self.tagged else "sentences"
        guess = f"majority ({names[first]})"
        print(_table(rows, guess, share))
        note(
            f"trained on {len(labels):,} {what}, evaluated on {len(answers):,}; "
            f"{plural(len(names), 'class')}"
        )
        note_unknown(vectors.counts, "sentence", "lines")
        if cut := vectors.counts["cut"]:
            note(f"{plural(cut, 'sentence')} truncated to {plural(vectors.length, 'token')}")
        if self.output is not None:
            from transformer_jax.visual.charts import plot_probes

            with writing("--output", self.output):
                plot_probes(dict(rows), self.output, guess=(guess, share), title=str(self.file))
            wrote(self.output)
        return 0

    @property
    def tagged(self) -> bool:
        """Returns whether the labels are tags of words."""
        return self.tag is not None or ".conllu" in self.file.suffixes

    def examples(self, prepare: "Preparation") -> "tuple[Labeled, Labeled]":
        """Returns training and validation examples.

        Raises:
            UserError: A file is invalid; the message names the flag of this command.
        """
        from transformer_jax.data.labeled import LabeledData, LabeledOptions, open_labeled

        try:
            read = LabeledOptions(
                text=self.text,
                label=self.label,
                tag=self.tag or LabeledOptions.tag,
                lowercase=prepare.lowercase,
                normalization=prepare.normalization,
                validation_size=0.2,
            )
            valid = None if self.valid is None else str(self.valid)
            data = LabeledData(train=str(self.file), valid=valid, read=read)
            splits = open_labeled(data, "tag" if self.tagged else "classify")
        except UserError as error:
            said = str(error).replace("data.read.validation_size", "the held-out part")
            said = _OFFER.sub("", said)  # a part of the examples would give other accuracies
            for name in ("data.read.", "data."):
                said = said.replace(name, "--")
            error.args = (said.replace("--train", "probe"),)
            raise
        assert splits.valid is not None
        return splits.train, splits.valid

    def items(self, part: Any) -> tuple[list[Any], list[str]]:
        """Returns sentences or lists of words with their labels, up to the limit."""
        if not self.tagged:
            return part.texts[: self.limit], part.labels[: self.limit]
        words, labels, left = [], [], self.limit
        for sentence, tags in zip(part.words, part.tags, strict=True):
            if left > 0:
                words.append(sentence[:left])
                labels += tags[:left]
                left -= len(words[-1])
        return words, labels

    def vectors_of(self, vectors: "Embedder", items: Sequence[Any], pool: "Pools") -> Any:
        """Returns the vectors of all layers, per sentence or per word."""
        if self.tagged:
            return vectors.tagged(items)
        import numpy as np

        made = vectors.embed(items, layers="all", pool=pool)
        return np.concatenate([block.vectors for block in made])


def _table(rows: "Sequence[ProbeResult]", guess: str, share: float) -> str:
    """Returns a table of accuracies by layer, with the best marked."""
    best = max(row.accuracy for row in rows)
    width = max(len(guess), *(len(row.name) for row in rows))
    lines = [f"{'vectors':<{width}}  accuracy", f"{guess:<{width}}  {share:8.2%}"]
    for row in rows:
        mark = "  best" if row.accuracy == best else ""
        lines.append(f"{row.name:<{width}}  {row.accuracy:8.2%}{mark}")
    return "\n".join(lines)
