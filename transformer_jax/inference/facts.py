"""Facts of a stored model: all that is known of a run or a Hugging Face folder without parameters.

They are read once, by :func:`transformer_jax.inference.pretrained.read_facts`, and know what is
refused before parameters are read.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_jax.core.errors import CheckpointError, ConfigError, command
from transformer_jax.core.task_progress import log
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from transformer_jax.data.chat.template import ChatTemplate
    from transformer_jax.data.preparation import Preparation
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.decoding.text_tokenizer import TextTokenizer
    from transformer_jax.decoding.windowed_generation import TextStart
    from transformer_jax.interop.family import Model, ModelFamily
    from transformer_jax.models.config import TransformerConfig
    from transformer_jax.models.recurrent_config import ModelConfig
    from transformer_jax.runs.run_directory import RunDirectory

__all__ = [
    "ENCODERS",
    "FAMILY_NAMES",
    "FINE_TUNED",
    "TASKS",
    "Facts",
    "Opening",
    "StoredChat",
    "TaskHead",
    "start_token",
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
FAMILY_NAMES = {kind: name for kind, (name, _) in _USE.items()}  # for messages


class TaskHead(NamedTuple):
    """The task of a fine-tuned model.

    Attributes:
        kind: One of :data:`TASKS`.
        labels: Names of classes or tags; for answers, whether ``"none"`` is possible.
        length: Maximum length of an example in tokens.
        stride: Overlap of windows over a long context in tokens.
        pairs: Whether examples are pairs of texts.
        init_from: The model that fine-tuning started from, if it is known.
    """

    kind: Any
    labels: tuple[str, ...]
    length: int
    stride: int
    pairs: bool
    init_from: str | None


class StoredChat(NamedTuple):
    """The chat template of a folder. An error in it concerns only conversations.

    Attributes:
        template: The template, or None.
        names: The special tokens of the folder by their names in templates, or None.
        error: The error in the folder's files, or None.
    """

    template: "ChatTemplate | None" = None
    names: Mapping[str, str] | None = None
    error: ConfigError | None = None

    @classmethod
    def read(cls, folder: Path) -> "StoredChat":
        """Reads the chat template of a run or a Hugging Face folder."""
        from transformer_jax.data.chat.template import find_template
        from transformer_jax.data.chat.token_names import token_names

        try:
            return cls(find_template(folder), token_names(folder))
        except ConfigError as error:
            return cls(error=error)


class Opening(NamedTuple):
    """The wishes of a call or a command about the models that it opens.

    Attributes:
        allow_changed: Whether a ``config.json`` that was changed after training may be used; None
            where there is no flag for it.
        mesh: The devices on which parameters are loaded; None is the default device.
    """

    allow_changed: bool | None = None
    mesh: "Mesh | None" = None


def start_token(first: str, tokenizer: "Tokenizer") -> int:
    """Returns the token before a decoder's texts: ``newline``, ``eos``, or else the start token."""
    if first == "newline":
        [[line_end]] = tokenizer.encode_batch(["\n"])
        return line_end
    return tokenizer.eos if first == "eos" else tokenizer.bos


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """Everything that is known of a stored model without its parameters.

    Attributes:
        source: Its folder, for messages (the local copy of a URL is shown as the URL).
        kind: Its family: one of :data:`FAMILY_NAMES`, or the new word of a recipe.
        recipe: Name of the recipe that makes its module.
        title: Its name for messages.
        config: The configuration of the model, without the word vectors of its start; None for an
            n-gram model.
        record: ``config.json`` by today's names: the settings of a run, ``published`` of a folder.
        first: The token before a decoder's text: ``bos``, ``eos`` or ``newline``.
        ends: Whether a decoder's text ends with the end token.
        task_fields: The stored task of a fine-tuned model, or None.
        family: The family of a Hugging Face folder, and its model as one of the family.
        checkpoint: Name of the checkpoint: ``best``, ``last``, a step, or ``average:N``.
        opening: What the caller said about opening it, and the models that it is used with.
        files: The reader of checkpoint and tokenizer; None once the parameters are loaded.
    """

    source: Path
    kind: str
    recipe: str
    title: str
    config: "ModelConfig | None"
    record: Mapping[str, Any]
    first: str
    ends: bool
    task_fields: Any
    family: "tuple[ModelFamily, Model] | None"
    checkpoint: str = "best"
    opening: Opening = Opening()
    files: "RunDirectory | None" = None

    @property
    def file(self) -> Path:
        """The path of ``config.json``, for messages."""
        return self.source / "config.json"

    @property
    def reader(self) -> "RunDirectory":
        """The reader of the folder, which a loaded model no longer has."""
        assert self.files is not None, "a loaded model does not read its folder"
        return self.files

    def group(self, *names: str) -> dict[str, Any]:
        """Returns a group of settings, such as ``data``, ``read``; empty if absent.

        Raises:
            CheckpointError: The group is not an object.
        """
        from transformer_jax.runs.run_directory import group_of

        return group_of(self.record, *names, file=str(self.file))

    # --- The model -------------------------------------------------------------------------------

    def require(self, *kinds: str) -> str:
        """Returns the family, which must be one of ``kinds``.

        Raises:
            ConfigError: The family is different; the message names the command for it.
        """
        if self.kind in kinds:
            return self.kind
        if self.kind not in _USE:
            raise ConfigError(
                f"{self.source}: the run of {self.title}, which this command does not support: "
                f'use transformer_jax.load("{self.source}") in Python'
            )
        name, name_of_command = _USE[self.kind]
        if self.kind == "image" and self.record.get("task"):
            name_of_command = "classify"
        if self.kind in FINE_TUNED:
            name_of_command = TASKS[self.head.kind]
        if self.kind in ENCODERS and not set(ENCODERS) & set(kinds):
            raise ConfigError(
                f"{self.source}: {name} is bidirectional, without a next-token distribution: use "
                f"{command(name_of_command, self.source)}, or initialize a translator from it, see "
                f"{command('train', 'small', '--init-from', self.source, '--help')}"
            )
        raise ConfigError(
            f"{self.source}: the run of {name}, which this command does not support: "
            f"try {command(name_of_command, self.source)}"
        )

    @property
    def layers(self) -> "ModelConfig":
        """The configuration of a model with layers.

        Raises:
            ConfigError: The model is an n-gram model.
        """
        if self.config is None:
            raise ConfigError(
                f"{self.source}: an n-gram model, which has no layers and no attention"
            )
        return self.config

    @property
    def transformer(self) -> "TransformerConfig":
        """The configuration of a Transformer.

        Raises:
            ConfigError: The model is recurrent, or an n-gram model.
        """
        from transformer_jax.models.recurrent_config import RecurrentConfig

        config = self.layers
        if isinstance(config, RecurrentConfig):
            raise ConfigError(
                f"{self.source}: a recurrent translator, but a Transformer is needed: try "
                f"{command('translate', self.source)}, or the commands score and attention"
            )
        return config

    @property
    def head(self) -> TaskHead:
        """The task of a fine-tuned model.

        Raises:
            CheckpointError: ``config.json`` is damaged.
        """
        task = self.task_fields if isinstance(self.task_fields, dict) else {}
        if task.get("kind") not in list(TASKS) or not isinstance(task.get("labels", []), list):
            raise CheckpointError(
                f"{self.file}: its task is not one of {', '.join(TASKS)}: damaged?"
            )
        pairs = task["kind"] == "pair" or bool(self.group("data", "read").get("pair", False))
        return TaskHead(
            task["kind"],
            tuple(task.get("labels", ())),
            int(task.get("max_length", 128)),
            int(task.get("doc_stride", 64)),
            pairs,
            task.get("init_from"),
        )

    @property
    def published(self) -> Mapping[str, Any] | None:
        """The record of the Hugging Face folder that the model comes from, or None."""
        found = self.record.get("published")
        return found if isinstance(found, dict) else None

    @property
    def sentence(self) -> Mapping[str, Any]:
        """The pooling settings of a sentence encoder; empty for other encoders.

        Raises:
            CheckpointError: ``config.json`` is damaged.
        """
        found = self.record.get("sentence", {})
        right = isinstance(found, dict) and isinstance(found.get("pool", ""), str)
        right = right and isinstance(found.get("dense", {}), dict)
        right = right and isinstance(found.get("prompts", {}), dict)
        length = found.get("length", 1) if right else 0
        if type(length) is not int or length < 1:
            raise CheckpointError(
                f"{self.file}: sentence must have a pooling and a length: damaged?"
            )
        return found  # type: ignore[no-any-return]

    # --- Its texts -------------------------------------------------------------------------------

    @functools.cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer of the newest checkpoint, which may be needed before parameters.

        Raises:
            DataError: There is no usable tokenizer.
        """
        return self.reader.load_tokenizer(fields=self.record)

    @functools.cached_property
    def chat(self) -> StoredChat:
        """The chat template of the folder."""
        return StoredChat.read(self.reader.path)

    @functools.cached_property
    def preparation(self) -> "Preparation":
        """The preparation of texts in training.

        Raises:
            CheckpointError: ``config.json`` is damaged.
        """
        from transformer_jax.data.preparation import Preparation

        return Preparation.of(self.group("data", "read"))

    @property
    def reads_as_published(self) -> bool:
        """Returns whether a decoder's text begins as its tokenizer says."""
        return bool(self.record.get("prompts") == "template")

    def first_token(self, tokenizer: "Tokenizer") -> int:
        """Returns the start token of a decoder's texts.

        A published model without a start token uses the end token.
        """
        first = self.first
        if first == "bos" and self.reads_as_published and "bos" not in tokenizer.roles:
            first = "eos"
        return start_token(first, tokenizer)

    def text_start(self, tokenizer: "Tokenizer") -> "TextStart":
        """Returns the tokens that a decoder reads before a text.

        A published model reads the tokens that its tokenizer adds, as in transformers, or a start
        token if there are none; a model trained here has a start token.
        """
        from transformer_jax.decoding.windowed_generation import TextStart

        first = self.first_token(tokenizer)
        if self.reads_as_published:
            return TextStart(tokenizer.prefix_ids, first)
        return TextStart.of(first)

    def direction(self, tokenizer: "TextTokenizer", direction: Direction) -> Direction:
        """Returns the direction named by a call, completed with defaults of the run.

        Prints a note if the direction was not trained.

        Args:
            tokenizer: The tokenizer of the model.
            direction: The named languages.

        Raises:
            ConfigError: A language is unknown, or a required one is missing.
        """
        if tokenizer.languages is not None:
            complete = tokenizer.languages.complete(direction)
            if not tokenizer.languages.is_trained(complete):
                log(f"{complete} is zero-shot: no training pair has this direction")
            return complete
        fields = self.group("data", "read").get("fields")
        known = fields if isinstance(fields, list) and len(fields) == 2 else [None, None]
        for flag, given, own in zip(("from", "to"), direction, known, strict=True):
            if given is not None and self.kind != "encoder-decoder":
                raise ConfigError(
                    f"--{flag} is for translators: {self.source} is the run of {self.title}"
                )
            if given is not None and given != own:
                only = f"allowed is {own}" if own else "its languages have no names: leave it out"
                raise ConfigError(f"--{flag}: {self.source} translates in one direction: {only}")
        return DEFAULT_DIRECTION
