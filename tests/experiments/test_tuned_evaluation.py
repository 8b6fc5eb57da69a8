"""``evaluate`` of runs of ``instruct`` and ``align``: the numbers of training, row B40."""

import json
import logging
import math
import shutil

import numpy as np
import pytest

from tests.cli.conftest import language_run
from transformer_jax.cli import decoder_only
from transformer_jax.cli.main import main as use
from transformer_jax.data.preferences import PreferenceData, open_preferences
from transformer_jax.runs.metrics import read_metrics

ALONE = ["--distributed.num-local-devices", "1"]
EVERY = [*ALONE, "--loop.evaluate-every", "2", "--loop.checkpoint-every", "2",
         "--optimizer.learning-rate", "1e-2", "--training.steps", "4"]  # fmt: skip
SHORT = ["--align.max-length", "16", "--training.max-tokens", "128", "--training.num-buckets", "1"]
SAMPLES = ["--align.max-prompt-length", "8", "--align.max-new-tokens", "4",
           "--align.group-size", "2", "--align.updates", "1",
           "--training.batch-size", "2"]  # fmt: skip
CHAT = ["--chat.template", "chatml", "--training.sequence-length", "48", "--training.batch-size",
        "4", "--data.validation-size", "0.3"]  # fmt: skip
ADAPTERS = ["--lora.rank", "2"]
# What the weight of a method's loss counts; pairs of the others.
COUNTS = {"kto": "completions", "grpo": "completions", "ppo": "sampled_tokens",
          "sft-cpu": "answer_tokens"}  # fmt: skip
CASES = {
    "dpo": ("dpo", [*SHORT, *ADAPTERS]),
    "dpo_frozen": ("dpo", [*SHORT, "--align.reference", "frozen"]),
    "ipo": ("ipo", [*SHORT, "--training.ema-decay", "0.5"]),
    "simpo": ("simpo", SHORT),
    "kto": ("kto", [*SHORT, "--align.reference", "frozen", *ADAPTERS]),
    "reward": ("reward", [*SHORT, *ADAPTERS]),
    "grpo": ("grpo", [*SAMPLES, *ADAPTERS]),
    "ppo": ("ppo", SAMPLES),
    "instruct": ("sft-cpu", CHAT),
    "instruct_adapters": ("sft-cpu", [*CHAT, *ADAPTERS]),
}


@pytest.fixture(autouse=True)
def te_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="module")
def base(shared):
    return shared("align_base", lambda run: language_run(run, "characters", "rope", "bos"))


@pytest.fixture(scope="module")
def chat_base(shared):
    """A run with the special tokens of its chat template."""

    def make(path):
        sizes = [
            "--model.d-model",
            "16",
            "--model.decoder-layers",
            "1",
            "--tokenizer.vocab-size",
            "300",
            "--model.attention.num-heads",
            "2",
            "--model.positions.max-length",
            "64",
        ]
        folder = path.parent / "tuned_chats"
        folder.mkdir(exist_ok=True)
        write_data(folder)
        given = ["instruct", "sft-cpu", *sizes, *EVERY, *CHAT, "--data.train"]
        made = [*given, str(folder / "chats.jsonl"), "--output", str(path)]
        assert decoder_only.main(made) == 0

    return shared("tuned_chat_base", make)


def write_data(folder):
    prompts = [a + b for a in "abcdef" for b in "abcdef"]
    pairs = [
        {"prompt": prompt, "chosen": f"a{i}"[:1] + "ab"[i % 2], "rejected": "cd"[i % 2] * 2}
        for i, prompt in enumerate(prompts)
    ]
    labels = [
        {"prompt": row["prompt"], "completion": row["chosen"], "label": i % 2 == 0}
        for i, row in enumerate(pairs)
    ]
    say = lambda role, text: {"role": role, "content": text}
    chats = [{"messages": [say("user", a), say("assistant", a[::-1])]} for a in prompts]
    for name, rows in {"pairs": pairs, "labels": labels, "chats": chats}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "reward.py").write_text("def reward(p, c):\n    return c.count('a') - len(p) / 9\n")


def data_of(method):
    return {"kto": "labels.jsonl", "sft-cpu": "chats.jsonl"}.get(method, "pairs.jsonl")


@pytest.fixture
def files(tmp_path):
    write_data(tmp_path)
    return tmp_path


