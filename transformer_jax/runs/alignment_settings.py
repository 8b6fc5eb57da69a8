"""Settings of the runs that follow preferences or rewards, and the named runs."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from transformer_jax.config import TransformerConfig
from transformer_jax.config_fields import (
    Amount,
    Configuration,
    Count,
    NotNegative,
    Positive,
    Range,
    Rate,
    Share,
)
from transformer_jax.data.preference_examples import Truncation
from transformer_jax.data.preferences import PreferenceData, PreferenceKind
from transformer_jax.errors import ConfigError
from transformer_jax.model_presets import PRESETS
from transformer_jax.parallel.mesh import DistributedConfig, MeshConfig
from transformer_jax.runs.encoder_settings import EncoderTraining
from transformer_jax.runs.settings import StartConfig, TokenizerConfig, read_run
from transformer_jax.runs.sizing import with_defaults
from transformer_jax.training.loop import LoopConfig
from transformer_jax.training.lora import LoRAConfig
from transformer_jax.training.on_policy import KLControl, OnPolicy
from transformer_jax.training.optimizers import OptimizerConfig
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.schedules import ScheduleConfig

__all__ = [
    "ALIGN_RUNS",
    "AlignConfig",
    "PolicyConfig",
    "PolicyRun",
    "PolicyTraining",
    "PreferenceRun",
    "RewardConfig",
    "read",
]

# Which methods have a setting, and its value where none is given.
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


def _check_methods(config: Any, names: tuple[str, ...]) -> None:
    """Refuses settings that a method does not have."""
    for name in names:
        methods = _NUMBERS[name]
        if getattr(config, name) is not None and config.method not in methods:
            raise ConfigError(
                f"align.{name} is a setting of {', '.join(methods)}, and this run is "
                f"{config.method}: leave it out"
            )


def _numbers(config: Any, names: tuple[str, ...]) -> dict[str, float]:
    """The settings that the method has, with its values where none is given."""
    found = {name: getattr(config, name) for name in names if config.method in _NUMBERS[name]}
    usual = lambda name: _NUMBERS[name][config.method]
    return {name: usual(name) if value is None else value for name, value in found.items()}


@dataclasses.dataclass(frozen=True)
class AlignConfig(Configuration, group="align"):
    """The method of learning from preferences."""

    method: Literal["dpo", "ipo", "kto", "simpo", "reward"] = "dpo"
    # Weight of the KL divergence from the reference; of simpo the scale of rewards. None is 0.1,
    # and 2 of simpo.
    beta: Positive | None = None
    # Dpo: probability that a preference is wrong; None is 0.
    label_smoothing: Annotated[float, Range(0, below=0.5)] | None = None
    margin: float | None = None  # simpo: by how much the chosen one is to be better; None is 1
    desirable_weight: NotNegative | None = None  # kto: of desirable completions; None is 1
    undesirable_weight: NotNegative | None = None  # kto: of the others; None is 1
    # Of dpo, ipo and kto: log-probabilities of the reference are computed once before the first
    # step, or its parameters are kept and computed with in every step. None is precomputed.
    reference: Literal["precomputed", "frozen"] | None = None
    # Most tokens of a prompt with its completion; None is what the model has positions for, up to
    # 512.
    max_length: Annotated[int, Range(4)] | None = None
    # The two rows of a pair that is too long have one prompt, or each row loses of its prompt what
    # its own completion needs, as in runs of version 0.1.
    truncation: Truncation = "pair"

    names: ClassVar[tuple[str, ...]] = (
        "beta", "label_smoothing", "margin", "desirable_weight", "undesirable_weight"
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_methods(self, self.names)
        if self.reference is not None and not self.has_reference:
            raise ConfigError(
                f"align.reference is {self.reference}, and {self.method} has no reference: leave "
                f"it out"
            )

    @property
    def has_reference(self) -> bool:
        """Whether the method compares with a reference."""
        return self.method in ("dpo", "ipo", "kto")

    @property
    def kind(self) -> PreferenceKind:
        """What a line of the data holds."""
        return "labels" if self.method == "kto" else "pairs"

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the loss."""
        return _numbers(self, self.names)


