"""Kernels: faster implementations of formulas of :mod:`transformer_jax.functional`.

``choice`` picks among the kernels of attention: ``xla``, ``chunked``, ``ring``, ``cudnn`` and
``splash``. ``cross_entropy`` is the fused loss. ``cpu`` holds layers for XLA:CPU, which are made of
``products``.
"""
