"""Reports about compiled programs: memory, communication, kernels; and the reader of their text."""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from jax import stages

__all__ = [
    "COLLECTIVES", "Collective", "Computation", "Instruction", "ProgramReport", "ProgramText",
    "array_bytes", "array_dimensions", "collectives", "copied_bytes", "estimated_cycles",
    "host_operations", "kernel_calls", "parsed", "report",
]  # fmt: skip

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_HEAD = re.compile(r"^(ENTRY )?%([\w.\-]+) .*\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%([\w.\-]+) = (.*)$")
_OPERATION = re.compile(r"([\w\-$]+)\(")
_ARRAY = re.compile(r"\b(?:pred|b?[fsu](\d+)\w*)\[([\d,]*)\]")

# The names of fused kernels in compiled programs: attention on GPUs, any Pallas kernel on TPUs.
_KERNELS = {
    "__cudnn$fmhaSoftmax": "cudnn",
    "__cudnn$fmhaSoftmaxBackward": "cudnn backward",
    "tpu_custom_call": "pallas",
}
_REDUCE_SCATTER = "all-reduce-scatter"  # on a TPU, a fusion of this name with an all-reduce
_VMEM = "S(1)"  # the memory space of an array, in its layout
_HOST = ("infeed", "outfeed", "send", "recv")
# The number of groups and of devices in each, or the devices, or the axes of a mesh.
_GROUPS = re.compile(
    r"replica_groups=(?:\[\d+,(\d+)\]|\{\{([\d,]+)\}|mesh\[([^\]]*)\] \{([^}]*)\})"
)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An instruction of a program.

    Attributes:
        name: Its name.
        shape: The arrays of its result, with their layouts.
        op: Its operation.
        arguments: What stands between the brackets of the operation.
        attributes: What follows these brackets.
        root: Whether its result is that of the computation.
    """

    name: str
    shape: str
    op: str
    arguments: str
    attributes: str
    root: bool

    @functools.cached_property
    def operands(self) -> list[str]:
        """Names of the instructions whose results it uses."""
        return re.findall(r"%([\w.\-]+)", self.arguments)

    def attribute(self, name: str) -> str:
        """Returns a name, a text or a bracketed value among the attributes; empty if not there.

        Example:
            >>> text = 'calls=%f, dims={0,1}, metadata={op_name="a b"}, config={"n":"3"}'
            >>> one = Instruction("a", "f32[]", "fusion", "", text, root=False)
            >>> [one.attribute(name) for name in ("calls", "dims", "op_name", "n", "to_apply")]
            ['f', '{0,1}', 'a b', '3', '']
        """
        value = r'(?:"([^"]*)"|%?([\w.\-]+|\{[\d,]*\}))'
        match = re.search(rf'\b{name}"?[=:]{value}', self.attributes)
        return (match[1] or match[2] or "") if match else ""


Computation = dict[str, Instruction]  # by name, in the order of the text


class ProgramText(NamedTuple):
    """The computations of a program, by name, and the name of the first to run.

    Example:
        >>> text = '''%turn (state: f32[8]) -> f32[8] {
        ...   ROOT %a = f32[8]{0} copy(%state)
        ... }
        ... ENTRY %main (x: f32[8]) -> f32[8] {
        ...   ROOT %b = f32[8]{0} while(%x), condition=%go, body=%turn
        ... }'''
        >>> program = parsed(text)
        >>> program.entry, list(program.bodies), [one.name for one in program.instructions]
        ('main', ['turn'], ['a', 'b'])
        >>> [one.name for one in program.within("turn").instructions]
        ['a']
    """

    computations: dict[str, Computation]
    entry: str

    @property
    def instructions(self) -> list[Instruction]:
        """The instructions of all computations, in the order of the text."""
        return [one for here in self.computations.values() for one in here.values()]

    @property
    def bodies(self) -> dict[str, Computation]:
        """The computations that are one turn of a loop."""
        names = [one.attribute("body") for one in self.instructions if one.op == "while"]
        return {name: self.computations[name] for name in names}

    def within(self, entry: str) -> "ProgramText":
        """Returns the part of the program that a computation and those that it calls are."""
        found: dict[str, Computation] = {}
        waiting = [entry]
        while waiting:
            if (name := waiting.pop()) in self.computations and name not in found:
                found[name] = self.computations[name]
                for one in found[name].values():
                    waiting += re.findall(r"%([\w.\-]+)", one.attributes)
        return ProgramText(found, entry)


def parsed(text: str) -> ProgramText:
    """Returns the computations of a compiled program's text (``compiled.as_text()``)."""
    computations: dict[str, Computation] = {}
    current, entry = None, ""
    for line in text.splitlines():
        if (head := _HEAD.match(line)) is not None:
            current = computations[head[2]] = {}
            entry = head[2] if head[1] else entry
        elif line == "}":  # some attributes of a TPU's kernels have lines of their own
            current = None
        elif current is not None and (one := _instruction(line)) is not None:
            current[one.name] = one
    return ProgramText(computations, entry)


