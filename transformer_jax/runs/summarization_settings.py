"""Settings of summarization runs, and the named run."""

import dataclasses

from transformer_jax.data.summaries import SummaryData
from transformer_jax.runs.settings import TokenizerConfig
from transformer_jax.runs.sizing import with_defaults
from transformer_jax.runs.translation_settings import RUNS as TRANSLATION_RUNS
from transformer_jax.runs.translation_settings import Run
from transformer_jax.tasks.settings import SummaryEvaluation
from transformer_jax.training.loop import LoopConfig
from transformer_jax.training.optimizers import OptimizerConfig
from transformer_jax.training.schedules import ScheduleConfig

__all__ = ["RUNS", "SummarizationRun"]


@dataclasses.dataclass(frozen=True)
class SummarizationRun(Run):
    """One training run of a summarizer."""

    data: SummaryData = SummaryData()  # type: ignore[assignment]
    evaluation: SummaryEvaluation = SummaryEvaluation()  # type: ignore[assignment]


_SMALL = TRANSLATION_RUNS["small"][1]

RUNS = with_defaults(
    {
        "summarize": (
            "Summaries of texts, of a pre-trained encoder-decoder (--init-from) or of a small one.",
            SummarizationRun(
                model=_SMALL.model,
                tokenizer=TokenizerConfig(vocab_size=None),
                optimizer=OptimizerConfig(
                    name="adamw",
                    learning_rate=5e-4,
                    weight_decay=0.01,
                    schedule=ScheduleConfig("linear", warmup_steps=None),
                ),
                training=dataclasses.replace(_SMALL.training, epochs=10, max_tokens=8192),
                loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
            ),
        )
    }
)
