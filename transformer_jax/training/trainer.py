"""The trainer of a task: state, step, loop, checkpoints, exact resumption and results."""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import jax
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Key, PyTree

from transformer_jax.core.arguments import check_values, checked_arguments
from transformer_jax.core.config_fields import Amount, Configuration, Count, Rate
from transformer_jax.core.errors import CheckpointError, ConfigError, DataError, plural
from transformer_jax.core.json_types import Json
from transformer_jax.core.keys import SCHEME, key_for, training_key
from transformer_jax.core.runtime import uncollected
from transformer_jax.core.task_progress import log, show_progress
from transformer_jax.functional.jacobian_paths import product_flops
from transformer_jax.models.layers.parameters import Parameters, Shapes
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.models.partition import Graph, Merge
from transformer_jax.parallel.health import check_devices
from transformer_jax.parallel.mesh import is_main_process, make_mesh, sync_global_devices
from transformer_jax.parallel.process_consistency import check_same
from transformer_jax.runs.checkpoint import Checkpointer
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.runs.config_guard import latest_manifest, refuse_weights_alone
from transformer_jax.runs.data_guard import refuse_changed_data
from transformer_jax.runs.lock import RunLock, check_lock, holds_lock
from transformer_jax.runs.manifest import KeyRecord
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_directory import RunDirectory, describe_run
from transformer_jax.runs.shared_directory import check_shared
from transformer_jax.training import frozen as kept
from transformer_jax.training.batches import put_batch, training_batches
from transformer_jax.training.compilation import CompiledStep
from transformer_jax.training.curves import Curves
from transformer_jax.training.loop import FitResult, Loop, fit
from transformer_jax.training.micro_batches import Batch
from transformer_jax.training.monitoring import Rates, writing_log
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.settings import LoopConfig, OptimizerConfig
from transformer_jax.training.state import (
    TrainState,
    abstract_parts,
    abstract_state,
    digest,
    new_state,
)
from transformer_jax.training.step import Program, Step, compile_step
from transformer_jax.training.task import Task
from transformer_jax.training.trained_model import load_model
from transformer_jax.training.validation import make_validation

__all__ = ["Optimizer", "Trainer"]

# A description, a transformation, or a function from the number of steps and the parameters with
# their declarations to one of these.
Optimizer: TypeAlias = (
    OptimizerConfig
    | optax.GradientTransformation
    | Callable[[int, Parameters], optax.GradientTransformation]
)


