"""Laws of contextual vectors: rows B3, B36, H21."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.drawing import drawn
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.numerics import cosine
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.inference.encoding.probing import majority, probe, probe_layers
from transformer_jax.inference.encoding.saving import VectorFile
from transformer_jax.inference.encoding.vectors import Embedder, combine_layers, pool_hidden_states
from transformer_jax.models.config import (
    AttentionConfig,
    NormConfig,
    PositionConfig,
    ScoreConfig,
    TransformerConfig,
)
from transformer_jax.models.heads import EncoderForMaskedLM
from transformer_jax.models.presets import bert
from transformer_jax.models.transformer.models import TransformerEncoderDecoder

D, L, LENGTH = 16, 2, 20
TEXTS = [
    "i sat on the bank of the river",
    "i took cash to the bank",
    "the river ran",
    "",
    "cash cash river bank of the bank on",
    "of",
] * 2
TOKENIZER = train_tokenizer("wordpiece", TEXTS, 90, special=BERT_SPECIAL)


@pytest.fixture(scope="module")
def model():
    config = bert(D, L, vocab_size=TOKENIZER.vocab_size, max_length=LENGTH, dropout=0.0)
    config = dataclasses.replace(config, attention=AttentionConfig(num_heads=2))
    return drawn(lambda: EncoderForMaskedLM(config, next_sentence=False, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def vectors(model):
    return Embedder(model, TOKENIZER)


@pytest.fixture(scope="module")
def every(vectors):
    """All layers of all tokens."""
    [block] = vectors.embed(TEXTS, layers="all", pool="none")
    return block


def by_text(block):
    return np.split(block.vectors, np.cumsum(block.lengths)[:-1])


def whole(vectors, **how):
    return np.concatenate([block.vectors for block in vectors.embed(TEXTS, **how)])


@pytest.mark.slow
def test_layers_are_those_of_the_model_and_the_first_is_what_enters(model, every):
    net = nnx.merge(*model)
    ids = [TOKENIZER.bos, *TOKENIZER.encode(TEXTS[0]), TOKENIZER.eos]
    tokens, lengths = jnp.array([ids]), jnp.array([len(ids)])
    wanted = net.hidden_states(tokens, lengths)  # [L+1 B T D]
    assert wanted.shape == (L + 1, 1, len(ids), D)
    mine = by_text(every)[0]
    assert mine.shape == (len(ids), L + 1, D)
    np.testing.assert_allclose(mine, np.swapaxes(wanted[:, 0], 0, 1), atol=1e-5)
    entered = net.encoder.embed_inputs(net.embedding(tokens), jnp.arange(len(ids))[None])
    np.testing.assert_allclose(mine[:, 0], entered[0], atol=1e-5)
    assert every.ids[: len(ids)].tolist() == ids


def test_neither_neighbours_nor_padding_change_a_vector(model, every):
    again = Embedder(model, TOKENIZER, tokens=16)
    blocks = list(again.embed(TEXTS, layers="all", pool="none", block=5))
    assert [len(block.lengths) for block in blocks] == [5, 5, 2]
    made = np.concatenate([block.vectors for block in blocks])
    np.testing.assert_allclose(made, every.vectors, atol=1e-5)


@pytest.mark.slow
def test_what_is_asked_for_is_made_of_all_layers_of_real_tokens(vectors, every):
    texts = by_text(every)
    means = np.array([text.mean(0) for text in texts])  # [texts L+1 D]
    np.testing.assert_allclose(whole(vectors), means[:, -1], atol=1e-5)
    found = whole(vectors, layers="concat4")  # of the two that there are
    np.testing.assert_allclose(found, means[:, 1:].reshape(-1, L * D), atol=1e-5)
    found = whole(vectors, layers=1, pool="cls")
    np.testing.assert_allclose(found, [text[0, 1] for text in texts], atol=1e-5)


@pytest.mark.parametrize("depth", [1, 2, 4, 6])
def test_sums_and_concatenations_are_of_the_last_four_layers_at_most(depth):
    """H21; the embeddings are never among them."""
    rng = np.random.default_rng(depth)
    every = [jnp.asarray(rng.normal(size=(2, 3, D)), jnp.float32) for _ in range(depth + 1)]
    last = np.stack(every[1:])[-4:]
    np.testing.assert_allclose(combine_layers(every, "sum4"), last.sum(0), atol=1e-5)
    found = np.asarray(combine_layers(every, "concat4")).reshape(2, 3, len(last), D)
    np.testing.assert_array_equal(found, np.moveaxis(last, 0, 2))
    np.testing.assert_array_equal(combine_layers(every, "last"), every[-1])
    np.testing.assert_array_equal(combine_layers(every, "all"), np.stack(every, 2))
    for layer in range(depth + 1):
        np.testing.assert_array_equal(combine_layers(every, layer), every[layer])


@pytest.mark.parametrize("shape", [(D,), (3, D)])
def test_padding_is_no_part_of_a_mean(shape):
    hidden = np.random.default_rng(0).normal(size=(2, 5, *shape)).astype(np.float32)
    # One text in the first row; two in the second, and padding.
    batch = {
        "segments": jnp.array([[1, 1, 1, 1, 1], [1, 1, 2, 0, 0]]),
        "starts": jnp.array([[0, 5], [0, 2]]),
        "lengths": jnp.array([[5, 0], [2, 1]]),
    }
    found = {how: pool_hidden_states(jnp.asarray(hidden), batch, how) for how in ("mean", "cls")}
    for b, s, begin, end in ((0, 0, 0, 5), (1, 0, 0, 2), (1, 1, 2, 3)):
        text = hidden[b, begin:end]
        np.testing.assert_allclose(found["mean"][b, s], text.mean(0), atol=1e-6)
        np.testing.assert_array_equal(found["cls"][b, s], text[0])


# Positions of every kind begin anew with each text of a row.
KINDS = [
    {"kind": "learned", "offset": 2, "skip_padding": True, "max_length": LENGTH},
    {"kind": "learned_relative", "offset": 2, "skip_padding": True, "max_length": LENGTH},
    {"kind": "rope"},
    {"kind": "relative"},
    {"kind": "alibi"},
    {"kind": "sinusoidal"},
]


@pytest.mark.parametrize("places", KINDS, ids=lambda places: places["kind"])
@pytest.mark.quick("learned")
def test_texts_of_one_row_do_not_see_each_other(model, places):
    config = dataclasses.replace(
        nnx.merge(*model).config,
        encoder_layers=1,
        positions=PositionConfig(**places),
        scores=ScoreConfig(sliding_window=3 if places["kind"] == "rope" else None),
    )
    made = drawn(lambda: EncoderForMaskedLM(config, next_sentence=False, rngs=nnx.Rngs(1)))
    net, texts = nnx.merge(*made), TEXTS[:3]
    [block] = Embedder(made, TOKENIZER).embed(texts, pool="none")
    alone = jax.jit(lambda ids, lengths: net.hidden_states(ids, lengths)[-1, 0])
    for text, mine in zip(texts, by_text(block), strict=True):
        ids = np.full((1, LENGTH), TOKENIZER.pad, np.int32)
        ids[0, : len(mine)] = TOKENIZER.bos, *TOKENIZER.encode(text), TOKENIZER.eos
        np.testing.assert_allclose(mine, alone(ids, np.array([len(mine)]))[: len(mine)], atol=1e-5)


def test_long_texts_are_cut_and_counted(model):
    vectors = Embedder(model, TOKENIZER, length=8)
    [block] = vectors.embed([TEXTS[0], TEXTS[2], "the " * 90], pool="none")
    assert block.lengths.tolist() == [8, len(TOKENIZER.encode(TEXTS[2])) + 2, 8]
    assert vectors.counts == {"lines": 3, "cut": 2, "unknown": 0}
    with pytest.raises(DataError, match="more than 8 tokens"):
        vectors.attention("the " * 90)


@pytest.mark.parametrize("layers", [-1, L + 1])
def test_layers_that_are_not_there_are_refused(vectors, layers):
    with pytest.raises(ConfigError, match=rf"layers {layers}: allowed are .* to {L}"):
        next(vectors.embed(TEXTS, layers=layers))


@pytest.mark.slow
def test_the_encoder_of_a_translator_reads_as_in_its_training():
    config = TransformerConfig(
        vocab_size=TOKENIZER.vocab_size,
        d_model=D,
        encoder_layers=1,
        decoder_layers=1,
        attention=AttentionConfig(num_heads=2),
        norm=NormConfig(residual_dropout=0.0),
    )
    made = drawn(lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)))
    [block] = Embedder(made, TOKENIZER).embed(TEXTS[:3], pool="none")
    ids = [*TOKENIZER.encode(TEXTS[1]), TOKENIZER.eos]
    wanted = nnx.merge(*made).encode(jnp.array([ids]), jnp.array([len(ids)]))[0]
    np.testing.assert_allclose(by_text(block)[1], wanted, atol=1e-5)


# One word in several sentences


@pytest.mark.slow
def test_a_static_vector_is_one_and_contextual_ones_are_many(model, vectors, every):
    """B3."""
    [a], [b] = (vectors.word(text, "bank") for text in TEXTS[:2])
    assert cosine(a.static, b.static) == pytest.approx(1.0)
    contextual = cosine(a.layers, b.layers)
    assert contextual.shape == (L + 1,)
    assert (contextual < 1 - 1e-4).all()
    [bank] = TOKENIZER.encode("bank")
    np.testing.assert_allclose(a.static, model[1]["embedding"]["table"][bank])
    place = 1 + TOKENIZER.encode(TEXTS[0]).index(bank)
    np.testing.assert_allclose(a.layers, by_text(every)[0][place], atol=1e-5)
    assert (a.pieces, TEXTS[0][a.start : a.start + 4]) == (("bank",), "bank")


def test_a_word_of_several_pieces_is_their_mean(model, vectors):
    pieces = TOKENIZER.encode("banks")
    assert len(pieces) > 1
    [found] = vectors.word("the banks", "banks")
    table = np.asarray(model[1]["embedding"]["table"])
    np.testing.assert_allclose(found.static, table[pieces].mean(0), atol=1e-6)
    assert len(found.pieces) == len(pieces)


def test_every_occurrence_is_found_and_parts_of_words_are_not(vectors):
    assert [one.start for one in vectors.word("bank, banks bank", "bank")] == [0, 12]
    for word in ("ban", "", "cash"):
        with pytest.raises(DataError, match=f'"{word}" is not a word of the sentence'):
            vectors.word("the bank", word)
    with pytest.raises(DataError, match="beyond the length limit, 20 tokens"):
        vectors.word("the " * 30 + "bank", "bank")


def test_what_a_word_reads_sums_to_one_with_the_special_tokens(vectors):
    [found] = vectors.word(TEXTS[0], "bank")
    names, maps = vectors.attention(TEXTS[0])
    assert maps.shape == (L, 1, 2, len(names), len(names))
    row = maps[:, 0, :, names.index("bank")].mean(1)  # [L T]
    special = row[:, [0, -1]].sum(-1)
    np.testing.assert_allclose(found.reads.sum(-1) + special, 1.0, atol=1e-5)
    attended = found.attended(3)
    assert len(attended) == 3
    assert "bank" not in dict(attended)
    assert [share for _, share in attended] == sorted(dict(attended).values(), reverse=True)


# Words with tags


def test_tagged_words_are_the_first_tokens_of_the_words(model, every):
    sentences = [TEXTS[0].split(), [], ["banks", "of", "cash"], ["the"] * 40]
    found = Embedder(model, TOKENIZER).tagged(sentences)
    assert found.shape == (8 + 3 + 40, L + 1, D)
    place = 1 + np.arange(8)  # all words of the first sentence are one token each
    np.testing.assert_allclose(found[:8], by_text(every)[0][place], atol=1e-5)
    # The last sentence continued in new examples, each with positions from 0.
    rest = LENGTH - 2
    np.testing.assert_allclose(found[11 : 11 + rest], found[11 + rest : 11 + 2 * rest], atol=1e-5)


# Files


def test_both_kinds_of_files_hold_what_was_given(tmp_path):
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 2, 3)).astype(np.float32) for n in (4, 1, 0)]
    others = {"offsets": np.array([0, 2, 5]), "ids": np.arange(5, dtype=np.int32)}
    for name in ("a.npz", "a.safetensors"):
        with VectorFile(tmp_path / "new" / name) as file:
            for part in parts:
                file.add(part)
            file.others = others
    packed = np.load(tmp_path / "new" / "a.npz")
    loaded = load_file(tmp_path / "new" / "a.safetensors")
    for found in (packed, loaded):
        assert set(found) == {"vectors", "offsets", "ids"}
        np.testing.assert_array_equal(found["vectors"], np.concatenate(parts))
        for name, array in others.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype
    with safe_open(tmp_path / "new" / "a.safetensors", "numpy") as file:
        assert file.get_slice("vectors").get_shape() == [5, 2, 3]
    assert len(list((tmp_path / "new").iterdir())) == 2  # nothing is left over


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors"])
def test_a_file_is_written_whole_or_not_at_all(tmp_path, name):
    def stopped():
        with VectorFile(tmp_path / name) as file:
            file.add(np.zeros((1, 2), np.float32))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--output .*a.csv: the name ends in .npz or"):
        VectorFile(tmp_path / "a.csv")
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match="cannot be written"),
        VectorFile(tmp_path / "file" / "a.npz"),
    ):
        pass


# Probes


@pytest.mark.slow
def test_a_probe_finds_the_layer_that_was_planted():
    """H21."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 4, 8)).astype(np.float32)
    labels = rng.integers(0, 3, 150)
    x[np.arange(150), 2, labels] += 6  # layer 2 alone knows
    rows = probe_layers(x[:100], labels[:100], x[100:], labels[100:])
    named = {row.name: row.accuracy for row in rows}
    assert list(named) == [
        "layer 0 (embeddings)", "layer 1", "layer 2", "layer 3", "sum of last 3",
        "last 3 concatenated",
    ]  # fmt: skip
    assert named["layer 2"] > 0.95
    assert named["last 3 concatenated"] > 0.9
    _, chance = majority(labels[:100], labels[100:])
    for layer in ("layer 0 (embeddings)", "layer 1", "layer 3"):
        assert named[layer] < chance + 0.2
    assert probe_layers(x[:100], labels[:100], x[100:], labels[100:]) == rows


