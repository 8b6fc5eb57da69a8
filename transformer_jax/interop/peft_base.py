"""Adapters that changed their base when they began, as adapters of the base as it is published.

PiSSA (Meng et al. 2024, arXiv:2404.02948) and OLoRA (Büyükakyüz 2024, arXiv:2406.01775) begin with
factors of the weights themselves and subtract their product: what is stored belongs to ``W - s B₀
A₀``. With ``[A; A₀]`` and ``[B, -B₀]`` it is an adapter of ``W`` of twice the rank.
"""

from collections.abc import Mapping

import numpy as np

from transformer_jax.core.errors import CheckpointError

__all__ = ["as_of_unchanged_base", "first_factors", "largest_rank"]


def first_factors(
    kind: str, weight: np.ndarray, rank: int, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Computes ``A₀`` [R, in] and ``B₀`` [out, R], whose scaled product the base lost.

    Args:
        kind: ``pissa``, of the largest singular values, or ``olora``, of a QR decomposition.
        weight: As PEFT decomposes it, [out, in]. OLoRA takes the kernel as it is stored.
        rank: R.
        scale: The factor of the product.

    Example:
        >>> a, b = first_factors("pissa", np.diag([4.0, 1.0]).astype(np.float32), 1, 2.0)
        >>> (2.0 * b @ a).round(5) + 0.0
        array([[4., 0.],
               [0., 0.]], dtype=float32)
    """
    weight = np.asarray(weight, np.float32)
    if kind == "olora":
        q, r = np.linalg.qr(weight)
        return np.ascontiguousarray(r[:rank]), np.ascontiguousarray(q[:, :rank])
    u, values, v = np.linalg.svd(weight, full_matrices=False)
    roots = np.sqrt(values[:rank] / np.float32(scale))
    return roots[:, None] * v[:rank], u[:, :rank] * roots


def largest_rank(kind: str | None, rank: int, shape: tuple[int, int]) -> int:
    """Returns the rank of stored tensors: a decomposition has no more than its matrix has.

    Example:
        >>> largest_rank("pissa", 8, (4, 16)), largest_rank(None, 8, (4, 16))
        (4, 8)
    """
    return rank if kind is None else min(rank, *shape)


def as_of_unchanged_base(
    where: str, kind: str, arrays: Mapping[str, np.ndarray], weight: np.ndarray, scale: float,
    *, stored_inputs_first: bool,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Returns the tensors of an adapter, ``a`` and ``b``, for the base as it is published.

    Args:
        where: For messages.
        kind: How it began.
        arrays: Its ``a`` [R, in], ``b`` [out, R] and perhaps ``magnitude``.
        weight: The published kernel, [out, in].
        scale: The factor of the product.
        stored_inputs_first: Whether the kernel is stored as [in, out] there (GPT-2).

    Raises:
        CheckpointError: PEFT has no such adapter of a kernel of this shape.
    """
    rank = len(arrays["a"])
    if kind == "olora" and stored_inputs_first and weight.shape[0] != weight.shape[1]:
        raise CheckpointError(
            f"{where}: OLoRA of a kernel of {weight.shape[1]} x {weight.shape[0]}, which PEFT "
            f"stores inputs first, is none that it can train"
        )
    if kind == "olora" and stored_inputs_first:
        # PEFT decomposes the kernel as it is stored, and subtracts the product from it.
        b, a = (factor.T for factor in first_factors(kind, weight.T, rank, scale))
    else:
        a, b = first_factors(kind, weight, rank, scale)
    own = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    return own | {"a": np.concatenate([own["a"], a]), "b": np.concatenate([own["b"], -b], axis=1)}
