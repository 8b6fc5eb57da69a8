"""Random searches over tables of logits, drawn by NumPy alone: the same on any version."""

import numpy as np

V, H, B, P, T = 13, 97, 4, 5, 10
PAD, BOS = 0, 1
STEPS = np.random.default_rng(0)
FIRST = STEPS.normal(0, 1.0, (V, V)).astype(np.float32)
SECOND = STEPS.normal(0, 1.0, (H, V)).astype(np.float32)


def follow(state, token):
    """A number that tells a row's whole past from others, so that mixed-up beams would show."""
    return (state * 31 + token + 1) % H


def draw_case(seed):
    """The settings, prompts and limits of a search."""
    rng = np.random.default_rng(seed)
    kind = ("beam", "cut", "greedy", "sample")[seed % 4]
    some = lambda share: bool(rng.random() < share)
    beams = int(rng.integers(2, 6))
    case = {
        "kind": kind,
        "spread": float(rng.choice([0.4, 1.0, 1.8])),
        "prompts": rng.integers(2, V, (B, P)).astype(np.int32),
        "starts": rng.integers(0, P, B).astype(np.int32),
        "limits": rng.integers(0 if some(0.3) else 1, T + 1, B).astype(np.int32),
        "ends": tuple(rng.permutation(np.arange(2, V))[: rng.integers(1, 4)].tolist()),
        "suppressed": (PAD, BOS, *((3,) if some(0.4) else ())),
        "min_length": int(rng.choice([1, 1, 4])) if kind != "cut" else 1,
        "beams": beams,
        "returned": int(rng.integers(1, beams + 1)),
        "normalization": "none" if kind == "cut" else str(rng.choice(["none", "power", "gnmt"])),
        "alpha": float(rng.choice([0.0, 0.3, 0.6, 1.0, 2.0])),
        "deep": some(0.2),
        "key": int(rng.integers(99)),
    }
    case["suppressed"] = tuple(t for t in case["suppressed"] if t not in case["ends"])
    rows = {
        "repetition_penalty": rng.uniform(0.6, 2.0, B).astype(np.float32),
        "no_repeat_ngram_size": rng.choice([0, 1, 2, 3], B).astype(np.int32),
        "temperature": rng.choice([0.0, 0.6, 1.0, 1.5], B).astype(np.float32),
        "top_k": rng.integers(1, V + 1, B).astype(np.int32),
        "top_p": rng.uniform(0.3, 1.0, B).astype(np.float32),
        "min_p": rng.uniform(0.0, 0.3, B).astype(np.float32),
    }
    single = kind in ("greedy", "sample")
    names = {name for name in rows if some(0.5) and single}
    names -= set() if kind == "sample" else {"temperature", "top_k", "top_p", "min_p"}
    names |= {"temperature"} if kind == "sample" else set()
    case["rows"] = {name: rows[name] for name in rows if name in names}
    return case
