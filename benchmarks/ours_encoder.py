"""Our cases for encoders: the library as used by its commands."""

# ruff: noqa: E402 (the allocator is set before jax is imported)

from transformer_jax.core.runtime import retain_freed_memory

retain_freed_memory()

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import encoder_texts as data
from benchmarks.worker import Setup, serve
from transformer_jax.data.bert_pretraining import BertPretrainingPlan, PackedPretrainingPlan
from transformer_jax.data.examples import EncodedExamples, collate
from transformer_jax.data.masking import MLMMasking
from transformer_jax.data.plan import Batching, BucketPlan
from transformer_jax.data.sentences import SentenceStore
from transformer_jax.data.store import TokenStore
from transformer_jax.inference.encoding.batching import pack
from transformer_jax.inference.encoding.vectors import Embedder
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.heads import EncoderForMaskedLM, SequenceClassifier
from transformer_jax.models.layers.parameters import parameters
from transformer_jax.models.partition import merging
from transformer_jax.models.presets import bert, modernbert
from transformer_jax.models.transformer.models import Encoder
from transformer_jax.recipes.finetuning import ExampleTokens as EncoderTraining
from transformer_jax.recipes.texts import LengthBatches as PretrainTraining
from transformer_jax.training.objectives import masked_lm, sequence_classification
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.settings import OptimizerConfig, ScheduleConfig
from transformer_jax.training.state import TrainState, split
from transformer_jax.training.step import Batch, Objective, make_step

PRETRAIN, TASK = PretrainTraining(), EncoderTraining()  # the defaults of our runs


def configuration(vocab: int, width: int, heads: int, layers: int, hidden: int, pooler: bool):
    """A BERT of any size."""
    config = bert(width, layers, vocab_size=vocab)
    return dataclasses.replace(
        config,
        attention=dataclasses.replace(config.attention, num_heads=heads),
        feed_forward=dataclasses.replace(config.feed_forward, d_ff=hidden),
        head=dataclasses.replace(config.head, pooler=pooler),
    )


def pretrain(vocab, width, heads, layers, hidden, texts, batch, deals):
    """One AdamW step of masked-language modelling in buckets of tokens."""
    config = configuration(vocab, width, heads, layers, hidden, pooler=False)
    ids = data.texts("reviews", texts, vocab)
    store = _documents(ids)
    masking = MLMMasking(data.MASK, np.arange(data.FIRST, vocab))
    special = data.CLS, data.SEP, data.PAD

    def plan_of(tokens: int) -> BertPretrainingPlan:
        batching = Batching(
            tokens, PRETRAIN.num_buckets, PRETRAIN.required_batch_size_multiple, seed=0
        )
        return BertPretrainingPlan(
            store, masking, special, batching,
            length=PRETRAIN.sequence_length, sentence_objective="none",
        )  # fmt: skip

    plan, tokens = _like(plan_of, ids, batch, PRETRAIN.required_batch_size_multiple)
    batches = [plan.make(plan.batch(step)) for step in range(plan.steps_per_epoch)]
    count = sum(int(made["weights"].sum()) for made in batches)
    model = EncoderForMaskedLM(config, next_sentence=False, rngs=nnx.Rngs(0))
    run, facts = _training(model, config, masked_lm(), batches, deals, _real)
    return run, {**facts, "token_budget": tokens, "masked_tokens": count}


def _documents(ids: list[np.ndarray]) -> SentenceStore:
    """Returns the texts, each of which is a document, so that texts are not joined."""
    words = [text[1:-1] for text in ids]
    offsets = np.append(0, np.cumsum([len(row) for row in words]))
    return SentenceStore(np.concatenate(words), offsets, np.arange(len(ids) + 1), {})


def packed(vocab, width, layers, hidden, kind, length, texts, batch, deals):
    """One AdamW step of masked-language modelling of ModernBERT, in packed rows."""
    config = modernbert(width, layers, hidden, vocab_size=vocab)
    ids = data.texts(kind, texts, vocab)
    masking = MLMMasking(data.MASK, np.arange(data.FIRST, vocab), mlm_probability=0.3)
    rows = max(1, round(batch * sum(map(len, ids)) / texts / length))
    batching = Batching(rows * length, required_batch_size_multiple=1, seed=0)
    plain = BertPretrainingPlan(
        _documents(ids), masking, (data.CLS, data.SEP, data.PAD), batching,
        length=length, sentence_objective="none",
    )  # fmt: skip
    plan = PackedPretrainingPlan(plain, batching, length=length)
    batches = [plan.arrays(step) for step in range(plan.steps_per_epoch)]
    count = sum(int(made["weights"].sum()) for made in batches)
    model = EncoderForMaskedLM(config, next_sentence=False, rngs=nnx.Rngs(0))
    objective = masked_lm(sentence_objective="none")
    run, facts = _training(model, config, objective, batches, deals, _real)
    return run, {**facts, "rows": rows, "masked_tokens": count}


