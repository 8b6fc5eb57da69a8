"""The exercises: inputs, right values by the package's functions, mistakes, hints, laws.

A mistake is a function from the same inputs to the value that it leads to, so that its name is
found by comparing values. Right values come from the functions that train and decode, where one has
the form of the exercise.
"""

# Inputs are unpacked into functions of several kinds.
# mypy: disable-error-code="arg-type, call-arg, misc, operator, var-annotated"

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sacrebleu.metrics import BLEU
from tokenizers import Tokenizer, models

from transformer_jax import laws
from transformer_jax.data.merges import join_pair, pair_counts
from transformer_jax.data.words import blank_words
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.search import search
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.decoding.search_state import SearchRows, Steps
from transformer_jax.functional import layers, losses, low_rank, masks, positions
from transformer_jax.functional import logits as logit_functions
from transformer_jax.functional.alignment_scores import additive_scores
from transformer_jax.functional.preference_losses import dpo_loss
from transformer_jax.functional.scores import ScaledDot, masked_softmax
from transformer_jax.laws.finding import Finding
from transformer_jax.models.transformer.layers import merge_heads
from transformer_jax.training.objectives import shift_tokens_right
from transformer_jax.training.optimizers import noam

__all__ = ["EXERCISES", "TRANSFORMER", "Exercise", "TrigramModel"]

Function = Callable  # of the arguments of its blank


@dataclasses.dataclass(frozen=True)
class Exercise:
    """An exercise, whose blank is the function of this name in :mod:`.blanks`.

    Attributes:
        right: The right value of inputs.
        cases: Inputs by what they try; the first are those of a slide, where it has numbers.
        mistakes: Wrong values of inputs, by the likely cause, the most likely first.
        hints: From a nudge to nearly all.
        laws: Findings of :mod:`transformer_jax.laws` on an answer.
        calls: Applies an answer to inputs.
    """

    right: Function
    cases: Mapping[str, tuple[object, ...]]
    mistakes: Mapping[str, Function]
    hints: tuple[str, ...]
    laws: Callable[[Function], list[Finding]] = lambda answer: []
    calls: Callable[[Function, tuple[object, ...]], object] = lambda answer, inputs: answer(*inputs)


_draw = np.random.default_rng(0)
_seen = np.random.default_rng(1)


def _normal(*shape):
    return _draw.standard_normal(shape).astype(np.float32)


def _visible(*shape):
    """Keys that each query sees: some, and not all."""
    keys = np.arange(shape[-1])
    return np.asarray(((_seen.random(shape) < 0.6) | (keys == 1)) & (keys != 0))


def _nan(where, value):
    return np.where(where, np.nan, value)


# --- Attention ------------------------------------------------------------------------------------


def _softmax(scores, mask=True):
    mask = np.broadcast_to(mask, scores.shape)
    lead = (1,) * (4 - scores.ndim)
    shape = lead + scores.shape
    found = masked_softmax(jnp.asarray(scores.reshape(shape)), jnp.asarray(mask.reshape(shape)))
    return np.asarray(found).reshape(scores.shape)


def _attention(q, k, v, mask, scale=None):
    lead = (1,) * (4 - q.ndim)
    q, k, v = (x.reshape(lead + x.shape) for x in (q, k, v))
    mask = np.broadcast_to(mask, (*q.shape[:-1], k.shape[-2])[len(lead) :]).reshape(
        (*q.shape[:-1], k.shape[-2])
    )
    zeros = np.zeros((*q.shape[:3], v.shape[3]))
    found = laws.attention_formula(q, k, v, zeros, mask, score=ScaledDot(scale))[0]
    return found[(0,) * len(lead)]


def _weights(q, k, mask=True):
    units = np.broadcast_to(np.eye(k.shape[-2]), (*k.shape[:-1], k.shape[-2]))
    return _attention(q, k, units, np.asarray(mask))


def _attention_laws(answer):
    q, k, v = _Q.reshape(2, 2, 4, 3), _K.reshape(2, 2, 5, 3), _V.reshape(2, 2, 5, 2)
    attend = lambda q, k, v, mask: np.asarray(answer(q, k, v, np.broadcast_to(mask, _SEES.shape)))
    blind = _SEES & (np.arange(4) > 0)[:, None]
    return [
        laws.mask_polarity(attend, q, k, _SEES),
        laws.masked_rows(lambda q, k, v, _, mask: (attend(q, k, v, mask),), q, k, v, blind),
    ]


def _peaked(s, m, others=None):
    """Weights where exponentials are taken less the largest of other scores."""
    peak = (s if others is None else others).max(-1, keepdims=True)
    e = np.exp(s - peak) * m
    return e / np.where(e.sum(-1, keepdims=True) == 0, 1, e.sum(-1, keepdims=True))


_SCORES = np.array([[31, 27, 22], [27, 42, 31], [22, 31, 37]], np.float32)
_PAST = np.tri(3, dtype=bool)
_Q, _K, _V = _normal(2, 2, 4, 3), _normal(2, 2, 5, 3), _normal(2, 2, 5, 2)
_SEES = _visible(2, 2, 4, 5)
_DEAD = np.array([[True, True, False], [False, False, False], [True, True, True]])
_EQUAL = lambda mask: ~mask.any(-1, keepdims=True)

_OF_SOFTMAX = Exercise(
    right=_softmax,
    cases={
        "the slide's scores": (_SCORES, _PAST),
        "random scores": (_normal(2, 3, 5), _visible(2, 3, 5)),
        "large scores": (10_000 * _normal(3, 4), _visible(3, 4)),
        "a query that sees no key": (_normal(3, 3), _DEAD),
    },
    mistakes={
        "the mask is reversed: True is where a query may look": lambda s, m: _softmax(s, ~m),
        "the mask is not used": lambda s, m: _softmax(s),
        "the sum is over queries: it belongs over keys, the last axis": lambda s, m: _softmax(
            s.swapaxes(-1, -2), m.swapaxes(-1, -2)
        ).swapaxes(-1, -2),
        "masked scores become 0 instead of minus infinity": lambda s, m: _softmax(
            np.where(m, s, 0)
        ),
        "the mask comes after the softmax, so that rows do not sum to one": lambda s, m: (
            _softmax(s) * m
        ),
        "the sum is over all queries and keys together": lambda s, m: np.stack(
            [
                _softmax(a.reshape(1, -1), b.reshape(1, -1)).reshape(a.shape)
                for a, b in zip(
                    s.reshape(-1, *s.shape[-2:]), m.reshape(-1, *s.shape[-2:]), strict=True
                )
            ]
        ).reshape(s.shape),
        "the division by the sum is missing": lambda s, m: np.where(
            m, np.exp(s - np.max(np.where(m, s, -1e9), -1, keepdims=True)), 0
        ),
        "the result is the logarithm": lambda s, m: np.log(_softmax(s, m)),
        "large scores overflow or vanish: subtract the row's largest first": lambda s, m: _peaked(
            s, m, 0 * s
        ),
        "large scores overflow: subtract the row's largest score first": lambda s, m: "nan",
        "the largest score is that of a hidden key: hide scores first": lambda s, m: _peaked(s, m),
        "the largest score is subtracted after hidden ones became 0": lambda s, m: _peaked(
            s, m, np.where(m, s, 0)
        ),
        "a query that sees no key divides zero by zero": lambda s, m: _nan(
            _EQUAL(m), _softmax(s, m)
        ),
        "a query that sees no key gets equal weights: they have to be zero": lambda s, m: np.where(
            _EQUAL(m), 1 / s.shape[-1], _softmax(s, m)
        ),
        "a query that sees no key ignores the mask": lambda s, m: np.where(
            _EQUAL(m), _softmax(s), _softmax(s, m)
        ),
    },
    hints=(
        "Which axis do the weights of one query lie on?",
        "A hidden score has to become so small that its exponential is 0; subtract the largest.",
        "If no key is visible, the sum is 0: divide by 1 instead.",
    ),
    laws=lambda answer: [
        laws.weights_sum_to_one(np.asarray(answer(s, m)), m)
        for s, m in ((_SCORES, _PAST), (_SCORES, _DEAD))
    ],
)

_OF_ATTENTION = Exercise(
    right=_attention,
    cases={
        "random heads": (_Q, _K, _V, _SEES),
        "one text without heads": (_Q[0, 0], _K[0, 0], _V[0, 0], _SEES[0, 0]),
        "15 queries and 13 keys": (
            _normal(15, 8),
            _normal(13, 8),
            _normal(13, 5),
            _visible(15, 13),
        ),
        "a query that sees no key": (
            _Q[0, 0],
            _K[0, 0],
            _V[0, 0],
            _SEES[0, 0] & _DEAD[[0, 1, 2, 2], :1],
        ),
        "large scores": (300 * _Q, 300 * _K, _V, _SEES),
    },
    mistakes={
        "the division by √H is missing": lambda q, k, v, m: _attention(q, k, v, m, 1.0),
        "the scores are divided by H instead of √H": lambda q, k, v, m: _attention(
            q, k, v, m, 1 / q.shape[-1]
        ),
        "the scores are multiplied by √H": lambda q, k, v, m: _attention(
            q, k, v, m, q.shape[-1] ** 0.5
        ),
        "the scale is that of the number of keys, not of the size of a key": lambda q, k, v, m: (
            _attention(q, k, v, m, k.shape[-2] ** -0.5)
        ),
        "the scale is that of the size of a value, not of a key": lambda q, k, v, m: _attention(
            q, k, v, m, v.shape[-1] ** -0.5
        ),
        "the mask is reversed: True is where a query may look": lambda q, k, v, m: _attention(
            q, k, v, ~m
        ),
        "the mask is not used": lambda q, k, v, m: _attention(q, k, v, np.asarray(True)),
        "the softmax runs over queries instead of keys": lambda q, k, v, m: (
            _weights(k, q, m.swapaxes(-1, -2)).swapaxes(-1, -2) @ v
        ),
        "the mask comes after the softmax, so that weights do not sum to one": lambda q, k, v, m: (
            (_weights(q, k) * m) @ v
        ),
        "masked scores become 0 instead of minus infinity": lambda q, k, v, m: (
            _softmax(np.where(m, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), 0)) @ v
        ),
        "the values are not mixed: these are the weights": lambda q, k, v, m: _weights(q, k, m),
        "the keys are mixed instead of the values": lambda q, k, v, m: _attention(q, k, k, m),
        "the softmax is missing": lambda q, k, v, m: (
            np.where(m, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), 0) @ v
        ),
        "a query that sees no key divides zero by zero": lambda q, k, v, m: _nan(
            _EQUAL(m), _attention(q, k, v, m)
        ),
        "a query that sees no key gets the mean of the values: it gets zeros": lambda q, k, v, m: (
            np.where(_EQUAL(m), v.mean(-2, keepdims=True), _attention(q, k, v, m))
        ),
        "large scores overflow: subtract the row's largest score first": lambda q, k, v, m: "nan",
    },
    hints=(
        "Scores are one product, the output is another; what lies between them?",
        "Swap the last two axes of k, not all of them; √H is the root of the size of one key.",
        "Hide scores before the softmax; a query that sees no key gets zeros.",
    ),
    laws=_attention_laws,
)

