"""Training by ``transformer-jax``: the same entry points as ``python -m experiments.*``."""

import contextlib
import dataclasses
from pathlib import Path

import pytest

from transformer_jax.cli import decoder_only, encoder_only, seq2seq, training
from transformer_jax.cli.main import main
from transformer_jax.cli.run_flags import asked_run
from transformer_jax.recipes.registry import RECIPES, get_recipe, named_runs
from transformer_jax.runs.run_directory import RunDirectory

DENOISING_RUNS = named_runs("denoising")
PRETRAIN_RUNS = named_runs("masked_lm")
TASK_RUNS = named_runs("finetuning")
LANGUAGE_RUNS = named_runs("language_model", "ngram")
RUNS = named_runs("translation", "recurrent_translation")

MODULES = {seq2seq: RUNS, decoder_only: LANGUAGE_RUNS}


def fa_run(path, run):
    directory = RunDirectory(path)
    path.mkdir()
    directory.write(directory.config, dataclasses.asdict(run))
    directory.tokenizer.write_text("{}")
    return path


def of_every_program(command):
    """The recipes of a command, as the programs for each kind of model have them."""
    programs = (module.FAMILY.commands for module in (seq2seq, decoder_only, encoder_only))
    return {name for commands in programs for name in commands.get(command, ())}


def test_train_starts_the_kinds_of_imported_modules(monkeypatch, run_command):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    monkeypatch.setitem(RECIPES, "reversal", "own_kind")
    code, lines, _ = run_command("train", "--import", "own_kind", "--help")
    assert code == 0
    kinds = lines[lines.index("kinds of --import:") + 1 :]  # other tests may have imported some
    assert any(line.split()[:1] == ["reversal"] for line in kinds)
    commands = training.every_kind().commands
    assert asked_run("transformer-jax train", commands, ["reversal"]).run.recipe == "reversal"


@pytest.mark.parametrize("command", training.STARTS)
def test_a_name_is_of_one_run_of_all_that_a_command_starts(command):
    assert {*training.EVERY.commands[command]} == of_every_program(command)
    names = [name for kind in training.EVERY.commands[command] for name in get_recipe(kind).runs]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("command", "recipe", "name"),
    [
        ("train", "translation", "small"),
        ("train", "language_model", "char-cpu"),
        ("train", "ngram", "ngram"),
        ("pretrain", "denoising", "t5-mini"),
        ("pretrain", "masked_lm", "small"),
        ("finetune", "finetuning", "tag"),
        ("finetune", "summarization", "summarize"),
    ],
)
def test_a_run_is_found_by_its_name_and_by_its_file(tmp_path, command, recipe, name):
    named = named_runs(recipe)[name][1]
    file = str(fa_run(tmp_path / "run", named) / "config.json")
    for words in ([name], ["--config", file], [f"--config={file}"]):
        asked = asked_run(f"transformer-jax {command}", training.EVERY.commands, words)
        assert dataclasses.replace(asked.run, output=None) == named


@pytest.mark.parametrize("command", training.COMMANDS)
def test_help_lists_the_named_runs_and_the_usual_flags_or_all_flags(command, capfd):
    assert main([command, "--help"]) == 0
    out = capfd.readouterr().out
    rows = {line.split()[0] for line in out.splitlines() if line.startswith("  ")}
    if command in ("resume", "evaluate"):
        wanted = {"--checkpoint", "--data", "--text", "--source", "--mesh.data"}
        assert rows >= (wanted if command == "evaluate" else {"--loop.evaluate-every"})
        return
    assert rows >= {*training.training_runs(command)}
    assert {"--output", "--config", "--plan", "--resume", "--import"} <= rows
    assert len([row for row in rows if row.startswith("--")]) == 13
    assert out.index("usual flags") < out.index("All flags")


@pytest.mark.parametrize("name", ["tiny", "char", "vit"])
def test_usual_flags_are_flags_of_the_run(name, capfd):
    with contextlib.suppress(SystemExit):
        main(["train", name, "--help"])
    usual, every = capfd.readouterr().out.split("╭", 1)
    flags = {line.split()[0] for line in usual.splitlines() if line.startswith("  --")}
    own = flags - {"--config", "--plan", "--resume", "--import"}
    assert own <= {word.strip(",") for word in every.split()}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["win-rate"], "The file is executed: use files that you trust"),
        (["prefer"], "The file is executed: use files that you trust"),
        (["align", "grpo"], "It is executed: use files that you trust"),
        (["launch"], "Output of process 0 is shown with [0] before each line; --all-output"),
    ],
)
def test_help_says_what_has_to_be_known(words, says, capfd):
    with contextlib.suppress(SystemExit):
        main([*words, "--help"])
    assert says in " ".join(capfd.readouterr().out.replace("│", " ").split())


