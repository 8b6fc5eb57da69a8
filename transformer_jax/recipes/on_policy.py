"""Reinforcement learning of a decoder with PPO or GRPO: ``align grpo``."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from transformer_jax.core.config_fields import (
    Configuration,
    Count,
    Flag,
    NotNegative,
    Positive,
    Share,
)
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.preferences import PreferenceData, open_preferences
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.presets import PRESETS
from transformer_jax.recipes.posttraining import (
    STARTS,
    First,
    RewardConfig,
    adamw,
    align_fields,
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
from transformer_jax.recipes.recipe import Fit, Named, Prepared, Recipe, StoredKind
from transformer_jax.recipes.settings import Adapted, RunConfig, TrainingConfig
from transformer_jax.recipes.sizing import with_defaults
from transformer_jax.recipes.tasks.batching import without_dropout
from transformer_jax.recipes.validation import ValidationFlags, plain_scores, print_scores, validate
from transformer_jax.training.settings import LoopConfig, OnPolicy, ScheduleConfig

if TYPE_CHECKING:
    from flax import nnx

    from transformer_jax.data.preferences import PreferenceSplits
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.rewarding import RewardSource
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.on_policy import KLControl
    from transformer_jax.training.task import Task

__all__ = ["OnPolicyLearning", "PolicyConfig", "PolicyRun", "RewardConfig"]


@dataclasses.dataclass(frozen=True)
class PolicyConfig(Configuration, group="align"):
    """The method of learning from rewards on the policy's own samples."""

    method: Literal["ppo", "grpo"] = "grpo"  # with a value head, or relative to groups of samples
    max_prompt_length: Count = 64  # maximum tokens of a prompt; longer ones lose their start
    max_new_tokens: Count = 32  # maximum tokens of a completion, with its end token
    group_size: Count = 4  # completions per prompt
    updates: Count = 2  # optimizer updates per step of samples
    clip: Positive = 0.2  # maximum relative change of a token's probability per step
    # Initial weight of the KL penalty; 0 is no penalty.
    kl_coefficient: NotNegative = 0.05
    # Target of the mean KL divergence from the reference, in nats per completion, to which the
    # weight adapts. None keeps the weight constant.
    kl_target: Positive | None = None
    kl_horizon: NotNegative = 0.1  # speed of adapting the weight, at most by a fifth per step
    # Ppo: weight of the loss of the value head; None is 0.5.
    value_weight: NotNegative | None = None
    value_clip: Positive | None = None  # ppo: maximum change of a value per step; None is 0.2
    discount: Share | None = None  # ppo: discount of later rewards; None is 1
    gae_decay: Share | None = None  # ppo: lambda of advantage estimation; None is 0.95

    names: ClassVar[tuple[str, ...]] = ("value_weight", "value_clip", "discount", "gae_decay")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl_target is not None and not self.kl_coefficient:
            raise ConfigError(
                "align.kl_target is given, but align.kl_coefficient is 0: a weight of 0 never grows"
            )
        check_methods(self, self.names)
        self.sampled  # noqa: B018  (it checks the rest)

    @property
    def sampled(self) -> OnPolicy:
        """Returns the method with its settings."""
        numbers = method_numbers(self, self.names)
        return OnPolicy(self.method, self.max_new_tokens, self.group_size, self.clip, **numbers)

    @property
    def control(self) -> "KLControl":
        """Returns the controller of the KL weight."""
        from transformer_jax.training.on_policy import KLControl  # imports JAX

        return KLControl(self.kl_coefficient, self.kl_target, self.kl_horizon)


@dataclasses.dataclass(frozen=True)
class PromptBatches(TrainingConfig):
    """Training settings: duration, prompts per batch, seed."""

    # Passes over the prompts; None is about 1000 steps, in 10 to 50 epochs.
    epochs: Count | None = None
    batch_size: Count = 8  # prompts per step, over all devices

    mode: ClassVar[Literal["jit"]] = "jit"  # type: ignore[misc]

    @property
    def row_unit(self) -> int:
        """Returns the divisor of the rows of every batch."""
        return self.batch_size


@dataclasses.dataclass(frozen=True)
class PolicyRun(Adapted, RunConfig):
    """One run of a decoder on rewards for its own samples."""

    align: PolicyConfig = PolicyConfig()
    reward: RewardConfig = RewardConfig()
    model: TransformerConfig = without_dropout(PRESETS["gpt2_small"])
    data: PreferenceData = PreferenceData()
    training: PromptBatches = PromptBatches()
    # First token of a text; auto is the setting of the start.
    first: First = "auto"

    parts: ClassVar[tuple[str, ...]] = ("decoder",)

    @property
    def length_limit(self) -> tuple[str, int]:
        """Returns the maximum length of prompts with their completions."""
        both = self.align.max_prompt_length + self.align.max_new_tokens
        return "the sum of align.max_prompt_length and align.max_new_tokens", both

    @property
    def batch_tokens(self) -> int:
        """Returns the number of tokens of the samples of a step, including prompts."""
        return self.training.batch_size * self.align.group_size * self.length_limit[1]


