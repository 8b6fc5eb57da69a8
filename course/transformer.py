"""The Transformer in one file, from top to bottom like "Attention Is All You Need".

    python course/transformer.py        # trains a translator in minutes, and translates with it

Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762), on jax, flax and optax alone. Only `main`
takes its sentences from `transformer_jax`, whose models compute the same: parameters have the same
names there, so those of one model fit into the other.

Axes: B sentences, T tokens of the target, S of the source, D model, N heads, H size of a head,
F feed-forward, V vocabulary. Masks are True where a query may look.
"""

import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

PAD, BOS, EOS, UNKNOWN = range(4)

# --- 3.2.1 Scaled dot-product attention -----------------------------------------------------------


def softmax(scores, mask):
    """Weights of the visible keys [..., T S]; a query that sees no key has zeros."""
    scores = jnp.where(mask, scores, -1e9)  # -inf less its own largest value would be NaN
    e = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True)) * mask
    total = e.sum(-1, keepdims=True)
    return e / jnp.where(total == 0, 1, total)


def attention(q, k, v, mask):
    """softmax(q kᵀ / √H) v, of queries [..., T H], keys [..., S H] and values [..., S U]."""
    scores = q @ k.swapaxes(-1, -2) / jnp.sqrt(q.shape[-1])
    return softmax(scores, mask) @ v


def mask(real, causal):
    """Keys that are words and, if causal, not later than the query: [B 1 T T] or [B 1 1 T]."""
    words = real[:, None, None, :]
    return words & jnp.tri(real.shape[1], dtype=bool) if causal else words


# --- 3.2.2 Multi-head attention -------------------------------------------------------------------


def multi_head(x, memory, mask, w, b):
    """Concat(head₁ … head_N) W^O, for queries of x [B T D] and keys and values of memory [B S D].

    w holds "q", "k", "v" [D N H] and "o" [N H D], b their biases [N H] and [D].
    """
    heads = lambda x, name: jnp.einsum("btd,dnh->bnth", x, w[name]) + b[name][:, None]
    y = attention(heads(x, "q"), heads(memory, "k"), heads(memory, "v"), mask)
    return jnp.einsum("bnth,nhd->btd", y, w["o"]) + b["o"]


class Linear(nnx.Module):
    def __init__(self, inputs, outputs, rngs):
        self.kernel = nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), (inputs, outputs)))
        self.bias = nnx.Param(jnp.zeros(outputs))

    def __call__(self, x):
        return x @ self.kernel[...] + self.bias[...]


class MultiHeadAttention(nnx.Module):
    def __init__(self, d_model, heads, rngs):
        self.heads = heads
        square = lambda: Linear(d_model, d_model, rngs)
        self.query, self.key, self.value, self.out = square(), square(), square(), square()

    def __call__(self, x, memory, mask):
        D, N = x.shape[-1], self.heads
        w, b = {}, {}
        for name, part in (("q", self.query), ("k", self.key), ("v", self.value)):
            w[name], b[name] = part.kernel[...].reshape(D, N, -1), part.bias[...].reshape(N, -1)
        w["o"], b["o"] = self.out.kernel[...].reshape(N, -1, D), self.out.bias[...]
        return multi_head(x, memory, mask, w, b)


# --- 3.3 Position-wise feed-forward networks ------------------------------------------------------


class FeedForward(nnx.Module):
    """max(0, x W₁ + b₁) W₂ + b₂, at every position."""

    def __init__(self, d_model, d_ff, rngs):
        self.up, self.down = Linear(d_model, d_ff, rngs), Linear(d_ff, d_model, rngs)

    def __call__(self, x):
        return self.down(jnp.maximum(self.up(x), 0))


# --- 3.4 and 3.5 Embeddings and positions ---------------------------------------------------------


class Embedding(nnx.Module):
    """A vector for each token, times √D; the same table maps hidden states to logits."""

    def __init__(self, vocabulary, d_model, rngs):
        table = jax.random.normal(rngs.params(), (vocabulary, d_model))
        self.table = nnx.Param(table * d_model**-0.5)

    def __call__(self, tokens):
        return self.table[...][tokens] * jnp.sqrt(self.table.shape[1])

    def logits(self, hidden):
        return hidden @ self.table[...].T


