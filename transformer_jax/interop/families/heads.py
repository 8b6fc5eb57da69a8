"""What published encoders have after their last layer, told from their names."""

from transformer_jax.config import TransformerConfig
from transformer_jax.errors import CheckpointError
from transformer_jax.interop.family import Model, Row, Tensors, linear_rows, norm_rows
from transformer_jax.interop.fields import Fields
from transformer_jax.models.making import Task

__all__ = ["architecture", "encoder", "label_rows", "labels_of", "task_of", "word_rows"]

_MOST_LABELS = 1 << 20
_TASKS: dict[str, Task] = {
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
    "ForQuestionAnswering": "span",
}


def architecture(name: str, *, task: str | None = None, words: bool = False) -> str:
    """The name of a published class, such as ``BertForMaskedLM``.

    Example:
        >>> architecture("Bert", task="tag"), architecture("Roberta", words=True)
        ('BertForTokenClassification', 'RobertaForMaskedLM')
    """
    ends: dict[str, str] = {task: end for end, task in _TASKS.items()}
    ends["regress"] = "ForSequenceClassification"
    return name + (ends[task] if task else "ForMaskedLM" if words else "Model")


def task_of(fields: Fields, tensors: Tensors, heads: tuple[str, ...]) -> Task | None:
    """The task of a fine-tuned encoder: classify, regress, tag or span; None for any other.

    Args:
        fields: Its configuration, whose ``architectures`` says it.
        tensors: What it has.
        heads: Names of which a fine-tuned one has some.

    Raises:
        CheckpointError: There is such a head, and no telling what it is for.
    """
    if not any(tensors.has(name) for name in heads):
        return None
    names = fields.values.get("architectures")
    known = [str(name) for name in names] if isinstance(names, list) else []
    found = [task for end, task in _TASKS.items() if any(name.endswith(end) for name in known)]
    if len(found) != 1:
        raise CheckpointError(
            f"{fields.where}: architectures is {known}: a head for labels is known by "
            f"{', '.join(_TASKS)}"
        )
    if found == ["classify"]:
        regress = fields.values.get("problem_type") == "regression"
        if regress or len(labels_of(fields, 2)) == 1:
            return "regress"
        if fields.values.get("problem_type") == "multi_label_classification":
            raise fields.refused(
                "problem_type", "multi_label_classification", "one label a text can be told"
            )
    return found[0]


def encoder(
    fields: Fields,
    config: TransformerConfig,
    *,
    prefix: str,
    task: Task | None,
    words: bool,
    next_sentence: bool = False,
) -> Model:
    """An encoder with the heads that are there, and the labels that its configuration names."""
    return Model(
        kind="encoder-task" if task else "encoder",
        config=config,
        prefix=prefix,
        words=words,
        next_sentence=next_sentence,
        task=task,
        labels=labels_of(fields) if task in ("classify", "tag") else (),
    )


def word_rows(model: Model, dense: str, norm: str, bias: str, table: str) -> list[Row]:
    """The head for hidden words, if there is one, by the names of its parts."""
    if not model.words:
        return []
    rows = [
        *linear_rows("transform", dense),
        *norm_rows("transform_norm", norm),
        Row("head/bias", bias),
    ]
    return rows if model.config.head.tied else [*rows, Row("head/table", table)]


def label_rows(model: Model, texts: str = "classifier") -> list[Row]:
    """The head for labels, if there is one; that of whole texts may have another name."""
    if model.task is None:
        return []
    places = {"span": "qa_outputs", "tag": "classifier"}
    return linear_rows("labels", places.get(model.task, texts))


def labels_of(fields: Fields, default: int = 2) -> tuple[str, ...]:
    """The labels in the order of the scores.

    Raises:
        CheckpointError: ``id2label`` is not a name for each of 0, 1, 2, …

    Example:
        >>> labels_of(Fields({"id2label": {"1": "good", "0": "bad"}}))
        ('bad', 'good')
        >>> labels_of(Fields({}))
        ('LABEL_0', 'LABEL_1')
    """
    names = fields.group("id2label").values
    if not names:
        if fields.whole("num_labels", default=default) > _MOST_LABELS:
            raise fields.refused(
                "num_labels", fields.values["num_labels"], f"at most {_MOST_LABELS:,} are told"
            )
        return tuple(f"LABEL_{i}" for i in range(fields.whole("num_labels", default=default)))
    if set(names) != {str(i) for i in range(len(names))}:
        raise fields.refused("id2label", sorted(names)[:9], "a name for each of 0, 1, 2, …")
    return tuple(str(names[str(i)]) for i in range(len(names)))