@dataclasses.dataclass(frozen=True)
class PreferenceRun(StartConfig):
    """One run of a decoder on preferences."""

    align: AlignConfig = AlignConfig()
    model: TransformerConfig = PRESETS["gpt2_small"]
    data: PreferenceData = PreferenceData()
    tokenizer: TokenizerConfig = TokenizerConfig()
    lora: LoRAConfig = LoRAConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: EncoderTraining = EncoderTraining(max_tokens=4096)
    loop: LoopConfig = LoopConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig = DistributedConfig()
    output: str | None = None  # the run directory; None is runs/NAME
    overwrite: bool = False  # delete a run that is there
    # What a text begins with; auto is as in the run that this one starts from.
    first: Literal["auto", "bos", "eos", "newline"] = "auto"

    parts: ClassVar[tuple[str, ...]] = ("decoder",)

    @property
    def precomputes_reference(self) -> bool:
        """Whether log-probabilities of the reference are computed before the first step."""
        return self.align.has_reference and self.align.reference != "frozen"


@dataclasses.dataclass(frozen=True)
class PolicyConfig(Configuration, group="align"):
    """The method of learning from rewards of the policy's own samples."""

    method: Literal["ppo", "grpo"] = "grpo"
    max_prompt_length: Count = 64  # most tokens of a prompt; a longer one loses its beginning
    max_new_tokens: Count = 32  # most tokens of a completion, its end included
    group_size: Count = 4  # completions of each prompt
    updates: Count = 2  # optimizer updates on the samples of a step
    clip: Positive = 0.2  # most change of a token's probability, as a fraction, by one step
    # Weight of the KL penalty at the first step; 0 is no penalty.
    kl_coefficient: NotNegative = 0.05
    # Nats of a completion that the policy may be away from the reference, on average; the weight
    # follows. None keeps the weight.
    kl_target: Positive | None = None
    kl_horizon: NotNegative = 0.1  # how fast the weight follows: at most a fifth of it a step
    # Ppo: weight of the loss of the value head; None is 0.5.
    value_weight: NotNegative | None = None
    value_clip: Positive | None = None  # ppo: most change of a value by one step; None is 0.2
    discount: Share | None = None  # ppo: of later rewards; None is 1
    gae_decay: Share | None = None  # ppo: lambda of advantage estimation; None is 0.95

    names: ClassVar[tuple[str, ...]] = ("value_weight", "value_clip", "discount", "gae_decay")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl_target is not None and not self.kl_coefficient:
            raise ConfigError(
                "align.kl_target is given and align.kl_coefficient is 0: a weight of 0 never grows"
            )
        _check_methods(self, self.names)
        self.sampled  # noqa: B018  (it checks the rest)

    @property
    def sampled(self) -> OnPolicy:
        """The numbers of the method."""
        own = _numbers(self, self.names)
        return OnPolicy(self.method, self.max_new_tokens, self.group_size, self.clip, **own)

    @property
    def control(self) -> KLControl:
        """How the weight of the KL penalty changes."""
        return KLControl(self.kl_coefficient, self.kl_target, self.kl_horizon)


@dataclasses.dataclass(frozen=True)
class RewardConfig(Configuration, group="reward"):
    """What samples are rewarded by; give one of them."""

    # A Python file with reward(prompt, completion) -> float. It is run: use files that you trust.
    file: str | None = None
    run: str | None = None  # a reward model, trained by align reward


