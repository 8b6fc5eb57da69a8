"""Benchmarks of this library and its peers, interleaved on this machine.

    python -m benchmarks train
    python -m benchmarks decode --peers /path/to/python-with-torch
    python -m benchmarks language-train
    python -m benchmarks language-decode
    python -m benchmarks encoder-pretrain
    python -m benchmarks encoder-finetune
    python -m benchmarks modernbert
    python -m benchmarks vit-train
    python -m benchmarks embed
    python -m benchmarks engine
    python -m benchmarks recurrent
    python -m benchmarks adapters
    python -m benchmarks frozen-base
    python -m benchmarks load

The benchmarks of a GPU are ``python -m benchmarks gpu``.

Writes ``benchmarks/results/NAME.json`` with hardware, versions and commit, and prints a table of
speeds relative to the base case, as medians over rounds. Progress is printed on stderr. Cases that
are not installed, or take longer than --patience, are skipped with a note. A table takes about
--minutes, by default 2, and a command has one to eight tables; slower compilers of peers are
stopped.
"""

import dataclasses
import importlib.metadata
import tempfile
from typing import Any

import tyro

from benchmarks import loading
from benchmarks.harness import table
from benchmarks.recurrent import recurrent
from benchmarks.settings import Settings, Table
from benchmarks.sizes import GPT2
from benchmarks.stored import keep

PEERS = "benchmarks.peers"
OURS_LANGUAGE = "benchmarks.ours_language"
PEERS_LANGUAGE = "benchmarks.peers_language"
OURS_ENCODER = "benchmarks.ours_encoder"
OURS_ENGINE = "benchmarks.ours_engine"
PEERS_ENCODER = "benchmarks.peers_encoder"
OURS_ADAPTERS, PEERS_ADAPTERS = "benchmarks.ours_adapters", "benchmarks.peers_adapters"

OURS_FROZEN_BASE = "benchmarks.ours_frozen_base"
OURS_IMAGES, PEERS_IMAGES = "benchmarks.ours_images", "benchmarks.peers_images"

# 3+3 layers, widths 256 and 1024, 4 heads, 8,000 tokens: the size of a small translator.
SIZE = {"vocab": 8000, "width": 256, "heads": 4, "layers": 3, "hidden": 1024}

# nanoGPT's settings for a CPU, and a larger model.
CHARACTERS = {"vocab": 65, "width": 128, "heads": 4, "layers": 4, "context": 64, "batch": 12}
MIDDLE = {"vocab": 8000, "width": 384, "heads": 6, "layers": 6, "context": 256, "batch": 8}

BERT_SMALL = {"vocab": 30_522, "width": 512, "heads": 8, "layers": 4, "hidden": 2048}
MODERN = {"vocab": 8000, "width": 256, "layers": 4, "hidden": 384}  # modernbert-small
MINILM = {"vocab": 30_522, "width": 384, "heads": 12, "layers": 6, "hidden": 1536}
VIT_TINY = {"width": 192, "heads": 3, "layers": 12, "hidden": 768, "image": 224, "patch": 16}
VIT_SMALL = VIT_TINY | {"width": 384, "heads": 6, "hidden": 1536}
LLAMA = {"vocab": 8000, "width": 512, "heads": 8, "layers": 6, "hidden": 1376}


def train(settings: Settings) -> list[Table]:
    """A training step on 64 pairs of 32 + 32 tokens."""
    arguments = settings.size(**SIZE, batch=64, length=32)
    batch, length = arguments["batch"], arguments["length"]
    title = f"seq2seq training step, {batch} pairs of {length} + {length} tokens"
    bench = settings.bench(title)
    peer: dict[str, Any] = {"python": settings.peers, "module": PEERS}
    base = "torch.nn.Transformer, eager"
    compiled, narrow = {"compiled": True}, {"dtype": "bfloat16"}
    ours: dict[str, dict[str, Any]] = {
        "transformer_jax": {},
        "transformer_jax, logits not held": {"chunk": 512},
        "transformer_jax, bfloat16": narrow,
    }
    theirs: dict[str, dict[str, Any]] = {
        base: {},
        f"{base}, bfloat16": narrow,
        "torch.nn.Transformer, compiled": compiled,
        "torch.nn.Transformer, compiled, bfloat16": compiled | narrow,
    }
    for name, more in ours.items():
        bench.add(name, "train", arguments | more)
    for name, more in theirs.items():
        bench.add(name, "train", arguments | more, **peer)
    rows = bench.measure(settings.turns, 2 * batch * length, base)
    bench.close()
    return [(title, rows, "tokens")]


