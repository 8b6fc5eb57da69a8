"""Unknown is told: the share of unknown text, by characters, per side and direction.

Training is refused above half, before any work, however the text comes in; ``evaluate`` tells it.
Uses of models count the texts that have some in one line.
"""

import dataclasses
import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import transformer_jax as tj
from tests.doors import table, uses
from tests.doors.readers import Form
from transformer_jax.cli.main import main
from transformer_jax.core.errors import DataError
from transformer_jax.data.added_tokens import add_tokens, tag_languages
from transformer_jax.data.chat.conversation_store import build_chats
from transformer_jax.data.chat.encoding import ChatEncoder
from transformer_jax.data.chat.template import named_template, special_tokens
from transformer_jax.data.conversations import read_conversations
from transformer_jax.data.coverage import unknown_texts
from transformer_jax.data.documents import TextOptions, read_texts
from transformer_jax.data.images.data import ImageReadOptions, ImageSplits, open_table
from transformer_jax.data.labeled import LabeledOptions, LabeledSplits, read_labeled
from transformer_jax.data.preferences import PreferenceSplits, read_preferences
from transformer_jax.data.sources import Files, PairData, Splits, read_pairs, with_languages
from transformer_jax.data.speech.recordings import SpeechSplits, read_manifest
from transformer_jax.data.summaries import SummarySplits, read_summaries
from transformer_jax.data.text_similarities import SimilarityOptions, read_compared
from transformer_jax.data.tokenizer import BERT_SPECIAL, Tokenizer, train_tokenizer
from transformer_jax.data.tokenizer_kind import Permission
from transformer_jax.models.config import EmbeddingConfig, FeatureConfig, TransformerConfig
from transformer_jax.models.presets import vit
from transformer_jax.recipes.tasks.batching import TokenCache
from transformer_jax.recipes.tasks.caption_task import captioning
from transformer_jax.recipes.tasks.contrast_task import Towers, contrast
from transformer_jax.recipes.tasks.fit import log_scored
from transformer_jax.recipes.tasks.instruction_task import log_chats
from transformer_jax.recipes.tasks.labeled import labeled
from transformer_jax.recipes.tasks.language_model_task import build_text_store
from transformer_jax.recipes.tasks.masked_lm_task import build_sentence_store
from transformer_jax.recipes.tasks.on_policy_task import PromptRows
from transformer_jax.recipes.tasks.preference_task import CompletionRows, encode_splits
from transformer_jax.recipes.tasks.similarity_task import SimilarityLoss, similarity
from transformer_jax.recipes.tasks.speech_task import speech_recognition
from transformer_jax.recipes.tasks.summarization_task import summarization
from transformer_jax.recipes.tasks.translation_task import translation

LAW = 4
KINDS = ("reader", "use")

GREEK = [f"{text} {text}" for text in ("αβγδ", "εζηθ", "ικλμ", "νξοπ", "ρστυ", "φχψω")]
LATIN = "abcdefghijklmnopqrstuvwxyz 0123456789"
LETTERS = train_tokenizer("characters", [LATIN] * 2, 60)
WORDS = train_tokenizer("wordpiece", [LATIN] * 2, 120, special=BERT_SPECIAL)
CONFIG = TransformerConfig(vocab_size=LETTERS.vocab_size, d_model=8)
ENCODER = dataclasses.replace(CONFIG, vocab_size=WORDS.vocab_size, decoder_layers=0)


def _pairs(path: Path) -> None:
    translation(Splits(read_pairs(Files(pairs=str(path))), None, {}), CONFIG, LETTERS)


def _aligned(path: Path) -> None:
    files = Files(str(path), str(path.with_name("target.txt")))
    translation(Splits(read_pairs(files), None, {}), CONFIG, LETTERS)


def _directions(pairs: Any, *allowed: Permission) -> None:
    pairs = read_pairs(Files(pairs=pairs))
    tokenizer = tag_languages(LETTERS, dict.fromkeys(pairs.directions)).allowing(*allowed)
    translation(Splits(pairs, None, {}), CONFIG, tokenizer)


def _summaries(path: Path) -> None:
    pytest.importorskip("rouge_score")
    summarization(SummarySplits(read_summaries(str(path)), None, {}), CONFIG, LETTERS)


def _documents(kind: Any) -> Callable[[Path], None]:
    def train(path: Path) -> None:
        texts = read_texts(str(path), TextOptions(documents=kind))
        with pytest.raises(DataError, match=REFUSED):
            build_sentence_store(texts, WORDS, TokenCache())
        build_text_store(texts, LETTERS, TokenCache())

    return train


