"""Reports about compiled programs: memory, communication, kernels."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from jax import stages

__all__ = [
    "COLLECTIVES", "Collective", "ProgramReport", "array_bytes", "collectives",
    "estimated_cycles", "kernel_calls", "loop_lines", "report",
]  # fmt: skip

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

# The names of fused kernels in compiled programs: attention on GPUs, any Pallas kernel on TPUs.
_KERNELS = {
    "__cudnn$fmhaSoftmax": "cudnn",
    "__cudnn$fmhaSoftmaxBackward": "cudnn backward",
    "tpu_custom_call": "pallas",
}
_BITS = {"pred": 8, "s4": 4, "u4": 4} | {
    f"{kind}{bits}": bits for kind in "fsu" for bits in (8, 16, 32, 64)
}
_ARRAY = re.compile(r"\b(pred|bf16|f8\w*|[fsu]\d+)\[([\d,]*)\]")
# A TPU's reduce-scatter is a fusion of this name that contains an all-reduce.
_REDUCE_SCATTER = re.compile(r"^\s*%all-reduce-scatter\S* \(.*\) -> (.*) \{$")
_COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(COLLECTIVES)})(-start)?\(")
_CALL = re.compile(r'custom_call_target="([^"]+)"')
_COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) .*\{$")
_BODY = re.compile(r"\bbody=%([\w.\-]+)")
_FUSED = re.compile(r"\bcalls=%([\w.\-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_COPY = re.compile(r"= \(?(\w+)\[([\d,]*)\]\S* .*\bcopy(?:-start)?\(")
_VMEM = "S(1)"  # the memory space of an array, in its layout
_HOST = re.compile(r"\b(infeed|outfeed|send|recv|\w*callback\w*)\(")
_NAME = re.compile(r'op_name="([^"]*)"')
# An asynchronous exchange on a TPU appears in each of its parts.
_CHAIN = re.compile(r'chain_id="(\d+)"')
# The number of groups and of devices in each, or the devices, or the axes of a mesh.
_GROUPS = re.compile(
    r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]+)\}|mesh\[([^\]]*)\] \{([^}]*)\})"
)


class Collective(NamedTuple):
    """One exchange between devices.

    Attributes:
        kind: One of :data:`COLLECTIVES`.
        bytes: Size of its result in bytes.
        operation: The operation that it belongs to, as named by JAX; empty if unknown.
        devices: Number of devices in a group; 0 if the program's text does not show it.
        started: Whether it is only started, and awaited later: the device computes meanwhile.
    """

    kind: str
    bytes: int
    operation: str
    devices: int = 0
    started: bool = False


@dataclasses.dataclass(frozen=True)
class ProgramReport:
    """The memory that a program needs on each device, and its operations there.

    Attributes:
        arguments: Bytes of its inputs.
        temporaries: Bytes in addition to inputs and outputs.
        outputs: Bytes of its outputs.
        aliased: Bytes of outputs that reuse the memory of inputs.
        collectives: Every exchange between devices in the program's text; one inside a loop takes
            place in each iteration.
        kernels: Number of calls of each fused kernel.
        copied: Bytes of the largest array that a loop copies in each iteration, except to or from a
            TPU's on-chip memory (vmem).
        host: Operations that wait for the host, such as a callback to Python.
        cycles: See :func:`estimated_cycles`.
    """

    arguments: int
    temporaries: int
    outputs: int
    aliased: int
    collectives: tuple[Collective, ...]
    kernels: dict[str, int]
    copied: int = 0
    host: tuple[str, ...] = ()
    cycles: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def memory(self) -> int:
        """Bytes of memory that the program needs on a device."""
        return self.arguments + self.temporaries + self.outputs - self.aliased

    def communicated(self) -> dict[str, int]:
        """Bytes of results, by kind of collective."""
        found: collections.Counter[str] = collections.Counter()
        for one in self.collectives:
            found[one.kind] += one.bytes
        return dict(found)


def report(compiled: stages.Compiled) -> ProgramReport:
    """Reports the memory, communication and kernels of a compiled program.

    Args:
        compiled: Result of ``jax.jit(f).lower(...).compile()``.
    """
    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None
    assert text is not None
    return ProgramReport(
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        tuple(collectives(text)),
        kernel_calls(text),
        max(map(_copied_bytes, loop_lines(text)), default=0),
        tuple(_HOST.findall(text)),
        estimated_cycles(text),
    )


def estimated_cycles(text: str) -> dict[str, int]:
    """The cycles that XLA:TPU expects, of products, of copies and of other operations.

    Those of a loop count once. Pallas kernels and exchanges are not estimated, and programs for
    other devices have no estimates. An estimate is no measurement.

    Example:
        >>> text = '''%inside (x: f32[8]) -> f32[8] {
        ...   %a = f32[8]{0} convolution(%x, %x), config={"estimated_cycles":"9"}
        ... }
        ... ENTRY %main (x: f32[8]) -> f32[8] {
        ...   %b = f32[8]{0} fusion(%x), calls=%inside, config={"estimated_cycles":"70"}
        ...   %c = f32[8]{0} copy(%b), config={"estimated_cycles":"5"}
        ... }'''
        >>> estimated_cycles(text)
        {'products': 70, 'copies': 5}
    """
    fused, multiplying, place = set(_FUSED.findall(text)), set(), ""
    lines: list[str] = []
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            place = match[1]
        elif " convolution(" in line:
            multiplying.add(place)
        if place not in fused and _CYCLES.search(line):
            lines.append(line)
    found: collections.Counter[str] = collections.Counter()
    for line in lines:
        called = set(_FUSED.findall(line)) & multiplying
        product = called or " convolution(" in line
        kind = "products" if product else "copies" if " copy(" in line else "others"
        found[kind] += sum(map(int, _CYCLES.findall(line)))
    return dict(found)


def loop_lines(text: str) -> Iterator[str]:
    """The operations in the loop bodies of a compiled program.

    Example:
        >>> text = '''%turn (state: f32[8]) -> f32[8] {
        ...   %a = f32[8]{0} copy(%state)
        ... }
        ... ENTRY %main (x: f32[8]) -> f32[8] {
        ...   %b = f32[8]{0} while(%x), condition=%go, body=%turn
        ... }'''
        >>> [line.strip() for line in loop_lines(text)]
        ['%a = f32[8]{0} copy(%state)']
    """
    bodies, inside = set(_BODY.findall(text)), False
    for line in text.splitlines():
        if match := _COMPUTATION.match(line):
            inside = match[1] in bodies
        elif inside and not line.startswith("}"):
            yield line


def _copied_bytes(line: str) -> int:
    match = _COPY.search(line)
    return 0 if match is None or _VMEM in line else _bytes(*match.groups())


def kernel_calls(text: str) -> dict[str, int]:
    """Counts the calls of each fused kernel in the text of a compiled program.

    Example:
        >>> kernel_calls('custom-call(%q), custom_call_target="__cudnn$fmhaSoftmax"')
        {'cudnn': 1}
    """
    found = collections.Counter(
        _KERNELS[target] for target in _CALL.findall(text) if target in _KERNELS
    )
    return dict(found)


def collectives(text: str) -> Iterator[Collective]:
    """The exchanges between devices in a compiled program's text.

    Example:
        >>> line = '%a = f32[8,4] all-gather(%x), replica_groups=[2,4]<=[8], op_name="embed"'
        >>> list(collectives(line))
        [Collective(kind='all-gather', bytes=128, operation='embed', devices=4, started=False)]
        >>> fusion = '''%all-reduce-scatter.1 (input: f32[64]) -> f32[8] {
        ...   %b = f32[64]{0} all-reduce(%input), to_apply=%add
        ... }'''
        >>> list(collectives(fusion))
        [Collective(kind='reduce-scatter', bytes=32, operation='', devices=0, started=False)]
        >>> part = '%c = f32[8,4] all-gather(%x), frontend_attributes={chain_id="7"}'
        >>> len(list(collectives(chr(10).join([part, part]))))
        1
    """
    scattered = None  # the part that the current fusion leaves on each device
    chains = set()
    for line in text.splitlines():
        if match := _REDUCE_SCATTER.match(line):
            scattered = match[1]
        elif line.startswith("}"):
            scattered = None
        elif match := _COLLECTIVE.search(line):
            chain = _CHAIN.search(line)
            if chain:
                if chain[1] in chains:
                    continue
                chains.add(chain[1])
            shape, kind, start = match.groups()
            operation, started = _NAME.search(line), bool(start or chain)
            if scattered is not None:
                shape, kind, start = scattered, "reduce-scatter", ""
            yield Collective(
                kind,
                _result_bytes(shape, bool(start)),
                operation.group(1) if operation else "",
                _group_size(line),
                started,
            )


def _group_size(line: str) -> int:
    """The number of devices in a group.

    Example:
        >>> ways = "[4,2]<=[8]", "{{0,4},{1,5}}", "mesh['a'=2,'b'=4] {'a'}"
        >>> [_group_size(f"replica_groups={way}") for way in ways]
        [2, 2, 2]
    """
    if (match := _GROUPS.search(line)) is None:
        return 0
    size, devices, mesh, axes = match.groups()
    if size:
        return int(size)
    if devices:
        return devices.count(",") + 1
    sizes = dict(axis.split("=") for axis in mesh.split(","))
    return math.prod(int(sizes[axis]) for axis in axes.split(",") if axis)


def array_bytes(shape: str) -> int:
    """Returns the bytes of the arrays in a shape of a program's text.

    Example:
        >>> array_bytes("(f32[2,3]{1,0}, pred[4]{0})")
        28
    """
    return sum(_bytes(*array) for array in _ARRAY.findall(shape))


def _result_bytes(shape: str, start: bool) -> int:
    """Bytes of a result; an asynchronous start has a tuple of operands and results."""
    sizes = [_bytes(kind, dims) for kind, dims in _ARRAY.findall(shape)]
    if not start or not shape.startswith("("):
        return sum(sizes)
    if shape.startswith("(("):
        depth = 0
        for end, letter in enumerate(shape[1:], 1):
            depth += (letter == "(") - (letter == ")")
            if depth == 0:
                return sum(_bytes(*array) for array in _ARRAY.findall(shape[end + 1 :]))
    return max(sizes)


def _bytes(kind: str, dims: str) -> int:
    bits = 16 if kind == "bf16" else 8 if kind.startswith("f8") else _BITS[kind]
    return math.prod(int(size) for size in dims.split(",") if size) * bits // 8
