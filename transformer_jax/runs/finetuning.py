"""An encoder's run on labeled examples: what ``experiments.encoder_only finetune`` does."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_jax.data.examples import (
    EncodedExamples,
    collate,
    encode_questions,
    encode_sentences,
    encode_tagged,
    locate_answers,
)
from transformer_jax.data.labeled import (
    Labeled,
    LabeledSplits,
    Questions,
    Sentences,
    Tagged,
    label_names,
    open_labeled,
)
from transformer_jax.data.plan import BatchPlan, BucketPlan
from transformer_jax.data.tokenizer import BERT_SPECIAL, Tokenizer
from transformer_jax.encoding.predictor import Predictor
from transformer_jax.errors import ConfigError, plural
from transformer_jax.models.heads import SequenceClassifier, TokenClassifier
from transformer_jax.parallel.mesh import is_main_process, local_rows, shard_batch
from transformer_jax.runs import checks, job
from transformer_jax.runs.encoder_settings import FinetuneRun, read
from transformer_jax.runs.initial import Initial, starting_point
from transformer_jax.runs.job import say
from transformer_jax.runs.task_scores import MEASURES, measure, table
from transformer_jax.training import encoder_objectives as objectives
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.state import TrainState, split
from transformer_jax.training.stored import load_params

__all__ = ["TaskJob", "begin", "open_run", "train"]


def begin(run: FinetuneRun, named: FinetuneRun) -> tuple[FinetuneRun, RunDirectory, LabeledSplits]:
    """A new run directory; the run as it will be done, its directory, and its examples."""
    checks.check_best(run, ("valid_loss", *(f"valid_{name}" for name in MEASURES[run.task.kind])))
    checks.check_steps(run)
    if run.task.labels:
        raise ConfigError("task.labels are told from the training file: leave them out")
    start = None if run.task.init is None else starting_point(run.task.init)
    if start is not None:
        run = _from(run, named, start)
    checks.check_length("task.length", run.task.length, run.model)
    _check_layers(run)
    splits = open_run(run)
    labels = label_names(splits, run.task.kind)
    if isinstance(splits.train, Questions):
        labels = ("answer",) if all(splits.train.answers) else ("answer", "none")

    def learn() -> Tokenizer:
        if start is not None:
            return start.directory.load_tokenizer()
        return job.learn_tokenizer(run.tokenizer, _texts(splits.train), BERT_SPECIAL)

    def settle(run: FinetuneRun, tokenizer: Tokenizer) -> FinetuneRun:
        run = checks.with_rows(run)
        task = dataclasses.replace(run.task, labels=labels)
        settled: FinetuneRun = dataclasses.replace(run, task=task)
        return settled if start is not None else checks.with_vocab(settled, tokenizer)

    given = start is None and run.model.vocab_size != named.model.vocab_size
    directory = job.begin(run, learn, settle, vocab_given=given)
    return read(directory), directory, splits  # type: ignore[return-value]


def open_run(run: FinetuneRun) -> LabeledSplits:
    """The examples of a run."""
    return open_labeled(run.data, run.task.kind)


def _from(run: FinetuneRun, named: FinetuneRun, start: Initial) -> FinetuneRun:
    """The run with the model that it starts from, but for settings that were given."""
    if run.tokenizer != named.tokenizer:
        raise ConfigError(
            "tokenizer: a run with task.init reads text as that run does: leave it out"
        )
    model = start.changed(run.model, named.model)
    data = dataclasses.replace(
        run.data, read=dataclasses.replace(run.data.read, lowercase=start.lowercase)
    )
    if run.data.read.lowercase and not start.lowercase:
        raise ConfigError(
            f"data.read.lowercase: {run.task.init} was trained on text with capitals: leave it out"
        )
    return dataclasses.replace(run, model=model, data=data)


def _check_layers(run: FinetuneRun) -> None:
    layers, freeze = run.model.encoder_layers, run.task.freeze
    if run.task.reinit_last > layers:
        raise ConfigError(
            f"task.reinit_last is {run.task.reinit_last}: there are {plural(layers, 'layer')}"
        )
    if freeze.isdecimal() and int(freeze) > layers:
        raise ConfigError(f"task.freeze is {freeze}: there are {plural(layers, 'layer')}")
    kept = layers if freeze == "encoder" else int(freeze) if freeze.isdecimal() else 0
    if kept + run.task.reinit_last > layers:
        raise ConfigError(
            f"task.freeze is {freeze} and task.reinit_last {run.task.reinit_last}: layers drawn "
            f"anew would never be trained"
        )


def frozen(freeze: str) -> Callable[[str], bool] | None:
    """Which parameters, by path, a run leaves as they are; None is none of them.

    Example:
        >>> stays = frozen("1")
        >>> [stays(f"encoder/blocks/{i}/feed_forward/up/kernel") for i in (0, 1)]
        [True, False]
    """
    if freeze == "none":
        return None
    if freeze == "encoder":
        return lambda name: not name.startswith("labels/")
    layers = 0 if freeze == "embeddings" else int(freeze)
    entrance = ("positions", "segments", "embedding_norm", "projection")
    tables = ("embedding/", *(f"encoder/{part}/" for part in entrance))

    def stays(name: str) -> bool:
        parts = name.split("/")
        if parts[:2] == ["encoder", "blocks"]:
            if not parts[2].isdecimal():
                raise ConfigError(
                    "task.freeze: the layers of a scanned stack cannot be frozen one by one: set "
                    "model.compute.scan_layers to False"
                )
            return int(parts[2]) < layers
        return name.startswith(tables)

    return stays


def _texts(part: Labeled) -> list[str]:
    """All text of the examples, to learn a tokenizer from."""
    if isinstance(part, Tagged):
        return [" ".join(words) for words in part.words]
    if isinstance(part, Questions):
        return [*part.questions, *dict.fromkeys(part.contexts)]
    return [*part.texts, *(part.text_pairs or ())]


@dataclasses.dataclass(frozen=True)
class _Encoded:
    """Examples as ids, with what is to be told of each, or of each of their tokens."""

    examples: EncodedExamples
    labels: np.ndarray | None = None  # [count ...]
    tags: np.ndarray | None = None  # of the tokens of the store, -1 where there is nothing to tell
    allowed: np.ndarray | None = None  # of these, where answers may be

    @property
    def told(self) -> np.ndarray:
        """The labels or the tags."""
        told = self.labels if self.tags is None else self.tags
        assert told is not None
        return told

    def batch(self, plan: BatchPlan, pad: int, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of some rows of a batch; empty rows have no labels."""
        indices = plan.indices[rows]
        made = collate(self.examples, indices, plan.S, pad)
        inside = np.arange(plan.S) < made["lengths"][:, None]
        begins = self.examples.store.offsets[np.maximum(indices, 0)]
        places = (begins[:, None] + np.arange(plan.S))[inside]
        if self.labels is not None:
            nothing = np.nan if self.labels.dtype.kind == "f" else -1
            labels = self.labels[np.maximum(indices, 0)]
            labels[indices < 0] = nothing
            made["labels"] = labels
        if self.tags is not None:
            made["labels"] = np.full(inside.shape, -1, np.int32)
            made["labels"][inside] = self.tags[places]
        if self.allowed is not None:
            made["allowed"] = np.zeros(inside.shape, bool)
            made["allowed"][inside] = self.allowed[places]
            made["allowed"][:, 0] = True
        return made


