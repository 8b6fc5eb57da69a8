"""Translation of sentence pairs with Transformers or recurrent networks: ``train small``."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from transformer_jax.core.config_fields import Rate
from transformer_jax.core.task_progress import log
from transformer_jax.data.sources import (
    LanguageSettings,
    PairData,
    ReadOptions,
    Splits,
    load_splits,
    with_languages,
)
from transformer_jax.evaluation.word_splitting import check_tokenize
from transformer_jax.inference.facts import ENCODERS
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LabelConfig,
    MixerConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.recurrent_config import AlignmentConfig, RecurrentConfig
from transformer_jax.recipes.languages import with_directions, with_tags
from transformer_jax.recipes.recipe import Named, Prepared, Recipe
from transformer_jax.recipes.settings import Adapted, RunConfig, TokenBatches, TokenizerConfig
from transformer_jax.recipes.sizing import with_defaults
from transformer_jax.recipes.tasks.directions import sampled_texts
from transformer_jax.recipes.tasks.settings import EvaluationConfig
from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.plan_inputs import BatchShapes, PlanInputs
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = [
    "RecurrentRun",
    "RecurrentTranslation",
    "Run",
    "SmoothedTraining",
    "TextToText",
    "Translation",
    "check_words",
    "extension_texts",
    "tokenizer_texts",
    "with_encoder_decoder",
]


@dataclasses.dataclass(frozen=True)
class SmoothedTraining(TokenBatches):
    """Training settings: duration, tokens per batch, label smoothing, seed."""

    label_smoothing: Rate = 0.1  # probability spread over the vocabulary


@dataclasses.dataclass(frozen=True)
class Run(Adapted, RunConfig):
    """One training run of a translator."""

    model: TransformerConfig = PRESETS["vaswani_base"]
    data: PairData = PairData()
    training: SmoothedTraining = SmoothedTraining()
    evaluation: EvaluationConfig = EvaluationConfig()

    parts: ClassVar[tuple[str, ...]] = ("encoder", "decoder")

    @property
    def length_limit(self) -> tuple[str, int]:
        """Returns the maximum length of both sides."""
        return "data.read.max_length", self.data.read.max_length


@dataclasses.dataclass(frozen=True)
class RecurrentRun(Run):
    """One training run of a recurrent translator."""

    model: RecurrentConfig = RecurrentConfig()  # type: ignore[assignment]


PairRun = TypeVar("PairRun", bound=Run)
Texts = TypeVar("Texts")


class TextToText(Recipe[PairRun, Texts]):
    """An encoder-decoder that is trained on texts and writes texts."""

    family = "encoder-decoder"
    starts: ClassVar[tuple[str, ...]] = ("encoder-decoder", *ENCODERS)
    keeps_publication = True
    has_plan = True
    decoding = "search"

    def check(self, run: PairRun, given: "Given[PairRun]") -> None:
        """Refuses a tokenizer of metrics whose package is not installed."""
        check_words(run)

    def plan_inputs(self, run: PairRun, batch: "BatchShapes") -> "PlanInputs":
        """Returns what training and evaluation are made of."""
        from transformer_jax.recipes.plan_inputs import pair_inputs

        return pair_inputs(run, batch, run.training.label_smoothing)

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from texts to texts."""
        from transformer_jax.inference.generation import TranslationPredictor
        from transformer_jax.inference.pretrained import Pretrained

        return TranslationPredictor(Pretrained.load(facts))


class Translation(TextToText[Run, Splits]):
    """A Transformer, trained on sentence pairs."""

    name = "translation"
    title = "a translator"
    config: ClassVar[type] = Run
    metrics: ClassVar[tuple[str, ...]] = ("sacrebleu",)

    @functools.cached_property
    def evaluation(self) -> type:
        """The flags of ``evaluate``."""
        from transformer_jax.recipes.translation_evaluation import EvaluateTranslator

        return EvaluateTranslator

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs."""
        return with_defaults(_NAMED)

    def data(self, run: Run) -> Splits:
        """Returns the sentence pairs."""
        return load_splits(run.data)

    def prepare(
        self, run: Run, start: "Start | None", given: "Given[Run]"
    ) -> Prepared[Run, Splits]:
        """Returns the run with the languages of its files, whose tags join its tokenizer."""
        from transformer_jax.recipes.checks import validated

        run = with_encoder_decoder(run, start, given)
        run = with_directions(dataclasses.replace(run, data=with_languages(run.data)), start)
        run = validated(run, start, given)
        data = self.data(run)
        return Prepared(
            run,
            data,
            texts=lambda: tokenizer_texts(run, data),
            extension=lambda: extension_texts(run, data, start),
            complete=lambda tokenizer: with_tags(run.data, tokenizer),
        )

    def task(
        self, run: Run, directory: "RunDirectory", tokenizer: "Tokenizer", data: Splits
    ) -> "Task":
        """Returns the task of translation."""
        from transformer_jax.recipes.tasks.translation_task import translation

        return translation(
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
        """Prints the metrics of translations of a file."""
        from transformer_jax.recipes.translation_evaluation import evaluate_translator

        return evaluate_translator(request, facts)


class RecurrentTranslation(Translation):
    """A recurrent encoder-decoder, trained on sentence pairs."""

    name = "recurrent_translation"
    title = "a recurrent translator"
    config: ClassVar[type] = RecurrentRun
    starts: ClassVar[tuple[str, ...]] = ("recurrent",)

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs."""
        return with_defaults(_RECURRENT)


