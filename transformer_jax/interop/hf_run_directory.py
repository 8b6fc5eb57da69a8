"""Hugging Face folders used as or converted to run directories."""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import PyTree

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.errors import CheckpointError, ConfigError, DataError
from transformer_jax.core.storage.urls import url_of
from transformer_jax.core.task_progress import log
from transformer_jax.data.chat.template import copy_template
from transformer_jax.data.vocabulary_check import check_vocabulary
from transformer_jax.interop.config_reader import read_config
from transformer_jax.interop.cross_encoders import is_cross_encoder, pair_fields
from transformer_jax.interop.family import Model, ModelFamily
from transformer_jax.interop.folder_keys import check_keys
from transformer_jax.interop.hf_checkpoint import HFCheckpoint, open_hf_checkpoint
from transformer_jax.interop.image_processors import published_preprocessing
from transformer_jax.interop.sentence_dense import copy_dense, dense_tensors, digest, read_head
from transformer_jax.interop.sentence_encoders import sentence_fields, sentence_files
from transformer_jax.interop.special_token_files import generation_fields, special_tokens
from transformer_jax.interop.tokenizer_settings import read_settings
from transformer_jax.models.config import ImageConfig, TransformerConfig
from transformer_jax.models.contrast_config import ContrastConfig
from transformer_jax.runs.checkpoint_reader import Loaded
from transformer_jax.runs.manifest import Manifest
from transformer_jax.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer

__all__ = [
    "HFRunDirectory",
    "convert",
    "model_of",
    "refuse_steps",
    "republished",
    "run_fields",
    "save_converted",
]

_UNBOUNDED = 1 << 30  # tokens
_STRIDE = 128  # overlap of windows over a context in tokens, as is usual for these models


class HFRunDirectory(RunDirectory):
    """A Hugging Face folder with the interface of a run directory.

    Example:
        >>> HFRunDirectory("models/bert").tokenizer.name
        'tokenizer.json'
    """

    @functools.cached_property
    def folder(self) -> HFCheckpoint:
        """The opened folder, with every tensor accounted for.

        Raises:
            CheckpointError: The folder is damaged, or its family is unknown.
        """
        check_keys(self.path)
        return open_hf_checkpoint(self.path)

    @property
    def family(self) -> tuple[ModelFamily, Model]:  # type: ignore[override]
        """The family of the folder, and its model as one of the family."""
        return self.folder.family, self.folder.model

    def read_config(self, *, check: bool = True) -> dict[str, Any]:
        """Returns the ``config.json`` of an equivalent run.

        Raises:
            CheckpointError: The folder is damaged, or its family is unknown.
        """
        return run_fields(self.folder)

    def load_params(
        self, which: int | Literal["best", "last"] = "best", *, average: int = 1
    ) -> Loaded:
        """Loads the parameters onto the default device.

        Raises:
            CheckpointError: A tensor cannot be read.
            ConfigError: A step or an average is requested.
        """
        refuse_steps(self.path, which, average)
        return Loaded(self.folder.load(), 0, None, {}, {})

    def weights_digest(
        self, which: int | Literal["best", "last"] = "best", *, average: int = 1
    ) -> str:
        """Returns a checksum of the tensor files.

        Raises:
            CheckpointError: A file cannot be read.
            ConfigError: A step or an average is requested.
        """
        refuse_steps(self.path, which, average)
        whole = hashlib.sha256()
        for path in sorted({entry.file for entry in self.folder.tensors.entries.values()}):
            try:
                with path.open("rb") as file:
                    whole.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
        return whole.hexdigest()

    def load_tokenizer(
        self, sha256: str | None = None, fields: Mapping[str, Any] | None = None
    ) -> "Tokenizer":
        """Loads the tokenizer from any supported file of the folder.

        Raises:
            DataError: There is no tokenizer, or it cannot be converted exactly.
        """
        from transformer_jax.data.tokenizer import Tokenizer
        from transformer_jax.interop.vocabularies import find_target_tokenizer

        text, special = self.tokenizer_file
        try:
            found = Tokenizer(text, special, find_target_tokenizer(self.path))
        except DataError as error:
            raise DataError(f"{self.path}: {error}") from None
        if self.folder.model.config.positions.skip_padding and found.unk == found.pad:
            raise DataError(
                f"{self.path}: token {found.pad} is padding, which has no position, and unknown "
                f"text at once: set pad_token_id in config.json to a token of its own"
            )
        return found

    @functools.cached_property
    def tokenizer_file(self) -> tuple[str, dict[str, str]]:
        """The text of ``tokenizer.json``, and the names of special tokens by role."""
        from transformer_jax.interop.vocabularies import find_tokenizer

        text, names = find_tokenizer(self.path)
        return text, special_tokens(self.folder, text, names)


def refuse_steps(path: Path, which: int | str, average: int) -> None:
    """Refuses the choice of a checkpoint, since a Hugging Face folder has only one.

    Raises:
        ConfigError: A step or an average is requested.
    """
    if isinstance(which, int) or average > 1:
        raise ConfigError(f"{path}: a Hugging Face checkpoint has no steps: leave --checkpoint out")


def _with_preprocessor(published: dict[str, Any], path: Path, image: ImageConfig) -> None:
    """Adds the image processor of a folder to the record of the folder.

    As in transformers, ``image_processor`` in ``processor_config.json``, which processors of images
    and texts write, goes before ``preprocessor_config.json``. A folder with neither is noted in the
    log, since the defaults are ViT's.

    Raises:
        CheckpointError: A file is damaged, or asks for something that is not supported.
    """
    both, file = path / "processor_config.json", path / "preprocessor_config.json"
    fields, where = None, str(file)
    if os.path.lexists(both):
        reader = read_config(both)
        if reader.values.get("image_processor") is not None:
            fields, where = reader.group("image_processor").values, f"{both}: image_processor"
    if fields is None and os.path.lexists(file):
        fields = read_config(file).values
    published["preprocessor"] = fields
    if fields is None:
        log(
            f"{path}: has no preprocessor_config.json: pictures are prepared with the defaults of "
            f"ViT (mean and standard deviation 0.5)"
        )
    published_preprocessing(published, image, where)


