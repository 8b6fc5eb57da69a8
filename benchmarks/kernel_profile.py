"""The kernels of a profile: time and launches by name and by class, in JAX and in torch.

This imports only the standard library until a profile is taken, so any worker can import it.
"""

import collections
import glob
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["class_of", "events", "of_jax", "of_torch", "per_step", "summary"]

# Names of NVIDIA's libraries, of XLA and of torch's inductor; the first that matches counts.
_CLASSES = (
    ("attention", r"fmha|flash|sdpa|attention"),
    ("product", r"gemm|nvjet|cutlass|cublas|xmma|dot|matmul|mm_|mm\b|wgmma|splitk"),
    ("optimizer", r"adam|multi_tensor|foreach|l2norm|select_fusion|loop_select"),
    ("norm or softmax", r"softmax|layer_norm|layernorm|rms|reduce"),
    ("copy", r"memcpy|memset|copy|transpose|slice|concatenate"),
    ("scatter or gather", r"scatter|gather|embedding|index"),
)
# Events of a CPU's threads that are no operations of a program: calls of Python and of the runtime.
_NO_KERNEL = re.compile(r"::|\$|\(|^end:|Thunk|Execute|ThreadpoolListener")


def class_of(name: str) -> str:
    """Returns the kind of work of a kernel, judged by its name.

    Example:
        >>> [class_of(name) for name in ("nvjet_tst_128x256", "input_reduce_fusion", "fusion")]
        ['product', 'norm or softmax', 'elementwise']
    """
    return next((kind for kind, p in _CLASSES if re.search(p, name, re.I)), "elementwise")


def summary(kernels: Iterable[tuple[str, float, int]]) -> dict[str, Any]:
    """Returns time and launches of kernels, by class and by name, the longest first.

    Args:
        kernels: Name, nanoseconds and number of launches of each.

    Example:
        >>> summary([("gemm", 3e6, 2), ("add", 1e6, 1), ("gemm", 1e6, 1)])["busy_ms"]
        5.0
    """
    durations: dict[str, float] = collections.defaultdict(float)
    classes: dict[str, float] = collections.defaultdict(float)
    launches: collections.Counter[str] = collections.Counter()
    for name, ns, count in kernels:
        durations[name] += ns
        launches[name] += count
        classes[class_of(name)] += ns
    ordered = lambda of: sorted(of.items(), key=lambda item: -item[1])
    return {
        "busy_ms": sum(durations.values()) / 1e6,
        "launches": launches.total(),
        "classes": {kind: ns / 1e6 for kind, ns in ordered(classes)},
        "kernels": [
            {"kernel": name, "ms": ns / 1e6, "launches": launches[name]}
            for name, ns in ordered(durations)
        ],
    }


def per_step(found: dict[str, Any], steps: int, top: int) -> dict[str, Any]:
    """Returns a summary of ``steps`` steps as one of a step, with the ``top`` longest kernels.

    Example:
        >>> found = summary([("gemm", 3e6, 2), ("add", 1e6, 1)])
        >>> per_step(found, 2, 1)["kernels"]
        [{'kernel': 'gemm', 'ms': 1.5, 'launches': 1.0, 'class': 'product'}]
    """
    ms = lambda value: round(value / steps, 4)
    return {
        "busy_ms": ms(found["busy_ms"]),
        "launches": round(found["launches"] / steps, 1),
        "classes": {kind: ms(value) for kind, value in found["classes"].items()},
        "kernels": [
            {
                "kernel": one["kernel"][:90],
                "ms": ms(one["ms"]),
                "launches": round(one["launches"] / steps, 1),
                "class": class_of(one["kernel"]),
            }
            for one in found["kernels"][:top]
        ],
    }


def events(data: Any) -> Iterator[tuple[str, float, int]]:
    """Yields name, nanoseconds and 1 for each kernel of a profile.

    These are the events on the streams of GPUs; other lines of a GPU repeat them, grouped by
    operation or by program. Without a GPU they are the operations of the CPU's threads.

    Args:
        data: ``jax.profiler.ProfileData``.
    """
    planes = [plane for plane in data.planes if plane.name.startswith("/device:GPU")]
    on_gpu = bool(planes)
    for plane in planes or [one for one in data.planes if one.name == "/host:CPU"]:
        for line in plane.lines:
            if on_gpu and not line.name.startswith("Stream"):
                continue
            for event in line.events:
                if on_gpu or not _NO_KERNEL.search(event.name):
                    yield re.sub(r"[._]\d+$", "", event.name), event.duration_ns, 1


def of_jax(run: Callable[[], object]) -> dict[str, Any]:
    """Returns the kernels of ``run()``, which blocks until its work is done."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        (file,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        return summary(events(jax.profiler.ProfileData.from_file(file)))


def of_torch(run: Callable[[], object]) -> dict[str, Any]:
    """Returns the kernels of ``run()``, which blocks until its work is done."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as made:
        run()
    name = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    # Microseconds; calls of the driver take none on the GPU.
    taken = [(one.key, 1e3 * getattr(one, name), one.count) for one in made.key_averages()]
    return summary(one for one in taken if one[1])