_sigmoid = lambda x: 1 / (1 + np.exp(-x))


def _additive(q, k, w_q, w_k, v):
    return np.asarray(additive_scores(q[None, None], k[None, None], w_q, w_k, v))[0, 0]


def _between(q, k, w_q, w_k, v):
    return (q @ w_q)[:, None] + (k @ w_k)[None]


_OF_ADDITIVE = Exercise(
    right=_additive,
    cases={
        "random states": (_normal(4, 3), _normal(5, 3), _normal(3, 6), _normal(3, 6), _normal(6)),
        "states of other sizes": (
            _normal(2, 4),
            _normal(3, 5),
            _normal(4, 6),
            _normal(5, 6),
            _normal(6),
        ),
    },
    mistakes={
        "the tanh is missing": lambda *x: _between(*x) @ x[4],
        "the tanh comes before the sum": lambda *x: (
            (np.tanh(x[0] @ x[2])[:, None] + np.tanh(x[1] @ x[3])) @ x[4]
        ),
        "the two maps are multiplied: they are added": lambda *x: (
            np.tanh((x[0] @ x[2])[:, None] * (x[1] @ x[3])) @ x[4]
        ),
        "a sigmoid stands for the tanh": lambda *x: _sigmoid(_between(*x)) @ x[4],
        "a ReLU stands for the tanh": lambda *x: np.maximum(_between(*x), 0) @ x[4],
        "queries and keys are swapped: rows are queries": lambda *x: _additive(*x).T,
        "v is not used: its product with the tanh is the score": lambda *x: np.tanh(
            _between(*x)
        ).sum(-1),
        "v is not used: the mean stands for the product": lambda *x: np.tanh(_between(*x)).mean(-1),
        "the maps of queries and keys are swapped": lambda q, k, a, b, v: _additive(q, k, b, a, v),
        "these are weights: no softmax is asked for": lambda *x: _softmax(_additive(*x)),
        "the scores are divided by a root: additive ones are not": lambda *x: (
            _additive(*x) / np.sqrt(len(x[4]))
        ),
        "the tanh is of the whole score": lambda *x: np.tanh(_between(*x) @ x[4]),
    },
    hints=(
        "Each query meets each key: which shape has the sum before the tanh?",
        "(q W_q)[:, None] and (k W_k)[None] add up to [T S A].",
    ),
)


def _mask(real, causal):
    found = masks.padding_mask(jnp.asarray(real))
    T = real.shape[1]
    dense = (found & masks.causal() if causal else found).array(T, T)
    return np.broadcast_to(np.asarray(dense), (len(real), 1, T, T))


_REAL = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool)
_tri = lambda real, k=0: np.tri(real.shape[1], k=k, dtype=bool)[None, None]
_all = lambda real: np.ones((len(real), 1, real.shape[1], real.shape[1]), bool)
_words = lambda real: real[:, None, None, :] & _all(real)

_OF_MASK = Exercise(
    right=_mask,
    cases={
        "a target with padding": (_REAL, True),
        "a source with padding": (_REAL, False),
        "no padding": (np.ones((1, 3), bool), True),
    },
    mistakes={
        "the mask is reversed: True is where a query may look": lambda r, c: ~_mask(r, c),
        "the future is visible, and the past is not: np.tri, not its transpose": lambda r, c: (
            _words(r) & (_tri(r).swapaxes(2, 3) if c else True)
        ),
        "a query does not see itself: the diagonal is visible": lambda r, c: (
            _words(r) & (_tri(r, -1) if c else True)
        ),
        "a query sees one later key": lambda r, c: _words(r) & (_tri(r, 1) if c else True),
        "padding is not hidden": lambda r, c: _all(r) & (_tri(r) if c else True),
        "causal is not used": lambda r, c: _words(r),
        "the mask is always causal": lambda r, c: _words(r) & _tri(r),
        "queries at padding are hidden instead of keys": lambda r, c: (
            _all(r) & r[:, None, :, None] & (_tri(r) if c else True)
        ),
        "queries at padding are hidden too: hide keys alone": lambda r, c: (
            _mask(r, c) & r[:, None, :, None]
        ),
        "the two are joined by or: both have to hold": lambda r, c: (
            _words(r) | _tri(r) if c else _words(r)
        ),
        "these are numbers to add to scores: booleans are asked for": lambda r, c: np.where(
            _mask(r, c), 0.0, -1e9
        ),
        "the axis of heads is missing": lambda r, c: _mask(r, c)[:, 0],
        "padding is True: words are": lambda r, c: (
            ~r[:, None, None, :] & _all(r) & (_tri(r) if c else True)
        ),
    },
    hints=(
        "A key is visible if it is a word, whoever asks: which axis are keys on?",
        "real[:, None, None, :] broadcasts over heads and queries; np.tri is the causal part.",
    ),
)

_sines = lambda length, width, **given: np.asarray(
    positions.sinusoidal(length, width, **given), np.float64
)

