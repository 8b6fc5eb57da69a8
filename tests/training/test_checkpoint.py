"""Laws of checkpoints: exact, verified, restorable anywhere, and never fewer than one good."""

import contextlib
import os
import random
import re
import resource
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.trees import flatten_dict, unflatten_dict, with_leaves
from transformer_jax.runs import manifest
from transformer_jax.runs.checkpoint import Checkpointer, CheckpointScore, load_params, steps
from transformer_jax.runs.checkpoint_items import read_arrays, read_item
from transformer_jax.runs.verification import verify
from transformer_jax.training.state import TrainState, digest

TX = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def ck_state(step, *, width=16, layers=2, average=True, seed=0):
    rng = np.random.default_rng(seed + step)
    params = {
        "embedding": {"table": jnp.asarray(rng.normal(size=(24, width)), jnp.float32)},
        "blocks": {
            i: {"kernel": jnp.asarray(rng.normal(size=(width, 8)), jnp.float32)}
            for i in range(layers)
        },
        "half": jnp.asarray(rng.normal(size=(8,)), jnp.bfloat16),
    }
    opt_state = jax.tree.map(lambda a: a + jnp.asarray(step, a.dtype), TX.init(params))
    kept = jax.tree.map(lambda a: a * 2, params) if average else None
    return TrainState(jnp.asarray(step, jnp.int32), params, opt_state, kept)


def ck_template(state, sharding=None):
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding or a.sharding), state
    )


@contextlib.contextmanager
def ck_open(run, **options):
    checkpointer = Checkpointer(run / "checkpoints", **options)
    try:
        yield checkpointer
    finally:
        checkpointer.close()


def ck_save(checkpointer, state):
    checkpointer.save(int(state.step), state)
    checkpointer.wait()


def ck_run(run, *, at=(1, 2, 3), scores=None, **options):
    with ck_open(run, **options) as checkpointer:
        for step in at:
            score = (scores or {}).get(step)
            checkpointer.save(step, ck_state(step), score=score)
    return run


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return ck_run(tmp_path_factory.mktemp("saved") / "run", at=(1, 2))


@pytest.fixture
def run(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "run"))


def test_names_of_any_tree_and_back():
    state = ck_state(3, layers=11)
    names = flatten_dict(state.opt_state)
    assert any(name.endswith("mu/blocks/10/kernel") for name in names)
    again = with_leaves(state.opt_state, names)
    assert jax.tree.structure(again) == jax.tree.structure(state.opt_state)
    assert digest(unflatten_dict(flatten_dict(state.params))) == digest(state.params)


def test_restored_state_is_bitwise_the_saved_one(run):
    with ck_open(run) as checkpointer:
        step, state, fields, _ = checkpointer.restore(ck_template(ck_state(0)))
    assert step == 2
    assert digest(state) == digest(ck_state(2))
    assert jax.tree.structure(state) == jax.tree.structure(ck_state(2))
    assert fields["tree"]["params/embedding/table"] == {"shape": [24, 16], "dtype": "float32"}
    assert set(fields["versions"]) == {"jax", "flax", "orbax-checkpoint", "transformer_jax"}


def test_what_is_donated_after_save_is_saved(tmp_path):
    state, expected = ck_state(1), digest(ck_state(1))
    burn = jax.jit(lambda s: jax.tree.map(lambda a: a * 0, s), donate_argnums=0)
    with ck_open(tmp_path) as checkpointer:
        checkpointer.save(1, state)
        burn(state)
        assert digest(checkpointer.restore(ck_template(ck_state(1))).state) == expected


