"""Word vectors that training finds, what it draws, and resuming: rows B18, B19 and B20."""

import dataclasses
import itertools
import json
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.word_vectors.planted import planted_accuracy, planted_text
from transformer_jax.cli.train_word_vectors import main
from transformer_jax.core.errors import CheckpointError, ConfigError, DataError, NumericsError
from transformer_jax.word_vectors import run
from transformer_jax.word_vectors.corpus import LINE_END, Corpus
from transformer_jax.word_vectors.formats import VECTORS, load_embeddings
from transformer_jax.word_vectors.settings import BlockShape, TextConfig, Word2VecConfig
from transformer_jax.word_vectors.word2vec_training import (
    Blocks,
    Tables,
    epoch_blocks,
    initial_tables,
    make_step,
    train_epochs,
)

SMALL = Word2VecConfig(size=16, epochs=3, sample=0.0, window=3)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(planted_text())
    return path


@pytest.mark.slow
@pytest.mark.parametrize("method", ["skip-gram", "cbow"])
@pytest.mark.parametrize("loss", ["negative-sampling", "softmax"])
def test_planted_relations_are_answered(tmp_path, text, method, loss):
    config = Word2VecConfig(size=32, epochs=6, sample=0.0, method=method, loss=loss)
    made = run.train_word_vectors([text], tmp_path / "out", training=config)
    assert planted_accuracy(made) > 0.95
    untrained = np.asarray(initial_tables(len(made), config).inputs)
    assert planted_accuracy(dataclasses.replace(made, vectors=untrained)) < 0.3


@pytest.mark.slow
def test_the_same_seed_gives_the_same_vectors_and_another_others(tmp_path, text):
    made = [
        run.train_word_vectors(
            [text], tmp_path / str(i), training=dataclasses.replace(SMALL, seed=seed)
        ).vectors
        for i, seed in enumerate((0, 0, 1))
    ]
    np.testing.assert_array_equal(made[0], made[1])
    assert np.abs(made[0] - made[2]).max() > 0.01


def test_resumed_is_uninterrupted_bit_for_bit(tmp_path, text):
    whole = run.train_word_vectors([text], tmp_path / "whole", training=SMALL)
    seen = []

    def stop(report, corpus):
        seen.append(report.progress)
        if report.progress > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.train_word_vectors([text], tmp_path / "cut", training=SMALL, report=stop)
    assert not (tmp_path / "cut" / VECTORS).exists()
    later = []
    resumed = run.resume_word_vectors(
        tmp_path / "cut", report=lambda report, corpus: later.append(report.progress)
    )
    assert min(later) > 1 / SMALL.epochs  # the first epoch is not trained again
    np.testing.assert_array_equal(whole.vectors, resumed.vectors)
    read = load_embeddings(tmp_path / "cut")
    np.testing.assert_array_equal(read.vectors, whole.vectors)
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == [run.CONFIG, VECTORS]
    again = run.resume_word_vectors(tmp_path / "cut")  # all epochs are done
    np.testing.assert_array_equal(again.vectors, whole.vectors)


@pytest.mark.slow
def test_resuming_removes_what_a_killed_training_left(tmp_path, text):
    killed = (
        "import os, signal, sys\n"
        "from transformer_jax.word_vectors import run\n"
        "run.train_epochs = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "run.train_word_vectors([sys.argv[1]], sys.argv[2], training=run.Word2VecConfig(epochs=1))"
    )
    output = tmp_path / "out"
    command = [sys.executable, "-c", killed, str(text), str(output)]
    assert subprocess.run(command, check=False).returncode == -9
    [config, left] = sorted(output.iterdir(), key=lambda path: path.is_dir())
    assert any(path.stat().st_size >= 1 << 10 for path in left.iterdir())  # the corpus
    run.resume_word_vectors(output)
    assert {path.name for path in output.iterdir()} == {config.name, VECTORS}