def sinusoids(length, width):
    """sin(t / 10000^(2i/D)) in column 2i and cos of the same angle in column 2i + 1: [T D]."""
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    table = np.zeros((length, width))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)[:, : width // 2]
    return table.astype(np.float32)


# --- 3.1 Blocks, encoder and decoder --------------------------------------------------------------


def layer_norm(x, gain, bias, eps):
    """(x - mean) / √(variance + ε) of each vector, times gain plus bias."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + eps) * gain + bias


class Norm(nnx.Module):
    def __init__(self, d_model):
        self.gain, self.bias = nnx.Param(jnp.ones(d_model)), nnx.Param(jnp.zeros(d_model))

    def __call__(self, x):
        return layer_norm(x, self.gain[...], self.bias[...], 1e-5)


def block(x, sublayers, norms, placement):
    """Adds each sub-layer's output to its input: norm(x + f(x)) if post, x + f(norm(x)) if pre."""
    for f, norm in zip(sublayers, norms, strict=True):
        x = norm(x + f(x)) if placement == "post" else x + f(norm(x))
    return x


class Block(nnx.Module):
    """The sub-layers of a layer; the decoder's has cross-attention between the two others."""

    def __init__(self, d_model, heads, d_ff, cross, rngs):
        self.self_attention = MultiHeadAttention(d_model, heads, rngs)
        self.cross_attention = MultiHeadAttention(d_model, heads, rngs) if cross else None
        self.feed_forward = FeedForward(d_model, d_ff, rngs)
        self.self_attention_norm, self.feed_forward_norm = Norm(d_model), Norm(d_model)
        self.cross_attention_norm = Norm(d_model) if cross else None

    def __call__(self, x, mask, memory, memory_mask, placement):
        sublayers = [lambda x: self.self_attention(x, x, mask), self.feed_forward]
        norms = [self.self_attention_norm, self.feed_forward_norm]
        if self.cross_attention is not None:
            sublayers.insert(1, lambda x: self.cross_attention(x, memory, memory_mask))
            norms.insert(1, self.cross_attention_norm)
        return block(x, sublayers, norms, placement)


class Stack(nnx.Module):
    """Positions and L blocks; with pre-norm, one more norm at the end."""

    def __init__(self, d_model, layers, heads, d_ff, placement, cross, rngs):
        self.placement = placement
        self.blocks = nnx.List(Block(d_model, heads, d_ff, cross, rngs) for _ in range(layers))
        self.final_norm = Norm(d_model) if placement == "pre" else None

    def __call__(self, x, mask, memory=None, memory_mask=None):
        x = x + sinusoids(*x.shape[1:])
        for one in self.blocks:
            x = one(x, mask, memory, memory_mask, self.placement)
        return x if self.final_norm is None else self.final_norm(x)


class Transformer(nnx.Module):
    """Figure 1: logits of each next target token from a source and the target so far."""

    def __init__(self, V, d_model=128, layers=2, heads=4, d_ff=512, placement="pre", *, rngs):
        self.embedding = Embedding(V, d_model, rngs)
        self.encoder = Stack(d_model, layers, heads, d_ff, placement, False, rngs)
        self.decoder = Stack(d_model, layers, heads, d_ff, placement, True, rngs)

    def encode(self, source):
        """A vector for each source token [B S D], from all tokens that are no padding."""
        return self.encoder(self.embedding(source), mask(source != PAD, causal=False))

    def decode(self, memory, source, target):
        """Logits [B T V] of the token after each target token, which is already shifted right."""
        see = mask(target != PAD, causal=True), memory, mask(source != PAD, causal=False)
        return self.embedding.logits(self.decoder(self.embedding(target), *see))

    def __call__(self, source, target):
        return self.decode(self.encode(source), source, target)


# --- 5 Training -----------------------------------------------------------------------------------


def shift_right(tokens, bos):
    """The decoder's inputs: each token one place later, behind the first token."""
    return jnp.concatenate([jnp.full_like(tokens[:, :1], bos), tokens[:, :-1]], axis=1)


def smooth_loss(logits, targets, smoothing):
    """-Σ q log p at each position; q gives 1 - s to the target and spreads s over all tokens."""
    log_p = jax.nn.log_softmax(logits)
    wanted = jnp.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    return -(1 - smoothing) * wanted - smoothing * log_p.mean(-1)


def token_loss(losses, real):
    """The sum of the losses at real tokens, and their number: divide once, over all batches."""
    return jnp.where(real, losses, 0).sum(), real.sum()


def warmup(d_model, steps, factor=1.0):
    """Section 5.3: D^-0.5 · min(step^-0.5, step · steps^-1.5), counted from step 1."""
    rate = lambda n: factor * d_model**-0.5 * jnp.minimum(n**-0.5, n * steps**-1.5)
    return lambda updates: rate(updates + 1.0)


@nnx.jit
def train_step(model, optimizer, source, target):
    """Updates model and optimizer, and returns the mean loss of the target's tokens."""

    def loss_of(model):
        losses = smooth_loss(model(source, shift_right(target, BOS)), target, 0.1)
        return jnp.divide(*token_loss(losses, target != PAD))

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def train(model, source, target, steps, batch, peak_at):
    """Trains on rows of source and target, and prints the loss."""
    rate = warmup(model.embedding.table.shape[1], peak_at, 0.5)
    optimizer = nnx.Optimizer(model, optax.adam(rate, b1=0.9, b2=0.98, eps=1e-9), wrt=nnx.Param)
    draw, began = np.random.default_rng(0), time.monotonic()
    print("compiling the first step", flush=True)
    for step in range(steps):
        rows = draw.integers(0, len(source), batch)
        loss = train_step(model, optimizer, source[rows], target[rows])
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step}  loss {loss:.3f}  {time.monotonic() - began:.0f} s", flush=True)


