"""Several pairs of languages in one run: tags, scores of each direction, further languages."""

import dataclasses
import json
import logging
from types import SimpleNamespace

import pytest

import transformer_jax as tj
from tests.experiments.test_seq2seq import ALONE, TINY, WORDS
from tests.opened import load
from transformer_jax.cli import seq2seq
from transformer_jax.cli.main import main
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.added_tokens import tag_languages
from transformer_jax.data.extension import joined_tokens
from transformer_jax.data.languages import Direction
from transformer_jax.data.sources import LanguageSettings, Pairs, Splits
from transformer_jax.data.store import build_store
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.decoding.translator import Translator
from transformer_jax.inference.pretrained import open_directory
from transformer_jax.recipes import driver
from transformer_jax.recipes.translation import Run, extension_texts
from transformer_jax.runs.checkpoint_reader import load_parts
from transformer_jax.runs.metrics import read_metrics

# Models of few steps write on to the limit.
pytestmark = pytest.mark.filterwarnings("ignore:.*length limit")


@pytest.fixture(scope="module")
def texts(shared):
    return shared("pairs_texts", write_texts)


def write_texts(folder):
    """The same 60 lines in three languages; the test lines hold what looks like a tag."""
    folder.mkdir()
    lines = [f"{a} {b}" for a in WORDS for b in WORDS[:6]]
    forms = {"pt": lambda x: x, "tp": lambda x: x[::-1], "up": str.upper}
    for name, form in forms.items():
        (folder / f"a.{name}").write_text("".join(f"{form(line)}\n" for line in lines))
        (folder / f"t.{name}").write_text("".join(f"{form(line)} <2up>\n" for line in lines[:4]))


def pairs(texts, *names, split="a"):
    """Values of a flag, each pair from two aligned files."""
    return [f"{n}={','.join(f'{texts}/{split}.{side}' for side in n.split('-'))}" for n in names]


def command(texts, run, *more, trained=("pt-tp", "tp-pt", "pt-up")):
    files = ["--data.pairs", *pairs(texts, *trained), "--data.read.validation-size", "2"]
    tests = ["--data.test.pairs", *pairs(texts, "pt-tp", "tp-up", split="t")]
    return ["train", "small", *files, *tests, *TINY, "--output", str(run), *more]


def run_in(texts, *more):
    return lambda run: seq2seq.main(command(texts, run, "--evaluation.sentences", "2", *more))


@pytest.fixture(scope="module")
def trained(texts, shared):
    return shared("pairs_run", run_in(texts))


@pytest.fixture(autouse=True)
def quiet():
    yield
    logging.getLogger().handlers.clear()


def error_of(capfd, *arguments):
    assert main([*map(str, arguments)]) != 0
    [line] = capfd.readouterr().err.strip().splitlines()[-1:]
    return line


@pytest.mark.slow
def test_each_direction_is_validated_and_tested_and_the_mean_ranks_checkpoints(trained):
    last = [row for row in read_metrics(trained / "metrics.jsonl") if "valid_loss" in row][-1]
    for what in ("valid_{}_loss", "sacrebleu_{}", "chrf_{}"):
        values = [last[what.format(one)] for one in ("pt-tp", "tp-pt", "pt-up")]
        mean = last[what.format("x").replace("_x", "")]
        assert mean == pytest.approx(sum(values) / 3)
    results = json.loads((trained / "results.json").read_text())
    assert [*results["tests"]] == ["test pt-tp", "test tp-up"]
    assert results["recompilations"] == 0
    run = driver.read(open_directory(trained))
    assert run.data.languages.tags == "source"
    assert run.evaluation.tokenize is None  # chosen for each direction
    tags = open_directory(trained).load_tokenizer().languages
    assert tags.languages == ("pt", "tp", "up")
    assert not tags.is_trained(Direction("tp", "up"))
    assert tags.is_trained(Direction("pt", "up"))


