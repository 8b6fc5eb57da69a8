"""Writes models as Hugging Face folders for transformers."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from jaxtyping import PyTree

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.core.numerics import all_finite
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.examples import default_template
from transformer_jax.data.tokenizer import SpecialTokensTemplate, Tokenizer
from transformer_jax.data.tokenizer_parts import target_file
from transformer_jax.interop.cross_encoders import score_fields
from transformer_jax.interop.export_plan import choose_family
from transformer_jax.interop.family import Model, ModelFamily, TensorMapping
from transformer_jax.interop.hf_checkpoint import parameter_shapes
from transformer_jax.interop.language_codes import tokenizer_fields
from transformer_jax.interop.tensor_layouts import to_hf
from transformer_jax.interop.tensor_writer import write_tensors
from transformer_jax.interop.tokenizer_settings import LANGUAGES

__all__ = ["TextForm", "hf_tensors", "with_post_processor", "write_folder", "write_model"]

# Kinds of models with texts between two special tokens.
_FRAMED = ("encoder", "encoder-task", "two-tower")
# Post-processors of tokenizers that add special tokens.
_TEMPLATES = ("TemplateProcessing", "BertProcessing", "RobertaProcessing")


class TextForm(NamedTuple):
    """The texts of a model, for the files of its tokenizer.

    Attributes:
        first: The first token of texts of a language model that was trained here.
        length: Maximum length of a text in tokens; None is the model's.
        pairs: Whether a classifier reads pairs of texts.
        template: The special tokens of a classifier that was trained here, if not the usual ones.
    """

    first: int | None = None
    length: int | None = None
    pairs: bool = False
    template: SpecialTokensTemplate | None = None


_USUAL = TextForm()


def write_model(
    output: Path,
    model: Model,
    params: PyTree,
    tokenizer: Tokenizer | None,
    published: Mapping[str, Any] | None = None,
    *,
    texts: TextForm = _USUAL,
    dtype: str = "float32",
    shard_bytes: int | None = None,
) -> str:
    """Writes a model with its tokenizer as a Hugging Face folder; returns a summary line.

    Args:
        output: The folder.
        model: The model.
        params: The parameters of the model.
        tokenizer: The tokenizer, whose file is written unchanged; None for an image model.
        published: The record of the Hugging Face checkpoint that a run was converted from, to
            restore its configuration.
        texts: How the model reads texts.
        dtype: float32, bfloat16 or float16.
        shard_bytes: Maximum size of a file in bytes, to write several files.

    Raises:
        ConfigError: No published family has this architecture.
        CheckpointError: The folder cannot be written.
    """
    published = published or {}
    scores = score_fields(model, published or None, pairs=texts.pairs)
    ids = {} if tokenizer is None else _ids(tokenizer, model.kind)
    said = write_folder(
        output,
        model,
        params,
        fields=published["fields"] | scores if published else None,
        ids=ids | scores,
        dtype=dtype,
        shard_bytes=shard_bytes,
    )
    name = f"{said['model_type']}: {said['architectures'][0]}, {dtype}"
    if published.get("preprocessor"):
        _write(output / "preprocessor_config.json", published["preprocessor"])
    if tokenizer is None:
        return name
    text = tokenizer.text if published else with_post_processor(tokenizer, model, texts)
    _write_text(output / "tokenizer.json", text)
    if tokenizer.targets is not tokenizer:
        _write_text(target_file(output / "tokenizer.json"), tokenizer.targets.text)
    _write(output / "tokenizer_config.json", _tokenizer_fields(tokenizer, model, texts.length))
    if model.kind in ("decoder", "encoder-decoder", "captioner"):
        _write_generation(output / "generation_config.json", model, said, published)
    return name


def _write_generation(
    path: Path, model: Model, said: Mapping[str, Any], published: Mapping[str, Any]
) -> None:
    """Writes the generation config: the published one, or special ids and maximum length.

    If it was published in ``config.json``, it is restored there and no file is written, which would
    make transformers ignore these keys.
    """
    if not published:
        ids = {key: value for key, value in said.items() if key.endswith("token_id")}
        _write(path, ids | {"max_length": model.config.positions.max_length})
    elif published["generation"] != published["fields"]:
        _write(path, published["generation"])


def _ids(tokenizer: Tokenizer, kind: str) -> dict[str, Any]:
    """Returns the special ids of a model that was trained here."""
    eos, *more = tokenizer.end_tokens
    found: dict[str, Any] = {
        "pad_token_id": tokenizer.pad,
        "eos_token_id": [eos, *more] if more else eos,
    }
    if kind in ("encoder-decoder", "captioner"):
        found |= {"decoder_start_token_id": tokenizer.bos, "bos_token_id": _begin(tokenizer)}
        first = tokenizer.target_prefix_ids
        return found | ({"forced_bos_token_id": first[0]} if first else {})
    if kind in _FRAMED:
        return found | {"cls_token_id": tokenizer.bos, "sep_token_id": eos}
    decoder = kind in ("decoder", "decoder-task")
    return found | ({"bos_token_id": tokenizer.bos} if decoder else {})


def _begin(tokenizer: Tokenizer) -> int:
    """Returns the first token of texts, after the decoder's start token (BART)."""
    return next(iter(tokenizer.target_prefix_ids), tokenizer.bos)