_OF_SINUSOIDS = Exercise(
    right=_sines,
    cases={"the slide's positions": (3, 4), "many positions": (60, 16), "one position": (1, 6)},
    mistakes={
        "sine and cosine are swapped": lambda n, d: (
            _sines(n, d).reshape(n, -1, 2)[..., ::-1].reshape(n, d)
        ),
        "all sines stand before all cosines: they alternate": lambda n, d: _sines(
            n, d, layout="halves"
        ),
        "the exponent is i / D instead of 2i / D": lambda n, d: _sines(n, 2 * d)[:, :d],
        "each column has its own angle: sine and cosine of a pair share one": lambda n, d: np.stack(
            [_sines(n, d)[:, 0::2], _sines(n, 2 * d)[:, 3::4]], -1
        ).reshape(n, d),
        "positions begin at 1 instead of 0": lambda n, d: _sines(n, d, start=1),
        "the base is 1,000 instead of 10,000": lambda n, d: _sines(n, d, base=1000.0),
        "all positions are alike": lambda n, d: 0 * _sines(n, d),
        "all columns are sines": lambda n, d: _sines(n, d)[:, 0::2].repeat(2, 1),
        "the axes are swapped: rows are positions": lambda n, d: _sines(n, d).T,
        "the angle is a product: positions are divided": lambda n, d: _sines(n, d, base=1e-4),
        "all pairs have the same angle": lambda n, d: np.tile(_sines(n, d)[:, :2], d // 2),
        "the values are scaled": lambda n, d: _sines(n, d) * np.sqrt(d),
        "the exponents reach 1: they are 2i / D": lambda n, d: (
            np.stack(np.split(_sines(n, d, layout="fairseq"), 2, 1), -1).reshape(n, d)
            if d > 2
            else _sines(n, d)
        ),
    },
    hints=(
        "Column 2i and column 2i + 1 have the same angle.",
        "np.arange(0, D, 2) is already 2i; one column of positions divided by one row of powers.",
    ),
)

# --- Layers ---------------------------------------------------------------------------------------


def _norm(x, gain, bias, eps):
    one = (
        jnp.asarray(x, jnp.float32),
        jnp.asarray(gain, jnp.float32),
        jnp.asarray(bias, jnp.float32),
    )
    return np.asarray(layers.layer_norm(*one, eps), np.float64)


_by = lambda x, axis, g, b, spread: (x - x.mean(axis, keepdims=True)) / spread * g + b
_ONE = np.ones(4, np.float32)

_OF_NORM = Exercise(
    right=_norm,
    cases={
        "the slide's vector": (np.arange(1, 5, dtype=np.float32), _ONE, 0 * _ONE, 0.0),
        "random vectors": (_normal(2, 3, 4) + 2, _normal(4), _normal(4), 0.3),
        "one vector": (_normal(1, 6), _normal(6), _normal(6), 0.1),
    },
    mistakes={
        "the variance is divided by D - 1: ddof is 0": lambda x, g, b, e: _by(
            x, -1, g, b, np.sqrt(x.var(-1, ddof=1, keepdims=True) + e)
        ),
        "the norm runs over positions: it runs over the last axis": lambda x, g, b, e: _by(
            x, 0, g, b, np.sqrt(x.var(0, keepdims=True) + e)
        ),
        "the norm runs over positions of a text: it runs over the last axis": lambda x, g, b, e: (
            _by(x, -2, g, b, np.sqrt(x.var(-2, keepdims=True) + e))
        ),
        "the mean is not subtracted": lambda x, g, b, e: np.asarray(layers.rms_norm(x, g, e)) + b,
        "the mean is not subtracted, though the variance is right": lambda x, g, b, e: (
            x / np.sqrt(x.var(-1, keepdims=True) + e) * g + b
        ),
        "the root is missing: this divides by the variance": lambda x, g, b, e: _by(
            x, -1, g, b, x.var(-1, keepdims=True) + e
        ),
        "epsilon is added to the deviation: it belongs under the root": lambda x, g, b, e: _by(
            x, -1, g, b, x.std(-1, keepdims=True) + e
        ),
        "epsilon is not used": lambda x, g, b, e: _norm(x, g, b, 0.0),
        "gain and bias are not used": lambda x, g, b, e: _norm(x, 0 * g + 1, 0 * b, e),
        "the bias is not used": lambda x, g, b, e: _norm(x, g, 0 * b, e),
        "the gain is not used": lambda x, g, b, e: _norm(x, 0 * g + 1, b, e),
        "the bias is added before the gain multiplies": lambda x, g, b, e: (
            (_norm(x, 0 * g + 1, 0 * b, e) + b) * g
        ),
        "the gain is added to 1": lambda x, g, b, e: _norm(x, 1 + g, b, e),
        "mean and variance are those of all values: each vector has its own": lambda x, g, b, e: (
            (x - x.mean()) / np.sqrt(x.var() + e) * g + b
        ),
    },
    hints=("Which axis, and does the mean keep it?", "np.var divides by D, as the slide does."),
)


def _project(x, w, b):
    D, N, H = w.shape
    y = np.asarray(layers.linear(x, w.reshape(D, N * H), b.reshape(-1)), np.float64)
    return y.reshape(*x.shape[:2], N, H).swapaxes(1, 2)


def _heads(x, memory, mask, w, b, scale=None):
    q, k, v = (
        _project(one, w[name], b[name]) for one, name in ((x, "q"), (memory, "k"), (memory, "v"))
    )
    return _attention(q, k, v, np.broadcast_to(mask, (*q.shape[:3], k.shape[2])), scale)


def _merged(y, w, b):
    out = w["o"].reshape(-1, w["o"].shape[-1])
    joined = np.asarray(merge_heads(jnp.asarray(y, jnp.float32)))
    return np.asarray(layers.linear(joined, out, b["o"]), np.float64)


def _multi_head(x, memory, mask, w, b, scale=None):
    return _merged(_heads(x, memory, mask, w, b, scale), w, b)


def _maps(D, N, H):
    w = {name: _normal(D, N, H) for name in "qkv"} | {"o": _normal(N, H, D)}
    return w, {name: _normal(N, H) for name in "qkv"} | {"o": _normal(D)}


def _interleaved(w):
    """The maps of heads as a reshape to [D H N] would take them."""
    D, N, H = w.shape
    return w.reshape(D, H, N).swapaxes(1, 2)


_X, _MEMORY, _MAPS = _normal(2, 4, 6), _normal(2, 4, 6), _maps(6, 2, 3)
_zero = lambda maps, *names: {n: 0 * m if n in names else m for n, m in maps.items()}

_OF_HEADS = Exercise(
    right=_multi_head,
    cases={
        "random heads": (_X, _MEMORY, _visible(2, 1, 4, 4), *_MAPS),
        "more keys than queries": (_X[:, :2], _MEMORY, _visible(2, 1, 2, 4), *_MAPS),
    },
    mistakes={
        "keys and values come from x: they come from memory": lambda x, y, m, w, b: _multi_head(
            x, x, m, w, b
        ),
        "queries come from memory: they come from x": lambda x, y, m, w, b: _multi_head(
            y, y, m, w, b
        ),
        "queries and keys come from the wrong sides": lambda x, y, m, w, b: _multi_head(
            y, x, m, w, b
        ),
        "the biases are not used": lambda x, y, m, w, b: _multi_head(x, y, m, w, _zero(b, *"qkvo")),
        "the bias of the output is not used": lambda x, y, m, w, b: _multi_head(
            x, y, m, w, _zero(b, "o")
        ),
        "the biases of queries, keys and values are not used": lambda x, y, m, w, b: _multi_head(
            x, y, m, w, _zero(b, *"qkv")
        ),
        "the division by √H is missing": lambda x, y, m, w, b: _multi_head(x, y, m, w, b, 1.0),
        "the division is by √D: it is by the root of the size of one head": lambda x, y, m, w, b: (
            _multi_head(x, y, m, w, b, x.shape[-1] ** -0.5)
        ),
        "the mask is not used": lambda x, y, m, w, b: _multi_head(x, y, np.asarray(True), w, b),
        "the mask is reversed: True is where a query may look": lambda x, y, m, w, b: _multi_head(
            x, y, ~m, w, b
        ),
        "heads are joined without moving their axis behind that of positions": lambda *x: (
            np.asarray(
                layers.linear(
                    _heads(*x).reshape(*x[0].shape[:2], -1).astype(np.float32),
                    x[3]["o"].reshape(-1, x[0].shape[-1]),
                    x[4]["o"],
                )
            )
        ),
        "the output map is missing": lambda *x: np.asarray(merge_heads(jnp.asarray(_heads(*x)))),
        "heads are averaged: their parts add up": lambda *x: (
            (_merged(_heads(*x), x[3], x[4]) - x[4]["o"]) / x[3]["q"].shape[1] + x[4]["o"]
        ),
        "the map of keys is used for values": lambda x, y, m, w, b: _multi_head(
            x, y, m, {**w, "v": w["k"]}, {**b, "v": b["k"]}
        ),
        "sizes and numbers of heads are swapped in a reshape": lambda x, y, m, w, b: _multi_head(
            x, y, m, {n: a if n == "o" else _interleaved(a) for n, a in w.items()}, b
        ),
        "all heads use the map of the first": lambda x, y, m, w, b: _multi_head(
            x,
            y,
            m,
            {n: a if n == "o" else 0 * a + a[:, :1] for n, a in w.items()},
            {n: a if n == "o" else 0 * a + a[:1] for n, a in b.items()},
        ),
    },
    hints=(
        "Letters of an einsum: B, T, D for x, D, N, H for a map; which of them are summed?",
        "Biases [N H] of heads [B N T H] need an axis for T.",
    ),
)


def _folded(step):
    """A mistake in one sub-layer, made in each."""
    return lambda x, fs, ns, placement: functools.reduce(
        lambda x, pair: step(x, *pair, placement == "pre"), zip(fs, ns, strict=True), x
    )


_block = _folded(lambda x, f, norm, pre: x + f(norm(x)) if pre else norm(x + f(x)))
_F = [lambda x: 0.5 * x * x + 1, lambda x: 3 - x]
_N = [lambda x: 2 * (x - x.mean(-1, keepdims=True)), lambda x: x / 4]
_OTHER = {"pre": "post", "post": "pre"}

_OF_BLOCK = Exercise(
    right=_block,
    cases={
        "post-norm": (_normal(1, 2, 3), _F, _N, "post"),
        "pre-norm": (_normal(1, 2, 3), _F, _N, "pre"),
    },
    mistakes={
        "pre and post are swapped": lambda x, f, n, p: _block(x, f, n, _OTHER[p]),
        "the input is not added": _folded(lambda x, f, n, pre: f(n(x)) if pre else n(f(x))),
        "placement is not used: this is always post": lambda x, f, n, p: _block(x, f, n, "post"),
        "placement is not used: this is always pre": lambda x, f, n, p: _block(x, f, n, "pre"),
        "the normalized input is added: x itself is": _folded(
            lambda x, f, n, pre: n(x) + f(n(x)) if pre else n(x + f(x))
        ),
        "the norm is of the sub-layer's output alone": _folded(
            lambda x, f, n, pre: x + f(n(x)) if pre else x + n(f(x))
        ),
        "the norms are not used": _folded(lambda x, f, n, pre: x + f(x)),
        "pre-norm is normalized after the addition as well": _folded(
            lambda x, f, n, pre: n(x + f(n(x))) if pre else n(x + f(x))
        ),
        "only the first sub-layer runs": lambda x, f, n, p: _block(x, f[:1], n[:1], p),
        "the first norm serves all sub-layers": lambda x, f, n, p: _block(x, f, n[:1] * len(n), p),
        "the sub-layers run in the other order": lambda x, f, n, p: _block(x, f[::-1], n[::-1], p),
        "all sub-layers read the block's input: each reads the last result": lambda x, f, n, p: (
            sum(_block(x, [a], [b], p) - x for a, b in zip(f, n, strict=True)) + x
        ),
    },
    hints=("One loop over pairs of a sub-layer and its norm.", "x is replaced in each turn."),
)

_OF_SHIFT = Exercise(
    right=lambda tokens, bos: np.asarray(shift_tokens_right(jnp.asarray(tokens), bos)),
    cases={
        "two targets": (np.array([[7, 8, 9, 2], [5, 2, 0, 0]], np.int32), 1),
        "one token": (np.array([[6]], np.int32), 3),
    },
    mistakes={
        "nothing is shifted": lambda t, bos: t,
        "tokens move left: each belongs one place later": lambda t, bos: np.concatenate(
            [t[:, 1:], 0 * t[:, :1] + bos], 1
        ),
        "the last token wraps around to the front: bos belongs there": lambda t, bos: np.roll(
            t, 1, 1
        ),
        "the last token stays, so that the row is longer": lambda t, bos: np.insert(t, 0, bos, 1),
        "the first token is replaced, and nothing is shifted": lambda t, bos: np.concatenate(
            [0 * t[:, :1] + bos, t[:, 1:]], 1
        ),
        "rows are shifted instead of positions": lambda t, bos: np.concatenate(
            [0 * t[:1] + bos, t[:-1]], 0
        ),
        "0 comes first instead of bos": lambda t, bos: np.concatenate([0 * t[:, :1], t[:, :-1]], 1),
        "bos is missing": lambda t, bos: t[:, :-1],
        "the first token is repeated: bos belongs there": lambda t, bos: np.concatenate(
            [t[:, :1], t[:, :-1]], 1
        ),
        "tokens move two places": lambda t, bos: np.concatenate([0 * t[:, :2] + bos, t[:, :-2]], 1),
        "np.roll without an axis takes tokens from other rows": lambda t, bos: np.concatenate(
            [[bos], t.reshape(-1)[:-1]]
        ).reshape(t.shape),
        "the row before lends its last token: np.roll needs an axis": lambda t, bos: np.roll(t, 1),
    },
    hints=(
        "The input at position t is the target at t - 1.",
        "Drop the last column, not the end token.",
    ),
)

# --- Losses and training --------------------------------------------------------------------------

_loss = lambda logits, targets, s: np.asarray(
    losses.token_cross_entropy(jnp.asarray(logits), jnp.asarray(targets), s), np.float64
)
_logp = lambda logits: np.asarray(jax.nn.log_softmax(jnp.asarray(logits)), np.float64)
_at = lambda x, targets: np.take_along_axis(x, targets[..., None], -1)[..., 0]
_TARGETS = np.array([[0, 3, 4], [1, 1, 2]], np.int32)


def _others(logits, targets, s):
    log_p, V = _logp(logits), logits.shape[-1]
    return -(1 - s) * _at(log_p, targets) - s * (log_p.sum(-1) - _at(log_p, targets)) / (V - 1)


_OF_LOSS = Exercise(
    right=_loss,
    cases={
        "no smoothing": (_normal(2, 3, 5), _TARGETS, 0.0),
        "a tenth": (_normal(2, 3, 5), _TARGETS, 0.1),
        "large logits": (3000 * _normal(2, 3, 5), _TARGETS, 0.2),
    },
    mistakes={
        "the target gets nothing of the smoothing: spread it over all V tokens": _others,
        "smoothing is not used": lambda x, t, s: _loss(x, t, 0.0),
        "the sign is missing": lambda x, t, s: -_loss(x, t, s),
        "this is the mean: each position has a loss": lambda x, t, s: _loss(x, t, s).mean(),
        "this is the sum: each position has a loss": lambda x, t, s: _loss(x, t, s).sum(),
        "the target keeps all of its weight: 1 - smoothing is missing": lambda x, t, s: (
            _loss(x, t, 0.0) - s * _logp(x).mean(-1)
        ),
        "smoothing is not divided by V": lambda x, t, s: (
            (1 - s) * _loss(x, t, 0.0) - s * _logp(x).sum(-1)
        ),
        "smoothing is added to the probability: it mixes losses": lambda x, t, s: (
            -np.log((1 - s) * np.exp(_at(_logp(x), t)) + s / x.shape[-1])
        ),
        "the logarithm has base 2": lambda x, t, s: _loss(x, t, s) / np.log(2),
        "the softmax is missing": lambda x, t, s: -(1 - s) * _at(x, t) - s * x.mean(-1),
        "the softmax runs over positions: it runs over tokens": lambda x, t, s: (
            -(1 - s) * _at(_logp(x.swapaxes(1, 2)).swapaxes(1, 2), t)
            - s * _logp(x.swapaxes(1, 2)).swapaxes(1, 2).mean(-1)
        ),
        "1 - smoothing and smoothing are swapped": lambda x, t, s: (
            s * _loss(x, t, 0.0) - (1 - s) * _logp(x).mean(-1)
        ),
        "large logits overflow: take the logarithm of the softmax in one": lambda x, t, s: "nan",
    },
    hints=(
        "What is the loss without smoothing?",
        "The smoothed part is the mean of -log p over V.",
    ),
)

_total = lambda x, r: np.where(r, x, 0).sum()
_LOSSES = np.array([[1, 2, 9], [3, 9, 9], [2, 4, 6]], np.float32)
_TOKENS = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]], bool)