@pytest.mark.slow
def test_a_training_is_resumed_with_its_own_text_alone(tmp_path, text, monkeypatch):
    def stop(report, corpus):
        if report.progress > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.train_word_vectors([text], tmp_path / "cut", training=SMALL, report=stop)
    state = tmp_path / "cut" / run.STATE
    sound = bytearray(state.read_bytes())
    state.write_bytes(bytes([*sound[:-9], sound[-9] ^ 64, *sound[-8:]]))
    with pytest.raises(CheckpointError, match="is damaged: its checksum differs"):
        run.resume_word_vectors(tmp_path / "cut")
    state.write_bytes(sound)

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(run, "read_file", denied)
        with pytest.raises(CheckpointError, match=r"state.*cannot be read: Permission denied"):
            run.resume_word_vectors(tmp_path / "cut")
    text.write_text(text.read_text() + "thing0x0 thing1x1\n")
    with pytest.raises(CheckpointError, match="to other texts"):
        run.resume_word_vectors(tmp_path / "cut")
    (tmp_path / "cut" / run.STATE).write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="is damaged"):
        run.resume_word_vectors(tmp_path / "cut")
    (tmp_path / "cut" / run.CONFIG).write_text("[1]")
    with pytest.raises(CheckpointError, match="damaged or foreign"):
        run.resume_word_vectors(tmp_path / "cut")
    with pytest.raises(CheckpointError, match="nothing to resume"):
        run.resume_word_vectors(tmp_path)


def test_vectors_are_replaced_only_if_asked(tmp_path, text):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / VECTORS).write_bytes(b"dear")
    with pytest.raises(ConfigError, match="there are word vectors already"):
        run.train_word_vectors([text], tmp_path / "out", training=SMALL)
    assert (tmp_path / "out" / VECTORS).read_bytes() == b"dear"
    made = run.train_word_vectors([text], tmp_path / "out", training=SMALL, overwrite=True)
    told = json.loads((tmp_path / "out" / run.CONFIG).read_text())
    assert told["training"]["size"] == SMALL.size
    assert told["results"]["vocabulary"] == len(made)
    assert told["results"]["words"] == len(text.read_text().split())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"size": 0}, r"training\.size is 0: at least 1"),
        ({"window": 0}, r"training\.window is 0"),
        ({"negative": 0}, r"training\.negative is 0"),
        ({"sample": -1.0}, r"training\.sample is -1"),
        ({"learning_rate": 0.0}, r"training\.learning_rate is 0"),
        ({"learning_rate": float("nan")}, r"training\.learning_rate is nan"),
        ({"shared_negatives": 0}, r"training\.shared_negatives is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_written(
    tmp_path, text, change, says
):
    with pytest.raises(ConfigError, match=says):
        run.train_word_vectors(
            [text], tmp_path / "out", training=dataclasses.replace(SMALL, **change)
        )
    assert not (tmp_path / "out").exists()


def test_texts_that_cannot_be_read_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        run.train_word_vectors([tmp_path / "none.txt"], tmp_path / "out")
    with pytest.raises(ConfigError, match="no text files"):
        run.train_word_vectors([], tmp_path / "out")
    with pytest.raises(ConfigError, match=r"text\.min_count is 0"):
        run.train_word_vectors(["x"], tmp_path / "out", text=TextConfig(min_count=0))
    assert not (tmp_path / "out").exists()


def test_a_learning_rate_that_is_too_large_ends_in_one_line(tmp_path, text):
    wild = dataclasses.replace(SMALL, learning_rate=1.0, negative=2000, shared_negatives=1)
    with pytest.raises(NumericsError, match="loss is not finite: lower"):
        run.train_word_vectors([text], tmp_path / "out", training=wild)


def of_ids(ids, words):
    counts = np.bincount(np.array(ids)[np.array(ids) >= 0], minlength=words)
    names = tuple(f"w{i}" for i in range(words))
    return Corpus(names, counts, np.array(ids, np.int32), int(counts.sum()))


def drawn(corpus, shape, seed=(0, 0), keep=None):
    V = len(corpus.words)
    keep = np.ones(V, np.float32) if keep is None else keep
    return list(epoch_blocks(corpus, keep, np.full(V, 1 / V, np.float32), shape, seed))