def finetune(vocab, width, heads, layers, hidden, texts, batch, deals):
    """One AdamW step on classes in buckets of tokens."""
    config = configuration(vocab, width, heads, layers, hidden, pooler=True)
    ids = data.texts("sst2", texts, vocab)
    lengths = np.array([len(text) for text in ids])
    store = TokenStore(np.concatenate(ids), np.append(0, np.cumsum(lengths)))
    examples = EncodedExamples(store, lengths)
    labels = np.arange(texts, dtype=np.int32) % 2

    def plan_of(tokens: int) -> BucketPlan:
        return BucketPlan(
            lengths,
            lengths,
            max_tokens=tokens,
            num_buckets=TASK.num_buckets,
            required_batch_size_multiple=TASK.required_batch_size_multiple,
        )

    plan, tokens = _like(plan_of, ids, batch, TASK.required_batch_size_multiple)
    batches = []
    for planned in plan.epoch(0):
        made = collate(examples, planned.indices, planned.S, data.PAD)
        made["labels"] = np.where(planned.indices < 0, -1, labels[planned.indices])
        batches.append(made)
    model = SequenceClassifier(config, labels=2, rngs=nnx.Rngs(0))
    rows = lambda made: int((made["labels"] >= 0).sum())
    run, facts = _training(model, config, sequence_classification(), batches, deals, rows)
    return run, {**facts, "token_budget": tokens}


class _Numbers:
    """A tokenizer whose texts are the numbers of lists of tokens."""

    bos, eos, pad, unk = data.CLS, data.SEP, data.PAD, None
    num_separators = 1

    def __init__(self, vocab: int, words: list[list[int]]):
        self.vocab_size, self.words = vocab, words

    def encode_batch(self, texts):
        """Returns the tokens of texts."""
        return [self.words[int(text)] for text in texts]

    def convert_ids_to_tokens(self, ids):
        """Returns the tokens as numbers."""
        return [str(id) for id in ids]


def embed(vocab, width, heads, layers, hidden, texts, tokens):
    """The program of ``embed``: mean vectors of the last layer, with ids as words."""
    config = configuration(vocab, width, heads, layers, hidden, pooler=True)
    graph, params = split(Encoder(config, rngs=nnx.Rngs(0)))
    ids = data.texts("sst2", texts, vocab)
    reader: Any = _Numbers(vocab, [text[1:-1].tolist() for text in ids])
    vectors = Embedder((graph, params), reader, tokens=tokens)
    names = [str(i) for i in range(texts)]

    def run(times):
        for _ in range(times):
            out = [block.vectors for block in vectors.embed(names)]
        assert sum(map(len, out)) == texts
        return texts

    run(1)
    lengths = np.array([len(text) for text in ids])
    taken = list(pack(lengths, tokens))
    padded = sum(len(numbers) * T for numbers, T in taken)
    return run, {
        "parameters": sum(a.size for a in jax.tree.leaves(params)),
        **data.shares(int(lengths.sum()), padded, texts, len(taken)),
    }


def _like(plan_of: Any, ids: list[np.ndarray], batch: int, rows: int) -> tuple[Any, int]:
    """Returns the plan whose batches have on average the tokens of ``batch`` texts."""
    real = sum(map(len, ids))
    wanted = batch * real / len(ids)
    least = rows * 8 * -(-max(map(len, ids)) // 8)
    budgets = range(least, max(2 * int(wanted), least) + 1, 64)
    plans = {tokens: plan_of(tokens) for tokens in budgets}
    best = min(plans, key=lambda tokens: abs(real / plans[tokens].steps_per_epoch - wanted))
    return plans[best], best


def _training(
    model: Any,
    config: TransformerConfig,
    objective: Objective,
    batches: list[Batch],
    deals: int,
    units: Any,
) -> tuple[Any, dict[str, Any]]:
    """Returns steps on parts of the batches in turn, and the units in each part."""
    graph, params = split(model)
    rate = OptimizerConfig(
        name="adamw", learning_rate=1e-4, schedule=ScheduleConfig("constant", 0),
        beta2=0.999, eps=1e-8, weight_decay=0.01,
    )  # fmt: skip
    tx = make_optimizer(rate, config.d_model, 1000, params=parameters(model))
    compiled = jax.jit(make_step(objective, tx, merging(graph)), donate_argnums=0)
    key = jax.random.key(1)
    state = TrainState(jnp.int32(0), params, tx.init(params), None)
    shapes = {made["tokens"].shape: made for made in batches}
    losses = []
    for made in shapes.values():
        state, metrics = compiled(state, {}, made, key)
        losses.append(float(metrics["loss"]))
    held: dict[str, Any] = {"state": state, "at": 0}
    dealt = data.parts(batches, [made["tokens"].size for made in batches], deals)

    def run(times):
        done = 0
        for _ in range(times):
            for made in dealt[held["at"] % len(dealt)]:
                held["state"], metrics = compiled(held["state"], {}, made, key)
                done += units(made)
            held["at"] += 1
        assert np.isfinite(float(metrics["loss"]))
        return done

    count = sum(int((made["lengths"] > 0).sum()) for made in batches)
    real, padded = sum(map(_real, batches)), sum(made["tokens"].size for made in batches)
    return run, {
        "parameters": sum(a.size for a in jax.tree.leaves(params)),
        "first_loss": round(losses[0], 3),
        "shapes": sorted(shapes),
        **data.shares(real, padded, count, len(batches)),
    }


def _real(made: Batch) -> int:
    """Returns the number of tokens of a batch without padding."""
    return int(made["lengths"].sum())


CASES: dict[str, Setup] = {
    "pretrain": pretrain, "finetune": finetune, "embed": embed, "packed": packed,
}  # fmt: skip

if __name__ == "__main__":
    serve(CASES)