_OF_TOKENS = Exercise(
    right=lambda x, r: (_total(x, r), r.sum()),
    cases={
        "texts of three lengths": (_LOSSES, _TOKENS),
        "padding that is no number": (np.where(_TOKENS, _LOSSES, np.nan), _TOKENS),
        "one text": (_LOSSES[:1], _TOKENS[:1]),
    },
    mistakes={
        "this is the mean: the sum and the number are asked for": lambda x, r: (
            _total(x, r) / r.sum(),
            r.sum(),
        ),
        "one number alone is returned: the mean": lambda x, r: _total(x, r) / r.sum(),
        "one number alone is returned: the sum": lambda x, r: _total(x, r),
        "padding is counted": lambda x, r: (_total(x, r), r.size),
        "padding is added": lambda x, r: (x.sum(), r.sum()),
        "padding is added and counted": lambda x, r: (x.sum(), r.size),
        "padding is added instead of words": lambda x, r: (_total(x, ~r), (~r).sum()),
        "texts are averaged first, so that words of short ones weigh more": lambda x, r: (
            (np.where(r, x, 0).sum(1) / r.sum(1)).sum(),
            r.sum(),
        ),
        "texts are counted instead of words": lambda x, r: (_total(x, r), len(r)),
        "texts are averaged and counted: words are": lambda x, r: (
            (np.where(r, x, 0).sum(1) / r.sum(1)).sum(),
            len(r),
        ),
        "sum and number are swapped": lambda x, r: (r.sum(), _total(x, r)),
        "each text has its own sum: one for all is asked for": lambda x, r: (
            np.where(r, x, 0).sum(1),
            r.sum(1),
        ),
        "0 times NaN is NaN: choose with where instead": lambda x, r: ((x * r).sum(), r.sum()),
        "1 / number and the sum: the number itself is asked for": lambda x, r: (
            _total(x, r),
            1 / r.sum(),
        ),
        "the positions of one text are counted": lambda x, r: (_total(x, r), r.shape[1]),
    },
    hints=("A batch is divided once, at the very end.", "np.where chooses; a product keeps NaN."),
    laws=lambda answer: [
        check(lambda x, r: [np.asarray(one) for one in answer(x, r)], _LOSSES, _TOKENS)
        for check in (laws.loss_padding, laws.loss_length)
    ],
)


def _adam(w, g, m, v, step, *sizes, betas=(0.9, 0.98), rate=1.0):
    adam = optax.scale_by_adam(*betas, eps=1e-9)
    arrays = [jnp.asarray(x, jnp.float32) for x in (g, m, v)]
    state = optax.ScaleByAdamState(jnp.int32(step - 1), arrays[1], arrays[2])
    update, new = adam.update(arrays[0], state)
    w = w - float(noam(step, *sizes)) * rate * np.asarray(update)
    return w, np.asarray(new.mu), np.asarray(new.nu)


def _moved(x, update):
    """A step with another update of m, v and their corrections, at the right rate."""
    _, m, v = _adam(*x)
    t = x[4]
    corrected = m / (1 - 0.9**t), v / (1 - 0.98**t)
    return x[0] - float(noam(t, x[5], x[6])) * update(m, v, *corrected, x[1]), m, v


def _rated(x, rate):
    return _adam(*x, rate=rate / float(noam(x[4], x[5], x[6])))


_state = lambda *, step: (
    _normal(3),
    _normal(3),
    0.1 * _normal(3),
    0.1 * _normal(3) ** 2,
    step,
    16,
    4,
)

_OF_ADAM = Exercise(
    right=_adam,
    cases={
        "the first step": (
            _normal(3),
            _normal(3),
            np.zeros(3, np.float32),
            np.zeros(3, np.float32),
            1,
            16,
            4,
        ),
        "a step of the warmup": _state(step=3),
        "a step after the warmup": _state(step=9),
    },
    mistakes={
        "the corrections 1 - βᵗ are missing": lambda *x: _moved(
            x, lambda m, v, mc, vc, g: m / (np.sqrt(v) + 1e-9)
        ),
        "m is not corrected": lambda *x: _moved(
            x, lambda m, v, mc, vc, g: m / (np.sqrt(vc) + 1e-9)
        ),
        "v is not corrected": lambda *x: _moved(
            x, lambda m, v, mc, vc, g: mc / (np.sqrt(v) + 1e-9)
        ),
        "the root of v is missing": lambda *x: _moved(x, lambda m, v, mc, vc, g: mc / (vc + 1e-9)),
        "the gradient is divided instead of m": lambda *x: _moved(
            x, lambda m, v, mc, vc, g: g / (np.sqrt(vc) + 1e-9)
        ),
        "the step goes uphill: subtract it": lambda *x: _adam(*x, rate=-1.0),
        "β₂ is 0.999: the paper has 0.98": lambda *x: _adam(*x, betas=(0.9, 0.999)),
        "the betas are swapped": lambda *x: _adam(*x, betas=(0.98, 0.9)),
        "the warmup is missing: the rate falls from the start": lambda *x: _rated(
            x, (x[5] * x[4]) ** -0.5
        ),
        "the rate keeps growing: take the smaller of the two": lambda *x: _rated(
            x, x[5] ** -0.5 * max(x[4] ** -0.5, x[4] * x[6] ** -1.5)
        ),
        "the rate has no D^-½": lambda *x: _rated(x, min(x[4] ** -0.5, x[4] * x[6] ** -1.5)),
        "the rate has D^½ instead of D^-½": lambda *x: _adam(*x, rate=float(x[5])),
        "the warmup is divided by its length, not by its power 1.5": lambda *x: _rated(
            x, x[5] ** -0.5 * min(x[4] ** -0.5, x[4] / x[6])
        ),
        "m and v are returned as before the step": lambda *x: (_adam(*x)[0], x[2], x[3]),
        "m and v are returned divided": lambda *x: (
            _adam(*x)[0],
            _adam(*x)[1] / (1 - 0.9 ** x[4]),
            _adam(*x)[2] / (1 - 0.98 ** x[4]),
        ),
        "the rate is that of the next step": lambda *x: _rated(
            x, float(noam(x[4] + 1, x[5], x[6]))
        ),
    },
    hints=(
        "Steps count from 1, in the rate and in βᵗ.",
        "Which m is stored, which one is divided?",
    ),
)

# --- Search ---------------------------------------------------------------------------------------


class TrigramModel:
    """A language model of trigrams, as a table: logits of a token after the two before it.

    Attributes:
        table: ``[V+1 V V]``: the token before the last one, the last one, the next; the first
            token has ``V`` before it.
    """

    def __init__(self, table: np.ndarray):
        self.table = table

    def __call__(self, prefixes: list[list[int]]) -> np.ndarray:
        """Returns logits ``[prefixes V]`` after each prefix."""
        if len({len(prefix) for prefix in prefixes}) != 1:
            raise ValueError(f"prefixes of one length are needed, as a list of lists: {prefixes}")
        V = self.table.shape[1]
        return np.stack([self.table[p[-2] if len(p) > 1 else V, p[-1]] for p in prefixes])


@functools.partial(jax.jit, static_argnames=("plan",))
def _searched(table, first, limit, values, plan):
    V = table.shape[1]
    steps = Steps(
        lambda tokens, before: (table[before, tokens], tokens),
        lambda before, parents: jnp.take_along_axis(
            before.reshape(parents.shape), parents, axis=1
        ).reshape(-1),
    )
    before = jnp.full(plan.beams, V, jnp.int32)
    return search(steps, before, SearchRows(first[None], limit[None]), plan, values, length=8)


def _search(model, bos, eos, limit, beams=1, alpha=0.0, normalization="gnmt"):
    config = GenerationConfig(
        num_beams=beams,
        do_sample=False,
        eos_token_id=(eos,),
        pad_token_id=0,
        at_limit="eos" if beams > 1 else "cut",
        normalization=normalization,
        length_penalty=alpha,
    )
    plan, values = search_settings(config, vocab=model.table.shape[1], length=8)
    found = _searched(jnp.asarray(model.table), jnp.int32(bos), jnp.int32(limit), values, plan)
    tokens = np.asarray(found.tokens)[0, 0, : int(found.lengths[0, 0])].tolist()
    return tokens, float(found.scores[0, 0])


_greedy = lambda *x: _search(*x)[0]
_model = lambda seed: TrigramModel(
    (1.5 * np.random.default_rng(seed).standard_normal((7, 6, 6))).astype(np.float32)
)
_blind = lambda model: TrigramModel(np.repeat(model.table[-1:], 7, 0))
_swapped = lambda model: TrigramModel(-model.table)