def test_a_command_runs_as_the_family_does(tmp_path, monkeypatch, capfd):
    path = fa_run(tmp_path / "run", LANGUAGE_RUNS["ngram"][1])
    assert main(["resume", str(path)]) == decoder_only.main(["resume", str(path)]) == 2
    first, second = capfd.readouterr().err.strip().splitlines()
    assert first == second


@pytest.mark.parametrize(
    ("command", "recipe", "name", "title", "own"),
    [
        (["train"], "finetuning", "tag", "a fine-tuned model", "finetune"),
        (["train", "small"], "masked_lm", "small", "a pre-trained encoder", "pretrain"),
        (["pretrain"], "summarization", "summarize", "a summarizer", "finetune"),
        (["instruct"], "preferences", "dpo", "a decoder trained on preferences", "align"),
        (["train-speech"], "translation", "small", "a translator", "train"),
    ],
)
def test_settings_of_another_kind_of_run_name_its_command(
    tmp_path, command, recipe, name, title, own, capfd
):
    file = fa_run(tmp_path / "run", named_runs(recipe)[name][1]) / "config.json"
    assert main([*command, "--config", str(file)]) == 2
    assert capfd.readouterr().err.strip() == (
        f"error: --config {file}: the settings of {title}, which {command[0]} does not start: use "
        f"`transformer-jax {own} --config {file}`"
    )


def test_an_earlier_name_of_a_run_is_found():
    asked = asked_run("x finetune", training.EVERY.commands, ["span", "--training.steps", "3"])
    assert (asked.name, asked.run.recipe) == ("qa", "finetuning")


def test_resume_of_a_run_of_another_kind_is_refused(tmp_path, capfd):
    path = fa_run(tmp_path / "run", LANGUAGE_RUNS["char-cpu"][1])
    (path / "metrics.jsonl").write_text("")
    assert main(["train", "small", "--resume", "--output", str(path)]) == 2
    assert capfd.readouterr().err.strip().splitlines()[-1] == (
        f"error: --output {path}: contains the run of a language model, not of a translator: "
        f"choose another --output, or continue that run with `transformer-jax resume {path}`"
    )


def test_evaluate_names_the_flags_that_a_run_has(tmp_path, capfd):
    path = fa_run(tmp_path / "run", PRETRAIN_RUNS["small"][1])
    assert main(["evaluate", str(path), "--text", "a.txt"]) == 2
    assert (
        "--text is for a language model or an n-gram model, and "
        f"{path} is the run of a pre-trained encoder: leave it out; there are --data"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["train"],
            "train needs the name of a configuration first, or --config FILE; there are phrasebook",
        ),
        (
            ["train", "phrasebok"],
            "did you mean phrasebook? `transformer-jax train --help` lists them all\n",
        ),
        (["train", "--training.steps", "3"], "train needs the name of a configuration first"),
        (["train", "--config", "none.json"], "none.json: cannot be read"),
        (["resume"], "resume needs a run directory, such as runs/NAME"),
        (["evaluate", "runs/none"], "runs/none: no such run directory"),
        (["trian"], "unknown command trian: did you mean train?"),
        (["pretrain", "smal"], "unknown configuration smal: did you mean small?"),
        (["train", "--config"], "--config needs a file"),
        (["translate", "runs/none", "text"], "error: no flag stands before text: name the flag"),
        (["translate"], "translate needs RUN (Run directory or Hugging Face folder) (see"),
        (["translate", "runs/none", "--input"], "error: --input needs a value (see"),
        (
            ["train", "tiny", "--data.valid", "a"],
            "no flag --data.valid: there are --data.valid.source, --data.valid.target, --data.",
        ),
        (["train", "char", "--resum"], "char has no flag --resum: did you mean --resume?"),
        (["train", "char", "--plam", "h200:8"], "no flag --plam: did you mean --plan?"),
        (
            ["train", "char", "--data.source", "a"],
            "train char has no flag --data.source, which is for a translator or a recurrent",
        ),
    ],
)
def test_a_mistake_is_one_line(given, message, capfd):
    assert main(given) in (2, 4)
    err = capfd.readouterr().err
    assert len(err.strip().splitlines()) == 1
    assert message in err


@pytest.mark.parametrize("command", ["resume", "evaluate", "translate", "describe"])
def test_a_missing_run_has_one_message_and_one_exit_code(command, capfd):
    assert main([command, "runs/none"]) == 4
    assert capfd.readouterr().err == "error: runs/none: no such run directory\n"


@pytest.mark.parametrize(
    "command", ["train", "resume", "evaluate", "finetune", "pretrain", "align"]
)
def test_help_shows_commands_of_this_program(command, capfd):
    given = (
        [command, "--help"] if command not in ("finetune", "pretrain", "align") else [command, "-h"]
    )
    assert main(given) == 0
    out = capfd.readouterr().out
    assert "transformer-jax" in out
    assert "python -m" not in out
