"""Laws on transformers' GPT-2 (install torch too), and a fault: positions that count padding."""

import functools

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from transformer_jax import laws

torch.manual_seed(0)
SIZES = {"vocab_size": 50, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
CONFIG = GPT2Config(**SIZES, bos_token_id=None, eos_token_id=None)
MODEL = GPT2LMHeadModel(CONFIG).eval()  # use from_pretrained for a trained one


# Laws need functions of NumPy arrays.
@torch.no_grad()
def logits(tokens):
    return MODEL(torch.as_tensor(tokens)).logits.numpy()


@torch.no_grad()
def read(tokens, keys, real, skip):
    """Returns logits of tokens after a cache, and both caches; ``real`` is False at padding."""
    places = (real.cumsum(1) - 1).clamp(min=0) if skip else torch.arange(real.shape[1])[None]
    places = places[:, -tokens.shape[1] :].expand(len(real), -1)
    given = {"past_key_values": keys, "attention_mask": real, "position_ids": places}
    found = MODEL(torch.as_tensor(tokens), **given)
    return found.logits[:, -1].numpy(), (found.past_key_values, real)


def prefill(tokens, cache, starts, skip=True):
    real = torch.arange(tokens.shape[1])[None] >= torch.as_tensor(starts)[:, None]
    return read(tokens, None, real.long(), skip)


def step(token, cache, skip=True):
    keys, real = cache or (None, torch.ones(len(token), 0, dtype=torch.long))
    return read(token[:, None], keys, torch.nn.functional.pad(real, (0, 1), value=1), skip)


def main():
    tokens, starts = np.random.default_rng(0).integers(0, 50, (2, 8)), np.array([0, 3])
    counts = [functools.partial(function, skip=False) for function in (prefill, step)]
    findings = [
        laws.causality(logits, tokens),
        laws.batch_of_one(logits, tokens),
        laws.cached(logits, step, None, tokens),
        laws.prompt_padding(logits, prefill, step, None, tokens, starts),
        laws.prompt_padding(logits, *counts, None, tokens, starts),  # the fault
    ]
    for found in findings:
        print("holds " if found.holds else "BROKEN", found)
    return findings


if __name__ == "__main__":
    main()
