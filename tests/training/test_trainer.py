"""Laws of the Trainer and of partitions, on a task that the package does not know."""

import dataclasses
import json
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from transformer_jax import laws
from transformer_jax.core.errors import CheckpointError, ConfigError, DataError, Stopped
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.plan import ArrayPlan
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.inference.loading import load
from transformer_jax.interop.hf_run_directory import save_converted
from transformer_jax.models.config import AttentionConfig, FeedForwardConfig
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.models.partition import EVERYTHING, Partition, merging, overlay, where
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.parallel.device_catalog import DEVICES
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.placement import mesh_of
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.runs import checkpoint, manifest, metrics
from transformer_jax.runs.checkpoint import Checkpointer
from transformer_jax.runs.checkpoint_reader import load_params
from transformer_jax.runs.checkpoint_score import CheckpointScore, Metric
from transformer_jax.runs.manifest import FROZEN
from transformer_jax.runs.metrics import MetricsLog, read_metrics
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.runs.verification import verify
from transformer_jax.training.objectives import language_model
from transformer_jax.training.settings import LoopConfig
from transformer_jax.training.state import digest, split
from transformer_jax.training.task import Data, Task
from transformer_jax.training.trainer import Trainer


class Layer(nnx.Module):
    def __init__(self, size, *, rngs):
        draw = lambda shape: jax.random.normal(rngs.params(), shape) / 2
        self.kernel = nnx.Param(draw((size, size)), axes=("embed", "mlp"))
        self.bias = nnx.Param(draw((size,)), axes=("mlp",))

    def __call__(self, x):
        return jnp.tanh(x @ self.kernel[...] + self.bias[...][None])


class Two(nnx.Module):
    def __init__(self, size=4, *, rngs):
        self.first, self.second = Layer(size, rngs=rngs), Layer(size, rngs=rngs)

    def __call__(self, x):
        return self.second(self.first(x))


def squares(model, batch, key):
    """Squared errors of rows with weights, with dropout of inputs."""
    x = batch["inputs"]["x"]
    if key is not None:
        x = x * jax.random.bernoulli(key, 0.7, x.shape)
    errors = jnp.square(model(x) - batch["y"]).sum(-1)
    weight = batch["inputs"]["weight"]
    near = (errors < 1).astype(jnp.float32)
    rows = jnp.float32(len(x))
    return {"loss": ((errors * weight).sum(), weight.sum()), "near": (near.sum(), rows)}


def tr_data(name="one", count=24, rows=8, seed=0):
    rng = np.random.default_rng(3)
    x, y = (rng.normal(size=(count, 4)).astype(np.float32) for _ in range(2))
    weight = rng.integers(1, 5, count).astype(np.float32)
    make = lambda i: {"inputs": {"x": x[i], "weight": weight[i]}, "y": y[i]}
    return Data(ArrayPlan(count, rows, seed), make, name)


def tr_task(**changed):
    data = tr_data()
    task = Task(
        lambda rngs: Two(rngs=rngs), data, squares, valid={"valid": data},
        metrics=(Metric("valid_loss", "lower"), Metric("size", "higher")),
        evaluate=lambda model: {"size": tr_size(model)},
    )  # fmt: skip
    return dataclasses.replace(task, **changed)


def tr_size(model):
    return float(optax.tree.norm(split(model)[1]))


@pytest.fixture(autouse=True)
def curves(request):
    """Draws curves only for the test that compares them: they take half the time of a run."""
    if "resumed" not in request.node.name:
        request.getfixturevalue("no_curves")


def trainer(path, task=None, **how):
    how = {"loop": LoopConfig(evaluate_every=2, checkpoint_every=2)} | how
    mesh = how.pop("mesh", None) or make_mesh(MeshConfig(), jax.devices()[:1])
    return Trainer(task or tr_task(), path, optax.adam(0.05), mesh, seed=5, **how)