def _labeled(kind: Any, **options: Any) -> Callable[[Path], None]:
    def train(path: Path) -> None:
        part = read_labeled(str(path), kind, LabeledOptions(**options))
        labels = ("label 0", "label 1", "yes") if kind != "tag" else ("NOUN", "VERB", "O", "B-X")
        splits = LabeledSplits(part, None, {})
        labeled(splits, ENCODER, WORDS, kind=kind, labels=labels, length=128, stride=16)

    return train


def _compared(task: Any, loss: Any) -> Callable[[Path], None]:
    def train(path: Path) -> None:
        part = read_compared(str(path), task, SimilarityOptions(), "data.train")
        similarity(LabeledSplits(part), ENCODER, WORDS, loss=SimilarityLoss(loss))

    return train


def _preferences(kind: Any) -> Callable[[Path], None]:
    def train(path: Path) -> None:
        part = read_preferences(str(path), kind)
        if kind == "prompts":
            PromptRows(LETTERS.bos).data(part, LETTERS)
        else:
            encode_splits(PreferenceSplits(part, None), LETTERS, CompletionRows(LETTERS.bos))

    return train


def _chats(path: Path) -> None:
    template = named_template("chatml")
    tokenizer = add_tokens(LETTERS, special=special_tokens(template))
    encoder = ChatEncoder(tokenizer, template)
    store = build_chats(str(path), encoder, limit=400)
    texts = [one.messages[0]["content"] for one in read_conversations(path)]
    log_chats(str(path), store, texts, tokenizer, 0.0)


def _recordings(path: Path) -> None:
    apart = EmbeddingConfig(share_encoder_decoder_embeddings=False)
    config = dataclasses.replace(CONFIG, features=FeatureConfig(80, 4), embedding=apart)
    speech_recognition(SpeechSplits(read_manifest(str(path))), config, LETTERS)


def _with_pictures(train: Callable[[ImageSplits], Any]) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        table = open_table(str(path), ImageReadOptions(text_kind="caption"), "")
        train(ImageSplits(table))

    return read


def _captions(splits: ImageSplits) -> None:
    with pytest.raises(DataError, match=REFUSED):
        contrast(splits, Towers(VISION, CONFIG), LETTERS)
    captioning(splits, VISION, CONFIG, LETTERS)


VISION = vit(8, 1, image_size=16, patch_size=8)
REFUSED = r"\d\d\.\d% of the text of .* is unknown to the tokenizer .*--tokenizer\.allow-unknown"
READERS: dict[str, Callable[[Path], None]] = {
    "pairs in two aligned files": _aligned,
    "pairs as TSV": _pairs,
    "pairs as CSV": _pairs,
    "pairs as JSONL": _pairs,
    "pairs as Parquet": _pairs,
    "pairs by language": lambda path: _directions((f"de-en={path}",)),
    "table of pairs by language": lambda path: _directions(
        with_languages(PairData(pairs=str(path))).pairs
    ),
    "texts with summaries": _summaries,
    "texts with summaries as CSV": _summaries,
    "documents in lines": _documents("line"),
    "documents between blank lines": _documents("blank"),
    "documents in files of a folder": _documents("file"),
    "documents as JSONL": _documents("file"),
    "documents as Parquet": _documents("file"),
    "labeled texts as TSV": _labeled("classify"),
    "labeled texts as CSV": _labeled("classify"),
    "labeled texts as JSONL": _labeled("classify"),
    "labeled texts as Parquet": _labeled("classify"),
    "data set of Hugging Face": _labeled("classify"),
    "labeled pairs as TSV": _labeled("pair"),
    "numbered texts": _labeled("regress"),
    "pairs with scores": _compared("scores", "cosent"),
    "texts with positives as CSV": _compared("ranking", "ranking"),
    "texts with positives as JSONL": _compared("ranking", "ranking"),
    "tagged words as CoNLL-U": _labeled("tag"),
    "tagged words in columns": _labeled("tag"),
    "tagged words as GermEval": _labeled("tag"),
    "tagged words as CoNLL-2012": _labeled("tag"),
    "tagged words as JSONL": _labeled("tag", text="words", tag="tags"),
    "questions": _labeled("qa"),
    "questions in rows": _labeled("qa"),
    "preferences": _preferences("pairs"),
    "preferences as CSV": _preferences("pairs"),
    "completions with a label": _preferences("labels"),
    "prompts to learn from": _preferences("prompts"),
    "conversations": _chats,
    "prompts with completions": _chats,
    "completions as CSV": _chats,
    "recordings as TSV": _recordings,
    "recordings as CSV": _recordings,
    "recordings as JSONL": _recordings,
    "pictures in a TSV table": _with_pictures(_captions),
    "pictures in a CSV table": _with_pictures(_captions),
    "captions of Flickr8k": _with_pictures(_captions),
    "captions of COCO": _with_pictures(_captions),
    "pictures in a JSONL table": _with_pictures(_captions),
    "pictures in arrays": _with_pictures(_captions),
}
SHOWN = {
    "look at attention": "shows each token",
    "tokenize": "shows each token",
}
USES = {name: use for name, use in uses.USES.items() if name not in SHOWN}
CASES: dict[str, object] = {**READERS, **USES}
EXEMPT = SHOWN | {
    "compare samples": "samples of generate, which counts prompts",
    "few-shot prompts": "builds prompts itself, and counts them as generate does",
    "compare vectors of a word": "shows the tokens of the word",
    "transcribe": "takes sound",
    "caption": "takes pictures",
    "classify pictures": "takes pictures",
    "embed pictures": "takes pictures",
    "match pictures and texts": "a model of its own: tests/recipes/test_clip.py",
    "words of word vectors": "names words without a vector",
    "classes of labeled texts": "labels have numbers of their own: no tokenizer reads them",
    "pictures in class folders": "labels have numbers of their own: no tokenizer reads them",
    "data sets of TensorFlow": "rows of a library, collected as the rows of a TSV file are",
    "text for word vectors": "its words are the vocabulary",
    "word vectors": "tokens without a vector are counted where embeddings begin",
    "word vectors of GloVe": "tokens without a vector are counted where embeddings begin",
    "analogy questions": "questions with unknown words are counted by the command",
    "similar words": "pairs with unknown words are counted by the command",
    "demonstrations": "prompts of a finished model, which is not trained",
    "rewards and rules of users": "code of the user, which has no tokenizer",
    "prompts in lines or JSONL": "prompts of a finished model, which is not trained",
    "texts in a table as CSV": "texts of a finished model, which is not trained",
    "requests": "prompts of a finished model, which is not trained",
    "lines of text": "inputs of a finished model, which is not trained",
    "results of benchmarks": "written by the package",
    "outputs with references": "texts of a finished model, or of another program",
}


