"""PEFT and torch, as a worker: training steps of a decoder, of all parameters or only of adapters.

Runs in the peers' Python. A process has one case, since its memory is measured.
"""

import os
import resource

import numpy as np
import torch

from benchmarks.peers_steps import training_steps
from benchmarks.worker import serve

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def train(vocab, width, heads, layers, hidden, context, batch, rank, compiled=False):
    """Fused AdamW with clipping on full rows; a ``rank`` of 0 trains all parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if rank:
        import peft

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        names = ["q_proj", "k_proj", "v_proj", "o_proj"]
        adapters = peft.LoraConfig(r=rank, lora_alpha=16, target_modules=names)
        model = peft.get_peft_model(LlamaForCausalLM(config), adapters)
    else:
        model = LlamaForCausalLM(config)
    model.train()
    parameters = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, fused=True
    )
    run_model = torch.compile(model) if compiled else model

    def loss(tokens, targets):
        logits = run_model(input_ids=tokens, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    rng = np.random.default_rng(0)
    draw = lambda: torch.from_numpy(rng.integers(0, vocab, (batch, context)))
    batches = [(draw(), draw()) for _ in range(4)]
    run, facts = training_steps(parameters, optimizer, loss, batches)
    run(2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return run, facts | {"imported_mb": before // 1024, "peak_mb": peak // 1024}


if __name__ == "__main__":
    serve({"train": train})
