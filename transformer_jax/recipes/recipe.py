"""Recipes: a kind of training is one object of a class that derives from this one, in one file.

:mod:`.driver` does what all recipes have in common, and asks the recipe for the rest in the order
of the methods below.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

from transformer_jax.core.errors import ConfigError

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.recipes.parts import BatchShapes, Parts
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = ["Named", "Recipe", "TextFormat"]

Named = Mapping[str, tuple[str, Any]]  # named runs, each with a line about it


class TextFormat(NamedTuple):
    """The first and last tokens of a decoder's texts.

    Attributes:
        first: What comes before a text: ``bos``, ``eos`` (the end of the text before it) or
            ``newline``.
        ends: Whether a text ends with the end token.
    """

    first: str
    ends: bool


class Recipe:
    """A kind of training.

    A recipe that trains overrides ``runs``, ``open_data``, ``tokenizer_texts``, ``make_task`` and
    ``predictor``, and ``evaluate`` if it has an evaluation. Any other method that is not overridden
    adds nothing.

    Attributes:
        name: Its name in ``config.json``, in the registry and in programs.
        title: A run of it, for messages: "a translator".
        config: The dataclass of its settings: :class:`.Trained` with its own fields, or
            :class:`.RunConfig` if runs may start from other models. Its ``training`` is
            :class:`.TokenBatches` or :class:`.RowBatches`. It belongs to this recipe alone: its
            attribute ``recipe`` becomes ``name``.
        family: The kind of its model. One of ``FAMILY_NAMES`` in
            ``transformer_jax/inference/runs.py`` if ``model`` in its settings describes the whole
            model as it does for that family: all commands of the family then use its runs. Any
            other word is a family of its own: ``evaluate``, ``describe`` and
            ``transformer_jax.load`` use its runs, and other commands refuse them.
        starts: The families that a run can start from.
        needs_start: Whether a run has to start from one.
        metrics: Names of metrics that rank checkpoints, besides ``valid_loss``.
        reads_features: Whether its model reads features instead of tokens.
        reads_text: Whether its runs have a tokenizer. The settings of other runs have none:
            ``tokenizer: ClassVar[None] = None``.
        keeps_publication: Whether a run that starts from a published model of its family keeps the
            record of its origin.
        evaluation: The dataclass of the flags of ``evaluate``; None if there is no evaluation.
        has_plan: Whether ``--plan`` can plan its programs.
        has_estimate: Whether their memory is estimated where nothing can be compiled.
        plans_decoding: Whether those that generate texts are among them.
        decoding: How a run generates texts: by beam search, a sample at its end, or not at all.

    Raises:
        ConfigError: A class has no name of its own, or the settings of another recipe.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    config: ClassVar[type]
    family: ClassVar[str]
    starts: ClassVar[tuple[str, ...]] = ()
    needs_start: ClassVar[bool] = False
    metrics: ClassVar[tuple[str, ...]] = ()
    reads_features: ClassVar[bool] = False
    reads_text: ClassVar[bool] = True
    keeps_publication: ClassVar[bool] = False
    evaluation: ClassVar[type | None] = None
    has_plan: ClassVar[bool] = False
    has_estimate: ClassVar[bool] = True
    plans_decoding: ClassVar[bool] = True
    decoding: ClassVar[Literal["search", "sample"] | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not {"name", "config"} & {*vars(cls)}:
            return  # what several recipes have in common
        file = getattr(sys.modules[cls.__module__], "__file__", cls.__module__)
        config = getattr(cls, "config", None)
        if "name" not in vars(cls):
            raise ConfigError(
                f"{file}: {cls.__name__} has no name: give it one, such as name = ..."
            )
        if config is None:
            return  # its models are not trained here
        owner = vars(config).get("recipe", cls.name)
        if owner != cls.name:
            raise ConfigError(
                f"{file}: {cls.__name__} has the settings of the recipe {owner}, "
                f"{config.__name__}: give it a dataclass of its own, config = ..."
            )
        config.recipe = cls.name

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs, each with a line about it.

        :func:`transformer_jax.recipes.sizing.with_defaults` fills in the size of the vocabulary and
        leaves the compute dtype to the platform.
        """
        return {}

    # --- A run begins ----------------------------------------------------------------------------

    def start_model(self, run: Any, start: Any) -> Any:
        """Returns the start's model as the run uses it; None leaves it unchanged."""

    def prepare(self, run: Any, named: Any, start: Any) -> Any:
        """Returns the run with the settings that follow from its settings and its start.

        Args:
            run: The settings, with the model of the start.
            named: The settings before flags changed them.
            start: What the run starts from, or None.

        Raises:
            ConfigError: They do not fit each other.
        """
        return run

    def in_layers(self, run: Any) -> Any:
        """Returns the run with the settings about its start that concern layers of ``run.model``.

        The recipe checks others, such as a part of the model that is frozen as a whole.
        """
        return run

    def check(self, run: Any, start: Any) -> None:
        """Refuses settings that do not fit each other or the start of the run.

        Raises:
            ConfigError: It names them.
        """

    def metrics_of(self, run: Any) -> tuple[str, ...]:
        """Returns the metrics that rank checkpoints, where they follow from settings."""
        return self.metrics

    def length_limit(self, run: Any) -> tuple[str, int]:
        """Returns the setting that bounds the tokens of a text, and its value.

        It is ``training.sequence_length`` where the batches have it; others have no bound of their
        own, and a text has the positions of the model.
        """
        if (length := getattr(run.training, "sequence_length", None)) is not None:
            return "training.sequence_length", length
        return "model.positions.max_length", run.model.max_length

    def open_data(self, run: Any) -> Any:
        """Returns the data of a run."""

    def with_data(self, run: Any, data: Any, named: Any, start: Any) -> Any:
        """Returns the run with the settings that follow from its data.

        Raises:
            ConfigError: They do not fit its settings or its start.
        """
        return run

    def tokenizer_texts(self, run: Any, data: Any) -> Iterable[str]:
        """Returns the texts that a tokenizer is learned from."""
        return ()

    def special_tokens(self, run: Any) -> tuple[str, ...]:
        """Returns the special tokens of a tokenizer that is learned."""
        from transformer_jax.data.tokenizer import SPECIAL

        return SPECIAL

    def complete_tokenizer(self, run: Any, tokenizer: "Tokenizer") -> "Tokenizer":
        """Returns the tokenizer of a run, learned or of its start, with what the recipe adds."""
        return tokenizer

    def with_tokenizer(self, run: Any, data: Any, tokenizer: "Tokenizer", start: Any) -> Any:
        """Returns the run with the settings that follow from its tokenizer.

        Raises:
            ConfigError: The tokenizer does not fit the run.
        """
        return run

    def write_files(self, run: Any, directory: "RunDirectory", data: Any, start: Any) -> None:
        """Writes further files of the run directory, such as a chat template."""

    # --- It trains, from step 0 or from a checkpoint ---------------------------------------------

    def make_task(
        self, run: Any, directory: "RunDirectory", tokenizer: "Tokenizer", data: Any
    ) -> "Task":
        """Returns the task of a run, without its start and its settings."""
        raise NotImplementedError

    def with_starts(
        self, run: Any, initial: Callable[[Any], Any] | None
    ) -> Callable[[Any], Any] | None:
        """Returns the function from initialized parameters to those of step 0, or None.

        Args:
            run: The settings.
            initial: The function that takes those of ``init_from`` over; None without.
        """
        return initial

    def with_task(self, run: Any, task: "Task") -> Any:
        """Returns the run with the settings that its task derived from the data."""
        from transformer_jax.recipes.sizing import from_task

        return from_task(run, task)

    def make_optimizer(self, run: Any) -> Callable[[int, Any], Any]:
        """Returns a function from the number of steps and the parameters to the optimizer."""
        from transformer_jax.training.optimizers import make_optimizer

        config, width = run.optimizer, run.model.d_model
        return lambda steps, params: make_optimizer(config, width, steps, params=params)

    def describe_batches(self, run: Any, plan: Any) -> str:
        """Describes the batches, for the line about the run."""
        from transformer_jax.core.errors import plural

        size = f"{run.training.size} a batch"
        if not hasattr(plan, "shapes"):  # such as `ArrayPlan`, whose rows are all alike
            return size
        return (
            f"{size}, {plural(len(plan.shapes), 'bucket shape')}, "
            f"{plan.non_padding_fraction:.0%} non-padding"
        )

    def train(
        self, run: Any, directory: "RunDirectory", data: Any, fit: Callable[[Any, Any, Any], int]
    ) -> int:
        """Trains a run to its end, writes its results and returns the exit code.

        Args:
            run: The settings.
            directory: Of the run.
            data: Of the run.
            fit: Trains a run with steps, from these three.
        """
        return fit(run, directory, data)

    def reset_derived(self, run: Any) -> Any:
        """Returns the run without settings that were derived from its data, for other data."""
        return run

    # --- Its memory is planned -------------------------------------------------------------------

    def batch_tokens(self, run: Any) -> int:
        """Returns the most tokens of a batch."""
        tokens: int = run.training.tokens
        return tokens

    def for_plan(self, run: Any) -> Any:
        """Returns the run with the tokens that it will add to its tokenizer, for a plan."""
        return run

    def planned_parts(self, run: Any, batch: "BatchShapes") -> "Parts":
        """Returns the model, objective and batch shapes of a run, to plan its memory."""
        raise NotImplementedError

    # --- It is used ------------------------------------------------------------------------------

    def evaluate(self, request: Any, directory: "RunDirectory") -> int:
        """Prints what ``evaluate`` reports, and returns the exit code.

        Args:
            request: The flags of :attr:`evaluation`, and those of every recipe: ``checkpoint``, and
                ``output``, the file that this method writes if it is not None.
            directory: Of the run.
        """
        raise NotImplementedError

    def family_of(self, fields: Mapping[str, Any]) -> str:
        """Returns the family of a stored run, where it follows from its settings."""
        return self.family

    def text_format(self, fields: Mapping[str, Any]) -> TextFormat:
        """Returns how the texts of a stored run begin and end."""
        first = str(fields.get("first", "bos"))
        return TextFormat(first, ends=first != "newline")

    def task_fields(self, fields: Mapping[str, Any]) -> Any:
        """Returns the task of a stored fine-tuned model: its kind, labels, length of examples."""
        return fields.get("task")

    def predictor(self, path: Path, checkpoint: str) -> Any:
        """Returns the object that ``transformer_jax.load`` returns.

        :func:`transformer_jax.inference.load_run.load` reads its parameters and its tokenizer.
        """
        raise NotImplementedError

    def model(self, config: Any, fields: Mapping[str, Any], rngs: Any) -> Any:
        """Returns the model of a stored run with fresh parameters, as it was trained.

        Args:
            config: The settings ``model``.
            fields: All of ``config.json``.
            rngs: Random streams of the parameters.

        Raises:
            NotImplementedError: The family is the recipe's own: it overrides this method.
        """
        from transformer_jax.models.making import Kind, make_model

        family: Any = self.family_of(fields)
        if family not in get_args(Kind):
            raise NotImplementedError(f"{type(self).__name__}.model makes the models of {family}")
        return make_model(family, config, rngs=rngs)
