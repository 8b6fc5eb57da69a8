"""Preference learning of a decoder with DPO, IPO, KTO or SimPO: ``align dpo``."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from transformer_jax.core.config_fields import Configuration, Count, NotNegative, Positive, Range
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.data.preference_examples import Truncation
from transformer_jax.data.preferences import PreferenceData, PreferenceKind, open_preferences
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.presets import PRESETS
from transformer_jax.recipes.posttraining import (
    STARTS,
    First,
    adamw,
    chat_encoder,
    check_forms,
    check_methods,
    keep_template,
    method_numbers,
    refuse_merged,
    resolve_first,
    splits_on,
    tell_dropout,
)
from transformer_jax.recipes.read_flags import with_read_flags
from transformer_jax.recipes.recipe import Named, Prepared, Recipe, StoredKind
from transformer_jax.recipes.settings import Adapted, RunConfig, TokenBatches
from transformer_jax.recipes.sizing import with_defaults
from transformer_jax.recipes.tasks.batching import without_dropout
from transformer_jax.recipes.validation import ValidationFlags, plain_scores, print_scores, validate
from transformer_jax.training.settings import LoopConfig

if TYPE_CHECKING:
    import numpy as np

    from transformer_jax.data.preferences import PreferenceSplits
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.start import Start
    from transformer_jax.recipes.tasks.preference_task import CompletionRows, EncodedCompletions
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = ["AlignConfig", "PreferenceLearning", "PreferenceRun", "encode_data"]

LONGEST = 512  # default maximum of tokens per row
# A function from the run, its directory, tokenizer, examples and batching rules to the
# log-probabilities of the reference for each part of the data.
Reference: TypeAlias = Callable[[Any, Any, Any, Any, Any], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class AlignConfig(Configuration, group="align"):
    """The method of learning from preferences."""

    # The loss: on pairs, on labels (kto), or of a reward model.
    method: Literal["dpo", "ipo", "kto", "simpo", "reward"] = "dpo"
    # Weight of the KL divergence from the reference; for simpo, the scale of rewards. None is 0.1,
    # for simpo 2.
    beta: Positive | None = None
    # dpo: probability that a preference is wrong; None is 0.
    label_smoothing: Annotated[float, Range(0, below=0.5)] | None = None
    margin: float | None = None  # simpo: target margin of the rewards; None is 1
    desirable_weight: NotNegative | None = None  # kto: weight of desirable completions; None is 1
    undesirable_weight: NotNegative | None = None  # kto: weight of undesirable ones; None is 1
    # dpo, ipo and kto: compute the reference's log-probabilities once before the first step
    # (precomputed, the default), or from frozen parameters in every step (frozen).
    reference: Literal["precomputed", "frozen"] | None = None
    # Maximum length of a prompt with its completion, in tokens; None is the positions of the model,
    # up to 512.
    max_length: Annotated[int, Range(4)] | None = None
    # Truncation of prompts of pairs that are too long: both rows keep the same prompt (pair), or
    # each row as much as fits (row), as in runs of version 0.1.
    truncation: Truncation = "pair"

    names: ClassVar[tuple[str, ...]] = (
        "beta", "label_smoothing", "margin", "desirable_weight", "undesirable_weight"
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_methods(self, self.names)
        if self.reference is not None and not self.has_reference:
            raise ConfigError(
                f"align.reference is {self.reference}, but {self.method} has no reference: leave "
                f"it out"
            )

    @property
    def has_reference(self) -> bool:
        """Returns whether the method uses a reference."""
        return self.method in ("dpo", "ipo", "kto")

    @property
    def kind(self) -> PreferenceKind:
        """Returns the kind of examples in the data."""
        return "labels" if self.method == "kto" else "pairs"

    @property
    def numbers(self) -> dict[str, float]:
        """Returns the loss with its settings."""
        return method_numbers(self, self.names)


@dataclasses.dataclass(frozen=True)
class PreferenceBatches(TokenBatches):
    """Training settings: duration, tokens per batch, seed."""

    epochs: Count | None = 3  # passes over the examples


@dataclasses.dataclass(frozen=True)
class PreferenceRun(Adapted, RunConfig):
    """One run of a decoder on preferences."""

    align: AlignConfig = AlignConfig()
    model: TransformerConfig = without_dropout(PRESETS["gpt2_small"])
    data: PreferenceData = PreferenceData()
    training: PreferenceBatches = PreferenceBatches()
    # First token of a text; auto is the setting of the start.
    first: First = "auto"

    parts: ClassVar[tuple[str, ...]] = ("decoder",)

    @property
    def precomputes_reference(self) -> bool:
        """Returns whether log-probabilities of the reference are computed before the first step."""
        return self.align.has_reference and self.align.reference != "frozen"

    @property
    def length_limit(self) -> tuple[str, int]:
        """Returns the maximum length of prompts with their completions."""
        return "align.max_length", self.align.max_length or 0


class PreferenceLearning(Recipe[PreferenceRun, "PreferenceSplits"]):
    """A decoder, trained on pairs or labels of completions."""

    name = "preferences"
    title = "a decoder trained on preferences"
    config: ClassVar[type] = PreferenceRun
    family = "decoder"
    starts = STARTS
    needs_start = True
    metrics = ("valid_accuracy",)
    evaluation = ValidationFlags

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs."""
        named = {
            "dpo": "Direct preference optimization on pairs of completions.",
            "ipo": "Identity preference optimization: a margin with a target.",
            "kto": "Kahneman-Tversky optimization on completions labeled true or false.",
            "simpo": "Simple preference optimization, without a reference.",
        }
        run = functools.partial
        return with_defaults(
            {name: (about, run(self._named, name)) for name, about in named.items()}
        )

    def _named(self, method: Any) -> Any:
        return self.config(
            align=AlignConfig(method),
            optimizer=adamw(1e-5),
            training=PreferenceBatches(epochs=1),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        )

    def data(self, run: PreferenceRun) -> "PreferenceSplits":
        """Returns the preferences."""
        return open_preferences(run.data, run.align.kind)

    def check(self, run: PreferenceRun, given: "Given[PreferenceRun]") -> None:
        """Refuses methods of other recipes, divided batches with KTO, and a low-precision base."""
        self._check_method(run.align.method)
        _check_whole_batches(run)
        if run.precomputes_reference and run.lora.narrows:
            raise ConfigError(
                f"lora.base_dtype is {run.lora.base_dtype}, but the reference is computed from "
                f"float32 weights: add --align.reference frozen, which shares the base"
            )

    def _check_method(self, method: str) -> None:
        if method == "reward":
            raise ConfigError("align.method is reward: start a reward model with align reward")

    def prepare(
        self, run: PreferenceRun, start: "Start | None", given: "Given[PreferenceRun]"
    ) -> "Prepared[PreferenceRun, PreferenceSplits]":
        """Returns a run without dropout, with rows within the positions of its start.

        It keeps the chat template of the start.
        """
        from transformer_jax.recipes.checks import validated

        assert start is not None  # which the recipe needs
        run = start.adapt(run, given, self._adapted(start.model))
        tell_dropout(run, start)
        if run.align.max_length is None:
            align = dataclasses.replace(run.align, max_length=min(LONGEST, run.model.max_length))
            run = dataclasses.replace(run, align=align)
        run = validated(run, start, given)
        run = dataclasses.replace(run, first=resolve_first(run.first, start))
        data = self.data(run)
        check_forms(run, data, start)
        return Prepared(run, data, files=functools.partial(keep_template, start))

    def _adapted(self, model: TransformerConfig) -> TransformerConfig:
        """Returns the model of the start as a run trains it."""
        return without_dropout(model)

    def task(
        self,
        run: PreferenceRun,
        directory: "RunDirectory",
        tokenizer: "Tokenizer",
        data: "PreferenceSplits",
    ) -> "Task":
        """Returns the task of preference learning."""
        from transformer_jax.recipes.reference import kept_reference

        return self.task_with(run, directory, tokenizer, data, kept_reference)

    def task_with(
        self,
        run: PreferenceRun,
        directory: "RunDirectory",
        tokenizer: "Tokenizer",
        data: "PreferenceSplits",
        reference: Reference,
    ) -> "Task":
        """Returns the task of a run, with a source of the reference's log-probabilities."""
        from transformer_jax.recipes.freezing import partition_for
        from transformer_jax.recipes.tasks.preference_task import preference

        method = run.align.method
        assert method != "reward"  # which another recipe learns
        encoded, rows = encode_data(run, directory, tokenizer, data)
        if run.precomputes_reference:
            encoded = encoded.with_reference(reference(run, directory, tokenizer, encoded, rows))
        return preference(
            encoded,
            run.model,
            tokenizer,
            rows,
            method=method,
            dropout=True,  # at the rates of the run
            partition=partition_for(run, tokenizer),
            **run.align.numbers,
        )

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints the validation metrics."""
        from transformer_jax.recipes.driver import settings_of, tokenizer_of
        from transformer_jax.recipes.reference import kept_reference

        run, directory = with_read_flags(settings_of(facts), request), facts.reader
        refuse_merged(run, directory)
        tokenizer = tokenizer_of(run, directory).allowing("unknown")
        data = splits_on(request, run, directory, run.align.kind)
        reference: Reference = kept_reference
        if request.data is not None:
            reference = functools.partial(_reference_of, request.data)
        task = self.task_with(run, directory, tokenizer, data, reference)
        return print_scores(request, plain_scores(validate(request, run, directory, task)))

    def stored(self, fields: Mapping[str, Any]) -> StoredKind:
        """Returns what is known of a stored run: completions always have an end token."""
        return super().stored(fields)._replace(ends=True)

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from prompts to texts."""
        from transformer_jax.inference.generation import LanguageModelPredictor
        from transformer_jax.inference.pretrained import Pretrained

        return LanguageModelPredictor(Pretrained.load(facts))