@dataclasses.dataclass
class Trainer(Configuration, group="training"):
    """Trains a task on a mesh; the run directory is sufficient to resume and use the run.

    A run that is interrupted and resumed up to the same step ends with the same state, bit for bit.

    Attributes:
        task: The model, data, objective and metrics.
        directory: Run directory; created if missing. It may be on an object store:
            ``s3://bucket/run``.
        optimizer: A description, an Optax transformation, or a function from the number of steps
            and the trained parameters, with their declarations, to one of these.
        mesh: Device mesh; None is all devices on the axis ``data``.
        seed: Random seed of parameters and dropout.
        accumulation: Number of micro-batches per batch, computed in sequence.
        ema_decay: Decay of a moving average of the parameters, used for evaluation.
        mode: Compilation of the step: ``jit`` or ``pmap``.
        loop: Intervals of evaluations and checkpoints, and stopping criteria.

    Raises:
        ConfigError: A value is out of range, ``directory`` is empty, or
            ``loop.best_checkpoint_metric`` is not a metric of the task.
    """

    task: Task
    directory: str | Path
    optimizer: Optimizer
    mesh: Mesh | None = None
    seed: Amount = 0
    accumulation: Count = 1
    ema_decay: Rate | None = None
    mode: Literal["jit", "pmap"] = "jit"
    loop: LoopConfig = LoopConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not str(self.directory).strip():
            raise ConfigError("directory is empty: name a run directory, such as runs/mine")
        described = isinstance(self.optimizer, OptimizerConfig | optax.GradientTransformation)
        if not described and not callable(self.optimizer):
            raise ConfigError(
                f"optimizer is {self.optimizer!r}: give one, such as tj.adamw(1e-3) or "
                f"optax.adam(1e-3)"
            )
        check_values("Trainer: ", {"mesh": Mesh | None}, {"mesh": self.mesh})
        self.run = RunDirectory(self.directory)
        self.on = make_mesh() if self.mesh is None else self.mesh
        known = {metric.name: metric for metric in self.task.metrics}
        best = self.loop.best_checkpoint_metric or self.task.metrics[0].name
        if best not in known:
            raise ConfigError(
                f"loop.best_checkpoint_metric is {best}: this run has {', '.join(known)}"
            )
        self.metric: Metric = known[best]

    # --- the model -------------------------------------------------------------------------------

    def _model(self) -> nnx.Module:
        return self.task.model(nnx.Rngs(key_for(self.seed, "initialization")))

    def _shaped_model(self) -> nnx.Module:
        return self.task.model(Shapes(0))

    @functools.cached_property
    def graph(self) -> Graph:
        """The model's static graph."""
        model = nnx.eval_shape(self._shaped_model)
        return nnx.graphdef(with_attention_kernels(model, self.on.devices.flat[0]))

    @functools.cached_property
    def num_parameters(self) -> int:
        """The number of parameters, trainable and frozen."""
        shapes = nnx.state(nnx.eval_shape(self._shaped_model))
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))

    @functools.cached_property
    def num_trained(self) -> int:
        """The number of trained parameters, including adapters."""
        trained, _ = abstract_parts(self._shaped_model, self.task.partition, self.seed)
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(trained))

    def merge(self, trainable: PyTree, frozen: PyTree, key: Key[Array, ""] | None = None) -> PyTree:
        """Returns the model argument of the task's objective."""
        return self.task.partition.merge(self.graph, trainable, frozen, key)

    def load(self, which: int | Literal["best", "last"] = "best", *, average: int = 1) -> PyTree:
        """Loads the model of a checkpoint on the default device.

        Raises:
            CheckpointError: The checkpoint does not exist, is damaged, or has different parameters.
        """
        return load_model(self.task, self.run.path, which, average=average).model

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Returns the training batches after ``start`` steps, on the devices."""
        return training_batches(self.task.train, self.on, start)

    # --- training --------------------------------------------------------------------------------

    @checked_arguments
    def fit(self, *, steps: Count | None = None, epochs: Count | None = None) -> FitResult:
        """Trains from the newest checkpoint, or from step 0, to a given step.

        Writes ``results.json`` and ``curves.png``. The schedule of an :class:`OptimizerConfig`
        ends at the last step: a run that is continued to a later one has another learning rate
        from there on than a run that was never stopped.

        Args:
            steps: The last step, counted from the beginning of the run.
            epochs: Passes over the training data, instead of ``steps``.

        Raises:
            ConfigError: Not exactly one of steps and epochs is given.
            CheckpointError: The run's checkpoints are damaged or belong to another model, or
                processes do not share the directory.
            DataError: Training or validation data have changed since the run began, or differ
                between processes.
            Stopped: Stopped by SIGTERM or SIGINT, after saving.
            NumericsError: Too many consecutive steps were non-finite.
        """
        if (steps is None) == (epochs is None):
            raise ConfigError("fit takes either steps or epochs")
        plan = self.task.train.plan
        last = int(steps) if steps is not None else (epochs or 0) * plan.steps_per_epoch
        began = time.monotonic()
        with self._locked(), writing_log(self.run.path / "logs"):
            self._check_processes(last)
            check_devices(self.on)
            self._begin()
            self._log_loss_names()
            result = self._fit(last, *self._abstract(last))
            self._write_results(result, time.monotonic() - began)
        return result

    def _locked(self) -> contextlib.AbstractContextManager[object]:
        """Returns the lock of the run, unless this process already holds it."""
        if not is_main_process() or holds_lock(self.run.path):
            return contextlib.nullcontext()
        return RunLock(self.run.path, say=log)

    def _check_processes(self, steps: int) -> None:
        """Refuses processes that read different data or do not share the directory."""
        sync_global_devices("run is locked by its trainer")
        check_shared(self.run.path)
        tokenizer = self.task.tokenizer
        values = {
            "the checksum of the tokenizer": None if tokenizer is None else tokenizer.sha256,
            "the checksum of the training data": self.task.train.fingerprint,
            **{f"the checksum of {name}": sum for name, sum in self.task.checksums.items()},
            "the last step": steps,
        }
        check_same(values, "every process must read the same files", DataError)

    def _begin(self) -> None:
        """Writes the files that describe the run, unless they exist."""
        run, task = self.run, self.task
        refuse_weights_alone(run.path)
        if is_main_process():
            run.path.mkdir(parents=True, exist_ok=True)
            if not run.config.exists():
                stored = {} if task.settings is None else describe_run(task.settings)
                special = {} if task.tokenizer is None else task.tokenizer.special
                run.write(run.config, stored | ({"special": special} if special else {}))
            if task.tokenizer is not None and not run.tokenizer.exists():
                task.tokenizer.save(run.tokenizer)
        sync_global_devices("run is described")

    def _abstract(
        self, steps: int
    ) -> tuple[optax.GradientTransformation, TrainState, TrainState, PyTree]:
        """Returns the optimizer, the state's shapes and shardings, and frozen shapes."""
        tx = self._transformation(steps)
        _, *rest = abstract_state(
            self._shaped_model, tx, self.on, ema=self.ema_decay is not None,
            partition=self.task.partition, seed=self.seed,
        )  # fmt: skip
        return tx, *rest

    def _fit(
        self,
        steps: int,
        tx: optax.GradientTransformation,
        shapes: TrainState,
        shardings: TrainState,
        frozen: PyTree,
    ) -> FitResult:
        plan, manifest = self.task.train.plan, latest_manifest(self.run.path)
        # A run of an earlier version keeps its keys.
        scheme = SCHEME if manifest is None else manifest.get("key", {}).get("scheme")
        key, closing = training_key(self.seed, scheme), contextlib.closing
        with (
            closing(self._checkpointer(scheme)) as checkpointer,
            closing(CompiledStep(self._step(tx, shardings, frozen), key, frozen)) as step,
        ):
            with uncollected(), show_progress("preparing the first step"):
                found = self._restored(checkpointer, shapes, frozen)
                start = 0 if found is None else found[0]
                padding = plan.padding(start) if start < steps else []
                batches = [put_batch(self.task.train, items, self.on) for items in padding]
                # Compile while parameters are initialized.
                step.prepare(shapes, batches)
                if found is None:
                    state, step.frozen = self._fresh(tx, shardings, frozen)
                else:
                    state, step.frozen = found[1:]
                kept.describe(checkpointer, step.frozen, self.task.partition)
                if found is None:
                    kept.write(self.run.path, step.frozen)
            loop = Loop(
                step, self.batches, checkpointer, self.run.metrics, self.loop, self.metric,
                make_validation(self.task, self.merge, self.on, step.frozen, shardings),
                plan.steps_per_epoch,
                Rates(
                    list(self.on.devices.flat), self.task.flops, self.task.counts,
                    functools.partial(self._traced_flops, tx, shapes, frozen, key),
                ),
                self._curves(),
            )  # fmt: skip
            return fit(state, loop, steps=steps, start=start, padding=batches)

    def _transformation(self, steps: int) -> optax.GradientTransformation:
        if isinstance(self.optimizer, optax.GradientTransformation):
            return self.optimizer
        trained, _ = abstract_parts(self._shaped_model, self.task.partition, self.seed)
        if not isinstance(self.optimizer, OptimizerConfig):
            return self.optimizer(steps, trained)
        if self.optimizer.learning_rate is None:
            raise ConfigError("optimizer.learning_rate is None: a Trainer needs the peak")
        return make_optimizer(self.optimizer, 1, steps, params=trained)

    def _step(
        self, tx: optax.GradientTransformation, shardings: TrainState, frozen: PyTree
    ) -> Program:
        raw = self._raw_step(tx, self.merge)
        of_frozen = jax.tree.map(lambda leaf: leaf.sharding, frozen)
        return compile_step(raw, self.on, shardings, self.mode, frozen=of_frozen)

    def _raw_step(self, tx: optax.GradientTransformation, merge: Merge) -> Step:
        return self.task.make_step(
            self.task.objective, tx, merge,
            accumulation=self.accumulation, ema_decay=self.ema_decay,
        )  # fmt: skip

    def _traced_flops(
        self,
        tx: optax.GradientTransformation,
        shapes: TrainState,
        frozen: PyTree,
        key: Key[Array, ""],
        batch: Batch,
    ) -> float:
        """Traces a step on a batch and counts the FLOPs of its products."""
        model = with_attention_kernels(nnx.eval_shape(self._shaped_model), None)
        merge = functools.partial(self.task.partition.merge, nnx.graphdef(model))
        return product_flops(self._raw_step(tx, merge), shapes, frozen, batch, key)

    def _checkpointer(self, scheme: str | None) -> Checkpointer:
        """Returns the checkpointer of the run, with the fields of its manifests."""
        task = self.task
        key: KeyRecord = {"seed": self.seed, "impl": _impl()}
        if scheme is not None:
            key["scheme"] = scheme
        return Checkpointer(
            self.run.checkpoints,
            keep_last=self.loop.keep_last,
            describe={
                "config": self.run.read_config(),
                "tokenizer": None if task.tokenizer is None else task.tokenizer.sha256,
                "template": self.run.template_digest(),
                "data": task.describe_data(),
                "key": key,
            },
        )

    def _restored(
        self, checkpointer: Checkpointer, shapes: TrainState, frozen: PyTree
    ) -> tuple[int, TrainState, PyTree] | None:
        """Restores step, state and frozen parameters of the newest good checkpoint, or None."""
        found = kept.restore(checkpointer, self.run.path, shapes, frozen)
        if found is None:
            return None
        restored, frozen = found
        manifest, path = restored.manifest, self.run.path
        tokenizer, task = self.task.tokenizer, self.task
        earlier = task.train.earlier_fingerprints
        refuse_changed_data(path, manifest["data"], task.describe_data(), earlier)
        if tokenizer is not None and manifest["tokenizer"] != tokenizer.sha256:
            raise CheckpointError(
                f"{path}: tokenizer.json has changed since the run began: restore it, or begin a "
                f"new run"
            )
        if manifest["key"]["impl"] != _impl():
            raise ConfigError(f"{path}: began with the random generator {manifest['key']['impl']}")
        for problem in restored.left:
            log(f"ignored a damaged checkpoint: {problem}")
        older = ", the newest good checkpoint" if restored.left else ""
        log(f"resumed from step {restored.step}{older}")
        return restored.step, restored.state, frozen

    def _fresh(
        self, tx: optax.GradientTransformation, shardings: TrainState, frozen: PyTree
    ) -> tuple[TrainState, PyTree]:
        """Returns state and frozen parameters at step 0."""
        task, params = self.task, None
        if task.initial is not None:
            params = task.initial(nnx.to_pure_dict(nnx.state(self._model())))
        return new_state(
            self._model, tx, shardings, frozen, ema=self.ema_decay is not None, params=params,
            partition=task.partition, seed=self.seed,
        )  # fmt: skip

    # --- results ---------------------------------------------------------------------------------

    def loss_names(self) -> tuple[str, str]:
        """Returns labels of the training and the validation loss, if they differ."""
        extra = self.task.regularization
        return (
            f"training, with {' and '.join(extra)}" if extra else "training",
            "validation, without" if extra else "validation",
        )

    def _curves(self) -> Curves:
        names = [metric.name for metric in self.task.metrics if metric.name != "valid_loss"]
        scores = list(dict.fromkeys(["sacrebleu", "chrf", *names]))
        return Curves(self.run.curves, self.loss_names(), scores, self.task.counts)

    def _log_loss_names(self) -> None:
        train, valid = self.loss_names()
        if train != "training":
            log(f"loss: {train}; valid_loss: {valid}: the two are not comparable")

    def _write_results(self, result: FitResult, seconds: float) -> None:
        sha256 = digest(result.state)
        if is_main_process():
            check_lock(self.run.path)
            if result.early:
                log(
                    f"stopped early: no better {self.metric.name} for "
                    f"{plural(self.loop.patience or 0, 'evaluation')}"
                )
            results = {
                "steps": result.step,
                "best": result.best._asdict() if result.best else None,
                "best_step": result.best_step,
                **self._tested(),
                "parameters": self.num_parameters,
                "recompilations": result.recompilations,
                "seconds": round(seconds, 1),
                "state_sha256": sha256,
            }
            self.run.write(self.run.results, results)
            self._curves().draw(read_metrics(self.run.metrics))
        sync_global_devices("finished")

    def _tested(self) -> dict[str, Json]:
        if self.task.test is None:
            return {}
        with show_progress("evaluating the best checkpoint"):
            found = load_model(self.task, self.run.path, mesh=self._own_mesh())
            return dict(self.task.test(found.model, found.step))

    def _own_mesh(self) -> Mesh | None:
        """Returns a mesh of this process's devices, next to the state; None is a single device."""
        if self.on.size == 1:
            return None
        if jax.process_count() == 1:
            return self.on
        return make_mesh(data=1, fsdp=jax.local_device_count(), devices=jax.local_devices())


def _impl() -> str:
    return str(jax.random.key_impl(jax.random.key(0)))