_OF_GREEDY = Exercise(
    right=_greedy,
    cases={
        **{f"a table of trigrams, number {n}": (_model(n), 1, 2, 6) for n in (0, 3, 4, 5)},
        "at most three tokens": (_model(1), 1, 2, 3),
        "a text that begins with its end token": (_model(0), 3, 3, 6),
    },
    mistakes={
        "the text contains bos: it begins after it": lambda m, b, e, n: [b, *_greedy(m, b, e, n)],
        "the end token is missing": lambda m, b, e, n: [t for t in _greedy(m, b, e, n) if t != e],
        "the end token does not stop the text": lambda m, b, e, n: _greedy(m, b, 7, n),
        "the text has one token too many": lambda m, b, e, n: _greedy(m, b, e, n + 1),
        "the limit counts bos: it counts tokens after it": lambda m, b, e, n: _greedy(
            m, b, e, n - 1
        ),
        "the limit is not used": lambda m, b, e, n: _greedy(m, b, e, 8),
        "the model sees the last token alone: give it the whole prefix": lambda m, b, e, n: _greedy(
            _blind(m), b, e, n
        ),
        "the least probable token is taken": lambda m, b, e, n: _greedy(_swapped(m), b, e, n),
        "the prefix begins with the end token: it begins with bos": lambda m, b, e, n: _greedy(
            m, e, e, n
        ),
        "the prefix begins with 0: it begins with bos": lambda m, b, e, n: _greedy(m, 0, e, n),
        "only one token is written": lambda m, b, e, n: _greedy(m, b, e, 1),
        "the text is a score with it: tokens alone are asked for": lambda m, b, e, n: _search(
            m, b, e, n
        ),
        "a first token that is bos stops the text, if bos is the end token": lambda m, b, e, n: (
            [] if b == e else _greedy(m, b, e, n)
        ),
    },
    hints=(
        "The prefix grows by one token in each turn.",
        "Ask the model for [prefix], and read row 0.",
    ),
)


def _rescored(found, score, alpha):
    tokens, value = found
    return tokens, score(len(tokens), value * ((5 + len(tokens)) / 6) ** alpha)


def _one_live(model, bos, eos, limit, beams, alpha):
    """The text that a single live prefix leads to."""
    text, total, best = [bos], 0.0, ([0], -np.inf)
    for n in range(1, limit + 1):
        row = _logp(model([text])[0])
        score = (total + row[eos]) / ((5 + n) / 6) ** alpha
        if (n == limit or np.argmax(row) == eos) and score > best[1]:
            best = [*text[1:], eos], float(score)
        row[eos] = -np.inf
        text, total = [*text, int(np.argmax(row))], total + np.max(row)
    return best


_OF_BEAM = Exercise(
    right=_search,
    cases={
        **{f"a table of trigrams, number {n}": (_model(n), 1, 2, 6, 3, 0.6) for n in range(2, 10)},
        "a strong penalty": (_model(7), 1, 2, 6, 3, 2.0),
        "no penalty": (_model(8), 1, 2, 6, 3, 0.0),
    },
    mistakes={
        "the length penalty is not used": lambda *x: _search(*x[:5], 0.0),
        "only one prefix lives on: this is greedy search": lambda *x: _one_live(*x),
        "the text is that of greedy search": lambda *x: (
            _greedy(*x[:4]),
            _search(*x[:4], 1, x[5])[1],
        ),
        "the penalty is length^α: it is ((5 + length) / 6)^α": lambda *x: _search(*x, "power"),
        "the text contains bos: it begins after it": lambda *x: (
            [x[1], *_search(*x)[0]],
            _search(*x)[1],
        ),
        "the end token is missing": lambda *x: (_search(*x)[0][:-1], _search(*x)[1]),
        "the score is not divided by the penalty": lambda *x: _rescored(
            _search(*x), lambda n, total: total, x[5]
        ),
        "the score is multiplied by the penalty": lambda *x: _rescored(
            _search(*x), lambda n, total: total * ((5 + n) / 6) ** x[5], x[5]
        ),
        "the score is a probability: its logarithm is asked for": lambda *x: (
            _search(*x)[0],
            float(np.exp(_search(*x)[1])),
        ),
        "the length leaves out the end token": lambda *x: _rescored(
            _search(*x), lambda n, total: total / ((4 + n) / 6) ** x[5], x[5]
        ),
        "the limit counts bos: it counts tokens after it": lambda *x: _search(
            *x[:3], x[3] - 1, *x[4:]
        ),
        "the model sees the last token alone: give it the whole prefix": lambda *x: _search(
            _blind(x[0]), *x[1:]
        ),
        "the worst continuations live on": lambda *x: _search(_swapped(x[0]), *x[1:]),
        "the tokens alone are returned: the score is asked for too": lambda *x: _search(*x)[0],
        "the score stands before the tokens": lambda *x: _search(*x)[::-1],
        "one beam too few": lambda *x: _search(*x[:4], x[4] - 1, x[5]),
        "one beam too many": lambda *x: _search(*x[:4], x[4] + 1, x[5]),
    },
    hints=(
        "Keep pairs of a total and its tokens; one list of live ones, one best finished one.",
        "Continuations of all live prefixes are sorted together; an end is finished if it is among "
        "the `beams` first.",
        "With totals of at most 0, a live prefix can still reach total / penalty(limit).",
    ),
)


def _cached(answer, inputs):
    """Outputs of each token, and the cache at the end."""
    q, k, v = (np.asarray(x) for x in inputs)
    N, H, U, outputs = q.shape[1], k.shape[2], v.shape[2], []
    cache = np.zeros((N, 0, H), np.float32), np.zeros((N, 0, U), np.float32)
    for t in range(len(q)):
        found = answer(q[t], k[t], v[t], cache)
        if not isinstance(found, tuple | list):
            return found
        y, cache = found
        outputs.append(np.asarray(y))
    return np.stack(outputs), cache


def _extended(k, v, cache):
    return (
        np.concatenate([cache[0], k[:, None]], 1),
        np.concatenate([cache[1], v[:, None]], 1),
    )


def _seen_by(q, kept, scale=None):
    return _attention(q[:, None], *kept, np.asarray(True), scale)[:, 0]


def _step(q, k, v, cache, scale=None):
    kept = _extended(k, v, cache)
    return _seen_by(q, kept, scale), kept


_OF_CACHE = Exercise(
    right=_step,
    calls=_cached,
    cases={
        "four tokens": (_normal(4, 2, 3), _normal(4, 2, 3), _normal(4, 2, 3)),
        "values of another size": (_normal(3, 2, 3), _normal(3, 2, 3), _normal(3, 2, 4)),
    },
    mistakes={
        "the old cache is returned: nothing is kept": lambda q, k, v, c: (_step(q, k, v, c)[0], c),
        "the cache keeps the new token alone": lambda q, k, v, c: (
            _seen_by(q, (k[:, None], v[:, None])),
            (k[:, None], v[:, None]),
        ),
        "the token does not see itself: add it to the cache first": lambda q, k, v, c: (
            _seen_by(q, c) if c[0].shape[1] else 0 * v,
            _extended(k, v, c),
        ),
        "the token sees itself alone": lambda q, k, v, c: (
            _seen_by(q, (k[:, None], v[:, None])),
            _extended(k, v, c),
        ),
        "new keys and values come first: they come last": lambda q, k, v, c: (
            _step(q, k, v, c)[0],
            tuple(np.concatenate([a[:, None], b], 1) for a, b in ((k, c[0]), (v, c[1]))),
        ),
        "the division by √H is missing": lambda q, k, v, c: _step(q, k, v, c, 1.0),
        "the keys are mixed instead of the values": lambda q, k, v, c: (
            _seen_by(q, (_extended(k, v, c)[0],) * 2),
            _extended(k, v, c),
        ),
        "keys and values are swapped in the cache": lambda q, k, v, c: (
            _seen_by(q, (_extended(v, k, c)[1], _extended(v, k, c)[0])),
            _extended(v, k, c),
        ),
        "the query is kept instead of the key": lambda q, k, v, c: _step(q, q, v, c),
        "the cache is returned alone": lambda q, k, v, c: _extended(k, v, c),
        "all heads see the first head's keys": lambda q, k, v, c: (
            _seen_by(q, (_extended(k, v, c)[0][:1].repeat(len(q), 0), _extended(k, v, c)[1])),
            _extended(k, v, c),
        ),
        "values are averaged: scores weigh them": lambda q, k, v, c: (
            _extended(k, v, c)[1].mean(1),
            _extended(k, v, c),
        ),
        "the scale is that of the number of tokens": lambda q, k, v, c: _step(
            q, k, v, c, (c[0].shape[1] + 1) ** -0.5
        ),
    },
    hints=(
        "First the cache grows, then the query looks.",
        "np.concatenate over the axis of tokens.",
    ),
)


def _nucleus(logits, p):
    return np.asarray(logit_functions.top_p(jnp.asarray(logits)[None], p))[0]


def _kept(logits, keep):
    return np.where(keep, logits, -np.inf)


_probs = lambda x: np.exp(_logp(x))
_mass = lambda x: np.cumsum(np.sort(_probs(x))[::-1])  # of the most probable ones
_rank = lambda x: np.argsort(np.argsort(-x, kind="stable"), kind="stable")
_FOUR = np.log(np.array([0.15, 0.5, 0.1, 0.25], np.float32))