@pytest.mark.slow
def test_training_reads_what_translation_reads(trained, texts):
    directory = open_directory(trained)
    tokenizer = directory.load_tokenizer()
    way = Direction("pt", "up")
    store = build_store(Pairs(["um <2up>"], ["UM"], "example", {}, [way]), tokenizer)
    translator = Translator(*load(trained))
    frames = translator.frames(way, 1)
    assert translator.encode(["um <2up>"], frames)[0] == [store.source[0].tolist()]
    assert translator.encode_targets(["UM"], frames) == [store.target[0].tolist()]
    first, *rest = store.source[0].tolist()
    assert first == tokenizer.token_id("<2up>")
    assert not tokenizer.languages.ids & set(rest)  # what text spells out is text
    assert rest == [*tokenizer.encode("um <2up>"), tokenizer.eos]


@pytest.mark.slow
def test_python_translates_each_text_into_its_language(trained):
    model = tj.load(trained)
    assert model.languages == ("pt", "tp", "up")
    lines = ["um dois", "dois um"]
    both = model(lines, to=["tp", "up"], num_beams=1)
    assert both[0] == model("um dois", to="tp", num_beams=1)
    assert both[1] == model(lines, to="up", num_beams=1)[1]
    assert model.score("um", "mu", to="tp") != model.score("um", "mu", to="up")
    assert model.embed("um", to="tp").shape == (8,)
    assert (model.embed("um", to="tp") != model.embed("um", to="up")).any()
    assert model.attention("um", to="up").tokens[0] == "<2up>"
    for settings, said in (
        ({}, "--to is missing: allowed are tp, pt, up"),
        ({"to": "xx"}, "--to: xx is not a target language"),
        ({"to": "up", "from_": "up"}, "--from: up is not a source language"),
        ({"to": ["up"]}, "to names 1 language for 2 texts"),
    ):
        with pytest.raises(ConfigError, match=said):
            model(lines, **settings)


@pytest.mark.slow
def test_commands_take_and_refuse_languages(trained, texts, tmp_path, capfd):
    (tmp_path / "in").write_text("um\n")
    (tmp_path / "out").write_text("mu\n")
    translate = ["translate", trained, "--input", tmp_path / "in", "--num-beams", "1"]
    assert main([*map(str, translate), "--from", "tp", "--to", "up"]) == 0
    assert "tp-up is zero-shot: no training pair has this direction" in capfd.readouterr().err
    assert "--to is missing: allowed are tp, pt, up" in error_of(capfd, *translate)
    assert "xx is not a target language" in error_of(capfd, *translate, "--to", "xx")
    score = ["score", trained, "--source", tmp_path / "in", "--target", tmp_path / "out"]
    assert main([*map(str, score), "--to", "tp"]) == 0
    assert "--to is missing" in error_of(capfd, *score)
    assert "--to is missing" in error_of(capfd, "embed", trained, tmp_path / "in")
    assert "--to is missing" in error_of(capfd, "diversity", trained, tmp_path / "in")
    evaluate = ["evaluate", trained, "--num-beams", "1"]
    given = ["--data.pairs", *pairs(texts, "pt-tp", "tp-up", split="t")]
    assert main([*map(str, evaluate), *given]) == 0
    out, err = capfd.readouterr()
    scores = json.loads((trained / "results.json").read_text())["tests"]
    for name in ("pt-tp", "tp-up"):
        assert f"{name}: sacreBLEU {scores[f'test {name}']['sacrebleu']:.1f} (" in out
    assert "mean of 2 directions: sacreBLEU" in out
    assert "tp-up is zero-shot" in err
    assert "leave --from and --to out" in error_of(capfd, *evaluate, *given, "--to", "up")
    wrong = ["--data.pairs", *pairs(texts, "up-pt", split="t")]
    assert "up is not a source language of any training pair" in error_of(capfd, *evaluate, *wrong)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--data.test.pairs", "pt-xx=a,b"], "pt-xx: xx is not a target language of any training"),
        (["--data.valid.pairs", "up-pt=a,b"], "up-pt: up is not a source language of any training"),
        (["--data.pairs", "pt-tp=a,b", "pt-tp=c,d"], "the pair pt-tp is given twice"),
        (["--data.languages.tags", "both"], "allowed are source, target, none"),
        (["--data.languages.temperature", "0.5"], "at least 1"),
        (["--tokenizer.extend-by", "5"], "no tokenizer to extend: start from a run with --init-f"),
    ],
)
def test_a_mistake_about_languages_is_one_line(texts, tmp_path, capfd, more, said):
    assert said in error_of(capfd, *command(texts, tmp_path / "run"), *more)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("tags", ["target", "none"])
