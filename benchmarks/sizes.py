"""Sizes of the models that several benchmarks measure."""

__all__ = ["BASE", "GPT2", "sized"]

GPT2 = {"vocab": 50_257, "width": 768, "heads": 12, "layers": 12}  # the smallest GPT-2
BASE = {"vocab": 37_000, "width": 512, "heads": 8, "layers": 6, "hidden": 2048}  # Vaswani et al.
# The largest sizes of --tiny.
_TINY = {
    "vocab": 1000, "width": 32, "heads": 2, "layers": 1, "hidden": 64, "context": 16,
    "batch": 4, "length": 8, "prompt": 8, "new": 4, "texts": 64, "deals": 2, "count": 16,
    "image": 32,
}  # fmt: skip


def sized(tiny: bool, **size: int) -> dict[str, int]:
    """Returns the sizes of a model and of its work, at most those of a tiny one with ``tiny``.

    Example:
        >>> sized(True, width=256, beams=4), sized(False, width=256)
        ({'width': 32, 'beams': 4}, {'width': 256})
    """
    if not tiny:
        return size
    return {name: min(value, _TINY.get(name, value)) for name, value in size.items()}
