"""``transformer-jax tokenize``: the tokens of texts."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from transformer_jax.cli.output import tsv
from transformer_jax.cli.support.run_command import RunCommand

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer

__all__ = ["Tokenize"]

_WINDOW = 1024  # texts at a time


@dataclasses.dataclass(frozen=True)
class Tokenize(RunCommand):
    """Print the tokens of texts with their ids, as TSV: text, id, token.

    ▁ stands for a blank. Special tokens that the model reads around a text are omitted.
    """

    run: tyro.conf.Positional[Path]
    """Run directory, Hugging Face folder or tokenizer.json."""
    texts: tyro.conf.Positional[tuple[str, ...]] = ()
    """Texts; without any, the lines of standard input."""

    def __call__(self) -> int:
        """Prints a row per token."""
        from transformer_jax.cli.support.input_lines import given_texts, windows

        tokenizer, prepare = self.tokenizer()
        out, number = sys.stdout.buffer, 0
        out.write(tsv("text", "id", "token"))
        for window in windows(given_texts(self.texts), _WINDOW):
            for ids in tokenizer.encode_batch([prepare(text) for _, text in window]):
                number += 1
                for id, name in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
                    out.write(tsv(number, id, name.replace(" ", "▁")))
            out.flush()
        return 0

    def tokenizer(self) -> "tuple[Tokenizer, Callable[[str], str]]":
        """Returns the tokenizer, and the function that prepares a text for it.

        Raises:
            UserError: The tokenizer is missing or damaged.
        """
        if self.run.is_file():
            from transformer_jax.data.tokenizer import load_tokenizer

            return load_tokenizer(self.run), str
        from transformer_jax.inference.pretrained import read_facts

        facts = read_facts(self.run, opening=self.opening())
        prepare, pairs = facts.preparation, facts.kind == "encoder-decoder"
        return facts.tokenizer, prepare.source if pairs else prepare.text
