"""Fine-tuning of an encoder or a decoder on labeled examples: ``finetune classify``."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from transformer_jax.core.config_fields import Count, Flag, NotNegative, Range
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.labeled import (
    LabeledData,
    LabeledFormat,
    LabeledSplits,
    Questions,
    Tagged,
    in_scheme_of,
    label_names,
    open_labeled,
    read_labeled,
)
from transformer_jax.data.labeled_files import LabeledTask
from transformer_jax.data.tag_schemes import scheme_of
from transformer_jax.inference.facts import ENCODERS, FINE_TUNED
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.presets import bert
from transformer_jax.recipes.publishing import publication_of, with_heads
from transformer_jax.recipes.read_flags import RowFlags, with_read_flags
from transformer_jax.recipes.recipe import Named, Prepared, Recipe, StoredKind
from transformer_jax.recipes.settings import (
    Adapted,
    StartConfig,
    TokenBatches,
    TokenizerConfig,
    Trained,
)
from transformer_jax.recipes.sizing import with_defaults
from transformer_jax.recipes.start_labels import as_in_start
from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig

if TYPE_CHECKING:
    from flax import nnx

    from transformer_jax.data.labeled import Labeled
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.plan_inputs import BatchShapes, PlanInputs
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = ["ExampleFlags", "ExampleTokens", "FinetuneRun", "Finetuning", "TaskConfig", "labels_of"]

_LABELS = 2  # for plans, which read no data; the number hardly matters


@dataclasses.dataclass(frozen=True)
class TaskConfig(StartConfig, group="task"):
    """The task of labeled examples, and the start."""

    kind: LabeledTask = "classify"  # kind of labels
    max_length: Annotated[int, Range(8)] = 128  # maximum tokens of an example, with [CLS] and [SEP]
    doc_stride: Count = 64  # qa: overlap of windows over a long context, in tokens
    labels: tuple[str, ...] = ()  # names of the labels, in order; read from the training file
    # For decoders: weight of the language-modelling loss, added to the loss of the task; None is
    # 0.5 (Radford et al. 2018), or 0 if the output layer is not the embedding table.
    lm_loss_weight: NotNegative | None = None

    prefix: ClassVar[str] = "task."
    parts: ClassVar[tuple[str, ...]] = ("encoder", "decoder")


@dataclasses.dataclass(frozen=True)
class ExampleTokens(TokenBatches):
    """Training settings: duration, tokens per batch, seed."""

    epochs: Count | None = 3  # passes over the examples
    max_tokens: Count = 1024  # maximum number of tokens per batch, with padding, over all devices
    # Weights of classes in the training loss: balanced, or CLASS=WEIGHT for some.
    class_weights: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class FinetuneRun(Adapted, Trained):
    """One fine-tuning run of an encoder or a decoder on labeled examples."""

    task: TaskConfig = TaskConfig()
    model: TransformerConfig = bert(128, 2, vocab_size=8000, max_length=512)
    data: LabeledData = LabeledData()
    tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece")
    training: ExampleTokens = ExampleTokens()

    @property
    def length_limit(self) -> tuple[str, int]:
        """Returns the maximum length of an example."""
        return "task.max_length", self.task.max_length

    def without_derived(self) -> "FinetuneRun":
        """Returns the run without labels, which come from the training file."""
        return dataclasses.replace(self, task=dataclasses.replace(self.task, labels=()))


@dataclasses.dataclass(frozen=True)
class ExampleFlags(RowFlags):
    """Flags for a file of labeled texts."""

    data: Annotated[str | None, Flag(also=("data.test",))] = None
    """File of examples; None is the test (or else validation) data of the run."""
    text: Annotated[str | None, Flag("data.read.text")] = None
    """Column or key of the first text in --data; None is that of the training file."""
    text_pair: Annotated[str | None, Flag("data.read.text-pair")] = None
    """Column or key of the second text or the positive; None is that of the training file."""
    label: Annotated[str | None, Flag("data.read.label")] = None
    """Column or key of the label or score; None is that of the training file."""
    header: Annotated[bool | None, Flag("data.read.header")] = None
    """Names of columns in the first line of --data; None as in training."""
    format: Annotated[LabeledFormat | None, Flag("data.read.format")] = None
    """Format of --data; auto is by its extension, None as in training."""

    def check_columns(self, *more: str) -> None:
        """Refuses flags of the file without the file.

        Args:
            *more: Names of further flags.

        Raises:
            ConfigError: One is given without ``--data``.
        """
        for name in ("text", "text_pair", "label", "header", "format", *more):
            if getattr(self, name) is not None and self.data is None:
                raise ConfigError(f"--data.read.{name.replace('_', '-')}: give --data too")


@dataclasses.dataclass(frozen=True)
class EvaluateTask(ExampleFlags):
    """Print the metrics of a task on labeled examples."""

    tag: Annotated[str | None, Flag("data.read.tag")] = None
    """Column or key of the tags; None is that of the training file."""
    worst: Count | None = None
    """Also print so many examples with the highest loss, the worst first."""


class Finetuning(Recipe[FinetuneRun, LabeledSplits]):
    """An encoder or a decoder with a head, trained on labeled examples."""

    name = "finetuning"
    title = "a fine-tuned model"
    config = FinetuneRun
    family = "encoder-task"
    starts = (*ENCODERS, "decoder", "decoder-task")
    evaluation = EvaluateTask
    has_plan = True

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs."""
        return with_defaults(_NAMED)

    def metrics_of(self, run: FinetuneRun) -> tuple[str, ...]:
        """Returns the metrics of the task; F1 of entities needs tags of entities."""
        from transformer_jax.recipes.tasks.predictions import MEASURES

        names = MEASURES[run.task.kind]
        names += ("entity_f1",) if run.task.kind == "tag" else ()
        return tuple(f"valid_{name}" for name in names)

    def data(self, run: FinetuneRun) -> LabeledSplits:
        """Returns the examples."""
        return open_labeled(run.data, run.task.kind)

    def prepare(
        self, run: FinetuneRun, start: "Start | None", given: "Given[FinetuneRun]"
    ) -> Prepared[FinetuneRun, LabeledSplits]:
        """Returns a run with the labels of its examples, which must match the start's head.

        A run that starts from a decoder has the decoder's special tokens and loss.
        """
        from transformer_jax.data.tokenizer import BERT_SPECIAL
        from transformer_jax.recipes.checks import validated

        if start is not None:
            run = start.adapt(run, given, _model_of(start, run.task.kind))
        if run.task.labels:
            raise ConfigError("task.labels are read from the training file: leave them out")
        _check_second(run)
        run = _within_start(run, start, given)
        if start is not None and start.model.decoder_layers:
            run = _for_decoder(run, start)
        else:
            _check_encoder(run)
        run = validated(run, start, given)
        data = self.data(run)
        run = _with_scheme(run, data)
        labels = labels_of(run, data, start)
        run = dataclasses.replace(run, task=dataclasses.replace(run.task, labels=labels))
        return Prepared(run, data, lambda: _all_texts(data.train), special=BERT_SPECIAL)

    def task(
        self,
        run: FinetuneRun,
        directory: "RunDirectory",
        tokenizer: "Tokenizer",
        data: LabeledSplits,
    ) -> "Task":
        """Returns the task of labels."""
        from transformer_jax.recipes.tasks.labeled import LabeledLoss, labeled, with_loss

        settings = run.task
        task = labeled(
            data,
            run.model,
            tokenizer,
            kind=settings.kind,
            labels=settings.labels,
            length=settings.max_length,
            stride=settings.doc_stride,
            batching=run.training.batching,
        )
        loss = LabeledLoss(run.training.class_weights, settings.lm_loss_weight or 0.0)
        return with_loss(task, loss, settings.kind, settings.labels, data.train)

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints the metrics on a labeled file, or on the data of the run."""
        from transformer_jax.inference.base import truncated
        from transformer_jax.inference.encoders import check_task, task_runner
        from transformer_jax.inference.pretrained import Pretrained
        from transformer_jax.recipes.driver import settings_of
        from transformer_jax.recipes.tasks.labeled import log_texts
        from transformer_jax.recipes.tasks.scores import predict, print_predictions

        run = with_read_flags(settings_of(facts), request)
        kind, labels = run.task.kind, run.task.labels
        request.check_columns("tag")
        if request.data is not None:
            parts = {"data": read_labeled(request.data, kind, run.data.read, "--data")}
        else:
            splits = self.data(run)
            parts = splits.tests or ({} if splits.valid is None else {"valid": splits.valid})
        if not parts:
            raise ConfigError(f"{request.run}: no test or validation examples: give --data")
        opened = Pretrained.load(facts, *FINE_TUNED)
        parts = {name: in_scheme_of(part, labels) for name, part in parts.items()}
        for part in parts.values():
            log_texts(part, opened.tokenizer)
        check_task(facts, kind)
        runner = task_runner(opened)
        predicted = {name: predict(runner, kind, labels, part) for name, part in parts.items()}
        if cut := runner.counts["cut"]:
            log(truncated(cut))
        print_predictions(predicted, request.output, request.worst)
        return 0

    def stored(self, fields: Mapping[str, Any]) -> StoredKind:
        """Returns what is known of a stored run, of an encoder or a decoder."""
        family = "encoder-task" if fields["model"].get("encoder_layers") else "decoder-task"
        return super().stored(fields)._replace(family=family)

    def plan_inputs(self, run: FinetuneRun, batch: "BatchShapes") -> "PlanInputs":
        """Returns what training and evaluation are made of."""
        import jax.numpy as jnp

        from transformer_jax.recipes.freezing import partition_of
        from transformer_jax.recipes.plan_inputs import PlanInputs, fresh_model
        from transformer_jax.recipes.tasks.labeled import OBJECTIVES

        array, length, kind = batch.array, batch.length, run.task.kind
        labels = {"regress": array(dtype=jnp.float32), "tag": array(length), "qa": array(2)}
        shapes = {"tokens": array(length), "types": array(length), "lengths": array()}
        shapes["labels"] = labels.get(kind, array())
        if kind == "qa":
            shapes["allowed"] = array(length, dtype=jnp.bool_)
        number = len(run.task.labels) or _LABELS
        model = fresh_model("encoder-task", run.model, task=kind, labels=number)
        objective, partition = OBJECTIVES[kind](), partition_of(run.task.freeze)
        return PlanInputs(model, objective, objective, shapes, partition, scored=0.0)

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from texts to results of the task."""
        from transformer_jax.inference import texts
        from transformer_jax.inference.pretrained import Pretrained

        kinds: dict[str, Any] = {
            "regress": texts.RegressionPredictor,
            "tag": texts.TaggingPredictor,
            "replaced": texts.TaggingPredictor,
            "qa": texts.QuestionAnsweringPredictor,
        }
        kind = kinds.get(facts.head.kind, texts.ClassificationPredictor)
        return kind(Pretrained.load(facts))

    def model(self, config: Any, fields: Mapping[str, Any], rngs: "nnx.Rngs") -> Any:
        """Returns a model with the head of its task."""
        from transformer_jax.models.build import make_model

        task, kind = fields["task"], self.stored(fields).family
        labels = len(task.get("labels", []))
        return make_model(kind, config, task=task["kind"], labels=labels, rngs=rngs)  # type: ignore[arg-type]


