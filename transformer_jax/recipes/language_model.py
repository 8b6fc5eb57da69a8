"""Language models on any text: ``train char-cpu``."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from transformer_jax.core.config_fields import Flag
from transformer_jax.data.documents import TextData
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    MixerConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.presets import PRESETS
from transformer_jax.recipes.read_flags import FieldFlag
from transformer_jax.recipes.recipe import Named, Prepared, Recipe
from transformer_jax.recipes.settings import Adapted, Cached, RowBatches, RunConfig, TokenizerConfig
from transformer_jax.recipes.sizing import with_defaults, without_attention_dropout
from transformer_jax.recipes.texts import LanguageEvaluation, open_texts_of, token_cache
from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig

if TYPE_CHECKING:
    from transformer_jax.data.document_stream import DocumentStream
    from transformer_jax.data.documents import TextSplits
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.plan_inputs import BatchShapes, PlanInputs
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = ["EvaluateLanguageModels", "LanguageModeling", "LanguageRun", "TextRows"]


@dataclasses.dataclass(frozen=True)
class TextRows(RowBatches):
    """Training settings: duration, rows per batch, seed."""

    # Rows of separate documents, or of one continuous stream.
    layout: Literal["packed", "contiguous"] = "packed"


@dataclasses.dataclass(frozen=True)
class LanguageRun(Cached, Adapted, RunConfig):
    """One training run of a decoder."""

    model: TransformerConfig = PRESETS["gpt2_small"]
    data: TextData = TextData()
    training: TextRows = TextRows()
    evaluation: LanguageEvaluation = LanguageEvaluation()
    # First token of a text: BOS; the end token of the preceding text; or a line end, for a single
    # text.
    first: Literal["auto", "bos", "eos", "newline"] = "auto"

    parts: ClassVar[tuple[str, ...]] = ("decoder",)

    @property
    def ends(self) -> bool:
        """Returns whether texts end with the end token; a single text does not, as in nanoGPT."""
        return self.first != "newline"

    def without_derived(self) -> "LanguageRun":
        """Returns the run without the first token, which is derived from texts and tokenizer."""
        return dataclasses.replace(self, first="auto")


@dataclasses.dataclass(frozen=True)
class EvaluateLanguageModels(FieldFlag):
    """Compare language models on a text: loss, perplexity, bits per character and per byte."""

    text: Annotated[str | None, Flag(also=("data.text",))] = None
    """Text file or folder; None is the test (or else validation) text of the run."""
    compare: tuple[str, ...] = ()
    """Further runs to evaluate on the same text, each with its own tokenizer."""
    ngrams: tuple[int, ...] | None = None
    """Orders of n-gram baselines from the run's training text; None is the run's setting."""


class LanguageModeling(Recipe[LanguageRun, "TextSplits"]):
    """A decoder, trained on texts."""

    name = "language_model"
    title = "a language model"
    config = LanguageRun
    family = "decoder"
    starts = ("decoder",)
    evaluation = EvaluateLanguageModels
    has_plan = True
    decoding = "sample"

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs."""
        return with_defaults(_NAMED)

    def data(self, run: LanguageRun) -> "TextSplits":
        """Returns the texts; those to evaluate on are truncated as settings say."""
        return open_texts_of(run)

    def prepare(
        self, run: LanguageRun, start: "Start | None", given: "Given[LanguageRun]"
    ) -> "Prepared[LanguageRun, TextSplits]":
        """Returns a run whose first token of texts depends on the texts and on the tokenizer."""
        from transformer_jax.data.token_file import sample_texts
        from transformer_jax.recipes.checks import validated

        if start is not None:
            run = start.adapt(run, given)
        run = validated(run, start, given)
        data = self.data(run)
        return Prepared(
            run,
            data,
            texts=lambda: sample_texts(data.train),
            with_tokenizer=lambda run, tokenizer: _with_first(run, data, tokenizer),
        )

    def task(
        self,
        run: LanguageRun,
        directory: "RunDirectory",
        tokenizer: "Tokenizer",
        data: "TextSplits",
    ) -> "Task":
        """Returns the task of language modelling, which ends with n-gram baselines and a sample."""
        from transformer_jax.recipes.language_evaluation import score_language_model
        from transformer_jax.recipes.tasks.language_model_task import Rows, language_model

        training = run.training
        rows = Rows(training.batch_size, training.sequence_length, training.layout, training.seed)
        cache = token_cache(run, directory)
        task = language_model(data, run.model, tokenizer, rows=rows, ends=run.ends, cache=cache)
        test = functools.partial(score_language_model, run, directory, tokenizer, data)
        return dataclasses.replace(task, test=test)

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints a row of metrics per model."""
        from transformer_jax.recipes.language_evaluation import compare_models

        return compare_models(request, facts)

    def plan_inputs(self, run: LanguageRun, batch: "BatchShapes") -> "PlanInputs":
        """Returns what training and evaluation are made of."""
        from transformer_jax.recipes.plan_inputs import row_inputs

        return row_inputs(run, batch, packed=run.training.layout == "packed")

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from prompts to texts."""
        from transformer_jax.inference.generation import LanguageModelPredictor
        from transformer_jax.inference.pretrained import Pretrained

        return LanguageModelPredictor(Pretrained.load(facts))


