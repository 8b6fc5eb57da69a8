"""Runs that start from published models, as models of the published families.

What is trained from a published model can be exported to its family; other runs are refused before
they train.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.core.errors import ConfigError, UserError
from transformer_jax.core.task_progress import log
from transformer_jax.inference.pretrained import open_directory
from transformer_jax.models.config import TransformerConfig
from transformer_jax.recipes.settings import Trained, start_config
from transformer_jax.runs.run_directory import describe_run

if TYPE_CHECKING:
    from transformer_jax.models.build import Kind, TaskKind
    from transformer_jax.recipes.recipe import Recipe
    from transformer_jax.recipes.start import Start

__all__ = ["check_export", "note_export", "publication_of", "republished_run", "with_heads"]

# Families of runs that may take a part of their model from a start of another family.
_COMPOSED = ("encoder-decoder", "captioner")


def publication_of(start: "Start") -> dict[str, Any] | None:
    """Returns the publication record of a start; None for a model that was trained here."""
    record = start.facts.record.get("published")
    return record if isinstance(record, dict) else None


def republished_run(start: "Start", model: object) -> dict[str, Any] | None:
    """Returns the publication record for a run that continues its start, or None.

    Args:
        start: The start.
        model: The configuration of the run's model.
    """
    record = publication_of(start)
    if record is None or not isinstance(model, TransformerConfig):
        return None
    from transformer_jax.interop.hf_run_directory import republished

    return republished(record, start.family, model)


def with_heads(
    start: "Start",
    *,
    task: "TaskKind | None" = None,
    words: bool = False,
    next_sentence: bool = False,
) -> TransformerConfig:
    """Returns the encoder of texts or pictures of a start, as its family has it for other heads.

    An encoder that was trained here is unchanged.

    Args:
        start: The start.
        task: The task of a head of labels.
        words: Whether there is a masked-LM head.
        next_sentence: Whether there is a head for pairs of texts.

    Raises:
        ConfigError: The family has no such heads.
    """
    config: TransformerConfig = start.model
    if (record := publication_of(start)) is None:
        return config
    from transformer_jax.interop.families import family_of
    from transformer_jax.interop.family import Model

    family = family_of(record["fields"])
    kind: Kind = "encoder-task" if task else "encoder"
    model = Model(
        "image" if start.family == "image" else kind,
        config,
        task="classify" if task == "pair" else task,
        words=words,
        next_sentence=next_sentence,
    )
    return family.named(family.for_heads(model)).config


def check_export(recipe: "Recipe[Any, Any]", run: Trained, start: "Start | None") -> None:
    """Refuses a run that starts from a published model, but could not be exported to any.

    If a published model becomes a part of the run's model, such as the encoder of a translator,
    that is noted instead.

    Args:
        recipe: The kind of training.
        run: The settings of the run.
        start: The start, or None.

    Raises:
        ConfigError: The message has the settings in which the run differs from the nearest family.
    """
    places = _published_places(run)
    if not places or (error := _misfit(recipe, run)) is None:
        return
    kind = recipe.stored(describe_run(run)).family
    if kind in _COMPOSED and (start is None or start.family != kind):
        log(f"note: {_no_form(places, error)}")
        return
    raise ConfigError(
        f"{places[0]}: the trained model could not be exported: {error}: leave out settings that "
        f"change the model, or start from another model"
    )


def note_export(
    recipe: "Recipe[Any, Any]", run: Trained, allow_changed: bool | None = None
) -> None:
    """Logs again, for a run that is resumed, that it will not have a Hugging Face form.

    A start that is no longer there is passed over.
    """
    with contextlib.suppress(UserError):
        places = _published_places(run, allow_changed)
        if places and (error := _misfit(recipe, run)) is not None:
            log(f"note: {_no_form(places, error)}")


def _no_form(places: Sequence[str], error: ConfigError) -> str:
    which = " and ".join(places)
    return f"this model will not have a Hugging Face form, unlike {which}: {error}"


def _published_places(run: Trained, allow_changed: bool | None = None) -> list[str]:
    """Returns the paths of the published models that a run or its image encoder starts from."""
    given = [start_config(run).init_from, getattr(run, "init_encoder", None)]
    paths = [path for path in dict.fromkeys(given) if path is not None]
    return [
        path
        for path in paths
        if isinstance(open_directory(path, allow_changed).read_config().get("published"), dict)
    ]


def _misfit(recipe: "Recipe[Any, Any]", run: Trained) -> ConfigError | None:
    """Returns why a run could not be exported; None if a family has its model."""
    from transformer_jax.interop.export_plan import choose_family
    from transformer_jax.interop.hf_run_directory import model_of

    fields = describe_run(run)
    stored = recipe.stored(fields)
    task = stored.task if isinstance(stored.task, dict) else None
    model = model_of(fields, stored.family, task)
    # The labels are read from the data later.
    named = model.task in ("classify", "multi_label", "tag")
    try:
        choose_family(dataclasses.replace(model, labels=("no", "yes") if named else ()))
    except ConfigError as error:
        return error
    return None
