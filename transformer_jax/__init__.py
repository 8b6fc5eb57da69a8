"""The three Transformer families on JAX and Flax NNX.

The most used names are available here; each is imported on first use::

    import transformer_jax as tj

    translate = tj.load("runs/pt-en")  # a run directory or a Hugging Face checkpoint
    model = tj.Decoder(tj.presets["gpt2_small"], rngs=nnx.Rngs(0))
    y = tj.attend(q, k, v, tj.Mask(causal=True) & tj.Mask.padding(lengths))

Axis letters, the same in all ``jaxtyping`` strings and einsums:

===  ======================================================================
B    batch
T    queries, the target's length
S    keys, the source's length
D    model width
N    query heads
K    key-value heads, each shared by ``G = N / K`` query heads
H    size of a head; ``U`` of a value head, if it differs
F    feed-forward width
V    vocabulary
L    layers
M    beams
===  ======================================================================

Masks are True where a query may attend. Dropout happens if and only if a ``key`` is passed;
decoding is incremental if and only if a ``cache`` is passed.
"""

import difflib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_jax import laws
    from transformer_jax.core.runtime import enable_compilation_cache
    from transformer_jax.data.plan import ArrayPlan
    from transformer_jax.decoding.generation_config import GenerationConfig
    from transformer_jax.exercises.checking import check
    from transformer_jax.functional.attention import attend
    from transformer_jax.functional.masks import Mask
    from transformer_jax.inference.loading import load
    from transformer_jax.inference.pipelines import pipeline
    from transformer_jax.models.activations import capture
    from transformer_jax.models.composed import EncoderDecoder
    from transformer_jax.models.config import (
        AttentionConfig,
        ComputeConfig,
        EmbeddingConfig,
        FeatureConfig,
        FeedForwardConfig,
        HeadConfig,
        ImageConfig,
        LabelConfig,
        MixerConfig,
        NormConfig,
        PositionConfig,
        ScoreConfig,
        TransformerConfig,
    )
    from transformer_jax.models.partition import merging
    from transformer_jax.models.presets import PRESETS
    from transformer_jax.models.transformer.layers import Attention, register_mixer
    from transformer_jax.models.transformer.models import (
        Decoder,
        Encoder,
        TransformerDecoder,
        TransformerEncoder,
        TransformerEncoderDecoder,
    )
    from transformer_jax.parallel.mesh import make_mesh
    from transformer_jax.parallel.settings import MeshConfig
    from transformer_jax.recipes import tasks
    from transformer_jax.runs.checkpoint_score import Metric
    from transformer_jax.training import objectives
    from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig, adamw
    from transformer_jax.training.state import TrainState, split
    from transformer_jax.training.step import make_step
    from transformer_jax.training.task import Data, Task
    from transformer_jax.training.trainer import Trainer

    presets = PRESETS

__all__ = [
    "ArrayPlan",
    "Attention",
    "AttentionConfig",
    "ComputeConfig",
    "Data",
    "Decoder",
    "EmbeddingConfig",
    "Encoder",
    "EncoderDecoder",
    "FeatureConfig",
    "FeedForwardConfig",
    "GenerationConfig",
    "HeadConfig",
    "ImageConfig",
    "LabelConfig",
    "LoopConfig",
    "Mask",
    "MeshConfig",
    "Metric",
    "MixerConfig",
    "NormConfig",
    "OptimizerConfig",
    "PositionConfig",
    "ScheduleConfig",
    "ScoreConfig",
    "Task",
    "TrainState",
    "Trainer",
    "TransformerConfig",
    "TransformerDecoder",
    "TransformerEncoder",
    "TransformerEncoderDecoder",
    "__version__",
    "adamw",
    "attend",
    "capture",
    "check",
    "enable_compilation_cache",
    "laws",
    "load",
    "make_mesh",
    "make_step",
    "merging",
    "objectives",
    "pipeline",
    "presets",
    "register_mixer",
    "split",
    "tasks",
]

__version__ = "0.2.0.dev0"

# The module of each name.
_MODULES = {
    "enable_compilation_cache": "core.runtime",
    "ArrayPlan": "data.plan",
    "GenerationConfig": "decoding.generation_config",
    "attend": "functional.attention",
    "capture": "models.activations",
    "Mask": "functional.masks",
    "Attention": "models.transformer.layers",
    "register_mixer": "models.transformer.layers",
    "Decoder": "models.transformer.models",
    "Encoder": "models.transformer.models",
    "EncoderDecoder": "models.composed",
    "TransformerDecoder": "models.transformer.models",
    "TransformerEncoder": "models.transformer.models",
    "TransformerEncoderDecoder": "models.transformer.models",
    "MeshConfig": "parallel.settings",
    "make_mesh": "parallel.mesh",
    "load": "inference.loading",
    "pipeline": "inference.pipelines",
    "presets": "models.presets",
    "LoopConfig": "training.settings",
    "OptimizerConfig": "training.settings",
    "ScheduleConfig": "training.settings",
    "adamw": "training.settings",
    "check": "exercises.checking",
    "merging": "models.partition",
    "TrainState": "training.state",
    "split": "training.state",
    "make_step": "training.step",
    "Data": "training.task",
    "Metric": "runs.checkpoint_score",
    "Task": "training.task",
    "Trainer": "training.trainer",
    "laws": "laws",
    "objectives": "training.objectives",
    "tasks": "recipes.tasks",
}
_OTHER_NAMES = {"presets": "PRESETS"}  # its name there
_WHOLE = ("laws", "objectives", "tasks")  # modules


if not TYPE_CHECKING:  # checkers of types know the names above

    def __getattr__(name: str) -> Any:
        """Imports a public name on first use."""
        if name not in __all__:
            near = difflib.get_close_matches(name, __all__, 1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        from transformer_jax.core.runtime import uncollected

        with uncollected():
            module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'models.config')}")
        value = module if name in _WHOLE else getattr(module, _OTHER_NAMES.get(name, name))
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
