"""Ways to compute the formulas of :mod:`transformer_jax.functional`, behind their names.

``choice`` picks among the kernels of attention: ``xla``, ``chunked``, ``ring``, ``cudnn`` and
``splash``. ``cross_entropy`` is the fused loss, and ``cpu`` holds what XLA:CPU needs.
"""
