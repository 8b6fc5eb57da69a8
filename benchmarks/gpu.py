"""Training and decoding on one GPU, compared with peers, and the kernels of each.

    python -m benchmarks gpu
    python -m benchmarks gpu --only step decode --minutes 5 --output FOLDER
    python -m benchmarks gpu --tiny      # a tiny model, on a CPU too

Sections, in this order:

    device           bandwidth, and products of the shapes of GPT-2
    step             training step of GPT-2 small, with its longest kernels, and of nanoGPT
    decode           GPT-2 small, batches of 1 and 32, greedy and 4 beams; transformers, CTranslate2
    base             training step of Transformer-base, and of torch.nn.Transformer
    configurations   the step of GPT-2 with its logits held, in parts or in bfloat16, and
                     with the tanh GELU
    translate        Transformer-base, batches of 1 and 32, greedy and 4 beams, and the same peers
    loops            decoding with the loop as one CUDA graph, and with products not divided
    options          the step of GPT-2 with options of the compiler

All in bfloat16, wall time, cases in turns. Two processes run the cases of this library, since the
compiler may choose different kernels in each. Peers that --peers has not are left out with a
reason. No section begins after --minutes.

Every sample is a line of gpu_DEVICE_pyVERSION.jsonl in --output as soon as it is measured, and each
table is in the .json of that name; files next to them have the kernels that autotuning chose. Needs
jax, flax and optax only.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_session import Measured, Session
from benchmarks.harness import tell
from benchmarks.sizes import BASE, GPT2

__all__ = ["SECTIONS", "main"]

_OURS, _AGAIN = "ours", "ours again"
_GRAPHS, _WHOLE = "ours, loops as graphs", "ours, whole sums"
_NARROW = {"dtype": "bfloat16"}
_GPT2: dict[str, Any] = {"preset": "gpt2_small"}
_TRANSLATOR: dict[str, Any] = {"folder": None}
_KERNELS = 30  # of a profile
_SEARCHES = ((1, 1), (32, 1), (1, 4), (32, 4))  # batch, beams

# Options of XLA that may choose other kernels for the products or the fusions of a step.
_OPTIONS = (
    {"xla_gpu_enable_cublaslt": True},
    {"xla_gpu_enable_triton_gemm": False},
    {"xla_gpu_exhaustive_tiling_search": True},
    {"xla_gpu_cudnn_gemm_fusion_level": 2},
    {"xla_gpu_experimental_enable_fusion_block_level_rewriter": True},
    {"xla_gpu_experimental_all_fusions_with_triton": True},
)


def device(session: Session) -> None:
    """Measures bandwidth, and products of the shapes of GPT-2."""
    sizes = {"rows": 16_384, "width": 768, "vocab": 50_304, "side": 8192, "size": 2**30}
    if session.tiny:
        sizes = {"rows": 64, "width": 32, "vocab": 128, "side": 64, "size": 2**12}
    with session.table("device", "runs", 1, "device") as one:
        if one.add("device", _OURS, "speeds", sizes, 1):
            found = one.bench.cases[0].facts
            session.record(device=found)
            session.keep("device", found)
            tell(f"  {found}")


def step(session: Session) -> None:
    """Measures the training step of GPT-2 small."""
    size = session.size(**GPT2 | {"vocab": 50_304}, context=1024, batch=16)
    title = f"GPT-2 small, training step, {size['batch']} texts of {size['context']}"
    units = size["batch"] * size["context"]
    with session.table(title, "tokens", units, "nanoGPT, eager") as one:
        _train(one, "language-train", size | _NARROW, "nanoGPT")


def base(session: Session) -> None:
    """Measures the training step of Transformer-base."""
    size = session.size(**BASE, batch=384, length=64)
    batch, length = size["batch"], size["length"]
    title = f"Transformer-base, training step, {batch} pairs of {length} + {length} tokens"
    peer = "torch.nn.Transformer"
    with session.table(title, "tokens", 2 * batch * length, f"{peer}, eager") as one:
        _train(one, "train", size | _NARROW, peer)


def _train(one: Measured, case: str, size: dict[str, Any], peer: str) -> None:
    """Measures a training step in two processes, and a peer's, with their kernels."""
    tiny, compiled = one.session.tiny, f"{peer}, compiled"
    times = 2 if tiny else 10
    if one.add("transformer_jax", _OURS, case, size, times):
        one.measure()
        one.profile("transformer_jax", times, _KERNELS)
    # In a test, torch's compiler would take longer than all else.
    if one.add(compiled, "torch", case, size | {"compiled": not tiny}, times):
        one.measure()
        one.profile(compiled, times, _KERNELS)
    one.add("transformer_jax", _AGAIN, case, size, times)
    one.add(f"{peer}, eager", "torch", case, size, times)
    one.measure()


