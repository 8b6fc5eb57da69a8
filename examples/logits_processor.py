"""Decoding with a logits processor of one's own: sequences that never use a letter twice."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

import transformer_jax as tj
from transformer_jax.decoding.generate import (
    append_token,
    continue_generation,
    generate,
    init_generation,
)
from transformer_jax.decoding.options import SpecialTokens

PAD, EOS, BOS, V, LENGTH = 0, 1, 2, 20, 8


def main():
    config = tj.TransformerConfig(
        vocab_size=V,
        d_model=32,
        encoder_layers=0,
        decoder_layers=1,
        attention=tj.AttentionConfig(num_heads=4),
        feed_forward=tj.FeedForwardConfig(d_ff=64),
    )
    model = tj.Decoder(config, rngs=nnx.Rngs(0))
    special, first = SpecialTokens(EOS, PAD, suppress_tokens=(PAD, BOS, EOS)), jnp.full(3, BOS)

    # Search takes any step that maps tokens and a cache to logits: wrap it ...
    def colder(tokens, cache):
        logits, cache = model.step(tokens, cache)
        return 2.0 * logits, cache

    plain = generate(colder, model.init_cache(None, 3, LENGTH), first, special, length=LENGTH)

    # ... or, where the processor looks at what was generated, wrap what appends a token.
    def once(state, logits):
        used = jax.nn.one_hot(state.tokens, V).any(1)
        append = functools.partial(append_token, special=special)
        return append(state, jnp.where(used, -jnp.inf, logits))

    state = init_generation(model.init_cache(None, 3, LENGTH), first, length=LENGTH, pad=PAD)
    state = continue_generation(model.step, state, LENGTH, once)
    print(plain.tokens)
    print(state.tokens)  # no id twice in a row
    return plain.tokens, state.tokens


if __name__ == "__main__":
    main()