def _model_of(start: "Start", kind: LabeledTask) -> TransformerConfig:
    """Returns the model of the start with the head of the task alone."""
    model: TransformerConfig = start.model
    if not model.decoder_layers:
        return with_heads(start, task=kind)
    head = dataclasses.replace(model.head, tie_word_embeddings=True, bias=False)
    return dataclasses.replace(model, head=head)


def _check_encoder(run: FinetuneRun) -> None:
    """Refuses settings of decoders."""
    if run.model.decoder_layers:
        raise ConfigError(
            f"model.decoder_layers is {run.model.decoder_layers}: a decoder that classifies "
            f"starts from a language model: give --init-from, or leave the decoder out"
        )
    if run.task.lm_loss_weight is not None:
        raise ConfigError(
            "task.lm_loss_weight is for decoders, but this is an encoder: leave it out"
        )


def _with_scheme(run: FinetuneRun, data: LabeledSplits) -> FinetuneRun:
    """Returns the run with the scheme of its training tags, to which later files are converted."""
    scheme = scheme_of(data.train.tags) if isinstance(data.train, Tagged) else None
    if scheme is None or run.data.read.tag_scheme != "given":
        return run
    read = dataclasses.replace(run.data.read, tag_scheme=scheme)
    return dataclasses.replace(run, data=dataclasses.replace(run.data, read=read))


