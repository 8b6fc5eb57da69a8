"""The peers' cases for encoders: Hugging Face BERT and ModernBERT in typical use.

Runs in the peers' Python, so it imports only the worker and the texts from this repository.
"""

import os
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
)
from transformers.utils import logging

from benchmarks import encoder_texts as data
from benchmarks.worker import Setup, serve

THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
torch.set_num_threads(THREADS)
logging.set_verbosity_error()

Batch = dict[str, torch.Tensor]


def configuration(vocab: int, width: int, heads: int, layers: int, hidden: int) -> BertConfig:
    """Returns a BERT of any size, with exact GELU and dropout 0.1."""
    return BertConfig(
        vocab_size=vocab,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=hidden,
        max_position_embeddings=512,
        hidden_act="gelu",
        pad_token_id=data.PAD,
    )


def padded(rows: list[np.ndarray]) -> Batch:
    """Pads texts to the longest."""
    length = max(map(len, rows))
    ids = np.full((len(rows), length), data.PAD, np.int64)
    for row, text in zip(ids, rows, strict=True):
        row[: len(text)] = text
    mask = np.arange(length) < np.array([[len(text)] for text in rows])
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask).long()}


def modern(vocab: int, width: int, layers: int, hidden: int, **more: Any) -> ModernBertConfig:
    """Returns a ModernBERT of any size, with heads of 64."""
    special = {"bos": data.CLS, "cls": data.CLS, "eos": data.SEP, "sep": data.SEP, "pad": data.PAD}
    return ModernBertConfig(
        vocab_size=vocab,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        intermediate_size=hidden,
        **{f"{name}_token_id": token for name, token in special.items()},
        **more,
    )


def masked(
    rows: list[np.ndarray], vocab: int, rng: np.random.Generator, share: float = 0.15
) -> Batch:
    """Masks ``padded`` texts; labels are -100 at other positions.

    Like DataCollatorForLanguageModeling, but with as many masked words per text as ours.
    """
    made = padded(rows)
    ids, labels = made["input_ids"].numpy(), np.full_like(made["input_ids"].numpy(), -100)
    for number, text in enumerate(rows):
        places = 1 + rng.permutation(len(text) - 2)[: data.hidden(len(text), share)]
        labels[number, places] = ids[number, places]
        fate, other = rng.random(len(places)), rng.integers(data.FIRST, vocab, len(places))
        shown = np.where(fate < 0.9, other, ids[number, places])
        ids[number, places] = np.where(fate < 0.8, data.MASK, shown)
    return {**made, "labels": torch.from_numpy(labels)}


def pretrain(vocab, width, heads, layers, hidden, texts, batch, deals, compiled=False):
    """One step of masked-language modelling, in random batches of ``batch`` texts."""
    torch.manual_seed(0)
    model = BertForMaskedLM(configuration(vocab, width, heads, layers, hidden))
    rng = np.random.default_rng(1)
    batches = [masked(rows, vocab, rng) for rows in _groups("reviews", texts, vocab, batch)]
    run, facts = _training(model, batches, deals, compiled, _real)
    return run, {**facts, "masked_tokens": sum(int((b["labels"] >= 0).sum()) for b in batches)}


def packed(
    vocab, width, layers, hidden, kind, length, texts, batch, deals, compiled=False, sparse=False
):
    """One step of ModernBERT, in random batches; ``sparse`` has logits at masked positions only."""
    torch.manual_seed(0)
    model = ModernBertForMaskedLM(modern(vocab, width, layers, hidden, sparse_prediction=sparse))
    rng, ids = np.random.default_rng(1), data.texts(kind, texts, vocab)
    groups = [ids[at : at + batch] for at in range(0, texts, batch)]
    batches = [masked(rows, vocab, rng, 0.3) for rows in groups]
    run, facts = _training(model, batches, deals, compiled, _real)
    return run, {**facts, "masked_tokens": sum(int((b["labels"] >= 0).sum()) for b in batches)}


def finetune(vocab, width, heads, layers, hidden, texts, batch, deals, compiled=False):
    """One step on classes, in random batches of ``batch`` texts."""
    torch.manual_seed(0)
    config = configuration(vocab, width, heads, layers, hidden)
    config.num_labels = 2
    model = BertForSequenceClassification(config)
    batches = [
        {**padded(rows), "labels": torch.arange(len(rows)) % 2}
        for rows in _groups("sst2", texts, vocab, batch)
    ]
    return _training(model, batches, deals, compiled, lambda b: len(b["labels"]))


def embed(vocab, width, heads, layers, hidden, texts, batch, ordered=False):
    """The mean of the last layer's vectors of each text, in the order given or by length."""
    torch.manual_seed(0)
    model = BertModel(configuration(vocab, width, heads, layers, hidden)).eval()
    ids = data.texts("sst2", texts, vocab)
    if ordered:
        ids = sorted(ids, key=len, reverse=True)
    batches = [padded(ids[at : at + batch]) for at in range(0, texts, batch)]

    @torch.no_grad()
    def run(times):
        for _ in range(times):
            out = []
            for made in batches:
                states = model(**made).last_hidden_state
                mask = made["attention_mask"][..., None].to(states.dtype)
                out.append((states * mask).sum(1) / mask.sum(1))
            vectors = torch.cat(out).numpy()
        assert len(vectors) == texts
        return texts

    run(1)
    return run, _facts(model, batches)


def _groups(kind: str, texts: int, vocab: int, batch: int) -> list[list[np.ndarray]]:
    # The texts are shuffled, so consecutive batches are random.
    ids = data.texts(kind, texts, vocab)
    return [ids[at : at + batch] for at in range(0, texts, batch)]


def _training(
    model: Any, batches: list[Batch], deals: int, compiled: bool, units: Any
) -> tuple[Any, dict[str, Any]]:
    """Returns steps on parts of the batches in turn, and the units in each part."""
    model.train()
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, fused=True)
    run_model = torch.compile(model) if compiled else model
    dealt = data.parts(batches, [made["input_ids"].numel() for made in batches], deals)
    state = {"at": 0}

    def step(made: Batch) -> torch.Tensor:
        loss = run_model(**made).loss
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    # Compiled first for one length, then for dynamic lengths.
    lengths = {made["input_ids"].shape[1]: made for made in batches}
    some = sorted(lengths)
    losses = [float(step(lengths[length])) for length in dict.fromkeys((some[0], *some[-2:]))]

    def run(times):
        done = 0
        for _ in range(times):
            for made in dealt[state["at"] % len(dealt)]:
                loss = step(made)
                done += units(made)
            state["at"] += 1
        assert np.isfinite(float(loss))
        return done

    return run, {"first_loss": round(losses[0], 3), **_facts(model, batches)}


def _real(made: Batch) -> int:
    """Returns the number of tokens of a batch without padding."""
    return int(made["attention_mask"].sum())


def _facts(model: nn.Module, batches: list[Batch]) -> dict[str, Any]:
    real, padding = sum(map(_real, batches)), sum(made["input_ids"].numel() for made in batches)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        **data.shares(real, padding, sum(len(b["input_ids"]) for b in batches), len(batches)),
    }


CASES: dict[str, Setup] = {
    "pretrain": pretrain, "finetune": finetune, "embed": embed, "packed": packed,
}  # fmt: skip

if __name__ == "__main__":
    serve(CASES)
