"""nanoGPT's character run in torch, on given batches; see ``curve``."""

import json
import math
import os
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, CONTEXT, DROPOUT, STEPS, WARM_UP = 6, 6, 384, 256, 0.2, 5000, 100


class Block(nn.Module):
    """A block like nanoGPT's, without biases."""

    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.c_fc = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x):
        """Returns the block's output."""
        B, T, C = x.shape
        parts = self.c_attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (a.view(B, T, HEADS, C // HEADS).transpose(1, 2) for a in parts)
        rate = DROPOUT if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        x = x + self.drop(self.c_proj(y.transpose(1, 2).reshape(B, T, C)))
        return x + self.drop(self.down(functional.gelu(self.c_fc(self.ln_2(x)))))


class Gpt(nn.Module):
    """The model with a tied head, initialized as in nanoGPT."""

    def __init__(self, vocab):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.drop = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                residual = name.endswith(("c_proj.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * LAYERS) if residual else 1))

    def forward(self, tokens, targets):
        """Returns the mean loss."""
        x = self.drop(self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1])))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def rate(step):
    """Returns nanoGPT's learning rate: warmup, then cosine decay to a tenth."""
    if step < WARM_UP:
        return 1e-3 * (step + 1) / WARM_UP
    part = (step - WARM_UP) / (STEPS - WARM_UP)
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * part)) * 9e-4


def main(tokens, every, output):
    """Trains and writes both losses."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(1)
    data = np.load(tokens)
    train, valid = (torch.from_numpy(data[name].astype(np.int64)) for name in ("train", "valid"))
    model = Gpt(int(max(train.max(), valid.max())) + 1)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    blocks = [valid[i : i + CONTEXT + 1] for i in range(0, len(valid) - CONTEXT, CONTEXT)]

    def look():
        model.eval()
        with torch.no_grad():
            parts = [torch.stack(blocks[i : i + 64]) for i in range(0, len(blocks), 64)]
            sums = [model(part[:, :-1], part[:, 1:]).item() * len(part) for part in parts]
        model.train()
        return sum(sums) / len(blocks)

    losses, looks = [], []
    for step, begins in enumerate(data["begins"]):
        rows = torch.stack([train[i : i + CONTEXT + 1] for i in begins])
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append([step + 1, loss.item()])
        if (step + 1) % every == 0:
            looks.append([step + 1, look()])
            print("torch", looks[-1], flush=True)
    with open(output, "w") as file:
        json.dump({"loss": losses, "valid_loss": looks}, file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
