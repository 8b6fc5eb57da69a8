"""Converts adapters that changed their base at initialization to adapters of the published base.

PiSSA (Meng et al. 2024, arXiv:2404.02948) and OLoRA (Büyükakyüz 2024, arXiv:2406.01775) start from
factors of the weights themselves and subtract their product: the stored adapter belongs to ``W - s
B₀ A₀``. With ``[A; A₀]`` and ``[B, -B₀]``, it becomes an adapter of ``W`` of twice the rank.
"""

from collections.abc import Mapping

import numpy as np

from transformer_jax.core.errors import CheckpointError

__all__ = ["as_of_unchanged_base", "first_factors", "largest_rank"]


def first_factors(
    kind: str, weight: np.ndarray, rank: int, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Computes ``A₀`` [R, in] and ``B₀`` [out, R], whose scaled product the base lacks.

    Args:
        kind: ``pissa``, from the largest singular values, or ``olora``, from a QR decomposition.
        weight: The matrix that PEFT decomposes, [out, in]; for OLoRA, the kernel as stored.
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
    """Returns the rank of stored tensors: a decomposition has at most the rank of its matrix.

    Example:
        >>> largest_rank("pissa", 8, (4, 16)), largest_rank(None, 8, (4, 16))
        (4, 8)
    """
    return rank if kind is None else min(rank, *shape)


def as_of_unchanged_base(
    where: str, kind: str, arrays: Mapping[str, np.ndarray], weight: np.ndarray, scale: float,
    *, stored_inputs_first: bool,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Returns the tensors of an adapter, ``a`` and ``b``, for the published base.

    Args:
        where: Name of the module, for messages.
        kind: The initialization.
        arrays: ``a`` [R, in], ``b`` [out, R] and optionally ``magnitude``.
        weight: The published kernel, [out, in].
        scale: The factor of the product.
        stored_inputs_first: Whether the file stores the kernel as [in, out] (GPT-2).

    Raises:
        CheckpointError: PEFT does not support this adapter for a kernel of this shape.
    """
    rank = len(arrays["a"])
    if kind == "olora" and stored_inputs_first and weight.shape[0] != weight.shape[1]:
        raise CheckpointError(
            f"{where}: OLoRA of a kernel of {weight.shape[1]} x {weight.shape[0]}, which PEFT "
            f"stores inputs first, is not supported by PEFT"
        )
    if kind == "olora" and stored_inputs_first:
        # PEFT decomposes the kernel as stored, and subtracts the product from it.
        b, a = (factor.T for factor in first_factors(kind, weight.T, rank, scale))
    else:
        a, b = first_factors(kind, weight, rank, scale)
    own = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
    return own | {"a": np.concatenate([own["a"], a]), "b": np.concatenate([own["b"], -b], axis=1)}
