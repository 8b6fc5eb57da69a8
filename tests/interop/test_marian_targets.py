"""Targets of a Marian folder are split by its target.spm, wherever a target is encoded."""

import json

import numpy as np
import pytest
import sentencepiece

import transformer_jax as tj
from tests.interop.test_vocabularies import expected, marian, trained
from tests.opened import load
from tests.parity import layouts
from transformer_jax.cli import seq2seq
from transformer_jax.cli.main import main
from transformer_jax.core.errors import CheckpointError
from transformer_jax.data.added_tokens import add_tokens
from transformer_jax.data.pairs import Pairs
from transformer_jax.data.store import build_store
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.translator import Translator
from transformer_jax.inference.attention import translation_attention
from transformer_jax.inference.pretrained import open_directory
from transformer_jax.interop.hf_run_directory import convert
from transformer_jax.interop.vocabularies import find_target_tokenizer, find_tokenizer

ENGLISH = "the quick brown fox jumps over lazy dogs"
GERMAN = "der schnelle braune Fuchs springt zur Straße"
LINES = [(ENGLISH, GERMAN), ("the dogs", "zur braune Straße"), ("lazy fox", "Fuchs ß ü")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder whose two sides differ, with its vocabulary and the model of targets."""
    folder = tmp_path_factory.mktemp("marian") / "en-de"
    source = trained(words=ENGLISH.split(), size=40)
    target = trained(words=GERMAN.split(), size=40)
    layouts.write("marian", folder)
    fields = json.loads((folder / "config.json").read_text())
    vocab = marian(folder, source, target)
    size = fields["vocab_size"]
    assert len(vocab) < size
    # The padding has the last id of the model.
    fillers = [f"filler{i}" for i in range(size - len(vocab))]
    names = [*(name for name in vocab if name != "<pad>"), *fillers, "<pad>"]
    vocab = {name: i for i, name in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "config.json").write_text(json.dumps(fields))
    return folder, vocab, source, target


@pytest.fixture(scope="module")
def wanted(folder):
    _, vocab, source, target = folder
    read = [[*expected(source, vocab, one), 0] for one, _ in LINES]
    written = [[*expected(target, vocab, other), 0] for _, other in LINES]
    other = [[*expected(source, vocab, other), 0] for _, other in LINES]
    assert written != other
    return read, written


@pytest.mark.slow
def test_scores_stores_and_attention_split_targets_by_their_own_model(folder, wanted):
    read, written = wanted
    model, tokenizer = load(folder[0])
    sources, targets = map(list, zip(*LINES, strict=True))
    translator = Translator(model, tokenizer)
    assert translator.encode(sources)[0] == read
    assert translator.encode_targets(targets) == written
    assert [list(score.tokens) for score in translator.score(sources, targets)] == written
    store = build_store(Pairs(sources, targets, "lines"), tokenizer)
    assert [row.tolist() for row in store.source] == read
    assert [row.tolist() for row in store.target] == written
    found = translation_attention(translator, *LINES[0])
    assert (len(found["cross"].rows), found.text) == (len(written[0]), GERMAN)


@pytest.mark.slow
def test_python_and_the_command_score_alike(folder, tmp_path, capsysbinary):
    for name, side in (("s", 0), ("t", 1)):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in LINES))
    flags = ["--source", str(tmp_path / "s"), "--target", str(tmp_path / "t")]
    assert main(["score", str(folder[0]), *flags]) == 0
    rows = capsysbinary.readouterr().out.decode().splitlines()[1:-1]
    found = [float(row.split("\t")[1]) for row in rows]
    scores = tj.load(folder[0]).score(*map(list, zip(*LINES, strict=True)))
    np.testing.assert_allclose(found, scores, atol=1e-4)


@pytest.mark.slow
def test_a_converted_run_and_a_run_that_starts_there_keep_the_tokenizer_of_targets(
    folder, wanted, tmp_path, capsys
):
    written = wanted[1]
    convert(folder[0], tmp_path / "run", overwrite=False)
    tokenizer = open_directory(tmp_path / "run").load_tokenizer()
    assert [[*ids, 0] for ids in tokenizer.targets.encode_batch([t for _, t in LINES])] == written
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in LINES * 4))
    flags = ["--init-from", str(folder[0]), "--data.pairs", str(pairs), "--training.steps", "1",
             "--data.read.max-length", "40", "--evaluation.sentences", "0",
             "--loop.evaluate-every", "1", "--data.read.validation-size", "0",
             "--output", str(tmp_path / "tuned")]  # fmt: skip
    assert seq2seq.main(["train", "small", *flags]) == 0, capsys.readouterr().err
    stored = np.load(next((tmp_path / "tuned" / "store").glob("*/target_ids.npy")))
    assert stored.tolist() == [id for row in written * 4 for id in row]
    tuned = open_directory(tmp_path / "tuned")
    assert tuned.load_tokenizer().targets.text == tokenizer.targets.text
    # Neither file can be lost or changed without a word.
    (tuned.path / "target_tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="not the tokenizer that is expected"):
        load(tuned.path)


def test_an_exported_folder_and_added_tokens_keep_the_tokenizer_of_targets(folder, tmp_path):
    assert main(["export", str(folder[0]), str(tmp_path / "hf")]) == 0
    tokenizer, again = (
        open_directory(path).load_tokenizer() for path in (folder[0], tmp_path / "hf")
    )
    assert again.targets.encode(GERMAN) == tokenizer.targets.encode(GERMAN)
    assert again.targets.encode(GERMAN) != again.encode(GERMAN)
    grown = add_tokens(tokenizer, ["Xylophon"])
    assert grown.targets.encode("Xylophon") == grown.encode("Xylophon") == [tokenizer.vocab_size]
    assert grown.targets.encode(GERMAN) == tokenizer.targets.encode(GERMAN)


def test_equal_sides_are_one_tokenizer(tmp_path):
    data = trained(size=60)
    marian(tmp_path, data, data)
    assert find_target_tokenizer(tmp_path) is None
    tokenizer = Tokenizer(*find_tokenizer(tmp_path))
    assert tokenizer.targets is tokenizer


def test_unknown_characters_in_a_row_are_one_unknown(folder):
    _, vocab, _, target = folder
    tokenizer = open_directory(folder[0]).load_tokenizer()
    model = sentencepiece.SentencePieceProcessor(model_proto=target)
    for text in ("qk", "a q k", "qqq Fuchs", "☃q", "j", "v☃ x"):
        pieces = model.encode(text, out_type=str)
        ids = [vocab.get(piece, vocab["<unk>"]) for piece in pieces]
        assert tokenizer.targets.encode(text) == ids, text