def _check_second(run: FinetuneRun) -> None:
    """Refuses the column of a second text for a task that reads one text."""
    read, kind = run.data.read, run.task.kind
    if kind in ("classify", "regress") and read.text_pair != type(read).text_pair and not read.pair:
        remedy = "use the task pair" if kind == "classify" else "give data.read.pair too"
        raise ConfigError(
            f"data.read.text_pair is {read.text_pair}: {kind} reads one text: {remedy}"
        )


def _within_start(
    run: FinetuneRun, start: "Start | None", given: "Given[FinetuneRun]"
) -> FinetuneRun:
    """Returns the run with examples no longer than its start reads texts, unless a length is given.

    A published model may say that it reads fewer tokens than it has positions.
    """
    if start is None or "task.max_length" in given or publication_of(start) is None:
        return run
    from transformer_jax.inference.encoders import read_length

    most = read_length(start.facts)
    if run.task.max_length <= most or most >= run.model.positions.max_length:
        return run
    log(f"task.max_length {most}: the longest text that {run.task.init_from} reads")
    return dataclasses.replace(run, task=dataclasses.replace(run.task, max_length=most))


def _for_decoder(run: FinetuneRun, start: "Start") -> FinetuneRun:
    """Returns the run with the special tokens and the loss of a decoder (Radford et al. 2018)."""
    task = run.task
    if task.kind not in ("classify", "pair", "regress"):
        raise ConfigError(
            f"task.kind is {task.kind}: a decoder sees no words to the right: start from an encoder"
        )
    tied = start.model.head.tie_word_embeddings and not start.model.head.bias
    weight = task.lm_loss_weight
    if weight and not tied:
        raise ConfigError(
            f"task.lm_loss_weight is {weight}: a classifier has no output layer, and the output "
            f"layer of {task.init_from} is not its embedding table: leave it out"
        )
    if weight is None:
        # A classifier has no output layer to check; its own run checked it.
        before = start.facts.task_fields if start.family in FINE_TUNED else {}
        weight = before.get("lm_loss_weight", 0.5) if tied else 0.0
    from transformer_jax.data.examples import DECODER_TOKENS

    added = dict.fromkeys((*run.tokenizer.add_special_tokens, *DECODER_TOKENS))
    return dataclasses.replace(
        run,
        task=dataclasses.replace(task, lm_loss_weight=weight),
        tokenizer=dataclasses.replace(run.tokenizer, add_special_tokens=tuple(added)),
    )


