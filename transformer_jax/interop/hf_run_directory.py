"""Hugging Face folders used as run directories, and converted to them."""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.errors import CheckpointError, ConfigError, DataError
from transformer_jax.core.storage.urls import url_of
from transformer_jax.data.chat.template import copy_template
from transformer_jax.data.vocabulary import check_vocabulary
from transformer_jax.interop.config_reader import read_config
from transformer_jax.interop.dense import copy_dense, dense_tensors, digest, read_head
from transformer_jax.interop.family import Model
from transformer_jax.interop.folder_tokens import generation_fields, special_tokens
from transformer_jax.interop.hf_checkpoint import HFCheckpoint, open_hf_checkpoint
from transformer_jax.interop.sentences import sentence_fields, sentence_files
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.contrast_config import ContrastConfig
from transformer_jax.runs.checkpoint_reader import Loaded
from transformer_jax.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer

__all__ = [
    "HFRunDirectory",
    "convert",
    "model_of",
    "preprocessor_fields",
    "republished",
    "run_fields",
    "save_converted",
]

_STRIDE = 128  # tokens that windows over a context share, as its users have it


@functools.lru_cache(maxsize=2)
def _opened(path: Path, real: Path, stamps: tuple[Any, ...]) -> HFCheckpoint:
    """The folder, anew when it, by its real name and the stamps of its files, is another."""
    return open_hf_checkpoint(path)


class HFRunDirectory(RunDirectory):
    """A Hugging Face folder with the interface of a run directory.

    Example:
        >>> HFRunDirectory("models/bert").tokenizer.name
        'tokenizer.json'
    """

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__(path)
        self._folder: HFCheckpoint | None = None
        self._found: tuple[str, dict[str, str]] | None = None

    @property
    def folder(self) -> HFCheckpoint:
        """The folder, every tensor of which is accounted for.

        Raises:
            CheckpointError: It is damaged, or of no family that is known.
        """
        if self._folder is None:
            # One command opens a run several times, and comparing tied tables reads all of both.
            stamps = [
                (file.name, (stat := file.stat()).st_size, stat.st_mtime_ns, stat.st_ino)
                for file in sorted(self.path.iterdir())
                if file.suffix in (".json", ".safetensors") and file.is_file()
            ]
            self._folder = _opened(self.path, self.path.resolve(), tuple(stamps))
        return self._folder

    def read_config(self, *, check: bool = True) -> dict[str, Any]:
        """Returns the ``config.json`` of a run that would have trained the model.

        Raises:
            CheckpointError: The folder is damaged, or of no family that is known.
        """
        return run_fields(self.folder)

    def load_params(
        self, which: int | Literal["best", "last"] = "best", *, average: int = 1
    ) -> Loaded:
        """The parameters, on the default device.

        Raises:
            CheckpointError: A tensor cannot be read.
            ConfigError: A step or an average is asked for.
        """
        self.refuse_steps(which, average)
        return Loaded(self.folder.load(), 0, None)

    def weights_digest(
        self, which: int | Literal["best", "last"] = "best", *, average: int = 1
    ) -> str:
        """A checksum of the files of its tensors.

        Raises:
            CheckpointError: A file cannot be read.
            ConfigError: A step or an average is asked for.
        """
        self.refuse_steps(which, average)
        whole = hashlib.sha256()
        for path in sorted({entry.file for entry in self.folder.tensors.entries.values()}):
            try:
                with path.open("rb") as file:
                    whole.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
        return whole.hexdigest()

    def refuse_steps(self, which: int | str, average: int) -> None:
        """Refuses a choice of a checkpoint, of which a folder has one.

        Raises:
            ConfigError: A step or an average is asked for.
        """
        if isinstance(which, int) or average > 1:
            raise ConfigError(
                f"{self.path}: a Hugging Face checkpoint has no steps: leave --checkpoint out"
            )

    def load_tokenizer(self, sha256: str | None = None) -> "Tokenizer":
        """The tokenizer, from whatever file the folder has of one.

        Raises:
            DataError: There is none, or it cannot be converted exactly.
        """
        from transformer_jax.data.tokenizer import Tokenizer
        from transformer_jax.interop.vocabularies import find_target_tokenizer

        text, special = self.tokenizer_file()
        try:
            return Tokenizer(text, special, find_target_tokenizer(self.path))
        except DataError as error:
            raise DataError(f"{self.path}: {error}") from None

    def tokenizer_file(self) -> tuple[str, dict[str, str]]:
        """The text of its ``tokenizer.json``, and the names of special tokens by role."""
        if self._found is None:
            from transformer_jax.interop.vocabularies import find_tokenizer

            text, names = find_tokenizer(self.path)
            self._found = text, special_tokens(self.folder, text, names)
        return self._found


