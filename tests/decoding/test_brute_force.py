"""The best texts of a wide beam are the best of all texts, enumerated by NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.test_beam import random_trees, tree_reorder, tree_step
from tests.platforms import trace_for
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.search import search
from transformer_jax.decoding.search_plan import penalty_table, search_settings
from transformer_jax.decoding.search_state import PromptContext, SearchRows, Steps

EOS, V, T = 0, 4, 4
ALPHAS = (0.0, 0.3, 0.6, 1.0, 1.5)

CASES = {
    "eos": {"at_limit": "eos", "normalization": "gnmt", "num_return_sequences": 5},
    "cut": {"normalization": "power", "num_return_sequences": 5},
    "eos-short": {
        "at_limit": "eos", "normalization": "gnmt", "num_return_sequences": 4, "min_length": 3,
        "suppress_tokens": (2,),
    },
    "cut-unrepeated": {
        "normalization": "gnmt", "num_return_sequences": 4, "min_length": 2,
        "no_repeat_ngram_size": 2,
    },
    "hf-never": {"finishing": "hf", "early_stopping": "never", "num_return_sequences": 4},
}  # fmt: skip


def all_texts(tree, limit, alpha, config):
    """Each text with its log-probability and score, best first, in double precision."""
    wide = tree.astype(np.float64)
    table = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    n, forced, found = config.no_repeat_ngram_size, config.at_limit == "eos", []

    def repeats(text):
        runs = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
        return n > 0 and len(runs) > len(set(runs))

    def grow(node, text, total):
        last = len(text) + 1 == limit
        for token in range(V):
            early = token == EOS and len(text) + 1 < config.min_length
            barred = token in config.suppress_tokens or repeats([*text, token])
            if barred or (early and not (forced and last)) or (forced and last and token != EOS):
                continue
            longer, worth = [*text, token], total + table[node, token]
            if token == EOS or last:
                found.append((worth, longer))
            else:
                grow(V * node + 1 + token, longer, worth)

    if limit:
        grow(0, [], 0.0)
    base = {"power": lambda k: k, "gnmt": lambda k: (5 + k) / 6}[config.normalization]
    scored = [(worth / base(len(text)) ** alpha, worth, text) for worth, text in found]
    return sorted(scored, key=lambda one: -one[0])[: config.num_return_sequences]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_a_wide_beam_finds_the_best_of_all_texts(monkeypatch, name, platform):
    trace_for(monkeypatch, platform)
    hf, count = name.startswith("hf"), 40
    config = GenerationConfig(
        num_beams=128 if hf else 64, do_sample=False, eos_token_id=(EOS,), pad_token_id=3,
        **CASES[name],
    )  # fmt: skip
    trees = random_trees(list(CASES).index(name), count, V, T)
    limits = np.random.default_rng(1).integers(T if hf else 0, T + 1, count).astype(np.int32)
    alphas = np.full(count, config.length_penalty) if hf else np.resize(ALPHAS, count)

    @jax.jit
    def run(trees, table):
        step, cache = tree_step(trees, config.num_beams)
        zeros = jnp.zeros(count, jnp.int32)
        rows = SearchRows(zeros, limits, context=PromptContext(zeros[:, None][:, :0], 0, zeros))
        plan, values = search_settings(config, vocab=V, length=T)
        values = values._replace(penalties=table)
        return search(Steps(step, tree_reorder), cache, rows, plan, values, length=T)

    found = jax.device_get(run(trees, penalty_table(config.normalization, alphas, T)))
    for b in range(count):
        wanted = all_texts(trees[b], int(limits[b]), float(alphas[b]), config)
        there = [p for p in range(len(wanted)) if found.lengths[b, p]]
        assert len(there) == len(wanted)
        for p, (score, log_prob, text) in enumerate(wanted):
            assert found.tokens[b, p, : found.lengths[b, p]].tolist() == text
            assert found.scores[b, p] == pytest.approx(score, abs=1e-5)
            assert found.log_probs[b, p] == pytest.approx(log_prob, abs=1e-5)
