"""A small decoder of letters, which tests of preferences train."""

import dataclasses

from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.recipes.registry import named_runs

RUNS = named_runs("language_model", "ngram")

TOKENIZER = train_tokenizer("characters", ["abcdefgh"], 12)
_NAMED = RUNS["in-context"][1].model
CONFIG = dataclasses.replace(
    _NAMED,
    d_model=32,
    decoder_layers=1,
    vocab_size=TOKENIZER.vocab_size,
    attention=dataclasses.replace(_NAMED.attention, num_heads=2),
    feed_forward=dataclasses.replace(_NAMED.feed_forward, d_ff=64),
    positions=dataclasses.replace(_NAMED.positions, max_length=32),
    compute=dataclasses.replace(_NAMED.compute, dtype="float32"),
)
