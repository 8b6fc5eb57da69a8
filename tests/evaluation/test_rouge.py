"""ROUGE, and summaries that are parts of the source: row T16."""

import random
import sys

import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.sentences import sentences
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.requests import Continuation, Translation
from transformer_jax.evaluation.rouge import check_installed, lead, oracle, rouge_scores

WORDS = [
    *[
        "the",
        "a",
        "of",
        "models",
        "model",
        "modelling",
        "learn",
        "learning",
        "learned",
        "networks",
        "neural",
        "NETWORK,",
    ],
    *[
        "training",
        "trained",
        "train",
        "data",
        "we",
        "show",
        "results",
        "resulting",
        "state-of-the-art",
        "improve",
    ],
    *["2019", "caresses", "ponies", "happily", "relational", "conditional"],
]


def text(rng, most=30):
    words = [rng.choice(WORDS) for _ in range(rng.randrange(most))]
    return " ".join(words[:7]) + (". " + " ".join(words[7:]) if len(words) > 7 else "")


@pytest.fixture(scope="module")
def scorer():
    module = pytest.importorskip("rouge_score.rouge_scorer", reason="needs rouge-score")
    return module.RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)


@pytest.mark.slow
def test_t16_scores_are_those_of_rouge_score_on_a_thousand_pairs(scorer):
    rng = random.Random(0)
    pairs = [(text(rng), [text(rng) for _ in range(1 + i % 3)]) for i in range(1000)]
    split = lambda one: "\n".join(sentences(one)) or one
    expected = [scorer.score_multi(list(map(split, refs)), split(hyp)) for hyp, refs in pairs]
    found = rouge_scores([hyp for hyp, _ in pairs], [refs for _, refs in pairs])
    for name in ("rouge1", "rouge2", "rougeL", "rougeLsum"):
        mean = 100 * sum(one[name].fmeasure for one in expected) / 1000
        assert abs(getattr(found, name) - mean) < 1e-9
    assert found.signature.startswith("nrefs:var|F1|")
    assert found.summaries == 1000


def test_the_bounds_are_reached(scorer):
    same = rouge_scores(["We train models."], [["we train models"]])
    assert (same.rouge1, same.rouge2, same.rougeL, same.rougeLsum) == (100.0,) * 4
    none = rouge_scores(["cats purr", ""], [["dogs bark"], ["dogs bark"]])
    assert (none.rouge1, none.rougeL) == (0.0, 0.0)
    one = rouge_scores(["cats purr"], [["dogs bark", "a cat purrs"]])
    assert one.rouge1 == pytest.approx(80.0)  # of the better reference: 2 · 1 · 2/3 / (5/3)


def test_sentences_count_for_lsum_alone(scorer):
    found = rouge_scores(["He left. She came."], [["She came. He left."]])
    assert found.rougeLsum == 100.0
    assert found.rougeL == pytest.approx(50.0)


@pytest.mark.slow
def test_t16_the_oracle_is_the_best_choice_of_one_sentence_and_lead_the_first(scorer):
    rng = random.Random(1)
    value = lambda chosen, refs: sum(
        scorer.score_multi(refs, "\n".join(chosen))[name].fmeasure for name in ("rouge1", "rouge2")
    )
    for _ in range(60):
        source = ". ".join(text(rng, 8) or "a" for _ in range(4))
        refs = [text(rng, 12) for _ in range(2)]
        found = sentences(source)
        assert lead(found, 2) == "\n".join(found[:2])
        best = max((value([one], refs) for one in found), default=0.0)
        assert value(oracle(found, refs, most=1).split("\n"), refs) == pytest.approx(best)
        more = oracle(found, refs, most=3)
        assert value(more.split("\n"), refs) >= best - 1e-12
        # It keeps the order of the source.
        places = [found.index(one) for one in more.split("\n") if one]
        assert sorted(places) == places
        # No other sentence beside these makes it better, unless there are three.
        for other in set(range(len(found))) - set(places) if len(places) < 3 else ():
            both = [found[i] for i in sorted([*places, other])]
            assert value(both, refs) <= value(more.split("\n"), refs) + 1e-12


def test_nothing_in_common_gives_no_sentence(scorer):
    assert oracle(["Cats purr.", "Birds sing."], ["dogs bark"]) == ""
    assert oracle([], ["dogs bark"]) == lead([]) == ""


def test_what_cannot_be_scored_is_refused(scorer):
    with pytest.raises(DataError, match="no summaries to score"):
        rouge_scores([], [])
    for references in ([], [[]], [["a"], ["b"]]):
        with pytest.raises(DataError, match="each needs one or more"):
            rouge_scores(["a"], references)


def test_without_the_library_the_message_says_how_to_get_it(monkeypatch):
    for name in ("rouge_score", "rouge_score.rouge_scorer"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install 'transformer-jax\[rouge\]'"):
        check_installed()


def test_a_text_without_a_summary_is_summarized_and_not_scored(monkeypatch, capsys):
    pytest.importorskip("rouge_score", reason="needs rouge-score")
    from transformer_jax.data.summaries import Summaries
    from transformer_jax.data.tokenizer import train_tokenizer
    from transformer_jax.recipes.tasks import summarization_task as task

    texts = Summaries([["It rains."], ["Go."], ["A cat."]], [["It rains."], [], ["A cat."]], "test")
    monkeypatch.setattr(task, "Translator", lambda *_, **__: None)
    done = lambda text: Translation(text, (Continuation(text, (1,), -1.0, "stop", -1.0),))
    monkeypatch.setattr(task, "decode_texts", lambda _, sources, __: list(map(done, sources)))
    tokenizer = train_tokenizer("bytes", [])
    search = GenerationConfig(num_beams=1)
    scores, written = task.score_summaries(None, tokenizer, texts, task.SummaryEvaluation(), search)
    assert [one.text for one in written] == ["It rains.", "Go.", "A cat."]
    assert [found["rouge1"] for found in scores.values()] == pytest.approx([100] * 3)
    assert [found["summaries"] for found in scores.values()] == [2] * 3
    assert "test: 1 of 3 texts without a summary: left out of the scores" in capsys.readouterr().err
