"""Our cases: the library as used by its commands."""

from transformer_jax.core.runtime import retain_freed_memory

retain_freed_memory()

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.ours_steps import training_steps
from benchmarks.worker import Setup, serve
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.search import search
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.decoding.search_state import SearchRows
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.models.transformer.models import TransformerEncoderDecoder
from transformer_jax.parallel.placement import prepared
from transformer_jax.training.objectives import sequence_to_sequence
from transformer_jax.training.state import split

PAD, BOS, EOS = 0, 2, 3


def configuration(vocab: int, width: int, heads: int, layers: int, hidden: int, **norm: Any):
    """Returns the architecture of Marian and of ``torch.nn.Transformer``."""
    return TransformerConfig(
        vocab_size=vocab,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        embedding=EmbeddingConfig(dropout=0.0),
        positions=PositionConfig(kind="sinusoidal_halves", max_length=512),
        attention=AttentionConfig(num_heads=heads),
        feed_forward=FeedForwardConfig(d_ff=hidden),
        norm=NormConfig(eps=1e-5, residual_dropout=0.0, **norm),
        head=HeadConfig(bias=True),
    )


def train(
    vocab, width, heads, layers, hidden, batch, length, chunk=None, dtype="float32", options=None
):
    """One AdamW step with label smoothing and clipping, without dropout, on full batches."""
    config = configuration(vocab, width, heads, layers, hidden, final=True)
    config = dataclasses.replace(config, compute=ComputeConfig(dtype=dtype))
    model = TransformerEncoderDecoder(config, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    draw = lambda: rng.integers(4, vocab, (batch, length)).astype(np.int32)
    full = np.full(batch, length, np.int32)
    inputs = lambda: {"source": draw(), "source_lengths": full}
    batches = [{"inputs": inputs(), "target": draw(), "lengths": full} for _ in range(8)]
    objective = sequence_to_sequence(BOS, 0.1, chunk=chunk)
    how: dict[str, Any] = {"weight_decay": 0.01, "options": options}
    run, facts = training_steps(model, objective, width, batches, **how)
    return run, facts | {"flops": training_flops(config, batch, length, length)}


def load_marian(folder: str, config: TransformerConfig) -> tuple[Any, dict]:
    """Loads the peers' random weights in our layout."""
    stored = np.load(Path(folder) / "marian.npz")
    graph, params = split(TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)))
    linear = lambda name: {
        "kernel": stored[f"model.{name}.weight"].T,
        "bias": stored[f"model.{name}.bias"],
    }
    norm = lambda name: {
        "gain": stored[f"model.{name}.weight"],
        "bias": stored[f"model.{name}.bias"],
    }
    attention = lambda name: {
        ours: linear(f"{name}.{theirs}_proj")
        for ours, theirs in zip(
            ("query", "key", "value", "out"), ("q", "k", "v", "out"), strict=True
        )
    }
    new: dict[str, Any] = {"embedding": {"table": stored["model.shared.weight"]}}
    new["head"] = {"bias": stored["final_logits_bias"][0]}
    for side in ("encoder", "decoder"):
        blocks = {}
        for i in params[side]["blocks"]:
            at = f"{side}.layers.{i}"
            blocks[i] = {
                "self_attention": attention(f"{at}.self_attn"),
                "self_attention_norm": norm(f"{at}.self_attn_layer_norm"),
                "feed_forward": {"up": linear(f"{at}.fc1"), "down": linear(f"{at}.fc2")},
                "feed_forward_norm": norm(f"{at}.final_layer_norm"),
            }
            if side == "decoder":
                blocks[i]["cross_attention"] = attention(f"{at}.encoder_attn")
                blocks[i]["cross_attention_norm"] = norm(f"{at}.encoder_attn_layer_norm")
        new[side] = {"blocks": blocks}
    new = jax.tree.map(jnp.asarray, new)
    assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, params)
    return graph, new


def decode(folder, vocab, width, heads, layers, hidden, batch, length, new, beams, dtype="float32"):
    """The loop of ``translate``: exactly ``new`` tokens per sentence.

    The weights are the peers' in ``folder``; without a folder they are random.
    """
    config = configuration(vocab, width, heads, layers, hidden)
    config = dataclasses.replace(config, compute=ComputeConfig(dtype=dtype))
    if folder is None:
        graph, params = split(TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)))
    else:
        graph, params = load_marian(folder, config)
    narrow = lambda a: a.astype(dtype) if a.ndim > 1 else a
    graph, params = prepared(graph, jax.tree.map(narrow, params))
    rng = np.random.default_rng(1)
    source = rng.integers(4, vocab, (batch, length)).astype(np.int32)
    source[:, -1] = EOS
    lengths = np.full(batch, length, np.int32)
    first = jnp.full(batch, BOS, jnp.int32)

    @jax.jit
    def translate(params, source, lengths):
        model = nnx.merge(graph, params)
        # -1 is not a token, so every sentence takes all steps, as with the peers.
        inputs = {"source": source, "source_lengths": lengths}
        cache = model.init_cache(inputs, batch, new, beams=beams)
        how = {"normalization": "power", "length_penalty": 1.0, "min_length": new + 1}
        config, most = TRANSLATION.changed(num_beams=beams, **how), new + (beams > 1)
        special = SpecialTokens(EOS, PAD) if beams > 1 else SpecialTokens(-1, PAD, (EOS,))
        settings = search_settings(config, special, vocab=vocab, length=most)
        return search(model, cache, SearchRows(first), *settings, length=most).tokens[:, 0, :new]

    translate(params, source, lengths).block_until_ready()

    def run(times):
        for _ in range(times):
            out = translate(params, source, lengths)
        return np.asarray(out).tolist()

    return run, {}


CASES: dict[str, Setup] = {"train": train, "decode": decode}

if __name__ == "__main__":
    serve(CASES)
