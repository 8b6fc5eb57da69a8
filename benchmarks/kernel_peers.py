"""Attention of other libraries, as far as they are installed."""

import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.kernel_cases import AttentionCase, Peer, Work
from benchmarks.kernel_timing import clock_of, passes, per_call, repeated, timer

__all__ = ["attention", "versions"]


def versions() -> dict[str, str]:
    """Returns the versions of installed peers."""
    found = {}
    for name in ("torch", "tokamax"):
        if importlib.util.find_spec(name) is not None:
            found[name] = importlib.metadata.version(name)
    return found


def attention(case: AttentionCase, work: Work, platform: str) -> dict[str, Peer]:
    """Returns the peers' attention of a case by name, or the reason if they do not support it."""
    named: dict[str, Callable[[], Peer]] = {
        "jax.nn, xla": functools.partial(_jax_nn, case, work, "xla"),
    }
    if platform == "gpu":
        named["jax.nn, cudnn"] = functools.partial(_jax_nn, case, work, "cudnn")
    if platform != "tpu" and importlib.util.find_spec("torch") is not None:
        named["torch"] = functools.partial(_torch, case, work, platform)
    if platform != "cpu" and importlib.util.find_spec("tokamax") is not None:
        named["tokamax"] = functools.partial(_tokamax, case, work)
    found: dict[str, Peer] = {}
    for name, make in named.items():
        reason = _lacks(case)
        try:
            found[name] = _refused(reason) if reason else make()
        except Exception as error:  # peers raise various errors for unsupported cases
            text = str(error).strip() or type(error).__name__
            found[name] = _refused(text.splitlines()[0][:200])
    return found


def _refused(reason: str) -> Peer:
    return Peer(lambda: np.zeros(()), {}, reason)


def _lacks(case: AttentionCase) -> str | None:
    if case.softcap is not None:
        return "it takes no soft cap"
    if case.dropout:
        return "other weights would be dropped"
    return None


def _dense(case: AttentionCase, work: Work) -> np.ndarray | None:
    """Returns the mask ``[B 1 T S]``; None if it is only causal, or empty."""
    mask = case.mask(*map(jnp.asarray, work.inputs[3:]))
    if mask is None or mask == type(mask)(causal=True):
        return None
    (_, _, T, _), (_, _, S, _) = case.shapes[:2]
    allowed = np.asarray(mask.array(T, S))
    return np.broadcast_to(allowed, (case.batch, 1, T, S))


def _of_jax(run: Callable[..., Any], work: Work) -> Peer:
    """Returns timers of a JAX peer, whose arrays have heads after positions."""
    inputs = tuple(jnp.asarray(x).swapaxes(1, 2) for x in work.inputs[:3])
    result = jax.jit(run)
    result(*inputs).block_until_ready()
    timers = {
        which: timer(repeated(function, inputs, work.differentiated), inputs)
        for which, function in passes(run, work.differentiated).items()
    }
    return Peer(lambda: np.asarray(result(*inputs), np.float64).swapaxes(1, 2), timers)


def _jax_nn(case: AttentionCase, work: Work, implementation: Literal["xla", "cudnn"]) -> Peer:
    dense, bias = _dense(case, work), case.bias()
    mask = None if dense is None else jnp.asarray(dense)
    causal = case.causal and dense is None

    def run(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(
            q, k, v, bias, mask, is_causal=causal, implementation=implementation
        )  # fmt: skip

    return _of_jax(run, work)


def _tokamax(case: AttentionCase, work: Work) -> Peer:
    import tokamax

    dense, bias = _dense(case, work), case.bias()
    mask = None if dense is None else jnp.asarray(dense)
    causal = case.causal and dense is None

    def run(q: Any, k: Any, v: Any) -> Any:
        return tokamax.dot_product_attention(q, k, v, bias=bias, mask=mask, is_causal=causal)

    return _of_jax(run, work)


def _torch(case: AttentionCase, work: Work, platform: str) -> Peer:
    import torch

    clock = clock_of(platform)
    torch.set_num_threads(1)
    where = "cuda" if platform == "gpu" else "cpu"
    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    dtype = kind[str(work.inputs[0].dtype)]
    give = lambda x: torch.tensor(np.asarray(x, np.float32), device=where)
    q, k, v = (give(x).to(dtype).requires_grad_() for x in work.inputs[:3])
    dense, bias = _dense(case, work), case.bias()
    allowed = None if dense is None else torch.tensor(dense, device=where)
    causal = case.causal and dense is None
    if bias is not None:
        allowed, causal = give(_with_bias(case, np.asarray(bias), dense)).to(dtype), False
    shared = {"enable_gqa": True} if case.kv_heads else {}

    def forward() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, is_causal=causal, **shared
        )  # fmt: skip

    y = forward()
    ones = torch.ones_like(y)

    def alone() -> None:
        with torch.no_grad():
            forward()

    def both() -> None:
        torch.autograd.grad(forward(), (q, k, v), ones)

    def timed(function: Callable[[], None]) -> Callable[[], float]:
        def seconds(n: int) -> float:
            began = clock()
            for _ in range(n):
                function()
            if where == "cuda":
                torch.cuda.synchronize()
            return clock() - began

        return per_call(seconds)

    result = lambda: y.detach().float().cpu().numpy().astype(np.float64)
    return Peer(result, {"forward": timed(alone), "forward+backward": timed(both)})


def _with_bias(case: AttentionCase, bias: np.ndarray, dense: np.ndarray | None) -> np.ndarray:
    """Returns a bias of minus infinity at masked keys."""
    T, S = bias.shape[2:]
    seen = np.tril(np.ones((T, S), bool)) if case.causal and dense is None else dense
    return bias if seen is None else np.where(seen, bias, -np.inf)