def tr_records(path):
    times = ("tokens_per_second", "evaluation_seconds", "input_seconds")
    records = read_metrics(path / "metrics.jsonl")
    return [{k: v for k, v in record.items() if k not in times} for record in records]


def same(a, b):
    return digest(a) == digest(b)


HEAD = where(lambda path: path.startswith("second/"))


@pytest.mark.quick("everything")
@pytest.mark.parametrize("partition", [EVERYTHING, HEAD], ids=["everything", "where"])
def test_resumed_is_uninterrupted_bit_by_bit(tmp_path, partition):
    task = tr_task(partition=partition)

    def train(stops):
        run, counted = tmp_path / f"stopped{stops}", []

        def make_batch(items):
            counted.append(1)
            if len(counted) in stops:
                signal.raise_signal(signal.SIGTERM)
            return task.train.make_batch(items)

        cut = dataclasses.replace(task, train=task.train._replace(make_batch=make_batch))
        for _ in stops:
            with pytest.raises(Stopped):
                trainer(run, cut, ema_decay=0.9).fit(steps=6)
        done = trainer(run, task, ema_decay=0.9).fit(steps=6)
        results = RunDirectory(run).read_results()
        return {
            "state": digest(done.state),
            "records": tr_records(run),
            "results": [results["state_sha256"], results["best"]],
            "curves": (run / "curves.png").read_bytes(),
            "parameters": digest(load_params(run).params),
        }

    laws.resumed(train, [(8,)]).require()  # after padding, in the midst of training


