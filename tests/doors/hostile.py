"""Hostile files and folders, by the door that reads them.

Each case writes its files into a folder and returns the call that must refuse them.
"""

import gzip
import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.numpy

import transformer_jax as tj
from tests.doors import readers, table
from tests.parity import layouts
from transformer_jax.data.documents import TextOptions, read_texts
from transformer_jax.data.tokenizer import BERT_SPECIAL, load_tokenizer, train_tokenizer

Prepare = Callable[[Path], Callable[[], object]]
DEEP = "[" * 200_000
DIGITS = "1" * 100_000

# --- Readers of data: what is no file, and what is no text of the format -------------------------


def _written(door: table.Door, folder: Path) -> tuple[Path, list[Path]]:
    """What a reader is given, and the files in it that have the texts."""
    given = door.write(folder, ["one", "two", "three"], readers.Form())
    return given, [given] if given.is_file() else [one for one in given.rglob("*") if one.is_file()]


def _instead(door: table.Door, name: str) -> Prepare:
    """The files of a door replaced by what is no file with an end."""

    def prepare(folder: Path) -> Callable[[], object]:
        given, paths = _written(door, folder)
        for path in paths:
            path.unlink()
            if name == "a pipe":
                os.mkfifo(path)
            else:
                path.symlink_to({"a device": "/dev/zero", "a link to itself": path}[name])
        return lambda: door.read(given)

    return prepare


def _content(door: table.Door, content: bytes) -> Prepare:
    """The files of a door with other content."""

    def prepare(folder: Path) -> Callable[[], object]:
        given, paths = _written(door, folder)
        for path in paths:
            path.write_bytes(content)
        return lambda: door.read(given)

    return prepare


def _all(path: Path) -> int:
    """Reads all documents."""
    return sum(1 for _ in read_texts(str(path), TextOptions(documents="line")))


