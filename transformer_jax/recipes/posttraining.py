"""Templates, methods, starts and data, shared by training on chats, preferences and rewards."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

from transformer_jax.core.config_fields import Configuration
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.task_progress import log
from transformer_jax.data.chat.template import (
    ChatTemplate,
    built_in,
    copy_template,
    find_template,
    named_template,
)
from transformer_jax.data.chat.token_names import token_names
from transformer_jax.recipes.settings import RunConfig
from transformer_jax.recipes.tasks.batching import dropout_rates
from transformer_jax.runs.manifest import atomic_write
from transformer_jax.training.settings import OptimizerConfig, ScheduleConfig

if TYPE_CHECKING:
    from transformer_jax.data.chat.encoding import ChatEncoder
    from transformer_jax.data.preferences import PreferenceKind, PreferenceSplits
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory

__all__ = [
    "STARTS",
    "First",
    "RewardConfig",
    "adamw",
    "align_fields",
    "chat_encoder",
    "check_forms",
    "check_methods",
    "keep_template",
    "method_numbers",
    "refuse_merged",
    "resolve_first",
    "run_template",
    "splits_on",
    "tell_dropout",
    "write_template",
]

STARTS = ("decoder",)
First: TypeAlias = Literal["auto", "bos", "eos", "newline"]

# The methods that have a setting, each with its default.
_NUMBERS: dict[str, dict[str, float]] = {
    "beta": {"dpo": 0.1, "ipo": 0.1, "kto": 0.1, "simpo": 2.0},
    "label_smoothing": {"dpo": 0.0},
    "margin": {"simpo": 1.0},
    "desirable_weight": {"kto": 1.0},
    "undesirable_weight": {"kto": 1.0},
    "value_weight": {"ppo": 0.5},
    "value_clip": {"ppo": 0.2},
    "discount": {"ppo": 1.0},
    "gae_decay": {"ppo": 0.95},
}


@dataclasses.dataclass(frozen=True)
class RewardConfig(Configuration, group="reward"):
    """The source of rewards; give one."""

    # A Python file with reward(prompt, completion) -> float. It is executed: use files that you
    # trust.
    file: str | None = None
    run: str | None = None  # a reward model, trained by align reward


@runtime_checkable
class Method(Protocol):
    """The settings of a method."""

    @property
    def method(self) -> str:
        """The name of the method."""


def check_methods(config: Method, names: tuple[str, ...]) -> None:
    """Refuses settings of other methods."""
    for name in names:
        methods = _NUMBERS[name]
        if getattr(config, name) is not None and config.method not in methods:
            raise ConfigError(
                f"align.{name} is a setting of {', '.join(methods)}, but this run uses "
                f"{config.method}: leave it out"
            )


def align_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the stored settings of the method; none if ``config.json`` has no such group."""
    settings = fields.get("align")
    return settings if isinstance(settings, Mapping) else {}


def method_numbers(config: Method, names: tuple[str, ...]) -> dict[str, float]:
    """Returns the settings of the method, including defaults."""
    values = {name: getattr(config, name) for name in names if config.method in _NUMBERS[name]}
    usual = lambda name: _NUMBERS[name][config.method]
    return {name: usual(name) if value is None else value for name, value in values.items()}


def adamw(peak: float) -> OptimizerConfig:
    """Returns AdamW with a linear schedule, by the peak learning rate."""
    schedule = ScheduleConfig("linear", warmup_steps=None)
    return OptimizerConfig("adamw", peak, schedule, beta2=0.95, eps=1e-8, weight_decay=0.0)


def tell_dropout(run: RunConfig, start: "Start") -> None:
    """Logs whether the run trains with dropout, if its start has dropout or a flag turns it on.

    Policies and rewards are trained without dropout unless it is asked for: the reference, the
    samples and their log-probabilities are computed without it, so with dropout in the loss even
    two equal policies differ.

    Args:
        run: The settings, with the model of the start.
        start: What the run starts from.
    """
    there = {name: rate for name, rate in dropout_rates(start.model).items() if rate}
    on = {name: rate for name, rate in dropout_rates(run.model).items() if rate}
    listed = lambda rates: ", ".join(f"{name} {rate:g}" for name, rate in rates.items())
    if on:
        log(f"dropout in the loss only, not in references and samples: {listed(on)}")
    elif there:
        first = next(iter(there))
        log(
            f"no dropout in this run ({run.init_from} has {listed(there)}); flags such as "
            f"--model.{first.replace('_', '-')} {there[first]:g} turn it on"
        )


