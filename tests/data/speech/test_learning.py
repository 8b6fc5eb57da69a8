"""Small models of features learn to transcribe synthetic speech; row T1."""

import json

import numpy as np
import pytest

import transformer_jax as tj
from tests.data.speech.synthetic import speak, write_speech
from tests.data.speech.test_speech_runs import SETTINGS, manifests
from transformer_jax.cli import seq2seq
from transformer_jax.evaluation.error_rates import word_error_rate


@pytest.mark.slow
@pytest.mark.parametrize("name", ["luong", "small"])
def test_a_small_model_learns_to_transcribe(tmp_path, name):
    """New texts of noisy sounds of different durations, word for word."""
    for part, count, seed in (("train", 1500, 0), ("valid", 20, 1), ("test", 60, 2)):
        write_speech(tmp_path / "speech", part, count, seed)
    sizes = ["--model.d-model", "48", "--training.epochs", "25", "--training.max-tokens", "1024"]
    more = ["--model.attention.num-heads", "4", "--model.feed-forward.d-ff", "128",
            "--model.encoder-layers", "2", "--model.decoder-layers", "1",
            "--model.embedding.dropout", "0", "--model.norm.residual-dropout", "0"]  # fmt: skip
    more = [] if name == "luong" else more
    run = tmp_path / "run"
    command = ["train-speech", name, *manifests(tmp_path / "speech"), *SETTINGS, *sizes, *more]
    assert seq2seq.main([*command, "--output", str(run)]) == 0
    results = json.loads((run / "results.json").read_text())["tests"]["test"]
    assert results["wer"] <= 10
    assert results["cer"] <= 5
    transcribe, draw = tj.load(run), np.random.default_rng(9)
    texts = ["abcd", "dcba", "acbd", "bd"]
    found = transcribe([speak(text, draw) for text in texts])
    assert word_error_rate([*map(str, found)], texts).errors <= 1
