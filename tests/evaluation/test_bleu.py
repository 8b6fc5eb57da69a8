import json

import pytest
import sacrebleu

from transformer_jax.core.errors import DataError
from transformer_jax.evaluation.bleu import translation_scores

SAID = ["The dog is sleeping.", "Lucas will travel to Rio in December.", "A green bench!"]
MEANT = ["The dog sleeps.", "Lucas will travel to Rio in December.", "a green bench!"]


def test_the_scores_are_the_incumbents():
    scores = translation_scores(SAID, MEANT)
    assert scores.bleu == sacrebleu.corpus_bleu(SAID, [MEANT]).score
    assert scores.chrf == sacrebleu.corpus_chrf(SAID, [MEANT]).score


def test_several_references_are_streams():
    both = translation_scores(SAID, [MEANT, SAID])
    assert both.bleu == pytest.approx(100.0)
    assert both.signature.startswith("nrefs:2|")


def test_a_score_never_goes_without_its_name_and_signature():
    scores = translation_scores(SAID, MEANT)
    line = str(scores)
    assert "\n" not in line
    assert line.startswith(f"sacreBLEU {scores.bleu:.1f} (nrefs:1|case:mixed|eff:no|tok:13a|")
    assert f"chrF {scores.chrf:.1f} (nrefs:1|case:mixed|" in line
    names = json.loads(json.dumps(scores.to_dict()))
    assert "bleu" not in names
    assert names["sacrebleu_signature"] == scores.signature


def test_lower_case_is_said_in_the_signature_and_forgives_case():
    scores = translation_scores(SAID, [line.upper() for line in SAID], lowercase=True)
    assert scores.bleu == pytest.approx(100.0)
    assert scores.chrf == pytest.approx(100.0)
    assert "|case:lc|" in scores.signature
    assert "|case:lc|" in scores.chrf_signature
    assert translation_scores(SAID, [line.upper() for line in SAID]).bleu < 50


def test_counts_that_differ_are_refused_with_both_counts():
    with pytest.raises(DataError, match=r"3 translations but 2 references"):
        translation_scores(SAID, MEANT[:2])
    with pytest.raises(DataError, match=r"3 translations but 2 references"):
        translation_scores(SAID, [MEANT, MEANT[:2]])
    with pytest.raises(DataError, match="empty"):
        translation_scores([], [])


def test_tokenized_texts_are_scored_without_remarks_on_flags_of_the_library(caplog):
    texts = ["the cat sat on the mat ."] * 200
    assert translation_scores(texts, texts).bleu == pytest.approx(100)
    assert not caplog.records
