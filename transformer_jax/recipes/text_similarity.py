"""Fine-tuning of an encoder whose vectors of texts are compared: ``finetune similarity``."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from transformer_jax.core.config_fields import Count, Flag, Positive, Range
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.text_similarities import (
    SimilarityData,
    has_scores,
    open_similarities,
    read_compared,
)
from transformer_jax.functional.pools import Pool
from transformer_jax.inference.facts import ENCODERS
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.presets import bert
from transformer_jax.recipes.finetuning import ExampleFlags
from transformer_jax.recipes.read_flags import with_read_flags
from transformer_jax.recipes.recipe import Named, Prepared, Recipe
from transformer_jax.recipes.settings import (
    Adapted,
    SharedRowBatches,
    StartConfig,
    TokenizerConfig,
    Trained,
    start_config,
)
from transformer_jax.recipes.sizing import with_defaults
from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig

if TYPE_CHECKING:
    from flax import nnx

    from transformer_jax.data.labeled import LabeledSplits, Sentences
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.inference.pretrained import Pretrained
    from transformer_jax.interop.sentence_dense import SentenceFields
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.plan_inputs import BatchShapes, PlanInputs
    from transformer_jax.recipes.start import Start
    from transformer_jax.recipes.tasks.similarity_task import (
        SentenceReader,
        SimilarityLoss,
        VectorScores,
    )
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = ["SimilarityRun", "SimilarityTraining"]

_LENGTH = 128  # tokens of a text, unless the start is a sentence encoder


@dataclasses.dataclass(frozen=True)
class SimilarityConfig(StartConfig, group="task"):
    """The loss, the form of the vectors, and the start."""

    # cosine: squared error of the cosine of pairs with scores; cosent: their order; ranking: the
    # positive of each anchor among those of the batch and hard negatives. None is cosent if the
    # training file has scores, and else ranking.
    loss: Literal["cosine", "cosent", "ranking"] | None = None
    # cosine: labels that mean a cosine of 0 and of 1; None takes labels from -1 to 1 as they are.
    label_range: tuple[float, float] | None = None
    # cosent, ranking: factor of similarities; None is 20, or 1 for dot products.
    scale: Positive | None = None
    symmetric: bool = False  # ranking: also find anchors by their positives
    # Numbers of components of vectors whose losses are added (Matryoshka): 384 192 96.
    matryoshka_dims: tuple[Count, ...] = ()
    # Pooling of the states of a text; None is that of a sentence encoder, with its linear layer, or
    # else the mean.
    pooling: Pool | None = None
    normalize: bool | None = None  # scale vectors to length 1; None is as in the start
    # Maximum number of tokens of a text, with special ones; None is that of a sentence encoder, or
    # else 128.
    max_length: Annotated[int, Range(8)] | None = None

    prefix: ClassVar[str] = "task."
    parts: ClassVar[tuple[str, ...]] = ("encoder",)


@dataclasses.dataclass(frozen=True)
class SimilarityRun(Adapted, Trained):
    """One training run of a sentence encoder."""

    task: SimilarityConfig = SimilarityConfig()
    model: TransformerConfig = bert(128, 2, vocab_size=8000, max_length=512)
    data: SimilarityData = SimilarityData()
    tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece")
    training: SharedRowBatches = SharedRowBatches()

    @property
    def length_limit(self) -> tuple[str, int]:
        """Returns the maximum length of a text."""
        return "task.max_length", self.task.max_length or _LENGTH

    @property
    def batch_tokens(self) -> int:
        """Returns the largest number of tokens of a batch of pairs."""
        return 2 * self.training.batch_size * self.length_limit[1]

    @property
    def loss(self) -> "SimilarityLoss":
        """Returns the loss, which a run that has begun knows."""
        from transformer_jax.recipes.tasks.similarity_task import SimilarityLoss

        task = self.task
        kind = task.loss or "cosent"
        return SimilarityLoss(
            kind, task.scale, task.symmetric, task.label_range, task.matryoshka_dims
        )

    def without_derived(self) -> "SimilarityRun":
        """Returns the run without a loss, which may come from the training file."""
        return dataclasses.replace(self, task=dataclasses.replace(self.task, loss=None))


@dataclasses.dataclass(frozen=True)
class EvaluateSimilarity(ExampleFlags):
    """Print correlations with scores, or retrieval of positives, and those of the start."""

    negatives: Annotated[tuple[str, ...] | None, Flag("data.read.negatives")] = None
    """Columns or keys of hard negatives; None are those of the training file."""


class SimilarityTraining(Recipe[SimilarityRun, "LabeledSplits"]):
    """An encoder of texts, trained on the similarities of its vectors."""

    name = "similarity"
    title = "a sentence encoder"
    config = SimilarityRun
    family = "encoder"
    starts = ENCODERS
    keeps_publication = True
    evaluation = EvaluateSimilarity
    has_plan = True

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs."""
        return with_defaults(_NAMED)

    def metrics_of(self, run: SimilarityRun) -> tuple[str, ...]:
        """Returns the metrics of pairs with scores, or of retrieval."""
        from transformer_jax.recipes.tasks.similarity_task import MEASURES

        return tuple(f"valid_{name}" for name in MEASURES[run.loss.task])

    def data(self, run: SimilarityRun) -> "LabeledSplits":
        """Returns the examples."""
        return open_similarities(run.data, run.loss.task)

    def check(self, run: SimilarityRun, given: "Given[SimilarityRun]") -> None:
        """Refuses settings that do not match the loss."""
        task = run.task
        for name, of in {
            "label_range": ("cosine",),
            "symmetric": ("ranking",),
            "scale": ("cosent", "ranking"),
        }.items():
            if getattr(task, name) and task.loss not in of:
                raise ConfigError(
                    f"task.{name} is for the loss {' or '.join(of)}, not {task.loss}: leave it out"
                )
        if run.training.mode == "pmap":
            raise ConfigError(
                "training.mode is pmap, but all examples of a batch are compared: use jit"
            )

    def prepare(
        self, run: SimilarityRun, start: "Start | None", given: "Given[SimilarityRun]"
    ) -> "Prepared[SimilarityRun, LabeledSplits]":
        """Returns a run with a loss that its data have, and the form of its start's vectors."""
        from transformer_jax.data.tokenizer import BERT_SPECIAL
        from transformer_jax.recipes.checks import validated
        from transformer_jax.recipes.tasks.similarity_task import check_widths, form_of

        if start is not None:
            run = start.adapt(run, given)
        else:
            log(
                "note: without --init-from the encoder begins with random weights, which need far "
                "more examples, epochs and a learning rate such as 1e-3"
            )
        run = _with_loss(run)
        sentence = _sentence(run, start)
        run = _with_length(run, start, sentence)
        run = validated(run, start, given)
        check_widths(run.task.matryoshka_dims, form_of(sentence), run.model.d_model)
        data = self.data(run)
        _check_labels(run, data)
        length = {"length": run.length_limit[1]}
        return Prepared(
            run,
            data,
            lambda: [*data.train.texts, *(data.train.text_pairs or [])],
            special=BERT_SPECIAL,
            records={"sentence": {**sentence, **length}, "masking": None},
        )

    def task(
        self,
        run: SimilarityRun,
        directory: "RunDirectory",
        tokenizer: "Tokenizer",
        data: "LabeledSplits",
    ) -> "Task":
        """Returns the task of texts that are compared, which ends with scores of the start."""
        from transformer_jax.recipes.checks import row_parts
        from transformer_jax.recipes.tasks.similarity_task import ExampleBatching, similarity

        reader = _reader(directory, tokenizer)
        training = run.training
        task = similarity(
            data,
            run.model,
            tokenizer,
            loss=run.loss,
            sentence={**reader.sentence, "length": reader.length},
            batching=ExampleBatching(training.batch_size, training.seed, row_parts(run)),
            template=reader.template,
            before=functools.partial(_start_scores, run, reader),
        )
        initial = _with_dense(run, tokenizer, directory)
        return dataclasses.replace(task, initial=initial)

    def evaluate(self, request: Any, facts: "Facts") -> int:
        """Prints the metrics on a file, or on the data of the run, and those of its start."""
        from transformer_jax.inference.base import truncated
        from transformer_jax.inference.pretrained import Pretrained
        from transformer_jax.recipes.driver import settings_of
        from transformer_jax.recipes.tasks.labeled import log_texts
        from transformer_jax.recipes.tasks.predictions import write_predictions
        from transformer_jax.recipes.tasks.scores import table, write_scores

        run = with_read_flags(settings_of(facts), request)
        request.check_columns("negatives")
        kind, output = run.loss.task, request.output
        if request.data is not None:
            parts = {"data": read_compared(request.data, kind, run.data.read, "--data")}
        else:
            splits = self.data(run)
            parts = splits.tests or ({} if splits.valid is None else {"valid": splits.valid})
        if not parts:
            raise ConfigError(f"{request.run}: no test or validation examples: give --data")
        as_table = output is not None and output.suffix.lower() == ".csv"
        if as_table and kind == "ranking":
            raise ConfigError(f"--output {output}: retrieval has no predictions: name a .json file")
        reader = _reader(facts.reader, facts.tokenizer)
        measured = _opened_scores(reader, Pretrained.load(facts))
        for part in parts.values():
            log_texts(part, reader.tokenizer)
        scores = measured(parts, run.task.matryoshka_dims)
        if measured.cut:
            log(truncated(measured.cut))
        scores = _start_scores(run, reader, parts) | scores
        print(table(scores), flush=True)
        if as_table:
            write_predictions(output, {name: measured.predict(one) for name, one in parts.items()})
        else:
            write_scores(output, scores)
        return 0

    def plan_inputs(self, run: SimilarityRun, batch: "BatchShapes") -> "PlanInputs":
        """Returns what training and evaluation are made of."""
        import jax.numpy as jnp
        from flax import nnx

        from transformer_jax.models.sentence_encoder import SentenceEncoder
        from transformer_jax.recipes.freezing import partition_of
        from transformer_jax.recipes.plan_inputs import PlanInputs
        from transformer_jax.recipes.tasks.similarity_task import form_of
        from transformer_jax.training.objectives import similarity

        array, length, loss = batch.array, batch.length, run.loss
        shapes = {name: array(length) for name in ("tokens", "segments", "positions")}
        shapes |= {name: array(2) for name in ("starts", "lengths")}
        if loss.kind == "ranking":
            shapes |= {"texts": array(1, 2), "partners": array(1, 2)}
        else:
            shapes["labels"] = array(1, dtype=jnp.float32)
        objective = similarity(loss.kind, symmetric=loss.symmetric, widths=loss.widths)
        form = form_of(_sentence(run, None))
        make = lambda: SentenceEncoder(run.model, form, rngs=nnx.Rngs(0))
        partition = partition_of(run.task.freeze)
        return PlanInputs(make, objective, objective, shapes, partition, scored=0.0)

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from texts to vectors."""
        from transformer_jax.inference.pretrained import Pretrained
        from transformer_jax.inference.texts import EncoderPredictor

        return EncoderPredictor(Pretrained.load(facts))

    def model(self, config: Any, fields: Mapping[str, Any], rngs: "nnx.Rngs") -> Any:
        """Returns an encoder with the form of its vectors."""
        from transformer_jax.models.sentence_encoder import SentenceEncoder
        from transformer_jax.recipes.tasks.similarity_task import form_of

        return SentenceEncoder(config, form_of(fields["sentence"]), rngs=rngs)


def _with_loss(run: SimilarityRun) -> SimilarityRun:
    """Returns the run with a loss that its data have."""
    if run.task.loss is not None:
        return run
    scored = has_scores(run.data)
    loss: Literal["cosent", "ranking"] = "cosent" if scored else "ranking"
    why = "has scores of pairs" if scored else "has no scores"
    log(f"task.loss is {loss}: {run.data.train} {why}")
    return dataclasses.replace(run, task=dataclasses.replace(run.task, loss=loss))


def _check_labels(run: SimilarityRun, data: "LabeledSplits") -> None:
    """Refuses labels that are no cosines, before anything is written."""
    from transformer_jax.recipes.tasks.similarity_task import cosine_labels

    if run.task.loss == "cosine":
        for part in filter(None, (data.train, data.valid)):
            cosine_labels(part, run.task.label_range)


def _sentence(run: SimilarityRun, start: "Start | None") -> Any:
    """Returns :class:`.SentenceFields`: those of the start, unless settings say otherwise."""
    task = run.task
    there: Any = {} if start is None else dict(start.facts.sentence)
    if task.pooling == "none":
        raise ConfigError("task.pooling is none: choose mean or cls, for one vector per text")
    if start is not None and task.pooling is None:
        from transformer_jax.inference.encoders import pools_of

        pools_of(start.facts)  # refuses those that are not supported
    elif task.pooling is not None:
        for name in ("dense", "refused", "normalize"):
            there.pop(name, None)
        there["pool"] = task.pooling
    if "dense" in there and start is not None:
        there["dense"] = _described_dense(start, there)
    if task.normalize is not None:
        there["normalize"] = task.normalize
    if there.get("similarity", "cosine") not in ("cosine", "dot"):
        raise ConfigError(
            f"{task.init_from}: the similarity {there['similarity']!r} is not supported"
        )
    return {"pool": "mean", **there}


def _described_dense(start: "Start", sentence: "SentenceFields") -> dict[str, Any]:
    """Returns the record of the dense layer of a start, with its sizes."""
    record: dict[str, Any] = dict(sentence["dense"])
    record.pop("sha256", None)  # of weights that will be trained
    if start.facts.recipe != SimilarityTraining.name:
        from transformer_jax.interop.sentence_dense import read_dense

        pools = sentence.get("pool", "mean").split(" and ")
        dense = read_dense(
            start.facts.reader.path, sentence["dense"], start.model.d_model * len(pools)
        )
        record["in_features"], record["out_features"] = dense.kernel.shape
        record["bias"] = dense.bias is not None
    return record


def _with_length(
    run: SimilarityRun, start: "Start | None", sentence: "SentenceFields"
) -> SimilarityRun:
    """Returns the run with the length of texts of a sentence encoder, unless one is given."""
    if run.task.max_length is not None:
        return run
    length = _LENGTH
    if start is not None:
        from transformer_jax.inference.encoders import read_length

        most = read_length(start.facts)
        length = min(most, sentence.get("length", _LENGTH))
        reads = plural(most, "token")
        log(f"task.max_length is {length}: {run.task.init_from} reads up to {reads}")
    task = dataclasses.replace(run.task, max_length=length)
    return dataclasses.replace(run, task=task)


def _reader(directory: "RunDirectory", tokenizer: "Tokenizer") -> "SentenceReader":
    """Returns how the model of a run reads texts, in training as in use."""
    from transformer_jax.inference.encoders import read_length, template_of
    from transformer_jax.inference.pretrained import facts_of
    from transformer_jax.recipes.tasks.similarity_task import SentenceReader

    facts = facts_of(directory)
    sentence: Any = facts.sentence
    length = min(read_length(facts), sentence["length"])
    return SentenceReader(tokenizer, length, sentence, template_of(facts, tokenizer))


def _with_dense(
    run: SimilarityRun, tokenizer: "Tokenizer", directory: "RunDirectory"
) -> Callable[[Any], Any] | None:
    """Returns the function to the parameters of step 0, with the dense layer of a folder."""
    from transformer_jax.recipes.freezing import initial_of

    usual = initial_of(run, SimilarityTraining.starts, tokenizer, directory.allow_changed)
    sentence: Any = directory.read_config()["sentence"]
    if usual is None or "dense" not in sentence:
        return usual

    def initial(params: Any) -> Any:
        from transformer_jax.inference.pretrained import read_facts
        from transformer_jax.interop.sentence_dense import read_dense

        params, facts = usual(params), read_facts(str(run.task.init_from))
        if facts.recipe == SimilarityTraining.name:
            return params
        dense = read_dense(
            facts.reader.path, facts.sentence["dense"], len(params["dense"]["kernel"])
        )
        log(f"loaded the linear layer after pooling from {run.task.init_from}")
        layer = {"kernel": dense.kernel} | ({} if dense.bias is None else {"bias": dense.bias})
        return params | {"dense": layer}

    return initial


def _start_scores(
    run: SimilarityRun, reader: "SentenceReader", parts: Mapping[str, "Sentences"]
) -> dict[str, dict[str, float]]:
    """Returns the scores of the start of a run, read as by the run; empty if it is gone."""
    from transformer_jax.core.errors import UserError
    from transformer_jax.inference.pretrained import Pretrained, read_facts

    path = start_config(run).init_from
    if path is None:
        return {}
    try:
        opened = Pretrained.load(read_facts(path))
    except UserError as error:
        log(f"no scores before training: {error}")
        return {}
    scores = _opened_scores(dataclasses.replace(reader, tokenizer=opened.tokenizer), opened)
    return scores({f"{name}, before training": part for name, part in parts.items()})


def _opened_scores(reader: "SentenceReader", opened: "Pretrained") -> "VectorScores":
    """Returns the metrics of an opened encoder, with the form of vectors of the reader."""
    from transformer_jax.inference.encoding.vectors import Embedder
    from transformer_jax.interop.sentence_dense import normalized
    from transformer_jax.recipes.tasks.similarity_task import VectorScores

    embedder = Embedder(
        opened.model,
        opened.tokenizer,
        length=reader.length,
        template=reader.template,
        prepare=reader.prepare,
    )
    if "dense" in reader.sentence:
        embedder.dense = opened.sentence_layer
    elif reader.sentence.get("normalize"):
        embedder.dense = normalized
    return VectorScores.of(reader, embedder)


_NAMED: dict[str, tuple[str, Callable[[], SimilarityRun]]] = {
    "similarity": (
        "Vectors of texts: pairs with scores, or pairs that belong together.",
        lambda: SimilarityRun(
            tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=None),
            optimizer=OptimizerConfig(
                name="adamw",
                learning_rate=2e-5,
                beta2=0.999,
                eps=1e-8,
                schedule=ScheduleConfig("linear", warmup_steps=0.1),
            ),
            loop=LoopConfig(evaluate_every=0, checkpoint_every=0, keep_last=1),
        ),
    ),
}
