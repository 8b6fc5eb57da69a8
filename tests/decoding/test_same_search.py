"""Searches find what two loops of beams and one of single texts found before they were one."""

import hashlib
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.search_cases import FIRST, PAD, SECOND, B, P, T, V, draw_case, follow
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.search import search
from transformer_jax.decoding.search_plan import plan_of, search_settings, values_of, with_special
from transformer_jax.decoding.search_state import PromptContext, SearchRows, Steps, row_keys

# By seed: a digest of all tokens, the sum of log-probabilities, and how many texts end.
STORED = json.loads(Path(__file__).with_name("searches.json").read_text())
_VALUES = {"repetition_penalty": "repetition", "no_repeat_ngram_size": "ngram"}
_USED = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 3, "temperature": 0.5, "top_k": 2,
         "top_p": 0.5, "min_p": 0.1}  # fmt: skip


def run(case):
    """The results of the one loop."""

    def step(tokens, state):
        state = follow(state, tokens)
        logits = jnp.asarray(FIRST)[tokens] + jnp.asarray(SECOND)[state]
        return case["spread"] * logits, state

    def reorder(state, parents):
        return jnp.take_along_axis(state.reshape(parents.shape), parents, axis=1).reshape(-1)

    ends, sampled = case["ends"], case["kind"] == "sample"
    special = SpecialTokens(ends[0], PAD, case["suppressed"], ends[1:])
    single = case["kind"] in ("greedy", "sample")
    config = GenerationConfig(
        num_beams=1 if single else case["beams"],
        num_return_sequences=1 if single else case["returned"],
        normalization="none" if single else case["normalization"],
        length_penalty=case["alpha"],
        min_length=case["min_length"],
        at_limit="eos" if case["kind"] == "beam" else "cut",
        **{name: _USED[name] for name in case["rows"]},
    )
    kept = 16 * case["returned"] if case["deep"] and not single else None
    plan = plan_of([config], beams=config.num_beams, sampled=sampled, kept=kept)
    values = values_of(config, plan, vocab=V, length=T)
    values = values._replace(**{_VALUES.get(name, name): x for name, x in case["rows"].items()})
    settings = with_special(plan, values, special, V)
    keys = row_keys(jax.random.key(case["key"]), jnp.arange(B)) if sampled else None
    context = PromptContext(jnp.asarray(case["prompts"]), jnp.int32(P), jnp.asarray(case["starts"]))
    last = jnp.asarray(case["prompts"][:, -1])
    rows = SearchRows(last, jnp.asarray(case["limits"]), keys, context=context)
    state = jnp.zeros(B * config.num_beams, jnp.int32)
    return jax.device_get(search(Steps(step, reorder), state, rows, *settings, length=T))


@pytest.mark.parametrize("seed", STORED)
@pytest.mark.quick("0", "1")
def test_tokens_lengths_and_log_probs_are_those_of_before(seed):
    case = draw_case(int(seed))
    out = run(case)
    ids = [
        [row[p, :n].tolist() for p, n in enumerate(lengths)]
        for row, lengths in zip(out.tokens, out.lengths, strict=True)
    ]
    digest, total, ended = STORED[seed]
    assert hashlib.sha256(json.dumps([ids]).encode()).hexdigest()[:12] == digest
    there = out.lengths > 0
    assert np.where(there, out.log_probs, 0).sum() == pytest.approx(total, abs=1e-3)
    if case["kind"] == "cut":  # there every text ended with an end that cost nothing
        ended = sum(text[-1] in case["ends"] for row in ids for text in row if text)
    assert (out.ended & there).sum() == ended


def test_settings_are_computed_once_and_cannot_be_written_to():
    special, how = SpecialTokens(1, PAD, (3,)), {"vocab": V, "length": T}
    _, values = search_settings(GenerationConfig(length_penalty=0.5), special, **how)
    assert search_settings(GenerationConfig(length_penalty=0.5), special, **how)[1] is values
    with pytest.raises(ValueError, match="read-only"):
        values.suppressed[4] = True
    _, other = search_settings(GenerationConfig(length_penalty=0.6), special, **how)
    assert not np.array_equal(other.penalties, values.penalties)