def decode(session: Session) -> None:
    """Measures GPT-2 small, after prompts."""
    for batch, beams in _SEARCHES:
        title, size = _continuation(session, batch, beams)
        folder = f"{session.folder}/gpt2"
        with session.table(title, "tokens", size["batch"] * size["new"], "transformers") as one:
            _decode(one, "language-", size, _GPT2, {"folder": folder})


def translate(session: Session) -> None:
    """Measures Transformer-base on sentences."""
    for batch, beams in _SEARCHES:
        title, size = _translation(session, batch, beams)
        folder = {"folder": session.folder}
        with session.table(title, "tokens", size["batch"] * size["new"], "transformers") as one:
            _decode(one, "", size, _TRANSLATOR, folder, folder)


def _continuation(session: Session, batch: int, beams: int) -> tuple[str, dict[str, Any]]:
    """Returns a title and the sizes of continuations."""
    size = session.size(**GPT2, batch=batch, prompt=32, new=128) | {"beams": beams}
    work = f"{size['new']} tokens after {size['prompt']}"
    return f"GPT-2 small, {work}, batch {size['batch']}, {_search(beams)}", size


def _translation(session: Session, batch: int, beams: int) -> tuple[str, dict[str, Any]]:
    """Returns a title and the sizes of translations."""
    size = session.size(**BASE, batch=batch, length=32, new=32) | {"beams": beams}
    work = f"{size['new']} tokens for sentences of {size['length']}"
    return f"Transformer-base, {work}, batch {size['batch']}, {_search(beams)}", size


def _decode(
    one: Measured,
    prefix: str,
    size: dict[str, Any],
    ours: dict[str, Any],
    files: dict[str, Any],
    weights: dict[str, Any] | None = None,
) -> None:
    """Measures one way to decode, its kernels, and peers.

    Args:
        one: The table.
        prefix: The beginning of the cases' names.
        size: Sizes of the model and of its work.
        ours: Further arguments of our case.
        files: Further arguments of CTranslate2.
        weights: Further arguments of transformers.
    """
    if one.add("transformer_jax", _OURS, f"{prefix}decode", size | ours | _NARROW, 2):
        one.measure()
        steps = 2 * (size["new"] + (size["beams"] > 1))
        one.profile("transformer_jax", steps, _KERNELS)
    theirs = size | (weights or {}) | _NARROW
    one.add("transformer_jax", _AGAIN, f"{prefix}decode", size | ours | _NARROW, 2)
    one.add("transformers", "transformers", f"{prefix}decode", theirs, 1)
    precise = {"precision": "float32" if one.session.tiny else "bfloat16"}
    one.add("CTranslate2", "ctranslate2", f"{prefix}ctranslate2", size | files | precise, 2)
    one.measure()
    # A static cache makes transformers compile, which takes a minute.
    static = theirs | {"cache": "static"}
    name = "transformers, static cache, compiled"
    if not one.session.tiny and one.add(name, "transformers", f"{prefix}decode", static, 1):
        one.measure()


def _search(beams: int) -> str:
    return "greedy" if beams == 1 else f"{beams} beams"


