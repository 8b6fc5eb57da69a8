"""The peak performance of a device, and a roofline picture of programs."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.kernel_timing import clock_of
from transformer_jax.parallel.device_catalog import DEVICES

__all__ = ["Peak", "draw", "peak_of"]


class Peak(NamedTuple):
    """The peak of a device: FLOPs and bytes per second, and the source of these figures."""

    flops: float
    bandwidth: float
    source: str

    def least_seconds(self, flops: float, size: float) -> float:
        """Returns the roofline: the longer of the times for FLOPs and for bytes.

        Example:
            >>> Peak(100.0, 10.0, "").least_seconds(50.0, 20.0)
            2.0
        """
        return max(flops / self.flops, size / self.bandwidth)


def peak_of(device: Any) -> Peak:
    """Returns the peak of a device: the vendor's figure, or for unknown devices a measurement."""
    for one in DEVICES.values():
        if device.device_kind in one.kinds:
            return Peak(one.flops, one.bandwidth, "data sheet, bfloat16")
    side, size = 2048, 2**26
    a = jnp.ones((side, side), jnp.float32)
    x = jnp.ones((size,), jnp.float32)
    product = _best(jax.jit(lambda a: a @ a), a)
    copy = _best(jax.jit(lambda x: x + 1), x)
    source = "measured on one core: float32 product, addition"
    return Peak(2.0 * side**3 / product, 8.0 * size / copy, source)


def _best(function: Any, x: Any) -> float:
    """Returns the minimum time of a call on a CPU."""
    function(x).block_until_ready()
    clock, taken = clock_of("cpu"), []
    for _ in range(7):
        began = clock()
        function(x).block_until_ready()
        taken.append(clock() - began)
    return min(taken)


def draw(facts: dict[str, Any], where: Path) -> None:
    """Draws the roofline of a device with all measurements, as a PNG.

    Args:
        facts: The content of ``kernels_DEVICE.json``.
        where: Path of the picture.
    """
    from matplotlib.figure import Figure

    peak = Peak(**facts["peak"])
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    points: dict[str, list[tuple[float, float]]] = {}
    for case in facts["cases"]:
        for way in case["ways"]:
            for which in ("forward", "forward+backward"):
                if "ms" in (found := way.get(which, {})):
                    at = (found["intensity"], found["tflops"])
                    points.setdefault(_group(way), []).append(at)
    for i, (name, found) in enumerate(points.items()):
        x, y = zip(*found, strict=True)
        axes.scatter(x, y, s=26, alpha=0.75, marker="osD^vP*X<>"[i % 10],
                     label=name)  # fmt: skip
    intensities = [x for found in points.values() for x, _ in found]
    low, high = min(intensities, default=1.0) / 2, max(intensities, default=100.0) * 2
    bend = peak.flops / peak.bandwidth
    line = sorted({low, high, *([bend] if low < bend < high else [])})
    axes.plot(line, [min(peak.flops, x * peak.bandwidth) / 1e12 for x in line], color="black")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="minimum FLOPs per byte of the case",
        ylabel="TFLOP/s",
        title=f"{facts['environment']['cpu'] if facts['device'] == 'cpu' else facts['device']}\n"
        f"{peak.flops / 1e12:.3g} TFLOP/s, {peak.bandwidth / 1e9:.3g} GB/s ({peak.source})",
    )
    axes.grid(which="both", alpha=0.2)
    axes.legend(fontsize=8, ncols=2)
    figure.savefig(where, dpi=120)


def _group(way: dict[str, Any]) -> str:
    ours = ("xla", "xla in blocks of queries", "chunked", "cudnn", "splash", "ring")
    name = str(way["name"])
    return name if way.get("peer") or name in ours else "loss, projections, norms, decoding"