_OF_TOP_P = Exercise(
    right=_nucleus,
    cases={
        "probabilities 0.15, 0.5, 0.1, 0.25": (_FOUR, 0.7),
        "less than the most probable token has": (_FOUR, 0.2),
        "random logits": (2 * _normal(12), 0.8),
        "large and unnormalized logits": (_FOUR + 30, 0.6),
    },
    mistakes={
        "the token that reaches p is forbidden: it stays": lambda x, p: _kept(
            x, _mass(x)[_rank(x)] <= p
        ),
        "one token too many stays": lambda x, p: _kept(
            x, _rank(x) <= np.isfinite(_nucleus(x, p)).sum()
        ),
        "the sum runs over tokens as they stand: sort them first": lambda x, p: _kept(
            x, np.cumsum(_probs(x)) - _probs(x) < p
        ),
        "the least probable tokens stay": lambda x, p: _kept(
            x, np.cumsum(np.sort(_probs(x)))[_rank(-x)] - _probs(x) < p
        ),
        "forbidden tokens get 0: their logit is minus infinity": lambda x, p: np.where(
            np.isfinite(_nucleus(x, p)), x, 0
        ),
        "these are probabilities: logits are asked for": lambda x, p: _probs(_nucleus(x, p)),
        "these are probabilities, with zeros: logits are asked for": lambda x, p: np.where(
            np.isfinite(_nucleus(x, p)), _probs(x), 0
        ),
        "the logits are returned in sorted order: put them back": lambda x, p: np.sort(
            _nucleus(x, p)
        )[::-1],
        "tokens with a probability of at least p stay: their sum reaches p": lambda x, p: _kept(
            x, _probs(x) >= p
        ),
        "tokens with at least 1 - p stay: their sum reaches p": lambda x, p: _kept(
            x, _probs(x) >= 1 - p
        ),
        "a fraction p of the tokens stays: this is top-k": lambda x, p: _kept(
            x, _rank(x) < np.ceil(p * len(x))
        ),
        "logits are summed: probabilities are": lambda x, p: _kept(
            x, (np.cumsum(np.sort(x)[::-1])[_rank(x)] - x) < p
        ),
        "tokens with a fraction p of the largest probability stay: this is min-p": lambda x, p: (
            _kept(x, _probs(x) >= p * _probs(x).max())
        ),
        "what stays is forbidden, and the rest stays": lambda x, p: _kept(
            x, ~np.isfinite(_nucleus(x, p))
        ),
        "the logits are normalized: those that stay do not change": lambda x, p: _logp(
            _nucleus(x, p)
        ),
        "forbidden tokens get a large negative number: minus infinity is asked for": lambda x, p: (
            np.maximum(_nucleus(x, p), -1e9)
        ),
    },
    hints=(
        "Sort, add up, and ask of each token: did those before it already reach p?",
        "The order has to be undone: argsort of the argsort.",
    ),
)

# --- Text -----------------------------------------------------------------------------------------


def _merge(words, best):
    pair = best(pair_counts(words))
    return pair, {join_pair(word, pair): count for word, count in words.items()}


_most = lambda pairs: min(pairs, key=lambda pair: (-pairs[pair], pair))
_bpe = lambda words: _merge(words, _most)


def _without_counts(words):
    pair = _most(pair_counts(dict.fromkeys(words, 1)))
    return pair, {join_pair(word, pair): count for word, count in words.items()}


def _rejoined(words, join):
    pair, _ = _bpe(words)
    return pair, {join(word, pair): count for word, count in words.items()}


def _first_only(word, pair):
    whole = join_pair(word, pair)
    at = next((n for n, piece in enumerate(whole) if piece == "".join(pair)), None)
    return word if at is None else (*whole[: at + 1], *word[at + 2 :])


def _across(words):
    joined = [piece for word, count in words.items() for piece in word * count]
    pair = _most(pair_counts({tuple(joined): 1}))
    return pair, {join_pair(word, pair): count for word, count in words.items()}


_PETER = collections.Counter(
    map(tuple, blank_words("Peter Piper picked a peck of pickled peppers"))
)

_OF_BPE = Exercise(
    right=_bpe,
    cases={
        "the slide's sentence": (dict(_PETER),),
        "words that occur often": (
            {("l", "o", "w"): 5, ("n", "e", "w"): 7, ("n", "e", "t"): 1, ("l", "o"): 1},
        ),
        "a pair that follows itself": ({("a", "a", "a", "a", "b"): 2, ("b", "a", "a"): 3},),
        "equally frequent pairs": ({("m", "n"): 3, ("x", "y"): 3, ("c", "b"): 3, ("c", "a"): 3},),
        "longer symbols": ({("ab", "c", "ab", "c"): 2, ("a", "bc"): 3},),
    },
    mistakes={
        "words are counted once, however often they occur": _without_counts,
        "of equally frequent pairs the first is merged: the smallest is": lambda w: _merge(
            w, lambda pairs: max(pairs, key=lambda pair: pairs[pair])
        ),
        "of equally frequent pairs the largest is merged: the smallest is": lambda w: _merge(
            w, lambda pairs: max(pairs, key=lambda pair: (pairs[pair], pair))
        ),
        "the least frequent pair is merged": lambda w: _merge(
            w, lambda pairs: min(pairs, key=lambda pair: (pairs[pair], pair))
        ),
        "the pair is found, but not merged": lambda w: (_bpe(w)[0], dict(w)),
        "only the first occurrence in a word is merged": lambda w: _rejoined(w, _first_only),
        "pairs across the ends of words are counted": _across,
        "the pair is returned as one text: two symbols are asked for": lambda w: (
            "".join(_bpe(w)[0]),
            _bpe(w)[1],
        ),
        "words are returned as texts: tuples of symbols are asked for": lambda w: (
            _bpe(w)[0],
            {" ".join(word): count for word, count in _bpe(w)[1].items()},
        ),
        "the pair is merged with a space in it": lambda w: _rejoined(
            w,
            lambda word, pair: tuple(
                " ".join(pair) if piece == "".join(pair) else piece
                for piece in join_pair(word, pair)
            ),
        ),
        "the words alone are returned: the pair comes first": lambda w: _bpe(w)[1],
        "a symbol serves two pairs: a merge takes both of its symbols": lambda w: _rejoined(
            w,
            lambda word, pair: tuple(
                "".join(pair) if word[n : n + 2] == pair else one
                for n, one in enumerate(word)
                if n == 0 or word[n - 1 : n + 1] != pair or word[n : n + 2] == pair
            ),
        ),
        "counts of words are lost": lambda w: (
            _bpe(w)[0],
            dict.fromkeys(_bpe(w)[1], 1),
        ),
        "the count is returned with the pair": lambda w: (
            (_bpe(w)[0], pair_counts(w)[_bpe(w)[0]]),
            _bpe(w)[1],
        ),
    },
    hints=(
        "Each pair counts as often as its word occurs.",
        "min with a key of (-count, pair) settles ties; walk through a word from the left.",
    ),
)


def _pieces(word, vocabulary):
    ids = {piece: n for n, piece in enumerate(["[UNK]", *sorted(vocabulary)])}
    return list(Tokenizer(models.WordPiece(ids, unk_token="[UNK]")).encode(word).tokens)


def _shortest(word, vocabulary, step=1):
    """Pieces by the first that fits, from the shortest up."""
    pieces = []
    while word:
        begin = "##" if pieces else ""
        sizes = range(1, len(word) + 1)
        size = next((n for n in sizes if begin + word[:n] in vocabulary), None)
        if size is None:
            return ["[UNK]"]
        pieces, word = [*pieces, begin + word[:size]], word[size:]
    return pieces


_longest_start = lambda word, vocabulary: next(
    (word[:n] for n in range(len(word), 0, -1) if _pieces(word[:n], vocabulary) != ["[UNK]"]), ""
)
_PIECES = {
    *(
        "un",
        "unaff",
        "aff",
        "##aff",
        "##able",
        "##a",
        "##b",
        "##l",
        "##e",
        "u",
        "##n",
        "able",
        "play",
    ),
    *("##ing", "##i", "##ng", "##s", "the", "p", "##lay"),
}
_bare = lambda pieces: [piece.removeprefix("##") for piece in pieces]

_OF_WORDPIECE = Exercise(
    right=_pieces,
    cases={
        word or "no letters": (word, _PIECES)
        for word in ("unaffable", "playing", "the", "playx", "plays", "zebra", "able", "unable")
    },
    mistakes={
        "pieces after the first need ##": lambda w, v: _bare(_pieces(w, v)),
        "the shortest piece is taken: the longest is": _shortest,
        "a rest without a piece keeps the pieces before it: the whole word is [UNK]": lambda w, v: (
            [*_pieces(_longest_start(w, v), v), "[UNK]"]
            if "[UNK]" in _pieces(w, v) and _longest_start(w, v)
            else _pieces(w, v)
        ),
        "a rest without a piece is dropped: the whole word is [UNK]": lambda w, v: (
            _pieces(_longest_start(w, v), v)
            if "[UNK]" in _pieces(w, v) and _longest_start(w, v)
            else []
            if "[UNK]" in _pieces(w, v)
            else _pieces(w, v)
        ),
        "pieces after the first are looked up without ##": lambda w, v: _pieces(
            w,
            {p for p in v if not p.startswith("##")}
            | {f"##{p}" for p in v if not p.startswith("##")},
        ),
        "pieces after the first are looked up without ##, and written without": lambda w, v: _bare(
            _pieces(
                w,
                {p for p in v if not p.startswith("##")}
                | {f"##{p}" for p in v if not p.startswith("##")},
            )
        ),
        "an unknown word is returned as it is: it is [UNK]": lambda w, v: (
            [w] if "[UNK]" in _pieces(w, v) else _pieces(w, v)
        ),
        "an unknown word gives no pieces: it is [UNK]": lambda w, v: (
            [] if "[UNK]" in _pieces(w, v) else _pieces(w, v)
        ),
        "an unknown word has [UNK] for each letter": lambda w, v: (
            ["[UNK]"] * len(w) if "[UNK]" in _pieces(w, v) else _pieces(w, v)
        ),
        "only whole words are known": lambda w, v: [w] if w in v else ["[UNK]"],
        "the word is cut into letters": lambda w, v: [w[0], *(f"##{c}" for c in w[1:])],
        "every piece has ##: the first has none": lambda w, v: [
            p if p == "[UNK]" or p.startswith("##") else f"##{p}" for p in _pieces(w, v)
        ],
        "the pieces are one text: a list is asked for": lambda w, v: " ".join(_pieces(w, v)),
        "[UNK] is a text: a list of it is asked for": lambda w, v: (
            "[UNK]" if "[UNK]" in _pieces(w, v) else _pieces(w, v)
        ),
        "pieces stand in reverse order": lambda w, v: _pieces(w, v)[::-1],
        "only the first piece is returned": lambda w, v: _pieces(w, v)[:1],
    },
    hints=(
        "Try the whole rest first, then one letter less.",
        "The prefix ## belongs to the look-up, and to the piece.",
    ),
)


def _masked(tokens, special, chance, kind, *rest, share=0.15, first=0.8, second=0.9):
    others, mask_id = rest
    predict = (chance < share) & ~special
    new = np.select([kind < first, kind < second], [np.full_like(tokens, mask_id), others], tokens)
    return np.where(predict, new, tokens), predict


_ids = lambda: np.random.default_rng(5)
_ROWS = _ids().integers(10, 50, (8, 40)).astype(np.int32)
_MARKS = np.zeros((8, 40), bool) | np.isin(np.arange(40), (0, 20, 39))
_CHANCE, _KIND = np.random.default_rng(6).random((2, 8, 40))
_RANDOM = np.random.default_rng(7).integers(50, 90, (8, 40)).astype(np.int32)

