"""The page docs/concepts/batch.md as an independent program: from two files to stored losses.

Ids, plan, padding, keys of dropout, model and loss are computed here in NumPy in float64. Taken
from the package: tokenizer, the pairs that are held out, shapes of batches, stored parameters.
"""

import json
import random

import jax
import numpy as np
import pytest

from transformer_jax.cli import main
from transformer_jax.data.pairs import Pairs, hold_out
from transformer_jax.data.shapes import choose_shapes
from transformer_jax.data.tokenizer import load_tokenizer
from transformer_jax.runs.checkpoint_reader import load_all_parts

NOUNS, VERBS = ("gato", "cão", "peixe", "rato"), ("come", "vê", "procura")
FLAGS = {
    "training.steps": 5,
    "training.max-tokens": 512,
    "training.num-buckets": 3,
    "training.gradient-accumulation-steps": 2,
    "model.d-model": 32,
    "model.encoder-layers": 2,
    "model.decoder-layers": 2,
    "model.attention.num-heads": 4,
    "model.attention.dropout": 0.1,
    "model.feed-forward.d-ff": 64,
    "model.feed-forward.activation-dropout": 0.1,
    "loop.checkpoint-every": 1,
    "loop.evaluate-every": 5,
    "loop.keep-last": 6,
}


# --- The plan -------------------------------------------------------------------------------------


