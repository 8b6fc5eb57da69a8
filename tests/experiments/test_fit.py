"""Texts that a tokenizer does not know, or does not restore, are counted, named and refused."""

import dataclasses

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from transformer_jax.cli import seq2seq
from transformer_jax.core.errors import DataError
from transformer_jax.core.old_names import current_config
from transformer_jax.data import coverage
from transformer_jax.data.coverage import text_coverage
from transformer_jax.data.documents import TextSplits
from transformer_jax.data.labeled import LabeledSplits
from transformer_jax.data.labeled_files import Sentences, Tagged
from transformer_jax.data.squad import Questions, SquadAnswer
from transformer_jax.data.tokenizer import BERT_SPECIAL, Tokenizer, train_tokenizer
from transformer_jax.models.config import TransformerConfig
from transformer_jax.recipes import denoising, driver, masked_lm
from transformer_jax.recipes.language_evaluation import build_stores
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.settings import TokenizerConfig
from transformer_jax.recipes.tasks import masked_lm_task
from transformer_jax.recipes.tasks.batching import TokenCache
from transformer_jax.recipes.tasks.fit import (
    Side,
    check_restored,
    describe_unknown,
    log_scored,
)
from transformer_jax.recipes.tasks.labeled import labeled
from transformer_jax.recipes.tasks.language_model_task import as_documents, build_text_store
from transformer_jax.recipes.tasks.masked_lm_task import build_sentence_store
from transformer_jax.recipes.tasks.translation_task import translation
from transformer_jax.runs.run_directory import RunDirectory

RUNS = named_runs("translation", "recurrent_translation")

LATIN = ["a man eats", "the man sat", "an ant ate"]
GREEK = ["αβγ δε", "ζη αβ"]


@pytest.fixture(scope="module")
def letters():
    return train_tokenizer("characters", LATIN, 40)


def side(tokenizer, texts, name="source"):
    ids = [id for text in texts for id in [*tokenizer.encode(text), tokenizer.eos]]
    return Side(name, texts, tokenizer, np.array(ids))


def test_the_share_is_that_of_characters_and_leaves_out_what_is_no_text(letters):
    share = lambda texts, tokenizer: text_coverage(texts, tokenizer).share
    assert share(["aaa β"], letters) == 0.25
    assert share(LATIN, letters) == 0
    assert share(GREEK, train_tokenizer("bpe", LATIN, 300)) == 0
    words = train_tokenizer("words", LATIN * 2, 60)
    assert share(["a αβγ"], words) == 0.75  # one of two tokens
    assert share(["a man αβγδεζη"], words) == 7 / 11


def fused(unk="<unk>", **settings):
    """A tokenizer of a, b and c whose blanks are tokens, and whose unknown tokens are fused."""
    vocab = {name: i for i, name in enumerate(["<pad>", "</s>", "<unk>", "▁", "a", "b", "c"])}
    model = models.BPE(vocab, [], unk_token=unk, fuse_unk=True)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return Tokenizer(backend.to_str())


@pytest.mark.parametrize("unk", ["<unk>", None])
def test_a_line_without_a_known_character_is_unknown_however_few_its_tokens(unk):
    """A fused unknown token behind a blank is half of the tokens; without one, text vanishes."""
    tokenizer = fused(unk)
    assert text_coverage(["คน", "กา"], tokenizer).share == 1
    assert text_coverage(["a b c", "cab"], tokenizer).share == 0
    assert text_coverage(["ab คน"], tokenizer).share == 0.5
    with pytest.raises(DataError, match=r"100\.0% of the text of .* is unknown"):
        describe_unknown("a.txt", side(tokenizer, ["คน", "กา"]))


def test_each_side_is_printed_and_a_warning_names_examples(letters, capsys):
    sides = side(letters, [*LATIN, "aβγ"]), side(letters, LATIN, "target")
    assert describe_unknown("pairs.tsv", *sides) == ", unknown text: source 7.1%, target 0.0%"
    said = capsys.readouterr().err
    assert "warning: 7.1% of the text of the source of pairs.tsv is unknown" in said
    assert "(such as 'β', 'γ')" in said
    describe_unknown("pairs.tsv", side(letters, [*LATIN * 2, "aβ"]))
    assert capsys.readouterr().err == ""


def test_mostly_unknown_data_is_refused_unless_it_is_allowed(letters):
    refused = r"88\.9% of the text of the source of a\.tsv is unknown .*'α', 'β'.*kind bpe"
    with pytest.raises(DataError, match=refused):
        describe_unknown("a.tsv", side(letters, ["αβγδ e", "αβγδ"]))
    allowed = side(letters.allowing("unknown"), ["αβγδ e", "αβγδ"])
    assert "88.9%" in describe_unknown("a.tsv", allowed)


