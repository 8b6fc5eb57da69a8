"""``prompt``: few-shot accuracy of a run, from files or the built-in task (rows B41 and T16)."""

import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import pytest
from flax import nnx

from tests.drawing import drawn
from tests.opened import load_language
from transformer_jax.cli.main import main
from transformer_jax.cli.prompt import Prompt, read_examples
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.corpora.in_context import EXAMPLE
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.decoding.ngram import NgramLanguageModel
from transformer_jax.evaluation.few_shot import Demonstrations, Template, accuracy
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.runs.checkpoint import Checkpointer
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.state import TrainState

SNAPSHOT = Path(__file__).parent / "snapshots" / "prompt.txt"
CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Peru": "Lima", "Egypt": "Cairo"}
TEMPLATE = ("--template", r"{land}\t=", "--answer-template", r" {city}\n")


@pytest.fixture(scope="module")
def ngram_run(tmp_path_factory):
    """Knows the capitals; of Spain it has read something else more often."""
    lines = "".join(f"{land}\t= {city}\n" for land, city in CAPITALS.items())
    texts = [lines.replace("Madrid", "Old and great Madrid")] * 3 + [lines]
    tokenizer = train_tokenizer("characters", texts, 60)
    run = RunDirectory.create(tmp_path_factory.mktemp("runs") / "counted")
    tokenizer.save(run.tokenizer)
    run.write(run.config, {"model": {"kind": "ngram", "order": 5}})
    NgramLanguageModel.train(texts, tokenizer, order=5).model.save(run.path / "ngram.npz")
    return run.path


@pytest.fixture(scope="module")
def neural_run(tmp_path_factory):
    """Untrained, reads 28 tokens at once."""
    tokenizer = train_tokenizer("characters", ["abcdefghijklmnop>\n"], 30)
    config = TransformerConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=8,
        encoder_layers=0,
        decoder_layers=1,
        positions=PositionConfig(kind="rope", max_length=28),
        embedding=EmbeddingConfig(dropout=0.0),
        attention=AttentionConfig(num_heads=2),
        feed_forward=FeedForwardConfig(d_ff=8),
    )
    run = RunDirectory.create(tmp_path_factory.mktemp("runs") / "untrained")
    tokenizer.save(run.tokenizer)
    run.write(run.config, {"model": dataclasses.asdict(config)})
    checkpointer = Checkpointer(run.checkpoints)
    params = drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)))[1]
    checkpointer.save(1, TrainState(jnp.int32(1), params, {}))
    checkpointer.wait()
    checkpointer.close()
    return run.path


@pytest.fixture
def files(tmp_path):
    """The same table twice: as TSV and as JSONL, each with a field that no template names."""
    rows = [f"{land}\t{city}\t{city[0]}" for land, city in CAPITALS.items()]
    (tmp_path / "table.tsv").write_text("\n".join(["land\tcity\tnote", *rows, ""]))
    made = [json.dumps({"city": city, "land": land, "n": 3}) for land, city in CAPITALS.items()]
    (tmp_path / "table.jsonl").write_text("\n\n".join(made))
    return tmp_path


@pytest.fixture
def run_prompt(capsys, files, monkeypatch):
    """The command on files of the folder; its code, output and errors."""
    monkeypatch.chdir(files)

    def call(run, *flags):
        code = main(["prompt", str(run), *map(str, flags)])
        return code, *capsys.readouterr()

    return call


def of_files(examples="table.tsv", queries="table.tsv"):
    return ("--examples", examples, "--queries", queries)


def test_t16_the_table_of_an_n_gram_model(ngram_run, run_prompt):
    code, out, err = run_prompt(ngram_run, *of_files(), *TEMPLATE, "--num-shots", 0, 1, 4)
    assert (code, err) == (0, "")
    assert out == SNAPSHOT.read_text(encoding="utf-8")


def test_rows_as_json_are_those_of_either_file(ngram_run, run_prompt):
    flags = (*TEMPLATE, "--num-shots", 2, "--json")
    code, out, err = run_prompt(ngram_run, *of_files("table.jsonl", "table.jsonl"), *flags)
    assert (code, err) == (0, "")
    wanted = {"k": 2, "accuracy": 0.8, "count": 5, "exact_match": 0.8, "f1": 0.88, "cut": 0}
    assert json.loads(out) == pytest.approx(wanted)
    assert run_prompt(ngram_run, *of_files(), *flags)[1] == out
    few = run_prompt(ngram_run, *of_files(), *flags, "--limit", 2)[1]
    assert json.loads(few) == {**wanted, "accuracy": 1, "exact_match": 1, "f1": 1, "count": 2}


