"""The base class of recipes: a kind of training is an object of a derived class, in one file.

:mod:`.driver` does the common work: ``create_run`` calls ``prepare``, ``train`` calls ``task``.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    get_args,
    runtime_checkable,
)

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.recipes.settings import AnyRun, RunSettings

if TYPE_CHECKING:
    import optax
    from flax import nnx
    from jaxtyping import PyTree

    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.plan_inputs import BatchShapes, PlanInputs
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

    # From the number of steps and the parameters to the optimizer.
    MakeOptimizer: TypeAlias = Callable[[int, PyTree], optax.GradientTransformation]

__all__ = ["Fit", "Named", "Prepared", "Recipe", "StoredKind"]

Named = Mapping[str, tuple[str, Any]]  # named runs, with one-line descriptions
Data = TypeVar("Data")
FitRun = TypeVar("FitRun", bound=RunSettings, contravariant=True)


class StoredKind(NamedTuple):
    """The kind, texts and task of the model of a stored run, by its settings.

    Attributes:
        family: The kind of its model.
        first: The token before a decoder's text: ``bos``, ``eos`` (the end of the preceding text)
            or ``newline``.
        ends: Whether a text ends with the end token.
        task: The task of a fine-tuned model: kind, labels, length of examples; or None.
    """

    family: str
    first: str
    ends: bool
    task: Any


@dataclasses.dataclass(frozen=True)
class Prepared(Generic[AnyRun, Data]):
    """A run that can begin.

    Attributes:
        run: The settings, apart from those that depend on the tokenizer.
        data: The data.
        texts: Function that returns the texts to train a tokenizer on; None if the recipe learns
            none.
        extension: Function that returns the texts from which the tokenizer of the start or of a
            file is extended; None is ``texts``.
        special: The special tokens of a new tokenizer; None is the usual ones.
        complete: Function that adds the recipe's own to the tokenizer, new or of the start.
        with_tokenizer: Function that returns the run with the settings derived from its tokenizer,
            or refuses the tokenizer.
        files: Function that writes further files of the run directory, such as a chat template.
        records: Further fields of ``config.json``, which are not settings.
    """

    run: AnyRun
    data: Data
    texts: Callable[[], Iterable[str]] | None = None
    extension: Callable[[], Iterable[str]] | None = None
    special: tuple[str, ...] | None = None
    complete: Callable[["Tokenizer"], "Tokenizer"] = lambda tokenizer: tokenizer
    with_tokenizer: Callable[[AnyRun, "Tokenizer"], AnyRun] = lambda run, tokenizer: run
    files: Callable[["RunDirectory"], None] = lambda directory: None
    records: Mapping[str, Json] = dataclasses.field(default_factory=dict)


@runtime_checkable
class Fit(Protocol[FitRun]):
    """A function that trains a run in steps."""

    def __call__(
        self,
        run: FitRun,
        directory: "RunDirectory",
        data: Any,
        *,
        optimizer: "MakeOptimizer | None" = None,
        batches: str | None = None,
    ) -> int:
        """Trains a run, see :func:`transformer_jax.recipes.driver.fit`."""


class Recipe(Generic[AnyRun, Data]):
    """A kind of training.

    A recipe that trains overrides ``runs``, ``data``, ``prepare``, ``task`` and ``predictor``, and
    ``evaluate`` if it has an evaluation. The other methods have defaults.

    Attributes:
        name: Its name in ``config.json``, in the registry and in programs.
        title: A trained model, for messages: "a translator".
        config: The dataclass of its settings: derived from :class:`.Trained`, or from
            :class:`.RunConfig` if runs may start from other models. Its ``training`` is
            :class:`.TokenBatches` or :class:`.RowBatches`. If its runs read no text, it has
            ``tokenizer: ClassVar[None] = None``. The dataclass is used by this recipe only: its
            attribute ``recipe`` becomes ``name``.
        family: The kind of its model. If ``model`` in its settings describes the complete model as
            for a family of ``FAMILY_NAMES`` in ``transformer_jax/inference/facts.py``, the name of
            this family: all commands of the family then accept its runs. Any other word is a new
            family: only ``evaluate``, ``describe`` and ``transformer_jax.load`` accept its runs.
        starts: The families that a run can start from.
        needs_start: Whether a run must start from one.
        metrics: Metrics that can rank checkpoints, in addition to ``valid_loss``.
        reads_features: Whether the model reads features instead of tokens.
        keeps_publication: Whether a run that starts from a published model of its family keeps the
            record of the origin.
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
    keeps_publication: ClassVar[bool] = False
    has_plan: ClassVar[bool] = False
    has_estimate: ClassVar[bool] = True
    plans_decoding: ClassVar[bool] = True
    decoding: ClassVar[Literal["search", "sample"] | None] = None

    @property
    def evaluation(self) -> type | None:
        """The dataclass of the flags of ``evaluate``; None if there is no evaluation."""
        return None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not {"name", "config"} & {*vars(cls)}:
            return  # a base class of several recipes
        file = getattr(sys.modules.get(cls.__module__), "__file__", cls.__module__)
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

    def data(self, run: AnyRun) -> Data:
        """Returns the data of a run, when it begins and whenever it is resumed."""
        raise NotImplementedError

    def check(self, run: AnyRun, given: "Given[AnyRun]") -> None:
        """Refuses settings that do not match each other; called by ``validated`` and by ``--plan``.

        Raises:
            ConfigError: The message names the settings.
        """

    def metrics_of(self, run: AnyRun) -> tuple[str, ...]:
        """Returns the metrics that can rank checkpoints, if they depend on settings."""
        return self.metrics

    def prepare(
        self, run: AnyRun, start: "Start | None", given: "Given[AnyRun]"
    ) -> Prepared[AnyRun, Data]:
        """Returns a run that can begin, with its data.

        In this order: adopts the model of the start (``start.adapt``), derives settings from other
        settings, checks them (``validated``), opens the data, and derives settings from them.

        Args:
            run: The settings.
            start: What the run starts from, or None.
            given: What the command gave to the named run.

        Raises:
            ConfigError: Settings do not match each other, the start or the data.
        """
        raise NotImplementedError

    # --- It trains, from step 0 or from a checkpoint ---------------------------------------------

    def task(
        self, run: AnyRun, directory: "RunDirectory", tokenizer: "Tokenizer", data: Data
    ) -> "Task":
        """Returns the task of a run.

        Unless it has its own, the driver adds the partition of the trained parameters and the
        function that loads those of the start.
        """
        raise NotImplementedError

    def train(self, run: AnyRun, directory: "RunDirectory", data: Data, fit: Fit[AnyRun]) -> int:
        """Trains a run to the end, writes its results and returns the exit code.

        Args:
            run: The settings.
            directory: Of the run.
            data: Of the run.
            fit: Trains a run in steps.
        """
        return fit(run, directory, data)

    # --- Its memory is planned -------------------------------------------------------------------

    def plan_inputs(self, run: AnyRun, batch: "BatchShapes") -> "PlanInputs":
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

    def stored(self, fields: Mapping[str, Any]) -> StoredKind:
        """Returns what the fields of a ``config.json`` say of the model."""
        first = str(fields.get("first", "bos"))
        return StoredKind(self.family, first, first != "newline", fields.get("task"))

    def predictor(self, facts: "Facts") -> Any:
        """Returns the object that ``transformer_jax.load`` returns.

        ``Pretrained.load(facts)`` (:mod:`transformer_jax.inference.pretrained`) has the parameters
        and the tokenizer.

        Args:
            facts: Facts of the stored run.
        """
        raise NotImplementedError

    def model(self, config: Any, fields: Mapping[str, Any], rngs: "nnx.Rngs") -> Any:
        """Returns the model of a stored run with new parameters.

        Args:
            config: The settings ``model``.
            fields: All of ``config.json``.
            rngs: Random streams of the parameters.

        Raises:
            NotImplementedError: The recipe has a new family, and does not override this method.
        """
        from transformer_jax.models.build import Kind, make_model

        family: Any = self.stored(fields).family
        if family not in get_args(Kind):
            raise NotImplementedError(f"{type(self).__name__}.model must make models of {family}")
        return make_model(family, config, rngs=rngs)
