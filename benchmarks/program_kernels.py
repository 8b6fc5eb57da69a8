"""Kernels of a compiled GPU or TPU program, counted in its text.

A kernel reads each operand and writes its result once: a slice counts as its own bytes, an update
in place as the bytes of the update. So figures are a least; caches are not modelled, and nothing is
known of the kernels of cuBLAS, which are chosen on a device. Arrays in the on-chip memory of a TPU
(vmem) count nothing, but the copies from and to it.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from transformer_jax.parallel.program_report import (
    Computation,
    Instruction,
    array_bytes,
    array_dimensions,
    parsed,
)

__all__ = ["Kernel", "Loop", "kernels", "loops", "totals"]


class Kernel(NamedTuple):
    """A kernel of a program.

    Attributes:
        name: Its name in the program's text.
        kind: Its operation, or the target of its call.
        launches: Launches in one run; a loop counts its turns, one if the text does not say.
        bytes: Bytes that one launch reads and writes.
        flops: Floating-point operations of the products of one launch.
        operation: The operation that it belongs to, as named by JAX.
    """

    name: str
    kind: str
    launches: int
    bytes: int
    flops: int
    operation: str


class Loop(NamedTuple):
    """A loop of a program.

    Attributes:
        turn: The name of the computation that is one turn.
        turns: Number of turns; None if the text does not say.
        body: The kernels of one turn.
        condition: The kernels that decide whether there is another turn.
    """

    turn: str
    turns: int | None
    body: tuple[Kernel, ...]
    condition: tuple[Kernel, ...]


_TURNS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_FUSION = re.compile(r'"kind":"(__\w+)"')
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][\[{]([^\]}]*)[\]}]')
_ARRAYS = re.compile(r"\w+\[[\d,]*\](?:\{[^}]*\})?")
# Copies that are started, and the place of their result among the arrays of a tuple.
_COPIES = {"copy-start": 0, "slice-start": -2}
_ON_CHIP = re.compile(r"\w+\[[\d,]*\]\{[^}]*S\(1\)[^}]*\}")
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("partition-id", "replica-id"),
}
_PICKS = ("slice", "dynamic-slice", "gather")


def kernels(text: str) -> list[Kernel]:
    """Returns the kernels of a program, given its text.

    Example:
        >>> text = '''%turn (state: f32[8]) -> f32[8] {
        ...   %state = f32[8]{0} parameter(0)
        ...   ROOT %a = f32[8]{0} copy(%state)
        ... }
        ... ENTRY %main (x: f32[8]) -> f32[8] {
        ...   %x = f32[8]{0} parameter(0)
        ...   ROOT %b = f32[8]{0} while(%x), body=%turn, config={"known_trip_count":{"n":"3"}}
        ... }'''
        >>> kernels(text)
        [Kernel(name='a', kind='copy', launches=3, bytes=64, flops=0, operation='')]
    """
    return list(_kernels(*parsed(text)))


def loops(text: str) -> list[Loop]:
    """Returns the loops of a program, the inner ones of a loop after it, given its text."""
    return list(_loops(*parsed(text)))


def totals(found: list[Kernel] | tuple[Kernel, ...]) -> tuple[int, int]:
    """Returns the launches of kernels, and the bytes that they read and write.

    Example:
        >>> totals([Kernel("a", "copy", 3, 64, 0, ""), Kernel("b", "copy", 1, 8, 0, "")])
        (4, 200)
    """
    return sum(one.launches for one in found), sum(one.launches * one.bytes for one in found)


def _loops(computations: dict[str, Computation], name: str) -> Iterator[Loop]:
    for one in computations[name].values():
        if one.op == "while":
            turns, body = _TURNS.search(one.attributes), one.attribute("body")
            parts = (
                tuple(_kernels(computations, part)) for part in (body, one.attribute("condition"))
            )
            yield Loop(body, int(turns[1]) if turns else None, *parts)
            yield from _loops(computations, body)
        elif (called := one.attribute("to_apply")) in computations and one.op == "call":
            yield from _loops(computations, called)


def _kernels(
    computations: dict[str, Computation], name: str, launches: int = 1
) -> Iterator[Kernel]:
    here = computations[name]
    for one in here.values():
        if one.op in _FREE or one.op.endswith("-done"):
            continue
        if one.op == "while":
            turns = _TURNS.search(one.attributes)
            times = launches * (int(turns[1]) if turns else 1)
            yield from _kernels(computations, one.attribute("body"), times)
            continue
        called = one.attribute("to_apply" if one.op == "call" else "calls")
        if one.op in ("call", "async-start") and called in computations:
            yield from _kernels(computations, called, launches)
            continue
        fused = computations.get(called, {}) if one.op == "fusion" else {}
        moved = (
            _copied(here, one)
            if one.op in _COPIES
            else _read(here, one, fused) + _written(here, one, fused)
        )
        yield Kernel(
            one.name,
            _kind(one),
            launches,
            moved,
            sum(_flops(fused, inner) for inner in fused.values()) or _flops(here, one),
            one.attribute("op_name"),
        )


def _bytes(shape: str) -> int:
    return array_bytes(_ON_CHIP.sub("", shape))


def _kind(one: Instruction) -> str:
    if target := one.attribute("custom_call_target"):
        return target
    if one.op != "fusion":
        return one.op
    special = _FUSION.search(one.attributes)
    return special[1] if special else one.attribute("kind")


def _copied(here: Computation, one: Instruction) -> int:
    """Returns the bytes of the result of a copy that is only started, read and written."""
    result = _ARRAYS.findall(one.shape)[_COPIES[one.op]]
    sides = (result, *(here[name].shape for name in one.operands[:1] if name in here))
    return array_bytes(result) * sum(not _ON_CHIP.match(side) for side in sides)


def _read(here: Computation, one: Instruction, fused: Computation) -> int:
    operands = [here[name] for name in one.operands if name in here]
    if fused:
        parts = _needed(fused)
        inside = (inner for inner in fused.values() if inner.op == "parameter")
        return sum(
            int(parts.get(inner.name, 0.0) * _bytes(operands[int(inner.arguments)].shape))
            for inner in inside
        )
    if one.op == "dynamic-update-slice":
        return _bytes(operands[1].shape)
    if one.op in _PICKS:
        return _bytes(one.shape)
    return sum(_bytes(operand.shape) for operand in dict.fromkeys(operands))


def _needed(fused: Computation) -> dict[str, float]:
    """Returns the part of each value of a fusion that its result needs, from the result back."""
    parts: dict[str, float] = {}
    for one in reversed(fused.values()):
        part = 1.0 if one.root else parts.get(one.name, 0.0)
        needed = part * _bytes(one.shape)
        for place, name in enumerate(one.operands):
            size = _bytes(fused[name].shape) if name in fused else 0
            if one.op in _PICKS and place == 0:
                more = needed / size if size else 0.0
            elif one.op in ("dynamic-update-slice", "scatter") and place == 0:
                more = 0.0  # in place
            else:
                more = part
            parts[name] = min(1.0, parts.get(name, 0.0) + more)
    return parts


def _written(here: Computation, one: Instruction, fused: Computation) -> int:
    if one.op == "dynamic-update-slice":
        return _bytes(here[one.operands[1]].shape)
    if not fused:
        return _bytes(one.shape)
    root = next(inner for inner in fused.values() if inner.root)
    results = [fused[name] for name in root.operands] if root.op == "tuple" else [root]
    return sum(_result_bytes(fused, result) for result in results)


def _result_bytes(fused: Computation, result: Instruction) -> int:
    while result.op == "bitcast" and result.operands[0] in fused:
        result = fused[result.operands[0]]
    if result.op == "dynamic-update-slice":
        return _bytes(fused[result.operands[1]].shape)
    if result.op == "scatter":  # adds to what is there
        return 2 * _bytes(fused[result.operands[-1]].shape)
    return _bytes(result.shape)


def _flops(here: Computation, one: Instruction) -> int:
    """Returns the operations of a product; 0 for other instructions."""
    if one.op != "dot" and "cublas" not in one.attributes and "gemm" not in one.attributes:
        return 0
    contracted = _CONTRACTED.search(one.attributes)
    if contracted is None or one.operands[0] not in here:
        return 0
    out, left = (array_dimensions(shape) for shape in (one.shape, here[one.operands[0]].shape))
    axes = [int(axis.strip('" ')) for axis in contracted[1].split(",") if axis]
    return 2 * math.prod(out) * math.prod(left[axis] for axis in axes)