# --- Search ---------------------------------------------------------------------------------------


def greedy(next_logits, bos, eos, limit):
    """The most probable token, again and again, up to the end token or `limit` tokens."""
    tokens = [bos]
    while len(tokens) <= limit and (tokens[-1] != eos or len(tokens) == 1):
        tokens.append(int(np.argmax(next_logits([tokens])[0])))
    return tokens[1:]


def beam(next_logits, bos, eos, limit, beams, alpha):
    """The text with the largest log p / ((5 + length) / 6)^α that `beams` prefixes lead to.

    A continuation by the end token is finished if it is among the `beams` best. At the limit the
    end token is the only one. Search stops when no prefix can overtake the best finished text.
    """
    penalty = lambda length: ((5 + length) / 6) ** alpha
    live, best = [(0.0, [])], (-np.inf, [])
    for length in range(1, limit + 1):
        log_p = jax.nn.log_softmax(next_logits([[bos, *tokens] for _, tokens in live]))
        log_p, ways = np.asarray(log_p, np.float64), []
        for (total, tokens), row in zip(live, log_p, strict=True):
            few = [eos] if length == limit else np.argsort(-row, kind="stable")[: beams + 1]
            ways += [(total + row[v], [*tokens, int(v)]) for v in few]
        ways.sort(key=lambda way: -way[0])
        for total, tokens in ways[:beams]:
            if tokens[-1] == eos and total / penalty(length) > best[0]:
                best = total / penalty(length), tokens
        live = [way for way in ways if way[1][-1] != eos][:beams]
        if not live or live[0][0] / penalty(limit) <= best[0]:
            break
    return best[1], best[0]


encode, decode = nnx.jit(Transformer.encode), nnx.jit(Transformer.decode)


def continuing(model, source, limit, rows):
    """The function from up to `rows` prefixes of one source's target to the next token's logits."""
    source = jnp.tile(source, (rows, 1))
    memory = encode(model, source)

    def next_logits(prefixes):
        target = np.full((rows, limit), PAD, np.int32)
        target[: len(prefixes), : len(prefixes[0])] = prefixes
        return decode(model, memory, source, target)[: len(prefixes), len(prefixes[0]) - 1]

    return next_logits


# --- From text to text ----------------------------------------------------------------------------


class Words:
    """Words with the space before them, and marks, as tokens."""

    def __init__(self, texts):
        self.split = lambda text: re.findall(r"\s?\w+|\s?[^\w\s]", text)
        words = sorted({word for text in texts for word in self.split(text)})
        self.words = ["<pad>", "<bos>", "<eos>", "<unknown>", *words]
        self.ids = {word: id for id, word in enumerate(self.words)}

    def rows(self, texts):
        """Tokens of texts, with their end token, and padding: [B T]."""
        rows = [[*(self.ids.get(w, UNKNOWN) for w in self.split(text)), EOS] for text in texts]
        longest = max(map(len, rows))
        return np.array([row + [PAD] * (longest - len(row)) for row in rows], np.int32)

    def text(self, tokens):
        return "".join(self.words[token] for token in tokens if token > UNKNOWN)


def translate(model, words, sentence, limit, beams=4):
    """The best translation of a sentence."""
    [source] = words.rows([sentence])
    tokens, _ = beam(continuing(model, source, limit, beams), BOS, EOS, limit, beams, 0.6)
    return words.text(tokens)


def main(pairs=30_000, steps=800, batch=128, peak_at=200):
    """Trains on the built-in corpus, and translates the lecture's four sentences."""
    from transformer_jax.data.corpora.phrasebook import L1_PAIRS, generate

    print("generating sentences", flush=True)
    sources, targets = zip(*generate("train", pairs), strict=True)
    words = Words([*sources, *targets])
    source, target = words.rows(sources), words.rows(targets)
    print(f"{pairs:,} pairs of {source.shape[1]} and {target.shape[1]} words at most")
    model, limit = Transformer(len(words.words), rngs=nnx.Rngs(0)), target.shape[1]
    train(model, source, target, steps, batch, peak_at)
    return [(sentence, translate(model, words, sentence, limit)) for sentence, _ in L1_PAIRS]


if __name__ == "__main__":
    for sentence, translation in main():
        print(f"{sentence}  ->  {translation}")