def test_tags_stand_where_the_setting_says(texts, tmp_path, tags):
    run = tmp_path / "run"
    assert run_in(texts, "--data.languages.tags", tags)(run) == 0
    frame = open_directory(run).load_tokenizer().languages.frame(Direction(target="up"))
    tokenizer = open_directory(run).load_tokenizer()
    assert frame.before == ()
    assert frame.begins == ((tokenizer.token_id("<2up>"),) if tags == "target" else ())
    one, other = tj.load(run)(["um dois"] * 2, to=["tp", "up"])
    assert (one == other) == (tags == "none")
    assert "<2" not in f"{one}{other}"
    model = tj.load(run)
    assert model("um", to="up", generation_config="hf") is not None
    longer = dataclasses.replace(model.tokenizer.languages, begins=(tokenizer.bos, "to"))
    model.tokenizer.languages = longer  # as of a start from BART
    with pytest.raises(ConfigError, match="one token, but texts of this model begin with"):
        model("um", to="up", generation_config="hf")


@pytest.mark.slow
def test_a_further_language_keeps_the_tags_and_rows_of_the_others(trained, texts, tmp_path, capfd):
    run = tmp_path / "run"
    more = ["--init-from", str(trained), "--training.steps", "1", "--training.epochs", "None"]
    (texts / "a.xx").write_text((texts / "a.up").read_text())
    settings = ["--optimizer.learning-rate", "0", "--optimizer.schedule.warmup-steps", "1"]
    settings += ["--tokens-like", "xx=up"]
    files = ["--data.pairs", *pairs(texts, "pt-xx", "pt-up"), "--data.read.validation-size", "2"]
    assert seq2seq.main(["train", "small", *files, *more, *settings, "--output", str(run)]) == 0
    start, grown = (open_directory(one) for one in (trained, run))
    before, after = start.load_tokenizer(), grown.load_tokenizer()
    assert after.vocab_size == before.vocab_size + 1
    assert after.token_id("<2xx>") == before.vocab_size
    assert after.languages.languages == ("pt", "tp", "up", "xx")
    assert after.languages.is_trained(Direction("pt", "tp"))
    tables = [one.load_params("last").params["embedding"]["table"] for one in (start, grown)]
    assert (tables[0] == tables[1][: before.vocab_size]).all()
    assert (tables[1][-1] == tables[1][after.languages.tags["up"]]).all()
    one, other = (tj.load(path).embed("um", to="tp") for path in (trained, run))
    assert one == pytest.approx(other, abs=1e-6)
    bad = ["train", "small", "--init-from", trained, "--output", tmp_path / "other"]
    said = error_of(capfd, *bad, "--data.source", texts / "a.pt", "--data.target", texts / "a.tp")
    assert "name the pairs, --data.pairs de-en=FILE" in said
    said = error_of(capfd, *bad, *files, "--data.languages.tags", "target")
    assert "has its tags in another place" in said


def test_an_extension_reads_new_languages_or_all():
    ways = [Direction("xx", "en"), Direction("en", "de")]
    train = Pairs(["x", "e"], ["f", "d"], "example", {}, ways)
    languages = LanguageSettings(tokenizer_temperature=1.0)
    data, run = Splits(train, None, {}, languages=languages), Run()
    tokenizer = train_tokenizer("bytes", [])

    def texts(*known):
        start = SimpleNamespace(tokenizer=tag_languages(tokenizer, known))
        return sorted(extension_texts(run, data, start))

    assert texts(Direction("de", "en")) == ["x"]
    assert texts(Direction("de", "en"), Direction("xx", "de")) == ["d", "e", "f", "x"]
    assert texts(Direction("fr", "cs")) == ["d", "e", "f", "x"]