def _tokenizer_fields(tokenizer: Tokenizer, model: Model, length: int | None) -> dict[str, Any]:
    """Returns the tokenizer keys that transformers needs besides ``tokenizer.json``."""
    names = {"eos_token": tokenizer.eos}
    names |= {"pad_token": tokenizer.pad} if "pad" in tokenizer.roles else {}
    begins = "bos" in tokenizer.roles and (
        not tokenizer.languages or tokenizer.bos != tokenizer.eos
    )
    if tokenizer.target_prefix_ids or begins:
        names["bos_token"] = _begin(tokenizer)
    if model.kind in ("encoder", "encoder-task"):
        names |= {"cls_token": tokenizer.bos, "sep_token": tokenizer.eos}
    for role in ("unk", "mask"):
        if getattr(tokenizer, role) is not None:
            names[f"{role}_token"] = getattr(tokenizer, role)
    # The default of this class has no token types: pairs would be read as one text.
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    types = model.config.embedding.type_vocab_size > 1
    length, tags = length or model.config.positions.max_length, tokenizer.languages
    tokens = {} if tags is None else {code: tokenizer.name(id) for code, id in tags.tags.items()}
    own = {LANGUAGES: tokenizer.special.get("languages")}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        **({"model_input_names": inputs} if types else {}),
        **{role: tokenizer.name(id) for role, id in names.items()},
        **({} if tags is None else tokenizer_fields(tags, tokens) or own),
    }


def with_post_processor(tokenizer: Tokenizer, model: Model, texts: TextForm) -> str:
    """Returns the file of a tokenizer trained here, with the special tokens around a text.

    This library adds them itself; other libraries add them if the file specifies so: ``eos`` after
    sources of a translator, ``[CLS]`` and ``[SEP]`` around texts of an encoder, ``first`` before
    prompts of a language model. The file of a published tokenizer may already do so; for language
    models, whose texts start differently here, and if it gives both texts of a pair one type, this
    is replaced.
    """
    if tokenizer.template is not None:
        if model.kind in ("encoder-decoder", "captioner", "two-tower"):
            return tokenizer.text
        framed = model.kind in _FRAMED and tokenizer.template == default_template(tokenizer)
        if framed and (model.config.embedding.type_vocab_size < 2 or _types_pairs(tokenizer)):
            return tokenizer.text
    before, between, after = texts.template or _template(tokenizer, model.kind, texts.first)
    token = lambda id, type: {"SpecialToken": {"id": tokenizer.name(id), "type_id": type}}
    one, two = ({"Sequence": {"id": name, "type_id": type}} for type, name in enumerate("AB"))
    begin = [token(id, 0) for id in before]
    single = [*begin, one, *(token(id, 0) for id in after)]
    pair = [*begin, one, *(token(id, 0) for id in between), two, *(token(id, 1) for id in after)]
    tokens = {tokenizer.name(id): id for id in (*before, *between, *after)}
    special = {
        name: {"id": name, "ids": [id], "tokens": [name]} for name, id in sorted(tokens.items())
    }
    fields = json.loads(tokenizer.text)
    template = {"type": "TemplateProcessing", "single": single, "pair": pair,
                "special_tokens": special}  # fmt: skip
    # Texts are encoded without the blank before a mask, which some vocabularies have a token for.
    if tokenizer.mask is not None and tokenizer.encode("a ") != tokenizer.encode("a"):
        for added in fields["added_tokens"]:
            added["lstrip"] |= added["id"] == tokenizer.mask
    others = _without_templates(fields.get("post_processor"))
    fields["post_processor"] = (
        {"type": "Sequence", "processors": [*others, template]} if others else template
    )
    return json.dumps(fields, ensure_ascii=False)