@pytest.mark.parametrize("accumulation", [2, 4])
@pytest.mark.slow
def test_accumulated_is_the_whole_batch_with_own_weights(tmp_path, accumulation):
    keyless = lambda model, batch, key: squares(model, batch, None)
    runs = [
        trainer(tmp_path / str(n), tr_task(objective=keyless), accumulation=n).fit(steps=3)
        for n in (1, accumulation)
    ]
    for a, b in zip(*(jax.tree.leaves(run.state.params) for run in runs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    records = [tr_records(tmp_path / str(n)) for n in (1, accumulation)]
    for one, other in zip(*records, strict=True):
        for name in {"loss", "near"} & set(one):
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5)


@pytest.mark.slow
def test_what_is_frozen_keeps_every_bit_and_is_stored_once(tmp_path):
    run = trainer(tmp_path, tr_task(partition=HEAD))
    start = split(run._model())[1]
    end = run.fit(steps=4).state
    assert set(end.params) == {"second"}
    assert not any("first" in name for name in flatten_dict(end.opt_state))
    assert not same(end.params["second"], start["second"])
    stored = load_params(tmp_path, "last").params
    assert same(stored["first"], start["first"])
    assert same(stored["second"], end.params["second"])
    for path in (tmp_path / "checkpoints").iterdir():
        text = (path / "manifest.json").read_text()
        assert "first" not in text
    assert all(finding.problem is None for finding in verify(tmp_path))
    model = run.load("last")
    x = jnp.ones((2, 4))
    np.testing.assert_array_equal(model(x), nnx.merge(run.graph, stored)(x))


@pytest.mark.slow
def test_frozen_parameters_come_from_the_run_and_damage_is_named(tmp_path):
    given = jax.tree.map(lambda a: np.asarray(a) + 1, split(Two(rngs=nnx.Rngs(9)))[1])
    task = tr_task(partition=HEAD, initial=lambda params: given)
    trainer(tmp_path, task).fit(steps=2)

    def gone(params):
        raise AssertionError("a resumed run needs nothing to start from")

    trainer(tmp_path, dataclasses.replace(task, initial=gone)).fit(steps=4)
    assert same(load_params(tmp_path).params["first"], given["first"])
    files = [path for path in (tmp_path / FROZEN).rglob("params/**/*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(bytes(largest.stat().st_size))
    for use in (lambda: load_params(tmp_path), lambda: trainer(tmp_path, task).fit(steps=6)):
        with pytest.raises(CheckpointError, match="frozen"):
            use()
    assert any(finding.problem for finding in verify(tmp_path))
    shutil.rmtree(tmp_path / FROZEN)
    for use in (lambda: load_params(tmp_path), lambda: trainer(tmp_path, task).fit(steps=6)):
        with pytest.raises(
            CheckpointError, match="is missing, which contains the frozen parameters"
        ):
            use()
    assert any("is missing" in (finding.problem or "") for finding in verify(tmp_path))


@pytest.mark.slow
def test_a_run_with_frozen_parameters_in_its_checkpoints_resumes_and_loads(tmp_path):
    """Version 0.1.0 wrote all parameters in each checkpoint, and a mask around the optimizer."""
    task = tr_task(partition=HEAD)
    whole = trainer(tmp_path / "whole", task).fit(steps=4)
    early = trainer(tmp_path / "early", task, loop=LoopConfig(evaluate_every=2, checkpoint_every=2))
    early.fit(steps=2)
    make_earlier(tmp_path / "early", early)
    assert not (tmp_path / "early" / FROZEN).exists()
    start = split(early._model())[1]
    assert same(load_params(tmp_path / "early").params["first"], start["first"])
    resumed = trainer(tmp_path / "early", task).fit(steps=4)
    assert same(resumed.state, whole.state)
    assert same(load_params(tmp_path / "early", 2).params["first"], start["first"])
    assert same(load_params(tmp_path / "early", 4).params, load_params(tmp_path / "whole").params)


def make_earlier(path, run):
    """Rewrites the checkpoint of a run as earlier code wrote it."""
    folder = path / "checkpoints" / "step_00000002"
    fields = manifest.read(folder)
    shapes = run._abstract(2)[1]
    restored = Checkpointer(path / "checkpoints").restore(shapes)
    params = overlay(split(run._model())[1], restored.state.params)
    state = restored.state._replace(
        params=params, opt_state=optax.MaskedState(restored.state.opt_state)
    )
    shutil.rmtree(path / FROZEN)
    shutil.rmtree(folder)
    kept = {name: fields[name] for name in ("config", "tokenizer", "data", "key")}
    writer = Checkpointer(path / "checkpoints", describe=kept)
    writer.save(2, state, score=CheckpointScore(**fields["score"]))
    writer.close()


def test_step_0_of_a_partition_is_the_model_that_was_split():
    model = Two(rngs=nnx.Rngs(0))
    graph, params = split(model)
    x = jnp.ones((3, 4))
    for partition in (EVERYTHING, HEAD, where(lambda path: path.endswith("bias"))):
        trainable, frozen = partition.split(params, nnx.Rngs(1))
        assert not set(flatten_dict(trainable)) & set(flatten_dict(frozen))
        merged = partition.merge(graph, trainable, frozen, None)
        np.testing.assert_array_equal(merged(x), model(x))
        np.testing.assert_array_equal(merging(graph)(trainable, frozen, None)(x), model(x))


def beside_reference():
    """A model beside a frozen copy of what it began as."""

    def split_off(params, rngs):
        return params, {"start": jax.tree.map(jnp.copy, params)}

    def merge(graph, trainable, frozen, key):
        merge_one = EVERYTHING.merge
        return (merge_one(graph, trainable, {}, key), merge_one(graph, frozen["start"], {}, None))

    return Partition(split_off, merge)


def test_an_objective_of_two_models_needs_no_change_of_the_package(tmp_path):
    def stay_near(models, batch, key):
        model, reference = models
        away = jnp.square(model(batch["y"]) - reference(batch["y"])).sum()
        sums = squares(model, batch, None)
        total, weight = sums["loss"]
        return {"loss": (total + away, weight), "away": (away, jnp.float32(len(batch["y"])))}

    task = tr_task(objective=stay_near, partition=beside_reference(), evaluate=None)
    run = trainer(tmp_path, task)
    run.fit(steps=3)
    records = [record for record in tr_records(tmp_path) if "loss" in record]
    assert records[0]["away"] == 0
    assert records[-1]["away"] > 0
    model, reference = run.load("last")
    assert same(split(reference)[1], split(run._model())[1])
    assert not same(split(model)[1], split(reference)[1])
    with pytest.raises(CheckpointError, match="load it with its task"):
        load_params(tmp_path)


@pytest.mark.slow
def test_sharded_is_one_device(tmp_path):
    task = tr_task(partition=HEAD)

    def train(sizes):
        mesh = sizes and make_mesh(MeshConfig(**sizes), jax.devices()[:4])
        state = trainer(tmp_path / f"on{sizes}", task, mesh=mesh).fit(steps=2).state
        whole = state.params["second"]["kernel"].sharding.is_fully_replicated
        assert whole == (mesh is None)
        return state.params

    laws.sharded(train, [{"fsdp": 2, "tensor": 2}]).require()


def test_validation_measures_sums_and_what_the_task_evaluates(tmp_path):
    run = trainer(tmp_path)
    end = run.fit(steps=2).state
    [record] = [record for record in tr_records(tmp_path) if "valid_loss" in record]
    assert set(record) == {"step", "valid_loss", "valid_near", "size"}
    np.testing.assert_allclose(record["size"], optax.tree.norm(end.params), rtol=1e-6)


def test_the_best_checkpoint_follows_a_metric_of_the_task(tmp_path):
    loop = LoopConfig(evaluate_every=2, checkpoint_every=2, best_checkpoint_metric="size")
    best = trainer(tmp_path, loop=loop).fit(steps=4).best
    sizes = [record["size"] for record in tr_records(tmp_path) if "size" in record]
    assert (best.name, best.value) == ("size", max(sizes))
    refusal = r"loop\.best_checkpoint_metric is bleu: this run has valid_loss, size"
    with pytest.raises(ConfigError, match=refusal):
        trainer(tmp_path, loop=LoopConfig(best_checkpoint_metric="bleu"))


def test_other_data_is_refused(tmp_path):
    trainer(tmp_path).fit(steps=2)
    with pytest.raises(DataError, match="have changed since the run began"):
        trainer(tmp_path, tr_task(train=tr_data("other"))).fit(steps=4)


@pytest.mark.parametrize("empty", ["", " "])
def test_a_run_without_a_directory_is_refused(tmp_path, monkeypatch, empty):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="directory is empty: name a run directory"):
        trainer(empty)
    assert not [*tmp_path.iterdir()]


def tr_valid(fingerprint):
    return {"valid": tr_data(fingerprint), "valid_far": tr_data("far")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"valid": tr_valid("other")}, "the validation data have changed"),
        ({"valid": {"valid_far": tr_data()}}, r"the validation data \(valid_far\) have changed"),
        ({"inputs": {"the file reward.py": "b"}}, r"the file reward\.py have changed"),
    ],
)
def test_all_that_a_run_reads_is_the_same_when_it_is_resumed(tmp_path, changed, named):
    how = {"valid": tr_valid("one"), "inputs": {"the file reward.py": "a"}}
    trainer(tmp_path, tr_task(**how)).fit(steps=2)
    with pytest.raises(DataError, match=f"{named} since the run began: restore them, or begin"):
        trainer(tmp_path, tr_task(**how | changed)).fit(steps=4)
    # What is not read any more, or only now, has nothing to differ from.
    trainer(tmp_path, tr_task(valid={"valid": tr_data()})).fit(steps=4)


