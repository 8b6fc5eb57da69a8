"""Ways to compute the formulas of :mod:`transformer_jax.functional`, behind their names.

``choice`` picks among the kernels of attention: ``xla``, ``chunked``, ``ring``, ``cudnn`` and
``splash``. ``cross_entropy`` is the fused loss. ``cpu`` holds layers as XLA:CPU needs them, made of
its ``products``.
"""
