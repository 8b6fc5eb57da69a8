"""Evaluation by direction: direct, through a pivot, against another run; and what is refused."""

import dataclasses
import json
import shutil

import pytest

import transformer_jax as tj
from transformer_jax.cli import seq2seq
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.added_tokens import tag_languages
from transformer_jax.data.corpora import babel
from transformer_jax.data.languages import Direction
from transformer_jax.data.pairs import Pairs
from transformer_jax.data.sources import (
    LanguageSettings,
    PairData,
    ReadOptions,
    Splits,
    load_splits,
)
from transformer_jax.data.store import build_store
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.recipes import directions
from transformer_jax.recipes.direction_texts import DirectionTexts, open_direction_texts
from transformer_jax.recipes.driver import create_run
from transformer_jax.recipes.explicit_settings import Given
from transformer_jax.recipes.languages import with_tags
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.tasks.directions import store_lacks

PAIRS = ("a-b=60", "b-a=60", "b-c=60", "c-b=60")
TINY = [
    "--model.d-model", "8", "--model.encoder-layers", "1", "--model.decoder-layers", "1",
    "--model.attention.num-heads", "2", "--model.feed-forward.d-ff", "16",
    "--tokenizer.vocab-size", "300", "--training.steps", "2", "--training.num-buckets", "1",
    "--training.max-tokens", "512", "--optimizer.schedule.warmup-steps", "1",
    "--loop.evaluate-every", "2", "--loop.checkpoint-every", "2", "--evaluation.sentences", "0",
    "--data.read.max-length", "32", "--distributed.num-local-devices", "1",
]  # fmt: skip


@pytest.fixture(scope="module")
def few():
    """Few test sentences, since an untrained model writes up to the length limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(babel, "TESTS", 5)
        patch.setattr(babel, "VALIDATION", 4)
        yield


@pytest.fixture(scope="module")
def run(shared, few):
    def train(folder):
        command = ["train", "babel", *TINY, "--data.pairs", *PAIRS, "--output", str(folder)]
        assert seq2seq.main(command) == 0

    return str(shared("directions_run", train))


@pytest.fixture(scope="module")
def begun(few, tmp_path_factory):
    """A run without training: mistakes are found before a model is read."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    _, named = named_runs("translation")["babel"]
    run = dataclasses.replace(
        named, output=str(folder), data=dataclasses.replace(named.data, pairs=PAIRS)
    )
    create_run(run, Given(named))
    return str(folder)


@pytest.mark.slow
def test_each_direction_is_scored_by_each_way(run, few, tmp_path, capsys):
    scores, picture = tmp_path / "scores.json", tmp_path / "similarity.png"
    command = ["evaluate", run, "--directions", "a-c", "a-b", "--num-beams", "1"]
    files = ["--output", str(scores), "--similarity", str(picture)]
    assert seq2seq.main([*command, *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["a-c", "direct", "zero-shot"],
        ["a-c", "pivot", "b"],
        ["a-b", "direct", "trained"],
    ]
    found = json.loads(scores.read_text())
    rows = found["scores"]
    assert [(row["direction"], row["way"], row["trained"]) for row in rows] == [
        ("a-c", "direct", False),
        ("a-c", "pivot", True),
        ("a-b", "direct", True),
    ]
    for row in rows:
        assert row["sentences"] == 5
        assert 0 <= row["off_target"] <= 1
        assert row["identifier_accuracy"] > 0.9
    pairs = [set(one["languages"]) for one in found["similarities"]]
    assert pairs == [{"a", "b"}, {"a", "c"}, {"b", "c"}]
    assert picture.stat().st_size > 1000


@pytest.mark.slow
def test_a_supervised_run_is_compared_with_and_files_go_before_the_test_pairs(
    run, few, tmp_path, capsys
):
    files = [tmp_path / code for code in "ab"]
    for path in files:
        sentences = [babel.express(one, path.name) for one in babel.meanings("test", 3, seed=9)]
        path.write_text("\n".join(sentences) + "\n")
    texts = ["--data.pairs", f"b-a={files[1]},{files[0]}"]
    command = ["evaluate", run, "--directions", "a-b", "--supervised", run, *texts]
    assert seq2seq.main([*command, "--output", str(tmp_path / "scores.json")]) == 0
    assert f"a-b        supervised {run}" in capsys.readouterr().out
    direct, supervised = json.loads((tmp_path / "scores.json").read_text())["scores"]
    assert direct["sentences"] == 3
    assert direct["chrf"] == supervised["chrf"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--directions", "a-d"],
            "a-d: d is not a target language of any training pair; these are",
        ),
        (["--directions", "a"], "must be two languages with a hyphen"),
        (["--directions", "a-b", "--pivot", "c"], "--pivot c: not for a-b: the model was not"),
        (
            ["--directions", "a-c", "--supervised", "{run}"],
            "was not trained on a-c, but on a-b",
        ),
        (["--directions", "a-c", "--data.pairs", "a-b={run}/x"], "x: "),
        (["--directions", "a-c", "--data.pairs", "x.tsv"], "give texts as --data.pairs de-cs=FILE"),
        (["--directions", "a-c", "--to", "b"], "leave --source, --target, --from and --to out"),
        (["--directions", "a-c", "--similarity", "x.txt"], "x.txt: the name ends in .png"),
        (["--pivot", "b"], "--pivot is for --directions"),
        (["--data.pairs", "x.json"], "x.json: a table of pairs is for training only: give a file"),
    ],
)
def test_a_mistake_is_one_line(begun, flags, message, capsys):
    given = [flag.format(run=begun) for flag in flags]
    assert seq2seq.main(["evaluate", begun, *given]) in (2, 3)
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[-1]
    assert "Traceback" not in " ".join(lines)