def splitmix(x):
    """SplitMix64 (Steele et al. 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def shuffled(count, seed, stream):
    with np.errstate(over="ignore"):
        start = splitmix(splitmix(np.array([seed], np.uint64)) + np.uint64(stream))
        steps = np.arange(count).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return np.argsort(splitmix(start + steps), kind="stable")


def epoch_of(source, target, training, epoch):
    """The batches of an epoch: indices of pairs, -1 for none, and the shape."""
    sizes = [np.array([len(ids) for ids in side]) for side in (source, target)]
    unit, seed = training["required_batch_size_multiple"], training["seed"]
    shapes = choose_shapes(*sizes, training["num_buckets"], 4)
    rows = [training["max_tokens"] // max(shape) // unit * unit for shape in shapes]
    bucket = np.argmax([(sizes[0] <= s) & (sizes[1] <= t) for s, t in shapes], axis=0)
    order, batches, carried = shuffled(len(source), seed, 2 * epoch), [], np.zeros(0, int)
    for k, (count, shape) in enumerate(zip(rows, shapes, strict=True)):
        members = np.concatenate([carried, order[bucket[order] == k]])
        left, carried = len(members) % count, members[:0]
        if k + 1 < len(shapes):  # the rest is padded less in the next shape than by empty rows
            wider = sum(shapes[k + 1]) - sum(shape)
            if left * wider < (count - left) * sum(shape):
                members, carried = np.split(members, [len(members) - left])[:2]
        for first in range(0, len(members), count):
            chosen = members[first : first + count]
            batches.append((np.pad(chosen, (0, count - len(chosen)), constant_values=-1), shape))
    return [batches[i] for i in shuffled(len(batches), seed, 2 * epoch + 1)]


def padded(texts, rows, width, pad):
    ids, lengths = np.full((len(rows), width), pad), np.zeros(len(rows), int)
    for i, row in enumerate(rows):
        if row >= 0:
            lengths[i] = len(texts[row])
            ids[i, : lengths[i]] = texts[row]
    return ids, lengths


# --- The model ------------------------------------------------------------------------------------


def mix(x):
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def dropout(x, rate, key):
    if key is None or not rate:
        return x
    first, second = np.asarray(jax.random.bits(key, (2,), np.uint32))
    with np.errstate(over="ignore"):
        row = np.arange(np.prod(x.shape[:-1]), dtype=np.uint32).reshape(*x.shape[:-1], 1)
        column = np.arange(x.shape[-1], dtype=np.uint32) * np.uint32(0x9E3779B9)
        bits = mix(mix(mix(row + first) + column) ^ mix(mix(row + first) ^ second))
    return np.where(bits >= np.uint32(round(rate * 2**32)), x / (1 - rate), 0)


def split(key, count):
    return [None] * count if key is None else list(jax.random.split(key, count))


def linear(x, parameters):
    return x @ parameters["kernel"] + parameters["bias"]


class Translator:
    """A pre-norm encoder-decoder with ReLU and a tied table."""

    def __init__(self, config, parameters, bos):
        self.config, self.parameters, self.bos = config, parameters, bos
        self.table = parameters["embedding"]["table"]

    def norm(self, x, p):
        scale = np.sqrt(x.var(-1, keepdims=True) + self.config["norm"]["eps"])
        return (x - x.mean(-1, keepdims=True)) / scale * p["gain"] + p["bias"]

    def attention(self, p, x, memory, visible, key):
        heads = self.config["attention"]["num_heads"]
        q, k, v = (
            linear(y, p[name]).reshape(*y.shape[:2], heads, -1).swapaxes(1, 2)
            for name, y in (("query", x), ("key", memory), ("value", memory))
        )
        scores = np.where(visible, q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]), -np.inf)
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isfinite(top), top, 0))  # 0 in rows without tokens
        total = weights.sum(-1, keepdims=True)
        weights = dropout(
            weights / np.where(total > 0, total, 1), self.config["attention"]["dropout"], key
        )
        return linear((weights @ v).swapaxes(1, 2).reshape(x.shape), p["out"])

    def stack(self, p, ids, visible, key, memory=None, in_memory=None):
        width, residual = self.table.shape[1], self.config["norm"]["residual_dropout"]
        angles = np.arange(ids.shape[1])[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
        positions = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(-1, width)
        embedding_key, blocks_key = split(key, 2)
        x = self.table[ids] * np.sqrt(width) + positions
        x = dropout(x, self.config["embedding"]["dropout"], embedding_key)
        blocks = [p["blocks"][i] for i in sorted(p["blocks"], key=int)]
        for block, block_key in zip(blocks, split(blocks_key, len(blocks)), strict=True):
            keys = split(block_key, 6)
            y = self.norm(x, block["self_attention_norm"])
            y = self.attention(block["self_attention"], y, y, visible, keys[1])
            x = x + dropout(y, residual, keys[0])
            if memory is not None:
                y = self.norm(x, block["cross_attention_norm"])
                y = self.attention(block["cross_attention"], y, memory, in_memory, keys[3])
                x = x + dropout(y, residual, keys[2])
            y = np.maximum(
                linear(self.norm(x, block["feed_forward_norm"]), block["feed_forward"]["up"]), 0
            )
            y = dropout(y, self.config["feed_forward"]["activation_dropout"], keys[5])
            x = x + dropout(linear(y, block["feed_forward"]["down"]), residual, keys[4])
        return self.norm(x, p["final_norm"])

    def loss(self, source, source_lengths, target, lengths, key, smoothing):
        """The sum of the losses of a micro-batch, and the number of its target tokens."""
        keys, count = split(key, 2), target.shape[1]
        in_source = (np.arange(source.shape[1]) < source_lengths[:, None])[:, None, None]
        memory = self.stack(self.parameters["encoder"], source, in_source, keys[0])
        inputs = np.concatenate([np.full((len(target), 1), self.bos), target[:, :-1]], 1)
        causal = np.tri(count, dtype=bool)[None, None]
        x = self.stack(self.parameters["decoder"], inputs, causal, keys[1], memory, in_source)
        logits = x @ self.table.T
        top = logits.max(-1, keepdims=True)
        logs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
        right = np.take_along_axis(logs, target[..., None], -1)[..., 0]
        weights = np.arange(count) < lengths[:, None]
        losses = -(1 - smoothing) * right - smoothing * logs.mean(-1)
        return (losses * weights).sum(), weights.sum()


def in_float64(tree):
    if isinstance(tree, dict):
        return {name: in_float64(value) for name, value in tree.items()}
    return np.asarray(tree, np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", [1, 4])
def test_stored_losses_follow_from_the_files(tmp_path, fsdp):
    rng, lines = random.Random(1), [[], []]
    for count in range(60):
        words = [rng.choice(NOUNS), rng.choice(VERBS)] * rng.randint(1, 3)
        lines[0].append(f"o {' '.join(words)} {count}")
        lines[1].append(f"the {' '.join(reversed(words))} {count}")
    for name, side in zip(("source", "target"), lines, strict=True):
        (tmp_path / name).write_text("\n".join(side) + "\n", encoding="utf-8")
    run = tmp_path / "run"
    files = {"data.source": tmp_path / "source", "data.target": tmp_path / "target", "output": run}
    settings = files | FLAGS | {"mesh.fsdp": fsdp}
    flags = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
    assert main.main(["train", "small", *flags]) == 0

    stored = json.loads((run / "config.json").read_text("utf-8"))
    training, tokenizer = stored["training"], load_tokenizer(run / "tokenizer.json")
    train, valid = hold_out(Pairs(*lines, "pairs"), 1000)

    def ids(texts):
        return [[*tokenizer.encode(text), tokenizer.eos] for text in texts]

    def translator(step):
        parameters = in_float64(load_all_parts(run, step).params)
        return Translator(stored["model"], parameters, tokenizer.bos)

    def batch(source, target, rows, shape):
        pairs = zip((source, target), shape, strict=True)
        return [x for side, width in pairs for x in padded(side, rows, width, tokenizer.pad)]

    source, target = ids(train.sources), ids(train.targets)
    dropout_key = jax.random.fold_in(jax.random.key(training["seed"]), 2)
    micro = training["gradient_accumulation_steps"]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    steps = [record for record in records if "loss" in record and record["step"] > 1]
    assert len(steps) == FLAGS["training.steps"] - 1
    for record in steps:
        step = record["step"] - 1  # updates before it
        per_epoch = len(epoch_of(source, target, training, 0))
        rows, shape = epoch_of(source, target, training, step // per_epoch)[step % per_epoch]
        arrays, key = batch(source, target, rows, shape), jax.random.fold_in(dropout_key, step)
        total = weight = 0.0
        for part in range(micro):
            own = [x[part::micro] for x in arrays]
            part_key = jax.random.fold_in(key, part)
            sums = translator(step).loss(*own, part_key, training["label_smoothing"])
            total, weight = total + sums[0], weight + sums[1]
        assert weight == record["tokens"]
        assert abs(total / weight - record["loss"]) < 5e-6
    [found] = [record["valid_loss"] for record in records if "valid_loss" in record][-1:]
    sides = ids(valid.sources), ids(valid.targets)
    widths = [max(map(len, side)) for side in sides]
    total, weight = translator(steps[-1]["step"]).loss(
        *batch(*sides, np.arange(len(valid.sources)), widths), None, 0.0
    )
    assert abs(total / weight - found) < 5e-6
