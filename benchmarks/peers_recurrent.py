"""Recurrent translators in PyTorch: ``torch.nn`` layers and cells with the same attention.

Runs in the peers' Python, so it imports only the worker from this repository.
"""

import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers_steps import training_steps
from benchmarks.worker import Setup, serve

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
BOS = 2


class Translator(nn.Module):
    """The common parts: tied embeddings, a bidirectional encoder, projected states."""

    def __init__(self, vocab: int, width: int, layer: type):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.encoder = layer(width, width, bidirectional=True, batch_first=True)
        self.bridge = nn.Linear(2 * width, width)

    def first(self, last):
        """Returns the decoder's first state, from the last states of both directions."""
        return torch.tanh(self.bridge(torch.cat([last[0], last[1]], -1)))

    def logits(self, hidden):
        """Returns logits over the vocabulary."""
        return hidden @ self.embedding.weight.T


class Luong(Translator):
    """LSTMs, the general score of the current state, input feeding."""

    def __init__(self, vocab: int, width: int):
        super().__init__(vocab, width, nn.LSTM)
        self.cell = nn.LSTMCell(2 * width, width)
        self.key = nn.Linear(2 * width, width, bias=False)
        self.mixed = nn.Linear(3 * width, width)

    def begin(self, source):
        """Returns states before the first token, and the memory."""
        encoded, (h, c) = self.encoder(self.embedding(source))
        state = self.first(h), self.first(c), torch.zeros_like(h[0])
        return state, (encoded, self.key(encoded))

    def step(self, x, state, memory):
        """Returns the hidden state after an embedded token, and the states."""
        (h, c, fed), (encoded, keys) = state, memory
        h, c = self.cell(torch.cat([x, fed], -1), (h, c))
        weights = torch.bmm(keys, h[:, :, None])[:, :, 0].softmax(-1)
        read = torch.bmm(weights[:, None], encoded)[:, 0]
        fed = torch.tanh(self.mixed(torch.cat([read, h], -1)))
        return fed, (h, c, fed)

    def forward(self, source, target):
        """Returns logits at every token."""
        state, memory = self.begin(source)
        found = []
        for x in self.embedding(target).unbind(1):
            hidden, state = self.step(x, state, memory)
            found.append(hidden)
        return self.logits(torch.stack(found, 1))


class Bahdanau(Translator):
    """GRUs, the additive score of the previous state, a maxout layer, for all tokens at once."""

    def __init__(self, vocab: int, width: int):
        super().__init__(vocab, width, nn.GRU)
        self.cell = nn.GRUCell(3 * width, width)
        self.key = nn.Linear(2 * width, width, bias=False)
        self.query = nn.Linear(width, width, bias=False)
        self.vector = nn.Linear(width, 1, bias=False)
        self.maxout = nn.Linear(4 * width, 2 * width)

    def begin(self, source):
        """Returns the state before the first token, and the memory."""
        encoded, h = self.encoder(self.embedding(source))
        return self.first(h), (encoded, self.key(encoded))

    def read(self, x, h, memory):
        """Returns the state after an embedded token, and its context."""
        encoded, keys = memory
        scores = self.vector(torch.tanh(self.query(h)[:, None] + keys))[:, :, 0]
        context = torch.bmm(scores.softmax(-1)[:, None], encoded)[:, 0]
        return self.cell(torch.cat([x, context], -1), h), context

    def output(self, h, context, x):
        """Returns the hidden state."""
        return torch.maximum(*self.maxout(torch.cat([h, context, x], -1)).chunk(2, -1))

    def step(self, x, h, memory):
        """Returns the hidden state after an embedded token, and the state."""
        h, context = self.read(x, h, memory)
        return self.output(h, context, x), h

    def forward(self, source, target):
        """Returns logits at every token."""
        h, memory = self.begin(source)
        x, found = self.embedding(target), []
        for now in x.unbind(1):
            h, context = self.read(now, h, memory)
            found.append((h, context))
        states, contexts = (torch.stack(part, 1) for part in zip(*found, strict=True))
        return self.logits(self.output(states, contexts, x))


KINDS = {"luong": Luong, "bahdanau": Bahdanau}


def train(kind, vocab, width, batch, length, compiled=False):
    """One AdamW step with clipping, on full batches."""
    torch.manual_seed(0)
    model = KINDS[kind](vocab, width).train()
    run_model = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    rng = np.random.default_rng(0)
    draw = lambda: torch.from_numpy(rng.integers(4, vocab, (batch, length)))
    batches = [(draw(), draw()) for _ in range(8)]

    def loss_of(source, target):
        inputs = torch.cat([torch.full((batch, 1), BOS), target[:, :-1]], 1)
        return functional.cross_entropy(
            run_model(source, inputs).reshape(-1, vocab), target.reshape(-1)
        )

    return training_steps(list(model.parameters()), optimizer, loss_of, batches)


def decode(kind, vocab, width, batch, length):
    """Greedy search, with as many tokens as in the source."""
    model = KINDS[kind](vocab, width).eval()
    source = torch.from_numpy(np.random.default_rng(1).integers(4, vocab, (batch, length)))

    @torch.inference_mode()
    def translate():
        state, memory = model.begin(source)
        token, found = torch.full((batch,), BOS), []
        for _ in range(length):
            hidden, state = model.step(model.embedding(token), state, memory)
            token = model.logits(hidden).argmax(-1)
            found.append(token)
        return torch.stack(found, 1)

    translate()

    def run(times):
        for _ in range(times):
            out = translate()
        return out.tolist()

    return run, {}


def lines(kind, vocab, width, sources, targets, batch=32):
    """Batches of sources of similar length, each up to its longest translation."""
    model = KINDS[kind](vocab, width).eval()
    rng = np.random.default_rng(1)
    read = [rng.integers(4, vocab, length) for length in sources]
    order = sorted(range(len(read)), key=lambda i: len(read[i]))

    @torch.inference_mode()
    def translate(some):
        source = torch.zeros((len(some), max(len(read[i]) for i in some)), dtype=torch.long)
        for row, i in enumerate(some):
            source[row, : len(read[i])] = torch.from_numpy(read[i])
        state, memory = model.begin(source)
        token, found = torch.full((len(some),), BOS), []
        for _ in range(max(targets[i] for i in some)):
            hidden, state = model.step(model.embedding(token), state, memory)
            token = model.logits(hidden).argmax(-1)
            found.append(token)
        rows = torch.stack(found, 1).tolist()
        return [row[: targets[i]] for row, i in zip(rows, some, strict=True)]

    def run(times):
        written = 0
        for _ in range(times):
            batches = (order[i : i + batch] for i in range(0, len(order), batch))
            written = sum(len(row) for some in batches for row in translate(some))
        return written

    run(1)
    return run, {}


def convolution(width, places, batch, length):
    """Forward and backward pass of a causal gated convolution, channels first as in torch."""
    x = torch.randn(batch, width, length, requires_grad=True)
    layer = nn.Conv1d(width, 2 * width, places, bias=False)

    def step():
        loss = functional.glu(layer(functional.pad(x, (places - 1, 0))), 1).square().mean()
        return torch.autograd.grad(loss, (x, layer.weight))

    step()

    def run(times):
        for _ in range(times):
            found = step()
        return float(found[0][0, 0, 0])

    return run, {}


CASES: dict[str, Setup] = {
    "train": train,
    "decode": decode,
    "lines": lines,
    "convolution": convolution,
}

if __name__ == "__main__":
    serve(CASES)
