"""Trains a sentence encoder on pairs with scores with sentence-transformers, for comparison.

    python -m benchmarks.sentences_peer FOLDER TRAIN DEV TEST SEED

The loop of its trainer: ``CosineSimilarityLoss`` of scores divided by 5, AdamW, gradients clipped
to norm 1, a linear schedule. Prints the correlations. Without arguments, it is a worker. Runs in
the peer's Python: torch, transformers, sentence-transformers, SciPy.
"""

import csv
import itertools
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from scipy.stats import pearsonr, spearmanr
from sentence_transformers import SentenceTransformer, losses

from benchmarks.worker import serve

BATCH, RATE, WARMUP = 32, 2e-5, 0.1
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
Pairs = list[tuple[str, str, float]]


def read(path: str) -> Pairs:
    """Reads the pairs of a CSV file with their scores."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [(row["sentence1"], row["sentence2"], float(row["score"])) for row in rows]


Batch = tuple[list[dict[str, torch.Tensor]], torch.Tensor]


def batch_of(model: SentenceTransformer, rows: Pairs) -> Batch:
    """Returns the inputs of both texts of pairs, and labels."""
    firsts, seconds, scores = zip(*rows, strict=True)
    return [model.tokenize(list(side)) for side in (firsts, seconds)], torch.tensor(scores) / 5


def step_of(model: SentenceTransformer, steps: int) -> Callable[[Batch], float]:
    """Returns a training step; its schedule has so many steps."""
    loss = losses.CosineSimilarityLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.0)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(WARMUP * steps), steps)

    def step(batch: Batch) -> float:
        features, labels = batch
        value = loss([dict(side) for side in features], labels)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return float(value.detach())

    model.train()
    return step


def correlations(model: SentenceTransformer, rows: Pairs) -> dict[str, float]:
    """Returns the correlations of cosines with scores."""
    firsts, seconds, scores = zip(*rows, strict=True)
    vectors = [model.encode(list(side), normalize_embeddings=True) for side in (firsts, seconds)]
    cosines = (vectors[0] * vectors[1]).sum(1)
    return {
        "spearman": round(float(spearmanr(cosines, scores)[0]), 4),
        "pearson": round(float(pearsonr(cosines, scores)[0]), 4),
    }


def train(folder: str, train: str, dev: str, test: str, seed: str) -> None:
    """Trains one epoch, and prints the correlations."""
    torch.manual_seed(int(seed))
    model, rows = SentenceTransformer(folder, device="cpu"), read(train)
    order = np.random.default_rng(int(seed)).permutation(len(rows))
    step = step_of(model, -(-len(rows) // BATCH))
    for start in range(0, len(rows), BATCH):
        step(batch_of(model, [rows[i] for i in order[start : start + BATCH]]))
    model.eval()
    found = {name: correlations(model, read(path)) for name, path in (("dev", dev), ("test", test))}
    print(json.dumps(found))


def steps_case(
    folder: str, train: str, count: int
) -> tuple[Callable[[int], object], dict[str, Any]]:
    """Returns a function that trains any number of steps, on so many batches in turn."""
    model, rows = SentenceTransformer(folder, device="cpu"), read(train)
    order = np.random.default_rng(0).permutation(len(rows))[: BATCH * count]
    chosen = [[rows[i] for i in part] for part in np.split(order, count)]
    batches, step = [batch_of(model, part) for part in chosen], step_of(model, 1000)
    taken = itertools.count()

    def run(times: int) -> float:
        return [step(batches[next(taken) % count]) for _ in range(times)][-1]

    return run, {}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(*sys.argv[1:])
    else:
        serve({"steps": steps_case})
