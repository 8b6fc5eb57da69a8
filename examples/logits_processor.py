"""Decoding with a custom logits processor: sequences that never use a letter twice."""

import jax
import jax.numpy as jnp
from flax import nnx

import transformer_jax as tj
from transformer_jax.decoding.search import advance_search, search, search_result
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.decoding.search_state import SearchRows, Steps, start_search

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
    how = tj.GenerationConfig(pad_token_id=PAD, suppress_tokens=(PAD, BOS, EOS))
    settings, rows = search_settings(how, vocab=V, length=LENGTH), SearchRows(jnp.full(3, BOS))

    # Search takes any step that maps tokens and a cache to logits: wrap it ...
    def colder(tokens, cache):
        logits, cache = model.step(tokens, cache)
        return 2.0 * logits, cache

    cache = model.init_cache(None, 3, LENGTH)
    plain = search(Steps(colder), cache, rows, *settings, length=LENGTH)

    # ... or, if the processor depends on generated tokens, advance the search yourself.
    state = start_search(model.init_cache(None, 3, LENGTH), rows, *settings, length=LENGTH)
    for _ in range(LENGTH):
        logits, cache = model.step(state.last[:, 0], state.cache)
        used = jax.nn.one_hot(state.tokens[:, :, 0], V).any(0)
        logits = jnp.where(used, -jnp.inf, logits)
        state = advance_search(model, state._replace(cache=cache), logits, *settings)
    once = search_result(state, *settings)
    print(plain.tokens[:, 0])
    print(once.tokens[:, 0])  # no repeated id in a row
    return plain.tokens[:, 0], once.tokens[:, 0]


if __name__ == "__main__":
    main()
