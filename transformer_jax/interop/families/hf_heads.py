"""Heads of Hugging Face models, by class name."""

import dataclasses
from collections.abc import Callable
from typing import cast

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.family import (
    Model,
    ModelFamily,
    TensorMapping,
    Tensors,
    linear_mappings,
    norm_mappings,
)
from transformer_jax.models.build import TaskKind
from transformer_jax.models.config import Activation, HeadConfig, TransformerConfig

__all__ = [
    "TEXT_TASKS",
    "architecture",
    "classifying",
    "encoder",
    "label_fields",
    "label_mappings",
    "labels_of",
    "pooling_texts",
    "prefixed",
    "refuse_headless",
    "task_of",
    "word_mappings",
]

# Tasks on texts, and tasks with named labels.
TEXT_TASKS = ("classify", "multi_label", "regress")
NAMED_TASKS = ("classify", "multi_label", "tag")

_MOST_LABELS = 1 << 20
_TASKS: dict[str, TaskKind] = {
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "qa",
}


def architecture(name: str, *, task: str | None = None, words: bool = False) -> str:
    """Returns the name of a published class, such as ``BertForMaskedLM``.

    Example:
        >>> architecture("Bert", task="tag"), architecture("Roberta", words=True)
        ('BertForTokenClassification', 'RobertaForMaskedLM')
    """
    ends: dict[str, str] = {task: end for end, task in _TASKS.items()}
    ends |= dict.fromkeys(TEXT_TASKS, "ForSequenceClassification")
    return name + (ends[task] if task else "ForMaskedLM" if words else "Model")


def task_of(fields: ConfigReader, tensors: Tensors, heads: tuple[str, ...]) -> TaskKind | None:
    """Returns the task of a fine-tuned model; None for other models.

    Args:
        fields: The configuration, with ``architectures``.
        tensors: The tensors of the model.
        heads: Names of which a fine-tuned model has at least one.

    Raises:
        CheckpointError: The task of a head is unknown, or the head of the class is missing in the
            files.
    """
    known = _classes(fields)
    if not any(tensors.has(name) for name in heads):
        for end in _TASKS:
            refuse_headless(fields, end, heads)
        return None
    found = [task for end, task in _TASKS.items() if any(name.endswith(end) for name in known)]
    if len(found) != 1:
        raise CheckpointError(
            f"{fields.where}: architectures is {known}: the task of a label head must be one of "
            f"{', '.join(_TASKS)}"
        )
    if found != ["classify"]:
        return found[0]
    kinds: dict[str, TaskKind] = {
        "single_label_classification": "classify",
        "multi_label_classification": "multi_label",
        "regression": "regress",
    }
    usual = "regression" if len(labels_of(fields)) == 1 else "single_label_classification"
    problem_type: TaskKind = fields.choice(("problem_type",), kinds, usual)
    count = len(labels_of(fields))
    if problem_type == "regress" and count > 1:
        problem = fields.values.get("problem_type")
        raise fields.refused("problem_type", problem, f"regression has one label, not {count}")
    return "regress" if problem_type == "classify" and count == 1 else problem_type


def refuse_headless(fields: ConfigReader, end: str, heads: tuple[str, ...]) -> None:
    """Refuses a folder without the head of its class.

    Args:
        fields: The configuration.
        end: The suffix of names of classes with the head.
        heads: Names of tensors, of which the head needs one.

    Raises:
        CheckpointError: ``architectures`` names such a class, but the tensors are missing.
    """
    if any(name.endswith(end) for name in _classes(fields)):
        raise CheckpointError(
            f"{fields.where}: architectures is {_classes(fields)}: its head is missing "
            f"({' or '.join(heads)})"
        )


def _classes(fields: ConfigReader) -> list[str]:
    names = fields.values.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def encoder(
    fields: ConfigReader,
    config: TransformerConfig,
    *,
    prefix: str,
    task: TaskKind | None,
    words: bool,
    next_sentence: bool = False,
) -> Model:
    """Returns an encoder with the heads in the files, and the labels in its configuration."""
    return Model(
        kind="encoder-task" if task else "encoder",
        config=config,
        prefix=prefix,
        words=words,
        next_sentence=next_sentence,
        task=task,
        labels=labels_of(fields) if task in NAMED_TASKS else (),
    )


def classifying(family: ModelFamily) -> ModelFamily:
    """Returns a family of decoders including text classifiers.

    A classification head replaces the language-modelling head.
    """

    def model(fields: ConfigReader, tensors: Tensors) -> Model:
        return _decoder(fields, tensors, family.model(fields, tensors))

    def written(model: Model) -> dict[str, Json]:
        found = family.fields(model)
        if model.task is None:
            return found
        [name] = cast(list[str], found["architectures"])
        body = name.removesuffix("ForCausalLM").removesuffix("LMHeadModel")
        return found | {
            "architectures": [architecture(body, task=model.task)],
            **label_fields(model),
        }

    mappings = lambda model: family.mappings(model) + label_mappings(model)
    return dataclasses.replace(family, model=model, mappings=mappings, fields=written)