_OF_MASKING = Exercise(
    right=_masked,
    cases={
        "rows with special tokens": (_ROWS, _MARKS, _CHANCE, _KIND, _RANDOM, 4),
        "rows without": (_ROWS, 0 * _MARKS > 1, _CHANCE[::-1].copy(), _KIND, _RANDOM, 4),
    },
    mistakes={
        "20 percent are chosen: 15 are": lambda *x: _masked(*x, share=0.2),
        "85 percent are chosen: chance has to be below 0.15": lambda *x: _masked(
            x[0], x[1], 1 - x[2], *x[3:], share=0.85
        ),
        "special tokens are corrupted": lambda t, s, *x: _masked(t, s & False, *x),
        "only special tokens are corrupted": lambda t, s, *x: _masked(t, ~s, *x),
        "all chosen tokens become the mask: 80 percent do": lambda *x: _masked(*x, first=2),
        "no chosen token stays: one in ten does": lambda *x: _masked(*x, second=2),
        "no chosen token becomes a random one: one in ten does": lambda *x: _masked(*x, second=0.8),
        "one in ten becomes the mask, and 80 percent random ones": lambda *x: _masked(
            *x, first=0.1, second=0.9
        ),
        "random ones and those that stay are swapped": lambda t, s, c, k, o, m: _masked(
            t, s, c, np.where(k >= 0.9, 0.85, np.where(k >= 0.8, 0.95, k)), o, m
        ),
        "chosen tokens that stay are not predicted: they are": lambda t, s, c, k, o, m: (
            _masked(t, s, c, k, o, m)[0],
            _masked(t, s, c, k, o, m)[1] & (k < 0.9),
        ),
        "only masks are predicted: all chosen tokens are": lambda t, s, c, k, o, m: (
            _masked(t, s, c, k, o, m)[0],
            _masked(t, s, c, k, o, m)[1] & (k < 0.8),
        ),
        "the booleans are reversed: True is to be predicted": lambda *x: (
            _masked(*x)[0],
            ~_masked(*x)[1],
        ),
        "the corruption is not limited to chosen tokens": lambda t, s, c, k, o, m: (
            _masked(t, s & False, 0 * c, k, o, m)[0],
            _masked(t, s, c, k, o, m)[1],
        ),
        "targets are returned: booleans are asked for": lambda *x: (
            _masked(*x)[0],
            np.where(_masked(*x)[1], x[0], -100),
        ),
        "targets are returned with zeros: booleans are asked for": lambda *x: (
            _masked(*x)[0],
            np.where(_masked(*x)[1], x[0], 0),
        ),
        "the inputs alone are returned": lambda *x: _masked(*x)[0],
        "the inputs are unchanged": lambda *x: (x[0], _masked(*x)[1]),
    },
    hints=("Choose first, corrupt afterwards.", "np.where twice; what stays is predicted as well."),
)


def _pairs(documents, coins, picks, own=False, step=1):
    found = []
    for at, document in enumerate(documents):
        rest = [s for n, one in enumerate(documents) if own or n != at for s in one]
        for a, b in list(itertools.pairwise(document))[::step]:
            n = len(found)
            follows = coins[n] < 0.5
            found.append((a, b if follows else rest[picks[n] % len(rest)], follows))
    return found


_flip = lambda pairs, change: [change(*pair) for pair in pairs]
_DOCUMENTS = [["a1", "a2", "a3"], ["b1", "b2"], ["c1", "c2", "c3", "c4"]]

_OF_NEXT = Exercise(
    right=_pairs,
    cases={
        "three documents": (_DOCUMENTS, [0.2, 0.7, 0.9, 0.1, 0.6, 0.8], [4, 1, 6, 3, 2, 9]),
        "two documents": ([["a", "b"], ["c", "d", "e"]], [0.5, 0.9, 0.4], [7, 3, 0]),
        "a document of one sentence": ([["a"], ["b", "c"]], [0.8], [5]),
    },
    mistakes={
        "the labels are reversed: True is what follows": lambda *x: _flip(
            _pairs(*x), lambda a, b, y: (a, b, not y)
        ),
        "the coins are reversed: below 0.5 is what follows": lambda d, c, p: _pairs(
            d, [0.999 - one if one != 0.5 else 0.4 for one in c], p
        ),
        "the other sentence may be of the same document": lambda *x: _pairs(*x, own=True),
        "all pairs follow each other: half get another sentence": lambda d, c, p: _pairs(
            d, [0.0 for _ in c], p
        ),
        "no pair follows: half keep their neighbour": lambda d, c, p: _pairs(
            d, [1.0 for _ in c], p
        ),
        "all labels are True": lambda *x: _flip(_pairs(*x), lambda a, b, y: (a, b, True)),
        "a coin of exactly 0.5 follows: it is not below": lambda d, c, p: _pairs(
            d, [0.0 if one == 0.5 else one for one in c], p
        ),
        "pairs share no sentence: every neighbour makes a pair": lambda *x: _pairs(*x, step=2),
        "the first sentence is replaced: the second is": lambda d, c, p: [
            (b if y else other, b, y) if not y else (a, b, y)
            for (a, b, _), (_, other, y) in zip(
                _pairs(d, [0.0] * len(c), p), _pairs(d, c, p), strict=True
            )
        ],
        "the first sentences of documents are missing as pairs": lambda *x: _pairs(*x)[1:],
        "labels are numbers of the other kind, 1 for another sentence": lambda *x: _flip(
            _pairs(*x), lambda a, b, y: (a, b, int(not y))
        ),
        "labels stand first": lambda *x: _flip(_pairs(*x), lambda a, b, y: (y, a, b)),
        "pairs run across documents": lambda d, c, p: [
            (a, b, True) for a, b in itertools.pairwise(s for one in d for s in one)
        ],
        "labels are missing": lambda *x: _flip(_pairs(*x), lambda a, b, y: (a, b)),
        "picks are counted from the end": lambda d, c, p: _pairs(d, c, [-one - 1 for one in p]),
        "picks are used from the start again in each document": lambda d, c, p: [
            pair
            for at in range(len(d))
            for pair in _pairs(d[at:] + d[:at], c + c, p + p)[: max(len(d[at]) - 1, 0)]
        ],
    },
    hints=(
        "Count pairs, not sentences.",
        "The other documents are all but the present one, in order.",
    ),
)

# --- After pre-training ---------------------------------------------------------------------------

_low = lambda w, a, b, scale: np.asarray(low_rank.low_rank_kernel(w, a, b, scale), np.float64)
_lora = lambda w, a, b, alpha: _low(w, a, b, low_rank.lora_scale(a.shape[1], alpha))
_square = _normal(3, 3), _normal(3, 2), _normal(2, 3), 8.0

_OF_LORA = Exercise(
    right=_lora,
    cases={
        "rank 2": (_normal(4, 3), _normal(4, 2), _normal(2, 3), 8.0),
        "rank 1": (_normal(4, 3), _normal(4, 1), _normal(1, 3), 0.5),
        "rank 3 of a square map": (_normal(3, 3), _normal(3, 3), _normal(3, 3), 6.0),
    },
    mistakes={
        "the division by r is missing": lambda w, a, b, x: _low(w, a, b, x),
        "alpha is not used": lambda w, a, b, x: _low(w, a, b, 1.0),
        "alpha is not used, only 1 / r": lambda w, a, b, x: _low(w, a, b, 1 / a.shape[1]),
        "the scale is r / alpha: it is alpha / r": lambda w, a, b, x: _low(w, a, b, a.shape[1] / x),
        "the scale is alpha · r: it is alpha / r": lambda w, a, b, x: _low(w, a, b, a.shape[1] * x),
        "the division is by √r: that is rsLoRA": lambda w, a, b, x: _low(
            w, a, b, low_rank.lora_scale(a.shape[1], x, "rslora")
        ),
        "the division is by D: it is by the rank r": lambda w, a, b, x: _low(w, a, b, x / len(a)),
        "the change is subtracted": lambda w, a, b, x: 2 * w - _lora(w, a, b, x),
        "the map itself is missing: this is the change": lambda w, a, b, x: _lora(w, a, b, x) - w,
        "the map is scaled too: only the change is": lambda w, a, b, x: (
            _low(w, a, b, 1.0) * x / a.shape[1]
        ),
        "the map and the change are multiplied": lambda w, a, b, x: w * (_lora(w, a, b, x) - w),
        "the change is transposed": lambda w, a, b, x: w + (_lora(w, a, b, x) - w).T,
        "the factors stand in the wrong order: a before b": lambda w, a, b, x: (
            w + x / a.shape[1] * (b @ a)
        ),
        "the map is returned unchanged": lambda w, a, b, x: w,
    },
    hints=("Which shape has a b?", "r is the size that a and b share."),
)

_LOGS = tuple(
    np.array(x, np.float32)
    for x in ([-3, -5, -9, -4], [-4, -5, -6, -9], [-5, -6, -8, -3], [-3, -6, -9, -7])
)
_far = tuple(np.array(x, np.float32) for x in ([-9e4, -10], [-10, -9e4], [-10, -10], [-10, -10]))
_dpo = lambda c, r, rc, rr, beta: np.asarray(dpo_loss(c, r, rc, rr, beta=beta), np.float64)
_zeros = lambda x: 0 * x

_OF_DPO = Exercise(
    right=_dpo,
    cases={
        "four pairs": (*_LOGS, 0.3),
        "another beta": (*_LOGS, 2.0),
        "texts of very different probability": (*_far, 0.5),
    },
    mistakes={
        "chosen and rejected are swapped": lambda c, r, rc, rr, b: _dpo(r, c, rr, rc, b),
        "the reference is not used": lambda c, r, rc, rr, b: _dpo(c, r, _zeros(c), _zeros(c), b),
        "the reference is added: it is subtracted": lambda c, r, rc, rr, b: _dpo(c, r, -rc, -rr, b),
        "beta is not used": lambda c, r, rc, rr, b: _dpo(c, r, rc, rr, 1.0),
        "beta multiplies the loss: it belongs inside": lambda c, r, rc, rr, b: (
            b * _dpo(c, r, rc, rr, 1.0)
        ),
        "the margin is divided by beta": lambda c, r, rc, rr, b: _dpo(c, r, rc, rr, 1 / b),
        "this is the mean: each pair has a loss": lambda *x: _dpo(*x).mean(),
        "this is the sum: each pair has a loss": lambda *x: _dpo(*x).sum(),
        "the sign is missing: a loss is positive": lambda *x: -_dpo(*x),
        "the two log-ratios are added: their difference counts": lambda c, r, rc, rr, b: _dpo(
            c, 2 * rr - r, rc, rr, b
        ),
        "the references of chosen and rejected are swapped": lambda c, r, rc, rr, b: _dpo(
            c, r, rr, rc, b
        ),
        "the logarithm is missing": lambda *x: np.exp(-_dpo(*x)),
        "the sigmoid is missing: this is the margin": lambda c, r, rc, rr, b: (
            -b * ((c - rc) - (r - rr))
        ),
        "the margin is returned with its sign": lambda c, r, rc, rr, b: b * ((c - rc) - (r - rr)),
        "beta multiplies the policy alone": lambda c, r, rc, rr, b: _dpo(b * c, b * r, rc, rr, 1.0),
        "a large margin overflows: use log_sigmoid, or logaddexp(0, -x)": lambda *x: "nan",
    },
    hints=(
        "Two log-ratios, one difference.",
        "-log σ(x) = log(1 + exp(-x)) = np.logaddexp(0, -x).",
    ),
)