def decode(settings: Settings) -> list[Table]:
    """32 new tokens for sentences of 32, greedily and with 4 beams, for batches of 1 and 32."""
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for batch, beams in ((1, 1), (1, 4), (32, 1), (32, 4)):
            search = "greedy" if beams == 1 else f"beam {beams}"
            size = settings.size(**SIZE, batch=batch, length=32, new=32)
            arguments = {**size, "folder": folder, "beams": beams}
            title = f"decode, batch {size['batch']}, {search}"
            bench = settings.bench(title)
            peer: dict[str, Any] = {"python": settings.peers, "module": PEERS}
            base, few = "transformers generate", 8 if batch == 1 else 1
            bench.add(base, "generate", arguments, times=max(1, few // 4), **peer)
            bench.add("CTranslate2 float32", "ctranslate2", arguments, times=few, **peer)
            int8 = {**arguments, "precision": "int8"}
            bench.add("CTranslate2 int8", "ctranslate2", int8, times=few, **peer)
            bench.add("transformer_jax", "decode", arguments, times=few)
            rows = bench.measure(settings.turns, size["batch"] * size["new"], base)
            bench.close()
            tables.append((title, rows, "tokens"))
    return tables


def language_train(settings: Settings) -> list[Table]:
    """A training step of nanoGPT's model, small and medium."""
    tables = []
    peer: dict[str, Any] = {"python": settings.peers, "module": PEERS_LANGUAGE}
    tanh, compiled, narrow = {"gelu": "tanh"}, {"compiled": True}, {"dtype": "bfloat16"}
    theirs: dict[str, dict[str, Any]] = {
        "eager": {},
        "compiled": compiled,
        "compiled, tanh GELU": compiled | tanh,
        "eager, bfloat16": narrow,
        "compiled, bfloat16": compiled | narrow,
    }
    ours: dict[str, dict[str, Any]] = {"": {}, ", tanh GELU": tanh, ", bfloat16": narrow}
    for name, full, times in (("nanoGPT on a CPU", CHARACTERS, 8), ("middle size", MIDDLE, 1)):
        size = settings.size(**full)
        what = f"{size['batch']} texts of {size['context']}"
        table_title = f"language model training step, {name}, {what}"
        bench = settings.bench(table_title)
        for title, more in ours.items():
            given = size | more
            bench.add(f"transformer_jax{title}", "train", given, times=times, module=OURS_LANGUAGE)
        for title, more in theirs.items():
            bench.add(f"nanoGPT, {title}", "train", size | more, times=times, **peer)
        rows = bench.measure(settings.turns, size["batch"] * size["context"], "nanoGPT, eager")
        bench.close()
        tables.append((table_title, rows, "tokens"))
    return tables


def language_decode(settings: Settings) -> list[Table]:
    """GPT-2 small: 64 greedy tokens after prompts of 32, and reading longer prompts."""
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for batch, prompt, new in ((1, 32, 64), (8, 32, 64), (1, 128, 1), (1, 512, 1)):
            tables.append(_language_decode(settings, folder, batch, prompt, new))
    return tables


def _language_decode(settings: Settings, folder: str, batch: int, prompt: int, new: int) -> Table:
    size = settings.size(**GPT2, batch=batch, prompt=prompt, new=new)
    batch, prompt, new = size["batch"], size["prompt"], size["new"]
    work = f"batch {batch}, {new} tokens after {prompt}"
    if new == 1:
        work = f"a prompt of {prompt}, its first token"
    title = f"{_named(settings, 'GPT-2 small')}, {work}"
    bench = settings.bench(title)
    ours: dict[str, Any] = {"module": OURS_LANGUAGE}
    peer: dict[str, Any] = {"python": settings.peers, "module": PEERS_LANGUAGE}
    narrow = {**size, "dtype": "bfloat16"}
    case, base = ("generate" if new > 1 else "prefill"), "transformers"
    bench.add(base, case, size, **peer)
    if batch > 1:
        bench.add("transformers, bfloat16", case, narrow, **peer)
    for precision in ("float32", "int8"):
        more = {"folder": folder, "precision": precision}
        bench.add(f"CTranslate2 {precision}", "ctranslate2", {**size, **more}, **peer)
    arguments = {"preset": "gpt2_small", **size}
    facts = bench.add("transformer_jax", "decode", arguments, **ours)
    # Before 0.12, XLA's low-precision products are slower than float32 on CPUs.
    if importlib.metadata.version("jax") >= "0.12":
        narrow = {**arguments, "dtype": "bfloat16"}
        bench.add("transformer_jax, bfloat16", "decode", narrow, **ours)
    floor = "float32 weights read once a token"
    if new > 1 and facts is not None:
        # All except the table of positions, of which one row is read.
        weights = facts["weight_bytes"] // 4 - 1024 * size["width"]
        bench.add(floor, "floor", {"size": weights, "new": new}, **ours)
    rows = bench.measure(settings.turns, batch * (new if new > 1 else prompt), base)
    bench.close()
    least = next((row.ms for row in rows if row.name == floor), None)
    if least is not None:
        rows = [
            dataclasses.replace(row, facts={**row.facts, "of_floor": round(least / row.ms, 3)})
            for row in rows
        ]
    return title, rows, "tokens"


def encoder_pretrain(settings: Settings) -> list[Table]:
    """A training step of masked-language modelling on sentences with lengths of reviews."""
    return [_encoder_train(settings, "pretrain", texts=640, unit="tokens")]


def encoder_finetune(settings: Settings) -> list[Table]:
    """A training step on two classes of sentences with lengths of SST-2."""
    return [_encoder_train(settings, "finetune", texts=1280, unit="texts")]


def modernbert(settings: Settings) -> list[Table]:
    """A masked training step of ModernBERT on texts with lengths of whole reviews."""
    size = settings.size(**MODERN, texts=16)
    given = size | {"kind": "documents", "length": 512, "batch": 4, "deals": 2}
    name = _named(settings, "ModernBERT of 4 layers of 256")
    title = f"masked training step, {name}, {size['texts']} reviews, ms for 1,000 tokens"
    bench = settings.bench(title)
    peer: dict[str, Any] = {"python": settings.peers, "module": PEERS_ENCODER}
    base = "transformers, eager"
    bench.add("transformer_jax", "packed", given, module=OURS_ENCODER)
    bench.add(base, "packed", given, **peer)
    bench.add("transformers, compiled", "packed", {**given, "compiled": True}, **peer)
    sparse = "transformers, eager, sparse prediction"
    bench.add(sparse, "packed", {**given, "sparse": True}, **peer)
    rows = bench.measure(settings.turns, None, base)
    bench.close()
    return [(title, rows, "tokens")]


def _encoder_train(settings: Settings, case: str, texts: int, unit: str) -> Table:
    """All texts once in four rounds; the peers in random batches of 32, ours in buckets."""
    arguments = settings.size(**BERT_SMALL, texts=texts, batch=32, deals=4)
    per = "1,000 tokens without padding" if unit == "tokens" else f"1,000 {unit}"
    what = f"{_named(settings, 'BERT small')}, {arguments['texts']:,} texts, ms for {per}"
    title = f"encoder {case} step, {what}"
    bench = settings.bench(title)
    peer: dict[str, Any] = {"python": settings.peers, "module": PEERS_ENCODER}
    base = "transformers, eager"
    bench.add("transformer_jax", case, arguments, module=OURS_ENCODER)
    bench.add(base, case, arguments, **peer)
    given, name = {**arguments, "compiled": True}, "transformers, compiled"
    bench.add(name, case, given, **peer)
    rows = bench.measure(settings.turns, None, base)
    bench.close()
    return title, rows, unit


def vit_train(settings: Settings) -> list[Table]:
    """A training step of Vision Transformers on pictures of 224 x 224."""
    tables = []
    peer: dict[str, Any] = {"python": settings.peers, "module": PEERS_IMAGES}
    for name, full, batch in (("ViT-Ti/16", VIT_TINY, 16), ("ViT-S/16", VIT_SMALL, 8)):
        size = settings.size(**full, batch=batch)
        title = f"image classifier training step, {_named(settings, name)}"
        title = f"{title}, {size['batch']} pictures"
        bench = settings.bench(title)
        bench.add("transformer_jax", "train", size, module=OURS_IMAGES)
        bench.add("transformers, eager", "train", size, **peer)
        bench.add("transformers, compiled", "train", {**size, "compiled": True}, **peer)
        rows = bench.measure(settings.turns, size["batch"], "transformers, eager")
        bench.close()
        tables.append((title, rows, "pictures"))
    return tables


def embed(settings: Settings) -> list[Table]:
    """The mean vectors of 2,000 sentences with lengths of SST-2."""
    tables = []
    for name, size in (("BERT small", BERT_SMALL), ("MiniLM", MINILM)):
        arguments = settings.size(**size, texts=2000)
        table_title = f"mean vectors of {arguments['texts']:,} sentences, {_named(settings, name)}"
        bench = settings.bench(table_title)
        given = {**arguments, "batch": 32}
        peer: dict[str, Any] = {"python": settings.peers, "module": PEERS_ENCODER}
        base = "transformers, 32 at a time"
        bench.add(base, "embed", given, **peer)
        bench.add("transformers, sorted by length", "embed", {**given, "ordered": True}, **peer)
        for title, tokens in (("transformer_jax", 4096), ("transformer_jax, --tokens 1024", 1024)):
            budget = {**arguments, "tokens": tokens}
            bench.add(title, "embed", budget, module=OURS_ENCODER)
        rows = bench.measure(settings.turns, arguments["texts"], base)
        bench.close()
        tables.append((table_title, rows, "texts"))
    return tables


def engine(settings: Settings) -> list[Table]:
    """Texts by JAX and by CTranslate2, from lines to lines: Transformer-base and GPT-2 small."""
    tables = []
    base = {"vocab": 8000, "width": 512, "heads": 8, "layers": 6, "hidden": 2048}
    cases: list[tuple[str, str, dict[str, Any]]] = []
    for batch, beams in ((1, 4), (16, 1), (16, 4)):
        size = settings.size(**base, batch=batch, length=24, new=24)
        title = f"translate, batch {size['batch']}, beams {beams}"
        cases.append((title, "translate", {**size, "beams": beams}))
    for batch in (1, 8):
        size = settings.size(**GPT2, batch=batch, prompt=16, new=32)
        cases.append((f"generate, batch {size['batch']}, greedy", "generate", size))
    with tempfile.TemporaryDirectory() as folder:
        for title, case, arguments in cases:
            bench = settings.bench(title)
            for name in ("jax", "float32", "int8"):
                how = {**arguments, "folder": folder, "engine": name}
                shown = name if name == "jax" else f"CTranslate2 {name}"
                bench.add(shown, case, how, module=OURS_ENGINE)
            rows = bench.measure(settings.turns, arguments["batch"] * arguments["new"], "jax")
            bench.close()
            tables.append((title, rows, "tokens"))
    return tables


def adapters(settings: Settings) -> list[Table]:
    """Training steps of a Llama-style decoder, full and with adapters of rank 8, by process."""
    title = "training step, adapters of rank 8"
    bench, size = settings.bench(title), settings.size(**LLAMA, context=128, batch=8)
    peer: dict[str, Any] = {"python": settings.peers, "module": PEERS_ADAPTERS}
    ours: dict[str, Any] = {"module": OURS_ADAPTERS}
    for name, how, where in (
        ("transformer_jax", {"rank": 8}, ours),
        ("transformer_jax, whole model", {"rank": 0}, ours),
        ("PEFT, eager", {"rank": 8}, peer),
        ("torch, eager, whole model", {"rank": 0}, peer),
        ("PEFT, compiled", {"rank": 8, "compiled": True}, peer),
    ):
        bench.add(name, "train", {**size, **how}, **where)
    rows = bench.measure(settings.turns, size["batch"] * size["context"], "PEFT, eager")
    bench.close()
    return [(title, rows, "tokens")]


def frozen_base(settings: Settings) -> list[Table]:
    """Training steps of the same adapters on frozen bases of several dtypes, by process."""
    title = "training step, adapters of rank 8 on a frozen base"
    bench, size = settings.bench(title), settings.size(**LLAMA, context=128, batch=8)
    for base in ("float32", "bfloat16", "int8"):
        arguments = {**size, "rank": 8, "base": base}
        bench.add(base, "train", arguments, module=OURS_FROZEN_BASE)
    rows = bench.measure(settings.turns, size["batch"] * size["context"], "float32")
    bench.close()
    return [(title, rows, "tokens")]


def _named(settings: Settings, name: str) -> str:
    return f"tiny in place of {name}" if settings.tiny else name


RUNS = {
    "train": train,
    "decode": decode,
    "language-train": language_train,
    "language-decode": language_decode,
    "encoder-pretrain": encoder_pretrain,
    "encoder-finetune": encoder_finetune,
    "modernbert": modernbert,
    "vit-train": vit_train,
    "embed": embed,
    "engine": engine,
    "recurrent": recurrent,
    "adapters": adapters,
    "frozen-base": frozen_base,
}


def main() -> None:
    """Runs one benchmark and stores its result."""
    settings = tyro.cli(Settings, prog="python -m benchmarks", description=__doc__)
    found: dict[str, Any] = {}
    if settings.what == "load":
        found = loading.measure(settings)
        print(loading.table(found))
    else:
        tables = RUNS[settings.what](settings)
        found = {
            "threads": settings.threads,
            "tables": [
                {"title": title, "rows": [dataclasses.asdict(row) for row in rows]}
                for title, rows, _ in tables
            ],
        }
        for title, rows, unit in tables:
            print(table(title, rows, unit), end="\n\n")
    print(f"written to {keep(settings, found)}")