def _template(tokenizer: Tokenizer, kind: str, first: int | None) -> SpecialTokensTemplate:
    """Returns the special tokens around texts of a kind of model."""
    if kind in _FRAMED:
        return default_template(tokenizer)
    if kind == "decoder":
        return SpecialTokensTemplate(() if first is None else (first,), (), ())
    return SpecialTokensTemplate((), (tokenizer.eos,), (tokenizer.eos,))


def _types_pairs(tokenizer: Tokenizer) -> bool:
    """Returns whether the file of a tokenizer gives the second of two texts the type 1."""
    encoding = tokenizers.Tokenizer.from_str(tokenizer.text).encode("a", "a")
    where = [type for type, text in zip(encoding.type_ids, encoding.sequence_ids, strict=True)
             if text == 1]  # fmt: skip
    return bool(where) and set(where) == {1} and encoding.type_ids[-1] == 1


def _without_templates(processor: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Returns the parts of a post-processor that do not add special tokens."""
    if processor is None or processor["type"] in _TEMPLATES:
        return []
    if processor["type"] != "Sequence":
        return [processor]
    return [kept for part in processor["processors"] for kept in _without_templates(part)]


def _write(path: Path, fields: Mapping[str, Json]) -> None:
    _write_text(path, json.dumps(fields, indent=2, ensure_ascii=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None


def write_folder(
    path: Path,
    model: Model,
    params: PyTree,
    *,
    fields: Mapping[str, Any] | None = None,
    ids: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    shard_bytes: int | None = None,
) -> dict[str, Any]:
    """Writes ``config.json`` and ``model.safetensors``; returns the former's content.

    Args:
        path: The folder to create.
        model: The model.
        params: The parameters of the model, in nested dictionaries.
        fields: The configuration that the model was published with, if any; by default a new one.
        ids: Keys of a new configuration that are not the model's: the ids of special tokens, and
            scores of pairs.
        dtype: float32, bfloat16 or float16.
        shard_bytes: Maximum size of a file in bytes, to write several files.

    Raises:
        ConfigError: No published family has this architecture; the message has the differences from
            the nearest.
        CheckpointError: The folder cannot be written.
    """
    fit = choose_family(model, fields)
    tensors = hf_tensors(fit.family, fit.model, fit.change(params))
    if dtype != "float32":
        import ml_dtypes

        kinds = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
        with np.errstate(over="ignore"):
            tensors = {name: array.astype(kinds[dtype]) for name, array in tensors.items()}
        for name, array in tensors.items():
            if not all_finite(array):
                raise ConfigError(
                    f"{name} has values beyond the range of {dtype}: export in float32 or bfloat16"
                )
    own = dict(ids or {}) if fields is None else {}
    for name in own.keys() & fit.fields.keys():  # RoBERTa counts positions from its padding id
        if own[name] != fit.fields[name]:
            raise ConfigError(
                f"{fit.fields['model_type']} needs {name} {fit.fields[name]} for such positions, "
                f"but the tokenizer has {own[name]}: train with positions.offset {own[name] + 1}"
            )
    said = fit.fields | own | {"dtype": dtype}
    if "text_config" in said and own:  # where transformers looks for the end of a text
        said |= {"text_config": said["text_config"] | own}
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from None
    _write(path / "config.json", said)
    write_tensors(path, tensors, shard_bytes=shard_bytes)
    return said


def hf_tensors(family: ModelFamily, model: Model, params: PyTree) -> dict[str, np.ndarray]:
    """Returns the tensors of a model by their published names: the exact inverse of loading.

    Missing biases are zeros.

    Raises:
        CheckpointError: A parameter has a shape different from the model's.
    """
    known = {name: np.asarray(leaf) for name, leaf in flatten_dict(params).items()}
    for name, shape in parameter_shapes(model).items():
        if name in known and known[name].shape != shape:
            raise CheckpointError(
                f"the parameter {name} is {list(known[name].shape)}, but {list(shape)} in the "
                f"model's configuration: it cannot be written"
            )
    together: dict[str, list[TensorMapping]] = {}
    for mapping in family.mappings(model):
        together.setdefault(mapping.hf_name, []).append(mapping)
    found = {}
    for name, mappings in together.items():
        arrays = []
        for mapping in mappings:
            own = known.get(mapping.name)
            arrays.append(_no_bias(mapping.name, model, known) if own is None else own)
        found[name] = to_hf(arrays, mappings)
    return found


def _no_bias(name: str, model: Model, known: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns zeros for a missing bias, with the number of outputs of its map."""
    if name == "head/bias":
        return np.zeros(model.config.decoder().vocab_size, np.float32)
    of = [known.get(re.sub("bias$", other, name)) for other in ("kernel", "gain")]
    return np.zeros(next(array.shape[-1] for array in of if array is not None), np.float32)
