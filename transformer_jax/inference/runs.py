"""A stored run or Hugging Face folder: its family, configuration, task and text format."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.errors import CheckpointError, ConfigError, command
from transformer_jax.core.task_progress import log
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction
from transformer_jax.data.preparation import Preparation
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.recurrent_config import ModelConfig, RecurrentConfig
from transformer_jax.recipes.registry import recipe_name, recipe_of

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.decoding.text_tokenizer import TextTokenizer
    from transformer_jax.decoding.windowed_generation import TextStart
    from transformer_jax.recipes.recipe import TextFormat
    from transformer_jax.runs.run_directory import RunDirectory

__all__ = [
    "ENCODERS",
    "FAMILY_NAMES",
    "FINE_TUNED",
    "TASKS",
    "abstract_model",
    "as_trained",
    "direction_of",
    "family",
    "first_token",
    "is_ngram_run",
    "model_config",
    "of_training",
    "open_directory",
    "preparation",
    "reads_pairs",
    "refuse_others",
    "run_title",
    "source_as_trained",
    "task_of",
    "text_format",
    "text_start",
]

ENCODERS = ("encoder", "encoder-task")  # pre-trained, fine-tuned
FINE_TUNED = ("encoder-task", "decoder-task")

# The command for each task of a fine-tuned model.
TASKS = {
    "classify": "classify",
    "multi_label": "classify",
    "pair": "classify",
    "regress": "classify",
    "replaced": "tag",
    "tag": "tag",
    "qa": "answer",
}

# The name of each family of models, and its commands. A recipe may have a new family, whose runs
# `evaluate` and `transformer_jax.load` accept.
_USE = {
    "encoder-decoder": ("a translator", "translate"),
    "speech": ("a speech recognizer", "transcribe"),
    "decoder": ("a decoder", "generate"),
    "ngram": ("an n-gram model", "generate"),
    "encoder": ("a pre-trained encoder", "fill-mask"),
    "encoder-task": ("a fine-tuned encoder", "embed"),
    "decoder-task": ("a fine-tuned decoder", "classify"),
    "image": ("an image model", "embed"),
    "captioner": ("a captioner", "caption"),
    "two-tower": ("a model of images and texts", "semantic-search"),
}
FAMILY_NAMES = {found: name for found, (name, _) in _USE.items()}  # for messages


def of_training(name: str) -> bool:
    """Returns whether a file of a run is needed only to resume it."""
    parts = name.split("/")
    return len(parts) > 3 and parts[0] == "checkpoints" and parts[2] == "optimizer"


def open_directory(path: str | os.PathLike[str]) -> "RunDirectory":
    """Opens the run directory or Hugging Face checkpoint at ``path``; a URL is downloaded.

    Raises:
        CheckpointError: The path is neither.
    """
    from transformer_jax.core.storage.copies import fetched
    from transformer_jax.interop.config_reader import is_hf_checkpoint
    from transformer_jax.runs.run_directory import RunDirectory

    path = fetched(path, of_training)
    if is_hf_checkpoint(path):
        from transformer_jax.interop.hf_run_directory import HFRunDirectory

        return HFRunDirectory(path)
    return RunDirectory.open(path)


def model_config(run: "RunDirectory") -> ModelConfig:
    """Returns the configuration of a run's model, without the word vectors of its start.

    Raises:
        CheckpointError: ``config.json`` is damaged or does not describe a model of this library.
    """
    fields = run.read_config()
    if not isinstance(fields.get("model"), dict):
        from transformer_jax.runs.run_directory import NOT_OURS

        raise CheckpointError(f"{run.config}: {NOT_OURS}")
    if fields["model"].get("kind") == "ngram":
        raise ConfigError(f"{run.path}: an n-gram model, which has no layers and no attention")
    try:
        recurrent = fields["model"].get("kind") == "recurrent"
        kind = RecurrentConfig if recurrent else TransformerConfig
        config: ModelConfig = from_dict(kind, fields["model"])
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{run.config}: {error}: written by another version?") from None
    embedding: Any = dataclasses.replace(config.embedding, init=None)
    return dataclasses.replace(config, embedding=embedding)


def preparation(run: "RunDirectory") -> Preparation:
    """Returns the preprocessing of texts in a run's training.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    return Preparation.of(run.group("data", "read"))


def as_trained(path: Path, *, trim: bool = True) -> Callable[[str], str]:
    """Returns the function that preprocesses a line as in training (a text if not ``trim``)."""
    prepare = preparation(open_directory(path))
    return prepare.line if trim else prepare.text


def source_as_trained(path: Path) -> Callable[[str], str]:
    """Returns the function that preprocesses a source line, with its prefix."""
    return preparation(open_directory(path)).source


def direction_of(
    run: "RunDirectory", tokenizer: "TextTokenizer", direction: Direction
) -> Direction:
    """Returns the direction named by a call, completed with defaults of the run.

    Prints a note if the direction was not trained.

    Args:
        run: The run of a translator.
        tokenizer: The tokenizer of the run.
        direction: The named languages.

    Raises:
        ConfigError: A language is unknown, or a required one is missing.
    """
    if tokenizer.languages is not None:
        complete = tokenizer.languages.complete(direction)
        if not tokenizer.languages.is_trained(complete):
            log(f"{complete} is zero-shot: no training pair has this direction")
        return complete
    fields = run.group("data", "read").get("fields")
    known = fields if isinstance(fields, list) and len(fields) == 2 else [None, None]
    for flag, given, own in zip(("from", "to"), direction, known, strict=True):
        if given is not None and (found := family(run)) != "encoder-decoder":
            name = FAMILY_NAMES.get(found) or run_title(run)
            raise ConfigError(f"--{flag} is for translators: {run.path} is the run of {name}")
        if given is not None and given != own:
            only = f"allowed is {own}" if own else "its languages have no names: leave it out"
            raise ConfigError(f"--{flag}: {run.path} translates in one direction: {only}")
    return DEFAULT_DIRECTION