def test_a_probe_does_not_mind_scale_and_constants():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 8)).astype(np.float32)
    labels = (x[:, 0] > 0).astype(int)
    scaled = x * np.array([1e-3, 1, 1, 1, 1, 1, 1, 1e3], np.float32) + 5
    scaled[:, 5] = 7  # says nothing, and has no deviation
    found = probe(scaled[:60], labels[:60], scaled[60:], labels[60:])
    assert found >= 0.85


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_poolings_are_of_the_tokens_of_each_text(skip):
    """Two texts of a row and padding; the first tokens may be left out, as those of a prompt."""
    hidden = np.random.default_rng(1).normal(size=(1, 7, D)).astype(np.float32)
    batch = {
        "segments": jnp.array([[1, 1, 1, 2, 2, 2, 0]]),
        "starts": jnp.array([[0, 3]]),
        "lengths": jnp.array([[3, 3]]),
    }
    modes = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
    every = np.asarray(pool_hidden_states(jnp.asarray(hidden), batch, modes, skip))
    for s, begin in ((0, 0), (1, 3)):
        text, n = hidden[0, begin + skip : begin + 3], 3 - skip
        weights = np.arange(skip + 1, 4)[:, None]
        wanted = [text[0], text.max(0), text.mean(0), text.sum(0) / n**0.5,
                  (weights * text).sum(0) / weights.sum(), text[-1]]  # fmt: skip
        np.testing.assert_allclose(every[0, s], np.concatenate(wanted), atol=1e-5)
