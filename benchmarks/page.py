"""Writes the tables of docs/benchmarks.md from the files of results.

    python -m benchmarks page

A table stands below the line ``<!-- NAME -->``. Ratios are medians; in brackets is the spread: the
slowest and the fastest process where several ran a case, otherwise quartiles over rounds.
"""

import argparse
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness import TREE

__all__ = ["TABLES", "filled", "main", "ratio"]

_PAGE = TREE / "docs" / "benchmarks.md"
_RESULTS = TREE / "benchmarks" / "results"

Row = dict[str, Any]


@functools.cache
def _stored(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_RESULTS / f"{file}.json").read_text())
    return found


def ratio(row: Row, base: Row) -> str:
    """Returns a speed relative to the base, with its spread.

    Example:
        >>> base = {"name": "eager", "ms": 3.0, "ratio": 1.0}
        >>> ratio({"name": "a", "ratio": 1.5, "quartiles": [1.2, 1.6]}, base)
        '1.50 (1.20 to 1.60)'
        >>> ratio({"name": "a", "ratio": 1.5, "process_ms": [2.0, 1.5]}, base)
        '1.50 (1.50 to 2.00, 2 processes)'
        >>> ratio(base, base)
        '1'
    """
    if row["name"] == base["name"]:
        return "1"
    processes = row.get("process_ms", [])
    if len(processes) > 1:
        low, high = base["ms"] / max(processes), base["ms"] / min(processes)
        return f"{row['ratio']:.2f} ({low:.2f} to {high:.2f}, {len(processes)} processes)"
    low, high = row["quartiles"]
    return f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"


def _speeds(
    columns: Mapping[str, Sequence[str]],
    rows: Sequence[tuple[str, str, str]],
    value: Callable[[Row, Row], str] = ratio,
) -> Iterator[list[str]]:
    """Yields the lines of a table of speeds.

    Args:
        columns: Beginnings of the names of cases, by column; the first that is there counts.
        rows: Label, file, and the beginning of the title of its table.
        value: Function from a row of results and that of the base to a cell.
    """
    yield ["", *columns]
    for label, file, title in rows:
        table = next(one for one in _stored(file)["tables"] if one["title"].startswith(title))
        there = {row["name"]: row for row in table["rows"]}
        base = next(row for row in table["rows"] if row["ratio"] == 1)
        cells = []
        for names in columns.values():
            found = next((there[name] for name in names if name in there), None)
            cells.append("" if found is None else value(found, base))
        yield [label, *cells]


_OURS = ["transformer_jax"]
_TORCH = "torch.nn.Transformer"


def _translation() -> Iterator[list[str]]:
    versions = (("3.11", "jax 0.10"), ("3.12", "jax 0.12"))
    works = {
        "training step": ("train_cpu_py", "seq2seq"),
        "greedy, batch 1": ("decode_cpu_py", "decode, batch 1, greedy"),
        "beam 4, batch 1": ("decode_cpu_py", "decode, batch 1, beam 4"),
        "greedy, batch 32": ("decode_cpu_py", "decode, batch 32, greedy"),
        "beam 4, batch 32": ("decode_cpu_py", "decode, batch 32, beam 4"),
    }
    yield from _speeds(
        {
            "peer": [f"{_TORCH}, eager", "transformers generate"],
            "peer, compiled": [f"{_TORCH}, compiled"],
            "peer, bfloat16": [f"{_TORCH}, eager, bfloat16"],
            "peer, compiled, bfloat16": [f"{_TORCH}, compiled, bfloat16"],
            "CTranslate2 float32": ["CTranslate2 float32"],
            "CTranslate2 int8": ["CTranslate2 int8"],
            "this library": _OURS,
            "this library, bfloat16": ["transformer_jax, bfloat16"],
        },
        [
            (f"{work}, {jax}", f"{file}{python}", title)
            for work, (file, title) in works.items()
            for python, jax in versions
        ],
    )


