"""Reward models, decoders with a scalar output, trained on pairs: ``align reward``."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from transformer_jax.core.config_dict import from_dict
from transformer_jax.core.errors import ConfigError
from transformer_jax.models.config import TransformerConfig
from transformer_jax.recipes.posttraining import align_fields, splits_on
from transformer_jax.recipes.preferences import (
    AlignConfig,
    PreferenceLearning,
    PreferenceRun,
    encode_data,
)
from transformer_jax.recipes.read_flags import with_read_flags
from transformer_jax.recipes.recipe import Named, Prepared, StoredKind
from transformer_jax.recipes.sizing import with_defaults
from transformer_jax.recipes.validation import plain_scores, print_scores, validate

if TYPE_CHECKING:
    from flax import nnx

    from transformer_jax.data.preferences import PreferenceSplits
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task
    from transformer_jax.training.validation import Validated

__all__ = ["RewardModel", "RewardRun"]


@dataclasses.dataclass(frozen=True)
class RewardRun(PreferenceRun):
    """One run of a reward model on preferences."""

    align: AlignConfig = AlignConfig("reward")


class RewardModel(PreferenceLearning):
    """A decoder with a scalar output, trained on pairs of completions."""

    name = "reward_model"
    title = "a reward model"
    config: ClassVar[type] = RewardRun
    family = "decoder-task"

    @functools.cached_property
    def runs(self) -> Named:
        """The named run."""
        about = "A reward model on pairs (Bradley-Terry)."
        return with_defaults({"reward": (about, lambda: self._named("reward"))})

    def _check_method(self, method: str) -> None:
        if method != "reward":
            raise ConfigError(
                f"align.method is {method}: this is a reward model: start the run with align "
                f"{method}"
            )

    def prepare(
        self, run: PreferenceRun, start: "Start | None", given: "Given[PreferenceRun]"
    ) -> "Prepared[PreferenceRun, PreferenceSplits]":
        """Returns a run that keeps the chat template if it learns from conversations."""
        prepared = super().prepare(run, start, given)
        if prepared.data.train.conversational:
            return prepared
        return Prepared(prepared.run, prepared.data)

    def _adapted(self, model: TransformerConfig) -> TransformerConfig:
        """Returns the model of the start without its output layer and dropout."""
        from transformer_jax.recipes.tasks.preference_task import reward_config

        return reward_config(super()._adapted(model))

    def task(
        self,
        run: PreferenceRun,
        directory: "RunDirectory",
        tokenizer: "Tokenizer",
        data: "PreferenceSplits",
    ) -> "Task":
        """Returns the task of a reward model."""
        from transformer_jax.recipes.freezing import partition_for
        from transformer_jax.recipes.tasks.preference_task import reward_model

        encoded, rows = encode_data(run, directory, tokenizer, data)
        return reward_model(
            encoded,
            run.model,
            tokenizer,
            rows,
            partition=partition_for(run, tokenizer),
            dropout=True,  # at the rates of the run
        )

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints the validation metrics, and the reliability of probabilities."""
        from transformer_jax.recipes.driver import settings_of, tokenizer_of

        run, directory = with_read_flags(settings_of(facts), request), facts.reader
        tokenizer = tokenizer_of(run, directory).allowing("unknown")
        data = splits_on(request, run, directory, run.align.kind)
        task = self.task(run, directory, tokenizer, data)
        validated = validate(request, run, directory, task)
        more = functools.partial(_reliability, task, validated)
        return print_scores(request, plain_scores(validated), more)

    def stored(self, fields: Mapping[str, Any]) -> StoredKind:
        """Returns what is known of a stored run: its task is one number per text."""
        length = align_fields(fields).get("max_length")
        if length is None:
            length = from_dict(TransformerConfig, fields["model"]).max_length
        task = {"kind": "regress", "labels": [], "max_length": length}
        return super().stored(fields)._replace(task=task)

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from texts and conversations to rewards."""
        from transformer_jax.inference.pretrained import Pretrained
        from transformer_jax.inference.texts import RewardPredictor

        return RewardPredictor(Pretrained.load(facts))

    def model(self, config: Any, fields: Mapping[str, Any], rngs: "nnx.Rngs") -> Any:
        """Returns a decoder with a scalar output per text."""
        from transformer_jax.models.build import make_model

        return make_model("decoder-task", config, task="regress", rngs=rngs)


def _reliability(task: "Task", validated: "Validated") -> dict[str, Any]:
    """Prints the reliability table of a reward model, and returns its values."""
    assert task.test is not None
    tested: Any = task.test(validated.model, validated.step)["scores"]
    return {"reliability": tested["valid"]["reliability"]}