def test_every_word_is_a_center_word_once_and_padding_none():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 9, 1000)
    ids[rng.random(1000) < 0.1] = LINE_END
    corpus = of_ids(ids, 9)
    shape = BlockShape(words=8, blocks=4, negatives=3, reach=2)
    found = []
    for blocks in drawn(corpus, shape):
        assert blocks.words.shape == (8 * 4 + 4,)
        real = blocks.windows.ravel() > 0
        found += blocks.words[2:-2][real].tolist()
        assert set(np.unique(blocks.windows)) <= {0, 1, 2}
    assert found == ids[ids >= 0].tolist()
    assert blocks.progress == 1


def test_sentences_are_lines_without_what_is_left_out():
    corpus = of_ids([3, 0, -2, 3, LINE_END, 3, 3], 4)
    keep = np.array([0, 1, 1, 1], np.float32)  # word 0 is always dropped
    [blocks] = drawn(corpus, BlockShape(4, 1, 2, 1), keep=keep)
    assert blocks.words.tolist()[1:-1] == [3, 3, 3, 3]
    lines = blocks.sentences.tolist()
    assert lines[1] == lines[2] != lines[3] == lines[4]
    assert lines[0] not in lines[1:5]


def test_words_are_kept_and_negatives_drawn_as_often_as_asked():
    corpus = of_ids(np.arange(200_000) % 4, 4)
    keep, noise = np.array([0.1, 0.5, 0.9, 1.0], np.float32), np.array([0.1, 0.2, 0.3, 0.4])
    words, negatives, windows = [], [], []
    shape = BlockShape(64, 16, 64, 5)
    for blocks in epoch_blocks(corpus, keep, noise, shape, (1, 2)):
        real = blocks.windows.ravel() > 0
        words += blocks.words[5:-5][real].tolist()
        windows += blocks.windows.ravel()[real].tolist()
        negatives += blocks.negatives.ravel().tolist()
    np.testing.assert_allclose(np.bincount(words) / 50_000, keep, atol=0.01)
    np.testing.assert_allclose(np.bincount(negatives) / len(negatives), noise, atol=0.01)
    np.testing.assert_allclose(np.bincount(windows)[1:] / len(windows), 0.2, atol=0.01)


def test_epochs_and_seeds_draw_differently():
    corpus = of_ids(np.arange(500) % 4, 4)
    shape = BlockShape(64, 4, 8, 5)
    first, again, other = (drawn(corpus, shape, seed)[0] for seed in ((0, 0), (0, 0), (0, 1)))
    np.testing.assert_array_equal(first.windows, again.windows)
    np.testing.assert_array_equal(first.negatives, again.negatives)
    assert (first.windows != other.windows).any()


def test_each_epoch_is_drawn_anew(monkeypatch):
    seeds = []

    def recorded(corpus, keep, noise, shape, seed):
        seeds.append(seed)
        return epoch_blocks(corpus, keep, noise, shape, seed)

    monkeypatch.setattr("transformer_jax.word_vectors.word2vec_training.epoch_blocks", recorded)
    config = Word2VecConfig(size=4, epochs=3, seed=7)
    corpus = of_ids(np.arange(400) % 50, 50)
    for _ in train_epochs(corpus, config, initial_tables(50, config), first=1):
        pass
    assert seeds == [(7, 1), (7, 2)]


def random_blocks(shape, words, seed=0):
    rng = np.random.default_rng(seed)
    length = shape.words * shape.blocks + 2 * shape.reach
    return Blocks(
        rng.integers(0, words, length).astype(np.int32),
        np.zeros(length, np.int32),
        rng.integers(0, shape.reach + 1, (shape.blocks, shape.words)).astype(np.int32),
        rng.integers(0, words, (shape.blocks, shape.negatives)).astype(np.int32),
        0.0,
    )


@pytest.mark.parametrize("method", ["skip-gram", "cbow"])
def test_a_step_adds_rows_in_place(method):
    """A copy of a table in each step would cost more than the step does."""
    config = Word2VecConfig(size=24, method=method, block=8, shared_negatives=8)
    shape = dataclasses.replace(config.shape, blocks=4)
    step = make_step(config)
    tables, blocks = initial_tables(997, config), random_blocks(shape, 997)
    program = step.lower(tables, blocks, np.float32(0.1)).compile().as_text()
    copies = [line for line in program.splitlines() if " copy(" in line and "f32[997,24]" in line]
    assert not copies


