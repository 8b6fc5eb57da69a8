"""Attention of one's own, by name: trained, stored, loaded and searched like the library's.

The name is in the stored configuration, so that a program that loads the run imports this module
first: ``--import own_attention`` on the command line, ``import own_attention`` in Python.

    cd examples
    transformer-jax train small --data.source pt.txt --data.target en.txt \
        --import own_attention --model.mixer.kind cosine
"""

import jax.numpy as jnp

import transformer_jax as tj


class CosineAttention(tj.Attention):
    """Attention of unit queries and keys (Henry et al. 2020), times a fixed scale."""

    def attend(self, q, k, v, scores, key=None):
        """Attends with the cosines of queries and keys as scores."""
        unit = lambda x: x / jnp.linalg.norm(x + 1e-6, axis=-1, keepdims=True)
        return super().attend(10 * unit(q), unit(k), v, scores, key)


tj.register_mixer("cosine", CosineAttention)
