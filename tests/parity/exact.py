"""Transformers in float64 all the way; needs torch."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """float64 where the models would go down to float32: in softmax, norms and RoPE."""
    before = torch.float32, torch.float, torch.Tensor.float, torch.get_default_dtype()
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float, usual = before
        torch.set_default_dtype(usual)