def resolve_first(first: First, start: "Start") -> First:
    """Returns the first token of texts; ``auto`` becomes the start's setting."""
    given: First = start.facts.record.get("first", "bos")
    return given if first == "auto" else first


def check_forms(run: RunConfig, splits: "PreferenceSplits", start: "Start") -> None:
    """Refuses conversations that a run cannot learn from.

    Raises:
        ConfigError: Conversations and texts are mixed, or the start has no chat template.
    """
    from transformer_jax.inference.chats import encoder_in

    parts = [part for part in (splits.train, splits.valid) if part is not None]
    forms = {part.conversational for part in parts}
    if len(forms) > 1:
        raise ConfigError(
            f"data.train {run.data.train} and data.valid {run.data.valid}: one has conversations, "
            f"the other texts: use the same form for both"
        )
    if forms == {False}:
        return
    if find_template(start.facts.source) is None:
        raise ConfigError(
            f"data.train {run.data.train}: has conversations, but {run.init_from} has no chat "
            f"template: start from a run of instruct, or from a Hugging Face folder with one"
        )
    encoder_in(start.facts.source, start.tokenizer)


def keep_template(start: "Start", directory: "RunDirectory") -> None:
    """Copies the chat template of the start to the run, so that it can answer conversations."""
    from transformer_jax.parallel.mesh import is_main_process  # imports JAX

    if is_main_process():
        copy_template(start.facts.source, directory.path)


def chat_encoder(
    directory: "RunDirectory", tokenizer: "Tokenizer", splits: "PreferenceSplits"
) -> "ChatEncoder | None":
    """Returns the encoder of the run's conversations; None for texts."""
    from transformer_jax.inference.chats import encoder_in

    return encoder_in(directory.path, tokenizer) if splits.train.conversational else None


def splits_on(
    request: Any, run: RunConfig, directory: "RunDirectory", kind: "PreferenceKind"
) -> "PreferenceSplits":
    """Returns the data of the file of ``--data``, or of the run without it.

    Raises:
        ConfigError: The file has texts, but the run was trained on conversations, or vice versa; or
            adapters were merged into the run.
        DataError: The file cannot be read.
    """
    from transformer_jax.data.preferences import (
        PreferenceSplits,
        open_preferences,
        read_preferences,
    )

    if request.data is None:
        return open_preferences(run.data, kind)
    preferences = read_preferences(request.data, kind, run.data.read, "--data")
    trained = _on_conversations(run, directory, kind)
    if trained not in (None, preferences.conversational):
        forms = ("texts", "conversations")
        raise ConfigError(
            f"--data {request.data}: has {forms[preferences.conversational]}, but {request.run} "
            f"was trained on {forms[not preferences.conversational]}: give a file of these"
        )
    return PreferenceSplits(preferences, preferences)


def refuse_merged(run: RunConfig, directory: "RunDirectory") -> None:
    """Refuses a run that lost its reference, the model that it started from.

    Raises:
        ConfigError: Adapters were merged into the run.
    """
    if run.init_from is None:
        raise ConfigError(
            f"{directory.path}: adapters were merged into it, so its reference is lost: "
            f"evaluate the run that it was made from"
        )


def _on_conversations(
    run: RunConfig, directory: "RunDirectory", kind: "PreferenceKind"
) -> bool | None:
    """Returns whether a run was trained on conversations; None if its files no longer show it."""
    from transformer_jax.data.preferences import open_preferences

    if find_template(directory.path) is None:
        return False
    if run.recipe == "reward_model":
        return True  # only runs on conversations and their templates
    try:
        return open_preferences(run.data, kind).train.conversational
    except DataError:
        return None


def run_template(name: str | None, start: str | None) -> ChatTemplate:
    """Returns the chat template in a run's settings, or else its start's template.

    Raises:
        ConfigError: There is no template.
    """
    if name is not None:
        chosen = named_template(name)
        if chosen.special is not None or start is None:
            return chosen
        return dataclasses.replace(chosen, special=token_names(Path(start)))
    template = None if start is None else find_template(Path(start))
    if template is None:
        where = "" if start is None else f"{start}: has no chat template: "
        raise ConfigError(
            f"{where}choose one with --chat.template: {', '.join(built_in())}, a file or a folder"
        )
    return template


def write_template(directory: "RunDirectory", template: ChatTemplate) -> None:
    """Writes a template to a run directory, in the files of Hugging Face folders."""
    from transformer_jax.inference.chats import special_names

    special = template.special
    if special is None:
        special = special_names(directory.load_tokenizer())
    fields = {"chat_template": template.text, **special}
    text = json.dumps(fields, indent=1, ensure_ascii=False) + "\n"
    atomic_write(directory.path / "tokenizer_config.json", text)
