"""Manifests of recordings, their features, and batches of them; bad ones in one line; row T1."""

import dataclasses
import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

from tests.data.speech.test_audio import SIGNAL, SMALL, pcm
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.speech.features import FeatureStatistics, Normalization, read_features
from transformer_jax.data.speech.recording_store import build_speech_store, make_speech_batch
from transformer_jax.data.speech.recordings import (
    SpeechData,
    SpeechReadOptions,
    build_features,
    load_recordings,
    read_manifest,
)
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.functional.spectrogram import stack_frames

F = 3


@pytest.fixture
def folder(tmp_path):
    """Features of 4, 1, 6 and 3 frames, with a manifest."""
    rng = np.random.default_rng(0)
    for i, frames in enumerate((4, 1, 6, 3)):
        np.save(tmp_path / f"{i}.npy", 5 + 2 * rng.standard_normal((frames, F)))
    lines = ["0.npy\tA one", "1.npy\ttwo", "", "2.npy\tthree", "3.npy\tfour four"]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def refused(call, message, kind=DataError):
    with pytest.raises(kind, match=re.escape(message)) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_manifest_lists_paths_beside_it(folder):
    found = read_manifest(str(folder / "train.tsv"), prepare=Preparation(lowercase=True))
    assert found.paths == [str(folder / f"{i}.npy") for i in range(4)]
    assert found.texts == ["a one", "two", "three", "four four"]
    assert found.where(2) == f"{folder}/train.tsv:4: "
    rows = [{"path": f"{i}.npy", "text": "x"} for i in range(4)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_manifest(str(folder / "train.jsonl")).paths == found.paths


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0.npy\t", "bad.tsv:2: no text: a path and a text are needed"),
        ("0.npy\t  ", "bad.tsv:2: no text"),
        ("\tone", "bad.tsv:2: no path"),
        ("0.npy", "bad.tsv:2: 1 column, but 2 are needed"),
        ("9.npy\tone", "9.npy: no such file (looked from"),
        ("train.tsv\tone", "train.tsv: the name ends in none of .wav, .npy, .npz"),
    ],
)
def test_a_line_that_lists_no_recording_is_refused(folder, line, message):
    (folder / "bad.tsv").write_text(f"0.npy\tone\n{line}\n")
    refused(lambda: read_manifest(str(folder / "bad.tsv")), message)
    if message.endswith("looked from"):
        refused(lambda: read_manifest(str(folder / "bad.tsv")), "bad.tsv:2: ")


def test_manifests_that_list_nothing_are_refused(folder):
    (folder / "empty.tsv").write_text("\n")
    refused(lambda: read_manifest(str(folder / "empty.tsv")), "empty.tsv: no recordings")
    (folder / "a.txt").write_text("0.npy\tone\n")
    read = lambda: read_manifest(str(folder / "a.txt"), "data.train")
    refused(read, "the name of a manifest ends in .tsv, .csv, .jsonl or .json", ConfigError)
    (folder / "b.jsonl").write_text('{"path": "0.npy"}\n')
    refused(
        lambda: read_manifest(str(folder / "b.jsonl")), "no field 'text', only 'path': a manifest"
    )
    refused(lambda: load_recordings(SpeechData()), "give data.train, a manifest", ConfigError)


def write(folder, name, content):
    (folder / name).write_bytes(content) if isinstance(content, bytes) else np.save(
        folder / name, content
    )
    return folder / name


