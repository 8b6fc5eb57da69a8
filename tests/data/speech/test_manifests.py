"""Manifests of segments: parts of a file to the sample; what is not read is named or refused.

NeMo-Speech#15080 and #1948, fairseq#3962: every row of one file had the whole file.
"""

import itertools
import json
import re
import tracemalloc

import numpy as np
import pytest

from tests.data.speech.test_audio import SIGNAL, SMALL, pcm
from transformer_jax.core.errors import DataError
from transformer_jax.data.speech.features import read_features, recordings_in, waveform_features
from transformer_jax.data.speech.recordings import (
    SpeechData,
    SpeechReadOptions,
    build_features,
    load_recordings,
    read_manifest,
)
from transformer_jax.data.speech.wav import Segment
from transformer_jax.inference.speech import SpeechPredictor

RATE = SMALL.sample_rate
LONG = np.tile(SIGNAL, -(-2 * RATE // len(SIGNAL)))[: 2 * RATE]  # two seconds
LONG = (LONG * np.linspace(0.1, 1, len(LONG))).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "long.wav").write_bytes(pcm(LONG, 16))
    return tmp_path


def listed(folder, *rows, name="m.jsonl"):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return read_manifest(str(folder / name))


def row(**more):
    return {"path": "long.wav", "text": "a"} | more


def refused(call, message):
    with pytest.raises(DataError, match=re.escape(message)) as error:
        call()
    assert "\n" not in str(error.value)


def halves(folder):
    first, second = ({"audio_filepath": "long.wav", "duration": 1.0, "text": t} for t in "ab")
    return listed(folder, first | {"offset": 0.0}, second | {"offset": 1})


@pytest.mark.parametrize("cached", [False, True])
def test_a_segment_has_the_features_of_its_samples_alone(folder, cached):
    found = halves(folder)
    cache = folder / "cache" if cached else None
    store = build_features(found, SMALL, cache=cache)
    for i, part in enumerate((LONG[:RATE], LONG[RATE:])):
        (folder / "part.wav").write_bytes(pcm(part, 16))
        np.testing.assert_array_equal(store[i], read_features(folder / "part.wav", SMALL)[0])
    assert found.texts == ["a", "b"]
    assert len({digest.tobytes() for digest in store.digests}) == 2
    assert found.title(1) == f"{folder}/long.wav (1 s to 2 s)"
    whole = listed(folder, row())
    wider = build_features(whole, SMALL, cache=cache)
    assert wider.frames[0] > store.frames.sum()


def test_a_table_with_names_of_columns_and_one_of_objects_are_alike(folder):
    named = listed(
        folder,
        "text\toffset\tpath\tduration\tspeaker",
        "a\t0\tlong.wav\t1\tx",
        "b\t1\tlong.wav\t1.0\t",
        name="m.tsv",
    )
    of_objects = halves(folder)
    for field in ("paths", "texts", "segments"):
        assert getattr(named, field) == getattr(of_objects, field)
    assert named.lines == [2, 3]


def test_adjacent_segments_share_no_sample_and_leave_none_out():
    times = np.linspace(0, 3, 38)
    parts = [Segment(a, b - a).frames(3 * 44_100, 44_100) for a, b in itertools.pairwise(times)]
    assert parts[0][0] == 0
    assert parts[-1][1] == 3 * 44_100
    assert all(one[1] == other[0] for one, other in itertools.pairwise(parts))


def test_an_offset_alone_reads_to_the_end_and_a_rounded_end_is_the_end(folder):
    found = listed(folder, row(offset=1.5), row(duration=2.004), row(duration=2.0, offset=None))
    for i, part in enumerate((LONG[-RATE // 2 :], LONG, LONG)):
        (folder / "part.wav").write_bytes(pcm(part, 16))
        wanted, _ = read_features(folder / "part.wav", SMALL)
        np.testing.assert_array_equal(found.read(i, SMALL)[0], wanted)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"offset": 2.0}, "(2 s to its end): the recording has 2 s: correct offset and duration"),
        ({"offset": 1, "duration": 1.5}, "(1 s to 2.5 s): the recording has 2 s"),
        ({"duration": 0.00001}, "no sample: correct offset and duration"),
        ({"duration": 0.001}, "8 samples, and a frame has 200"),
    ],
)
def test_a_segment_outside_its_file_is_refused(folder, more, message):
    found = listed(folder, row(), row(**more))
    refused(lambda: build_features(found, SMALL), message)
    refused(lambda: build_features(found, SMALL), f"m.jsonl:2: {folder}/long.wav (")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"offset": -1}, "m.jsonl:2: offset is -1: a number of seconds, 0 or more"),
        ({"duration": 0}, "m.jsonl:2: duration is 0: a number of seconds above 0"),
        ({"duration": "1"}, "m.jsonl:2: duration is '1': a number of seconds is needed"),
        ({"offset": True}, "m.jsonl:2: offset is True: a number"),
        ({"offset": 1e400}, "m.jsonl:2: offset is inf: a number"),
        ({"start": 1, "end": 2}, "m.jsonl:2: 'start' is not read: give the segment by offset and"),
        ({"channel": 1}, "m.jsonl:2: 'channel' is not read: the channels of a recording are"),
        ({"audio_filepath": "other.wav"}, "m.jsonl:2: path and audio_filepath are different files"),
        ({"path": "a.npy", "offset": 1}, "a.npy: offset and duration are read of .wav alone"),
    ],
)
def test_a_row_that_selects_in_another_way_is_refused(folder, more, message):
    np.save(folder / "a.npy", np.ones((4, 3)))
    refused(lambda: listed(folder, row(), row(**more)), message)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["id\tsentence", "long.wav\ta"], "m.tsv:1: neither a recording, whose name ends in .wav"),
        (["path\twords", "long.wav\ta"], "m.tsv:1: the columns path (or audio_filepath), text"),
        (["path\ttext\ttext", "long.wav\ta\tb"], "m.tsv:1: the columns path (or audio_filepath)"),
        (["long.wav\ta\t1.5"], "m.tsv:1: 3 columns, but 2 are needed (path, text): name others"),
        (["path\ttext\toffset", "long.wav\ta\tsoon"], "m.tsv:2: offset is 'soon': a number"),
    ],
)
def test_columns_without_a_name_are_refused(folder, lines, message):
    refused(lambda: listed(folder, *lines, name="m.tsv"), message)