def test_a_direction_that_is_unknown_is_refused_among_others_that_are_not(letters):
    parts = {"en-de": LATIN * 9, "en-el": GREEK}
    whole = side(letters, [*LATIN * 9, *GREEK])._replace(texts=parts)
    with pytest.raises(DataError, match=r"100\.0% of the text of the source of en-el of a is"):
        describe_unknown("a", whole)
    allowed = whole._replace(tokenizer=letters.allowing("unknown"))
    assert describe_unknown("a", allowed) == ", unknown text: source 3.8%"


def test_unknown_parts_of_a_template_are_told(letters, capsys):
    ids = np.array([letters.encode("a")[0]] * 7 + [letters.unk] * 3)
    describe_unknown("chats", Side("", ["a"], letters, ids))
    assert "30.0% of the text of chats is unknown" in (said := capsys.readouterr().err)
    assert "(such as the parts of a template around the texts)" in said


def test_the_beginnings_of_long_texts_and_texts_at_equal_distances_are_read(letters, monkeypatch):
    read, spans = [], letters.encode_spans
    counted = lambda _, texts: read.extend(map(len, texts)) or spans(texts)
    monkeypatch.setattr(Tokenizer, "encode_spans", counted)
    monkeypatch.setattr(coverage, "_MOST", 5000)
    monkeypatch.setattr(coverage, "_LONGEST", 1000)
    assert text_coverage(["a \u03b2 " * 20_000] * 300, letters).share == 0.5
    assert sum(read) <= 5000
    ends = text_coverage(["a" * 1000] * 299 + ["\u03b2" * 1000], letters)
    assert ends.share == 0
    assert text_coverage(["a" * 100, "\u03b2" * 100] * 2000, letters).share in (0, 0.5, 1)


def tasks(letters, *allowed):
    """Ways to give a task texts that its tokenizer does not know."""
    words = train_tokenizer("wordpiece", LATIN, 60, special=BERT_SPECIAL).allowing(*allowed)
    letters = letters.allowing(*allowed)
    config = TransformerConfig(vocab_size=letters.vocab_size, d_model=8)
    encoder = dataclasses.replace(config, vocab_size=words.vocab_size, decoder_layers=0)
    classes = Sentences("file", GREEK, None, ["0", "1"])
    tags = Tagged("file", [text.split() for text in GREEK], [["0", "1"]] * 2)
    made = lambda part, kind: labeled(
        LabeledSplits(part, None, {}), encoder, words, kind=kind, labels=("0", "1")
    )
    pairs = list(zip(GREEK, LATIN, strict=False))
    return {
        "source": lambda: translation(pairs, config, letters),
        "target": lambda: translation([pair[::-1] for pair in pairs], config, letters),
        "classes": lambda: made(classes, "classify"),
        "tags": lambda: made(tags, "tag"),
        "text": lambda: build_text_store(as_documents(GREEK), letters, TokenCache()),
        "sentences": lambda: build_sentence_store(as_documents(GREEK), words, TokenCache()),
    }


@pytest.mark.parametrize("kind", ["source", "target", "classes", "tags", "text", "sentences"])
def test_every_kind_of_data_is_checked(letters, kind, capsys):
    with pytest.raises(DataError, match=r"% of the text of .* is unknown"):
        tasks(letters)[kind]()
    tasks(letters, "unknown", "lossy")[kind]()
    assert "unknown text: " in capsys.readouterr().err


def test_truncated_questions_and_answers_in_no_window_are_counted(capsys):
    words = train_tokenizer("wordpiece", LATIN, 60, special=BERT_SPECIAL)
    context = "a man eats " * 20
    answers = [SquadAnswer("a man", 0)], [SquadAnswer(context.strip(), 0)]
    part = Questions("file", ["0", "1"], ["a man " * 40, "the man"], [context] * 2, [*answers])
    encoder = TransformerConfig(vocab_size=words.vocab_size, d_model=8, decoder_layers=0)
    splits = LabeledSplits(part, None, {})
    labeled(splits, encoder, words, kind="qa", labels=(), length=32, stride=8)
    said = capsys.readouterr().err
    assert "file: 2 questions, 1 of them truncated, " in said
    assert ", 1 answer in no window, " in said


def test_targets_that_are_decoded_otherwise_are_refused(capsys):
    targets = ["l'été (3,5 %) - oui", "a: b; c", "(x)"]
    lossy = train_tokenizer("wordpiece", targets, 90, special=BERT_SPECIAL)
    with pytest.raises(DataError, match=r"restore 100\.0% of the targets of t: '\(x\)' becomes"):
        check_restored("t", targets, lossy)
    check_restored("t", targets, lossy.allowing("lossy"))
    assert "warning: the tokenizer does not restore" in capsys.readouterr().err
    check_restored("t", targets, train_tokenizer("wordpiece", targets, 90))
    check_restored("t", ["a  b", "e\u0301"], train_tokenizer("bpe", targets, 300))
    assert capsys.readouterr().err == ""