def bad(value):
    features = np.ones((5, F))
    features[2, 1] = value
    return features


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npy", bad(np.nan), "a.npy: frame 3 of 5 holds NaN or infinity"),
        ("a.npy", bad(-np.inf), "a.npy: frame 3 of 5 holds NaN or infinity"),
        ("a.npy", bad(1e300), "a.npy: frame 3 of 5 holds NaN or infinity"),
        ("a.npy", np.ones((0, F)), "a.npy: no frames: it is empty"),
        ("a.npy", np.ones(7), "a.npy: an array [7] of float64: numbers [frames, features] are"),
        ("a.npy", np.array([["a"]]), "a.npy: an array [1, 1] of <U1"),
        ("a.npy", b"no array", "a.npy: no .npy file that can be read"),
        ("a.npy", b"", "a.npy: no .npy file that can be read"),
        ("a.npz", b"PK no archive", "a.npz: no .npz file that can be read"),
        ("a.wav", b"RIFF", "a.wav: no WAV file that can be read"),
        ("a.wav", pcm(SIGNAL[:0], 16), "a.wav: 0 samples, and a frame has 200"),
        ("a.wav", pcm(SIGNAL[:199], 16), "a.wav: 199 samples, and a frame has 200"),
        ("a.wav", pcm(SIGNAL, 16, 44_100), "44,100 samples a second, but 8,000 are needed"),
        ("a.mp3", b"", "a.mp3: .mp3 is not decoded here: make .wav files next to them"),
    ],
)
def test_a_file_without_features_is_refused(folder, name, content, message):
    path = write(folder, name, content) if name != "a.mp3" else folder / name
    refused(lambda: read_features(path, SMALL, "m.tsv:3: "), message)
    refused(lambda: read_features(path, SMALL, "m.tsv:3: "), f"m.tsv:3: {path}")


def test_a_missing_file_and_a_folder_are_refused(folder):
    refused(lambda: read_features(folder / "no.npy", SMALL), "no.npy: no such file")
    (folder / "is.npy").mkdir()
    refused(lambda: read_features(folder / "is.npy", SMALL), "is.npy: cannot be read")


def test_an_archive_has_one_array_or_one_called_features(folder):
    features = np.ones((2, F), np.float16)
    np.savez(folder / "one.npz", anything=features)
    np.savez_compressed(folder / "named.npz", features=features, other=np.ones(3))
    np.savez(folder / "two.npz", a=features, b=features)
    for name in ("one", "named"):
        found, _ = read_features(folder / f"{name}.npz", SMALL)
        np.testing.assert_array_equal(found, features.astype(np.float32))
    refused(
        lambda: read_features(folder / "two.npz", SMALL), "two.npz: holds the arrays a, b: name"
    )


