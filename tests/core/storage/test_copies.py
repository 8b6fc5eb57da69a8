"""Folders on an object store: equal after publishing and fetching; complete or not there."""

import contextlib
import json
import shutil
import time

import pytest

from transformer_jax.core.errors import CheckpointError, ConfigError, DataError
from transformer_jax.core.processes import this_process
from transformer_jax.core.storage.copies import ObjectStorage, fetched, storage_of
from transformer_jax.core.storage.objects import Objects
from transformer_jax.core.storage.urls import url_of, url_of_folder, with_urls, working_copy
from transformer_jax.data.text import read_lines
from transformer_jax.inference.loading import load
from transformer_jax.interop.hf_run_directory import convert
from transformer_jax.runs.lease import Lease
from transformer_jax.runs.lock import RunLock, check_lock
from transformer_jax.runs.manifest import run_storage
from transformer_jax.runs.run_directory import RunDirectory


def content(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {name: text for name, text in named.items() if name != ".objects.json"}


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("manifest", "manifest.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def run(bucket):
    """The URL of a run, its working copy with two checkpoints, and its storage."""
    url = f"{bucket}/runs/a"
    folder = working_copy(url)
    write(folder, config="1", checkpoints__s1__params__d="a", checkpoints__s1__manifest="m1")
    write(folder, checkpoints__s2__params__d="b", checkpoints__s2__manifest="m2")
    storage = storage_of(folder)
    storage.publish()
    return url, folder, storage


class Killed(BaseException):
    pass


def killed_after(monkeypatch, changes):
    """From now on the process ends before its object number ``changes`` is changed."""
    left = iter(range(changes))

    def wrapped(method):
        def change(self, *args):
            if next(left, None) is None:
                raise Killed
            return method(self, *args)

        return change

    for name in ("upload", "remove_one"):
        monkeypatch.setattr(Objects, name, wrapped(getattr(Objects, name)))


@pytest.mark.slow
def test_what_is_published_is_fetched(run, tmp_path):
    url, folder, storage = run
    assert content(fetched(url)) == content(folder)
    write(folder, config="2", checkpoints__s3__params__d="c", checkpoints__s3__manifest="m3")
    shutil.rmtree(folder / "checkpoints" / "s1")
    storage.publish()
    assert content(fetched(url)) == content(folder)
    shutil.rmtree(folder)
    storage.fetch()
    assert content(folder) == content(fetched(url))


def test_exports_beside_a_run_that_is_read_stay_on_their_machine(run):
    url, folder, _ = run
    write(fetched(url), ctranslate2__key__model="x")
    write(folder, ctranslate2__key__model="y")
    run_storage(folder).publish()
    assert (fetched(url) / "ctranslate2" / "key" / "model").read_text() == "x"
    assert not [name for name in Objects(url).list() if name.startswith("ctranslate2/")]


def test_only_what_changed_is_moved(run, monkeypatch):
    url, folder, storage = run
    fetched(url)
    moved = []
    for name in ("upload", "download"):
        monkeypatch.setattr(Objects, name, lambda self, *args: moved.append(args))
    storage.publish()
    storage.fetch()
    fetched(url)
    assert moved == []
    write(folder, config="22")
    storage.publish()
    assert [name for _, name in moved] == ["config"]


@pytest.mark.parametrize("changes", range(8))
@pytest.mark.quick("0", "4")
def test_at_every_moment_of_a_publication_each_checkpoint_is_whole(run, monkeypatch, changes):
    url, folder, storage = run
    before = content(folder)
    write(folder, checkpoints__s2__params__d="bb", checkpoints__s2__manifest="m2 of bb")
    write(folder, checkpoints__s3__params__d="c", checkpoints__s3__manifest="m3")
    shutil.rmtree(folder / "checkpoints" / "s1")
    after = content(folder)
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        killed_after(patch, changes)
        storage.publish()
    found = content(fetched(url))
    steps = {name.split("/")[1] for name in found if name.startswith("checkpoints/")}
    assert steps & {"s1", "s3"}
    for step in steps:
        part = {name: text for name, text in found.items() if f"/{step}/" in name}
        assert part in [
            {name: text for name, text in whole.items() if f"/{step}/" in name}
            for whole in (before, after)
        ]


@pytest.mark.parametrize("changes", range(6))
@pytest.mark.quick("1", "3")
def test_a_run_of_which_a_part_is_published_has_its_settings(bucket, monkeypatch, changes):
    url = f"{bucket}/runs/b"
    folder = working_copy(url)
    for name in ("config.json", "tokenizer.json", "metrics.jsonl"):
        write(folder, **{name: "1"})
    write(folder, checkpoints__s1__params__d="a", checkpoints__s1__manifest="m1")
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        killed_after(patch, changes)
        storage_of(folder).publish()
    names = storage_of(folder).names()
    if RunDirectory(url).has_begun():
        assert {"config.json", "tokenizer.json"} < names
    else:
        RunDirectory.check_free(url)
    shutil.rmtree(folder)
    storage_of(folder).fetch()
    assert not list(folder.glob("checkpoints/*")) or list(
        folder.glob("checkpoints/*/manifest.json")
    )


def test_a_draft_is_published_under_its_later_name(run):
    url, folder, storage = run
    draft = folder.parent / "draft"
    write(draft, params__d="c", manifest="m3")
    storage.publish({"checkpoints/s3": draft})
    draft.rename(folder / "checkpoints" / "s3")
    assert content(fetched(url)) == content(folder)


def test_one_writer_at_a_time_holds_a_run(run, monkeypatch, tmp_path):
    url, folder, _ = run
    with RunLock(url):
        check_lock(folder)
        # As from another machine, whose working copy lies elsewhere.
        monkeypatch.setenv("TRANSFORMER_JAX_STORAGE", str(tmp_path / "elsewhere"))
        with pytest.raises(CheckpointError, match=rf"{url}: in use by process"):
            RunLock(url).__enter__()
        Objects(url).write("lock.json", b'{"token": "another"}')
        monkeypatch.setenv("TRANSFORMER_JAX_STORAGE", str(tmp_path / "cache"))
        with pytest.raises(CheckpointError, match="no longer locked by this process"):
            check_lock(folder)
        Objects(url).remove(["lock.json"])
        with pytest.raises(CheckpointError, match="no longer locked"):
            check_lock(folder)
        Objects(url).write("lock.json", (folder / "lock.json").read_bytes())
    assert "lock.json" not in Objects(url).list()


def stranger():
    """The lock of a process of another machine."""
    return json.dumps(this_process() | {"machine": "another", "host": "another", "token": "x"})


@pytest.mark.slow
def test_what_another_writer_added_stays(run):
    url, folder, storage = run
    Objects(url).write("checkpoints/s4/manifest.json", b"m4")
    Objects(url).write("checkpoints/s5/params/d", b"without a manifest")
    shutil.rmtree(folder / "checkpoints" / "s1")
    storage.publish()
    names = set(Objects(url).list())
    assert "checkpoints/s4/manifest.json" in names
    assert not [name for name in names if name.startswith(("checkpoints/s1/", "checkpoints/s5/"))]


@pytest.mark.parametrize("allowed", range(2))
def test_a_writer_that_has_lost_its_run_neither_writes_nor_removes(run, allowed):
    url, folder, storage = run
    before = set(Objects(url).list())
    write(folder, checkpoints__s3__params__d="c", checkpoints__s3__manifest="m3")
    shutil.rmtree(folder / "checkpoints" / "s1")
    left = iter(range(allowed))

    def check():
        if next(left, None) is None:
            raise CheckpointError("lost")

    with pytest.raises(CheckpointError, match="lost"):
        storage.publish(check=check)
    added = {f"checkpoints/s3/{name}" for name in ("params/d", "manifest.json")}
    assert set(Objects(url).list()) == (before | added if allowed else before)


def test_a_run_that_another_machine_writes_is_not_changed_without_a_lock(run):
    url, folder, _ = run
    Objects(url).write("config.json", b"{}")
    Objects(url).write("lock.json", stranger().encode())
    with pytest.raises(CheckpointError, match=rf"{url}: in use by process \d+ on another"):
        check_lock(folder)
    with pytest.raises(CheckpointError, match="in use by process"):
        RunDirectory.create(url, overwrite=True)


def test_of_two_that_take_a_run_over_one_has_it(run, monkeypatch):
    url, _, _ = run
    Objects(url).write("lock.json", stranger().encode())
    monkeypatch.setattr("transformer_jax.runs.lease._SETTLE", 0.0)
    mine = Lease(url, stale=-1.0)  # silent for longer than that
    mine.take("mine")
    mine.check("mine")
    monkeypatch.setattr(  # the other one writes in between
        "time.sleep", lambda _: Objects(url).write("lock.json", stranger().encode())
    )
    Objects(url).write("lock.json", stranger().encode())
    with pytest.raises(CheckpointError, match="another process has just started to write there"):
        mine.take("mine")


def test_a_run_that_is_lost_while_it_is_downloaded_is_not_entered(run, monkeypatch):
    url, folder, _ = run
    fetch = ObjectStorage.fetch

    def slow(self, *args):
        fetch(self, *args)
        Objects(url).write("lock.json", stranger().encode())

    monkeypatch.setattr(ObjectStorage, "fetch", slow)
    with pytest.raises(CheckpointError, match="no longer locked by this process"):
        RunLock(url).__enter__()
    assert not (folder / "lock.json").exists()
    assert "lock.json" in Objects(url).list()  # of the other one


def test_an_object_that_is_left_out_is_not_left_as_it_was(run):
    url, folder, storage = run
    copy = fetched(url)
    write(folder, checkpoints__s2__params__d="bb", checkpoints__s2__manifest="m2 of bb")
    storage.publish()
    fetched(url, lambda name: name == "checkpoints/s2/params/d")
    assert not (copy / "checkpoints" / "s2" / "params" / "d").exists()
    assert (copy / "checkpoints" / "s2" / "manifest.json").read_text() == "m2 of bb"


def test_objects_that_stand_for_folders_are_passed_over(run):
    url, folder, _ = run
    Objects(url).write("checkpoints/s2/", b"")
    assert content(fetched(url)) == content(folder)


@pytest.mark.slow
def test_an_object_where_a_folder_was(bucket):
    Objects(f"{bucket}/a").write("x.txt", b"one\n")
    fetched(f"{bucket}/a")
    Objects(f"{bucket}/a").remove(["x.txt"])
    Objects(f"{bucket}/a").write("", b"two\n")
    assert list(read_lines(f"{bucket}/a")) == ["two"]


def test_what_needs_local_files_refuses_a_url(bucket, tmp_path):
    with pytest.raises(ConfigError, match=f"{bucket}/run: converted runs are written to this mach"):
        convert(tmp_path, f"{bucket}/run", overwrite=False)
    with pytest.raises(ConfigError, match=f"engine_cache {bucket}/cache: CTranslate2 reads local"):
        load(tmp_path, engine="ctranslate2", engine_cache=f"{bucket}/cache")


def test_a_run_directory_of_a_url_is_its_working_copy(run):
    url, folder, _ = run
    assert RunDirectory(url).path == folder
    assert url_of_folder(folder) == url
    assert with_urls(f"{folder}/config.json: damaged") == f"{url}/config.json: damaged"
    assert RunDirectory(url).has_begun()
    with pytest.raises(ConfigError, match="is not empty, and not a run"):
        RunDirectory.check_free(url)


def test_data_are_read_from_a_url(bucket):
    Objects(f"{bucket}/a.txt").write("", b"one\ntwo\n")
    assert list(read_lines(f"{bucket}/a.txt")) == ["one", "two"]
    Objects(f"{bucket}/a.txt").write("", b"three\n")
    assert list(read_lines(f"{bucket}/a.txt")) == ["three"]


def test_what_is_not_there_is_told(bucket):
    with pytest.raises(CheckpointError, match=f"{bucket}/none: nothing is there"):
        fetched(f"{bucket}/none")
    with pytest.raises(DataError, match=f"--data.text {bucket}/none.txt: nothing is there"):
        list(read_lines(f"{bucket}/none.txt", "--data.text"))


def test_a_missing_bucket_is_told(bucket):
    said = "there is no bucket nobucket: create it, or check its name"
    url = f"{bucket.partition(':')[0]}://nobucket/a"
    for act in (lambda: fetched(url), lambda: RunLock(url).__enter__()):
        with pytest.raises(CheckpointError, match=said):
            act()


@pytest.mark.slow
def test_a_store_that_refuses_or_does_not_answer_is_told(bucket, object_store, monkeypatch):
    from transformer_jax.core.storage.objects import _file_system

    def refuse(*args, **kwargs):
        raise PermissionError("Access Denied")

    with monkeypatch.context() as patch:
        patch.setattr(Objects(bucket)._files, "find", refuse)
        with pytest.raises(CheckpointError, match="no permission for the bucket"):
            fetched(f"{bucket}/a")
    scheme, environment = object_store
    server = next(name for name, value in environment.items() if value.startswith("http"))
    monkeypatch.setenv(server, "http://127.0.0.1:9")
    _file_system.cache_clear()
    began = time.monotonic()
    what = {"s3": "the network and AWS_ENDPOINT_URL", "gs": "the network"}[scheme]
    with pytest.raises(CheckpointError, match=f"does not answer: check {what}"):
        fetched(f"{bucket}/a")
    assert time.monotonic() - began < 60


def test_checks_need_no_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for url, said in {
        "hdfs://node/run": r"hdfs://node/run: hdfs:// is not supported: give a local path",
        "s3://bucket": "a bucket and a name are needed",
        "s3:/bucket/../a": "a bucket and a name are needed",
    }.items():
        with pytest.raises(ConfigError, match=said):
            RunDirectory.create(url)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    needs = r"gs://bucket/run: gs:// needs the package gcsfs: `pip install 'transformer-jax\[gcs\]'"
    with pytest.raises(ConfigError, match=needs):
        url_of("gs:/bucket/run")
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_a_local_folder_is_its_own_storage(tmp_path):
    assert not isinstance(storage_of(tmp_path), ObjectStorage)
    assert storage_of(tmp_path / "none").names() == set()
    assert fetched(tmp_path) == tmp_path