def run_fields(folder: HFCheckpoint) -> dict[str, Any]:
    """Returns the ``config.json`` of a run with the model of a folder."""
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
    settings = read_settings(folder.path)
    length = min(model.config.positions.max_length, settings.length or _UNBOUNDED)
    if sentence := sentence_fields(folder.path):
        found["sentence"] = sentence
        found["published"]["sentence"] = sentence_files(folder.path)
        found["data"]["read"]["lowercase"] = sentence.get("lowercase", False)
        own = sentence.get("length", length)  # overrides the tokenizer's
        length = min(model.config.positions.max_length, own)
    if model.kind in ("encoder", "encoder-task", "decoder-task"):
        found["published"] |= pair_fields(folder.path, folder.fields.values, model, settings)
        if model.task is not None and is_cross_encoder(folder.path, folder.fields.values):
            found["data"]["read"]["pair"] = True
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
            found["text_length"] = length
        _with_preprocessor(found["published"], folder.path, model.encoder.image)
    elif model.kind == "image":
        found["task"] = {"kind": "classify", "labels": list(model.labels)} if model.task else None
        _with_preprocessor(found["published"], folder.path, model.config.image)
    elif model.kind == "decoder":
        begins = folder.fields.values.get("bos_token_id") is not None
        found |= {"first": "bos" if begins else "eos", "prompts": "template"}
    return found


def model_of(fields: Mapping[str, Any], kind: str, task: Mapping[str, Any] | None = None) -> Model:
    """Returns the model described by a run's ``config.json``, for publishing.

    Args:
        fields: Fields of the file.
        kind: The family of the run.
        task: The task of a fine-tuned model; None is ``task`` of the file.

    Raises:
        ConfigError: The model is a recurrent translator, for which there is no published family.
    """
    if fields["model"].get("kind") == "recurrent":
        raise ConfigError(
            "a recurrent translator has no Hugging Face form, as exports and other engines need: "
            "translate with --engine jax"
        )
    config: TransformerConfig = from_dict(TransformerConfig, fields["model"])
    published = fields.get("published") or {}
    masking, task = fields.get("masking", {}), task or fields.get("task") or {}
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
    """Returns the image encoder, with the compute settings of the text model."""
    encoder: TransformerConfig = from_dict(TransformerConfig, fields["encoder"])
    return dataclasses.replace(encoder, compute=config.compute)


def republished(
    record: Mapping[str, Any], kind: str, config: TransformerConfig
) -> dict[str, Any] | None:
    """Returns the record of the published model that a run starts from, for exports and search.

    Args:
        record: ``published`` of the ``config.json`` of the start.
        kind: The family of the run.
        config: The run's model, which may have more tokens or different dropout rates.

    Returns:
        The record with the changes, or None if the family does not have this model.
    """
    from transformer_jax.interop.export_plan import fields_of

    # An encoder of texts keeps the record, but no head.
    bare = {"prefix": "", "words": False, "next_sentence": False} if kind == "encoder" else {}
    record = {**record, **bare}
    described = {"model": dataclasses.asdict(config), "published": record, "masking": None}
    model = model_of(described, kind)
    try:
        fields = fields_of(model, record["fields"])
    except ConfigError:
        if kind != "encoder":
            raise
        # A family whose bare models have a pooler, which vectors of texts do not need.
        head = dataclasses.replace(config.head, pooler=True)
        pooled = dataclasses.replace(model, config=dataclasses.replace(config, head=head))
        fields = fields_of(pooled, record["fields"])
    if fields is None:
        return None
    generation = record["generation"]
    if generation == record["fields"]:  # one file has both
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
    """Converts a Hugging Face folder to a run directory; returns the number of parameters.

    Args:
        path: The folder.
        output: The run to create, on a local disk.
        overwrite: Whether to replace an existing run.
        change: Function from the folder's parameters and ``config.json`` to the run's.
        more: Function that writes further files of the run.

    Raises:
        CheckpointError: The folder is damaged, or the run cannot be written.
        ConfigError: ``output`` exists, or is a URL.
        DataError: The folder has no usable tokenizer.
    """
    if (url := url_of(output)) is not None:
        raise ConfigError(
            f"{url}: converted runs are written to this machine: name a local folder, and copy it "
            f"to the object store"
        )
    source = HFRunDirectory(path)
    fields = source.read_config()
    tokenizer = None if source.folder.model.kind == "image" else source.load_tokenizer()
    describe: Manifest = {}
    if tokenizer is not None:
        sizes = source.folder.model.config
        check_vocabulary(tokenizer, sizes.vocab_size, sizes.decoder().vocab_size, where=path)
        fields |= {"special": source.tokenizer_file[1]}
        describe = {"tokenizer": tokenizer.sha256}
    RunDirectory.check_free(output, overwrite=overwrite)  # check before loading anything
    params, fields = change(source.load_params().params, fields)
    dense = fields.get("sentence", {}).get("dense")
    if dense is not None:  # an existing run is kept until everything is read
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
        save_converted(run, params, {**describe, "config": fields})
    import jax

    return sum(leaf.size for leaf in jax.tree.leaves(params))


def save_converted(run: RunDirectory, params: PyTree, describe: Manifest) -> None:
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