def configurations(session: Session) -> None:
    """Measures ways to compute the loss of GPT-2, all in one process."""
    size = session.size(**GPT2 | {"vocab": 50_304}, context=1024, batch=16) | _NARROW
    part = 16 if session.tiny else 4096
    ways: dict[str, dict[str, Any]] = {
        "transformer_jax": {},
        "logits held": {"chunk": 0},
        f"logits in parts of {part:,}": {"chunk": part},
        "logits in bfloat16": {"compute": {"logits_dtype": "bfloat16"}},
        "tanh GELU": {"gelu": "tanh"},
    }
    with _steps(session, "configurations", size) as one:
        for name, more in ways.items():
            if one.add(name, _OURS, "language-train", size | more, 2 if session.tiny else 10):
                one.measure()


def loops(session: Session) -> None:
    """Measures decoding as it is, with the loop as one CUDA graph, and with whole sums."""
    short, long = (_continuation(session, batch, 1) for batch in (1, 32))
    works = [
        ("language-decode", _GPT2, *short, {"loop as one graph": _GRAPHS}),
        ("language-decode", _GPT2, *long, {"loop as one graph": _GRAPHS, "whole sums": _WHOLE}),
        ("decode", _TRANSLATOR, *_translation(session, 32, 4), {"whole sums": _WHOLE}),
    ]
    for case, ours, title, size, ways in works:
        title = f"{title}, loops"
        with session.table(title, "tokens", size["batch"] * size["new"], "transformer_jax") as one:
            for name, kind in ({"transformer_jax": _OURS} | ways).items():
                one.add(name, kind, case, size | ours | _NARROW, 2)
            one.measure()


def options(session: Session) -> None:
    """Measures options of the compiler, one by one, in one process."""
    size = session.size(**GPT2 | {"vocab": 50_304}, context=1024, batch=16) | _NARROW
    times, kept = 2 if session.tiny else 10, dict[str, dict[str, Any]]()
    with _steps(session, "options of the compiler", size) as one:
        one.add("transformer_jax", _OURS, "language-train", size, times)
        for option in _OPTIONS[: 1 if session.tiny else None]:
            (name,) = (f"{key} {value}" for key, value in option.items())
            if one.add(name, _OURS, "language-train", size | {"options": option}, times):
                kept |= {row["name"]: row for row in one.measure(3)}
                one.bench.remove(name)
                session.keep_table(one.title, list(kept.values()), one.base)


def _steps(session: Session, what: str, size: dict[str, Any]) -> Any:
    title = f"GPT-2 small, training step, {what}"
    return session.table(title, "tokens", size["batch"] * size["context"], "transformer_jax")


SECTIONS: dict[str, Callable[[Session], None]] = {
    one.__name__: one
    for one in (device, step, decode, base, configurations, translate, loops, options)
}


def main(arguments: Sequence[str]) -> None:
    """Runs ``python -m benchmarks gpu``.

    Raises:
        ConfigError: There is no GPU, without ``--tiny``.
    """
    parser = argparse.ArgumentParser(
        "python -m benchmarks gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="sections to measure")
    add("--minutes", type=float, default=7.5, help="no section begins after these")
    add("--rounds", type=int, default=5, help="measured rounds, after a warmup round")
    add("--patience", type=float, default=150.0, help="seconds that a case may take to set up")
    add("--peers", default=sys.executable, help="Python with torch, transformers and ctranslate2")
    add("--commit", default="", help="commit to store, for a copy without git")
    add("--tiny", action="store_true", help="a tiny model and little work, on a CPU too")
    add("--output", type=Path, default=Path("benchmarks/results"), help="output folder")
    given = parser.parse_args(arguments)
    session = Session(given, shlex.join(["python", "-m", "benchmarks", "gpu", *arguments]))
    try:
        for name in [name for name in SECTIONS if name in given.only]:
            if session.left < 0:
                tell(f"{name}: not begun: the time is over (--minutes)")
                session.record(section=name, left_out="the time is over")
                session.keep("left_out", {name: "the time was over"})
                continue
            SECTIONS[name](session)
    finally:
        session.close()
    print(f"written to {session.file}")
