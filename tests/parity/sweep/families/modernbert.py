"""ModernBERT with every head, as files of transformers 5 and of earlier versions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.parity.sweep.drawing import Case, Draw, family
from tests.parity.sweep.families.encoders import HEADS, labels

# Of transformers 5; earlier files have the number and the bases at the end of the others.
_NEW = ("layer_types", "rope_parameters")


@family("modernbert")
def modernbert(draw: Draw) -> Case:
    heads, size = draw.heads((2, 4, 6, 8, 12))
    head = draw.turn(["Model", *(f"For{name}" for name in HEADS)])
    layers = draw.choice([1, 2, 3, 4])
    config: dict[str, Any] = {
        "vocab_size": draw.vocab(),
        "hidden_size": heads * size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": draw.width(),
        "hidden_activation": draw.activation(),
        "classifier_activation": draw.activation(),
        "classifier_pooling": draw.choice(["cls", "mean"]),
        "norm_eps": draw.eps(),
        "local_attention": draw.choice([0, 1, 2, 7, 16, 20, 128]),
        "max_position_embeddings": draw.choice([44, 200]),
        "pad_token_id": draw.choice([0, 1, 5]),
        "tie_word_embeddings": draw.maybe(0.7),
        "mlp_dropout": draw.choice([0.0, 0.1]),
        "bos_token_id": 0, "eos_token_id": 1, "cls_token_id": 0, "sep_token_id": 1,
    }  # fmt: skip
    names = ("norm_bias", "attention_bias", "mlp_bias", "decoder_bias", "classifier_bias")
    config |= {name: draw.maybe() for name in names if draw.maybe(0.7)}
    every, bases = (
        draw.choice([1, 2, 3]),
        (draw.choice([50.0, 160_000.0]), draw.choice([30.0, 1e4])),
    )
    old = draw.maybe(0.4)
    if old or draw.maybe():
        config["global_attn_every_n_layers"] = every
    else:
        kinds = ("full_attention", "sliding_attention")
        config["layer_types"] = [draw.choice(kinds) for _ in range(layers)]
    if old:
        config |= {"global_rope_theta": bases[0], "local_rope_theta": bases[1]}
    elif draw.maybe(0.7):
        config["rope_parameters"] = {
            "full_attention": _rope(draw, bases[0]),
            "sliding_attention": {"rope_type": "default", "rope_theta": bases[1]},
        }
    return Case(
        f"ModernBert{head}",
        config | labels(draw, head.removeprefix("For")),
        inputs=_inputs(config) if head == "ForSequenceClassification" else None,
        fields=(lambda fields: _as_before(fields, config)) if old else (lambda fields: fields),
    )


def _rope(draw: Draw, base: float) -> dict[str, Any]:
    kind = draw.choice(["default", "default", "linear", "yarn"])
    found: dict[str, Any] = {"rope_type": kind, "rope_theta": base}
    if kind != "default":
        found["factor"] = draw.choice([2.0, 4.0])
    return found | ({"original_max_position_embeddings": 24} if kind == "yarn" else {})


def _inputs(config: dict[str, Any]) -> Callable[[Draw], dict[str, np.ndarray]]:
    """Inputs whose first tokens are real: of padding that sees no token, there is no vector."""

    def inputs(draw: Draw) -> dict[str, np.ndarray]:
        from tests.parity.sweep import checking  # needs torch

        S, pad = draw.randint(22, 80), config["pad_token_id"]
        real = checking.padding(draw, checking.ROWS, S)
        real[:, 0] = True
        noise = np.random.RandomState(draw.getrandbits(32))
        ids = checking.tokens(noise, real.shape, config["vocab_size"], pad)
        return {"input_ids": np.where(real, ids, pad), "attention_mask": real.astype(np.int64)}

    return inputs


def _as_before(fields: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The keys as transformers 4 wrote them."""
    return {name: value for name, value in (fields | config).items() if name not in _NEW}
