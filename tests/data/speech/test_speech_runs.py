"""Runs that learn to transcribe: trained, resumed, evaluated and used; mistakes in one line; T1."""

import io
import json
import logging
import os
import re
import shutil
import sys
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import transformer_jax as tj
from tests.data.speech.synthetic import WIDTH, write_speech
from tests.data.speech.test_audio import SIGNAL, pcm
from transformer_jax.cli import seq2seq
from transformer_jax.cli.main import main
from transformer_jax.core.errors import ArgumentError, ConfigError, DataError
from transformer_jax.data.speech.audio import AudioConfig
from transformer_jax.data.speech.recording_store import build_speech_store, make_speech_batch
from transformer_jax.data.speech.recordings import (
    SpeechReadOptions,
    SpeechSplits,
    build_features,
    read_manifest,
)
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.inference.pretrained import open_directory, open_pretrained, read_facts
from transformer_jax.inference.speech import transcriber_of
from transformer_jax.inference.transcriber import Recording
from transformer_jax.models.config import FeatureConfig
from transformer_jax.models.recurrent_config import RecurrentConfig, RecurrentEmbeddingConfig
from transformer_jax.recipes import driver
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.speech import RecurrentSpeechRun, SpeechRun
from transformer_jax.recipes.tasks.speech_task import SpeechDataSettings
from transformer_jax.runs.metrics import read_metrics

SPEECH_RUNS = named_runs("speech", "recurrent_speech")
RUNS = named_runs("translation", "recurrent_translation")

ALONE = ["--distributed.num-local-devices", "1"]
SETTINGS = [
    "--data.audio.sample-rate", "8000", "--data.audio.num-mels", str(WIDTH),
    "--model.features.stacked-frames", "2", "--training.num-buckets", "2",
    "--evaluation.num-beams", "2", *ALONE,
]  # fmt: skip
TINY = [
    *SETTINGS, "--model.d-model", "8", "--training.steps", "4",
    "--training.max-tokens", "256", "--optimizer.schedule.warmup-steps", "1",
    "--loop.evaluate-every", "2", "--loop.checkpoint-every", "2", "--evaluation.sentences", "4",
]  # fmt: skip
TRANSFORMER = [
    "--model.encoder-layers", "1", "--model.decoder-layers", "1",
    "--model.attention.num-heads", "2", "--model.feed-forward.d-ff", "16",
]  # fmt: skip


