"""Laws with the functions and inputs that they need, ready to run."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, PyTree

from transformer_jax import laws
from transformer_jax.doctor.outputs import Outputs, few, program
from transformer_jax.laws import Finding

__all__ = [
    "Check",
    "causality_check",
    "decoding_checks",
    "largest",
    "loss_checks",
    "of_parts",
    "packing_checks",
    "row_checks",
    "source_check",
]

BEAMS = 2
Inputs = Mapping[str, PyTree]
Part = Callable[..., np.ndarray]  # a part of a model's outputs
# A law on a function that returns one array, with a tolerance.
Apply = Callable[[Part, float], Finding]


class Check(NamedTuple):
    """A law that is ready to run.

    Attributes:
        law: Name of the law.
        run: Maps a tolerance to the finding.
    """

    law: str
    run: Callable[[float], Finding]


def of_parts(
    law: str, outputs: Outputs, layers: Outputs | None, apply: Apply, but: str | None = None
) -> Check:
    """Returns the check of a law on each part of a model's outputs.

    If a part breaks it, the place is in the first layer that does.

    Args:
        law: Name of the law.
        outputs: Outputs of the model.
        layers: Hidden states of each layer, of the same arguments.
        apply: The law on a function that returns one array.
        but: Prefixes of parts that are left out.
    """
    chosen = lambda names: [n for n in names if but is None or not n.startswith(but)]

    def run(tolerance: float) -> Finding:
        parts = chosen(outputs.parts)
        found = largest((n, apply(outputs.part(n), tolerance)) for n in parts)
        if found.holds or layers is None:
            return found
        for name in chosen(layers.parts):
            one = apply(layers.part(name), tolerance)
            if not one.holds:
                return dataclasses.replace(found, where=f"from {name} on: {one.where}")
        return found

    return Check(law, run)


def largest(findings: Iterable[tuple[str, Finding]]) -> Finding:
    """Returns the finding with the largest error, with its part's name in the place.

    Example:
        >>> one = laws.Finding("padding", "", 0.5, 0.0, "row 0, position 1")
        >>> largest([("encoder", dataclasses.replace(one, error=0.1)), ("logits", one)]).where
        'logits: row 0, position 1'
    """
    name, found = max(findings, key=lambda item: item[1].error)
    where = found.where.removesuffix(": []")  # the place within a scalar
    where = f"{name}: {where}" if name and where else where
    return dataclasses.replace(found, where=where)


def causality_check(
    outputs: Outputs,
    layers: Outputs | None,
    tokens: Int[np.ndarray, "B T"],
    arguments: Callable[[Int[np.ndarray, "B T"]], tuple[PyTree, ...]],
) -> Check:
    """Returns the law of causality, for all parts except the encoder's.

    Args:
        outputs: Outputs of the model.
        layers: Hidden states of each layer, of the same arguments.
        tokens: The tokens to change.
        arguments: Maps tokens to the arguments of the model.
    """
    apply: Apply = lambda f, tolerance: laws.causality(
        lambda tokens: f(*arguments(tokens)), tokens, tolerance=tolerance
    )
    return of_parts("causality", outputs, layers, apply, but="encoder")


def row_checks(
    outputs: Outputs, layers: Outputs | None, real: Bool[np.ndarray, "B T"] | None
) -> list[Check]:
    """Returns the laws of rows and their padding.

    Args:
        outputs: Outputs of ``(inputs, real)``, arrays ``[B T ...]``, or of ``(inputs,)``.
        layers: Hidden states of each layer, of the same arguments.
        real: True at real positions; None if there is no padding.
    """
    args = outputs.args
    together = lambda f: lambda args: f(*args)
    mates: Apply = lambda f, tolerance: laws.batch_mates(together(f), args, tolerance=tolerance)
    alone: Apply = lambda f, tolerance: laws.batch_of_one(together(f), args, tolerance=tolerance)
    again = lambda tolerance: laws.repeatability(together(outputs.fresh), args, tolerance=tolerance)
    checks = [Check("repeatability", again)]
    if real is not None:
        padding: Apply = lambda f, tolerance: laws.padding(f, *args, tolerance=tolerance)
        length: Apply = lambda f, tolerance: laws.padding_length(f, *args, tolerance=tolerance)
        checks.append(of_parts("padding", outputs, layers, padding))
        checks.append(of_parts("padding_length", outputs, layers, length))
    checks.append(of_parts("batch_mates", outputs, layers, mates))
    checks.append(of_parts("batch_of_one", outputs, layers, alone))
    if (mesh := outputs.mesh) is not None:
        checks.append(_sharded_check(outputs, mesh))
    return checks


def _sharded_check(outputs: Outputs, mesh: Mesh) -> Check:
    """Returns the law that splitting a model over devices does not change it."""
    sizes = ", ".join(f"{name} {size}" for name, size in mesh.shape.items() if size > 1)

    def run(placement: str | None) -> dict[str, np.ndarray]:
        return (outputs.on_one_device() if placement is None else outputs)(*outputs.args)

    return Check("sharded", lambda t: laws.sharded(run, [sizes], tolerance=t))


def source_check(outputs: Outputs, layers: Outputs | None, args: tuple[PyTree, ...]) -> Check:
    """Returns the laws of padded sources: they do not change the target's outputs.

    Args:
        outputs: Outputs of ``({"source": ..., "target": ...}, real)``.
        layers: Hidden states of each layer, of the same arguments.
        args: Arguments of ``outputs``.
    """
    inputs, real = args

    def apply(f: Part, tolerance: float) -> Finding:
        run = lambda source, real, target: f({"source": source, "target": target}, real)
        given = inputs["source"], real, inputs["target"]
        return laws.source_padding(run, *given, tolerance=tolerance)

    return of_parts("source_padding", outputs, layers, apply, but="encoder")


def decoding_checks(
    model: nnx.Module,
    whole: Callable[[Int[np.ndarray, "B T"]], np.ndarray],
    inputs: Inputs | None,
    tokens: Int[np.ndarray, "B T"],
    sized: Callable[[Array], np.ndarray],
) -> list[Check]:
    """Returns the laws of a model that decodes one token at a time.

    Args:
        model: A ``Decodable``.
        whole: Teacher forcing: maps texts ``[B T]`` to logits, divided by their size.
        inputs: The condition of the texts.
        tokens: Texts.
        sized: Divides logits by the same size.
    """
    B, T = tokens.shape
    begin = {
        beams: program(
            model, lambda model, inputs, n=beams: model.init_cache(inputs, B, T, beams=n)
        )
        for beams in (1, BEAMS)
    }
    with_few = lambda found: (few(found[0]), found[1])
    decode = {
        "prefill": program(model, lambda model, *args: with_few(model.prefill(*args))),
        "step": program(model, lambda model, *args: with_few(model.step(*args))),
    }

    def run(name: str, *args: PyTree) -> tuple[np.ndarray, PyTree]:
        logits, cache = decode[name](*args)
        return sized(logits), cache

    fill, step = functools.partial(run, "prefill"), functools.partial(run, "step")
    reorder = program(model, lambda model, *args: model.reorder(*args))
    empty = lambda beams=1: begin[beams](inputs)
    # Search pads prompts on the left, even if they need no padding.
    read = lambda *args: fill(*args, np.zeros(B, np.int32))
    short, prompt = max(2, T // 2), max(1, T - 2)
    starts = np.arange(B, dtype=np.int32) % prompt
    draw = np.random.default_rng(1)
    pick = draw.integers(0, tokens.size, (B, BEAMS, short))
    beams = tokens.reshape(-1)[pick]
    padded = lambda texts: whole(_filled(texts, tokens))[:, : texts.shape[1]]
    return [
        Check("cached", lambda t: laws.cached(whole, step, empty(), tokens, tolerance=t)),
        Check(
            "prefilled",
            lambda t: laws.prefilled(whole, read, step, empty(), tokens, prompt, tolerance=t),
        ),
        Check(
            "prompt_padding",
            lambda t: laws.prompt_padding(whole, fill, step, empty(), tokens, starts, tolerance=t),
        ),
        Check(
            "reordered",
            lambda t: laws.reordered(padded, step, reorder, empty(BEAMS), beams, tolerance=t),
        ),
    ]


def _filled(texts: Int[np.ndarray, "b t"], tokens: Int[np.ndarray, "B T"]) -> np.ndarray:
    """Texts extended by further tokens and rows, so that one program computes all."""
    made = tokens.copy()
    made[: texts.shape[0], : texts.shape[1]] = texts
    return made


def packing_checks(
    model: nnx.Module,
    whole: Callable[[Int[np.ndarray, "B T"]], np.ndarray],
    tokens: Int[np.ndarray, "B T"],
    sized: Callable[[Array], np.ndarray],
) -> list[Check]:
    """Returns the laws of a language model with several texts per row.

    Args:
        model: A decoder.
        whole: Maps texts ``[B T]``, one per row, to logits, divided by their size.
        tokens: Texts.
        sized: Divides logits by the same size.
    """
    T = tokens.shape[1]
    first = max(1, T // 2 - 1)
    documents = [tokens[0, :first], tokens[1, : max(1, T - first - 2)]]
    run = program(model, lambda model, *args: few(model(*args)))
    alone = lambda texts: whole(_filled(texts, tokens))[:1, : texts.shape[1]]
    packed = lambda *args: sized(run(*args))
    return [
        Check("packing", lambda t: laws.packing(packed, alone, documents, length=T, tolerance=t)),
        Check(
            "packed_mates", lambda t: laws.packed_mates(packed, documents, length=T, tolerance=t)
        ),
    ]


def loss_checks(
    model: nnx.Module,
    totals: Callable[..., Mapping[str, Array]],
    batch: Inputs,
    real: Bool[np.ndarray, "B T"] | None,
) -> list[Check]:
    """Returns the laws of a loss: a weighted sum, however a batch is split or padded.

    Args:
        model: A module.
        totals: Maps the module, a batch and ``real`` to sums.
        batch: Arrays ``[B T ...]``, or ``[B ...]`` if there is no padding.
        real: True at real positions; None if there is no padding.
    """
    sums = Outputs(model, totals, (batch, real))
    whole = lambda batch: sums(*batch)
    B = len(jax.tree.leaves(batch)[0])
    split = lambda t: laws.loss_split(whole, (batch, real), parts=B, tolerance=t)
    if real is None:
        return [Check("loss_split", split)]
    return [
        Check("loss_padding", lambda t: laws.loss_padding(sums, batch, real, tolerance=t)),
        Check("loss_length", lambda t: laws.loss_length(sums, batch, real, tolerance=t)),
        Check("loss_split", split),
    ]
