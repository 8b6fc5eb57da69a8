"""The peers' cases for language models: nanoGPT's model, Hugging Face GPT-2 and CTranslate2.

Runs in the peers' Python, so it imports only the worker from this repository.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers_steps import training_steps
from benchmarks.worker import DEVICE, Setup, serve

THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
torch.set_num_threads(THREADS)


class Norm(nn.Module):
    """Layer norm without a bias."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        """Returns normalized ``x``."""
        return functional.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class Block(nn.Module):
    """Attention and feed-forward as in nanoGPT, without biases or dropout."""

    def __init__(self, width: int, heads: int, gelu: str):
        super().__init__()
        self.heads = heads
        self.gelu = nn.GELU(approximate="none" if gelu == "exact" else "tanh")
        self.ln_1, self.ln_2 = Norm(width), Norm(width)
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        """Returns the block's output."""
        B, T, C = x.shape
        q, k, v = (
            a.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            for a in self.c_attn(self.ln_1(x)).split(C, dim=2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.down(self.gelu(self.c_fc(self.ln_2(x))))


class Gpt(nn.Module):
    """nanoGPT's model, with a tied head."""

    def __init__(self, vocab, width, heads, layers, context, gelu):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, gelu) for _ in range(layers))
        self.ln_f = Norm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
        self.wte.weight = self.head.weight

    def forward(self, tokens, targets):
        """Returns the mean loss."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def train(
    vocab, width, heads, layers, context, batch, gelu="exact", compiled=False, dtype="float32"
):
    """One step of nanoGPT's training loop, with fused AdamW; bfloat16 by autocast."""
    torch.manual_seed(0)
    model = Gpt(vocab, width, heads, layers, context, gelu).to(DEVICE).train()
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, fused=True)
    run_model = torch.compile(model) if compiled else model
    rng = np.random.default_rng(0)
    draw = lambda: torch.from_numpy(rng.integers(0, vocab, (batch, context))).to(DEVICE)
    batches = [(draw(), draw()) for _ in range(8)]
    return training_steps(parameters, optimizer, run_model, batches, dtype)


_models: dict[str, nn.Module] = {}


def gpt2(vocab: int, width: int, heads: int, layers: int, dtype: str = "float32"):
    """Creates a GPT-2 with random weights, one size per process."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    if dtype not in _models:
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=vocab, n_embd=width, n_head=heads, n_layer=layers)
        end = vocab - 1
        config.bos_token_id = config.eos_token_id = end
        _models[dtype] = GPT2LMHeadModel(config).eval().to(DEVICE, getattr(torch, dtype))
    return _models[dtype]


def _prompts(batch: int, length: int, vocab: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, vocab - 1, (batch, length))


def generate(batch, prompt, new, beams=1, dtype="float32", cache=None, **size):
    """Hugging Face ``generate``: exactly ``new`` tokens per prompt; a static cache compiles it."""
    model = gpt2(**size, dtype=dtype)
    ids = torch.from_numpy(_prompts(batch, prompt, size["vocab"])).to(DEVICE)
    mask = torch.ones_like(ids)

    @torch.no_grad()
    def run(times):
        for _ in range(times):
            out = model.generate(
                input_ids=ids, attention_mask=mask, do_sample=False, num_beams=beams,
                pad_token_id=size["vocab"] - 1, min_new_tokens=new, max_new_tokens=new,
                cache_implementation=cache,
            )  # fmt: skip
        assert out.shape[1] == prompt + new
        return out[0, prompt:][:8].tolist()

    run(1)
    return run, {}


def prefill(batch, prompt, new, dtype="float32", **size):
    """Hugging Face: reads prompts, and computes the next logits."""
    model = gpt2(**size, dtype=dtype)
    ids = torch.from_numpy(_prompts(batch, prompt, size["vocab"])).to(DEVICE)

    @torch.no_grad()
    def run(times):
        for _ in range(times):
            out = model(ids, logits_to_keep=1, use_cache=True)
        return int(out.logits[0, -1].argmax())

    run(1)
    return run, {}


def _convert(folder: str, size: dict[str, Any]) -> Path:
    """Writes the same weights as a CTranslate2 model, with its loader."""
    from ctranslate2.converters.transformers import GPT2Loader

    where = Path(folder) / "ctranslate2"
    if not where.exists():
        loader = GPT2Loader()
        spec = loader.get_model_spec(gpt2(**size).cpu())
        spec.register_vocabulary([f"t{i}" for i in range(size["vocab"] - 1)] + ["<|endoftext|>"])
        for name in ("bos_token", "eos_token", "unk_token"):
            setattr(spec.config, name, "<|endoftext|>")
        spec.validate()
        spec.optimize(quantization="float32")
        where.mkdir(parents=True)
        spec.save(str(where))
    return where


def ctranslate2(folder, batch, prompt, new, beams=1, precision="float32", **size):
    """CTranslate2: exactly ``new`` tokens per prompt."""
    import ctranslate2

    generator = ctranslate2.Generator(
        str(_convert(folder, size)),
        device=DEVICE,
        inter_threads=1,
        intra_threads=THREADS,
        compute_type=precision,
    )
    tokens = [[f"t{i}" for i in row] for row in _prompts(batch, prompt, size["vocab"])]

    def run(times):
        for _ in range(times):
            out = generator.generate_batch(
                tokens, max_batch_size=0, beam_size=beams, sampling_topk=1, min_length=new,
                max_length=new, include_prompt_in_result=False,
            )  # fmt: skip
        assert all(len(one.sequences_ids[0]) == new for one in out)
        return out[0].sequences_ids[0][:8]

    run(1)
    return run, {"compute_type": generator.compute_type}


CASES: dict[str, Setup] = {
    "train": train,
    "generate": generate,
    "prefill": prefill,
    "ctranslate2": ctranslate2,
}

if __name__ == "__main__":
    serve(CASES)