def test_a_choice_is_the_most_probable_of_those_given(ngram_run, run_prompt):
    """The model's free text for Spain is none of the choices."""
    flags = (*of_files(), *TEMPLATE, "--num-shots", 0, "--json", "--choices", *CAPITALS.values())
    assert json.loads(run_prompt(ngram_run, *flags)[1])["accuracy"] == 1


@pytest.mark.parametrize("how", ["none", "tokens", "bytes"])
def test_t16_choices_are_normalised_as_asked(ngram_run, run_prompt, monkeypatch, how):
    """Names and what begins them: the row is that of the model asked directly."""
    choices = (*CAPITALS.values(), "Pa", "Rom", "C")
    template = Template("{land}\t= {city}\n", "city")
    queries = [{"land": land, "city": city} for land, city in CAPITALS.items()]
    given = {"shots": (1,), "choices": choices, "normalize": how}
    asked = []

    def recorded(*arguments, **how):
        asked.append(how)
        return accuracy(*arguments, **how)

    monkeypatch.setattr("transformer_jax.cli.prompt.accuracy", recorded)
    flags = ("--num-shots", 1, "--seed", 5, "--json", "--normalize", how, "--choices", *choices)
    out = run_prompt(ngram_run, *of_files(), *TEMPLATE, *flags)[1]
    demonstrations = Demonstrations(queries, template, seed=5)
    [wanted] = accuracy(load_language(ngram_run), demonstrations, queries, **given)
    assert json.loads(out) == {**dataclasses.asdict(wanted), "cut": 0}
    assert [one["normalize"] for one in asked] == [how]


def test_one_whole_prompt_is_shown_with_its_answer(ngram_run, run_prompt):
    flags = (*of_files(), *TEMPLATE, "--header", r"Capitals\n", "--num-shots", 1, 0, "--show")
    code, _, err = run_prompt(ngram_run, *flags)
    head, example, asked, wanted, *rest = err.split("\n")
    assert (code, head, asked, rest) == (0, "Capitals", "France\t= [Paris]", ["", ""])
    assert example in {f"{land}\t= {city}" for land, city in CAPITALS.items()}
    assert wanted == "wanted: Paris"
    chosen = run_prompt(ngram_run, *flags, "--choices", *CAPITALS.values())[2]
    assert chosen == err


def test_examples_change_with_the_seed_and_agree_where_asked(ngram_run, run_prompt):
    shown = lambda *flags: run_prompt(
        ngram_run, *of_files(), *TEMPLATE, "--show", "--limit", 1, "--num-shots", *flags
    )[2]
    assert shown(3, "--seed", 1) == shown(3, "--seed", 1)
    assert len({shown(3, "--seed", seed) for seed in range(5)}) > 1
    # Of the others only Peru's begins with a P, as it is said of France.
    with open("table.tsv", "a", encoding="utf-8") as file:
        file.write("Chad\tPraia\tP\n")
    assert shown(1, "--match-field", "note").startswith("Chad\t= Praia\n")