@pytest.mark.parametrize("count", [1, 4, 8])
@pytest.mark.quick("8")
def test_restores_onto_other_meshes(tmp_path, count):
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
    split = lambda a: NamedSharding(mesh, P("fsdp") if a.shape and a.shape[0] % 8 == 0 else P())
    state = jax.tree.map(lambda a: jax.device_put(a, split(a)), ck_state(1))
    other = jax.make_mesh(
        (count,), ("fsdp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count]
    )
    with ck_open(tmp_path) as checkpointer:
        checkpointer.save(1, state)
        template = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(
                a.shape, a.dtype, sharding=NamedSharding(other, split(a).spec)
            ),
            state,
        )
        restored = checkpointer.restore(template).state
        checkpointer.save(2, restored)
    assert digest(restored) == digest(ck_state(1))
    said = [
        manifest.read(path)["devices"] for path in sorted((tmp_path / "checkpoints").glob("step_*"))
    ]
    assert said == [8, count]  # those that it lay on, not those that there were
    assert (
        restored.params["embedding"]["table"].sharding
        == template.params["embedding"]["table"].sharding
    )


def test_parameters_alone_are_the_moving_average_where_there_is_one(run):
    loaded = load_params(run)
    assert digest(loaded.params) == digest(ck_state(2).ema_params)
    assert list(loaded.params["blocks"]) == list(range(2))
    assert {type(leaf) for leaf in jax.tree.leaves(loaded.params)} == {np.ndarray}


def test_parameters_alone_never_touch_the_optimizer(run):
    shutil.rmtree(run / "checkpoints" / "step_00000002" / "optimizer")
    assert "optimizer" in verify(run)[0].problem


def test_average_of_checkpoints_is_the_mean_of_parameters(tmp_path):
    ck_run(tmp_path, at=(1, 2, 3))
    loaded = load_params(tmp_path, "last", average=3)
    trees = [ck_state(step).params for step in (1, 2, 3)]
    mean = jax.tree.map(lambda *a: np.mean([np.asarray(x, np.float64) for x in a], 0), *trees)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2), loaded.params, mean)
    table = loaded.params["embedding"]["table"]
    np.testing.assert_allclose(table, mean["embedding"]["table"], rtol=1e-6)
    assert table.dtype == np.float32
    with pytest.raises(CheckpointError, match="only 3 good ones"):
        load_params(tmp_path, "last", average=4)
    with pytest.raises(ConfigError):
        load_params(tmp_path, average=0)


def test_keeps_the_last_and_the_best_also_after_a_restart(tmp_path):
    scores = {
        s: CheckpointScore("loss", v) for s, v in {1: 3.0, 2: 1.0, 3: 1.0, 4: float("nan")}.items()
    }
    ck_run(tmp_path, at=(1, 2, 3, 4), scores=scores, keep_last=2)
    assert steps(tmp_path / "checkpoints") == [4, 3, 2]
    ck_run(tmp_path, at=(5, 6), keep_last=2)
    assert steps(tmp_path / "checkpoints") == [6, 5, 2]
    assert load_params(tmp_path).step == 2
    assert load_params(tmp_path).score == CheckpointScore("loss", 1.0)
    assert load_params(tmp_path, "last").step == 6
    assert load_params(tmp_path, 5).step == 5
    with pytest.raises(CheckpointError, match="no checkpoint of step 4: there are 2, 5, 6"):
        load_params(tmp_path, 4)


def test_a_score_may_come_later_and_is_vouched_for(run):
    with ck_open(run) as checkpointer:
        checkpointer.set_score(1, CheckpointScore("loss", 0.5))
    assert load_params(run).step == 1
    assert load_params(run, "last").step == 2
    assert [f.problem for f in verify(run)] == [None, None]