def _lines() -> Iterator[list[str]]:
    yield ["", "greedy", "4 beams"]
    found = _stored("translate_lines_cpu")["searches"]
    for label, name in (
        ("this library", "ours"),
        ("this library, first start, which compiles", "ours_first_start"),
        ("transformers", "transformers"),
        ("CTranslate2", "ctranslate2"),
    ):
        yield [label, *(f"{found[beams][name]['cpu_s']:.1f} s" for beams in ("beams 1", "beams 4"))]


def _starts(file: str) -> Iterator[list[str]]:
    rows = _stored(file)["rows"]
    colds = ["first start, before", "first start, now"]
    yield [
        "processor time",
        "before",
        "now",
        "ratio",
        *colds * any("cold" in x for x in rows.values()),
    ]
    for name, row in rows.items():
        warm, cold = row["warm"], row.get("cold", {})
        low, ratio, high = warm["ratio"]
        yield [
            name,
            *(f"{warm[one][1]:.2f} s" for one in ("before", "now")),
            f"{ratio:.2f} ({low:.2f} to {high:.2f})",
            *(f"{seconds:.1f} s" for seconds in cold.values()),
        ]


def _finished_rows() -> Iterator[list[str]]:
    yield [
        *("steps of rows that write a token", "search", "all rows computed"),
        *("ended rows left out", "ended rows replaced", "steps of loops", "if replaced"),
    ]
    for name, case in _stored("finished_rows")["cases"].items():
        for search, key in (("greedy", "1 beams"), ("4 beams", "4 beams")):
            row = case[key]
            yield [
                name,
                search,
                *(f"{row[f'useful_{way}']:.0%}" for way in ("now", "left_out", "replaced")),
                *(f"{row[f'steps_{way}']:,}" for way in ("now", "replaced")),
            ]


def _recurrent() -> Iterator[list[str]]:
    names = {
        "luong": "Luong (LSTM, general, input feeding)",
        "bahdanau": "Bahdanau (GRU, additive)",
    }
    works = [
        (f"{label}, {work}".replace("1 sentences", "1 sentence"), "recurrent_cpu_py3.11",
         f"{name}, {work}")
        for name, label in names.items()
        for work in (
            "training step, 64 sentences", "greedy, 32 sentences", "greedy, 1 sentences",
            "greedy, a file of 1,000 sentences",
        )
    ]  # fmt: skip
    works += [
        (title, "recurrent_cpu_py3.11", title)
        for title in (
            "gated convolution of 3 places, 64 texts of 24",
            "gated convolution of 4 places, 16 texts of 256",
        )
    ]
    yield from _speeds(
        {
            "torch, eager": ["torch, eager"],
            "torch, compiled": ["torch, compiled"],
            "torch, batches of 128": ["torch, eager, batches of 128"],
            "this library": _OURS,
        },
        works,
    )


def _language() -> Iterator[list[str]]:
    train, decode = "language_train_cpu_py3.12", "language_decode_cpu_py3.12"
    step = "language model training step"
    yield from _speeds(
        {
            "peer": ["nanoGPT, eager", "transformers"],
            "peer, compiled": ["nanoGPT, compiled"],
            "peer, bfloat16": ["nanoGPT, eager, bfloat16", "transformers, bfloat16"],
            "peer, compiled, bfloat16": ["nanoGPT, compiled, bfloat16"],
            "CTranslate2 float32": ["CTranslate2 float32"],
            "CTranslate2 int8": ["CTranslate2 int8"],
            "this library": _OURS,
            "this library, bfloat16": ["transformer_jax, bfloat16"],
            "weights read once a token": ["float32 weights read once a token"],
        },
        [
            ("training step, nanoGPT's size for a CPU", train, f"{step}, nano"),
            ("training step, 6 layers of 384, context 256", train, f"{step}, middle"),
            ("greedy, batch 1", decode, "GPT-2 small, batch 1,"),
            ("greedy, batch 8", decode, "GPT-2 small, batch 8,"),
            ("first token after a prompt of 128", decode, "GPT-2 small, a prompt of 128"),
            ("first token after a prompt of 512", decode, "GPT-2 small, a prompt of 512"),
        ],
    )  # fmt: skip


