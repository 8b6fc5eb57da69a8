"""Instruction tuning, as a command: conversations learnt by heart, resumed, and gone on from."""

import json
import logging
import shutil

import pytest

import transformer_jax
from transformer_jax.cli import decoder_only
from transformer_jax.cli.main import main
from transformer_jax.data.chat.template import find_template, named_template
from transformer_jax.recipes import driver
from transformer_jax.runs.checkpoint_reader import load_params
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.trainer import Trainer

SIZES = [
    "--model.d-model", "64", "--model.decoder-layers", "2", "--model.attention.num-heads", "4",
    "--model.feed-forward.d-ff", "128", "--model.positions.max-length", "128",
    "--tokenizer.vocab-size", "300",
]  # fmt: skip
SHORT = [
    "--distributed.num-local-devices", "1", "--training.sequence-length", "96",
    "--training.batch-size", "4", "--optimizer.learning-rate", "4e-3",
    "--optimizer.schedule.warmup-steps", "10", "--data.validation-size", "0.2",
]  # fmt: skip
STEPS = 200
COLOURS = {"cat": "red", "dog": "blue", "fish": "green", "bird": "black"}


@pytest.fixture(autouse=True)
def in_quiet():
    yield
    logging.getLogger().handlers.clear()


def in_chat(animal):
    return [
        {"role": "user", "content": f"the {animal}?"},
        {"role": "assistant", "content": f"It is {COLOURS[animal]}."},
        {"role": "user", "content": "Which?"},
        {"role": "assistant", "content": f"The {animal}."},
    ]


def in_write(path):
    rows = [{"messages": in_chat(animal)} for animal in COLOURS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * 3))


@pytest.fixture(scope="module")
def chats(shared):
    return shared("instruct_chats", in_write)


def tune(chats, output, *more):
    given = ["instruct", "sft-cpu", *SHORT, "--data.train", str(chats), "--output", str(output)]
    assert decoder_only.main([*given, *map(str, more)]) == 0
    return output


@pytest.fixture(scope="module")
def run(chats, shared):
    half = STEPS // 2
    flags = ["--chat.template", "chatml", "--training.steps", STEPS, "--data.valid",
             chats, "--loop.checkpoint-every", half, "--loop.evaluate-every", half]  # fmt: skip
    return shared("instruct_run", lambda path: tune(chats, path, *SIZES, *flags))


@pytest.mark.slow
def test_answers_are_learnt_by_heart_and_the_run_knows_its_template(run):
    model = transformer_jax.load(run)
    for animal in COLOURS:
        chat = in_chat(animal)
        for turn in (1, 3):
            found = model.chat(chat[:turn], temperature=0, max_new_tokens=20)
            assert found == chat[turn]["content"]
            assert found.finish_reason == "end"
    assert find_template(run).text == named_template("chatml").text
    results = json.loads((run / "results.json").read_text())
    assert results["sample"]["answer"] == in_chat("cat")[1]["content"]
    assert results["best"]["value"] < 0.1


@pytest.mark.slow
def test_a_run_resumes_bit_by_bit(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(copy / f"checkpoints/step_{STEPS:08d}")
    before = json.loads((copy / "results.json").read_text())["state_sha256"]
    (copy / "results.json").unlink()
    # As if it had been killed before the template was written.
    (copy / "tokenizer_config.json").unlink()
    assert decoder_only.main(["resume", str(copy), "--distributed.num-local-devices", "1"]) == 0
    assert json.loads((copy / "results.json").read_text())["state_sha256"] == before
    assert find_template(copy) is not None


@pytest.mark.slow
def test_a_run_goes_on_from_another_with_its_template(run, chats, tmp_path, capfd):
    flags = ["--init-from", run, "--training.steps", "2", "--optimizer.learning-rate", "0"]
    flags += ["--optimizer.schedule.warmup-steps", "1", "--freeze", "1"]
    more = tune(chats, tmp_path / "more", *flags)
    assert "newly initialized: none" in capfd.readouterr().err
    sizes = [json.loads((path / "config.json").read_text())["model"] for path in (run, more)]
    assert sizes[0] == sizes[1]
    chat = in_chat("dog")
    answer = transformer_jax.load(more).chat(chat[:1], temperature=0, max_new_tokens=20)
    assert answer == chat[1]["content"]
    measured = [r["valid_loss"] for r in read_metrics(more / "metrics.jsonl") if "valid_loss" in r]
    assert max(measured) < 0.1


@pytest.mark.slow
def test_special_tokens_of_a_template_are_added_to_a_base_model(run, chats, tmp_path):
    """The base model is the run without them: another template has others."""
    flags = ["--init-from", run, "--chat.template", "gemma", "--training.steps", "1"]
    more = tune(chats, tmp_path / "more", *flags, "--optimizer.schedule.warmup-steps", "0")
    config = json.loads((more / "config.json").read_text())
    assert config["tokenizer"]["add_special_tokens"] == ["<start_of_turn>", "<end_of_turn>"]
    before = json.loads((run / "config.json").read_text())["model"]["vocab_size"]
    assert config["model"]["vocab_size"] == before + 2
    text = (more / "tokenizer.json").read_text()
    assert json.loads(text)["added_tokens"][-1]["content"] == "<end_of_turn>"


@pytest.mark.slow
def test_a_base_model_learns_another_template_by_adapters_and_its_tokens(run, chats, tmp_path):
    """Row B39: the rows of the tokens of the template are trained beside adapters."""
    flags = ["--init-from", run, "--chat.template", "gemma", "--training.steps", "120"]
    flags += ["--lora.rank", "8", "--lora.targets", "all-linear", "--data.valid", chats]
    more = tune(chats, tmp_path / "more", *flags, "--optimizer.learning-rate", "2e-2")
    config = json.loads((more / "config.json").read_text())
    assert config["trainable_tokens"] == ["<start_of_turn>", "<end_of_turn>"]
    table, start = (load_params(path, "best").params["embedding"]["table"] for path in (more, run))
    assert table[:-2].tobytes() == start.tobytes()
    model = transformer_jax.load(more)
    for animal in COLOURS:
        chat = in_chat(animal)
        found = model.chat(chat[:1], temperature=0, max_new_tokens=20)
        assert found == chat[1]["content"]
        assert found.finish_reason == "end"


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 3], ids=["answers", "says one thing"])
def test_conversations_that_the_assistant_begins_are_learnt(tmp_path, first):
    """Its first message is learnt like an answer; the sample is an answer to the user."""
    chats = tmp_path / "chats.jsonl"
    rows = [{"messages": in_chat(animal)[first:]} for animal in COLOURS]
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows * 3))
    flags = ["--chat.template", "zephyr", "--training.steps", "60", "--data.valid", chats]
    run = tune(chats, tmp_path / "run", *SIZES, *flags)
    results = json.loads((run / "results.json").read_text())
    assert ("sample" in results) == (first == 1)
    if first == 1:
        assert results["sample"]["messages"] == in_chat("cat")[1:3]
    assert results["best"]["value"] < 1.0