def test_runs_that_lowercase_differently_are_not_compared(begun, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(begun, other)
    fields = json.loads((other / "config.json").read_text())
    fields["data"]["read"]["lowercase"] = True
    (other / "config.json").write_text(json.dumps(fields))
    command = ["evaluate", begun, "--directions", "a-b", "--supervised", str(other)]
    assert seq2seq.main(command) == 2
    assert "its data.read.lowercase is True, but the run" in capsys.readouterr().err


def test_texts_of_a_direction_serve_the_opposite_one():
    ab, bc = Direction("a", "b"), Direction("b", "c")
    texts = DirectionTexts({ab: (["x"], ["y"])}, {"b": ["p"], "c": ["q"]}, {})
    assert texts.sides(ab) == (["x"], ["y"])
    assert texts.sides(Direction("b", "a")) == (["y"], ["x"])
    assert texts.sides(bc) == (["p"], ["q"])
    with pytest.raises(DataError, match="a-c: no test text: give --data"):
        texts.sides(Direction("a", "c"))


def test_without_the_data_of_the_run_only_the_off_target_rate_is_missing(tmp_path, caplog):
    lost = PairData(pairs=(f"a-b={tmp_path / 'gone.tsv'}",))
    given = {"a-b": Pairs(["x"], ["y"], "test", {}, [Direction("a", "b")])}
    texts = open_direction_texts(lost, given)
    assert texts.training == {}
    assert texts.sides(Direction("a", "b")) == (["x"], ["y"])
    with pytest.raises(DataError, match=r"gone\.tsv"):
        open_direction_texts(lost, {})
    lost = PairData()  # as of a published model
    with pytest.raises(DataError, match="no test text: give --data"):
        open_direction_texts(lost, {}).sides(Direction("a", "b"))


def test_a_direction_whose_training_pairs_are_all_too_long_is_refused():
    ways = [Direction("a", "b"), Direction("b", "a"), Direction("a", "a")]
    pairs = Pairs(["x", "y" * 9, "x" * 9], ["x", "y", "x" * 9], "data.pairs", {}, ways)
    tokenizer = tag_languages(train_tokenizer("bytes", []), ways[:2])
    store = build_store(pairs, tokenizer, max_length=5, too_long="drop", cache=None)
    assert store_lacks(store, pairs) == " b-a"
    assert store_lacks(store, dataclasses.replace(pairs, directions=None)) is None
    config = tj.TransformerConfig(vocab_size=tokenizer.vocab_size, d_model=8)
    with pytest.raises(DataError, match=r"data\.pairs b-a: no pair has at most 5 tokens per side"):
        tj.tasks.translation(
            Splits(pairs, None, {}), config, tokenizer, read=ReadOptions(max_length=5)
        )


def test_similarity_leaves_out_pairs_with_an_empty_side():
    sides = (["x", "", "z"], ["u", "v", ""])
    assert directions._without_empty(sides) == (["x"], ["u"])


def test_two_languages_are_not_compared_by_an_encoder_that_reads_the_target():
    tags = tag_languages(train_tokenizer("bytes", []), [Direction("a", "b")]).languages
    texts = DirectionTexts({Direction("a", "b"): (["x"], ["y"])}, {}, {})
    with pytest.raises(ConfigError, match="--similarity: the encoder reads the tag"):
        directions._compared(texts, tags, ["a", "b"])


@pytest.mark.parametrize(("share", "copies"), [(0.0, 0), (0.5, 130), (1.0, 240)])
def test_autoencoding_adds_copies_of_training_sentences_alone(few, share, copies):
    data = PairData(corpus="babel", pairs=PAIRS, languages=LanguageSettings(autoencoding=share))
    splits = load_splits(data)
    parts = splits.train.by_direction()
    same = {way: part for way, part in parts.items() if way.source == way.target}
    assert sum(map(len, same.values())) == pytest.approx(copies, abs=25 * (0 < share < 1))
    for way, part in same.items():
        assert part.sources == part.targets
        own = [
            text
            for other, pairs in parts.items()
            if other not in same
            for text in {other.source: pairs.sources, other.target: pairs.targets}.get(
                way.source, ()
            )
        ]
        assert {*part.sources} <= {*own}
        assert len({*part.sources}) == len(part)
    assert {way.source == way.target for way in splits.valid.directions} == {False}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_copies_make_a_language_of_targets_alone_one_of_sources(few, share):
    data = PairData(
        corpus="babel",
        pairs=("a-b=30", "b-a=30", "b-c=30"),
        languages=LanguageSettings(autoencoding=share),
    )
    tokenizer = with_tags(data, train_tokenizer("bytes", []))
    assert tokenizer.languages.sources == (("a", "b", "c") if share else ("a", "b"))
    assert tokenizer.languages.targets == ("b", "a", "c")
    assert [*map(str, sorted(tokenizer.languages.directions))] == ["a-b", "b-a", "b-c"]
    train = load_splits(data).train
    store = build_store(train, tokenizer, max_length=512, too_long="drop", cache=None)
    assert len(store) == len(train)
