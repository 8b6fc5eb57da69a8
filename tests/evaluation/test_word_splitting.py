"""Words of scores: chosen from the script of the references, given, and said."""

import importlib.util
import itertools
import types

import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers import tokenizer_spm

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.evaluation.answers import token_f1
from transformer_jax.evaluation.bleu import translation_scores
from transformer_jax.evaluation.diversity import diversity
from transformer_jax.evaluation.error_rates import word_error_rate
from transformer_jax.evaluation.rouge import oracle, rouge_scores
from transformer_jax.evaluation.word_splitting import check_tokenize, choose_tokenize, main_script
from transformer_jax.models.config import AttentionConfig, FeedForwardConfig, TransformerConfig
from transformer_jax.recipes.tasks.settings import EvaluationConfig
from transformer_jax.recipes.tasks.translation_task import translation

MEANT = ["我们昨天去了公园。", "他正在学习中文。", "今天的天气很好。", "请给我一杯水。"]
SAID = ["我们昨天去公园了。", "他正在学习中文。", "今天天气很好。", "请给我一杯水。"]


@pytest.mark.parametrize(
    ("text", "script", "tokenize"),
    [
        ("The cat sat on the mat.", "latin", "13a"),
        ("Où est la bibliothèque ? Tiếng Việt", "latin", "13a"),
        ("Кошка сидит на ковре.", "other", "13a"),
        ("القطة على السجادة", "other", "13a"),
        ("बिल्ली चटाई पर है", "other", "13a"),
        ("猫坐在垫子上，用 GPU 训练模型。", "han", "zh"),
        ("𠮷野家", "han", "zh"),
        ("แมวนั่งอยู่บนเสื่อ", "unspaced", "char"),
        ("ឆ្មា", "unspaced", "char"),
        ("12, 34.", "latin", "13a"),
        ("", "latin", "13a"),
    ],
)
def test_the_script_of_references_chooses_words(text, script, tokenize):
    assert main_script([text]) == script
    assert choose_tokenize(["", text, text]) == tokenize


@pytest.mark.parametrize(
    ("text", "name", "without"),
    [
        ("猫がマットの上に座っている。", "ja-mecab", "char"),
        ("고양이가 매트 위에 앉았다", "ko-mecab", "13a"),
    ],
)
def test_packages_that_are_missing_choose_other_words(monkeypatch, text, name, without):
    found = lambda there: lambda name: types.SimpleNamespace() if there else None
    monkeypatch.setattr(importlib.util, "find_spec", found(True))
    assert choose_tokenize([text]) == name
    monkeypatch.setattr(importlib.util, "find_spec", found(False))
    assert choose_tokenize([text]) == without
    with pytest.raises(ConfigError, match=f"evaluation.tokenize is {name}, whose package is miss"):
        check_tokenize(name, "evaluation.tokenize")


def test_near_perfect_chinese_scores_as_sacrebleu_with_zh():
    scores = translation_scores(SAID, MEANT)
    assert scores.bleu == BLEU(tokenize="zh").corpus_score(SAID, [MEANT]).score > 60
    assert "|tok:zh|" in scores.signature
    near = [text.replace("。", "！") for text in SAID]
    assert translation_scores(near, MEANT, tokenize="13a").bleu == 0.0
    assert translation_scores(near, MEANT).bleu > 50
    assert "|tok:char|" in translation_scores(SAID, MEANT, tokenize="char").signature
    with pytest.raises(ConfigError, match="tokenize is 'zhh': must be one of"):
        translation_scores(SAID, MEANT, tokenize="zhh")


def test_a_model_that_cannot_be_downloaded_is_one_line(monkeypatch):
    def refused(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(tokenizer_spm, "download_file", refused)
    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", "/nowhere")
    with pytest.raises(ConfigError, match=r"flores200, whose model sacreBLEU failed to download"):
        check_tokenize("flores200")


@pytest.mark.parametrize(("text", "words"), [("我们去公园", "zh"), ("we go to the park", "13a")])
def test_a_task_keeps_the_words_that_follow_from_its_targets(text, words):
    tokenizer = train_tokenizer("characters", ["ab", text], 60)
    config = TransformerConfig(
        vocab_size=tokenizer.vocab_size, d_model=8, encoder_layers=1, decoder_layers=1,
        attention=AttentionConfig(num_heads=2), feed_forward=FeedForwardConfig(d_ff=8),
    )  # fmt: skip
    pairs = [("ab", text[:n]) for n in itertools.islice(itertools.cycle((1, 3, 5)), 20)]
    kept = translation(pairs, config, tokenizer).settings.evaluation
    assert kept.tokenize == words
    assert kept.limit == (4.0, 10)  # 2 x 6 tokens / 3, end tokens among them
    given = EvaluationConfig(tokenize="char", max_len_a=7.5)
    kept = translation(pairs, config, tokenizer, evaluation=given).settings.evaluation
    assert (kept.tokenize, kept.limit) == ("char", (7.5, 10))


def test_other_scores_split_chinese_too():
    rate = word_error_rate(SAID, MEANT, "zh")
    assert rate.length == sum(map(len, MEANT))
    assert rate.errors == 3
    assert token_f1("我们去公园", "我们去了公园") == pytest.approx(2 * 5 / 11)
    assert token_f1("the red dog", "a red dog") == 1.0
    found = diversity([["我们去公园", "我们去学校"], ["他在学习", "他在学习"]])
    assert found.tokenize == "zh"
    assert found.distinct_1 == 10 / 18
    assert found.words == 4.5
    assert 30 < found.self_bleu < 100
    assert diversity([["a cat", "a dog"]]).tokenize == "13a"


@pytest.mark.parametrize(
    ("text", "words"),
    [("我们 去 公园。", "zh"), ("Кошка сидит на ковре.", "13a"), ("cats sit", "latin")],
)
def test_rouge_has_words_of_the_script(text, words):
    pytest.importorskip("rouge_score", reason="needs rouge-score")
    same = rouge_scores([text], [[text]])
    assert (same.rouge1, same.rouge2) == (100.0, 100.0)
    assert f"|words:{words}, lower case|" in same.signature
    if words != "latin":
        assert rouge_scores([text], [[text]], "latin").rouge1 == 0.0
        assert oracle(["x", text], [text], tokenize=words) == text
