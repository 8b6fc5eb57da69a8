"""Fine-tuning a published BERT with a custom loop: a linear head on its first vector."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import transformer_jax as tj

GOOD = ("a charming journey", "a joy from start to end", "a warm and funny film", "simply great")
BAD = ("a tedious mess", "dull from start to end", "a cold and empty film", "simply awful")
TEXTS, LABELS = GOOD + BAD, [1] * len(GOOD) + [0] * len(BAD)


def main(path="models/bert-base-uncased", steps=20):
    encoder = tj.load(path)
    tokenizer, config = encoder.tokenizer, encoder.model.config
    rows = [
        [*tokenizer.prefix_ids, *ids, *tokenizer.suffix_ids]
        for ids in tokenizer.encode_batch(list(TEXTS))
    ]
    lengths = np.array([len(row) for row in rows])
    tokens = np.full((len(rows), lengths.max()), tokenizer.pad)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    batch = jnp.asarray(tokens), jnp.asarray(lengths), jnp.asarray(LABELS)

    graph, body = tj.split(encoder.model)
    head = {"kernel": jnp.zeros((config.d_model, 2)), "bias": jnp.zeros(2)}
    params = {"body": body, "head": head}
    tx = optax.adamw(1e-3)

    def loss_of(params, tokens, lengths, labels):
        hidden = nnx.merge(graph, params["body"]).hidden_states(tokens, lengths)[-1]
        logits = hidden[:, 0] @ params["head"]["kernel"] + params["head"]["bias"][None]
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, (logits.argmax(-1) == labels).mean()

    @jax.jit
    def step(params, state):
        found, gradients = jax.value_and_grad(loss_of, has_aux=True)(params, *batch)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, found

    state = tx.init(params)
    for i in range(steps):
        params, state, (loss, accuracy) = step(params, state)
        print(f"step {i + 1}  loss {loss:.3f}  accuracy {accuracy:.2f}")
    return float(loss), float(accuracy)


if __name__ == "__main__":
    main(*sys.argv[1:])