@pytest.mark.slow
def test_b41_the_built_in_task_on_an_untrained_model(neural_run, run_prompt):
    """Its 28 tokens are BOS, four lines of six, and a query of three."""
    flags = (
        "--task",
        "in-context",
        "--limit",
        12,
        "--max-new-tokens",
        1,
        "--json",
        "--num-shots",
        4,
        5,
    )
    code, out, err = run_prompt(neural_run, *flags)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(row["k"], row["count"], row["cut"]) for row in rows] == [(4, 12, 0), (5, 12, 12)]
    assert all(row["accuracy"] == 0 for row in rows)  # a letter is not enough
    assert err == (
        "note: 12 of 12 prompts of 5 examples were longer than the context: "
        "the first examples were omitted\n"
    )
    longer = run_prompt(neural_run, *flags[:-1], "--header", "a")[1]
    assert json.loads(longer)["cut"] == 12  # one token more than there is room for


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        ((), 2, "--examples and --queries missing: give two files, or --task in-context"),
        (("--examples", "table.tsv"), 2, "--queries missing: give two files"),
        (("--task", "in-context", "--queries", "table.tsv"), 2, "--task and --queries exclude"),
        ((*of_files(), "--num-shots"), 2, "--num-shots"),
        ((*of_files(), *TEMPLATE, "--num-shots", "1", "-1"), 2, "-1 in it: at least 0"),
        ((*of_files(), *TEMPLATE, "--num-shots", "6"), 2,
         "--num-shots 6: table.tsv has 5 examples"),
        ((*of_files(), *TEMPLATE, "--num-shots", "5"), 3, "5 examples are needed, but the pool"),
        ((*of_files(), *TEMPLATE, "--normalize", "bytes"), 2, "--normalize is for --choices"),
        ((*of_files(), *TEMPLATE, "--choices", " "), 2, "--choices has an empty answer"),
        ((*of_files(), *TEMPLATE, "--num-shots", "1", "--choices", "Rome"), 3,
         "table.tsv:2: the answer 'Paris' is not among --choices Rome"),
        ((*of_files(), *TEMPLATE, "--limit", "0"), 2, "--limit is 0: at least 1"),
        ((*of_files(), *TEMPLATE, "--max-new-tokens", "0"), 2, "--max-new-tokens is 0: at least 1"),
        ((*of_files(), *TEMPLATE, "--seed", "-1"), 2, "--seed is -1: at least 0"),
        ((*of_files(), *TEMPLATE, "--match-field", "kind"), 3, "table.tsv:1: no field 'kind'"),
        (of_files(), 3, "table.tsv:1: no field 'input': the header names land, city, note"),
        (of_files("table.jsonl"), 3, "table.jsonl:1: no field 'input', only 'city', 'land', 'n'"),
        ((*of_files("table.jsonl"), "--template", "{n}", "--answer-template", "{city}"), 3,
         "table.jsonl:1: field 'n' is a number; text is needed"),
        ((*of_files(), "--template", "{land"), 2, "--template '{land': expected '}'"),
        ((*of_files(), "--template", "{land!r}"), 2, "must be a name and nothing else"),
        ((*of_files(), "--answer-template", "}"), 2, "--answer-template '}': Single '}'"),
        ((*of_files(), "--answer-template", "x"), 2, "has 0 fields, needs exactly one"),
        ((*of_files(), "--answer-template", "{land}{city}"), 2, "has 2 fields"),
        ((*of_files(), "--template", "{output}"), 2, "must have the answer {output} exactly once"),
        (of_files("none.tsv"), 3, "--examples none.tsv: no such file"),
        ((*of_files(queries="x.txt"), *TEMPLATE), 2, "--queries x.txt: the name must end in .tsv"),
        (("--task", "in-context", "--template", "{land}"), 2, "its fields are rule, input, output"),
        (("--task", "in-context", "--num-shots", "20"), 3, "20 examples are needed"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(ngram_run, run_prompt, monkeypatch, flags, code, says):
    monkeypatch.setattr("transformer_jax.cli.prompt.accuracy", None)  # before anything is answered
    found, out, err = run_prompt(ngram_run, *flags)
    assert (found, out) == (code, "")
    assert says in err
    first, *rows = err.splitlines()
    assert all(line.startswith("error: ") for line in (first, *rows))
    assert bool(rows) == (" bad " in first)  # a line for each bad row


def test_a_translator_is_refused(run_prompt, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model": {"encoder_layers": 1}}))
    (tmp_path / "tokenizer.json").write_text("{}")
    code, _, err = run_prompt(tmp_path, *of_files(), *TEMPLATE, "--num-shots", 1)
    assert code == 2
    assert f"this command does not support: try `transformer-jax translate {tmp_path}`" in err


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.tsv", "", "no rows: it is empty"),
        ("a.tsv", "x\ty\n\n", "no rows: it is empty"),
        ("a.tsv", "x\ty\n1\t2\n\n1\t2\t3\n", "a.tsv:4: 3 columns, but the header has 2"),
        ("a.tsv", "x\tx\n1\t2\n", "a.tsv:1: duplicate field names: x, x"),
        ("a.jsonl", "\n", "no rows: it is empty"),
        ("a.jsonl", '{"x": "1"}\n{', "a.jsonl:2: not JSON"),
        ("a.jsonl", '{"x": "1"}\n["x"]', "a.jsonl:2: a JSON object is needed, found a list"),
        ("a.jsonl", '{"x": "1"}\n{"x": "\\ud800"}', "a.jsonl:2: field 'x' holds half a character"),
        ("a.jsonl", '{"x": "1"}\n{}', "a.jsonl:2: no field 'x', only none"),
    ],
)
def test_files_are_checked_line_by_line(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as caught:
        list(read_examples(tmp_path / name, ["x"], "--examples"))
    assert says in str(caught.value)


def test_rows_keep_their_line_numbers(tmp_path):
    (tmp_path / "a.tsv").write_text("x\ty\n\n1\t2\n\n3\t\n")
    rows = list(read_examples(tmp_path / "a.tsv", ["x"], "--examples"))
    assert rows == [(3, {"x": "1", "y": "2"}), (5, {"x": "3", "y": ""})]


def test_escapes_and_the_template_that_they_make():
    made = Prompt(Path("run"), template=r"{a}\n\\n{{", answer_template=r"\t {b}\n\n").written()
    assert made.example == "{a}\n\\n{{\t {b}\n\n"
    assert (made.answer, made.lead, made.stop) == ("b", "\t ", "\n\n")
    with pytest.raises(ConfigError, match="has 0 fields"):
        Prompt(Path("run"), answer_template="{{b}}").written()


def test_defaults_are_those_of_the_task():
    assert Prompt(Path("run")).written().example == EXAMPLE
