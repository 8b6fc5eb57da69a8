"""Settings of pairs of texts: token types, and the activation of the score of a cross-encoder.

https://sbert.net/docs/package_reference/cross_encoder/cross_encoder.html
"""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from transformer_jax.core.errors import CheckpointError, plural
from transformer_jax.core.json_types import Json
from transformer_jax.interop.family import Model
from transformer_jax.interop.sentence_encoders import score_problems
from transformer_jax.interop.tokenizer_settings import Settings, read_json

__all__ = [
    "IDENTITY",
    "ScoreActivation",
    "is_cross_encoder",
    "pair_fields",
    "score_activation",
    "score_fields",
]

ScoreActivation = Literal["identity", "sigmoid", "tanh", "softmax"]
IDENTITY = "torch.nn.modules.linear.Identity"
_NAMES: dict[ScoreActivation, str] = {
    "identity": IDENTITY,
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "tanh": "torch.nn.modules.activation.Tanh",
    "softmax": "torch.nn.modules.activation.Softmax",
}
_BESIDE = "config_sentence_transformers.json"
_GROUP, _OLD_KEY = "sentence_transformers", "sbert_ce_default_activation_function"
_PAIRS = "pairs"  # our key: False for a model of single texts


def is_cross_encoder(folder: Path, fields: Mapping[str, Json]) -> bool:
    """Returns whether a folder says that sentence-transformers uses it for pairs of texts.

    Args:
        folder: The folder.
        fields: The content of ``config.json``.

    Raises:
        DataError: A file is damaged.
    """
    own = read_json(folder, _BESIDE, dict) or {}
    return _is_declared(own, fields) and _group(fields).get(_PAIRS) is not False


def _is_declared(own: Mapping[str, Json], fields: Mapping[str, Json]) -> bool:
    """Returns whether files say how sentence-transformers uses a model for scores."""
    named = bool(_group(fields)) or bool(fields.get(_OLD_KEY))
    return named or own.get("model_type") == "CrossEncoder"


def _group(fields: Mapping[str, Json]) -> Mapping[str, Json]:
    """Returns what ``config.json`` says about sentence-transformers."""
    group = fields.get(_GROUP)
    return group if isinstance(group, dict) else {}


def pair_fields(
    folder: Path, fields: Mapping[str, Json], model: Model, settings: Settings
) -> dict[str, Json]:
    """Returns how a folder reads pairs of texts and scores them, if not in the usual way.

    - ``types``: False if tokens of both texts have type 0;
    - ``activation``: the activation of scores.

    Args:
        folder: The folder.
        fields: The content of ``config.json``.
        model: The model.
        settings: The settings of the tokenizer.

    Raises:
        CheckpointError: Long texts lose their first tokens, or an activation is not supported.
        DataError: A file is damaged.
    """
    if settings.truncates_starts:
        raise CheckpointError(
            f"{folder / 'tokenizer_config.json'}: truncation_side is left, but long texts lose "
            f"their ends here: set it to right"
        )
    activation = None if model.task is None else score_activation(folder, fields, model)
    found: dict[str, Json] = {} if activation is None else {"activation": activation}
    return found if settings.has_token_types else {**found, "types": False}


def score_activation(
    folder: Path, fields: Mapping[str, Json], model: Model
) -> ScoreActivation | None:
    """Returns the activation of the scores of a folder; None if it says nothing about them.

    A cross-encoder that names none has a sigmoid if there is one score, as in
    sentence-transformers. With several labels, outputs are probabilities of the scores, whose
    activation has no effect.

    Args:
        folder: The folder.
        fields: The content of ``config.json``.
        model: The model.

    Raises:
        CheckpointError: The activation or another module is not supported, or there is a prompt or
            a chat template around all pairs.
        DataError: A file is damaged.
    """
    own = read_json(folder, _BESIDE, dict) or {}
    if own.get("model_type") == "CrossEncoder":
        if own.get("default_prompt_name") is not None:
            prompt = str(own["default_prompt_name"])[:40]
            raise CheckpointError(
                f"{folder / _BESIDE}: default_prompt_name is {prompt!r}: cross-encoders with a "
                f"prompt are not supported: set it to null"
            )
        for problem in score_problems(folder):
            raise CheckpointError(
                f"{folder / problem}: only the scores of a classifier of transformers, without a "
                f"chat template, are supported"
            )
    count, allowed = _scores(model)
    for file, key, value in _named(own, fields):
        name = str(value).rpartition(".")[2].lower()
        if name in allowed and str(value).startswith("torch.nn."):
            return allowed[allowed.index(name)]  # type: ignore[arg-type]
        names = ", ".join(_NAMES[one].rpartition(".")[2] for one in allowed)
        raise CheckpointError(
            f"{folder / file}: {key} is {str(value)[:80]!r}: with {plural(count, 'label')}, "
            f"supported are {names} of torch.nn"
        )
    if not _is_declared(own, fields):
        return None
    return "sigmoid" if count == 1 else "identity"


def _named(own: Mapping[str, Json], fields: Mapping[str, Json]) -> Iterator[tuple[str, str, Json]]:
    """Yields the activations that a folder names, the first of which counts, and their places."""
    group = _group(fields)
    places = (
        (_BESIDE, "activation_fn", own.get("activation_fn")),
        ("config.json", f"{_GROUP}.activation_fn", group.get("activation_fn")),
        # An activation of versions since 4 hides the key of earlier versions.
        ("config.json", _OLD_KEY, None if "activation_fn" in group else fields.get(_OLD_KEY)),
    )
    return (place for place in places if place[2] is not None)


def _scores(model: Model) -> tuple[int, tuple[ScoreActivation, ...]]:
    """Returns the number of scores, and their activations that outputs here can have."""
    if model.task == "regress":
        return 1, ("identity", "sigmoid", "tanh")
    count = len(model.labels) or 2
    if model.task == "multi_label":
        return count, ("sigmoid",) if count == 1 else ("identity", "sigmoid")
    return count, ("identity", "softmax")


def score_fields(
    model: Model, published: Mapping[str, Any] | None, *, pairs: bool
) -> dict[str, Json]:
    """Returns the keys of ``config.json`` by which cross-encoders have the scores of a model.

    Without them, sentence-transformers puts a sigmoid on a single score.

    Args:
        model: The model.
        published: The record of the folder that a run was converted from; None for a model that
            was trained here, whose scores have no activation. A folder that named no activation is
            unchanged.
        pairs: Whether the model reads pairs of texts.

    Example:
        >>> from transformer_jax.models.config import TransformerConfig
        >>> model = Model("encoder-task", TransformerConfig(), task="regress")
        >>> score_fields(model, None, pairs=True)
        {'sentence_transformers': {'activation_fn': 'torch.nn.modules.linear.Identity'}}
    """
    if model.kind == "image" or model.task not in ("classify", "multi_label", "regress"):
        return {}
    activation: ScoreActivation | None
    if published is not None:
        activation, fields = published.get("activation"), published["fields"]
    elif pairs or _scores(model)[0] == 1:
        activation, fields = "sigmoid" if model.task == "multi_label" else "identity", {}
    else:
        return {}
    if activation is None:
        return {}
    name = _NAMES[activation]
    if any(_same(value, name) for *_, value in itertools.islice(_named({}, fields), 1)):
        return {}
    said = {**_group(fields), "activation_fn": name}
    return {_GROUP: said if pairs else {**said, _PAIRS: False}}


def _same(one: Json, two: str) -> bool:
    """Returns whether two names are those of one class of torch."""
    return str(one).rpartition(".")[2] == two.rpartition(".")[2]