def _packed(
    door: table.Door, line: bytes, megabytes: int, read: Callable[[Path], object] | None = None
) -> Prepare:
    """A small archive of many lines."""

    def prepare(folder: Path) -> Callable[[], object]:
        _, [path] = _written(door, folder)
        packed = path.with_name(f"{path.name}.gz")
        packed.write_bytes(gzip.compress(line * (2**20 // len(line))) * megabytes)
        return lambda: (read or door.read)(packed)

    return prepare


def _reader_cases(door: table.Door) -> dict[str, Prepare]:
    cases = {name: _instead(door, name) for name in ("a pipe", "a device", "a link to itself")}
    name = door.name.lower()
    if "json" in name or door.name in ("questions", "table of pairs by language"):
        field = '{"text": ' if door.name != "questions" else '{"data": '
        cases["deep JSON"] = _content(door, (field + DEEP + "\n").encode())
        cases["a number of 100,000 digits"] = _content(door, (field + DIGITS + "}\n").encode())
        cases["JSON of another kind"] = _content(door, b"[1, 2]\n")
    else:
        cases["zeros"] = _content(door, bytes(1000))
    return cases


# --- Folders of models ----------------------------------------------------------------------------


def model(layout: str, change: Callable[[Path], None], read: Callable[[Path], object] = tj.load) -> Prepare:
    """The folder of a small model with a tokenizer, and a change."""

    def prepare(folder: Path) -> Callable[[], object]:
        layouts.write(layout, folder)
        texts = ["low lower lowest a probe 1 2"] * 3
        special = BERT_SPECIAL if layout.startswith("bert") else None
        made = train_tokenizer("wordpiece", texts, 60, **({"special": special} if special else {}))
        if not layout.startswith("vit"):
            made.save(folder / "tokenizer.json")
        change(folder)
        return lambda: read(folder)

    return prepare


def rewritten(name: str, change: Callable[[dict], object], layout: str = "bert") -> Prepare:
    """The folder of a small model with a changed JSON file."""

    def write(folder: Path) -> None:
        path = folder / name
        fields = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(change(fields)))

    return model(layout, write)


def text_of(name: str, text: str, layout: str = "bert") -> Prepare:
    """The folder of a small model with a file of this content."""
    return model(layout, lambda folder: (folder / name).write_text(text))


def bytes_of(name: str, content: bytes, layout: str = "bert") -> Prepare:
    """The same with bytes."""
    return model(layout, lambda folder: (folder / name).write_bytes(content))


def _large(name: str, size: int) -> Prepare:
    def write(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        with open(folder / name, "wb") as file:
            file.truncate(size)  # no blocks on a disk

    return model("bert", write)


def _linked(name: str, target: str) -> Prepare:
    def write(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target if target != "itself" else folder / name)

    return model("bert", write)


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
        _header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32",'
                b'"shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    ),
    "a deep header": bytes_of("model.safetensors", _header(('{"a": ' + DEEP).encode())),
    "a million tensors": bytes_of(
        "model.safetensors",
        _header({f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
                 for i in range(10**6)}),
    ),
    "an index outside of the folder": model("bert", lambda folder: _index(folder, "../other.safetensors")),
    "an index of an absolute path": model("bert", lambda folder: _index(folder, "/etc/passwd")),
    "an index of an address": model("bert", lambda folder: _index(folder, "s3://bucket/x.safetensors")),
    "a deep index": model(
        "bert", lambda folder: _replace(folder, "model.safetensors.index.json", DEEP)
    ),
    "a link to a device": _linked("model.safetensors", "/dev/zero"),
    "a link to itself": _linked("model.safetensors", "itself"),
    "a pickle": model("bert", lambda folder: _replace(folder, "pytorch_model.bin", "cos\nsystem\n")),
    "other numbers": bytes_of("model.safetensors", _header({"a": {"dtype": "F999", "shape": [1], "data_offsets": [0, 4]}}, bytes(4))),
}  # fmt: skip


def _replace(folder: Path, name: str, text: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_text(text)


def _index(folder: Path, name: str) -> None:
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    os.rename(folder / "model.safetensors", folder.parent / f"{folder.name}.other")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _with(**fields: object) -> Callable[[dict], dict]:
    return lambda old: {**old, **fields}


CONFIGURATIONS = {
    "deep JSON": text_of("config.json", '{"a": ' + DEEP),
    "a list": text_of("config.json", "[]"),
    "a long number": text_of("config.json", '{"model_type": "bert", "hidden_size": ' + DIGITS + "}"),
    "not a number": text_of("config.json", '{"model_type": "bert", "hidden_size": NaN}'),
    "a repeated name": text_of("config.json", '{"model_type": "bert", "model_type": "gpt2"}'),
    "100 MB": _large("config.json", 10**8),
    "a link to a device": _linked("config.json", "/dev/zero"),
    "a link out of the folder": _linked("config.json", "/etc/passwd"),
    "a trillion layers": rewritten("config.json", _with(num_hidden_layers=10**12)),
    "a million layers": rewritten("config.json", _with(num_hidden_layers=10**6)),
    "a width of a billion": rewritten("config.json", _with(hidden_size=10**9)),
    "a vocabulary of a trillion": rewritten("config.json", _with(vocab_size=10**12)),
    "positions of a trillion": rewritten("config.json", _with(max_position_embeddings=10**12)),
    "a negative width": rewritten("config.json", _with(hidden_size=-64)),
    "an object for a number": rewritten("config.json", _with(hidden_size={"a": 1})),
    "a list for a number": rewritten("config.json", _with(num_attention_heads=[4])),
    "null for a number": rewritten("config.json", _with(num_attention_heads=None)),
    "a text for a number": rewritten("config.json", _with(intermediate_size="12")),
    "a number for a name": rewritten("config.json", _with(hidden_act=12)),
    "an object for a name": rewritten("config.json", _with(model_type={"a": 1})),
    "a million labels": rewritten(
        "config.json", _with(id2label={str(i): f"l{i}" for i in range(10**6)}), "bert_cls"
    ),
}  # fmt: skip


def _split(pattern: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _grow(times: int, length: int) -> dict[str, object]:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": length * "a"}
    return {"type": "Sequence", "normalizers": [step] * times}


def tokenizer(**fields: object) -> Prepare:
    """A model whose tokenizer has other parts."""
    return rewritten("tokenizer.json", _with(**fields))


TOKENIZERS = {
    "an expression that backtracks": tokenizer(pre_tokenizer=_split("(a+)+$")),
    "alternatives that backtrack": tokenizer(pre_tokenizer=_split("(a|aa)+$")),
    "an expression that takes its time": tokenizer(
        pre_tokenizer=_split(r"(([a-z])+.)+[A-Z]([a-z])+$")
    ),
    "a decoder that backtracks": tokenizer(
        decoder={"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": ""}
    ),
    "replacements of replacements": tokenizer(normalizer=_grow(2, 1000)),
    "many small replacements": tokenizer(normalizer=_grow(40, 2)),
    "a prefix of 10 MB": tokenizer(normalizer={"type": "Prepend", "prepend": 10**7 * "x"}),
    "a long suffix of words": rewritten(
        "tokenizer.json",
        lambda old: {**old, "model": {**old["model"], "continuing_subword_prefix": 10**6 * "#"}},
    ),
    "an id of four billion": rewritten(
        "tokenizer.json",
        lambda old: {**old, "model": {**old["model"], "vocab": {
            **old["model"]["vocab"], "zz": 2**32 - 1}}},
    ),
    "deep JSON": text_of("tokenizer.json", '{"normalizer": ' + DEEP),
    "a gigabyte": _large("tokenizer.json", 10**9),
    "a link to itself": _linked("tokenizer.json", "itself"),
    "a pipe": model("bert", lambda folder: _pipe(folder, "tokenizer.json")),
    "a path of another door": model(
        "bert", lambda folder: _pipe(folder, "tokenizer.json"),
        lambda folder: load_tokenizer(folder / "tokenizer.json"),
    ),
    "a file of settings": model(
        "bert",
        lambda folder: (folder / "tokenizer.json").write_text(
            json.dumps({"pre_tokenizer": _split("(a+)+$"), "model": {"vocab": {"[SEP]": 0}}})
        ),
        lambda folder: load_tokenizer(folder / "tokenizer.json"),
    ),
}  # fmt: skip


def _pipe(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)


def _sentencepiece(content: bytes) -> Prepare:
    def write(folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        (folder / "spiece.model").write_bytes(content)

    return model("t5", write)


def _field(number: int, content: bytes) -> bytes:
    size, value = b"", len(content)
    while True:
        size += bytes([value % 128 | (128 if value > 127 else 0)])
        value //= 128
        if not value:
            return bytes([number << 3 | 2]) + size + content


def _piece(text: str, kind: int = 1) -> bytes:
    return _field(1, _field(1, text.encode()) + b"\x15" + struct.pack("<f", -1) + bytes([24, kind]))


SENTENCEPIECE = {
    "zeros": _sentencepiece(bytes(1000)),
    "a field of exabytes": _sentencepiece(b"\x0a" + b"\xff" * 9 + b"\x01"),
    "an endless number": _sentencepiece(b"\xff" * 1000),
    "a piece of a megabyte": _sentencepiece(_piece("<unk>", 2) + _piece(10**6 * "a")),
    "a repeated piece": _sentencepiece(_piece("<unk>", 2) + _piece("a") * 2),
    "no unknown piece": _sentencepiece(_piece("a") + _piece("b")),
    "a long replacement": _sentencepiece(
        _piece("<unk>", 2) + _piece("a")
        + _field(3, _field(2, struct.pack("<I", 4) + b"trie" + 10**6 * b"x" + b"\0"))
    ),
    "a table beyond its end": _sentencepiece(
        _piece("<unk>", 2) + _piece("a") + _field(3, _field(2, struct.pack("<I", 2**32 - 1)))
    ),
}  # fmt: skip

SETTINGS = {
    "deep JSON": text_of("tokenizer_config.json", '{"a": ' + DEEP),
    "a list": text_of("tokenizer_config.json", "[]"),
    "100 MB": _large("tokenizer_config.json", 10**8),
    "a number for a token": rewritten("tokenizer_config.json", _with(added_tokens_decoder={"x": 1})),
    "a length of a text": rewritten("tokenizer_config.json", _with(model_max_length="many")),
}  # fmt: skip

GENERATION = {
    "deep JSON": text_of("generation_config.json", '{"a": ' + DEEP, "gpt2"),
    "a list": text_of("generation_config.json", "[]", "gpt2"),
    "an object for an id": rewritten(
        "generation_config.json", _with(eos_token_id={"a": 1}), "gpt2"
    ),
    "a start token of a trillion": rewritten(
        "config.json", _with(decoder_start_token_id=10**12), "bart"
    ),
}  # fmt: skip

PROCESSORS = {
    "deep JSON": text_of("preprocessor_config.json", '{"a": ' + DEEP, "vit"),
    "a list": text_of("preprocessor_config.json", "[]", "vit"),
    "a size of a million": rewritten(
        "preprocessor_config.json", _with(size={"height": 10**6, "width": 10**6}), "vit"
    ),
    "a mean of two": rewritten("preprocessor_config.json", _with(image_mean=[0.5, 0.5]), "vit"),
    "a mean that is no number": text_of(
        "preprocessor_config.json", '{"image_mean": [NaN, 0, 0], "do_normalize": true}', "vit"
    ),
    "a size that is a list": rewritten("preprocessor_config.json", _with(size=[16, 16]), "vit"),
}  # fmt: skip


def _modules(*parts: object) -> Prepare:
    return text_of("modules.json", json.dumps(parts))


def _module(path: str, kind: str = "Pooling") -> dict[str, object]:
    return {"idx": 1, "name": "1", "path": path, "type": f"sentence_transformers.models.{kind}"}


FIRST = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
SENTENCES = {
    "deep JSON": text_of("modules.json", DEEP),
    "a path outside of the folder": _modules(FIRST, _module("../../1_Pooling")),
    "an absolute path": _modules(FIRST, _module("/etc")),
    "an address": _modules(FIRST, _module("s3://bucket/1_Pooling")),
    "code of somebody": _modules(FIRST, {**_module("1_Own"), "type": "evil.module.Pooling"}),
    "a number for a module": _modules(FIRST, 3),
    "a million modules": _modules(FIRST, *[_module("1_Pooling")] * 100_000),
}  # fmt: skip


def _chat(text: str) -> Prepare:
    def read(folder: Path) -> object:
        return tj.load(folder).chat([{"role": "user", "content": "a"}], max_new_tokens=1)

    return model("gpt2", lambda folder: (folder / "chat_template.jinja").write_text(text), read)


TEMPLATES = {
    "an endless loop": _chat("{% for i in range(10**9) %}{% for j in range(10**9) %}{% endfor %}{% endfor %}"),
    "a text without end": _chat("{{ 'a' * 10**10 }}"),
    "doubled texts": _chat("{% set x = namespace(v='a') %}{% for i in range(60) %}{% set x.v = x.v + x.v %}{% endfor %}{{ x.v }}"),
    "what the sandbox hides": _chat("{{ messages.__class__.__mro__ }}"),
    "files": _chat("{% include '/etc/passwd' %}"),
    "a megabyte": _chat("a" * 10**6),
    "a deep expression": _chat("{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}"),
}  # fmt: skip


def _adapter(**fields: object) -> Prepare:
    def change(folder: Path) -> None:
        adapter = folder / "adapter"
        adapter.mkdir()
        usual = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 4,
                 "target_modules": ["c_attn"], "base_model_name_or_path": "base"}  # fmt: skip
        text = fields.pop("text", None)
        (adapter / "adapter_config.json").write_text(text or json.dumps({**usual, **fields}))
        weights = np.zeros((2, 2), np.float32)
        safetensors.numpy.save_file({"x": weights}, adapter / "adapter_model.safetensors")

    return model("gpt2", change, lambda folder: tj.load(folder, adapter=folder / "adapter"))


ADAPTERS = {
    "deep JSON": _adapter(text='{"a": ' + DEEP),
    "a list": _adapter(text="[]"),
    "a rank of a billion": _adapter(r=10**9),
    "an expression that backtracks": _adapter(target_modules="(a+)+$"),
    "a base on another machine": _adapter(base_model_name_or_path="https://example.org/base"),
    "an object for a rank": _adapter(r={"a": 1}),
    "an infinite scale": _adapter(text='{"peft_type": "LORA", "r": 2, "lora_alpha": Infinity, "target_modules": ["c_attn"]}'),
}  # fmt: skip


def _run(change: Callable[[Path], None]) -> Prepare:
    def prepare(folder: Path) -> Callable[[], object]:
        run = folder / "run"
        run.mkdir()
        config = {"recipe": "language_model", "model": {}, "training": {}}
        (run / "config.json").write_text(json.dumps(config))
        change(run)
        return lambda: tj.load(run)

    return prepare


def _fields(text: str) -> Prepare:
    return _run(lambda run: (run / "config.json").write_text(text))


RUNS = {
    "deep JSON": _fields('{"model": ' + DEEP),
    "a list": _fields("[]"),
    "a number for a group": _fields('{"recipe": "language_model", "model": 3}'),
    "a list for a group": _fields('{"recipe": "language_model", "model": []}'),
    "null for a group": _fields('{"recipe": "language_model", "model": null}'),
    "a number for a recipe": _fields('{"recipe": 3, "model": {}}'),
    "an object for a recipe": _fields('{"recipe": {"a": 1}}'),
    "a long number": _fields('{"recipe": "language_model", "model": {"d_model": ' + DIGITS + "}}"),
    "a width of a trillion": _fields('{"recipe": "language_model", "model": {"d_model": 1000000000000}}'),
    "infinity": _fields('{"recipe": "language_model", "model": {"dropout": Infinity}}'),
    "n-grams that unpack to gigabytes": _run(lambda run: _bomb(run / "ngram.npz")),
}  # fmt: skip


def _bomb(path: Path) -> None:
    """A small archive of an array of 4 GiB."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (2**30,)}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(
        "counts.npy", "w", force_zip64=True
    ) as file:
        file.write(header.getvalue())
        block = bytes(2**24)
        for _ in range(8):  # the rest is missing
            file.write(block)


# --- Readers with dangers of their own ------------------------------------------------------------

OWN: dict[str, dict[str, Prepare]] = {
    "pairs as TSV": {
        "an archive of a long line": _packed(table.by_name("pairs as TSV"), b"a", 600),
        "an archive of many lines": _packed(table.by_name("pairs as TSV"), b"a\tb\n", 600),
    },
    "documents in lines": {
        "an archive of many lines": _packed(table.by_name("documents in lines"), b"a\n", 600, _all),
    },
    "text for word vectors": {
        "an archive of a long line": _packed(table.by_name("text for word vectors"), b"ab", 1200),
    },
    "word vectors": {
        "a trillion words": _content(table.by_name("word vectors"), b"1000000000000 300\na 1 2\n"),
        "a trillion values": _content(table.by_name("word vectors"), b"3 1000000000000\na 1 2\n"),
    },
    "recordings as TSV": {
        "a sound of exabytes": _content(table.by_name("recordings as TSV"), b"\0" * 100),
    },
    "table of pairs by language": {
        "a path of an address": _content(table.by_name("table of pairs by language"), b'{"train": {"de-en": "s3://bucket/x.tsv"}}'),
        "a device": _content(table.by_name("table of pairs by language"), b'{"train": {"de-en": "/dev/zero"}}'),
    },
    "pictures in arrays": {
        "a shape of exabytes": _content(
            table.by_name("pictures in arrays"),
            b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 64, 64, 3), }".ljust(117) + b"\n",
        ),
        "objects": _content(
            table.by_name("pictures in arrays"),
            b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }".ljust(117) + b"\n",
        ),
    },
}  # fmt: skip

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

CASES: dict[str, dict[str, Prepare]] = {
    **{door.name: _reader_cases(door) | OWN.get(door.name, {})
       for door in table.of_kind("reader") if door.write and _reader_cases(door)},
    **FOLDERS,
}  # fmt: skip
ALL = {f"{door}: {name}": case for door, cases in CASES.items() for name, case in cases.items()}