@pytest.mark.slow
def test_only_answers_have_weight_in_batches(run):
    """The weights of every batch that the trainer gets are those of answers."""
    seen = []
    directory = RunDirectory.open(run)
    task = driver.make_task(driver.read(directory), directory, directory.load_tokenizer(), None)
    for step in range(task.train.plan.steps_per_epoch):
        batch = task.train.make_batch(task.train.plan.batch(step))
        seen += batch["targets"][batch["weights"] > 0].tolist()
    tokenizer = directory.load_tokenizer()
    text = tokenizer.decode(seen)
    for animal in COLOURS:
        assert text.count(f"It is {COLOURS[animal]}.") == 3
        assert text.count(f"The {animal}.") == 3
    assert "?" not in text
    assert seen.count(tokenizer.token_id("<|im_end|>")) == 2 * 12


@pytest.mark.slow
def test_exports_and_conversions_keep_the_template(run, tmp_path):
    hf, converted = str(tmp_path / "hf"), str(tmp_path / "run")
    assert main(["export", str(run), hf]) == 0
    assert main(["convert", hf, converted]) == 0
    chat = in_chat("fish")
    for folder in (hf, converted):
        found = transformer_jax.load(folder).chat(chat[:1], temperature=0, max_new_tokens=20)
        assert found == chat[1]["content"]
        assert found.finish_reason == "end"
    assert main(["export", str(run), hf, "--overwrite"]) == 0


MISTAKES = [
    ([], "no conversations: give --data.train chats.jsonl"),
    (["--data.train", "{chats}"], "choose one with --chat.template: chatml, gemma, llama-2"),
    (["--data.train", "{chats}", "--chat.template", "chatlm"], "chat template chatlm: no such"),
    (["--data.train", "no.jsonl", "--chat.template", "chatml"], "data.train no.jsonl: no such"),
    (["--data.train", "{bad}", "--chat.template", "chatml"], "bad.jsonl:1: the conversation has"),
    (["--data.train", "{first}", "--chat.template", "gemma"],
     "first.jsonl:2: "),
    (["--data.train", "{chats}", "--chat.template", "{never}"], "never.jinja is refused: it "),
    (
        ["--data.train", "{chats}", "--chat.template", "chatml", "--data.validation-size", "0.7"],
        "--data.validation-size is 0.7: at most 0.5",
    ),
    (
        ["--data.train", "{chats}", "--chat.template", "chatml", "--training.layout", "contiguous"],
        "--training.layout",
    ),
    (
        ["--data.train", "{chats}", "--chat.template", "chatml", "--training.sequence-length", "9",
         "--data.too-long", "error"],
        "chats.jsonl:1: the conversation has",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), MISTAKES, ids=[case[1] for case in MISTAKES])
def test_mistakes_are_one_line(chats, tmp_path, capfd, monkeypatch, given, message):
    monkeypatch.setattr(Trainer, "_fit", None)  # nothing is trained
    (tmp_path / "bad.jsonl").write_text('{"messages": []}\n')
    loop = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
    (tmp_path / "never.jinja").write_text(loop)
    files = {"chats": tmp_path / "chats.jsonl", "bad": tmp_path / "bad.jsonl"}
    shutil.copy(chats, files["chats"])
    files["first"] = tmp_path / "first.jsonl"
    rows = [in_chat("cat"), in_chat("cat")[1:]]  # the assistant begins
    files["first"].write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    files["never"] = tmp_path / "never.jinja"
    given = [word.format(**files) if "{" in word else word for word in given]
    code = decoder_only.main(
        ["instruct", "sft-cpu", *SIZES, *SHORT, *given, "--output", str(tmp_path / "run")]
    )
    err = capfd.readouterr().err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code in (2, 3), err
    assert len(errors) == 1, err
    assert message in errors[0], err


@pytest.mark.slow
def test_other_commands_know_the_run(run, chats, capfd):
    assert main(["evaluate", str(run), "--text", str(chats)]) == 2
    assert "the run of a model tuned on conversations" in capfd.readouterr().err
    assert main(["verify", str(run)]) == 0
    assert main(["describe", str(run)]) == 0
