"""``transformer-jax export``: trained models in the formats of other software."""

import dataclasses
import glob
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from transformer_jax.cli.output import wrote
from transformer_jax.cli.support.run_command import CheckpointCommand
from transformer_jax.core.config_fields import OutputPath, Range
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.output_files import draft_folder, replace_folder, restore_folder
from transformer_jax.core.processes import process_started

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.decoding.windowed_generation import TextStart
    from transformer_jax.inference.facts import Facts
    from transformer_jax.interop.export import TextForm
    from transformer_jax.interop.family import Model

__all__ = ["Export", "usual_dtype"]

# File names that exports write.
WRITTEN = (
    "config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json",
    "target_tokenizer.json", "chat_template.jinja",
    "tokenizer_config.json", "model.bin", "model*.safetensors", "model.safetensors.index.json",
    "*vocabulary.json", "*.stablehlo", "manifest.json", "adapter_config.json",
    "adapter_model.safetensors",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Export(CheckpointCommand):
    """Export a trained model to Hugging Face, CTranslate2 or StableHLO, or adapters to PEFT."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder."""
    output: tyro.conf.Positional[OutputPath]
    """Output folder."""
    format: Literal["hf", "peft", "ctranslate2", "stablehlo"] = "hf"
    """hf: config.json and model.safetensors for transformers. peft: the adapters of a run, without
    the base, for PEFT. ctranslate2: a model for that engine. stablehlo: programs that JAX runs
    without this library."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Data type of the weights, for hf; None is that of the original checkpoint, or else
    float32."""
    max_shard_size: Annotated[float, Range(above=0, most=1e6)] | None = None
    """Maximum size of a file in gigabytes, for hf; None is a single file."""
    length: Annotated[int, Range(1, 1_000_000)] | None = None
    """Maximum number of generated tokens, for stablehlo; None is 128."""
    overwrite: bool = False
    """Replace an earlier export."""

    def __call__(self) -> int:
        """Exports the model and prints what was written."""
        output = Path(os.path.realpath(self.output))  # keeps a link to the folder
        try:
            restore_folder(output)
            self.check()
            _remove_earlier_drafts(output)
            with draft_folder(output) as draft:
                said = self.write(draft)
                replace_folder(draft, output)
        except OSError as error:
            why = error.strerror or error
            raise CheckpointError(f"{self.output}: cannot be written: {why}") from None
        wrote(self.output, what=said)
        return 0

    def write(self, output: Path) -> str:
        """Writes the export into a new folder; returns a summary line."""
        if self.format == "peft":
            from transformer_jax.inference.merging import export_peft

            return export_peft(self.run, output, self.checkpoint, self.opening())
        from transformer_jax.inference.facts import FAMILY_NAMES
        from transformer_jax.inference.pretrained import Pretrained, read_facts
        from transformer_jax.interop.export_plan import unscan_layers
        from transformer_jax.interop.hf_run_directory import model_of

        facts = read_facts(self.run, self.checkpoint, self.opening())
        kind, fields = facts.require(*FAMILY_NAMES), facts.record
        if kind == "ngram":
            raise ConfigError(f"{self.run}: an n-gram model, which no other software can read")
        task, published = facts.task_fields, fields.get("published") or {}
        model = model_of(fields, kind, task)
        self.refuse(model, published)  # before anything is loaded
        opened = Pretrained.load(facts)
        tokenizer, (model, params) = opened.tokenizer, unscan_layers(model, opened.model[1])
        start = facts.text_start(tokenizer) if kind == "decoder" else None
        texts = text_form(facts, tokenizer, None if start is None else start.alone)
        what = (output, model, params, tokenizer)
        if self.format == "hf":
            from transformer_jax.data.chat.template import copy_template
            from transformer_jax.interop.export import write_model

            shard = None if self.max_shard_size is None else int(self.max_shard_size * 1e9)
            dtype = self.dtype or usual_dtype(published)
            how: dict[str, Any] = {"dtype": dtype, "shard_bytes": shard, "texts": texts}
            said = write_model(*what, published, **how)
            copy_template(facts.source, output)
            write_preprocessing(output, fields, model)
            self.write_sentences(output, facts.source, fields, opened.model[1])
            return said
        said = self.write_other(what, start)
        if not published:
            from transformer_jax.interop.export import with_post_processor

            text = with_post_processor(tokenizer, model, texts)
            (output / "tokenizer.json").write_text(text, encoding="utf-8")
        return said

    def write_sentences(
        self, output: Path, source: Path, fields: Mapping[str, Any], params: Mapping[str, Any]
    ) -> None:
        """Writes the pooling of a sentence encoder, or notes that it cannot be written."""
        from transformer_jax.interop.sentence_encoders import write_sentence_files

        if not write_sentence_files(output, source, fields, params, self.dtype):
            print(
                f"note: the sentence-encoder configuration of {self.run} is not exported: it has "
                f"parts other than pooling, a linear layer and normalization, or was converted "
                f"by an earlier version (then convert it again)",
                file=sys.stderr,
            )

    def write_other(self, what: tuple[Any, ...], start: "TextStart | None") -> str:
        """Writes CTranslate2 or StableHLO; returns a summary line."""
        if self.format == "ctranslate2":
            from transformer_jax.interop.ctranslate2 import write_ctranslate2

            return write_ctranslate2(*what, start=start)
        from transformer_jax.interop.stablehlo import write_stablehlo

        return write_stablehlo(*what, length=self.length)

    def refuse(self, model: "Model", published: Mapping[str, Any]) -> None:
        """Refuses a model that the format cannot represent.

        Raises:
            ConfigError: The model is unsupported, or a package is missing.
        """
        if self.format == "hf":
            from transformer_jax.interop.export_plan import choose_family

            choose_family(model, published.get("fields"))
        elif self.format == "ctranslate2":
            from transformer_jax.interop.ctranslate2 import check_ctranslate2

            check_ctranslate2(model)
        else:
            from transformer_jax.interop.stablehlo import check_stablehlo

            check_stablehlo(model, self.length)

    def check(self) -> None:
        """Refuses flags without effect and folders that would be overwritten.

        Raises:
            ConfigError: A flag is for another format, a size is zero, or the folder is not empty.
        """
        for flag, of, given in (
            ("--dtype", "hf", self.dtype is not None),
            ("--max-shard-size", "hf", self.max_shard_size is not None),
            ("--length", "stablehlo", self.length is not None),
        ):
            if given and self.format != of:
                raise ConfigError(f"{flag} is for --format {of}, not {self.format}: leave it out")
        if self.output.exists() and not self.output.is_dir():
            raise ConfigError(f"{self.output}: is a file: name a folder")
        if self.output.resolve() == self.run.resolve():
            raise ConfigError(f"{self.output}: is the model to export: choose another folder")
        if not self.output.is_dir() or not any(self.output.iterdir()):
            return
        if not self.overwrite:
            raise ConfigError(
                f"{self.output}: is not empty: choose another folder, or give --overwrite"
            )
        for path in self.output.iterdir():
            if not self.wrote(path):
                raise ConfigError(
                    f"{self.output}: contains {path.name}, which no export wrote: choose "
                    f"another folder, or delete it yourself"
                )

    def wrote(self, path: Path) -> bool:
        """Returns whether a file or directory may be from an earlier export."""
        from transformer_jax.interop.sentence_encoders import written_names

        if path.is_file() and any(path.match(pattern) for pattern in WRITTEN):
            return True
        inside = [path] if path.is_file() else list(path.iterdir()) if path.is_dir() else []
        names = written_names(self.output)
        return bool(inside) and all(
            file.is_file() and file.relative_to(self.output).as_posix() in names for file in inside
        )


def text_form(facts: "Facts", tokenizer: "Tokenizer | None", first: int | None) -> "TextForm":
    """Returns how a model reads texts.

    Args:
        facts: Facts of the model.
        tokenizer: The tokenizer, if there is one.
        first: The first token of texts of a language model.
    """
    from transformer_jax.inference.encoders import read_length, template_of
    from transformer_jax.inference.facts import FINE_TUNED
    from transformer_jax.interop.export import TextForm

    if tokenizer is None or facts.kind == "image":
        return TextForm(first)
    if facts.kind not in FINE_TUNED:
        task = facts.task_fields or {}
        length = read_length(facts) if facts.kind == "encoder" else task.get("max_length")
        return TextForm(first, length)
    length = (facts.task_fields or {}).get("max_length")
    return TextForm(first, length, facts.head.pairs, template_of(facts, tokenizer))


def _remove_earlier_drafts(output: Path) -> None:
    """Removes drafts of dead processes, named as in version 0.1."""
    for path in output.parent.glob(f".{glob.escape(output.name)}.*"):
        number = path.name.rpartition(".")[2]
        if number.isdecimal() and path.is_dir() and process_started(int(number)) is None:
            shutil.rmtree(path, ignore_errors=True)


def usual_dtype(published: Mapping[str, Any]) -> Literal["float32", "bfloat16", "float16"]:
    """Returns the data type of a Hugging Face checkpoint; float32 for models trained here.

    Example:
        >>> usual_dtype({"fields": {"torch_dtype": "bfloat16"}}), usual_dtype({})
        ('bfloat16', 'float32')
    """
    fields = published.get("fields") or {}
    said = fields.get("dtype") or fields.get("torch_dtype")
    return said if said in ("bfloat16", "float16") else "float32"


def write_preprocessing(output: Path, fields: Mapping[str, Any], model: Any) -> None:
    """Writes the image preprocessing of a run trained here, if its model reads pictures.

    Args:
        output: The folder.
        fields: ``config.json`` of the run.
        model: The exported model.
    """
    stored = fields.get("preprocessing")
    if not isinstance(stored, dict):
        return
    import json

    from transformer_jax.core.config_dict import from_dict
    from transformer_jax.data.images.preprocessing import Preprocessing
    from transformer_jax.interop.image_processors import processor_fields

    image = (model.encoder or model.config).image
    preprocessing: Preprocessing = from_dict(Preprocessing, stored)
    settings = processor_fields(preprocessing, image.image_size, image.num_channels)
    text = json.dumps(settings, indent=2) + "\n"
    (output / "preprocessor_config.json").write_text(text, encoding="utf-8")
