"""The three Transformer families on JAX and Flax NNX.

Axis letters, everywhere the same, in ``jaxtyping`` strings and einsums alike:

===  ======================================================================
B    batch
T    queries, the target's length
S    keys, the source's length
D    model width
N    query heads
K    key-value heads, each shared by ``G = N / K`` query heads
H    size of a head; ``U`` that of a value head where it differs
F    feed-forward width
V    vocabulary
L    layers
M    beams
===  ======================================================================

Masks are True where a query may look. Dropout happens if and only if a ``key`` is passed;
decoding is incremental if and only if a ``cache`` is passed.
"""

__version__ = "0.1.0"
