"""Summarization with a pre-trained encoder-decoder: ``finetune summarize``."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from transformer_jax.core.config_fields import Flag
from transformer_jax.data.summaries import SummaryData, SummarySplits, load_summaries
from transformer_jax.evaluation.rouge import check_installed
from transformer_jax.evaluation.word_splitting import Tokenize
from transformer_jax.recipes.languages import check_default
from transformer_jax.recipes.read_flags import FieldsFlag, with_read_flags
from transformer_jax.recipes.recipe import Named, Prepared
from transformer_jax.recipes.scored_texts import (
    SearchFlags,
    beam_search,
    choose_words,
    required,
    write_texts,
)
from transformer_jax.recipes.settings import TokenizerConfig
from transformer_jax.recipes.sizing import with_defaults
from transformer_jax.recipes.tasks.settings import SummaryEvaluation
from transformer_jax.recipes.translation import Run, TextToText, Translation, with_encoder_decoder
from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = ["Summarization", "SummarizationRun"]


@dataclasses.dataclass(frozen=True)
class SummarizationRun(Run):
    """One training run of a summarizer."""

    data: SummaryData = SummaryData()  # type: ignore[assignment]
    evaluation: SummaryEvaluation = SummaryEvaluation()  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class EvaluateSummaries(SearchFlags, FieldsFlag):  # type: ignore[misc]
    """Print ROUGE of the summaries of a file."""

    data: Annotated[str | None, Flag(also=("data.test",))] = None
    """JSONL file of texts and summaries."""
    tokenize: Literal["latin"] | Tokenize | None = None
    """Word splitting of ROUGE; latin is that of rouge-score. None is the run's setting, or depends
    on the script of the references."""


class Summarization(TextToText[SummarizationRun, SummarySplits]):
    """An encoder-decoder, trained on texts with summaries: translation into fewer words."""

    name = "summarization"
    title = "a summarizer"
    config: ClassVar[type] = SummarizationRun
    metrics = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    evaluation = EvaluateSummaries

    @functools.cached_property
    def runs(self) -> Named:
        """Returns the named run, with the model of the translator ``small``."""

        def summarize() -> SummarizationRun:
            small = Translation().runs["small"][1]
            return SummarizationRun(
                model=small.model,
                tokenizer=TokenizerConfig(vocab_size=None),
                optimizer=OptimizerConfig(
                    name="adamw",
                    learning_rate=5e-4,
                    weight_decay=0.01,
                    schedule=ScheduleConfig("linear", warmup_steps=None),
                ),
                training=dataclasses.replace(small.training, epochs=10, max_tokens=8192),
                loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
            )

        about = "Summaries of texts, by a pre-trained encoder-decoder (--init-from) or a small one."
        return with_defaults({"summarize": (about, summarize)})

    def data(self, run: SummarizationRun) -> SummarySplits:
        """Returns the texts and summaries."""
        return load_summaries(run.data)

    def prepare(
        self, run: SummarizationRun, start: "Start | None", given: "Given[SummarizationRun]"
    ) -> Prepared[SummarizationRun, SummarySplits]:
        """Returns a run whose tokenizer is trained on every text once, and on all summaries."""
        from transformer_jax.recipes.checks import validated

        run = with_encoder_decoder(run, start, given)
        check_installed()
        if start is not None:
            remedy = "give it a direction, src_lang and tgt_lang in tokenizer_config.json"
            check_default(start.tokenizer.languages, run.init_from, remedy)
        run = validated(run, start, given)
        data = self.data(run)

        def texts() -> list[str]:
            pairs, prefix = data.train.pairs(every=True), run.data.read.source_prefix
            return [*dict.fromkeys(pairs.sources), *pairs.targets, *[prefix] * bool(prefix)]

        return Prepared(run, data, texts)

    def task(
        self,
        run: SummarizationRun,
        directory: "RunDirectory",
        tokenizer: "Tokenizer",
        data: SummarySplits,
    ) -> "Task":
        """Returns the task of summarization."""
        from transformer_jax.recipes.tasks.summarization_task import summarization

        check_installed()
        return summarization(
            data,
            run.model,
            tokenizer,
            batching=run.training.batching,
            label_smoothing=run.training.label_smoothing,
            read=run.data.read,
            evaluation=run.evaluation,
            cache=directory.path / "store",
        )

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints ROUGE of summaries of a file, compared with baselines."""
        from transformer_jax.data.summaries import read_summaries
        from transformer_jax.inference.pretrained import Pretrained
        from transformer_jax.recipes.driver import settings_of
        from transformer_jax.recipes.tasks.summarization_task import score_summaries

        [path] = required(request, self.title, "data")
        search, run = beam_search(request, facts), with_read_flags(settings_of(facts), request)
        texts = read_summaries(path, run.data.read, "--data", every=True)
        references = [text for texts in texts.references for text in texts]
        words: Any = choose_words(request.tokenize, run.evaluation.tokenize, references)
        evaluation = dataclasses.replace(run.evaluation, tokenize=words)
        opened = Pretrained.load(facts, self.family)
        _, summaries = score_summaries(
            opened.model, opened.tokenizer, texts, evaluation, search, limit="--max-len-b"
        )
        return write_texts(request.output, summaries, texts.references, "document")