def labels_of(run: FinetuneRun, data: LabeledSplits, start: "Start | None") -> tuple[str, ...]:
    """Returns the labels of examples, in the order of the start's head.

    Raises:
        ConfigError: The head has another number of outputs.
    """
    labels = label_names(data, run.task.kind)
    if isinstance(data.train, Questions):
        labels = ("answer",) if all(data.train.answers) else ("answer", "none")

    def outputs(kind: str, labels: int) -> int:
        return {"regress": 1, "qa": 2}.get(kind, labels)

    if start is None or start.family not in FINE_TUNED or run.task.reinit_head:
        return labels
    head = start.facts.head
    there = outputs(head.kind, len(head.labels))
    here = outputs(run.task.kind, len(labels))
    if there != here:
        raise ConfigError(
            f"task.init_from: {run.task.init_from} has a head of {plural(there, 'output')}, and "
            f"this run needs {here}: add --reinit-head"
        )
    if run.task.init_from is None or {head.kind, run.task.kind} & {"regress", "qa"}:
        return labels
    return as_in_start(run.task.init_from, head.labels, labels, "--reinit-head")


def _all_texts(part: "Labeled") -> list[str]:
    """Yields all texts of the examples, to train a tokenizer."""
    if isinstance(part, Tagged):
        return [" ".join(words) for words in part.words]
    if isinstance(part, Questions):
        return [*part.questions, *dict.fromkeys(part.contexts)]
    return [*part.texts, *(part.text_pairs or ())]


def _task(kind: LabeledTask, length: int = 128, **training: Any) -> FinetuneRun:
    return FinetuneRun(
        task=TaskConfig(kind=kind, max_length=length),
        tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=None),
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=3e-4,
            beta2=0.98,
            eps=1e-6,
            weight_decay=0.01,
            schedule=ScheduleConfig("cosine", warmup_steps=0.06),
        ),
        training=ExampleTokens(**training),
        loop=LoopConfig(evaluate_every=0, checkpoint_every=0, keep_last=1),
    )


_NAMED: dict[str, tuple[str, Callable[[], FinetuneRun]]] = {
    "classify": (
        "Text classification: sentiment, topic, acceptability.",
        lambda: _task("classify"),
    ),
    "pair": ("Sentence-pair classification: paraphrase, entailment.", lambda: _task("pair")),
    "regress": ("Regression on a text, or on two with data.read.pair: similarity.",
                lambda: _task("regress")),
    "tag": ("Token classification: part-of-speech tags, named entities.", lambda: _task("tag")),
    "qa": ("Extractive question answering: the answer span in a paragraph, or none.",
             lambda: _task("qa", length=384, max_tokens=4096)),
}  # fmt: skip