def _brevity(candidates, references, scored=None):
    bleu = BLEU(tokenize="none", force=True)
    columns = max(map(len, references))
    pad = lambda texts: [*map(" ".join, texts), *[None] * (columns - len(texts))]
    table = [list(column) for column in zip(*map(pad, references), strict=True)]
    if not any(candidates):
        return 0.0
    return float(bleu.corpus_score([*map(" ".join, candidates)], table).bp)


_sizes = lambda references: [[len(text) for text in texts] for texts in references]
_factor = lambda c, r: 0.0 if not c else 1.0 if c > r else float(np.exp(1 - r / c))
_count = lambda texts: sum(map(len, texts))
_with = lambda pick: (
    lambda cs, rs: _factor(
        _count(cs), sum(pick(len(c), sizes) for c, sizes in zip(cs, _sizes(rs), strict=True))
    )
)
_text = lambda n: ["w"] * n
_nearest = lambda c, sizes: min(sizes, key=lambda n: (abs(n - c), n))
_lengths = lambda cs, rs: (
    _count(cs),
    sum(_nearest(len(c), s) for c, s in zip(cs, _sizes(rs), strict=True)),
)

_OF_BREVITY = Exercise(
    right=_brevity,
    cases={
        "a text between two references": ([_text(8)], [[_text(9), _text(4)]]),
        "two short texts": ([_text(6), _text(3)], [[_text(9), _text(4)], [_text(5), _text(8)]]),
        "a long text": ([_text(9)], [[_text(4), _text(7)]]),
        "two as near": ([_text(6), _text(4)], [[_text(8), _text(4), _text(11)], [_text(7)]]),
        "a long and a short text": ([_text(12), _text(2)], [[_text(6)], [_text(10), _text(11)]]),
        "no words": ([[]], [[_text(3)]]),
    },
    mistakes={
        "r / c and c / r are swapped": lambda cs, rs: (
            lambda c, r: 1.0 if c > r else float(np.exp(1 - c / r))
        )(*_lengths(cs, rs)),
        "long texts are punished too: the factor is 1 at most": lambda cs, rs: (
            lambda c, r: float(np.exp(1 - r / c)) if c else 0.0
        )(*_lengths(cs, rs)),
        "the exponential is missing": lambda cs, rs: (lambda c, r: 1.0 if c > r else c / r)(
            *_lengths(cs, rs)
        ),
        "long texts are punished, and short ones are not": lambda cs, rs: (
            lambda c, r: 1.0 if c < r else float(np.exp(1 - c / r))
        )(*_lengths(cs, rs)),
        "the longest reference counts: the nearest does": _with(lambda c, s: max(s)),
        "the shortest reference counts: the nearest does": _with(lambda c, s: min(s)),
        "the mean of the references counts: the nearest does": _with(lambda c, s: sum(s) / len(s)),
        "the first reference counts: the nearest does": _with(lambda c, s: s[0]),
        "of two as near the longer counts: the shorter does": _with(
            lambda c, s: min(s, key=lambda n: (abs(n - c), -n))
        ),
        "of two as near the first counts: the shorter does": _with(
            lambda c, s: min(s, key=lambda n: abs(n - c))
        ),
        "all references are added up: the nearest counts": _with(lambda c, s: sum(s)),
        "the factor is a mean over texts: lengths are added up first": lambda cs, rs: float(
            np.mean([_brevity([c], [r]) for c, r in zip(cs, rs, strict=True)])
        ),
        "the factors of texts are multiplied: lengths are added up first": lambda cs, rs: float(
            np.prod([_brevity([c], [r]) for c, r in zip(cs, rs, strict=True)])
        ),
        "texts are counted instead of words": lambda cs, rs: _factor(len(cs), sum(map(len, rs))),
        "no words give 1: they give 0": lambda cs, rs: _brevity(cs, rs) if any(cs) else 1.0,
        "the exponent has the wrong sign": lambda cs, rs: (
            lambda c, r: 1.0 if c > r else float(np.exp(r / c - 1)) if c else 0.0
        )(*_lengths(cs, rs)),
    },
    hints=(
        "Lengths of the whole corpus are added up first.",
        "min with a key of (distance, length).",
    ),
)


def _recur(h, x, memory, mask, w):
    scores = _additive(h[None], memory, w["query"], w["key"], w["score"])
    weights = _softmax(scores, mask[None])[0]
    return _state_of(h, x, weights @ memory, w), weights


def _state_of(h, x, context, w):
    return np.tanh(x @ w["x"] + h @ w["h"] + context @ w["c"] + w["b"])


def _other_state(step):
    """A mistake in the new state alone."""

    def wrong(*given):
        h, x, memory, mask, w = given
        weights = _recur(h, x, memory, mask, w)[1]
        return step(h, x, weights @ memory, w), weights

    return wrong


_SIZES = {
    "query": (3, 5),
    "key": (4, 5),
    "score": (5,),
    "x": (3, 3),
    "h": (3, 3),
    "c": (4, 3),
    "b": (3,),
}
_STATE = _normal(3), _normal(3), _normal(5, 4)
_RNN = {name: _normal(*shape) for name, shape in _SIZES.items()}

_OF_RNN = Exercise(
    right=_recur,
    cases={
        "a source with padding": (*_STATE, np.array([1, 1, 1, 0, 0], bool), _RNN),
        "a source without": (*_STATE, np.ones(5, bool), _RNN),
    },
    mistakes={
        "padding is not hidden": lambda h, x, y, m, w: _recur(h, x, y, m | True, w),
        "the mask is reversed: True is where it may look": lambda h, x, y, m, w: _recur(
            h, x, y, ~m, w
        ),
        "the context is not used": _other_state(lambda h, x, c, w: _state_of(h, x, 0 * c, w)),
        "the state before is not used": _other_state(lambda h, x, c, w: _state_of(0 * h, x, c, w)),
        "the input is not used": _other_state(lambda h, x, c, w: _state_of(h, 0 * x, c, w)),
        "the bias is not used": _other_state(
            lambda h, x, c, w: _state_of(h, x, c, {**w, "b": 0 * w["b"]})
        ),
        "the tanh of the new state is missing": _other_state(
            lambda h, x, c, w: x @ w["x"] + h @ w["h"] + c @ w["c"] + w["b"]
        ),
        "a sigmoid stands for the tanh": _other_state(
            lambda h, x, c, w: _sigmoid(x @ w["x"] + h @ w["h"] + c @ w["c"] + w["b"])
        ),
        "the input asks: the state before does": lambda h, x, y, m, w: (
            lambda a: (_state_of(h, x, a @ y, w), a)
        )(_recur(x, x, y, m, w)[1]),
        "the new state is added to the one before": _other_state(
            lambda h, x, c, w: h + _state_of(h, x, c, w)
        ),
        "the context is the mean of the memory": lambda h, x, y, m, w: (
            _state_of(h, x, y[m].mean(0), w),
            _recur(h, x, y, m, w)[1],
        ),
        "input and state are swapped": _other_state(lambda h, x, c, w: _state_of(x, h, c, w)),
        "scores are returned: weights are asked for": lambda h, x, y, m, w: (
            _recur(h, x, y, m, w)[0],
            _additive(h[None], y, w["query"], w["key"], w["score"])[0],
        ),
        "the tanh of the scores is missing": lambda h, x, y, m, w: (
            lambda a: (_state_of(h, x, a @ y, w), a)
        )(
            _softmax(
                (_between(h[None], y, w["query"], w["key"], w["score"]) @ w["score"]), m[None]
            )[0]
        ),
        "the mask comes after the softmax: weights do not sum to one": lambda h, x, y, m, w: (
            lambda a: (_state_of(h, x, a @ y, w), a)
        )(_recur(h, x, y, m | True, w)[1] * m),
        "weights and state are swapped": lambda *x: _recur(*x)[::-1],
        "the new state alone is returned": lambda *x: _recur(*x)[0],
        "the softmax is missing": lambda h, x, y, m, w: (lambda a: (_state_of(h, x, a @ y, w), a))(
            _additive(h[None], y, w["query"], w["key"], w["score"])[0] * m
        ),
    },
    hints=("Attend first, then move on.", "The state before this step asks, not the new one."),
)

EXERCISES: dict[str, Exercise] = {
    "softmax": _OF_SOFTMAX,
    "attention": _OF_ATTENTION,
    "mask": _OF_MASK,
    "sinusoids": _OF_SINUSOIDS,
    "layer_norm": _OF_NORM,
    "multi_head": _OF_HEADS,
    "block": _OF_BLOCK,
    "shift_right": _OF_SHIFT,
    "smooth_loss": _OF_LOSS,
    "token_loss": _OF_TOKENS,
    "greedy": _OF_GREEDY,
    "beam": _OF_BEAM,
    "additive_score": _OF_ADDITIVE,
    "adam_step": _OF_ADAM,
    "cache_step": _OF_CACHE,
    "top_p": _OF_TOP_P,
    "bpe_merge": _OF_BPE,
    "wordpiece": _OF_WORDPIECE,
    "mask_words": _OF_MASKING,
    "next_sentences": _OF_NEXT,
    "lora_merge": _OF_LORA,
    "dpo_loss": _OF_DPO,
    "brevity_penalty": _OF_BREVITY,
    "rnn_step": _OF_RNN,
}
# The functions that a translator needs.
TRANSFORMER = tuple(EXERCISES)[:12]