@pytest.mark.parametrize("name", READERS)
def test_training_on_unknown_text_is_refused(name, tmp_path):
    path = table.by_name(name).write(tmp_path, GREEK, Form())
    with pytest.raises(DataError, match=REFUSED):
        READERS[name](path)


def test_evaluation_tells_of_unknown_text_and_goes_on(capfd):
    log_scored("a.tsv", "6 pairs", LETTERS, source=GREEK, target=[LATIN] * 6)
    said = capfd.readouterr().err
    assert "warning: 100.0% of the text of the source of a.tsv is unknown" in said
    assert "a.tsv: 6 pairs, unknown text: source 100.0%, target 0.0%" in said


def test_one_direction_among_many_is_refused(tmp_path):
    for number, texts in enumerate([[LATIN] * 50, GREEK]):
        folder = tmp_path / str(number)
        table.by_name("pairs as TSV").write(folder, texts, Form())
    files = (f"de-en={tmp_path}/0/data.tsv", f"el-en={tmp_path}/1/data.tsv")
    with pytest.raises(DataError, match=r"100\.0% of the text of the source of el-en of "):
        _directions(files)
    _directions(files, "unknown")


# Of two texts of a call, one has a letter that the tokenizers of the models do not know.
KNOWN, UNKNOWN, HELD = "un café", "un caféω", "text that the tokenizer does not know"


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_a_model_tells_of_unknown_text(name, tmp_path):
    use = USES[name]
    model = tj.load(use.write(tmp_path / "model"))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        use.call(model, KNOWN)
        known = [one for one in seen if HELD in str(one.message)]
        use.call(model, UNKNOWN)
    unknown = {str(one.message) for one in seen if HELD in str(one.message)}
    assert not known
    assert unknown == {f"1 text holds {HELD}"}


@pytest.mark.quick("tag words")
@pytest.mark.parametrize("name", [name for name, use in USES.items() if use.command])
def test_a_command_counts_unknown_texts_in_one_line(name, tmp_path, monkeypatch, capfd):
    use = USES[name]
    folder = use.write(tmp_path / "model")
    for text, lines in ((UNKNOWN, 1), (KNOWN, 0)):
        arguments, given = use.command(folder, text)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        assert main(arguments) == 0
        assert capfd.readouterr().err.count(f"holds {HELD}") == lines


def test_texts_with_unknown_text_are_counted_whether_it_has_a_token_or_is_dropped():
    vocabulary = {one: i for i, one in enumerate(["</s>", *LATIN])}
    dropping = Tokenizer(tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [])).to_str())
    assert dropping.unk is None
    for tokenizer in (LETTERS, WORDS, dropping):
        assert unknown_texts([LATIN, "ab ω", "", GREEK[0]], tokenizer) == 2
    ids = np.array(LETTERS.encode(LATIN))
    assert unknown_texts([LATIN], LETTERS, ids) == 0
    assert unknown_texts(GREEK, train_tokenizer("bytes", [])) == 0