@dataclasses.dataclass(frozen=True)
class PolicyTraining(Configuration, group="training"):
    """Training settings: duration, batch size, seed."""

    # Passes over the prompts; None is as many as give 1000 steps, 10 to 50.
    epochs: Count | None = None
    steps: Count | None = None  # the last step; None goes by epochs
    batch_size: Count = 8  # prompts of a step, over all devices
    gradient_accumulation_steps: Count = 1  # parts that a batch is computed in, one after another
    ema_decay: Rate | None = None  # decay of the moving average of the parameters; None keeps none
    seed: Amount = 1  # of samples, dropout and order

    mode: ClassVar[Literal["jit"]] = "jit"

    @property
    def row_unit(self) -> int:
        """The divisor of the rows of every batch."""
        return self.batch_size

    @property
    def label_smoothing(self) -> float:
        """0: the targets are not smoothed."""
        return 0.0


@dataclasses.dataclass(frozen=True)
class PolicyRun(StartConfig):
    """One run of a decoder on rewards of its own samples."""

    align: PolicyConfig = PolicyConfig()
    reward: RewardConfig = RewardConfig()
    model: TransformerConfig = PRESETS["gpt2_small"]
    data: PreferenceData = PreferenceData()
    tokenizer: TokenizerConfig = TokenizerConfig()
    lora: LoRAConfig = LoRAConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: PolicyTraining = PolicyTraining()
    loop: LoopConfig = LoopConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig = DistributedConfig()
    output: str | None = None  # the run directory; None is runs/NAME
    overwrite: bool = False  # delete a run that is there
    # What a text begins with; auto is as in the run that this one starts from.
    first: Literal["auto", "bos", "eos", "newline"] = "auto"

    parts: ClassVar[tuple[str, ...]] = ("decoder",)

    @property
    def sample_tokens(self) -> int:
        """Tokens of the samples of a step, prompts included."""
        align = self.align
        length = align.max_prompt_length + align.max_new_tokens
        return self.training.batch_size * align.group_size * length


def read(directory: RunDirectory) -> PreferenceRun | PolicyRun:
    """The run of a directory.

    Raises:
        CheckpointError: ``config.json`` is damaged, or of another kind of run.
    """
    kind: Any = PolicyRun if "reward" in directory.read_config() else PreferenceRun
    run: PreferenceRun | PolicyRun = read_run(kind, directory, "a run of preferences")
    return run


def _adamw(peak: float) -> OptimizerConfig:
    schedule = ScheduleConfig("linear", warmup_steps=None)
    return OptimizerConfig("adamw", peak, schedule, beta2=0.95, eps=1e-8, weight_decay=0.0)


def _pairs(method: Any, peak: float) -> PreferenceRun:
    return PreferenceRun(
        align=AlignConfig(method),
        optimizer=_adamw(peak),
        training=EncoderTraining(epochs=1, max_tokens=4096),
        loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
    )


def _policy(method: Any) -> PolicyRun:
    schedule = ScheduleConfig("constant", warmup_steps=0)
    optimizer = dataclasses.replace(_adamw(1e-5), schedule=schedule)
    loop = LoopConfig(evaluate_every=None, checkpoint_every=None)
    return PolicyRun(align=PolicyConfig(method), optimizer=optimizer, loop=loop)


_NAMED: dict[str, tuple[str, Any]] = {
    "dpo": ("Direct preference optimization on pairs of completions.", _pairs("dpo", 1e-5)),
    "ipo": ("Identity preference optimization: a margin with a target.", _pairs("ipo", 1e-5)),
    "kto": ("Kahneman-Tversky optimization on completions labelled true or false.",
            _pairs("kto", 1e-5)),
    "simpo": ("Simple preference optimization, without a reference.", _pairs("simpo", 1e-5)),
    "reward": ("A reward model on pairs, by Bradley and Terry.", _pairs("reward", 1e-5)),
    "ppo": ("Proximal policy optimization by a reward, with a value head.", _policy("ppo")),
    "grpo": ("Group-relative policy optimization by a reward, without a value head.",
             _policy("grpo")),
}  # fmt: skip

ALIGN_RUNS: dict[str, tuple[str, Any]] = with_defaults(_NAMED)