def _instruction(line: str) -> Instruction | None:
    if (match := _INSTRUCTION.match(line)) is None:
        return None
    root, name, text = match.groups()
    end = _closing(text) + 1 if text.startswith("(") else text.index(" ")
    shape, rest = text[:end], text[end:].lstrip()
    if (operation := _OPERATION.match(rest)) is None:
        return None
    rest = rest[operation.end() - 1 :]
    end = _closing(rest)
    return Instruction(name, shape, operation[1], rest[1:end], rest[end + 1 :], bool(root))


def _closing(text: str) -> int:
    """Returns the place of the bracket that closes the first."""
    depth = 0
    for bracket in re.finditer(r"[()]", text):
        depth += 1 if bracket[0] == "(" else -1
        if depth == 0:
            return bracket.start()
    return len(text)


def _array_sizes(shape: str) -> list[int]:
    found = _ARRAY.findall(shape)
    return [math.prod(_sizes(dims)) * int(bits or 8) // 8 for bits, dims in found]


def array_bytes(shape: str) -> int:
    """Returns the bytes of all arrays in a shape of a program's text.

    Example:
        >>> array_bytes("(f32[2,3]{1,0}, pred[4]{0}, s4[6], f8e5m2[])")
        32
    """
    return sum(_array_sizes(shape))


def array_dimensions(shape: str) -> list[int]:
    """Returns the sizes of the axes of the first array in a shape; empty without arrays.

    Example:
        >>> array_dimensions("(bf16[2,3]{1,0}, u32[])")
        [2, 3]
    """
    match = _ARRAY.search(shape)
    return _sizes(match[2]) if match else []


def _sizes(dims: str) -> list[int]:
    return [int(size) for size in dims.split(",") if size]


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
        copied: See :func:`copied_bytes`.
        host: See :func:`host_operations`.
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
    program = parsed(text)
    return ProgramReport(
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        tuple(collectives(program.computations)),
        kernel_calls(program),
        copied_bytes(program),
        host_operations(program),
        estimated_cycles(program),
    )


def estimated_cycles(program: ProgramText) -> dict[str, int]:
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
        >>> estimated_cycles(parsed(text))
        {'products': 70, 'copies': 5}
    """
    every, fused = program.computations, {one.attribute("calls") for one in program.instructions}
    multiplies = lambda here: any(one.op == "convolution" for one in here.values())
    found: collections.Counter[str] = collections.Counter()
    for one in (one for name in every if name not in fused for one in every[name].values()):
        product = one.op == "convolution" or multiplies(every.get(one.attribute("calls"), {}))
        kind = "products" if product else "copies" if one.op == "copy" else "others"
        found[kind] += int(one.attribute("estimated_cycles") or 0)
    return {kind: cycles for kind, cycles in found.items() if cycles}


def copied_bytes(program: ProgramText) -> int:
    """Returns the bytes of the largest array that a turn of a loop copies, except to or from vmem.

    Example:
        >>> text = '''%turn (state: f32[8]) -> f32[8] {
        ...   %a = f32[8]{0} copy(%state)
        ...   %b = f32[9]{0:S(1)} copy(%state)
        ... }
        ... ENTRY %main (x: f32[8]) -> f32[8] {
        ...   %c = f32[8]{0} while(%x), condition=%go, body=%turn
        ... }'''
        >>> copied_bytes(parsed(text))
        32
    """
    copies = [
        one.shape
        for here in program.bodies.values()
        for one in here.values()
        if one.op in ("copy", "copy-start") and _VMEM not in one.shape
    ]
    return max((_array_sizes(shape)[0] for shape in copies), default=0)


def host_operations(program: ProgramText) -> tuple[str, ...]:
    """Returns the operations that wait for the host, and the names of calls back to Python.

    Example:
        >>> text = '''ENTRY %main () -> f32[] {
        ...   ROOT %a = f32[] custom-call(), custom_call_target="xla_ffi_python_gpu_callback"
        ... }'''
        >>> host_operations(parsed(text))
        ('xla_ffi_python_gpu_callback',)
    """
    every = [one.attribute("custom_call_target") or one.op for one in program.instructions]
    return tuple(name for name in every if name in _HOST or "callback" in name)


def kernel_calls(program: ProgramText) -> dict[str, int]:
    """Counts the calls of each fused kernel of a compiled program.

    Example:
        >>> text = '''ENTRY %main (q: bf16[8]) -> bf16[8] {
        ...   ROOT %a = bf16[8] custom-call(%q), custom_call_target="__cudnn$fmhaSoftmax"
        ... }'''
        >>> kernel_calls(parsed(text))
        {'cudnn': 1}
    """
    targets = [one.attribute("custom_call_target") for one in program.instructions]
    return dict(collections.Counter(_KERNELS[name] for name in targets if name in _KERNELS))


def collectives(computations: Mapping[str, Computation]) -> Iterator[Collective]:
    """The exchanges between devices in computations of a program.

    Example:
        >>> text = '''%all-reduce-scatter.1 (input: f32[64]) -> f32[8] {
        ...   %b = f32[64]{0} all-reduce(%input), to_apply=%add
        ...   ROOT %c = f32[8]{0} dynamic-slice(%b, %place)
        ... }
        ... ENTRY %main (x: f32[8]) -> f32[8] {
        ...   %d = f32[8,4] all-gather(%x), replica_groups=[2,4]<=[8], op_name="embed"
        ...   %e = f32[4] all-gather(%x), frontend_attributes={chain_id="7"}
        ...   %f = f32[4] all-gather(%e), frontend_attributes={chain_id="7"}
        ... }'''
        >>> [(one.kind, one.bytes, one.devices) for one in collectives(parsed(text).computations)]
        [('reduce-scatter', 32, 0), ('all-gather', 128, 4), ('all-gather', 16, 0)]
    """
    chains = set[str]()  # an asynchronous exchange on a TPU appears in each of its parts
    for name, here in computations.items():
        for one in here.values():
            kind, chain = one.op.removesuffix("-start"), one.attribute("chain_id")
            if kind not in COLLECTIVES or (chain and chain in chains):
                continue
            chains.add(chain)
            starts = one.op != kind
            size = _result_bytes(one.shape, starts)
            if name.startswith(_REDUCE_SCATTER):  # its result is the part left on each device
                kind = "reduce-scatter"
                size = sum(array_bytes(inner.shape) for inner in here.values() if inner.root)
            groups = _group_size(one.attributes)
            yield Collective(kind, size, one.attribute("op_name"), groups, starts or bool(chain))


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


def _result_bytes(shape: str, start: bool) -> int:
    """Bytes of a result; an asynchronous start has a tuple of operands and results."""
    if not start or not shape.startswith("("):
        return array_bytes(shape)
    if shape.startswith("(("):
        return array_bytes(shape[1:][_closing(shape[1:]) :])
    return max(_array_sizes(shape))