@pytest.mark.slow
@pytest.mark.parametrize("still", [["--optimizer.learning-rate", "0"], ["--freeze", "embeddings"]])
def test_subwords_of_a_further_language(texts, tmp_path, capfd, still):
    """They are learned from its text alone, and begin at the mean of the tokens that they join."""
    start, run = tmp_path / "start", tmp_path / "run"
    assert run_in(texts, "--tokenizer.kind", "bpe", "--tokenizer.vocab-size", "290")(start) == 0
    (texts / "a.zz").write_text((texts / "a.pt").read_text().translate({ord("o"): "ůž"}))
    files = ["--data.pairs", *pairs(texts, "zz-pt", "pt-up"), "--data.read.validation-size", "2"]
    given = ["--init-from", str(start), "--tokenizer.extend-by", "9", *still, *TINY[12:]]
    assert seq2seq.main(["train", "small", *files, *given, "--output", str(run)]) == 0
    said = capfd.readouterr().err
    assert "9 subwords learned in addition to 294" in said
    assert "1 new token initialized near the mean; 9 new tokens initialized from others" in said
    before, after = (open_directory(one).load_tokenizer() for one in (start, run))
    parts = joined_tokens(after, before.vocab_size)
    assert after.token_id("<2zz>") == 293
    assert [*parts] == [*range(294, 303)]
    assert not any(after.decode([new]).isupper() for new in parts)
    assert any("ů" in after.decode([new]) for new in parts)
    table = open_directory(start).load_params("best").params["embedding"]["table"]
    begun = load_parts(run, "last")
    rows = flatten_dict(begun.frozen if still[0] == "--freeze" else begun.params)
    for new, joined in parts.items():
        assert rows["embedding/table"][new] == pytest.approx(table[[*joined]].mean(0), abs=1e-6)
    assert seq2seq.main(["resume", str(run), *ALONE]) == 0
    assert open_directory(run).load_tokenizer().sha256 == after.sha256
    assert len(tj.load(run)(["um dois"], to="up")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("tags", ["source", "target"])
def test_folders_and_engines_keep_the_languages(texts, tmp_path, tags, capfd):
    run, folder = tmp_path / "run", tmp_path / "folder"
    assert run_in(texts, "--data.languages.tags", tags)(run) == 0
    assert main(["export", str(run), str(folder)]) == 0
    assert main(["convert", str(folder), str(tmp_path / "back")]) == 0
    lines, to = ["um dois", "dois", "seis um"], ["tp", "up", "tp"]
    expected = tj.load(run)(lines, to=to, num_beams=1)
    for path in (folder, tmp_path / "back"):
        tokenizer = open_directory(path).load_tokenizer()
        assert tokenizer.languages == open_directory(run).load_tokenizer().languages
        limit = {"max_len_a": 2.0, "max_len_b": 10}
        own = tj.load(run)(lines, to=to, num_beams=1, **limit)
        assert tj.load(path)(lines, to=to, num_beams=1, **limit) == own
        scores = [tj.load(one).score(lines, ["um"] * 3, to=to) for one in (path, run)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    pytest.importorskip("ctranslate2")
    engine = tj.load(run, engine="ctranslate2")
    for beams in (1, 2):
        mine = tj.load(run)(lines, to=to, num_beams=beams)
        their = engine(lines, to=to, num_beams=beams, early_stopping="never")
        # Beam search of CTranslate2 has no end token in texts that the limit cuts.
        assert all(map(str.startswith, their, mine))
        assert beams > 1 or their == mine
    assert expected == tj.load(run)(lines, to=to, num_beams=1)
    format = ["export", str(run), str(tmp_path / "hlo"), "--format", "stablehlo"]
    if tags == "target":
        assert "StableHLO has no translator whose targets begin" in error_of(capfd, *format)
    with pytest.raises(ConfigError, match="--to is missing"):
        engine(lines)
