"""Encoders: BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA, MPNet and DistilBERT with every head."""

import dataclasses
from typing import Any

from tests.parity.sweep.drawing import Case, Draw, family

HEADS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering")


def labels(draw: Draw, head: str) -> dict[str, Any]:
    """Labels; one alone is a regression unless it says otherwise."""
    if head == "SequenceClassification":
        kind = draw.choice([None, None, "multi_label_classification"])
        return {"num_labels": draw.choice([1, 2, 3, 5]), "problem_type": kind}
    return {"num_labels": draw.choice([2, 4])} if head == "TokenClassification" else {}


def _body(draw: Draw) -> dict[str, Any]:
    heads, size = draw.heads()
    return {
        "vocab_size": draw.vocab(),
        "hidden_size": heads * size,
        "num_hidden_layers": draw.layers(),
        "num_attention_heads": heads,
        "intermediate_size": draw.width(),
        "hidden_act": draw.activation(),
        "layer_norm_eps": draw.eps(),
        "type_vocab_size": draw.choice([1, 2, 3]),
        "hidden_dropout_prob": draw.choice([0.0, 0.1, 0.3]),
    }


@family("bert")
def bert(draw: Draw) -> Case:
    head = draw.turn(["Model", "ForPreTraining", *(f"For{name}" for name in HEADS)])
    config = _body(draw) | labels(draw, head.removeprefix("For"))
    config["max_position_embeddings"] = draw.positions
    return Case(f"Bert{head}", config, positions=draw.positions)


def _roberta(draw: Draw, name: str) -> Case:
    head = draw.turn(["Model", *(f"For{head}" for head in HEADS)])
    pad = draw.choice([0, 1, 1, 5])
    config = _body(draw) | labels(draw, head.removeprefix("For"))
    config |= {"pad_token_id": pad, "max_position_embeddings": draw.positions + pad + 1}
    return Case(f"{name}{head}", config, positions=draw.positions)


@family("roberta")
def roberta(draw: Draw) -> Case:
    return _roberta(draw, "Roberta")


@family("xlm-roberta")
def xlm_roberta(draw: Draw) -> Case:
    return _roberta(draw, "XLMRoberta")


@family("camembert")
def camembert(draw: Draw) -> Case:
    return _roberta(draw, "Camembert")


@family("electra")
def electra(draw: Draw) -> Case:
    head = draw.turn(["Model", "ForPreTraining", *(f"For{name}" for name in HEADS)])
    config = _body(draw) | labels(draw, head.removeprefix("For"))
    config["max_position_embeddings"] = draw.positions
    config["embedding_size"] = draw.choice([config["hidden_size"], 5, 24])
    return Case(f"Electra{head}", config, positions=draw.positions)


@family("mpnet")
def mpnet(draw: Draw) -> Case:
    found = _roberta(draw, "MPNet")
    rows = draw.positions + 2
    fields = found.config | {"pad_token_id": 1, "max_position_embeddings": rows}
    return dataclasses.replace(
        found, config={key: fields[key] for key in fields if key != "type_vocab_size"}
    )


@family("distilbert")
def distilbert(draw: Draw) -> Case:
    heads, size = draw.heads()
    head = draw.turn(["Model", *(f"For{head}" for head in HEADS)])
    config = {
        "vocab_size": draw.vocab(),
        "dim": heads * size,
        "n_layers": draw.layers(),
        "n_heads": heads,
        "hidden_dim": draw.width(),
        "activation": draw.activation(),
        "max_position_embeddings": draw.positions,
    }
    more = labels(draw, head.removeprefix("For"))
    return Case(f"DistilBert{head}", config | more, positions=draw.positions)