@pytest.mark.quick("skip-gram")
@pytest.mark.parametrize("method", ["skip-gram", "cbow"])
def test_blocks_of_a_step_update_one_after_the_other(method):
    config = Word2VecConfig(size=8, method=method, block=4, shared_negatives=4, window=2)
    shape = dataclasses.replace(config.shape, blocks=3)
    blocks, step, rate = random_blocks(shape, 11), make_step(config), np.float32(0.5)
    start = Tables(*(jax.random.normal(jax.random.key(i), (11, 8)) for i in range(2)))
    tables = jax.tree.map(lambda x: x.copy(), start)
    for i in range(shape.blocks):
        part = slice(i * shape.words, (i + 1) * shape.words + 2 * shape.reach)
        one = Blocks(
            blocks.words[part],
            blocks.sentences[part],
            blocks.windows[i : i + 1],
            blocks.negatives[i : i + 1],
            0.0,
        )
        tables, _ = step(tables, one, rate)
    together, _ = step(start, blocks, rate)
    np.testing.assert_allclose(together.inputs, tables.inputs, atol=1e-5)
    np.testing.assert_allclose(together.outputs, tables.outputs, atol=1e-5)


def test_padding_changes_nothing():
    config = Word2VecConfig(size=8, block=4, shared_negatives=4, window=2)
    shape = dataclasses.replace(config.shape, blocks=2)
    blocks = random_blocks(shape, 11)._replace(windows=np.zeros((2, 4), np.int32))
    start = Tables(*(jax.random.normal(jax.random.key(i), (11, 8)) for i in range(2)))
    expected = jax.tree.map(np.asarray, start)
    tables, loss = make_step(config)(start, blocks, np.float32(1.0))
    np.testing.assert_array_equal(tables.inputs, expected.inputs)
    np.testing.assert_array_equal(tables.outputs, expected.outputs)
    assert loss.tolist() == [0, 0]


def test_the_learning_rate_falls_linearly():
    corpus = of_ids(np.arange(30_000) % 700, 700)
    config = Word2VecConfig(size=4, epochs=2, learning_rate=0.05, sample=0.0)
    told = []
    for _ in train_epochs(corpus, config, initial_tables(700, config), report=told.append):
        pass
    assert len(told) >= 2
    for report in told:
        assert report.learning_rate == pytest.approx(0.05 * max(1 - report.progress, 1e-4))
    assert told[-1].progress == 1
    assert all(a.progress < b.progress for a, b in itertools.pairwise(told))


@pytest.fixture
def begun(tmp_path, text):
    """A training that was stopped after its first epoch."""

    def stop(report, corpus):
        if report.progress > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.train_word_vectors([text], tmp_path / "cut", training=SMALL, report=stop)
    return tmp_path / "cut"


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [("training", "seed", 7), ("training", "learning_rate", 0.2), ("text", "min_count", 2)],
)
@pytest.mark.slow
def test_a_training_is_not_resumed_with_other_settings(begun, group, name, value):
    fields = json.loads((begun / run.CONFIG).read_text())
    was, fields[group][name] = fields[group][name], value
    (begun / run.CONFIG).write_text(json.dumps(fields))
    told = re.escape(f"changed since 1 epoch: {group}.{name} is {value} ({was} before)")
    with pytest.raises(CheckpointError, match=told):
        run.resume_word_vectors(begun)


def test_a_training_is_not_resumed_on_reordered_lines(begun, text):
    text.write_text("".join(reversed(text.read_text().splitlines(keepends=True))))
    with pytest.raises(CheckpointError, match="words, counts or order have changed since 1 epoch"):
        run.resume_word_vectors(begun)


def test_no_vectors_are_written_where_the_name_is_empty(tmp_path, text, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="output is empty: name a folder"):
        run.train_word_vectors([text], "", training=SMALL)
    assert main(["train", str(text), "--output", ""]) == 2
    assert capsys.readouterr().err == "error: --output is '': a path is needed\n"
    assert sorted(tmp_path.iterdir()) == before
