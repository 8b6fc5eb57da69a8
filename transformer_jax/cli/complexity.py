"""``transformer-jax complexity``: cost and path length of several kinds of layers."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal

from transformer_jax.cli.output import check_file, note, write_json, writing, wrote
from transformer_jax.core.config_fields import Configuration, OutputPath, Range
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.text_tables import aligned, short

if TYPE_CHECKING:
    from transformer_jax.laboratory.complexity.layer_formulas import Kind, Layer
    from transformer_jax.laboratory.complexity.measure import Measured

__all__ = ["Complexity"]

Name = Literal["self-attention", "restricted", "recurrent", "convolution", "dilated"]
_KINDS: "dict[Name, Kind]" = {
    "self-attention": "self-attention",
    "restricted": "restricted self-attention",
    "recurrent": "recurrent",
    "convolution": "convolution",
    "dilated": "dilated convolution",
}
_MOST_BYTES = 4 << 30  # of the values that all layers hold
_BYTES = 4  # of a float32 value


@dataclasses.dataclass(frozen=True)
class Complexity(Configuration, group="--"):
    """Compare self-attention with recurrence and convolution: operations, time, path length.

    Prints table 1 of Vaswani et al. 2017 with formulas, FLOPs as counted by XLA, measured times,
    the longest chain of products, and the number of layers that connect all positions, for one text
    in float32.
    """

    lengths: tuple[Annotated[int, Range(1, 16_384)], ...] = (64, 128, 256, 512)
    """Lengths n of the text."""
    sizes: tuple[Annotated[int, Range(1, 8_192)], ...] = (128,)
    """Vector sizes d."""
    kernels: tuple[Annotated[int, Range(2, 1_024)], ...] = (3,)
    """Kernel widths k of convolutions, from 2: at width 1, a layer sees a single position."""
    windows: tuple[Annotated[int, Range(3, 32_767)], ...] = (17,)
    """Neighborhoods r of restricted self-attention: odd, centered on the position."""
    layers: tuple[Name, ...] = ("self-attention", "restricted", "recurrent", "convolution",
                                "dilated")  # fmt: skip
    """Kinds of layers."""
    repetitions: Annotated[int, Range(0, 1_000)] = 5
    """Number of measurements per time, of which the median is reported; 0 measures no times."""
    json: OutputPath | None = None
    """Output file of all figures."""
    output: OutputPath | None = None
    """Output file of a plot of cost against length: .png, .svg or .html."""

    def __call__(self) -> int:
        """Prints the tables, and writes the requested files."""
        layers = self.checked()
        check_file("--json", self.json, (".json",))
        from transformer_jax.visual.figures import SUFFIXES

        check_file("--output", self.output, SUFFIXES)
        import jax

        from transformer_jax.core.trees import default_device
        from transformer_jax.laboratory.complexity.measure import seconds_of_nothing

        device = default_device().device_kind
        print(_growth([layer.kind for layer in layers]), flush=True)
        measured = self.measured(layers)
        empty = seconds_of_nothing(self.repetitions) if self.repetitions else None
        print(f"\n{_table(measured)}")
        for line in _notes(measured):
            note(line)
        if empty is not None:
            note(
                f"times are medians of {plural(self.repetitions, 'repetition')} in turn on "
                f"{device}; of these, {_seconds(empty)} start a program"
            )
        if self.json is not None:
            content = {
                "device": device,
                "platform": default_device().platform,
                "jax": jax.__version__,
                "dtype": "float32",
                "repetitions": self.repetitions,
                "empty_program_seconds": empty,
                "layers": [one.to_dict() for one in measured],
            }
            write_json("--json", self.json, content)
        if self.output is not None:
            from transformer_jax.laboratory.complexity.measure import plot_layers

            with writing("--output", self.output):
                plot_layers(measured, self.output, device=device)
        if written := [path for path in (self.json, self.output) if path is not None]:
            wrote(*written)
        return 0

    def checked(self) -> "list[Layer]":
        """Returns the requested layers, by size, kind and length.

        Raises:
            ConfigError: A size is invalid, or the layers do not fit into memory.
        """
        for name in ("lengths", "sizes", "kernels", "windows", "layers"):
            if not getattr(self, name):
                raise ConfigError(f"--{name} is empty: give at least one")
        for window in self.windows:
            if window % 2 == 0:
                raise ConfigError(
                    f"--windows has {window}: an odd number is needed, centered on the "
                    f"position: {window - 1} or {window + 1}"
                )
        found = self.combined()
        needed = _BYTES * sum(layer.numbers for layer in found)
        if needed > _MOST_BYTES:
            largest = max(found, key=lambda layer: layer.numbers)
            raise ConfigError(
                f"the layers need {needed / 2**30:.1f} GiB, most of it {largest.name} with n = "
                f"{largest.n} and d = {largest.d}: at most {_MOST_BYTES >> 30} GiB: lower "
                f"--lengths, --sizes or --kernels, or leave it out of --layers"
            )
        return found

    def combined(self) -> "list[Layer]":
        """Returns each kind with each length and size, and each of its kernel widths or windows."""
        from transformer_jax.laboratory.complexity.layer_formulas import Layer

        extents = {"restricted": self.windows, "convolution": self.kernels, "dilated": self.kernels}
        return [
            Layer(_KINDS[name], n, d, extent)
            for d in sorted({*self.sizes})
            for name in dict.fromkeys(self.layers)
            for extent in sorted({*extents[name]} if name in extents else {None}, key=bool)
            for n in sorted({*self.lengths})
        ]

    def measured(self, layers: "list[Layer]") -> "list[Measured]":
        """Counts the FLOPs of the layers and measures their times."""
        from transformer_jax.core.task_progress import show_progress
        from transformer_jax.laboratory.complexity.measure import Clock, measure

        with show_progress("counting FLOPs and measuring paths", len(layers)) as activity:
            found = []
            for layer in layers:
                found.append(measure(layer))
                activity.update()
        if not self.repetitions:
            return found
        with show_progress("timing", len(layers) + self.repetitions) as activity:
            times = Clock(layers, activity.update).medians(self.repetitions)
        return [
            dataclasses.replace(one, times=passes) for one, passes in zip(found, times, strict=True)
        ]


def _growth(kinds: "list[Kind]") -> str:
    """Returns table 1, with the exact count for each order of growth."""
    from transformer_jax.laboratory.complexity.layer_formulas import GROWTH

    head = ("layer", "operations", "multiply-adds", "sequential", "path", "path length")
    shown = [(kind, *GROWTH[kind]) for kind in dict.fromkeys(kinds)]
    return aligned([head, *shown], left=6)


def _table(measured: "list[Measured]") -> str:
    """Returns a table with a row per layer and size."""
    timed = ("forward", "backward") if measured[0].times is not None else ()
    head = ("layer", "n", "d", "multiply-adds", "FLOPs by XLA", "of formula", *timed, "depth",
            "path")  # fmt: skip
    return aligned([head, *map(_row, measured)])


def _row(one: "Measured") -> tuple[str, ...]:
    layer, times = one.layer, one.times
    return (
        layer.name,
        str(layer.n),
        str(layer.d),
        short(layer.multiply_adds).strip(),
        short(one.flops).strip(),
        f"{100 * one.flops / layer.flops:.1f} %",
        *(() if times is None else map(_seconds, times)),
        str(one.depth),
        f"({layer.path_length})" if one.path is None else str(one.path),
    )


def _seconds(value: float) -> str:
    """Formats a time with three digits and its unit.

    Example:
        >>> _seconds(0.0123), _seconds(0.0000456), _seconds(2.0)
        ('12.3 ms', '45.6 µs', '2.00 s')
    """
    units = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
    unit, scale = next((one for one in units if value >= one[1]), units[-1])
    scaled = value / scale
    return f"{scaled:.{max(0, 2 - (scaled >= 10) - (scaled >= 100))}f} {unit}"


def _notes(measured: "list[Measured]") -> list[str]:
    """Returns notes about the limits of the figures."""
    from transformer_jax.laboratory.complexity.measure import LONGEST_PATH

    kinds, found = {one.layer.kind for one in measured}, []
    if "restricted self-attention" in kinds:
        found.append(
            "restricted self-attention computes blocks of queries: more than two FLOPs per "
            "multiply-add of its formula"
        )
    if "recurrent" in kinds:
        found.append("recurrent: XLA counts the body of a loop once: FLOPs of one step, times n")
    if "dilated convolution" in kinds:
        found.append("dilated convolution: a layer with dilation k; its path is for a stack "
                     "with dilations 1, k, k² ...")  # fmt: skip
    if any(one.path is None for one in measured):
        found.append(
            f"path lengths in parentheses are from the formula: Jacobians are computed up to "
            f"n = {LONGEST_PATH}"
        )
    return found