def _gpu() -> Iterator[list[str]]:
    columns = {
        "peer, eager": ["nanoGPT, eager, bfloat16", f"{_TORCH}, eager, bfloat16"],
        "peer, compiled": ["nanoGPT, compiled, bfloat16", f"{_TORCH}, compiled, bfloat16"],
        "this library": ["transformer_jax, bfloat16"],
        "this library, parts of 4,096": ["transformer_jax, bfloat16, logits not held"],
    }
    gpt2 = ("GPT-2 small, peer nanoGPT", "language_train_h200_py3.12", "language model")
    base = (f"Transformer-base, peer `{_TORCH}`", "train_h200_py3.12", "seq2seq")
    yield from _speeds(columns, [gpt2, base])
    rate = lambda row, _: f"{row['units_per_s']:,}"
    _, *tokens = _speeds(columns, [gpt2, base], rate)
    yield from ([f"{label.partition(',')[0]}, tokens per second", *rest] for label, *rest in tokens)


def _gpu_command() -> Iterator[list[str]]:
    """Yields all rows of the sessions of ``python -m benchmarks gpu``."""
    yield ["", "case", "ms", "per second", "relative to the peer", "MFU"]
    stored = sorted(path.stem for path in _RESULTS.glob("gpu_*.json"))
    files = [name for name in stored if not name.startswith("gpu_tiny_")]
    if not files:
        yield ["not measured yet", *[""] * 5]
    for file in files:
        for table in _stored(file)["tables"]:
            base = next(row for row in table["rows"] if row["name"] == table["base"])
            for row in table["rows"]:
                mfu = row["facts"].get("mfu")
                yield [
                    f"{file.split('_')[1].upper()}: {table['title']}",
                    row["name"],
                    f"{row['ms']:.3g}",
                    f"{row['units_per_s']:,.0f}",
                    ratio(row, base),
                    "" if mfu is None else f"{mfu:.1%}",
                ]


def _adapters() -> Iterator[list[str]]:
    yield ["", "speed", "memory", "imports"]
    (table,) = _stored("adapters_cpu_py3.11")["tables"]
    names = {
        "transformer_jax": "this library, adapters",
        "transformer_jax, whole model": "this library, all parameters",
        "torch, eager, whole model": "torch, eager, all parameters",
    }
    for row in table["rows"]:
        memory = (f"{row['facts'][name]:,} MB" for name in ("peak_mb", "imported_mb"))
        yield [names.get(row["name"], row["name"]), ratio(row, table["rows"][0]), *memory]


def _encoders() -> Iterator[list[str]]:
    embed = "embed_cpu_py3.12"
    yield from _speeds(
        {
            "transformers": ["transformers, eager", "transformers, 32 at a time"],
            "transformers, compiled": ["transformers, compiled"],
            "transformers, logits of masked tokens alone": [
                "transformers, eager, sparse prediction"
            ],
            "transformers, sorted by length first": ["transformers, sorted by length"],
            "this library": _OURS,
            "this library, `--max-tokens 1024`": ["transformer_jax, --tokens 1024"],
        },
        [
            ("MLM pre-training, non-padding tokens/s", "encoder_pretrain_cpu_py3.12", "encoder"),
            ("the same of ModernBERT", "modernbert_cpu_py3.11", "masked training step"),
            ("fine-tuning, texts/s", "encoder_finetune_cpu_py3.12", "encoder"),
            ("mean-pooled embeddings, sentences/s", embed, "mean vectors of 2,000 sentences, BERT"),
            ("the same with 6 layers of 384", embed, "mean vectors of 2,000 sentences, MiniLM"),
        ],
    )