def _with_first(run: LanguageRun, data: "TextSplits", tokenizer: "Tokenizer") -> LanguageRun:
    """Returns the run with the first token of its texts."""
    if run.first != "auto":
        return run
    first: Literal["bos", "eos", "newline"]
    if run.training.layout == "packed":
        first = "bos"
    elif _several(data.train):
        first = "eos"
    else:
        first = "newline" if len(tokenizer.encode_batch(["\n"])[0]) == 1 else "eos"
    return dataclasses.replace(run, first=first)


def _several(texts: "DocumentStream") -> bool:
    """Returns whether there is more than one document."""
    ended = False
    for piece in texts:
        if ended:
            return True
        ended = piece.last
    return False


def _adamw(
    peak: float, warmup: int | None, beta2: float = 0.99, final: float = 0.1
) -> OptimizerConfig:
    return OptimizerConfig(
        name="adamw",
        learning_rate=peak,
        beta2=beta2,
        weight_decay=0.1,
        schedule=ScheduleConfig("cosine", warmup_steps=warmup, final_fraction=final),
    )


def _narrow(
    width: int, layers: int, heads: int, context: int, dropout: float = 0.0
) -> TransformerConfig:
    """Returns a small decoder in the style of Llama."""
    return TransformerConfig(
        d_model=width,
        encoder_layers=0,
        decoder_layers=layers,
        embedding=EmbeddingConfig(scale=1.0, dropout=dropout),
        positions=PositionConfig(kind="rope", max_length=context),
        attention=AttentionConfig(num_heads=heads, bias=False, out_bias=False),
        feed_forward=FeedForwardConfig(d_ff=3 * width, activation="silu", gated=True, bias=False),
        norm=NormConfig(kind="rms", placement="pre", residual_dropout=dropout),
    )


def _sized(config: TransformerConfig, **sizes: Any) -> TransformerConfig:
    """Returns a run with a preset at another size."""
    attention = dataclasses.replace(config.attention, num_heads=sizes["heads"], dropout=0.0)
    hidden = dataclasses.replace(config.feed_forward, d_ff=4 * sizes["width"])
    return dataclasses.replace(
        config,
        d_model=sizes["width"],
        decoder_layers=sizes["layers"],
        embedding=dataclasses.replace(config.embedding, dropout=0.0),
        positions=dataclasses.replace(config.positions, max_length=sizes["context"]),
        attention=attention,
        feed_forward=hidden,
        norm=dataclasses.replace(config.norm, residual_dropout=0.0),
    )


def _before(mixer: MixerConfig, layers: int, width: int = 256) -> LanguageRun:
    """Returns a run of a language model without attention."""
    return LanguageRun(
        model=TransformerConfig(
            d_model=width,
            encoder_layers=0,
            decoder_layers=layers,
            positions=PositionConfig(kind="none", max_length=1024),
            mixer=mixer,
            feed_forward=FeedForwardConfig(d_ff=0),
            norm=NormConfig(placement="pre"),
        ),
        tokenizer=TokenizerConfig(kind="bpe", vocab_size=8000),
        optimizer=_adamw(2e-3, None),
        training=TextRows(epochs=None, batch_size=32, sequence_length=256),
        loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
    )