@pytest.mark.slow
def test_changed_test_data_are_told_when_a_run_is_resumed(tmp_path, capsys):
    told = f"{tmp_path}: the test data (a) have changed since the run began: scores are those of"
    for steps, tests in ((2, {"the test data (a)": "1"}), (3, {"the test data (a)": "2"})):
        assert told not in capsys.readouterr().err
        trainer(tmp_path, tr_task(tests=tests)).fit(steps=steps)
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_missing_records_are_told_when_a_run_is_resumed(tmp_path, caplog):
    trainer(tmp_path).fit(steps=2)
    whole = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    trainer(tmp_path).fit(steps=3)
    assert "has no records" not in caplog.text
    (tmp_path / "metrics.jsonl").write_text(whole[0])
    trainer(tmp_path).fit(steps=4)
    assert f"{tmp_path}/metrics.jsonl: has no records of steps 2 to 3: it was" in caplog.text
    (tmp_path / "metrics.jsonl").unlink()
    trainer(tmp_path).fit(steps=5)
    assert "has no records of steps 1 to 4: it was removed or cut" in caplog.text


def test_weights_that_no_training_wrote_are_refused_before_anything_is_written(tmp_path):
    run = RunDirectory.create(tmp_path / "run")
    run.write(run.config, {})
    save_converted(run, split(tr_task().model(nnx.Rngs(0)))[1], {"config": {}})
    written = sorted(run.path.rglob("*"))
    with pytest.raises(ConfigError, match="only weights, no training to resume"):
        trainer(run.path).fit(steps=2)
    assert [path for path in sorted(run.path.rglob("*")) if "lock" not in path.name] == written