def with_encoder_decoder(run: PairRun, start: "Start | None", given: "Given[PairRun]") -> PairRun:
    """Returns the run with the model of its start; an encoder gets a decoder of the same kind."""
    if start is None:
        return run
    if start.family in ENCODERS:
        log(f"{run.init_from} is {start.name}: the encoder is loaded, the decoder is new")
        plain = dataclasses.replace(start.model.head, mlm_transform=False, pooler=False)
        both = dataclasses.replace(
            start.model,
            decoder_layers=run.model.decoder_layers,
            head=plain,
            labels=LabelConfig(),
        )
        return start.adapt(run, given, both)
    log(f"{run.init_from} is {start.name}: all of it is loaded")
    run = start.adapt(run, given)
    _note_prefix(run, start)
    return run


def _note_prefix(run: Run, start: "Start") -> None:
    """Logs the task prefixes of a published model, if the run has no prefix."""
    if start.family != "encoder-decoder" or run.data.read.source_prefix:
        return
    published = start.facts.record.get("published") or {}
    tasks = (published.get("fields") or {}).get("task_specific_params")
    named = {
        str(task["prefix"]): str(name)
        for name, task in (tasks if isinstance(tasks, dict) else {}).items()
        if isinstance(task, dict) and task.get("prefix")
    }
    if named:
        log(
            f"{run.init_from}: each of its tasks has a prefix for sources: give "
            f"--data.read.source-prefix, such as "
            f"{', '.join(f'{prefix!r} ({name})' for prefix, name in named.items())}"
        )


def check_words(run: Run) -> None:
    """Refuses a tokenizer of metrics whose package is not installed."""
    if run.evaluation.tokenize not in (None, "latin"):
        check_tokenize(run.evaluation.tokenize, "evaluation.tokenize")


def tokenizer_texts(run: Run, data: Splits) -> list[str]:
    """Returns the training texts of both sides, and the prefix of sources.

    Texts of named pairs are sampled by language.
    """
    prefix = run.data.read.source_prefix
    if data.train.directions is None:
        texts = [*data.train.sources, *data.train.targets]
    else:
        texts = sampled_texts(data.train, data.languages.tokenizer_temperature)
    return [*texts, *[prefix] * bool(prefix)]


def extension_texts(run: Run, data: Splits, start: "Start | None") -> list[str]:
    """Returns the texts of languages that the start does not know, or all if there are none."""
    known = None if start is None else start.tokenizer.languages
    if known is None or data.train.directions is None:
        return tokenizer_texts(run, data)
    temperature = data.languages.tokenizer_temperature
    new = sampled_texts(data.train, temperature, without=known.languages)
    return new or tokenizer_texts(run, data)


def _recurrent(**model: Any) -> RecurrentRun:
    """Returns a run of a small recurrent translator."""
    return RecurrentRun(
        model=RecurrentConfig(**model),
        tokenizer=TokenizerConfig(vocab_size=None),
        optimizer=OptimizerConfig(
            learning_rate=2e-3, schedule=ScheduleConfig("cosine", warmup_steps=None)
        ),
        training=SmoothedTraining(epochs=None),
        loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
    )


def _small(
    width: int, layers: int, heads: int, hidden: int, dropout: float = 0.1
) -> TransformerConfig:
    # Pre-norm does not need a long warmup, for which a run of minutes has no time.
    return TransformerConfig(
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        embedding=EmbeddingConfig(dropout=dropout),
        positions=PositionConfig(max_length=512),
        attention=AttentionConfig(num_heads=heads),
        feed_forward=FeedForwardConfig(d_ff=hidden),
        norm=NormConfig(placement="pre", residual_dropout=dropout),
    )


def _convolutional(width: int, layers: int, dropout: float = 0.1) -> TransformerConfig:
    """Returns a model of gated convolutions, with one-head attention in the decoder."""
    return TransformerConfig(
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        embedding=EmbeddingConfig(dropout=dropout),
        positions=PositionConfig(kind="learned", max_length=512),
        attention=AttentionConfig(num_heads=1),
        mixer=MixerConfig("convolution", kernel_size=3),
        feed_forward=FeedForwardConfig(d_ff=0),
        norm=NormConfig(placement="pre", residual_dropout=dropout),
    )