def _images() -> Iterator[list[str]]:
    names = {"transformers, eager": ["transformers, eager"]}
    names |= {"transformers, compiled": ["transformers, compiled"], "this library": _OURS}
    rows = [
        (label, "vit_train_cpu_py3.11", f"image classifier training step, {label[:9]}")
        for label in (
            "ViT-Ti/16, 5.7 M parameters, 16 pictures", "ViT-S/16, 22 M parameters, 8 pictures"
        )
    ]  # fmt: skip
    yield from _speeds(names, rows)


def _words() -> Iterator[list[str]]:
    yield ["", "gensim, words/s", "this library, words/s", "ratio"]
    for threads, file in (("one thread", "word_vectors_cpu"),
                          ("two threads", "word_vectors_cpu_2_threads")):  # fmt: skip
        for name, key in (("skip-gram", "skip-gram"), ("CBOW", "cbow")):
            theirs, ours = _stored(file)[key]["rows"]
            rates = (f"{row['units_per_s']:,.0f}" for row in (theirs, ours))
            yield [f"{name}, {threads}", *rates, ratio(ours, theirs)]


def _word_quality() -> Iterator[list[str]]:
    sets = {"WS-353": "EN-WS-353-ALL", "MEN": "EN-MEN-TR-3k", "SimLex-999": "EN-SIMLEX-999",
            "RW": "EN-RW-STANFORD"}  # fmt: skip
    yield ["", "analogies", *sets]
    for name, key in (("skip-gram", "skip-gram"), ("CBOW", "cbow")):
        quality = _stored("word_vectors_cpu")[key]["quality"]
        for label, case in (("gensim", "gensim"), ("this library", "transformer_jax")):
            means = {one: found["mean"] for one, found in quality[case].items()}
            cells = [f"{means[one]:.3f}" for one in sets.values()]
            yield [f"{label}, {name}", f"{100 * means['analogies']:.1f} %", *cells]


def _both_ms(case: dict[str, Any]) -> dict[str, float]:
    """Returns the milliseconds of both passes, by kernel."""
    timed = {way["name"]: way.get("forward+backward", {}) for way in case["ways"]}
    return {name: found["ms"] for name, found in timed.items() if "ms" in found}


def _kernels() -> Iterator[list[str]]:
    yield ["case", "this package", "jax.nn", "torch"]
    cases = {case["case"]: case for case in _stored("kernels_cpu")["cases"]}
    for label, name in (
        ("causal", "causal"),
        ("causal, padded", "causal, key lengths"),
        ("encoder, padded", "encoder, key lengths"),
        ("packed, causal", "packed, causal"),
        ("packed, causal, 2 rows of 4,096", "4096 tokens, packed, causal"),
        ("8 heads share 2 keys", "8 heads share 2 keys"),
        ("window of 256", "window 256, causal"),
        ("64 rows of 64, padded", "64 rows of 64, lengths"),
        ("ALiBi", "ALiBi"),
        ("one query, 1,024 keys", "one query, 1024 keys"),
    ):
        ms = _both_ms(cases[name])
        ours = ms[cases[name]["auto"]]
        yield [label, f"{ours:,.0f} ms", *(f"{ms[p] / ours:.2g}" for p in ("jax.nn, xla", "torch"))]


def _gpu_kernels() -> Iterator[list[str]]:
    yield ["kernel", "forward pass, ms", "both passes, ms", "temporary MB, both passes"]
    (case,) = _stored("kernels_h100")["cases"][:1]
    for way in case["ways"]:
        passes = [way.get(name, {}) for name in ("forward", "forward+backward")]
        if "ms" in passes[1]:
            size = passes[1].get("temporary_bytes")
            name = way["name"] if way.get("peer") else f"`{way['name']}`"
            name += ", which `auto` chooses" * (way["name"] == case["auto"])
            yield [
                name,
                *(f"{one['ms']:.3f}" for one in passes),
                "" if size is None else f"{size / 1e6:.3g}",
            ]


_AXES = ("data", "fsdp", "tensor", "context")
_EXCHANGES = {
    "all-gather": "gathered", "collective-permute": "permuted", "all-to-all": "all to all",
    "reduce-scatter": "reduce-scattered", "all-reduce": "all-reduced",
}  # fmt: skip


