"""The base class of recipes: a kind of training is an object of a derived class, in one file.

:mod:`.driver` does the common work, and calls the methods of the recipe in the order below.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

from transformer_jax.core.errors import ConfigError

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.parts import BatchShapes, Parts
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = ["Named", "Recipe", "TextFormat"]

Named = Mapping[str, tuple[str, Any]]  # named runs, with one-line descriptions


class TextFormat(NamedTuple):
    """The first and last tokens of a decoder's texts.

    Attributes:
        first: The token before a text: ``bos``, ``eos`` (the end of the preceding text) or
            ``newline``.
        ends: Whether a text ends with the end token.
    """

    first: str
    ends: bool


class Recipe:
    """A kind of training.

    A recipe that trains overrides ``runs``, ``open_data``, ``tokenizer_texts``, ``make_task`` and
    ``predictor``, and ``evaluate`` if it has an evaluation. The defaults of the other methods add
    nothing.

    Attributes:
        name: Its name in ``config.json``, in the registry and in programs.
        title: A trained model, for messages: "a translator".
        config: The dataclass of its settings: derived from :class:`.Trained`, or from
            :class:`.RunConfig` if runs may start from other models. Its ``training`` is
            :class:`.TokenBatches` or :class:`.RowBatches`. The dataclass is used by this recipe
            only: its attribute ``recipe`` becomes ``name``.
        family: The kind of its model. If ``model`` in its settings describes the complete model as
            for a family of ``FAMILY_NAMES`` in ``transformer_jax/inference/facts.py``, the name of
            this family: all commands of the family then accept its runs. Any other word is a new
            family: only ``evaluate``, ``describe`` and ``transformer_jax.load`` accept its runs.
        starts: The families that a run can start from.
        needs_start: Whether a run must start from one.
        metrics: Metrics that can rank checkpoints, in addition to ``valid_loss``.
        reads_features: Whether the model reads features instead of tokens.
        reads_text: Whether its runs have a tokenizer. If not, its settings have ``tokenizer:
            ClassVar[None] = None``.
        keeps_publication: Whether a run that starts from a published model of its family keeps the
            record of the origin.
        evaluation: The dataclass of the flags of ``evaluate``; None if there is no evaluation.
        has_plan: Whether ``--plan`` supports its runs.
        has_estimate: Whether ``--plan`` estimates memory if the target has no compiler.
        plans_decoding: Whether plans include the programs that generate texts.
        decoding: How a run generates texts: by beam search, as a sample at the end, or not at all.

    Raises:
        ConfigError: A class has no name, or the settings of another recipe.
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
            return  # a base class of several recipes
        file = getattr(sys.modules[cls.__module__], "__file__", cls.__module__)
        config = getattr(cls, "config", None)
        if "name" not in vars(cls):
            raise ConfigError(
                f"{file}: {cls.__name__} has no name: give it one, such as name = ..."
            )
        if config is None:
            return  # for models that are not trained here
        owner = vars(config).get("recipe", cls.name)
        if owner != cls.name:
            raise ConfigError(
                f"{file}: {cls.__name__} has the settings of the recipe {owner}, "
                f"{config.__name__}: give it its own dataclass, config = ..."
            )
        config.recipe = cls.name

    @functools.cached_property
    def runs(self) -> Named:
        """Returns the named runs with one-line descriptions.

        :func:`transformer_jax.recipes.sizing.with_defaults` fills in the vocabulary size and leaves
        the compute dtype to the platform.
        """
        return {}

    # --- A run begins ----------------------------------------------------------------------------

    def start_model(self, run: Any, start: Any) -> Any:
        """Returns the model of the start, adapted to the run; None leaves it unchanged."""

    def prepare(self, run: Any, named: Any, start: Any) -> Any:
        """Returns the run with the settings derived from other settings and the start.

        Args:
            run: The settings, with the model of the start.
            named: The settings before flags changed them.
            start: What the run starts from, or None.

        Raises:
            ConfigError: Settings do not match.
        """
        return run

    def in_layers(self, run: Any) -> Any:
        """Returns the run with only the settings of its start that concern layers of ``run.model``.

        The recipe checks the other ones, such as a part of the model that is frozen.
        """
        return run

    def check(self, run: Any, start: Any) -> None:
        """Refuses settings that do not match each other or the start of the run.

        Raises:
            ConfigError: The message names the settings.
        """

    def metrics_of(self, run: Any) -> tuple[str, ...]:
        """Returns the metrics that can rank checkpoints, if they depend on settings."""
        return self.metrics

    def length_limit(self, run: Any) -> tuple[str, int]:
        """Returns the setting that limits the tokens of a text, and its value.

        This is ``training.sequence_length`` if the batches have it; otherwise only the positions of
        the model limit a text.
        """
        if (length := getattr(run.training, "sequence_length", None)) is not None:
            return "training.sequence_length", length
        return "model.positions.max_length", run.model.max_length

    def open_data(self, run: Any) -> Any:
        """Returns the data of a run."""

    def with_data(self, run: Any, data: Any, named: Any, start: Any) -> Any:
        """Returns the run with the settings derived from its data.

        Raises:
            ConfigError: The data do not match the settings or the start.
        """
        return run

    def tokenizer_texts(self, run: Any, data: Any) -> Iterable[str]:
        """Returns the texts to train a tokenizer on."""
        return ()

    def extension_texts(self, run: Any, data: Any, start: Any) -> Iterable[str]:
        """Returns the texts from which the tokenizer of the start or of a file is extended."""
        return self.tokenizer_texts(run, data)

    def special_tokens(self, run: Any) -> tuple[str, ...]:
        """Returns the special tokens of a new tokenizer."""
        from transformer_jax.data.tokenizer import SPECIAL

        return SPECIAL

    def complete_tokenizer(self, run: Any, tokenizer: "Tokenizer") -> "Tokenizer":
        """Returns the tokenizer of a run, new or of the start, with the recipe's additions."""
        return tokenizer

    def with_tokenizer(self, run: Any, data: Any, tokenizer: "Tokenizer", start: Any) -> Any:
        """Returns the run with the settings derived from its tokenizer.

        Raises:
            ConfigError: The tokenizer does not match the run.
        """
        return run

    def write_files(self, run: Any, directory: "RunDirectory", data: Any, start: Any) -> None:
        """Writes further files of the run directory, such as a chat template."""

    # --- It trains, from step 0 or from a checkpoint ---------------------------------------------

    def make_task(
        self, run: Any, directory: "RunDirectory", tokenizer: "Tokenizer", data: Any
    ) -> "Task":
        """Returns the task of a run, without its start and settings."""
        raise NotImplementedError

    def with_starts(
        self, run: Any, initial: Callable[[Any], Any] | None
    ) -> Callable[[Any], Any] | None:
        """Returns the function from initialized parameters to the parameters of step 0, or None.

        Args:
            run: The settings.
            initial: The function that loads the parameters of ``init_from``, or None.
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
        """Describes the batches, for the summary line of the run."""
        from transformer_jax.core.errors import plural

        size = f"{run.training.size} a batch"
        if not hasattr(plan, "shapes"):  # such as `ArrayPlan`, with rows of one shape
            return size
        return (
            f"{size}, {plural(len(plan.shapes), 'bucket shape')}, "
            f"{plan.non_padding_fraction:.0%} non-padding"
        )

    def train(
        self, run: Any, directory: "RunDirectory", data: Any, fit: Callable[[Any, Any, Any], int]
    ) -> int:
        """Trains a run to the end, writes its results and returns the exit code.

        Args:
            run: The settings.
            directory: Of the run.
            data: Of the run.
            fit: Trains a run in steps, given these three.
        """
        return fit(run, directory, data)

    def reset_derived(self, run: Any) -> Any:
        """Returns the run without settings that were derived from its data, for other data."""
        return run

    # --- Its memory is planned -------------------------------------------------------------------

    def batch_tokens(self, run: Any) -> int:
        """Returns the maximum number of tokens per batch."""
        tokens: int = run.training.tokens
        return tokens

    def for_plan(self, run: Any) -> Any:
        """Returns the run with the tokens that it will add to its tokenizer."""
        return run

    def planned_parts(self, run: Any, batch: "BatchShapes") -> "Parts":
        """Returns the model, objective and batch shapes of a run, to plan its memory."""
        raise NotImplementedError

    # --- It is used ------------------------------------------------------------------------------

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Evaluates a run, prints the results, and returns the exit code.

        Args:
            request: The flags of :attr:`evaluation`, ``checkpoint``, and ``output``, a file to
                write if it is not None.
            facts: Facts of the stored run, with the checkpoint.
        """
        raise NotImplementedError

    def family_of(self, fields: Mapping[str, Any]) -> str:
        """Returns the family of a stored run, if it depends on settings."""
        return self.family

    def text_format(self, fields: Mapping[str, Any]) -> TextFormat:
        """Returns the first and last tokens of the texts of a stored run."""
        first = str(fields.get("first", "bos"))
        return TextFormat(first, ends=first != "newline")

    def task_fields(self, fields: Mapping[str, Any]) -> Any:
        """Returns the task of a stored fine-tuned model: kind, labels, length of examples."""
        return fields.get("task")

    def predictor(self, facts: "Facts") -> Any:
        """Returns the object that ``transformer_jax.load`` returns.

        ``Pretrained.load(facts)`` (:mod:`transformer_jax.inference.pretrained`) has the parameters
        and the tokenizer.

        Args:
            facts: Facts of the stored run.
        """
        raise NotImplementedError

    def model(self, config: Any, fields: Mapping[str, Any], rngs: Any) -> Any:
        """Returns the model of a stored run with new parameters.

        Args:
            config: The settings ``model``.
            fields: All of ``config.json``.
            rngs: Random streams of the parameters.

        Raises:
            NotImplementedError: The recipe has a new family, and does not override this method.
        """
        from transformer_jax.models.build import Kind, make_model

        family: Any = self.family_of(fields)
        if family not in get_args(Kind):
            raise NotImplementedError(f"{type(self).__name__}.model must make models of {family}")
        return make_model(family, config, rngs=rngs)