@dataclasses.dataclass(frozen=True)
class EvaluatePolicy(ValidationFlags):
    """Print the validation metrics, with the reward of the run or another reward."""

    reward_file: Annotated[str | None, Flag(also=("reward.file",))] = None
    """Python file with reward(prompt, completion) -> float; None is the reward of the run."""
    reward_run: Annotated[str | None, Flag(also=("reward.run",))] = None
    """Reward model, instead of a file."""


class PolicyData(NamedTuple):
    """Prompts, and the source of rewards, which is None until it is loaded."""

    splits: "PreferenceSplits"
    source: "RewardSource | None" = None


class OnPolicyLearning(Recipe[PolicyRun, PolicyData]):
    """A decoder, trained on prompts by a reward."""

    name = "on_policy"
    title = "a decoder trained on rewards"
    config = PolicyRun
    family = "decoder"
    starts = STARTS
    needs_start = True
    metrics = ("valid_reward",)
    evaluation = EvaluatePolicy

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs."""

        def run(method: Literal["ppo", "grpo"]) -> PolicyRun:
            schedule = ScheduleConfig("constant", warmup_steps=0)
            optimizer = dataclasses.replace(adamw(1e-5), schedule=schedule)
            loop = LoopConfig(evaluate_every=None, checkpoint_every=None)
            return PolicyRun(align=PolicyConfig(method), optimizer=optimizer, loop=loop)

        ppo = "Proximal policy optimization of a reward, with a value head."
        grpo = "Group-relative policy optimization of a reward, without a value head."
        return with_defaults(
            {"ppo": (ppo, lambda: run("ppo")), "grpo": (grpo, lambda: run("grpo"))}
        )

    def data(self, run: PolicyRun) -> PolicyData:
        """Returns the prompts."""
        return PolicyData(open_preferences(run.data, "prompts"))

    def prepare(
        self, run: PolicyRun, start: "Start | None", given: "Given[PolicyRun]"
    ) -> Prepared[PolicyRun, PolicyData]:
        """Returns a run without dropout, with lengths within the positions of its start.

        It keeps the chat template of the start.
        """
        from transformer_jax.recipes.checks import check_rows, validated
        from transformer_jax.recipes.rewarding import check_form, check_reward

        assert start is not None  # which the recipe needs
        run = start.adapt(run, given, without_dropout(start.model))
        tell_dropout(run, start)
        run = _within_positions(run, given)
        run = validated(run, start, given)
        run = dataclasses.replace(run, first=resolve_first(run.first, start))
        check_rows(run)
        model = check_reward(run, run.reward, run.first, start)
        data = self.data(run)
        check_forms(run, data.splits, start)
        check_form(run, run.reward, model, start, data.splits.train)
        return Prepared(run, data, files=functools.partial(keep_template, start))

    def task(
        self, run: PolicyRun, directory: "RunDirectory", tokenizer: "Tokenizer", data: PolicyData
    ) -> "Task":
        """Returns the task of learning from rewards."""
        from transformer_jax.inference.facts import start_token
        from transformer_jax.recipes.freezing import partition_for
        from transformer_jax.recipes.tasks.on_policy_task import Learning, PromptRows, from_samples

        align, first = run.align, start_token(run.first, tokenizer)
        source = data.source or _source(run, directory, tokenizer, data.splits)
        chats = chat_encoder(directory, tokenizer, data.splits)
        length, training = align.max_prompt_length, run.training
        rows = PromptRows(first, training.batch_size, length, training.seed, chats)
        learning = Learning(
            align.sampled, source.reward, align.control, align.updates, source.model
        )
        partition = partition_for(run, tokenizer)
        task = from_samples(
            data.splits,
            run.model,
            tokenizer,
            rows,
            learning,
            partition=partition,
            dropout=True,  # at the rates of the run
        )
        return dataclasses.replace(task, inputs=source.inputs)

    def train(
        self, run: PolicyRun, directory: "RunDirectory", data: PolicyData, fit: Fit[PolicyRun]
    ) -> int:
        """Trains a run to its end; the schedule of its optimizer counts updates instead of steps.

        Raises:
            DataError: The reward function raised, or did not return a finite number.
        """
        from transformer_jax.recipes.driver import optimizer_of
        from transformer_jax.training.on_policy import adaptive_kl

        align, make = run.align, optimizer_of(run)
        batches = (
            f"{plural(align.group_size, 'sample')} for each of "
            f"{plural(run.training.batch_size, 'prompt')} and {plural(align.updates, 'update')} "
            f"per step"
        )
        source = _source(run, directory, directory.load_tokenizer(), data.splits)
        with _rewarding(source):
            return fit(
                run,
                directory,
                PolicyData(data.splits, source),
                optimizer=lambda steps, params: adaptive_kl(
                    make(steps * align.updates, params), align.kl_coefficient
                ),
                batches=batches,
            )

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints the validation metrics, with the reward of the run or another reward."""
        from transformer_jax.recipes.driver import settings_of, tokenizer_of
        from transformer_jax.recipes.rewarding import FLAGS, check_form, check_reward, reward_source
        from transformer_jax.recipes.start import Start

        run, directory = with_read_flags(settings_of(facts), request), facts.reader
        refuse_merged(run, directory)
        tokenizer = tokenizer_of(run, directory).allowing("unknown")
        splits = splits_on(request, run, directory, "prompts")
        other_reward = (request.reward_file, request.reward_run) != (None, None)
        if other_reward:
            reward = RewardConfig(request.reward_file, request.reward_run)
            run = dataclasses.replace(run, reward=reward)
        itself = Start.of(facts, STARTS, str(facts.source))
        flags = ("--reward-file", "--reward-run") if other_reward else FLAGS
        allowed = facts.opening.allow_changed
        model = check_reward(run, run.reward, run.first, itself, flags, allowed)
        data = None if request.data is None else f"--data {request.data}"
        check_form(run, run.reward, model, itself, splits.train, flags[1], data)
        source = reward_source(run, run.reward, model, tokenizer, splits)
        task = self.task(run, directory, tokenizer, PolicyData(splits, source))
        beside = None
        if other_reward and source.model is not None:
            beside = {"reward": source.model.params}
        with _rewarding(source):
            validated = validate(request, run, directory, task, beside)
        return print_scores(request, plain_scores(validated))

    def stored(self, fields: Mapping[str, Any]) -> StoredKind:
        """Returns what is known of a stored run: completions always have an end token."""
        return super().stored(fields)._replace(ends=True)

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from prompts to texts."""
        from transformer_jax.inference.generation import LanguageModelPredictor
        from transformer_jax.inference.pretrained import Pretrained

        return LanguageModelPredictor(Pretrained.load(facts))

    def model(self, config: Any, fields: Mapping[str, Any], rngs: "nnx.Rngs") -> Any:
        """Returns a decoder, with a value head for PPO."""
        from transformer_jax.models.build import make_model

        valued = align_fields(fields).get("method") == "ppo"
        return make_model("decoder", config, valued=valued, rngs=rngs)


def _source(
    run: PolicyRun, directory: "RunDirectory", tokenizer: "Tokenizer", splits: "PreferenceSplits"
) -> "RewardSource":
    """Returns the reward of a run that trains."""
    from transformer_jax.recipes.rewarding import reward_facts, reward_source

    facts = reward_facts(run.reward, directory.allow_changed)
    return reward_source(run, run.reward, facts, tokenizer, splits)


def _within_positions(run: PolicyRun, given: "Given[PolicyRun]") -> PolicyRun:
    """Limits prompts and completions to the positions of the start.

    Lengths that the user set are kept. Completions get at most half of the positions.
    """
    align, most = run.align, run.model.max_length
    prompt, new = align.max_prompt_length, align.max_new_tokens
    if prompt + new <= most:
        return run
    if not _asked(run, given, "max_new_tokens"):
        user_prompt = _asked(run, given, "max_prompt_length")
        new = min(new, most - prompt if user_prompt else most // 2)
    if not _asked(run, given, "max_prompt_length"):
        prompt = min(prompt, most - new)
    if min(prompt, new) < 1 or prompt + new > most:
        return run  # refused later, with both numbers
    log(
        f"prompts of at most {plural(prompt, 'token')} and completions of at most {new}, within "
        f"the positions of {run.init_from}"
    )
    align = dataclasses.replace(align, max_prompt_length=prompt, max_new_tokens=new)
    return dataclasses.replace(run, align=align)


def _asked(run: PolicyRun, given: "Given[PolicyRun]", name: str) -> bool:
    changed: bool = getattr(run.align, name) != getattr(given.named.align, name)
    return changed or f"align.{name}" in given


@contextlib.contextmanager
def _rewarding(source: "RewardSource") -> Iterator[None]:
    """Context manager for steps that reward samples.

    Raises:
        DataError: The reward function raised, or did not return a finite number.
    """
    # JAX would print the traceback of the reward function in addition to the error message.
    callbacks = logging.getLogger("jax._src.callback")
    quiet, callbacks.disabled = callbacks.disabled, True
    try:
        yield
    except Exception:
        failure = getattr(source.reward, "failure", None)
        if failure is None:
            raise
        raise DataError(failure) from None
    finally:
        callbacks.disabled = quiet