class TaskJob(job.Job):
    """The parts of a run on labeled examples."""

    def __init__(self, run: FinetuneRun, directory: RunDirectory, splits: LabeledSplits):
        self.splits, self.kind = splits, run.task.kind
        labels = {"regress": 1, "span": 2}.get(self.kind, len(run.task.labels))
        token = self.kind in ("tag", "span")
        self.model = functools.partial(
            TokenClassifier if token else SequenceClassifier, labels=labels
        )
        self.frozen = frozen(run.task.freeze)
        super().__init__(run, directory)

    def make_plan(self) -> BucketPlan:
        """Examples of like length, in a few shapes."""
        self.encoded = self.encode(self.splits.train)
        return self.plan_for(self.encoded)

    def plan_for(self, encoded: _Encoded, shuffle: bool = True) -> BucketPlan:
        """Batches of examples."""
        training, lengths = self.run.training, encoded.examples.store.lengths
        return BucketPlan(
            lengths,
            lengths,
            tokens=training.tokens,
            buckets=training.buckets,
            rows_multiple=training.rows_multiple,
            seed=training.seed,
            shuffle=shuffle,
        )

    def encode(self, part: Labeled) -> _Encoded:
        """Examples and their labels as numbers, and a line about them."""
        task, tokenizer = self.run.task, self.tokenizer
        numbers = {name: i for i, name in enumerate(task.labels)}
        if isinstance(part, Sentences):
            examples, cut = encode_sentences(part.texts, part.text_pairs, tokenizer, task.length)
            say(
                f"{part.name}: {plural(len(part), 'example')}"
                + (f", {cut:,} truncated" if cut else "")
            )
            if self.kind == "regress":
                return _Encoded(examples, np.array([float(x) for x in part.labels], np.float32))
            return _Encoded(examples, np.array([numbers[x] for x in part.labels], np.int32))
        if isinstance(part, Tagged):
            tagged = encode_tagged(part.words, tokenizer, task.length)
            store = tagged.examples.store
            labels = np.full(len(store.ids), -1, np.int32)
            rows = np.repeat(np.arange(len(tagged)), tagged.word_starts.lengths)
            tags = np.array([numbers[tag] for tags in part.tags for tag in tags], np.int32)
            labels[store.offsets[rows] + tagged.word_starts.ids] = tags
            say(f"{part.name}: {plural(len(part), 'sentence')}, {plural(len(tags), 'word')}")
            return _Encoded(tagged.examples, tags=labels)
        spans = encode_questions(part.questions, part.contexts, tokenizer, task.length, task.stride)
        found = locate_answers(spans, part.answers).astype(np.int32)
        say(f"{part.name}: {plural(len(part), 'question')}, {plural(len(spans), 'window')}")
        return _Encoded(spans.examples, found, allowed=spans.spans[:, 0] >= 0)

    def tokens(self) -> list[np.ndarray]:
        """The ids of the training examples, and their labels."""
        return [self.encoded.examples.store.ids, self.encoded.told]

    def objective(self, smoothing: float) -> Any:
        """The loss of the task."""
        del smoothing
        return {
            "classify": objectives.text_classes,
            "pair": objectives.text_classes,
            "regress": objectives.text_numbers,
            "tag": objectives.token_tags,
            "span": objectives.answer_spans,
        }[self.kind]()

    def initial(self) -> Any:
        """Those of the run that this one starts from, and fresh ones where it has none."""
        task = self.run.task
        if task.init is None:
            return None
        layers = self.run.model.encoder_layers
        anew = [f"encoder/blocks/{i}/" for i in range(layers - task.reinit_last, layers)]
        anew += ["pooler/"] if task.reinit_last else []
        drawn = split(self.make())[1]
        return starting_point(task.init).given(drawn, lambda name: name.startswith(tuple(anew)))

    def examples(self, start: int = 0) -> list[job.Batch]:
        """A batch of padding for every shape of the plan, in the order of need."""
        empty = [BatchPlan(np.full(rows, -1), S, T) for rows, S, T in self.plan.needed(start)]
        return [self._put(self.encoded, batch) for batch in empty]

    def batches(self, start: int) -> Iterator[job.Batch]:
        """The batches after ``start`` steps, on the devices."""
        return self.stream(lambda batch: self._rows(self.encoded, batch), start)

    def evaluate(self) -> Any:
        """From a state to validation scores; None if there is nothing to validate on."""
        valid = self.splits.valid
        if valid is None:
            return None
        encoded, sums = self.encode(valid), self.judge()
        plan, predictor = self.plan_for(encoded, shuffle=False), self.predictor()

        def scores(state: TrainState) -> dict[str, float]:
            params = state.params if state.average is None else state.average
            batches = (self._put(encoded, batch) for batch in plan.epoch(0))
            found = sums(params, batches)
            loss = found["loss"] / max(found["weight"], 1.0)
            told = self._measured(predictor, params, valid)
            return {"valid_loss": loss, **{f"valid_{name}": told[name] for name in told}}

        return scores

    def predictor(self) -> Predictor:
        """What tells the labels of texts, still without parameters."""
        return predictor((self.graph, None), self.tokenizer, self.run)

    def _measured(self, predictor: Predictor, params: Any, part: Labeled) -> dict[str, float]:
        """The scores of a part, worked out in the first process."""
        names = MEASURES[self.kind]
        if jax.process_count() > 1:
            params = multihost_utils.process_allgather(params, tiled=True)
        found: Mapping[str, float] = dict.fromkeys(names, 0.0)
        if is_main_process():
            predictor.params = jax.device_put(jax.device_get(params), jax.local_devices()[0])
            found = measure(predictor, self.run.task, part)
        values = np.array([found[name] for name in names])
        if jax.process_count() > 1:
            values = multihost_utils.broadcast_one_to_all(values)
        return dict(zip(names, map(float, values), strict=True))

    def _rows(self, encoded: _Encoded, batch: BatchPlan) -> dict[str, np.ndarray]:
        held = local_rows(self.mesh, len(batch.indices))
        return encoded.batch(batch, self.tokenizer.pad, held)

    def _put(self, encoded: _Encoded, batch: BatchPlan) -> job.Batch:
        return shard_batch(self._rows(encoded, batch), self.mesh, len(batch.indices))


def predictor(model: tuple[Any, Any], tokenizer: Tokenizer, run: FinetuneRun) -> Predictor:
    """What tells the labels of texts as a run does."""
    task = run.task
    return Predictor(
        model, tokenizer, kind=task.kind, labels=task.labels, length=task.length, stride=task.stride
    )


def train(run: FinetuneRun, directory: RunDirectory, splits: LabeledSplits, *, resume: bool) -> int:
    """Trains, and scores the best checkpoint on validation and test examples."""
    parts = TaskJob(run, directory, splits)
    job.introduce(parts)
    return job.train(parts, functools.partial(_finish, parts), resume=resume)


def _finish(parts: TaskJob) -> dict[str, Any]:
    """Scores on the validation and test examples."""
    tells = parts.predictor()
    tells.params = jax.device_put(load_params(parts.directory.path, "best").params)
    judged = {} if parts.splits.valid is None else {"valid": parts.splits.valid}
    judged |= parts.splits.tests
    scores = {name: measure(tells, parts.run.task, part) for name, part in judged.items()}
    print(table(scores), flush=True)
    return {"scores": scores}