def tr_predictor(model, tokenizer):
    """A function of rows; the task reads no text."""
    assert tokenizer is None
    return lambda rows: model(jnp.asarray(rows))


@pytest.mark.slow
@pytest.mark.parametrize("partition", [EVERYTHING, HEAD])
def test_load_uses_a_task_of_ones_own(tmp_path, partition):
    task = tr_task(predictor=tr_predictor, partition=partition)
    run = trainer(tmp_path, task)
    result = run.fit(steps=6)
    rows = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    for which in ("best", "last", 6, "average:2"):
        step, _, count = str(which).partition(":")
        step = int(step) if step.isdecimal() else "last" if count else step
        model = run.load(step, average=int(count or 1))
        found = load(tmp_path, task, checkpoint=which)(rows)
        np.testing.assert_array_equal(found, model(jnp.asarray(rows)))
    best = nnx.merge(*split(run.load(result.best_step)))
    np.testing.assert_array_equal(load(tmp_path, task)(rows), best(jnp.asarray(rows)))
    mesh = make_mesh(data=2, fsdp=4)
    on_mesh = load(tmp_path, dataclasses.replace(task, predictor=lambda model, _: model), mesh=mesh)
    assert mesh_of(nnx.state(on_mesh)) == mesh
    np.testing.assert_allclose(on_mesh(jnp.asarray(rows)), best(jnp.asarray(rows)), atol=1e-6)


def test_load_says_what_does_not_fit_a_task_of_ones_own(tmp_path):
    task, run = tr_task(predictor=tr_predictor), tmp_path / "run"
    trainer(run, task).fit(steps=2)
    with pytest.raises(CheckpointError, match=r"transformer_jax\.load\(path, task\)"):
        load(run)
    with pytest.raises(ConfigError, match="the task has no predictor"):
        load(run, tr_task())
    wider = tr_task(predictor=tr_predictor, model=lambda rngs: Two(5, rngs=rngs))
    with pytest.raises(
        CheckpointError,
        match=r"first/bias is \[4\] in the checkpoint and \[5\] by the task: it is not the",
    ):
        load(run, wider)
    tokenizer = train_tokenizer("bpe", ["a b c"] * 9, 260)
    with pytest.raises(CheckpointError, match="a tokenizer different from the task's"):
        load(run, dataclasses.replace(task, tokenizer=tokenizer))
    with pytest.raises(CheckpointError, match="no such run directory"):
        load(tmp_path / "nothing", task)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"size": 5}))
    with pytest.raises(CheckpointError, match="changed"):
        load(run, task)
    rows = np.zeros((2, 4), np.float32)
    assert load(run, task, allow_changed_config=True)(rows).shape == (2, 4)