_NAMED: dict[str, tuple[str, Callable[[], Run]]] = {
    "phrasebook": (
        "The built-in Portuguese-English corpus: minutes on a laptop.",
        lambda: Run(
            # No dropout: the corpus can have any size, so no pair is repeated often enough to be
            # memorized.
            model=_small(128, 2, 4, 512, dropout=0.0),
            data=PairData(corpus="phrasebook", read=ReadOptions(max_length=64, corpus_size=60_000)),
            tokenizer=TokenizerConfig(vocab_size=3000),
            optimizer=OptimizerConfig(
                learning_rate=3e-3, schedule=ScheduleConfig("cosine", warmup_steps=200)
            ),
            training=SmoothedTraining(
                steps=700, max_tokens=2048, num_buckets=3, label_smoothing=0.0
            ),
            loop=LoopConfig(evaluate_every=350, checkpoint_every=350),
            evaluation=EvaluationConfig(sentences=100, num_beams=1),
        ),
    ),
    "babel": (
        "Built-in artificial languages, a-b and b-c, for zero-shot a-c: minutes on a laptop.",
        lambda: Run(
            model=_small(128, 2, 4, 512),
            data=PairData(
                corpus="babel",
                pairs=("a-b=10000", "b-a=10000", "b-c=10000", "c-b=10000"),
                languages=LanguageSettings(tags="target", autoencoding=1.0),
                read=ReadOptions(max_length=64),
            ),
            tokenizer=TokenizerConfig(vocab_size=1000),
            optimizer=OptimizerConfig(
                learning_rate=3e-3, schedule=ScheduleConfig("cosine", warmup_steps=200)
            ),
            training=SmoothedTraining(
                steps=1000, max_tokens=2048, num_buckets=3, label_smoothing=0.0
            ),
            loop=LoopConfig(evaluate_every=500, checkpoint_every=500),
            evaluation=EvaluationConfig(sentences=50, num_beams=1),
        ),
    ),
    "small": (
        "Your own pairs on a CPU or a small GPU: width 256, 3 + 3 layers, up to 7.6 M parameters.",
        lambda: Run(
            model=_small(256, 3, 8, 1024),
            tokenizer=TokenizerConfig(vocab_size=None),
            optimizer=OptimizerConfig(
                learning_rate=1e-3, schedule=ScheduleConfig("inverse_sqrt", warmup_steps=None)
            ),
            training=SmoothedTraining(epochs=None),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
    "tiny": (
        "Some ten thousand pairs, such as Multi30k: width 128, 4 + 4 layers, strong dropout.",
        lambda: Run(
            # Transformer-Tiny of Wu et al. 2021 for Multi30k.
            model=_small(128, 4, 4, 256, dropout=0.3),
            tokenizer=TokenizerConfig(vocab_size=None),
            optimizer=OptimizerConfig(
                learning_rate=5e-3, schedule=ScheduleConfig("cosine", warmup_steps=None)
            ),
            training=SmoothedTraining(epochs=60, ema_decay=0.998),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
            # Chosen on validation data: models this small end their texts early.
            evaluation=EvaluationConfig(length_penalty=1.35),
        ),
    ),
    "base": (
        "Vaswani et al. 2017, base: 63 M parameters at 37,000 tokens.",
        lambda: Run(
            model=PRESETS["vaswani_base"],
            tokenizer=TokenizerConfig(vocab_size=37_000),
            training=SmoothedTraining(steps=100_000, max_tokens=25_000),
            loop=LoopConfig(keep_last=5),
        ),
    ),
    "big": (
        "Vaswani et al. 2017, big: 214 M parameters at 37,000 tokens.",
        lambda: Run(
            model=PRESETS["vaswani_big"],
            tokenizer=TokenizerConfig(vocab_size=37_000),
            training=SmoothedTraining(steps=300_000, max_tokens=25_000),
            loop=LoopConfig(keep_last=20),
        ),
    ),
    "convs2s": (
        "Gated convolutions as in Gehring et al. 2017: width 256, 4 + 4 layers.",
        lambda: Run(
            model=_convolutional(256, 4),
            tokenizer=TokenizerConfig(vocab_size=None),
            optimizer=OptimizerConfig(
                learning_rate=1e-3, schedule=ScheduleConfig("inverse_sqrt", warmup_steps=None)
            ),
            training=SmoothedTraining(epochs=None),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
}
_RECURRENT: dict[str, tuple[str, Callable[[], RecurrentRun]]] = {
    "cho": (
        "Cho et al. 2014: the decoder reads only the last state of a GRU encoder.",
        lambda: _recurrent(
            cell="gru", bidirectional=False, attention=AlignmentConfig("none", "previous")
        ),
    ),
    "sutskever": (
        "Sutskever et al. 2014: LSTMs on reversed sources, without attention.",
        lambda: _recurrent(
            num_layers=2,
            bidirectional=False,
            reverse_source=True,
            attention=AlignmentConfig("none"),
        ),
    ),
    "bahdanau": (
        "Bahdanau et al. 2015: bidirectional GRUs, additive attention of the previous state.",
        lambda: _recurrent(cell="gru", attention=AlignmentConfig("concat", "previous")),
    ),
    "luong": (
        "Luong et al. 2015: LSTMs, attention of the current state (general), input feeding.",
        lambda: _recurrent(attention=AlignmentConfig("general", input_feeding=True)),
    ),
}