def test_higher_may_be_better(tmp_path):
    ck_run(
        tmp_path,
        scores={
            s: CheckpointScore("sacrebleu", v, "higher")
            for s, v in {1: 5.0, 2: 9.0, 3: 7.0}.items()
        },
        keep_last=1,
    )
    assert steps(tmp_path / "checkpoints") == [3, 2]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A run of two small checkpoints, and the digest of the parameters of the first."""
    run = tmp_path_factory.mktemp("small") / "run"
    states = [ck_state(step, layers=1, average=False) for step in (1, 2)]
    with ck_open(run) as checkpointer:
        for state in states:
            checkpointer.save(int(state.step), state)
    return run, digest(states[0].params)


DAMAGES = ("flip", "zero", "truncate", "delete")


def ck_damage(path: Path, kind: str, rng: random.Random) -> bool:
    """Damages a file; False if the bytes are what they were."""
    before = path.read_bytes()
    if kind == "delete":
        path.unlink()
        return True
    data = bytearray(before)
    place = rng.randrange(max(1, len(data)))
    if kind == "flip":
        data[place] ^= 1 << rng.randrange(8)
    elif kind == "zero":
        data[place : place + 4096] = bytes(len(data[place : place + 4096]))
    else:
        data = data[:place]
    path.write_bytes(data)
    return bytes(data) != before


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.quick("truncate")
def test_damage_is_never_silent(small, tmp_path, kind):
    """Every file of a checkpoint in turn: named by ``verify``, never used; the one before is."""
    rng = random.Random(kind)
    saved, expected = small
    intact = digest(load_params(saved).params)
    used = {"params", manifest.MANIFEST}  # the rest is read when training resumes
    whole = saved / "checkpoints" / "step_00000002"
    vouched = {*manifest.read(whole)["files"], manifest.MANIFEST}
    assert len(vouched) > 10
    silent = []
    for name in sorted(vouched):
        run = Path(shutil.copytree(saved, tmp_path / "run"))
        if ck_damage(run / "checkpoints" / whole.name / name, kind, rng):
            newest, before = verify(run)
            loaded = load_params(run)
            wanted = (1, expected) if name.split("/")[0] in used else (2, intact)
            if (
                newest.problem is None
                or name.split("/")[-1] not in newest.problem
                or before.problem is not None
                or (loaded.step, digest(loaded.params)) != wanted
            ):
                silent.append(name)
        shutil.rmtree(run)
    assert not silent


def test_files_that_the_manifest_leaves_out_are_never_read(run):
    path = run / "checkpoints" / "step_00000002"
    vouched = manifest.read(path)["files"]
    for file in [*path.rglob("*")]:
        if file.is_file() and file.relative_to(path).as_posix() not in {*vouched, "manifest.json"}:
            file.write_bytes(b"\0" * 100)
    with ck_open(run) as checkpointer:
        assert digest(checkpointer.restore(ck_template(ck_state(0))).state) == digest(ck_state(2))


def test_training_goes_on_from_the_checkpoint_before_a_damaged_one(run):
    newest = run / "checkpoints" / "step_00000002"
    ck_damage(next((newest / "params" / "d").iterdir()), "flip", random.Random(0))
    with ck_open(run) as checkpointer:
        step, state, _, [left] = checkpointer.restore(ck_template(ck_state(0)))
        assert (step, digest(state)) == (1, digest(ck_state(1)))
        assert "step_00000002: params/d/" in left
        assert "SHA-256" in left
        assert "kept as damaged_step_00000002" in left
        # The number is free again, and the damaged files are still there to look at.
        checkpointer.save(2, ck_state(2))
        checkpointer.wait()
        assert checkpointer.restore(ck_template(ck_state(0))).step == 2
    assert [f.path.name for f in verify(run)] == [
        "step_00000002",
        "step_00000001",
        "damaged_step_00000002",
    ]


def test_the_last_checkpoint_is_never_deleted_even_if_all_are_damaged(run):
    for step in (1, 2):
        path = run / "checkpoints" / f"step_{step:08d}"
        ck_damage(next((path / "params" / "d").iterdir()), "delete", random.Random(0))
    with (
        ck_open(run, keep_last=1) as checkpointer,
        pytest.raises(CheckpointError, match=r"no checkpoint in .* can be restored"),
    ):
        checkpointer.restore(ck_template(ck_state(0)))
    assert len([*(run / "checkpoints").iterdir()]) == 2


def test_none_means_that_no_checkpoint_was_ever_finished(tmp_path):
    (tmp_path / "checkpoints" / "step_00000001.orbax-checkpoint-tmp").mkdir(parents=True)
    with ck_open(tmp_path) as checkpointer:
        assert checkpointer.restore(ck_template(ck_state(0))) is None
        assert verify(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"width": 32}, r"params/blocks/0/kernel is float32\[16, 8\], .* float32\[32, 8\]"),
        ({"layers": 3}, "has no params/blocks/2/kernel"),
        ({"layers": 1}, "unexpected ema_params/blocks/1/kernel: saved with another model"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(run, change, said):
    with ck_open(run) as checkpointer, pytest.raises(CheckpointError, match=said) as caught:
        checkpointer.restore(ck_template(ck_state(0, **change)))
    assert "\n" not in str(caught.value)
    assert steps(run / "checkpoints") == [2, 1]


@pytest.mark.parametrize("kind", ["missing", "foreign", "file", "empty"])
def test_what_is_no_run_directory_is_refused_in_one_line(tmp_path, kind):
    path = tmp_path / "run"
    if kind == "foreign":
        path.mkdir()
    elif kind == "file":
        path.write_text("x")
    elif kind == "empty":
        (path / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=str(path)) as caught:
        load_params(path)
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_named_and_earlier_checkpoints_stay(tmp_path, capfd):
    """D1: the file system takes no more bytes; a limit on file size fails the same way."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ck_open(tmp_path) as checkpointer:
        checkpointer.save(1, ck_state(1))
        checkpointer.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            with pytest.raises(CheckpointError, match="earlier ones are intact") as caught:
                ck_save(checkpointer, ck_state(2, width=4096))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "File too large" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_00000001"]
        # Room again, and training may continue.
        checkpointer.save(3, ck_state(3))
    assert [f.problem for f in verify(tmp_path)] == [None, None]
    assert capfd.readouterr().err == ""