def preprocessor_fields(path: Path) -> dict[str, Any] | None:
    """Returns the settings of image preprocessing: size, mean of pixels and so on.

    None where the folder does not say it.

    Raises:
        CheckpointError: Its file is damaged.
    """
    file = path / "preprocessor_config.json"
    return read_config(file).values if os.path.lexists(file) else None


def run_fields(folder: HFCheckpoint) -> dict[str, Any]:
    """The ``config.json`` of a run whose model is that of a folder."""
    model = folder.model
    found: dict[str, Any] = {
        "model": dataclasses.asdict(model.config),
        "published": {
            "fields": folder.fields.values,
            "generation": generation_fields(folder.path, folder.fields).values,
            "prefix": model.prefix,
            "words": model.words,
            "next_sentence": model.next_sentence,
        },
        "data": {"read": {"lowercase": False, "normalization": "none"}},
    }
    length = model.config.positions.max_length
    if sentence := sentence_fields(folder.path):
        found["sentence"] = sentence
        found["published"]["sentence"] = sentence_files(folder.path)
        found["data"]["read"]["lowercase"] = sentence.get("lowercase", False)
        length = min(length, sentence.get("length", length))
    if model.kind == "encoder":
        objective = "nsp" if model.next_sentence else "none"
        found["masking"] = {"sentence_objective": objective} if model.words else None
        found["training"] = {"sequence_length": length}
    elif model.kind in ("encoder-task", "decoder-task"):
        found["task"] = {
            "kind": model.task,
            "labels": list(model.labels),
            "max_length": length,
            "doc_stride": min(_STRIDE, max(1, length // 4)),
        }
    elif model.encoder is not None:
        found["encoder"] = dataclasses.asdict(model.encoder)
        if model.contrast is not None:
            found["contrast"] = dataclasses.asdict(model.contrast)
        found["published"]["preprocessor"] = preprocessor_fields(folder.path)
    elif model.kind == "image":
        found["task"] = {"kind": "classify", "labels": list(model.labels)} if model.task else None
        found["published"]["preprocessor"] = preprocessor_fields(folder.path)
    elif model.kind == "decoder":
        begins = folder.fields.values.get("bos_token_id") is not None
        found |= {"first": "bos" if begins else "eos", "prompts": "template"}
    return found


def model_of(fields: Mapping[str, Any], kind: str) -> Model:
    """The model that a run's ``config.json`` describes, as it would be published.

    Args:
        fields: What the file says.
        kind: The family of the run.

    Raises:
        ConfigError: The model is a recurrent translator, which no published family is.
    """
    if fields["model"].get("kind") == "recurrent":
        raise ConfigError(
            "a recurrent translator has no Hugging Face form, as exports and other engines need: "
            "translate with --engine jax"
        )
    config: TransformerConfig = from_dict(TransformerConfig, fields["model"])
    published = fields.get("published") or {}
    masking, task = fields.get("masking", {}), fields.get("task") or {}
    objective = masking.get("sentence_objective", "nsp") if masking else "none"
    named = task.get("kind") in ("classify", "multi_label", "pair", "replaced", "tag")
    labels = task.get("labels", ()) if named else ()
    return Model(
        kind=kind,  # type: ignore[arg-type]
        config=config,
        prefix=published.get("prefix", ""),
        words=kind == "encoder" and masking is not None,
        next_sentence=kind == "encoder" and objective != "none",
        task="classify" if task.get("kind") == "pair" else task.get("kind"),
        labels=tuple(map(str, labels)),
        encoder=_encoder_of(fields, config) if kind in ("captioner", "two-tower") else None,
        contrast=from_dict(ContrastConfig, fields["contrast"]) if kind == "two-tower" else None,
    )


def _encoder_of(fields: Mapping[str, Any], config: TransformerConfig) -> TransformerConfig:
    """The encoder of images, which computes as the model of texts does."""
    encoder: TransformerConfig = from_dict(TransformerConfig, fields["encoder"])
    return dataclasses.replace(encoder, compute=config.compute)


def republished(
    record: Mapping[str, Any], kind: str, config: TransformerConfig
) -> dict[str, Any] | None:
    """Returns the record of the published model that a run starts from, for exports and search.

    Args:
        record: ``published`` of the ``config.json`` of the start.
        kind: The family of the run.
        config: Its model, which may have more tokens or other rates of dropout.

    Returns:
        The record with what has changed; None where that family does not have this model.
    """
    from transformer_jax.interop.export_plan import fields_of

    model = model_of({"model": dataclasses.asdict(config), "published": record}, kind)
    fields = fields_of(model, record["fields"])
    if fields is None:
        return None
    generation = record["generation"]
    if generation == record["fields"]:  # there is one file for both
        generation = fields
    return {**record, "fields": fields, "generation": generation}


def convert(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    overwrite: bool,
    change: Callable[[Any, Any], tuple[Any, Any]] = lambda params, fields: (params, fields),
    more: Callable[[RunDirectory], None] = lambda run: None,
) -> int:
    """A run directory with the model of a Hugging Face folder; returns how many parameters it has.

    Args:
        path: The folder.
        output: The run to create, on this machine.
        overwrite: Whether a run that is there gives way.
        change: Makes the parameters and the ``config.json`` of the run from those of the folder.
        more: Writes further files of the run.

    Raises:
        CheckpointError: The folder is damaged, or the run cannot be written.
        ConfigError: There is something at ``output`` already, or it is a URL.
        DataError: The folder has no tokenizer that can be used.
    """
    if (url := url_of(output)) is not None:
        raise ConfigError(
            f"{url}: converted runs are written to this machine: name a local folder, and copy it "
            f"to the object store"
        )
    source = HFRunDirectory(path)
    fields = source.read_config()
    tokenizer = None if source.folder.model.kind == "image" else source.load_tokenizer()
    describe: dict[str, Any] = {}
    if tokenizer is not None:
        sizes = source.folder.model.config
        check_vocabulary(tokenizer, sizes.vocab_size, sizes.decoder().vocab_size, where=path)
        fields |= {"special": source.tokenizer_file()[1]}
        describe = {"tokenizer": tokenizer.sha256}
    RunDirectory.check_free(output, overwrite=overwrite)  # before anything is loaded
    params, fields = change(source.load_params().params, fields)
    dense = fields.get("sentence", {}).get("dense")
    if dense is not None:  # a run that gives way to this one is there until all is read
        read_head(source.path, fields["sentence"], source.folder.model.config.d_model)
        dense["sha256"] = digest(dense_tensors(source.path, dense))
    with RunDirectory.whole(output, overwrite=overwrite) as run:
        run.write(run.config, json.loads(json.dumps(fields)))
        if tokenizer is not None:
            tokenizer.save(run.tokenizer)
            copy_template(source.path, run.path)
        if dense is not None:
            copy_dense(source.path, dense, run.path)
        more(run)
        save_converted(run, params, describe | {"config": fields})
    import jax

    return sum(leaf.size for leaf in jax.tree.leaves(params))


def save_converted(run: RunDirectory, params: Any, describe: Mapping[str, Any]) -> None:
    """Writes parameters as the only checkpoint of a run, step 0."""
    from transformer_jax.runs.checkpoint import Checkpointer
    from transformer_jax.training.state import TrainState

    state = TrainState(step=np.int32(0), params=params, opt_state={}, ema_params=None)
    writer = Checkpointer(run.checkpoints, describe=describe)
    try:
        writer.save(0, state)
        writer.wait()
    finally:
        writer.close()