def family(run: "RunDirectory") -> str:
    """Returns the family of a run's model.

    One of ``encoder-decoder``, ``speech`` (an encoder-decoder of features), ``decoder``,
    ``ngram``, ``image``, ``encoder`` (pre-trained), ``encoder-task`` or ``decoder-task``
    (fine-tuned).

    Raises:
        CheckpointError: ``config.json`` is damaged or does not describe a model of this library.
    """
    recipe = recipe_of(run)
    if recipe.family != "ngram":
        model_config(run)  # refuses damaged settings
    return recipe.family_of(run.read_config())


def task_of(run: "RunDirectory") -> dict[str, Any]:
    """Returns the settings of a fine-tuned model's task: kind, labels, length of examples ...

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    task = recipe_of(run).task_fields(run.read_config())
    task = task if isinstance(task, dict) else {}
    if task.get("kind") not in list(TASKS) or not isinstance(task.get("labels", []), list):
        raise CheckpointError(f"{run.config}: its task is not one of {', '.join(TASKS)}: damaged?")
    return task


def reads_pairs(run: "RunDirectory") -> bool:
    """Returns whether a classifier reads pairs of texts."""
    task = recipe_of(run).task_fields(run.read_config())
    kind = task.get("kind") if isinstance(task, dict) else None
    return kind == "pair" or bool(run.group("data", "read").get("pair", False))


def text_format(run: "RunDirectory") -> "TextFormat":
    """Returns the first and last tokens of a decoder's texts.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    return recipe_of(run).text_format(run.read_config())


def run_title(run: "RunDirectory") -> str:
    """Returns the name of a run's family, or the title of a recipe with a new family.

    Raises:
        CheckpointError: ``config.json`` is damaged or does not describe a model of this library.
    """
    return FAMILY_NAMES.get(family(run)) or recipe_of(run).title


def refuse_others(run: "RunDirectory", kinds: tuple[str, ...]) -> str:
    """Returns the family of a run, which must be one of ``kinds``.

    Raises:
        ConfigError: The family is different; the message names the command for it.
    """
    found = family(run)
    if found in kinds:
        return found
    loaded = f'transformer_jax.load("{run.path}")'
    if found not in _USE:
        raise ConfigError(
            f"{run.path}: the run of {run_title(run)}, which this command does not support: use "
            f"{loaded} in Python"
        )
    name, name_of_command = _USE[found]
    if found == "image" and run.read_config().get("task"):
        name_of_command = "classify"
    if found in FINE_TUNED:
        name_of_command = TASKS[task_of(run)["kind"]]
    if found in ENCODERS and not set(ENCODERS) & set(kinds):
        raise ConfigError(
            f"{run.path}: {name} is bidirectional, without a next-token distribution: use "
            f"{command(name_of_command, run.path)}, or initialize a translator from it, see "
            f"{command('train', 'small', '--init-from', run.path, '--help')}"
        )
    raise ConfigError(
        f"{run.path}: the run of {name}, which this command does not support: "
        f"try {command(name_of_command, run.path)}"
    )


def is_ngram_run(run: "RunDirectory") -> bool:
    """Returns whether a run's model is an n-gram model, which has no checkpoints.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    return recipe_name(run.read_config()) == "ngram"


def abstract_model(run: "RunDirectory", config: ModelConfig) -> Any:
    """Returns the model of a run, including its heads, with shapes instead of parameters."""
    from flax import nnx

    recipe, fields = recipe_of(run), run.read_config()
    if recipe.family_of(fields) in FINE_TUNED:
        task_of(run)  # refuses damaged settings
    return nnx.eval_shape(lambda: recipe.model(config, fields, nnx.Rngs(0)))


def first_token(run: "RunDirectory", tokenizer: "Tokenizer") -> int:
    """Returns the start token of a decoder's texts.

    A published model without a start token uses the end token.
    """
    published = _reads_as_published(run)
    first = text_format(run).first
    if first == "newline":
        [[line_end]] = tokenizer.encode_batch(["\n"])
        return line_end
    stands_in = published and "bos" not in tokenizer.roles
    return tokenizer.eos if first == "eos" or stands_in else tokenizer.bos


def text_start(run: "RunDirectory", tokenizer: "Tokenizer") -> "TextStart":
    """Returns the tokens that a decoder reads before a text.

    A published model reads the tokens that its tokenizer adds, as in transformers, or a start token
    if there are none; a model trained here has a start token.
    """
    from transformer_jax.decoding.windowed_generation import TextStart

    first = first_token(run, tokenizer)
    published = _reads_as_published(run)
    return TextStart(tokenizer.prefix_ids, first) if published else TextStart.of(first)


def _reads_as_published(run: "RunDirectory") -> bool:
    return bool(run.read_config().get("prompts") == "template")