@contextlib.contextmanager
def ck_unprivileged():
    """Root may write anywhere, so as root this acts as nobody."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_directory_that_cannot_be_written_is_named_before_the_first_step(tmp_path):
    tmp_path.chmod(0o555)
    try:
        with ck_unprivileged(), pytest.raises(CheckpointError, match="Permission denied") as caught:
            Checkpointer(tmp_path / "checkpoints")
    finally:
        tmp_path.chmod(0o755)
    assert "cannot be written here" in str(caught.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Not a directory"):
        Checkpointer(tmp_path / "file" / "checkpoints")


def test_keeping_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="keep_last is 0"):
        Checkpointer(tmp_path, keep_last=0)


def test_nothing_is_written_to_a_run_that_another_process_took_over(run):
    with ck_open(run) as checkpointer:
        (run / "lock.json").write_text(
            '{"pid": 1, "machine": "another", "host": "elsewhere", "token": "theirs"}'
        )
        for write in (
            lambda: checkpointer.save(3, ck_state(3)),
            lambda: checkpointer.set_score(2, CheckpointScore("loss", 1.0)),
            lambda: Checkpointer(run / "checkpoints"),
        ):
            with pytest.raises(CheckpointError, match="in use by process 1 on elsewhere"):
                write()
    assert steps(run / "checkpoints") == [2, 1]
    assert [finding.problem for finding in verify(run)] == [None, None]


@pytest.mark.parametrize(("average", "items"), [(1, {"ema_params"}), (2, {"params"})])
@pytest.mark.quick("1-items0")
def test_using_a_model_reads_the_files_of_what_is_used_alone(tmp_path, monkeypatch, average, items):
    run = ck_run(tmp_path / "run", at=(1, 2, 3, 4))
    seen, hashing = [], manifest.file_record

    def record(path, **how):
        seen.append(path.relative_to(run / "checkpoints").parts[:2])
        return hashing(path, **how)

    monkeypatch.setattr(manifest, "file_record", record)
    assert load_params(run, "last", average=average).step == 4
    names = [f"step_{step:08d}" for step in (4, 3)[:average]]
    assert set(seen) == {(name, item) for name in names for item in items}


@pytest.mark.parametrize("which", ["last", "best"])
@pytest.mark.quick("last")
def test_what_is_not_used_may_be_damaged_and_what_is_used_may_not(tmp_path, caplog, which):
    scores = {n: CheckpointScore("loss", value) for n, value in ((1, 2.0), (2, 1.5), (3, 1.0))}
    run = ck_run(tmp_path / "run", scores=scores)
    for step, item, expected in ((3, "optimizer", 3), (2, "ema_params", 3), (3, "ema_params", 1)):
        file = max((run / f"checkpoints/step_{step:08d}/{item}").rglob("*"), key=ck_size)
        file.write_bytes(bytes(file.stat().st_size))
        assert load_params(run, which).step == expected
    assert "step_00000003" in caplog.text
    assert "step 1 is used" in caplog.text


def ck_size(path):
    return path.stat().st_size if path.is_file() else 0


def test_a_moving_average_under_its_earlier_name_is_read_verified_and_scored(run):
    state, path = ck_state(2), run / "checkpoints" / "step_00000002"
    fields = manifest.read(path)
    for kind in ("files", "tree"):
        fields[kind] = {re.sub("^ema_params/", "average/", n): v for n, v in fields[kind].items()}
    (path / "ema_params").rename(path / "average")
    manifest.rewrite(path, {name: value for name, value in fields.items() if name != "digest"})

    def check():
        assert [finding.problem for finding in verify(run)] == [None, None]
        assert digest(load_params(run).params) == digest(state.ema_params)
        with ck_open(run) as checkpointer:
            assert digest(checkpointer.restore(ck_template(state)).state) == digest(state)

    check()
    with ck_open(run) as checkpointer:
        checkpointer.set_score(2, CheckpointScore("loss", 1.0))
    check()
    max((path / "average").rglob("*"), key=ck_size).unlink()
    assert "average" in verify(run)[0].problem
    assert load_params(run).step == 1


def test_what_training_removes_meanwhile_confuses_no_reader(tmp_path, monkeypatch, caplog):
    """Checkpoints vanish between listing, reading the manifest, verifying and reading arrays."""
    from transformer_jax.runs import checkpoint_reader

    for name in ("read", "find_corruption"):
        run = ck_run(tmp_path / name, at=(1, 2))
        whole, listed = getattr(manifest, name), []

        def vanishing(path, *rest, whole=whole, listed=listed):
            if not listed:
                listed.append(path)
                shutil.rmtree(path)
            return whole(path, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(manifest, name, vanishing)
            assert load_params(run, "best").step == 1
    run, whole, listed = ck_run(tmp_path / "arrays", at=(1, 2)), checkpoint_reader.read_arrays, []

    def removing(path, names):
        if not listed:
            listed.append(path)
            shutil.rmtree(path.parent)
        return whole(path, names)

    monkeypatch.setattr(checkpoint_reader, "read_arrays", removing)
    assert load_params(run, "best").step == 1
    assert "damaged" not in caplog.text


def test_verify_says_nothing_of_what_training_removed_meanwhile(run, monkeypatch):
    whole = manifest.read

    def vanishing(path):
        if path.name.endswith("2"):
            shutil.rmtree(path, ignore_errors=True)
        return whole(path)

    monkeypatch.setattr(manifest, "read", vanishing)
    assert [(finding.step, finding.problem) for finding in verify(run)] == [(1, None)]


def test_arrays_are_read_as_orbax_reads_them(tmp_path):
    """Every type, no axes, names that are numbers, and a path through a parent folder."""
    values = {
        f"stack/0/{kind}": np.arange(12).reshape(3, 4).astype(kind)
        for kind in ("float32", "float16", "bfloat16", "int32", "uint8", "bool")
    }
    values |= {"one": np.float32(2.5)}
    params = unflatten_dict({name: jnp.asarray(value) for name, value in values.items()})
    checkpointer = Checkpointer(tmp_path / "checkpoints")
    checkpointer.save(1, TrainState(jnp.int32(1), params, {}))
    checkpointer.wait()
    checkpointer.close()
    [item] = (tmp_path / "checkpoints").glob("step_*/params")
    leaves = {name: jax.ShapeDtypeStruct(one.shape, one.dtype) for name, one in values.items()}
    ours, theirs = read_arrays(item / ".." / item.name, leaves), read_item(item, leaves)
    for name, value in values.items():
        assert ours[name].dtype == theirs[name].dtype == value.dtype
        assert ours[name].shape == theirs[name].shape == value.shape
        assert ours[name].tobytes() == theirs[name].tobytes() == value.tobytes()
