"""The peers' case for pictures: a training step of transformers' ViT.

Runs in the peers' Python, so it imports only the worker from this repository.
"""

import os

import torch
from torch import nn
from transformers import ViTConfig, ViTForImageClassification
from transformers.utils import logging

from benchmarks.peers_steps import training_steps
from benchmarks.worker import serve

CLASSES = 1000

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
logging.set_verbosity_error()


def train(width, heads, layers, hidden, image, patch, batch, compiled=False):
    """One AdamW step of a Vision Transformer on pictures with 1,000 classes."""
    config = ViTConfig(
        hidden_size=width,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        intermediate_size=hidden,
        image_size=image,
        patch_size=patch,
        num_labels=CLASSES,
    )
    model = ViTForImageClassification(config).train()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05, fused=True)
    generator = torch.Generator().manual_seed(0)
    batches = [
        (
            torch.randn(batch, 3, image, image, generator=generator),
            torch.randint(0, CLASSES, (batch,), generator=generator),
        )
        for _ in range(4)
    ]

    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(run(images).logits, labels)

    return training_steps(list(model.parameters()), optimizer, loss_of, batches)


if __name__ == "__main__":
    serve({"train": train})
