"""Fine-tunes a Hugging Face encoder with transformers, for comparison.

    python benchmarks/finetune_peer.py FOLDER mrpc TRAIN TEST
    python benchmarks/finetune_peer.py FOLDER sts TRAIN TEST

AdamW, 32 pairs per step in random order, linear decay of the learning rate after a short warmup;
prints the scores of the last epoch on the test file. Needs torch, transformers and SciPy.
"""

import csv
import json
import sys

import numpy as np
import torch
import transformers
from scipy.stats import pearsonr, spearmanr

RATE = 5e-5
COLUMNS = {"mrpc": (3, 4, 0), "sts": (5, 6, 4)}  # columns of both texts and of the label


def read(path: str, task: str) -> list[tuple[str, str, float]]:
    """Reads the pairs of a file with their labels."""
    first, second, label = COLUMNS[task]
    with open(path, encoding="utf-8-sig") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = rows[1:] if task == "mrpc" else rows
    return [(row[first], row[second], float(row[label])) for row in rows]


def main(folder: str, task: str, train: str, test: str) -> None:
    """Trains three epochs, and prints the scores."""
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    labels = 2 if task == "mrpc" else 1
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=labels
    )
    examples, draw = read(train, task), np.random.default_rng(0)
    epochs, batch = 3, 32
    steps = epochs * -(-len(examples) // batch)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(0.06 * steps), steps)

    def scores(rows: list[tuple[str, str, float]]) -> torch.Tensor:
        firsts, seconds, _ = zip(*rows, strict=True)
        given = tokenizer(
            list(firsts), list(seconds), truncation=True, max_length=128, padding=True,
            return_tensors="pt",
        )  # fmt: skip
        return model(**given).logits

    model.train()
    for _ in range(epochs):
        order = draw.permutation(len(examples))
        for start in range(0, len(order), batch):
            rows = [examples[i] for i in order[start : start + batch]]
            wanted = torch.tensor([row[2] for row in rows])
            out = scores(rows)
            if task == "mrpc":
                loss = torch.nn.functional.cross_entropy(out, wanted.long())
            else:
                loss = torch.nn.functional.mse_loss(out[:, 0], wanted)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    rows = read(test, task)
    with torch.no_grad():
        out = torch.cat([scores(rows[i : i + 64]) for i in range(0, len(rows), 64)]).numpy()
    wanted = np.array([row[2] for row in rows])
    if task == "sts":
        found = {
            "pearson": pearsonr(out[:, 0], wanted)[0],
            "spearman": spearmanr(out[:, 0], wanted)[0],
        }
    else:
        told = out.argmax(1)
        right = (told * wanted).sum()
        found = {"accuracy": (told == wanted).mean(), "f1": 2 * right / (told.sum() + wanted.sum())}
    print(json.dumps({name: round(float(value), 4) for name, value in found.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