def manifests(folder):
    return [
        "--data.train", str(folder / "train.tsv"), "--data.valid", str(folder / "valid.tsv"),
        "--data.test", str(folder / "test.tsv"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def speech(shared):
    def write(folder):
        write_speech(folder, "train", 30)
        write_speech(folder, "valid", 6, seed=1)
        write_speech(folder, "test", 4, seed=2)
        (folder / "a.wav").write_bytes(pcm(SIGNAL, 16))

    return shared("speech", write)


def train(folder, run, name="luong", *flags):
    more = [] if name == "luong" else TRANSFORMER
    command = ["train-speech", name, *manifests(folder), *TINY, *more, *flags]
    return seq2seq.main([*command, "--output", str(run)])


@pytest.fixture(scope="module")
def trained(speech, shared):
    def make(run):
        assert train(speech, run) == 0

    return shared("speech_run", make)


@pytest.fixture(scope="module")
def transformer(speech, shared):
    def make(run):
        assert train(speech, run, "small") == 0

    return shared("speech_transformer_run", make)


@pytest.fixture(autouse=True)
def quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture
def command(capsys):
    def run(*arguments, program=main):
        capsys.readouterr()
        code = program([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return run


def test_every_translator_but_the_built_in_ones_has_a_speech_run():
    assert {*SPEECH_RUNS} == {*RUNS} - {"phrasebook", "babel"}
    for name, (_, run) in SPEECH_RUNS.items():
        features = run.model.features
        assert (features.num_features, features.stacked_frames) == (80, 4)
        assert isinstance(run, SpeechRun)
        assert isinstance(run, RecurrentSpeechRun) == hasattr(run.model, "cell"), name


@pytest.mark.slow
def test_a_run_holds_the_normalization_of_its_training_data(speech, trained):
    config = json.loads((trained / "config.json").read_text())
    every = np.concatenate([np.load(speech / f"train{i}.npy") for i in range(30)])
    found = config["data"]["normalization"]
    np.testing.assert_allclose(found["mean"], every.mean(0, np.float64), rtol=1e-5)
    np.testing.assert_allclose(found["std"], every.std(0, dtype=np.float64), rtol=1e-5)
    assert config["model"]["features"] == {"num_features": WIDTH, "stacked_frames": 2}
    assert driver.read(open_directory(trained)).data.normalization.mean == (*found["mean"],)
    assert read_facts(trained).kind == "speech"


@pytest.mark.slow
def test_validation_and_tests_have_error_rates(trained):
    measured = [row for row in read_metrics(trained / "metrics.jsonl") if "wer" in row]
    assert [row["step"] for row in measured] == [2, 4]
    assert all({"cer", "sacrebleu", "valid_loss"} <= {*row} for row in measured)
    results = json.loads((trained / "results.json").read_text())["tests"]["test"]
    assert results["recordings"] == 4
    assert results["beams"] == 2
    assert results["wer"] >= 0
    assert results["cer"] >= 0


@pytest.mark.slow
@pytest.mark.parametrize("which", ["trained", "transformer"])
def test_resumed_is_uninterrupted_bit_for_bit(which, request, tmp_path):
    run = request.getfixturevalue(which)
    wanted = json.loads((run / "results.json").read_text())["state_sha256"]
    other = tmp_path / "run"
    shutil.copytree(run, other)
    for path in (other / "checkpoints" / "step_00000004", other / "store"):
        shutil.rmtree(path)
    (other / "results.json").unlink()
    assert seq2seq.main(["resume", str(other), *ALONE]) == 0
    assert json.loads((other / "results.json").read_text())["state_sha256"] == wanted


@pytest.mark.slow
def test_other_recordings_are_refused_on_resume(speech, trained, tmp_path, command):
    other, run = tmp_path / "speech", tmp_path / "run"
    shutil.copytree(speech, other)
    assert train(other, run) == 0
    shutil.rmtree(run / "checkpoints" / "step_00000004")
    (run / "results.json").unlink()
    np.save(other / "train3.npy", np.load(other / "train3.npy") + 1e-3)
    code, _, err = command("resume", run, *ALONE, program=seq2seq.main)
    assert code in (2, 3, 4)
    assert "Traceback" not in err
    assert "data" in err


@pytest.mark.slow
def test_what_is_transcribed_is_read_as_in_training(speech, trained):
    """The arrays of a batch of training are those that a transcriber makes of the same files."""
    run = driver.read(open_directory(trained))
    recordings = read_manifest(str(speech / "train.tsv"))
    transcriber, audio = transcriber_of(open_pretrained(trained))
    store = build_speech_store(
        build_features(recordings, run.data.audio),
        recordings,
        transcriber.tokenizer,
        run.data.normalization,
        stacked_frames=run.model.features.stacked_frames,
        max_length=512,
    )
    inputs = make_speech_batch(store, np.arange(3), 24, 24, transcriber.tokenizer.pad)["inputs"]
    read = [Recording(recordings.paths[i], recordings.read(i, audio)[0]) for i in range(3)]
    source, lengths = transcriber.fill_sources(transcriber.encode(read)[0], 3, 24)
    np.testing.assert_array_equal(source, inputs["source"])
    np.testing.assert_array_equal(lengths, inputs["source_lengths"])


@pytest.mark.slow
def test_a_run_is_a_function_of_files_and_of_features(speech, trained):
    transcribe = tj.load(trained)
    paths = [str(speech / name) for name in ("test0.npy", "a.wav", "test1.npy")]
    texts = transcribe(paths)
    assert [transcribe(path) for path in paths] == texts
    assert transcribe(np.load(paths[0])) == texts[0]
    assert transcribe([np.load(paths[0]), speech / "test1.npy"]) == [texts[0], texts[2]]
    assert texts[0].score < 0
    several = transcribe(paths[0], num_beams=3, num_return_sequences=3)
    assert len(several.alternatives) == 2
    assert isinstance(transcribe.model, nnx.Module)


@pytest.mark.slow
def test_commands_write_what_the_function_returns(speech, trained, command, tmp_path):
    paths = [str(speech / name) for name in ("test0.npy", "a.wav")]
    wanted = [str(text) for text in tj.load(trained)(paths)]
    code, lines, _ = command("transcribe", trained, *paths)
    assert (code, lines) == (0, wanted)
    out = tmp_path / "out.tsv"
    assert command("transcribe", trained, *paths, "--tsv", "--output", out)[0] == 0
    rows = [line.split("\t") for line in out.read_text().splitlines()]
    assert rows[0] == ["path", "score", "text"]
    assert [(row[0], row[2]) for row in rows[1:]] == list(zip(paths, wanted, strict=True))
    manifest = speech / "test.tsv"
    code, lines, _ = command("evaluate", trained, "--manifest", manifest, "--num-beams", "2")
    assert code == 0
    results = json.loads((trained / "results.json").read_text())["tests"]["test"]
    assert lines == [
        f"WER {results['wer']:.2f} % CER {results['cer']:.2f} % sacreBLEU "
        f"{results['sacrebleu']:.1f} of 4 recordings"
    ]


@pytest.mark.filterwarnings("ignore:.*reached the length limit")  # of a model of a few steps
@pytest.mark.parametrize("which", ["trained", "transformer"])
@pytest.mark.slow
def test_attention_has_a_column_for_each_position(which, request, speech, command, tmp_path):
    run, path = request.getfixturevalue(which), speech / "test3.npy"
    out = tmp_path / "page.html"
    code, lines, _ = command("attention", run, path, "--json", "--output", out)
    assert (code, "".join(lines)) == (0, tj.load(run)(path))
    maps = json.loads(out.with_suffix(".json").read_text())
    frames = len(np.load(path))
    assert maps["cross"]["columns"] == [str(i) for i in range(0, frames, 2)]
    weights = np.array(maps["cross"]["weights"])
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-2)
    assert ("encoder" in maps) == (which == "transformer")
    attention = tj.load(run).attention(path)
    assert (attention.title, attention.text) == (str(path), "".join(lines))
    assert list(attention.tokens) == maps["cross"]["columns"]
    np.testing.assert_allclose(attention.weights["cross"], weights, atol=1e-6)
    code, _, err = command("attention", run, speech / "train.tsv", "--output", out)
    assert code == 3
    assert "the name ends in none of .wav, .npy, .npz" in err


@pytest.mark.slow
@pytest.mark.parametrize("which", ["trained", "transformer"])
def test_scores_are_those_of_teacher_forcing(which, request, speech):
    """The score of a text in search equals that of the forward pass over all of it."""
    transcribe = tj.load(request.getfixturevalue(which))
    features = np.load(speech / "test2.npy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it has learnt too little to end
        text = transcribe(features, num_beams=3, length_penalty=0.0)
    frames = transcribe._transcriber.encode([Recording("one", features)])[0][0]
    model, tokens = transcribe.model, np.array([text.tokens], np.int32)
    start = np.full((1, 1), transcribe.tokenizer.bos, np.int32)
    logits = model(
        jnp.asarray(frames[None]),
        jnp.asarray(np.concatenate([start, tokens[:, :-1]], 1)),
        jnp.asarray(np.array([len(frames)], np.int32)),
    )
    log_probs = nnx.log_softmax(logits)[0, np.arange(tokens.shape[1]), tokens[0]]
    assert float(log_probs.sum()) == pytest.approx(text.score, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--source", "x", "--target", "x"], "--source is for a translator or a recurrent transl"),
        ([], "the run of a recurrent speech recognizer: give --manifest"),
        (["--manifest", "x.tsv", "--target", "x"], "--target is for a translator or a recurrent"),
    ],
)
def test_evaluation_needs_a_manifest(trained, command, flags, message):
    code, _, err = command("evaluate", trained, *flags)
    assert code == 2
    assert message in err


@pytest.mark.slow
@pytest.mark.parametrize("other", ["translate", "score", "embed", "export", "generate"])
def test_commands_for_text_refuse_a_speech_run(trained, command, other, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
    (tmp_path / "a.txt").write_text("a\tb\n")
    more = {"translate": [], "generate": ["a"], "export": [tmp_path / "out"]}
    code, _, err = command(other, trained, *more.get(other, [tmp_path / "a.txt"]))
    assert code == 2
    assert "Traceback" not in err


@pytest.mark.slow
def test_transcribe_refuses_a_translator(tmp_path, command):
    write = tmp_path / "pairs.tsv"
    write.write_text("".join(f"a {i}\tb {i}\n" for i in range(40)))
    tiny = [*TINY[TINY.index("--model.d-model") :], *ALONE]
    run = tmp_path / "run"
    flags = ["train", "luong", "--data.pairs", str(write), *tiny, "--output", str(run)]
    assert seq2seq.main(flags) == 0
    code, _, err = command("transcribe", run, "a.wav")
    assert code == 2
    assert "the run of a translator, which this command does not support: try" in err
    code, _, err = command("evaluate", run, "--manifest", write)
    assert code == 2
    assert "--manifest is for a speech recognizer or a recurrent speech recognizer" in err


@pytest.mark.slow
def test_what_cannot_be_transcribed_is_refused(speech, trained, tmp_path):
    transcribe = tj.load(trained)
    good = np.load(speech / "test0.npy")
    with pytest.raises(
        DataError, match="recording 1: frames of 7 features, but this model reads 8"
    ):
        transcribe(good[:, :7])
    with pytest.raises(DataError, match="recording 2: no frames: it is empty"):
        transcribe([good, good[:0]])
    with pytest.raises(DataError, match=r"recording 1: frame 1 of .* holds NaN or infinity"):
        transcribe(np.full_like(good, np.nan))
    long = np.zeros((1025, WIDTH), np.float32)
    with pytest.raises(DataError, match="1,025 frames, but this model reads at most 1,024: split"):
        transcribe(long)
    with pytest.raises(DataError, match="no such file"):
        transcribe(tmp_path / "no.wav")
    with pytest.raises(ConfigError, match="num_beams is 0"):
        transcribe(good, num_beams=0)


def bad_nan(folder):
    features = np.load(folder / "train2.npy")
    features[1, 3] = np.nan
    np.save(folder / "train2.npy", features)


def bad_width(folder):
    np.save(folder / "train2.npy", np.ones((9, WIDTH + 1), np.float32))


def bad_wav(folder):
    (folder / "train2.wav").write_bytes(pcm(SIGNAL, 16)[:-200])
    lines = (folder / "train.tsv").read_text().replace("train2.npy", "train2.wav")
    (folder / "train.tsv").write_text(lines)


def bad_line(folder):
    (folder / "train.tsv").write_text("train0.npy\ta\ntrain1.npy\t\n")


def bad_test(folder):
    np.save(folder / "test1.npy", np.ones((1025, WIDTH), np.float32))


@pytest.mark.slow
def test_bad_recordings_of_a_command_come_at_once(speech, trained, tmp_path, command):
    bad = []
    for name in ("a", "b"):
        (tmp_path / f"{name}.wav").write_bytes(pcm(SIGNAL, 16)[:-200])
        bad.append(str(tmp_path / f"{name}.wav"))
    code, out, err = command("transcribe", trained, bad[0], speech / "test0.npy", bad[1])
    assert (code, out) == (3, [])
    assert "transcribe: 2 bad recordings: correct them" in err
    assert all(f"{path}: no WAV file that can be read" in err for path in bad)
    with pytest.raises(DataError, match="the recordings: all 2 bad recordings: correct") as error:
        tj.load(trained)(bad)
    assert [line.split(": ")[0] for line in error.value.lines[1:]] == bad
    manifest = tmp_path / "m.tsv"
    manifest.write_text("".join(f"{path}\ta\n" for path in [*bad, speech / "test0.npy"]))
    code, out, err = command("evaluate", trained, "--manifest", manifest)
    assert (code, out) == (3, [])
    assert all(f"m.tsv:{i}: {path}: no WAV" in err for i, path in enumerate(bad, 1))
    code, _, err = command("transcribe", trained, manifest)
    assert code == 2
    assert f"`transformer-jax evaluate {trained} --manifest {manifest} --output texts.txt`" in err


@pytest.mark.slow
def test_a_run_leaves_bad_recordings_out_if_asked(speech, tmp_path, command):
    folder, run = tmp_path / "speech", tmp_path / "run"
    shutil.copytree(speech, folder)
    for part in ("train", "valid", "test"):
        features = np.load(folder / f"{part}0.npy")
        features[0] = np.nan
        np.save(folder / f"{part}0.npy", features)
    flags = ["train-speech", "luong", *manifests(folder), *TINY, "--output", run]
    code, _, err = command(*flags, "--data.read.bad-rows", "skip", program=seq2seq.main)
    assert code == 0
    for part, left in (("train", 29), ("valid", 5)):
        assert f"{part}.tsv: 1 bad recording left out, such as" in err
        assert f"{part}.tsv: {left} recordings" in err
    assert json.loads((run / "results.json").read_text())["tests"]["test"]["recordings"] == 3


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (bad_nan, r"train\.tsv:3: .*train2\.npy: frame 2 of \d+ holds NaN or infinity"),
        (bad_width, r"train\.tsv:3: .*train2\.npy: frames of 9 values, but 8 are needed"),
        (bad_wav, r"train\.tsv:3: .*train2\.wav: no WAV file that can be read"),
        (bad_line, r"train\.tsv:2: no text: a path and a text are needed"),
        (bad_test, r"test\.tsv:2: .*test1\.npy: 1,025 frames, but the model reads at most 1,024"),
    ],
)
def test_bad_recordings_end_a_run_in_one_line_before_its_first_step(
    speech, tmp_path, command, spoil, message
):
    folder, run = tmp_path / "speech", tmp_path / "run"
    shutil.copytree(speech, folder)
    spoil(folder)
    flags = ["train-speech", "luong", *manifests(folder), *TINY, "--output", run]
    code, _, err = command(*flags, program=seq2seq.main)
    assert code == 3
    assert re.search(f"error: .*{message}", err)
    assert "Traceback" not in err
    assert not (run / "metrics.jsonl").exists() or not os.path.getsize(run / "metrics.jsonl")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model.features.num-features", "9"], "model.features.num_features is 9, but"),
        (["--data.normalization.mean", "1", "--data.normalization.std", "1"],
         "data.normalization.mean has 1 numbers, but"),
        (["--data.read.max-length", "600"], "data.read.max_length is 600, but the model has"),
        (["--init-from", "x"], "init_from: a recurrent speech recognizer cannot start"),
        (["--loop.best-checkpoint-metric", "bleu"], "this run has valid_loss, wer, cer, sacrebleu"),
        (["--data.audio.num-mels", "0"], "--data.audio.num-mels is 0: at least 1"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(speech, tmp_path, command, flags, message):
    base = ["train-speech", "luong", *manifests(speech), *TINY, "--output", tmp_path / "run"]
    code, _, err = command(*base, *flags, program=seq2seq.main)
    assert code == 2
    assert message in err
    assert not (tmp_path / "run" / "config.json").exists()


def test_there_is_no_plan_of_it(speech, command):
    flags = ["train-speech", "luong", *manifests(speech), "--plan", "h200:1"]
    code, _, err = command(*flags, program=seq2seq.main)
    assert code == 2
    assert "--plan: not available for luong: only for translators, language models," in err


def test_a_text_run_reads_no_features(tmp_path, command):
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    apart = "--model.embedding.no-share-encoder-decoder-embeddings"
    flags = ["--data.pairs", tmp_path / "pairs.tsv", "--model.features.num-features", "3", apart]
    code, _, err = command("train", "luong", *flags, program=seq2seq.main)
    assert code == 2
    assert "model.features.num_features is 3: this run reads text: leave it out" in err


def test_validation_transcribes_recordings_that_training_would_leave_out(speech):
    """They count for error rates as test recordings do; what the model cannot read is left out."""
    train, valid = (read_manifest(str(speech / f"{part}.tsv")) for part in ("train", "valid"))
    tokenizer = train_tokenizer("characters", train.texts, 40)
    apart = RecurrentEmbeddingConfig(share_encoder_decoder_embeddings=False)
    config = RecurrentConfig(
        vocab_size=tokenizer.vocab_size, embedding=apart, features=FeatureConfig(WIDTH, 2)
    )
    frames = build_features(valid, AudioConfig(), WIDTH).frames
    most = int(np.sort(frames)[2]) // 2  # positions of the shorter half
    task = tj.tasks.speech_recognition(
        SpeechSplits(train, valid),
        config,
        tokenizer,
        settings=SpeechDataSettings(SpeechReadOptions(max_length=most)),
    )
    assert len(task.evaluate.recordings) == len(valid)
    assert task.settings.evaluation.tokenize == "13a"
    assert task.settings.evaluation.max_len_a is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*reached the length limit")
def test_a_pipeline_returns_the_texts_of_recordings(speech, transformer):
    model = tj.load(transformer)
    made, path = tj.pipeline("automatic-speech-recognition", model), speech / "a.wav"
    text, rate = str(model(path)), model.audio.sample_rate
    assert made(path) == {"text": text}
    assert made([str(path)] * 2) == [{"text": text}] * 2
    raw = made({"raw": SIGNAL, "sampling_rate": rate})
    assert raw == made(SIGNAL) == made({"array": SIGNAL, "sampling_rate": rate})
    with pytest.raises(ArgumentError, match="int: the path of a"):
        made(5)
    with pytest.raises(ConfigError, match="beams is not a setting of generation"):
        made(path, generate_kwargs={"beams": 2})
