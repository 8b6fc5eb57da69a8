"""A custom attention by name: trained, stored, loaded and searched like the library's own.

Its name is in the stored configuration, so whatever loads the run imports this module first:
``import own_attention`` in Python, ``--import own_attention`` on the command line.
"""

import jax.numpy as jnp
import numpy as np
from flax import nnx

import transformer_jax as tj


class CosineAttention(tj.Attention):
    """Attention of unit queries and keys (Henry et al. 2020), times a fixed scale."""

    def attend(self, q, k, v, scores, key=None):
        """Attends with the cosines of queries and keys as scores."""
        unit = lambda x: x / jnp.linalg.norm(x + 1e-6, axis=-1, keepdims=True)
        return super().attend(10 * unit(q), unit(k), v, scores, key)


tj.register_mixer("cosine", CosineAttention)


def main() -> tuple[str, float]:
    sizes = {"vocab_size": 50, "d_model": 32, "encoder_layers": 0, "decoder_layers": 2}
    attention = tj.AttentionConfig(num_heads=4)
    config = tj.TransformerConfig(**sizes, attention=attention, mixer=tj.MixerConfig(kind="cosine"))
    model = tj.Decoder(config, rngs=nnx.Rngs(0))
    text = jnp.asarray(np.random.default_rng(0).integers(1, 50, (1, 8)))
    # Decoding with the cache equals the complete text, as for any attention.
    cache = model.init_cache(None, 1, 8)
    logits, cache = model.prefill(text[:, :7], cache)
    logits, cache = model.step(text[:, 7], cache)
    name = type(model.decoder.blocks[0].self_attention).__name__
    apart = float(jnp.abs(logits - model(text)[:, -1]).max())
    print(f"{name}: logits with the cache differ from those of the text by {apart:.1e}")
    return name, apart


if __name__ == "__main__":
    main()