def _decoder(fields: ConfigReader, tensors: Tensors, found: Model) -> Model:
    """Returns a language model, or a text classifier if there is a head for it."""
    task = task_of(fields, tensors, ("score.weight",))
    if task is None:
        return found
    if task not in TEXT_TASKS:
        names = fields.values.get("architectures")
        raise fields.refused("architectures", names, "decoders support only heads for texts")
    pad = fields.values.get("pad_token_id")
    if pad is not None and fields.whole("pad_token_id", least=0) >= found.config.vocab_size:
        raise fields.refused(
            "pad_token_id", pad, f"one of {found.config.vocab_size} tokens is needed"
        )
    return dataclasses.replace(
        found,
        kind="decoder-task",
        config=dataclasses.replace(found.config, head=HeadConfig()),
        task=task,
        labels=labels_of(fields) if task in NAMED_TASKS else (),
    )


def pooling_texts(activation: Activation = "tanh") -> Callable[[Model], Model]:
    """Returns ``for_heads`` of a family with a pooler only below heads of texts and pairs.

    Args:
        activation: The activation of the pooler of text classifiers.
    """

    def changed(model: Model) -> Model:
        texts = model.task in TEXT_TASKS
        head = dataclasses.replace(
            model.config.head,
            pooler=texts or model.next_sentence,
            pooler_activation=activation if texts else "tanh",
        )
        return dataclasses.replace(model, config=dataclasses.replace(model.config, head=head))

    return changed


def prefixed(name: str, prefix: str) -> Callable[[Model], Model]:
    """Returns ``named`` of a family of encoders without a head for pairs of texts.

    Args:
        name: The name of the family, for errors.
        prefix: The prefix of tensor names in files with a head.
    """

    def named(model: Model) -> Model:
        if model.next_sentence:
            raise ConfigError(f"{name} has no head for pairs of texts")
        return dataclasses.replace(model, prefix=prefix if model.words or model.task else "")

    return named


def word_mappings(
    model: Model, dense: str, norm: str, biases: tuple[str, str], table: str
) -> list[TensorMapping]:
    """Returns mappings of the masked-LM head, by the names of its parts; none without a head.

    Args:
        model: The encoder.
        dense: Name of the dense layer.
        norm: Name of its norm.
        biases: Names of the bias of a tied and of an untied output layer.
        table: Name of an untied output layer.
    """
    if not model.words:
        return []
    tied = model.config.head.tie_word_embeddings
    mappings = [
        *linear_mappings("transform", dense),
        *norm_mappings("transform_norm", norm),
        TensorMapping("head/bias", biases[0] if tied else biases[1]),
    ]
    return mappings if tied else [*mappings, TensorMapping("head/table", table)]


def label_mappings(
    model: Model, texts: str = "classifier", *, qa: str = "qa_outputs"
) -> list[TensorMapping]:
    """Returns the mappings of the label head, if any, by its names for texts and for answers."""
    if model.task is None:
        return []
    if model.kind == "decoder-task":
        return linear_mappings("labels", "score", bias=False)
    places = {"qa": qa, "tag": "classifier"}
    return linear_mappings("labels", places.get(model.task, texts))


def label_fields(model: Model) -> dict[str, Json]:
    """Returns the keys about labels.

    Example:
        >>> label_fields(Model("encoder-task", TransformerConfig(), task="regress"))
        {'problem_type': 'regression', 'id2label': {'0': 'LABEL_0'}}
    """
    if model.task == "regress":
        return {"problem_type": "regression", "id2label": {"0": "LABEL_0"}}
    found: dict[str, Json] = {}
    if model.task == "multi_label":
        found["problem_type"] = "multi_label_classification"
    names: dict[str, Json] = {
        "id2label": {str(i): name for i, name in enumerate(model.labels)},
        "label2id": {name: i for i, name in enumerate(model.labels)},
    }
    return found | (names if model.labels else {})


def labels_of(fields: ConfigReader, default: int = 2) -> tuple[str, ...]:
    """Returns the labels in the order of the logits.

    Raises:
        CheckpointError: ``id2label`` does not have a name for each of 0, 1, 2, …

    Example:
        >>> labels_of(ConfigReader({"id2label": {"1": "good", "0": "bad"}}))
        ('bad', 'good')
        >>> labels_of(ConfigReader({}))
        ('LABEL_0', 'LABEL_1')
    """
    names = fields.group("id2label").values
    if not names:
        if fields.whole("num_labels", default=default) > _MOST_LABELS:
            raise fields.refused(
                "num_labels",
                fields.values["num_labels"],
                f"at most {_MOST_LABELS:,} labels can be loaded",
            )
        return tuple(f"LABEL_{i}" for i in range(fields.whole("num_labels", default=default)))
    if set(names) != {str(i) for i in range(len(names))}:
        raise fields.refused("id2label", sorted(names)[:9], "a name for each of 0, 1, 2, …")
    return tuple(str(names[str(i)]) for i in range(len(names)))
