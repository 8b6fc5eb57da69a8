"""The flags that choose the engine of a model: JAX or CTranslate2."""

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Literal

from transformer_jax.cli.output import wrote
from transformer_jax.cli.support.run_command import PredictionCommand
from transformer_jax.core.config_fields import OutputPath
from transformer_jax.core.errors import ConfigError

if TYPE_CHECKING:
    from transformer_jax.inference.engines import EngineConfig

__all__ = ["EngineCommand"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineCommand(PredictionCommand):
    """A command that computes with JAX, or with CTranslate2 on a CPU."""

    # Flags that CTranslate2 does not support, and why.
    NOT_THERE: ClassVar[dict[str, str]] = {
        "adapter": "computes plain weights only (the command merge creates them)",
        "min_p": "has no such option of sampling",
        "trace": "does not return alternative tokens",
        "exhaustive": "does not score the start of a text",
        "beam_tree": "does not return alternative tokens",
        "generation_config": "has its own search",
        "mesh": "runs on the CPU of one machine",
        "prompt_lookup_num_tokens": "does not draft tokens",
        "context": "runs the model as it was trained",
        "rope_interpolation": "runs the model as it was trained",
        "dtype": "has --compute instead",
    }

    engine: Literal["jax", "ctranslate2"] = "jax"
    """ctranslate2: decode with CTranslate2 on the CPU. The model is exported once, next to the run;
    beam search ends when --num-beams hypotheses are complete."""
    compute: (
        Literal[
            "float32", "bfloat16", "float16", "int16",
            "int8", "int8_float32", "int8_bfloat16", "int8_float16",
        ]
        | None
    ) = None  # fmt: skip
    """Data type of CTranslate2, for --engine ctranslate2; None is float32, int8 is the fastest."""
    engine_cache: OutputPath | None = None
    """Folder of exported models, for --engine ctranslate2; None is the run directory, or the user's
    cache if that is read-only."""

    def search_choices(self) -> tuple[list[str], bool]:
        """Returns the settings that are flags on this engine, and whether hf is a choice."""
        names: tuple[str, ...] = getattr(self, "FLAGS", ())
        if self.engine == "jax":
            return list(names), True
        return [name for name in names if name not in self.NOT_THERE], False

    def check_engine(self) -> None:
        """Refuses flags that the engine does not support.

        Raises:
            ConfigError: The message names the flag and the reason.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        if self.engine == "jax":
            for name in ("compute", "engine_cache"):
                if getattr(self, name) is not None:
                    flag = name.replace("_", "-")
                    raise ConfigError(f"--{flag} is for --engine ctranslate2: add that")
            return
        for name, why in self.NOT_THERE.items():
            if name in defaults and getattr(self, name) != defaults[name]:
                flag = name.replace("_", "-")
                raise ConfigError(
                    f"--{flag} does not go with --engine ctranslate2, which {why}: leave it out, "
                    f"or use --engine jax"
                )

    def engine_config(self) -> "EngineConfig":
        """Returns the CTranslate2 settings."""
        from transformer_jax.inference.engines import EngineConfig

        told = lambda folder, said: wrote(folder, what=said)
        return EngineConfig(self.compute or "float32", self.engine_cache, told)
