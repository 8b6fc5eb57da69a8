"""Our cases of recurrent translators and convolution: the library as used by its commands."""

# ruff: noqa: E402 (the allocator is set before jax is imported)

from transformer_jax.core.runtime import retain_freed_memory

retain_freed_memory()

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.ours_steps import training_steps
from benchmarks.worker import Setup, serve
from transformer_jax.data.languages import LanguageTags
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.partial_text import GenerationSequence
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.decoding.search import search
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.decoding.search_state import SearchRows
from transformer_jax.decoding.translator import Translator
from transformer_jax.functional.convolution import convolve, gated_linear_unit
from transformer_jax.models.recurrent_config import AlignmentConfig, RecurrentConfig
from transformer_jax.models.recurrent_translator import RecurrentEncoderDecoder
from transformer_jax.parallel.placement import prepared
from transformer_jax.training.objectives import sequence_to_sequence
from transformer_jax.training.state import split

PAD, BOS, EOS = 0, 2, 3
KINDS = {
    "luong": {"cell": "lstm", "attention": AlignmentConfig("general", input_feeding=True)},
    "bahdanau": {"cell": "gru_reset_after", "attention": AlignmentConfig("concat", "previous")},
}


def _model(kind: str, vocab: int, width: int) -> RecurrentEncoderDecoder:
    fields: dict[str, Any] = KINDS[kind]
    config = RecurrentConfig(vocab_size=vocab, d_model=width, dropout=0.0, **fields)
    return RecurrentEncoderDecoder(config, rngs=nnx.Rngs(0))


def train(kind, vocab, width, batch, length):
    """One AdamW step with clipping, without dropout, on full batches."""
    model = _model(kind, vocab, width)
    rng = np.random.default_rng(0)
    draw = lambda: rng.integers(4, vocab, (batch, length)).astype(np.int32)
    full = np.full(batch, length, np.int32)
    inputs = lambda: {"source": draw(), "source_lengths": full}
    batches = [{"inputs": inputs(), "target": draw(), "lengths": full} for _ in range(8)]
    return training_steps(model, sequence_to_sequence(BOS), width, batches, weight_decay=0.01)


def decode(kind, vocab, width, batch, length):
    """The greedy loop of ``translate``: as many tokens as in the source."""
    graph, params = prepared(*split(_model(kind, vocab, width)))
    rng = np.random.default_rng(1)
    source = rng.integers(4, vocab, (batch, length)).astype(np.int32)
    inputs = {"source": source, "source_lengths": np.full(batch, length, np.int32)}
    special = SpecialTokens(-1, PAD, suppress_tokens=(EOS,))
    settings = search_settings(GenerationConfig(), special, vocab=vocab, length=length)

    @jax.jit
    def translate(params, inputs):
        model = nnx.merge(graph, params)
        cache = model.init_cache(inputs, batch, length)
        rows = SearchRows(jnp.full(batch, BOS, jnp.int32))
        return search(model, cache, rows, *settings, length=length).tokens[:, 0]

    translate(params, inputs).block_until_ready()

    def run(times):
        for _ in range(times):
            out = translate(params, inputs)
        return np.asarray(out).tolist()

    return run, {}


class Numbers:
    """A tokenizer with ids as text."""

    pad, bos, eos = PAD, BOS, EOS
    end_tokens: tuple[int, ...] = (EOS,)
    unk: int | None = None
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    target_prefix_ids: tuple[int, ...] = ()
    languages: LanguageTags | None = None

    def __init__(self, vocab: int):
        self.vocab_size = vocab

    def encode_batch(self, texts):
        """Returns the ids of texts."""
        return [[int(word) for word in text.split()] for text in texts]

    def decode(self, ids):
        """Returns the text of ids."""
        return " ".join(map(str, ids))

    def convert_ids_to_tokens(self, ids):
        """Returns the ids as tokens."""
        return [str(i) for i in ids]


def lines(kind, vocab, width, sources, targets):
    """The search of ``translate FILE``: each line generates a given number of tokens."""
    model = _model(kind, vocab, width)
    model.decoder.embedding.table[EOS] = 0.0  # random states always have a logit above 0
    translator = Translator(model, Numbers(vocab))
    rng = np.random.default_rng(1)
    read = [rng.integers(4, vocab, length).tolist() for length in sources]
    how = TRANSLATION.changed(num_beams=1)

    def run(times):
        written = 0
        for _ in range(times):
            todo = [
                GenerationSequence(
                    GenerationRequest(""), i, 0, [], Numbers(vocab), "", ids, limit=most
                )
                for i, (ids, most) in enumerate(zip(read, targets, strict=True))
            ]
            # As in `translate`, one batch runs while the previous one is read.
            pending = [None, *translator.searches(todo, how)]
            written = sum(len(one.tokens) for found in pending if found for one in found().values())
        return written

    run(1)
    return run, {}


def convolution(width, places, batch, length):
    """Forward and backward pass of a causal gated convolution."""
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (batch, length, width))
    kernel = jax.random.normal(keys[1], (places, width, 2 * width)) * 0.01
    loss = lambda x, kernel: jnp.square(gated_linear_unit(convolve(x, kernel, causal=True))).mean()
    both = jax.jit(jax.grad(loss, (0, 1)))
    jax.block_until_ready(both(x, kernel))

    def run(times):
        for _ in range(times):
            found = both(x, kernel)
        return float(jax.block_until_ready(found)[0][0, 0, 0])

    return run, {}


CASES: dict[str, Setup] = {
    "train": train,
    "decode": decode,
    "lines": lines,
    "convolution": convolution,
}

if __name__ == "__main__":
    serve(CASES)