def encode_data(
    run: PreferenceRun, directory: "RunDirectory", tokenizer: "Tokenizer", data: "PreferenceSplits"
) -> "tuple[EncodedCompletions, CompletionRows]":
    """Returns the tokenized examples of a run, and the batching rules."""
    from transformer_jax.inference.facts import start_token
    from transformer_jax.recipes.tasks.preference_task import CompletionRows, encode_splits

    first, length = start_token(run.first, tokenizer), run.align.max_length or LONGEST
    chats = chat_encoder(directory, tokenizer, data)
    answers = None if chats is None else chats.encode_answers
    rows = CompletionRows(first, length, run.training.batching, answers, run.align.truncation)
    return encode_splits(data, tokenizer, rows), rows


def _check_whole_batches(run: PreferenceRun) -> None:
    """Refuses to divide batches of KTO, whose loss compares all rows."""
    training = run.training
    if run.align.method != "kto":
        return
    if training.gradient_accumulation_steps > 1:
        raise ConfigError(
            f"training.gradient_accumulation_steps is {training.gradient_accumulation_steps}: kto "
            f"compares all rows of a batch with each other: leave it out"
        )
    if training.mode == "pmap":
        raise ConfigError(
            "training.mode is pmap, but kto compares all rows of a batch with each other: use jit"
        )


def _reference_of(
    path: str,
    run: PreferenceRun,
    directory: "RunDirectory",
    tokenizer: "Tokenizer",
    encoded: "EncodedCompletions",
    rows: "CompletionRows",
) -> "dict[str, np.ndarray]":
    """Computes the log-probabilities of the reference, the start of the run, for a file."""
    from transformer_jax.recipes.reference import compute_reference
    from transformer_jax.recipes.tasks.preference_task import EncodedCompletions

    try:
        given = EncodedCompletions(encoded.train, None)
        log_probs = compute_reference(run, directory, tokenizer, given, rows)
    except CheckpointError as error:
        raise CheckpointError(
            f"--data {path}: other pairs need the reference of {run.align.method}, "
            f"{run.init_from}, which the run started from: {error}"
        ) from None
    return {"train": log_probs["train"], "valid": log_probs["train"]}