def test_keys_that_are_not_read_are_named_once(folder, capsys):
    listed(folder, row(lang="en", speaker=3), row(speaker=4, pred_text="b", note=None))
    [line] = [line for line in capsys.readouterr().err.splitlines() if "not read" in line]
    assert line.endswith("m.jsonl: keys not read: lang, speaker, pred_text")


def test_segments_of_one_file_are_held_out_together(folder):
    rows = [row(offset=i / 10, duration=0.1, text=str(i)) for i in range(10)]
    (folder / "short.wav").write_bytes(pcm(LONG[:RATE], 16))
    listed(folder, *rows, row(path="short.wav"), *rows)
    read = SpeechReadOptions(validation_size=2)
    splits = load_recordings(SpeechData(train=str(folder / "m.jsonl"), read=read))
    assert {*splits.valid.paths} == {f"{folder}/short.wav"}


def test_a_segment_of_a_large_file_is_read_without_the_rest(folder):
    large = folder / "large.wav"
    with large.open("wb") as file:
        file.write(pcm(LONG, 16)[:40] + (1 << 30).to_bytes(4, "little"))
        file.truncate(44 + (1 << 30))
        file.seek(44 + 2 * 100 * RATE)
        file.write(pcm(LONG, 16)[44:])
    read_features(large, SMALL, segment=Segment(100, 2))
    tracemalloc.start()
    try:
        found, _ = read_features(large, SMALL, segment=Segment(100, 2))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found, read_features(folder / "long.wav", SMALL)[0])


def test_a_waveform_has_the_features_of_the_file_with_its_samples(folder):
    (folder / "whole.wav").write_bytes(pcm(SIGNAL, 16))
    samples = np.frombuffer((folder / "whole.wav").read_bytes()[44:], "<i2")
    expected = read_features(folder / "whole.wav", SMALL)[0]
    for given in (samples, samples.astype(np.float32) / 2**15, samples.astype(np.int32) << 16):
        found = waveform_features(given, RATE, SMALL, "recording 1")
        np.testing.assert_array_equal(found, expected)
    predictor = SpeechPredictor.__new__(SpeechPredictor)
    predictor.audio = SMALL
    for speech, rate in ((samples, RATE), ({"array": samples, "sampling_rate": RATE}, None)):
        np.testing.assert_array_equal(predictor._recording(speech, 1, rate).features, expected)
    for speech, rate, said in (
        (samples, None, "recording 1: an array with one axis is a waveform: say"),
        (samples[None], RATE, f"recording 1: an array [1, {len(samples)}] of int16: a waveform"),
        (samples, RATE + 1, f"recording 1: {RATE + 1:,} samples a second, but {RATE:,} are needed"),
        (samples[:3], RATE, "recording 1: 3 samples, and a frame has"),
        ({"array": samples}, None, "recording 1: a dictionary has the keys array and sampling"),
    ):
        refused(lambda speech=speech, rate=rate: predictor._recording(speech, 1, rate), said)


def test_common_voice_has_its_recordings_in_clips_and_names_decoded_files(folder, capfd):
    head, line = "client_id\tpath\tsentence\tup_votes\n", "7\tcommon_voice_en_1.mp3\tHello.\t2\n"
    (folder / "train.tsv").write_text(head + line)
    (folder / "clips").mkdir()
    (folder / "clips/common_voice_en_1.mp3").write_bytes(b"ID3")
    said = f"for f in {folder}/clips/*.mp3; do ffmpeg -i"
    refused(lambda: read_manifest(str(folder / "train.tsv")), said)
    refused(lambda: recordings_in([str(folder / "clips")]), said)
    (folder / "clips/common_voice_en_1.wav").write_bytes(pcm(LONG, 16))
    found = read_manifest(str(folder / "train.tsv"))
    assert found.paths == [str(folder / "clips/common_voice_en_1.wav")]
    assert found.texts == ["Hello."]
    said = capfd.readouterr().err
    assert said.count(f"recordings are in {folder}/clips") == 1
    assert said.count(".mp3 files are read as the .wav files next to them") == 1
    assert recordings_in(["a.wav", str(folder / "clips")]) == ["a.wav", *found.paths]
    assert "1 other file not read (.mp3 1)" in capfd.readouterr().err
