"""Hostile folders of models, by the door that reads them.

Each case writes its files into a folder and returns the call that must refuse them.
"""

import io
import json
import math
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.numpy

import transformer_jax as tj
from tests.doors.changed_models import (
    DEEP,
    DIGITS,
    Prepare,
    bytes_of,
    huge,
    linked,
    model,
    rewritten,
    text_of,
    with_fields,
)
from tests.doors.hostile_tokenizers import SENTENCEPIECE, TOKENIZERS

__all__ = ["FOLDERS"]


def _header(fields: object, data: bytes = b"") -> bytes:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return struct.pack("<Q", len(text)) + text + data


def _tensor(start: int, end: int, shape: list[int] | None = None) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape or [(end - start) // 4], "data_offsets": [start, end]}


WEIGHTS = {
    "a header of exabytes": bytes_of("model.safetensors", struct.pack("<Q", 2**62) + b"{}"),
    "a header of 300 MB": bytes_of("model.safetensors", struct.pack("<Q", 3 * 10**8) + b"{}"),
    "overlapping tensors": bytes_of(
        "model.safetensors", _header({"a": _tensor(0, 8), "b": _tensor(4, 12)}, bytes(12))
    ),
    "a tensor beyond the end": bytes_of("model.safetensors", _header({"a": _tensor(0, 10**12)})),
    "a shape of exabytes": bytes_of(
        "model.safetensors", _header({"a": _tensor(0, 8, [2**40, 2**40])}, bytes(8))
    ),
    "duplicate names": bytes_of(
        "model.safetensors",
        _header(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32",'
            b'"shape":[1],"data_offsets":[0,4]}}',
            bytes(4),
        ),
    ),
    "a deep header": bytes_of("model.safetensors", _header(('{"a": ' + DEEP).encode())),
    "a million tensors": model("bert", lambda folder: _million_tensors(folder)),
    "an index outside of the folder": model(
        "bert", lambda folder: _index(folder, "../other.safetensors")
    ),
    "an index of an absolute path": model("bert", lambda folder: _index(folder, "/etc/passwd")),
    "an index of an address": model(
        "bert", lambda folder: _index(folder, "s3://bucket/x.safetensors")
    ),
    "a deep index": model(
        "bert", lambda folder: _replace(folder, "model.safetensors.index.json", DEEP)
    ),
    "a link to a device": linked("model.safetensors", "/dev/zero"),
    "a link to itself": linked("model.safetensors", "itself"),
    "a pickle": model(
        "bert", lambda folder: _replace(folder, "pytorch_model.bin", "cos\nsystem\n")
    ),
    "other numbers": bytes_of(
        "model.safetensors",
        _header({"a": {"dtype": "F999", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    ),
}


def _million_tensors(folder: Path) -> None:
    tensors = {f"t{i}": _tensor(0, 0, [0]) for i in range(10**6)}
    (folder / "model.safetensors").write_bytes(_header(tensors))


def _replace(folder: Path, name: str, text: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_text(text)


def _index(folder: Path, name: str) -> None:
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    os.rename(folder / "model.safetensors", folder.parent / f"{folder.name}.other")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


CONFIGURATIONS = {
    "deep JSON": text_of("config.json", '{"a": ' + DEEP),
    "a list": text_of("config.json", "[]"),
    "a long number": text_of(
        "config.json", '{"model_type": "bert", "hidden_size": ' + DIGITS + "}"
    ),
    "not a number": text_of("config.json", '{"model_type": "bert", "hidden_size": NaN}'),
    "a repeated name": text_of("config.json", '{"model_type": "bert", "model_type": "gpt2"}'),
    "100 MB": huge("config.json", 10**8),
    "a link to a device": linked("config.json", "/dev/zero"),
    "a link out of the folder": linked("config.json", "/etc/passwd"),
    "a trillion layers": rewritten("config.json", with_fields(num_hidden_layers=10**12)),
    "a million layers": rewritten("config.json", with_fields(num_hidden_layers=10**6)),
    "a width of a billion": rewritten("config.json", with_fields(hidden_size=10**9)),
    "a vocabulary of a trillion": rewritten("config.json", with_fields(vocab_size=10**12)),
    "positions of a trillion": rewritten(
        "config.json", with_fields(max_position_embeddings=10**12)
    ),
    "a negative width": rewritten("config.json", with_fields(hidden_size=-64)),
    "an object for a number": rewritten("config.json", with_fields(hidden_size={"a": 1})),
    "a list for a number": rewritten("config.json", with_fields(num_attention_heads=[4])),
    "null for a number": rewritten("config.json", with_fields(num_attention_heads=None)),
    "a text for a number": rewritten("config.json", with_fields(intermediate_size="12")),
    "a number for a name": rewritten("config.json", with_fields(hidden_act=12)),
    "an object for a name": rewritten("config.json", with_fields(model_type={"a": 1})),
    "a million labels": rewritten(
        "config.json",
        lambda old: {**old, "id2label": {str(i): f"l{i}" for i in range(10**6)}},
        "bert_cls",
    ),
}


SETTINGS = {
    "deep JSON": text_of("tokenizer_config.json", '{"a": ' + DEEP),
    "a list": text_of("tokenizer_config.json", "[]"),
    "100 MB": huge("tokenizer_config.json", 10**8),
    "a number for a token": rewritten(
        "tokenizer_config.json", with_fields(added_tokens_decoder={"x": 1})
    ),
    "a length of a text": rewritten("tokenizer_config.json", with_fields(model_max_length="many")),
}

GENERATION = {
    "deep JSON": text_of("generation_config.json", '{"a": ' + DEEP, "gpt2"),
    "a list": text_of("generation_config.json", "[]", "gpt2"),
    "an object for an id": rewritten(
        "generation_config.json", with_fields(eos_token_id={"a": 1}), "gpt2"
    ),
    "a start token of a trillion": rewritten(
        "config.json", with_fields(decoder_start_token_id=10**12), "bart"
    ),
}

PROCESSORS = {
    "deep JSON": text_of("preprocessor_config.json", '{"a": ' + DEEP, "vit"),
    "a list": text_of("preprocessor_config.json", "[]", "vit"),
    "a size of a million": rewritten(
        "preprocessor_config.json", with_fields(size={"height": 10**6, "width": 10**6}), "vit"
    ),
    "a mean of two": rewritten(
        "preprocessor_config.json", with_fields(image_mean=[0.5, 0.5]), "vit"
    ),
    "a mean that is no number": text_of(
        "preprocessor_config.json", '{"image_mean": [NaN, 0, 0], "do_normalize": true}', "vit"
    ),
    "a size that is a list": rewritten(
        "preprocessor_config.json", with_fields(size=[16, 16]), "vit"
    ),
}


def _modules(*parts: object, text: str = "") -> Prepare:
    write = lambda folder: (folder / "modules.json").write_text(text or json.dumps(parts))
    return model("bert", write, lambda folder: tj.load(folder).embed("a"))


def _module(path: str, kind: str = "Pooling") -> dict[str, object]:
    return {"idx": 1, "name": "1", "path": path, "type": f"sentence_transformers.models.{kind}"}


FIRST = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
SENTENCES = {
    "deep JSON": _modules(text=DEEP),
    "a path outside of the folder": _modules(FIRST, _module("../../1_Pooling")),
    "an absolute path": _modules(FIRST, _module("/etc")),
    "an address": _modules(FIRST, _module("s3://bucket/1_Pooling")),
    "code of somebody": _modules(FIRST, {**_module("1_Own"), "type": "evil.module.Pooling"}),
    "a number for a module": _modules(FIRST, 3),
    "a million modules": _modules(FIRST, *[_module("1_Pooling")] * 100_000),
}


def _chat(text: str) -> Prepare:
    def read(folder: Path) -> object:
        return tj.load(folder).chat([{"role": "user", "content": "a"}], max_new_tokens=1)

    return model("gpt2", lambda folder: (folder / "chat_template.jinja").write_text(text), read)


TEMPLATES = {
    "an endless loop": _chat(
        "{% for i in range(10**9) %}{% for j in range(10**9) %}" + 2 * "{% endfor %}"
    ),
    "a text without end": _chat("{{ 'a' * 10**10 }}"),
    "doubled texts": _chat(
        "{% set x = namespace(v='a') %}{% for i in range(60) %}{% set x.v = x.v + x.v %}"
        "{% endfor %}{{ x.v }}"
    ),
    "what the sandbox hides": _chat("{{ messages.__class__.__mro__ }}"),
    "files": _chat("{% include '/etc/passwd' %}"),
    "a megabyte": _chat("a" * 10**6),
    "a deep expression": _chat("{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}"),
}


USUAL: dict[str, object] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 2,
    "lora_alpha": 4,
    "target_modules": ["c_attn"],
    "base_model_name_or_path": "base",
}


def _adapter(**fields: object) -> Prepare:
    def change(folder: Path) -> None:
        adapter = folder / "adapter"
        adapter.mkdir()
        text = fields.pop("text", None)
        (adapter / "adapter_config.json").write_text(text or json.dumps(USUAL | fields))
        weights = np.zeros((2, 2), np.float32)
        safetensors.numpy.save_file({"x": weights}, adapter / "adapter_model.safetensors")

    return model("gpt2", change, lambda one: tj.load(one).with_adapters({"a": one / "adapter"}))


ADAPTERS = {
    "deep JSON": _adapter(text='{"a": ' + DEEP),
    "a list": _adapter(text="[]"),
    "a rank of a billion": _adapter(r=10**9),
    "an expression that backtracks": _adapter(target_modules="(a+)+$"),
    "a base on another machine": _adapter(base_model_name_or_path="https://example.org/base"),
    "an object for a rank": _adapter(r={"a": 1}),
    "an infinite scale": _adapter(text=json.dumps(USUAL | {"lora_alpha": math.inf})),
}


def _run(change: Callable[[Path], None]) -> Prepare:
    def prepare(folder: Path) -> Callable[[], object]:
        run = folder / "run"
        run.mkdir()
        config = {"recipe": "language_model", "model": {}, "training": {}}
        (run / "config.json").write_text(json.dumps(config))
        change(run)
        return lambda: tj.load(run)

    return prepare


def _vast(run: Path) -> None:
    with open(run / "config.json", "wb") as file:
        file.truncate(1 << 36)  # no blocks on a disk


def _fields(text: str) -> Prepare:
    return _run(lambda run: (run / "config.json").write_text(text))


RUNS = {
    "deep JSON": _fields('{"model": ' + DEEP),
    "a file of settings of 64 GB": _run(_vast),
    "a list": _fields("[]"),
    "a number for a group": _fields('{"recipe": "language_model", "model": 3}'),
    "a list for a group": _fields('{"recipe": "language_model", "model": []}'),
    "null for a group": _fields('{"recipe": "language_model", "model": null}'),
    "a number for a recipe": _fields('{"recipe": 3, "model": {}}'),
    "an object for a recipe": _fields('{"recipe": {"a": 1}}'),
    "a long number": _fields('{"recipe": "language_model", "model": {"d_model": ' + DIGITS + "}}"),
    "a width of a trillion": _fields(
        '{"recipe": "language_model", "model": {"d_model": 1000000000000}}'
    ),
    "infinity": _fields('{"recipe": "language_model", "model": {"dropout": Infinity}}'),
    "n-grams that unpack to gigabytes": _run(lambda run: _bomb(run / "ngram.npz")),
}


def _bomb(path: Path) -> None:
    """A small archive of an array of 4 GiB."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (2**30,)}
    )
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("counts.npy", "w", force_zip64=True) as file,
    ):
        file.write(header.getvalue())
        block = bytes(2**24)
        for _ in range(8):  # the rest is missing
            file.write(block)


FOLDERS: dict[str, dict[str, Prepare]] = {
    "weights": WEIGHTS,
    "configuration of a model": CONFIGURATIONS,
    "tokenizer": TOKENIZERS,
    "SentencePiece": SENTENCEPIECE,
    "settings of a tokenizer": SETTINGS,
    "settings of generation": GENERATION,
    "processor of pictures": PROCESSORS,
    "sentence encoder": SENTENCES,
    "chat template": TEMPLATES,
    "adapter": ADAPTERS,
    "run": RUNS,
}