def trained(case, start, files, *more):
    method, flags = CASES[case]
    command = "instruct" if method == "sft-cpu" else "align"
    given = [command, method, "--init-from", str(start), "--data.train"]
    given += [str(files / data_of(method)), "--output", str(files / "run"), *EVERY, *flags]
    given += ["--reward.file", str(files / "reward.py")] * (method in ("ppo", "grpo"))
    assert decoder_only.main([*given, *map(str, more)]) == 0
    return files / "run"


def evaluated(run, files, *more):
    out = files / "scores.json"
    assert decoder_only.main(["evaluate", str(run), "--output", str(out), *map(str, more)]) == 0
    return json.loads(out.read_text())


def logged(run, step):
    rows = (row for row in read_metrics(run / "metrics.jsonl") if "valid_loss" in row)
    return next(row for row in rows if row["step"] == step)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_evaluate_gives_the_numbers_of_training(case, base, chat_base, files, capsys):
    """For each checkpoint, to the last bit; a file of the same examples gives the same."""
    instructs = case.startswith("instruct")
    run = trained(case, chat_base if instructs else base, files)
    counts = COUNTS.get(CASES[case][0], "pairs")
    first = read_metrics(run / "metrics.jsonl")[0]
    assert [name for name in first if name.endswith("_per_second")] == [f"{counts}_per_second"]
    assert first[counts] > 0
    if case == "grpo":
        assert first[counts] == 4  # 2 samples of each of 2 prompts
    capsys.readouterr()
    for step in (2, 4):
        found = evaluated(run, files, "--checkpoint", step)["valid"]
        assert found["step"] == step
        before = logged(run, step)
        names = {name for name in before if name.startswith("valid_")}
        assert "valid_loss" in names
        for name in names:
            assert found[name.removeprefix("valid_")] == before[name], name
    printed = capsys.readouterr().out
    assert f"{found['loss']:.4f}" in printed
    if instructs:
        assert found["perplexity"] == math.exp(found["loss"])
        assert found["answer_tokens"] > 0
        return
    method = CASES[case][0]
    assert ("probability" in printed) == (method == "reward")
    data = PreferenceData(train=str(files / data_of(method)))
    kind = {"kto": "labels", "ppo": "prompts", "grpo": "prompts"}.get(method, "pairs")
    held = open_preferences(data, kind).valid
    lines = (files / data_of(method)).read_text().splitlines()
    part = files / "part.jsonl"
    part.write_text("".join(lines[number - 1] + "\n" for number in held.lines))
    again = evaluated(run, files, "--checkpoint", 4, "--data", part)["data"]
    assert again.keys() == found.keys()
    if method == "reward":
        pair = again.pop("reliability"), found.pop("reliability")
        assert pair[0]["counts"] == pair[1]["counts"]
    for name, value in again.items():
        np.testing.assert_allclose(value, found[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_another_file_of_conversations_and_the_mean_of_checkpoints(chat_base, files):
    """Weights that are not those of one step, on conversations that were trained on."""
    run = trained("instruct_adapters", chat_base, files)
    found = evaluated(run, files, "--data", files / "chats.jsonl", "--checkpoint", "average:2")
    single = evaluated(run, files, "--data", files / "chats.jsonl", "--checkpoint", "last")
    assert found["data"]["loss"] != single["data"]["loss"]
    # Answers of two bytes each and their ends.
    assert found["data"]["answer_tokens"] == single["data"]["answer_tokens"] >= 30
    assert use(["evaluate", str(run)]) == 0


@pytest.mark.slow
def test_samples_are_rewarded_anew(base, files):
    """By another file, or by a reward model in its place; the KL divergence stays."""
    reward = trained("reward", base, files)
    shutil.move(reward, files / "reward")
    run = trained("grpo", base, files)
    other = files / "other.py"
    other.write_text("def reward(p, c):\n    return 10.0 + c.count('a') - len(p) / 9\n")
    own, by_file, by_run = (
        evaluated(run, files, *more)["valid"]
        for more in ([], ["--reward-file", other], ["--reward-run", files / "reward"])
    )
    assert by_file["reward"] == pytest.approx(own["reward"] + 10.0, abs=1e-5)
    assert by_file["kl"] == by_run["kl"] == own["kl"]
    assert by_run["reward"] not in (own["reward"], by_file["reward"])
    other.write_text("def reward(p, c):\n    return 1 / 0\n")
    assert decoder_only.main(["evaluate", str(run), "--reward-file", str(other)]) == 3


@pytest.mark.slow
def test_a_policy_with_a_reward_model_is_evaluated_with_the_one_it_keeps(base, files):
    reward = trained("reward", base, files)
    shutil.move(reward, files / "reward")
    given = ["align", "ppo", "--init-from", str(base), "--data.train", str(files / "pairs.jsonl")]
    given += ["--output", str(files / "run"), *EVERY, *SAMPLES, "--reward.run"]
    assert decoder_only.main([*given, str(files / "reward")]) == 0
    found = evaluated(files / "run", files, "--checkpoint", 4)["valid"]
    assert found["reward"] == logged(files / "run", 4)["valid_reward"]


@pytest.mark.slow
def test_other_pairs_need_what_the_run_started_from(base, files, capsys):
    start = shutil.copytree(base, files / "start")
    run = trained("dpo", start, files)
    shutil.rmtree(start)
    evaluated(run, files)  # whose reference is kept
    capsys.readouterr()
    given = ["evaluate", str(run), "--data", str(files / "pairs.jsonl")]
    assert decoder_only.main(given) == 4
    [line] = [one for one in capsys.readouterr().err.splitlines() if "error:" in one]
    assert "other pairs need the reference of dpo" in line
    assert str(start) in line


@pytest.mark.slow
def test_a_mistake_is_one_line(base, chat_base, files, capsys):
    reward = shutil.move(trained("reward", base, files), files / "reward")
    policy = shutil.move(trained("grpo", base, files), files / "policy")
    run = trained("simpo", base, files, "--data.read.validation-size", 0)
    asked = [{"role": "user", "content": "a"}]
    row = {"messages": asked, "chosen": "b", "rejected": "c"}
    (files / "answers.jsonl").write_text(json.dumps(row) + "\n")
    answers = ["--data", files / "answers.jsonl"]
    for path, more, code, said in (
        (run, [], 2, "no validation data: give --data"),
        (run, ["--text", "a.txt"], 2, "--text is for a language model or an n-gram model"),
        (run, ["--data", files / "labels.jsonl"], 3, "labels.jsonl:1: no field 'chosen'"),
        (
            run,
            ["--reward-file", files / "reward.py"],
            2,
            "--reward-file is for a decoder trained on rewards",
        ),
        (run, ["--data", files / "none.jsonl"], 3, "no such file"),
        (run, ["--data", files / "pairs.jsonl", "--checkpoint", "3"], 4, "3"),
        (base, ["--data", files / "pairs.jsonl"], 2, "--data is for"),
        (chat_base, ["--data", files / "pairs.jsonl"], 3, "pairs.jsonl:1"),
        (reward, answers, 2, "answers.jsonl: has conversations, but "),
        (run, answers, 2, "answers.jsonl: has conversations, but "),
        (policy, ["--reward-run", run], 2, f"error: --reward-run {run}: not a reward model"),
        (policy, ["--reward-file", "none.py"], 2, "error: --reward-file none.py: there is no"),
        (policy, ["--reward-file", "a", "--reward-run", "b"], 2, "either --reward-file FILE.py"),
    ):
        capsys.readouterr()
        assert decoder_only.main(["evaluate", str(path), *map(str, more)]) == code, said
        lines = [one for one in capsys.readouterr().err.splitlines() if "error:" in one]
        assert len(lines) == 1 or "bad rows" in lines[0], lines  # each with a line of its own
        assert any(said in line for line in lines), lines


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dpo", "kto", "reward", "grpo", "ppo", "instruct_adapters"])
def test_several_devices_give_the_numbers_of_one(case, base, chat_base, files):
    """Adapters, frozen references, value heads and samples too, on parameters in parts."""
    rows = ["--training.batch-size", 4] * (case in ("grpo", "ppo", "instruct_adapters"))
    run = trained(case, chat_base if case.startswith("instruct") else base, files, *rows)
    one = evaluated(run, files)["valid"]
    for mesh in (["--mesh.data", 2], ["--mesh.data", 2, "--mesh.fsdp", 2], ["--mesh.tensor", 2]):
        many = evaluated(run, files, *mesh)["valid"]
        assert many.keys() == one.keys()
        for name, value in one.items():
            if name == "reliability":
                assert many[name]["counts"] == value["counts"]
            else:
                assert many[name] == pytest.approx(value, rel=1e-4, abs=1e-5), (mesh, name)
