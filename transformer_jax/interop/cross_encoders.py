"""Settings of pairs of texts: token types, and the activation of the score of a cross-encoder.

https://sbert.net/docs/package_reference/cross_encoder/cross_encoder.html
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from transformer_jax.core.errors import CheckpointError
from transformer_jax.interop.family import Model
from transformer_jax.interop.tokenizer_settings import Settings, read_json

__all__ = ["IDENTITY", "ScoreActivation", "is_cross_encoder", "pair_fields", "score_activation"]

ScoreActivation = Literal["identity", "sigmoid", "tanh"]
IDENTITY = "torch.nn.modules.linear.Identity"
_KNOWN: dict[str, ScoreActivation] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
}
_BESIDE = "config_sentence_transformers.json"


def is_cross_encoder(folder: Path, fields: Mapping[str, Any]) -> bool:
    """Returns whether a folder says that sentence-transformers uses it for pairs of texts.

    Args:
        folder: The folder.
        fields: The content of ``config.json``.

    Raises:
        DataError: A file is damaged.
    """
    own = read_json(folder, _BESIDE, dict) or {}
    keys = ("sentence_transformers", "sbert_ce_default_activation_function")
    return own.get("model_type") == "CrossEncoder" or any(fields.get(key) for key in keys)


def pair_fields(
    folder: Path, fields: Mapping[str, Any], model: Model, settings: Settings
) -> dict[str, Any]:
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
    found: dict[str, Any] = {}
    if model.task is not None:
        labels = 1 if model.task == "regress" else len(model.labels) or 2
        activation = score_activation(folder, fields, labels)
        found = {} if activation in (None, "identity") else {"activation": activation}
    return found if settings.has_token_types else {**found, "types": False}


def score_activation(
    folder: Path, fields: Mapping[str, Any], labels: int
) -> ScoreActivation | None:
    """Returns the activation that a folder names for its scores; None if it names none.

    With several labels, probabilities are the softmax of the scores, so only the identity and the
    softmax are allowed, and have no effect.

    Args:
        folder: The folder.
        fields: The content of ``config.json``.
        labels: Number of labels.

    Raises:
        CheckpointError: The activation is not supported, or there is a prompt before all pairs.
        DataError: A file is damaged.
    """
    own = read_json(folder, _BESIDE, dict) or {}
    if own.get("model_type") == "CrossEncoder" and own.get("default_prompt_name") is not None:
        raise CheckpointError(
            f"{folder / _BESIDE}: default_prompt_name is {str(own['default_prompt_name'])[:40]!r}: "
            f"cross-encoders with a prompt are not supported: set it to null"
        )
    said = fields.get("sentence_transformers")
    places = [
        (_BESIDE, "activation_fn", own.get("activation_fn")),
        (
            "config.json",
            "sentence_transformers.activation_fn",
            said.get("activation_fn") if isinstance(said, dict) else None,
        ),
        (
            "config.json",
            "sbert_ce_default_activation_function",
            fields.get("sbert_ce_default_activation_function"),
        ),
    ]
    for file, key, value in places:
        if value is None:
            continue
        name = str(value).rpartition(".")[2]
        known = str(value).startswith("torch.nn.")
        if labels > 1 and known and name in ("Identity", "Softmax"):
            return None
        if labels > 1 or not known or name not in _KNOWN:
            allowed = "Identity or Softmax" if labels > 1 else ", ".join(_KNOWN)
            raise CheckpointError(
                f"{folder / file}: {key} is {str(value)[:80]!r}: with {labels} "
                f"label{'s' if labels > 1 else ''}, supported are {allowed} of torch.nn"
            )
        return _KNOWN[name]
    return None
