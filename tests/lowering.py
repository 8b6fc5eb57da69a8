"""One MLIR context for all programs of a test process.

JAX makes a context for each program and loads its dialects into it, which takes longer than to
lower a small program. Results do not depend on the context.
"""

import functools

from jax._src.interpreters import mlir


def share_context() -> None:
    """Programs are lowered in one context from now on, or until it is dropped."""
    if not hasattr(mlir.make_ir_context, "cache_clear"):
        mlir.make_ir_context = functools.cache(mlir.make_ir_context)


def drop_context() -> None:
    """The next program begins another context; the memory of this one goes with its programs."""
    getattr(mlir.make_ir_context, "cache_clear", lambda: None)()