def test_the_tokenizer_of_a_task_of_ones_own_is_stored_and_given(tmp_path):
    tokenizer = train_tokenizer("bpe", ["a b c"] * 9, 260)
    task = tr_task(tokenizer=tokenizer, predictor=lambda model, tokenizer: tokenizer)
    trainer(tmp_path, task).fit(steps=2)
    assert load(tmp_path, task) is tokenizer
    with pytest.raises(CheckpointError, match=r"transformer_jax\.load\(path, task\)"):
        load(tmp_path)


def test_the_best_checkpoint_is_tested_and_settings_are_stored(tmp_path):
    @dataclasses.dataclass
    class Settings:
        size: int = 4

    task = tr_task(test=lambda model, step: {"tested": step, "size": tr_size(model)})
    run = trainer(tmp_path, dataclasses.replace(task, settings=Settings()))
    result = run.fit(epochs=1)
    directory = RunDirectory(tmp_path)
    assert directory.read_config() == {"size": 4}
    assert directory.read_results()["tested"] == result.best_step
    with pytest.raises(ConfigError, match="either steps or epochs"):
        run.fit()


@pytest.mark.parametrize("failing", ["objective", "make_step"])
def test_a_run_that_fails_before_its_first_step_may_begin_again(tmp_path, failing):
    """It leaves no remains of training, and what was trained before stays."""

    def fail(*args, **kwargs):
        raise AttributeError("no such field")

    run = RunDirectory(tmp_path / "run")
    with pytest.raises(AttributeError, match="no such field"):
        trainer(run.path, task=tr_task(**{failing: fail})).fit(steps=2)
    assert not run.has_begun()
    RunDirectory.check_free(run.path)
    trainer(run.path).fit(steps=2)
    rows = read_metrics(run.metrics)
    with pytest.raises(AttributeError, match="no such field"):
        trainer(run.path, task=tr_task(**{failing: fail})).fit(steps=4)
    assert read_metrics(run.metrics) == rows
    assert manifest.steps(run.checkpoints)[:1] == [2]


def test_a_failed_start_leaves_the_files_of_a_process_that_took_the_run_over(tmp_path, monkeypatch):
    log, saver = MetricsLog(tmp_path / "metrics.jsonl"), Checkpointer(tmp_path / "checkpoints")

    def refuse(path):
        raise CheckpointError("in use")

    with monkeypatch.context() as taken:
        taken.setattr(checkpoint, "check_lock", refuse)
        taken.setattr(metrics, "check_lock", refuse)
        log.close()
        saver.close()
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "checkpoints"}
    MetricsLog(tmp_path / "metrics.jsonl").close()
    Checkpointer(tmp_path / "checkpoints").close()
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_task_of_ones_own_has_the_flops_of_its_kind(tmp_path, monkeypatch, capsys):
    """They are within 3 % of the formula, for any number of micro-batches."""
    B, T = 8, 64
    config = dataclasses.replace(
        PRESETS["gpt2_small"], vocab_size=512, d_model=128, decoder_layers=1,
        attention=AttentionConfig(num_heads=2), feed_forward=FeedForwardConfig(d_ff=512),
    )  # fmt: skip
    tokens = np.zeros((B, T), np.int32)
    make = lambda i: {
        "tokens": tokens[i], "targets": tokens[i], "weights": tokens[i] + np.float32(1)
    }  # fmt: skip
    task = Task(
        lambda rngs: Decoder(config, rngs=rngs), Data(ArrayPlan(B, B, 0), make), language_model()
    )
    kind = dataclasses.replace(DEVICES["h200"], kinds=(jax.devices()[0].device_kind,))
    monkeypatch.setitem(DEVICES, "h200", kind)
    trainer(tmp_path, task, accumulation=2, loop=LoopConfig()).fit(steps=1)
    (record,) = (one for one in read_metrics(tmp_path / "metrics.jsonl") if "mfu" in one)
    assert record["flops"] == pytest.approx(training_flops(config, B, T), rel=0.03)
    assert "tokens/s  MFU" in capsys.readouterr().err