def test_what_a_tokenizer_normalizes_is_no_loss(capsys):
    def loaded(texts, normalizer, pre_tokenizer, decoder):
        letters = sorted(set("".join(texts) + "".join(texts).lower() + ",.!e\u2581"))
        pieces = ["<pad>", "<unk>", "<bos>", "<eos>", *letters, *(f"##{x}" for x in letters)]
        vocab = {piece: i for i, piece in enumerate(pieces)}
        backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="<unk>"))
        backend.normalizer, backend.pre_tokenizer = normalizer, pre_tokenizer
        backend.decoder = decoder
        return Tokenizer(backend.to_str())

    bert = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    uncased, cased = (normalizers.BertNormalizer(lowercase=lower) for lower in (True, False))
    marks = (
        pre_tokenizers.Metaspace(),
        decoders.Sequence([decoders.Replace("##", ""), decoders.Fuse(), decoders.Metaspace()]),
    )
    for texts, tokenizer in (
        (["A Man Sat.", "Caf\u00e9\tThe End"], (uncased, *bert)),
        (["\u6211\u4eec\u53bb\u3002", "\u4f60\u597d\uff0cNY\uff01"], (cased, *bert)),
        (["\u4f60\u597d\uff0c\u6211\uff01", "\u6211\uff01"], (normalizers.NFKC(), *marks)),
    ):
        check_restored("t", texts, loaded(texts, *tokenizer))
        assert "warning: the tokenizer does not restore 100.0% of" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"'\(x\) A' becomes '\( x \) a'"):
        check_restored("t", ["(x) A"], loaded(["(x) A"], uncased, *bert))


def test_scores_name_unknown_tokens_and_never_refuse(letters, monkeypatch, tmp_path, capsys):
    scored = lambda *_: log_scored("a.tsv", "2 pairs", letters, source=GREEK, target=LATIN)
    scored()
    said = capsys.readouterr().err
    assert "a.tsv: 2 pairs, unknown text: source 100.0%, target 0.0%" in said
    assert "warning: 100.0% of the text of the source of a.tsv" in said

    # A model is not lost at its end, whatever texts it is scored on.
    letters.save(tmp_path / "tokenizer.json")
    directory, greek = RunDirectory(tmp_path), as_documents(GREEK)
    run = next(iter(named_runs("language_model").values()))[1]
    assert len(build_stores(run, directory, {"test": greek})["test"].ids)
    with pytest.raises(DataError, match="unknown"):
        build_stores(run, directory, {"train": greek}, run.tokenizer.allowed)

    class ReadError(Exception):
        pass

    def read(texts, tokenizer, *_, **__):
        describe_unknown("a", side(tokenizer, GREEK))
        raise ReadError

    monkeypatch.setattr(masked_lm_task, "build_sentence_store", read)
    for name, recipe in (("masked_lm", masked_lm), ("denoising", denoising)):
        run = next(iter(named_runs(name).values()))[1]
        with pytest.raises(ReadError):
            recipe.score(run, directory, TextSplits(greek, None, {}), letters, None)


def test_a_run_is_refused_before_it_is_trained(tmp_path, capsys):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{GREEK[i % 2]}\t{LATIN[i % 3]}\n" for i in range(30)))
    tokenizer = tmp_path / "tokenizer.json"
    train_tokenizer("characters", LATIN, 40).save(tokenizer)
    command = ["train", "small", "--data.pairs", str(pairs), "--tokenizer.path", str(tokenizer)]
    assert seq2seq.main([*command, "--output", str(tmp_path / "run")]) == 3
    said = capsys.readouterr().err
    assert "of the text of the source of" in said
    assert "--tokenizer.allow-unknown" in said


def test_the_settings_of_a_run_allow_it(monkeypatch, tmp_path):
    run = RUNS["small"][1]
    assert run.tokenizer == TokenizerConfig(vocab_size=None)
    old = current_config({"tokenizer": {"kind": "bpe"}})["tokenizer"]
    assert (old["allow_unknown"], old["allow_lossy"]) == (True, True)
    letters = train_tokenizer("characters", LATIN, 40)
    monkeypatch.setattr(driver, "tokenizer_of", lambda run, directory: letters)
    monkeypatch.setattr(driver.checks, "check_rows", lambda run: None)

    directory = RunDirectory(tmp_path)

    class MadeError(Exception):
        pass

    def make_task(run, directory, tokenizer, data):
        describe_unknown("a", side(tokenizer, GREEK))
        raise MadeError

    monkeypatch.setattr(driver, "make_task", make_task)
    with pytest.raises(DataError, match="unknown"):
        driver.train(run, directory, None)
    allowed = dataclasses.replace(run.tokenizer, allow_unknown=True)
    with pytest.raises(MadeError):
        driver.train(dataclasses.replace(run, tokenizer=allowed), directory, None)
