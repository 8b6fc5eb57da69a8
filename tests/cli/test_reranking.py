"""``semantic-search --rerank``: the nearest lines in the order of a cross-encoder."""

import json

import numpy as np
import pytest

import transformer_jax as tj
from tests.interop.test_folder_settings import IDENTITY, encoder, scorer
from tests.parity import layouts
from transformer_jax.core.errors import ArgumentError

LINES = ["a b c", "c b a", "A é", "b", "", "c c a b", "a", "é B a a"]
QUERY = "a b"
SCORES = {"sentence_transformers": {"activation_fn": IDENTITY}}


@pytest.fixture
def search(tmp_path, run_command):
    """The command on lines with one encoder; returns its exit code, rows and messages."""
    (tmp_path / "lines").write_text("\n".join(LINES) + "\n")
    encoder(tmp_path / "encoder")

    def call(reranker, *flags):
        given = ("--rerank", reranker) if reranker else ()
        words = (tmp_path / "encoder", tmp_path / "lines", QUERY, *given, *flags)
        code, out, err = run_command("semantic-search", *words)
        return code, [line.split("\t") for line in out if line], err

    return call


@pytest.mark.slow
def test_the_nearest_lines_have_the_order_of_the_scores(tmp_path, search):
    folder = scorer(tmp_path / "scorer", SCORES, model_max_length=8)
    _, [_, *near], _ = search(None, "--top", 4)
    code, [head, *rows], err = search(folder, "--top", 3, "--candidates", 4)
    assert (code, head) == (0, ["score", "cosine", "line", "text"])
    assert f"{folder}: 1 of 4 pairs truncated to 8 tokens" in err
    model = tj.load(folder)
    with pytest.warns(UserWarning, match="1 text was longer"):
        ranked = model.rank(QUERY, [text for *_, text in near])
    wanted = [[f"{one.score:.4f}", *near[one.position]] for one in ranked]
    assert rows == wanted[:3]
    file = tmp_path / "found.json"
    assert search(folder, "--top", 3, "--candidates", 4, "--json", file)[1][1:] == rows
    written = json.loads(file.read_text())
    assert [[f"{one['score']:.4f}", f"{one['cosine']:.4f}", str(one["line"]), one["text"]]
            for one in written] == rows  # fmt: skip
    assert sorted(float(row[0]) for row in rows) == [float(row[0]) for row in rows][::-1]
    assert [row[1:] for row in wanted] != near
    # Every line is a candidate by default.
    assert len(search(folder, "--top", 9)[1]) == 1 + sum(map(bool, LINES))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* holds? text that the tokenizer does not know")
def test_pairs_are_two_lists_or_a_list_of_pairs(tmp_path):
    model, texts = tj.load(scorer(tmp_path, SCORES)), LINES[:4]
    pairs = [(QUERY, text) for text in texts]
    wanted = model([QUERY] * 4, texts)
    for given in (pairs, map(list, pairs)):
        np.testing.assert_array_equal(model(given), wanted)
    ranked = model.rank(QUERY, iter(texts), top_k=2)
    order = np.argsort(-wanted)[:2].tolist()
    assert [(one.position, one.text) for one in ranked] == [(i, texts[i]) for i in order]
    np.testing.assert_allclose([one.score for one in ranked], wanted[order], atol=1e-6)
    assert model.rank(QUERY, []) == []
    for given, what in (
        ([(QUERY, "a", "b")], "pair 1 is .*: two texts are needed"),
        ([pairs[0], QUERY], "text 1 is tuple: text is needed"),
    ):
        with pytest.raises(ArgumentError, match=what):
            model(given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "flags", "what"),
    [("bert", (), "pre-trained encoder without a head for numbers: fine-tune it"),
     ("bert_cls", (), "gives classes, not one number for a pair: a cross-encoder is needed"),
     ("bert_tag", (), "a head for tags and none for numbers: try `transformer-jax tag"),
     ("t5", (), "the run of a translator, which this command does not support"),
     ("single", (), "was trained on single texts, not on pairs"),
     ("scorer", ("--candidates", 3), "--candidates is 3, and --top 5: only candidates"),
     (None, ("--candidates", 9), "--candidates is for --rerank CROSS_ENCODER: leave it out")],
)  # fmt: skip
def test_what_scores_no_pairs_is_refused_in_words(tmp_path, search, layout, flags, what):
    folder = tmp_path / "folder"
    if layout in ("single", "scorer"):
        scorer(folder, {"sentence_transformers": {"pairs": layout == "scorer"}})
    elif layout:
        layouts.write(layout, folder)
    code, rows, err = search(layout and folder, *flags)
    assert (code, rows, err.count("\n")) == (2, [], 1), err
    assert what in err
    assert "CROSS_ENCODER" in err or str(folder) in err or "--top" in err


@pytest.mark.slow
def test_a_run_ranks_as_it_reads(tmp_path, run_command, search):
    """A run of pairs is a cross-encoder; one of single texts is refused."""
    folder, run = scorer(tmp_path / "scorer", SCORES), tmp_path / "run"
    assert run_command("convert", folder, run)[0] == 0
    assert search(run)[1] == search(folder)[1]
    fields = json.loads((run / "config.json").read_text())
    del fields["published"]
    fields["data"]["read"]["pair"] = False
    (run / "config.json").write_text(json.dumps(fields))
    code, _, err = search(run, "--allow-changed-config")
    assert (code, "was trained on single texts" in err) == (2, True)