def test_a_waveform_of_another_rate_is_resampled_if_asked(folder):
    write(folder, "a.wav", pcm(SIGNAL, 16, 16_000))
    resampling = dataclasses.replace(SMALL, resample=True)
    assert read_features(folder / "a.wav", resampling)[0].shape == (1 + (800 - 200) // 80, 8)


@pytest.mark.parametrize("cached", [False, True])
def test_features_are_those_of_the_files(folder, cached):
    recordings = read_manifest(str(folder / "train.tsv"))
    cache = folder / "cache" if cached else None
    for _ in range(2):  # the second time from the cache
        store = build_features(recordings, SMALL, cache=cache)
        assert store.frames.tolist() == [4, 1, 6, 3]
        for i in range(4):
            np.testing.assert_array_equal(store[i], np.load(folder / f"{i}.npy").astype(np.float32))


def test_a_changed_file_is_read_anew(folder):
    recordings = read_manifest(str(folder / "train.tsv"))
    before = build_features(recordings, SMALL, cache=folder / "cache")
    np.save(folder / "1.npy", np.ones((2, F)))
    after = build_features(recordings, SMALL, cache=folder / "cache")
    assert after.frames.tolist() == [4, 2, 6, 3]
    assert (before.digests != after.digests).any(1).tolist() == [False, True, False, False]


@pytest.mark.parametrize("cached", [False, True])
def test_frames_of_another_width_are_refused(folder, cached):
    recordings = read_manifest(str(folder / "train.tsv"))
    cache = folder / "cache" if cached else None
    for _ in range(2):
        wrong = re.escape(f"train.tsv:1: {folder}/0.npy: frames of 3 values, but 4 are needed")
        with pytest.raises(DataError, match=wrong):
            build_features(recordings, SMALL, 4, cache)
        build_features(recordings, SMALL, 3, cache)
    np.save(folder / "2.npy", np.ones((2, 5)))
    refused(
        lambda: build_features(recordings, SMALL, None, cache),
        f"train.tsv:4: {folder}/2.npy: frames of 5 values, but 3 are needed",
    )


def test_normalized_features_have_mean_0_and_deviation_1(folder):
    store = build_features(read_manifest(str(folder / "train.tsv")), SMALL)
    normalize = store.normalization()
    every = normalize(np.asarray(store.features))
    np.testing.assert_allclose(every.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(every.std(0), 1, rtol=1e-5)


def test_a_constant_feature_becomes_0(folder):
    for i in range(4):
        np.save(folder / f"{i}.npy", np.full((3, F), 1000.1))
    store = build_features(read_manifest(str(folder / "train.tsv")), SMALL)
    normalize = store.normalization()
    np.testing.assert_array_equal(normalize(store[0]), 0)
    assert normalize.std == (1.0,) * F


def test_a_feature_that_hardly_changes_has_the_deviation_of_float64():
    draws = np.random.default_rng(0).integers(0, 4, (500, 2))
    frames = (1000 * (1 + 2.0**-22 * draws)).astype(np.float32)
    found = FeatureStatistics.of(part for part in (frames[:7], frames[7:])).normalization()
    np.testing.assert_allclose(found.std, frames.astype(np.float64).std(0), rtol=1e-9)
    np.testing.assert_allclose(found.mean, frames.astype(np.float64).mean(0), rtol=1e-14)


@pytest.mark.parametrize("stacked", [1, 2, 4])
def test_a_batch_holds_normalized_stacked_frames(folder, stacked):
    recordings = read_manifest(str(folder / "train.tsv"))
    features = build_features(recordings, SMALL)
    tokenizer = train_tokenizer("characters", recordings.texts, 100)
    normalization = Normalization((5.0, 4.0, 3.0), (2.0, 1.0, 0.5))
    store = build_speech_store(
        features, recordings, tokenizer, normalization, stacked_frames=stacked, max_length=512
    )
    indices = np.array([2, -1, 0])
    batch = make_speech_batch(store, indices, 8, 12, tokenizer.pad)
    source, lengths = batch["inputs"]["source"], batch["inputs"]["source_lengths"]
    assert source.shape == (3, 8, stacked * F)
    for row, i in enumerate(indices.tolist()):
        if i < 0:
            assert not source[row].any()
            assert (lengths[row], batch["lengths"][row]) == (0, 0)
            continue
        normal = (features[i] - np.array(normalization.mean)) / np.array(normalization.std)
        wanted = stack_frames(jnp.asarray(normal, jnp.float32), stacked)
        assert lengths[row] == len(wanted) == store.source_lengths[i]
        np.testing.assert_allclose(source[row, : len(wanted)], wanted, rtol=1e-5)
        assert not source[row, len(wanted) :].any()
        ids = batch["target"][row, : batch["lengths"][row]].tolist()
        assert ids[-1] == tokenizer.eos
        assert tokenizer.decode(ids[:-1]) == recordings.texts[i]


def test_what_is_too_long_is_dropped_and_counted(folder):
    recordings = read_manifest(str(folder / "train.tsv"))
    features = build_features(recordings, SMALL)
    tokenizer = train_tokenizer("characters", recordings.texts, 100)
    normalization = features.normalization()
    build = lambda **most: build_speech_store(
        features, recordings, tokenizer, normalization, **most
    )
    store = build(stacked_frames=1, max_length=5)
    # "three" has 5 letters and an end, and 6 frames; "four four" is too long with 3 frames.
    assert store.kept.tolist() == [1]
    assert store.counts == {"recording_too_long": 1, "text_too_long": 2}
    assert build(stacked_frames=2, max_length=10).kept.tolist() == [0, 1, 2, 3]


def test_held_out_recordings_do_not_depend_on_order_or_folder(folder, tmp_path_factory):
    names = [f"{i}.npy" for i in range(40)]
    for i, name in enumerate(names):
        np.save(folder / name, np.full((2, F), i))
    held = []
    for order in (names, names[::-1]):
        (folder / "all.tsv").write_text("".join(f"{name}\tsame\n" for name in order))
        read = SpeechReadOptions(validation_size=3)
        splits = load_recordings(SpeechData(train=str(folder / "all.tsv"), read=read))
        assert len(splits.valid) == 3
        assert splits.valid.name == f"{folder}/all.tsv (held out)"
        assert splits.valid.where(0).startswith(f"{folder}/all.tsv:")
        assert {*splits.train.paths} | {*splits.valid.paths} == {str(folder / n) for n in names}
        held.append({path.rpartition("/")[2] for path in splits.valid.paths})
    moved = folder.rename(folder.parent / "moved")
    found = load_recordings(SpeechData(train=str(moved / "all.tsv"), read=read))
    held.append({path.rpartition("/")[2] for path in found.valid.paths})
    assert held[0] == held[1] == held[2]


@pytest.mark.parametrize(
    "wrong", [Normalization((1.0,), ()), Normalization((1.0,), (0.0,)), Normalization((), (1.0,))]
)
def test_a_normalization_that_cannot_be_is_refused(wrong):
    refused(lambda: SpeechData(normalization=wrong), "data.normalization has", ConfigError)


def spoiled(folder):
    """A manifest whose rows are bad in several ways, and two that are good."""
    for i in range(24):
        np.save(folder / f"nan{i}.npy", bad(np.nan))
    write(folder, "cut.wav", pcm(SIGNAL, 16)[:60])
    np.save(folder / "wide.npy", np.ones((2, F + 1)))
    names = ["nan0", "0", *(f"nan{i}" for i in range(1, 24)), "wide", "2"]
    lines = [f"{name}.npy\ttext {name}" for name in names]
    (folder / "spoiled.tsv").write_text("\n".join([*lines, "cut.wav\tx", "0.npy\t"]) + "\n")
    return str(folder / "spoiled.tsv")


def test_bad_recordings_come_at_once(folder):
    with pytest.raises(DataError, match=r"0\.npy|spoiled\.tsv:29: no text") as error:
        read_manifest(spoiled(folder))
    lines = (folder / "spoiled.tsv").read_text().splitlines()[:-1]
    (folder / "spoiled.tsv").write_text("\n".join(lines))
    recordings = read_manifest(str(folder / "spoiled.tsv"), bad_rows="refuse")
    assert recordings.first_width(SMALL) == F  # of the first good one
    with pytest.raises(DataError) as error:
        build_features(recordings, SMALL, F, bad_rows="refuse")
    first, *places = error.value.lines
    assert "spoiled.tsv: 26 bad recordings: correct them, or leave out bad recordings with" in first
    assert first.endswith("--data.read.bad-rows skip")
    assert len(places) == 21
    assert places[0].startswith(f"{folder}/spoiled.tsv:1: {folder}/nan0.npy: frame 3 of 5 holds")
    assert places[-1] == "and 6 more"


@pytest.mark.parametrize("cached", [False, True])
def test_bad_recordings_are_left_out_and_counted(folder, capsys, cached):
    recordings = read_manifest(spoiled(folder), bad_rows="skip")
    assert "spoiled.tsv: 1 bad recording left out, such as" in capsys.readouterr().err
    cache = folder / "cache" if cached else None
    tokenizer = train_tokenizer("characters", recordings.texts, 100)
    for _ in range(2):
        features = build_features(recordings, SMALL, F, cache, "skip")
        how = {"stacked_frames": 1, "max_length": 99}
        store = build_speech_store(features, recordings, tokenizer, features.normalization(), **how)
        assert [recordings.texts[i] for i in store.kept] == ["text 0", "text 2"]
        assert store.counts == {"bad": 26}
    assert "spoiled.tsv: 26 bad recordings left out, such as" in capsys.readouterr().err
    with pytest.raises(DataError, match="26 bad recordings: correct them"):
        build_features(recordings, SMALL, F, cache, "refuse")
