"""``transformer-jax export``: a trained model as a folder that other software reads."""

import dataclasses
import sys
from pathlib import Path
from typing import Any, Literal

import tyro

from transformer_jax.errors import ConfigError

__all__ = ["Export"]


@dataclasses.dataclass(frozen=True)
class Export:
    """Write a trained model for other software."""

    run: tyro.conf.Positional[Path]
    """A run directory, or a published folder."""
    output: tyro.conf.Positional[Path]
    """The folder to write."""
    format: Literal["hf"] = "hf"
    """hf is config.json and model.safetensors, which transformers and vLLM read."""
    checkpoint: str = "best"
    """best, last, a step, or average:N for the mean of the last N."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the weights, for hf."""
    shard_gigabytes: float | None = None
    """Most of one file, for hf; None is a single file."""
    overwrite: bool = False
    """Whether what an earlier export left there is replaced."""

    def __call__(self) -> int:
        """Says what was written."""
        self.check()
        print(self.write(), file=sys.stderr)
        print(f"folder: {self.output}")
        return 0

    def write(self) -> str:
        """Writes what the flags ask for; a line about it."""
        from transformer_jax.cli.loading import family, first_token, load
        from transformer_jax.interop.export import write_model
        from transformer_jax.interop.fitting import choose_family
        from transformer_jax.interop.runs import model_of
        from transformer_jax.training.run_directory import RunDirectory

        directory = RunDirectory.open(self.run)
        kind, fields = family(directory), directory.read_config()
        if kind == "ngram":
            raise ConfigError(f"{self.run}: an n-gram model, which no other software reads")
        model, published = model_of(fields, kind), fields.get("published") or {}
        choose_family(model, published.get("fields"))  # refused before anything is loaded
        (_, params), tokenizer = load(self.run, self.checkpoint, kind=kind)
        shard = None if self.shard_gigabytes is None else int(self.shard_gigabytes * 1e9)
        first = first_token(directory, tokenizer) if kind == "decoder" else None
        how: dict[str, Any] = {"dtype": self.dtype, "shard_bytes": shard, "first": first}
        return write_model(self.output, model, params, tokenizer, published, **how)

    def check(self) -> None:
        """Refuses what would be ignored or lost.

        Raises:
            ConfigError: A size of nothing, or a folder with something in it.
        """
        if self.shard_gigabytes is not None and self.shard_gigabytes <= 0:
            raise ConfigError(f"--shard-gigabytes is {self.shard_gigabytes}: above 0")
        if self.output.exists() and not self.output.is_dir():
            raise ConfigError(f"{self.output}: is a file: name a folder")
        if self.output.is_dir() and any(self.output.iterdir()) and not self.overwrite:
            raise ConfigError(
                f"{self.output}: is not empty: choose another folder, or give --overwrite"
            )