def _programs() -> Iterator[list[str]]:
    yield ["run", "devices", "mesh", "batch", "memory per device",
           "MB exchanged per device and step", "attention"]  # fmt: skip
    cases = _stored("programs")["cases"]
    for name in (
        "base, one GPU", "base, data", "base, fsdp", "gpt2-small, fsdp, as named",
        "gpt2-small, fsdp, unpacked", "bert-base, fsdp, as named", "base, one TPU",
        "base, data, TPU", "base, fsdp, TPU",
    ):  # fmt: skip
        case = cases[name]
        found = case["training"]
        mesh = (f"{axis} {n}" for axis, n in zip(_AXES, case["mesh"], strict=False) if n > 1)
        moved = {_EXCHANGES[kind]: round(mb) for kind, mb in found["collectives_MB"].items()}
        kernels = [f"{kernel} x{n}" for kernel, n in found["kernels"].items() if " " not in kernel]
        yield [
            case["run"] + ", unpacked" * name.endswith("unpacked"),
            case["target"],
            ", ".join(mesh),
            " x ".join(map(str, found["shape"])),
            f"{found['memory_GiB']:.1f} GiB",
            ", ".join(f"{mb} {kind}" for kind, mb in moved.items() if mb) or "0",
            ", ".join(kernels).replace("pallas", "splash") or "attention in blocks",
        ]


def _decoding_loops() -> Iterator[list[str]]:
    yield [
        *("model", "search", "kernels a token", "MB a token", "with whole sums", "least MB"),
        "before",
    ]
    for searched, case in _searches("h200:1"):
        now, before = case["decoding"], case["before"]
        yield [
            *searched,
            f"{now['launches']}",
            f"{now['MB']:.0f}",
            f"{now['launches_unsplit']} kernels, {now['MB_unsplit']:.0f} MB"
            if "MB_unsplit" in now
            else "",
            f"{now['least_MB']:.0f}",
            f"{before['launches']} kernels, {before['MB']:.0f} MB",
        ]


def _tpu_decoding() -> Iterator[list[str]]:
    yield ["model", "search", "operations a token", "MB a token", "least MB",
           "thousand cycles", "of them products", "before"]  # fmt: skip
    for searched, case in _searches("v5e:1x1"):
        now, before = case["decoding"], case.get("before")
        yield [
            *searched,
            f"{now['launches']}",
            *(f"{now[size]:.0f}" for size in ("MB", "least_MB")),
            *(
                f"{now.get(f'estimated_Kcycles_{which}', 0):,.1f}"
                for which in ("in_all", "of_products")
            ),
            f"{before['estimated_Kcycles_in_all']:,.1f} thousand cycles, {before['MB']:.0f} MB"
            if before
            else "",
        ]