_CHARACTERS = TokenizerConfig(kind="characters", vocab_size=10_000)


_NAMED: dict[str, tuple[str, Callable[[], LanguageRun]]] = {
    "python-docs": (
        "The reference topics that come with Python: minutes on a laptop, no data needed.",
        lambda: LanguageRun(
            # So small a text is memorized in a minute: dropout and a moving average of the
            # parameters reduce overfitting.
            model=_narrow(width=128, layers=4, heads=4, context=256, dropout=0.15),
            data=TextData(corpus="python-docs"),
            tokenizer=TokenizerConfig(kind="bpe", vocab_size=1000),
            optimizer=OptimizerConfig(
                name="muon",
                learning_rate=2e-2,
                weight_decay=0.1,
                schedule=ScheduleConfig("cosine", warmup_steps=30, final_fraction=0.05),
            ),
            training=TextRows(steps=700, batch_size=8, sequence_length=256, ema_decay=0.99),
            loop=LoopConfig(evaluate_every=175, checkpoint_every=350),
        ),
    ),
    "in-context": (
        "Rules shown by examples: learns in-context learning, in minutes on a laptop.",
        lambda: LanguageRun(
            model=_narrow(width=96, layers=3, heads=4, context=128),
            data=TextData(corpus="in-context"),
            tokenizer=_CHARACTERS,
            optimizer=_adamw(4e-3, 100),
            # A row is one document, but a prompt may be longer.
            training=TextRows(steps=4000, batch_size=32, sequence_length=62),
            loop=LoopConfig(evaluate_every=500, checkpoint_every=500),
        ),
    ),
    "char-cpu": (
        "nanoGPT's character model for a CPU: 4 layers, width 128, context 64.",
        lambda: LanguageRun(
            model=_sized(PRESETS["nanogpt_char"], width=128, layers=4, heads=4, context=64),
            tokenizer=_CHARACTERS,
            optimizer=_adamw(1e-3, 100),
            training=TextRows(steps=2000, batch_size=12, sequence_length=64, layout="contiguous"),
            loop=LoopConfig(evaluate_every=250, checkpoint_every=1000),
        ),
    ),
    "char": (
        "nanoGPT's character model for a GPU: 6 layers, width 384, context 256.",
        lambda: LanguageRun(
            model=without_attention_dropout(PRESETS["nanogpt_char"]),
            tokenizer=_CHARACTERS,
            optimizer=_adamw(1e-3, 100),
            training=TextRows(steps=5000, batch_size=64, sequence_length=256, layout="contiguous"),
            loop=LoopConfig(evaluate_every=250, checkpoint_every=1000),
        ),
    ),
    "gpt2-small": (
        "GPT-2 small, 124 M parameters at 50,257 tokens, on your own text.",
        lambda: LanguageRun(
            model=without_attention_dropout(PRESETS["gpt2_small"]),
            tokenizer=TokenizerConfig(kind="bpe", vocab_size=50_257),
            optimizer=_adamw(6e-4, 2000, beta2=0.95),
            training=TextRows(steps=600_000, batch_size=512, sequence_length=1024),
            loop=LoopConfig(keep_last=5),
        ),
    ),
    "modern": (
        "A decoder in the style of Llama: RoPE, RMSNorm, SwiGLU, GQA.",
        lambda: LanguageRun(
            model=PRESETS["llama_style"],
            tokenizer=TokenizerConfig(kind="bpe", vocab_size=32_000),
            optimizer=_adamw(6e-4, None, beta2=0.95),
            training=TextRows(epochs=None, batch_size=128, sequence_length=2048),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None, keep_last=5),
        ),
    ),
    "lstm": (
        "An LSTM language model, 2 layers of 256, on your own text: before Transformers.",
        lambda: _before(MixerConfig("recurrent", cell="lstm"), layers=2),
    ),
    "gated-conv": (
        "Gated convolutions as in Dauphin et al. 2017, 6 layers of 256, on your own text.",
        lambda: _before(MixerConfig("convolution", kernel_size=4), layers=6),
    ),
}