def _searches(target: str) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yields the stored decoding loops for a target, and what each searches with which model."""
    for case in _stored("programs")["cases"].values():
        if "decoding" in case and case["target"] == target:
            model = {"base": "Transformer-base"}.get(case["model"], "GPT-2 small")
            search = "greedy" if case["beams"] == 1 else f"{case['beams']} beams"
            yield [model, f"{search}, batch {case['batch']}"], case


def _training_steps() -> Iterator[list[str]]:
    yield ["step", "kernels", "GB", "GB of temporaries", "before"]
    for name, case in _stored("programs")["cases"].items():
        if "step" in case:
            now, before = case["step"], case.get("before")
            yield [
                name,
                f"{now['launches']:,}",
                f"{now['GB']:.1f}",
                f"{now['temporaries_GB']:.1f}",
                f"{before['launches']:,} kernels, {before['GB']:.1f} GB" if before else "",
            ]


def _logits_curve() -> Iterator[list[str]]:
    yield [
        "step",
        *(f"{part}, {dtype}" for part in ("training", "validation") for dtype in _DTYPES),
    ]
    stored = _stored("logits_curve")
    columns = [stored[dtype][loss] for loss in ("loss", "valid_loss") for dtype in _DTYPES]
    for row in zip(*columns, strict=True):
        yield [f"{row[0][0]}", *(f"{loss:.4f}" for _, loss in row)]


_DTYPES = ("float32", "bfloat16")


def _tpu_schedules() -> Iterator[list[str]]:
    yield ["run", "devices", "mesh", "batch", "temporaries", "cycles, in millions",
           "of them copies", "MB awaited at once", "before"]  # fmt: skip

    def shown(found: dict[str, Any]) -> tuple[str, str, str]:
        cycles = found["estimated_cycles_M"]
        return (
            f"{found['temporaries_GiB']:.2f} GiB",
            f"{cycles['all']:.1f}",
            f"{cycles['copies']:.1f}",
        )

    cases = _stored("programs")["cases"]
    for name in (
        "gpt2-small, one TPU, 2 layers",
        "gpt2-small, fsdp, TPU, 2 layers",
        "gpt2-small, data, TPU, 2 layers",
    ):
        case = cases[name]
        mesh = (f"{axis} {n}" for axis, n in zip(_AXES, case["mesh"], strict=False) if n > 1)
        temporaries, cycles, copies = shown(case["before"]) if "before" in case else ("", "", "")
        yield [
            case["run"],
            case["target"],
            ", ".join(mesh),
            " x ".join(map(str, case["training"]["shape"])),
            *shown(case["training"]),
            f"{case['training']['awaited_at_once_MB']:.0f}",
            cycles and f"{cycles} million cycles, {copies} of copies, {temporaries}",
        ]


def _compared() -> Iterator[list[str]]:
    yield ["processor time", "before", "now", "speed"]
    for table in _stored("compare_0e9aae93_cpu_py3.11")["tables"]:
        times = []
        for row in table["rows"]:
            of, only = row["process_ms"], len(row["process_ms"]) == 1
            spread = "" if only else f" ({min(of):,.1f} to {max(of):,.1f}, {len(of)} processes)"
            times.append(f"{row['ms']:,.1f} ms{spread}")
        low, high = table["rows"][1]["quartiles"]
        yield [
            table["title"],
            *times,
            f"{table['rows'][1]['ratio']:.2f} ({low:.2f} to {high:.2f})",
        ]


TABLES: dict[str, Callable[[], Iterator[list[str]]]] = {
    "translation": _translation,
    "lines": _lines,
    "starts": functools.partial(_starts, "starts_cpu"),
    "first steps": functools.partial(_starts, "first_step_pairs"),
    "finished rows": _finished_rows,
    "recurrent": _recurrent,
    "language models": _language,
    "one GPU": _gpu_command,
    "training on a GPU": _gpu,
    "adapters": _adapters,
    "encoders": _encoders,
    "images": _images,
    "word vectors": _words,
    "quality of word vectors": _word_quality,
    "kernels": _kernels,
    "kernels of a GPU": _gpu_kernels,
    "compiled programs": _programs,
    "schedules of TPUs": _tpu_schedules,
    "decoding loops": _decoding_loops,
    "decoding loops of TPUs": _tpu_decoding,
    "training steps": _training_steps,
    "logits in bfloat16": _logits_curve,
    "before and now": _compared,
}


def filled(text: str) -> str:
    """Returns a page with the tables that its comments name, written anew."""

    def written(match: re.Match[str]) -> str:
        head, *rows = ("| " + " | ".join(cells) + " |" for cells in TABLES[match[1]]())
        line = "|" + "---|" * (head.count("|") - 1)
        return "\n".join([f"<!-- {match[1]} -->", head, line, *rows])

    return re.sub(r"<!-- ([\w ]+) -->(?:\n\|.*)*", written, text)


def main(arguments: Sequence[str]) -> None:
    """Runs ``python -m benchmarks page``."""
    argparse.ArgumentParser("python -m benchmarks page", description=__doc__).parse_args(arguments)
    _PAGE.write_text(filled(_PAGE.read_text()))
    print(f"wrote {_PAGE}")
