"""``decoder_only align``: runs on preferences and rewards, from files to models, row B40."""

import json
import shutil

import pytest

from tests.cli.conftest import language_run
from transformer_jax.cli import decoder_only
from transformer_jax.cli.main import main as use
from transformer_jax.core.trees import flatten_dict
from transformer_jax.inference.loading import load as tj_load
from transformer_jax.runs.checkpoint_reader import load_params, load_parts
from transformer_jax.runs.manifest import check_checkpoint

ONE = ["--distributed.num-local-devices", "1", "--loop.evaluate-every", "0"]
ONE += ["--loop.checkpoint-every", "0", "--optimizer.learning-rate", "1e-3"]
SHORT = ["--align.max-length", "16", "--training.max-tokens", "128", "--training.num-buckets", "1"]
SAMPLES = ["--align.max-prompt-length", "8", "--align.max-new-tokens", "4"]
PLAIN = ("run", "merged")
SAMPLES += ["--align.group-size", "2", "--align.updates", "1", "--training.batch-size", "2"]


@pytest.fixture(scope="module")
def base(shared):
    return shared("align_base", lambda run: language_run(run, "characters", "rope", "bos"))


@pytest.fixture
def files(tmp_path):
    pairs = [
        {"prompt": prompt, "chosen": f"a{i}"[:1] + "ab"[i % 2], "rejected": "cd"[i % 2] * 2}
        for i, prompt in enumerate(["ab", "cd", "ad", "bc", "ef", "fa", "fb", "ca", "da", "ea"])
    ]
    labels = [
        {"prompt": row["prompt"], "completion": row["chosen"], "label": i % 2 == 0}
        for i, row in enumerate(pairs)
    ]
    write = lambda name, rows: (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    write("pairs.jsonl", pairs)
    write("labels.jsonl", labels)
    (tmp_path / "reward.py").write_text("def reward(p, c):\n    return c.count('a') - len(p) / 9\n")
    (tmp_path / "bad.py").write_text("def reward(p, c):\n    return 1 / 0\n")
    return tmp_path


def align(method, base, files, name, *more):
    data = "labels.jsonl" if method == "kto" else "pairs.jsonl"
    given = ["align", method, "--init-from", str(base), "--data.train", str(files / data)]
    given += ["--output", str(files / name), *ONE, *map(str, more)]
    return decoder_only.main(given)


def results(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.mark.slow
def test_a_run_resumes_with_its_reference_and_ends_with_the_same_bits(base, files, capsys):
    assert align("dpo", base, files, "whole", *SHORT, "--training.steps", 4) == 0
    steps = ["--training.steps", 4, "--loop.checkpoint-every", 2]
    assert align("dpo", base, files, "parts", *SHORT, *steps) == 0
    stored = (files / "parts" / "reference.npz").read_bytes()
    (files / "parts" / "results.json").unlink()
    shutil.rmtree(files / "parts" / "checkpoints" / "step_00000004")
    assert decoder_only.main(["resume", str(files / "parts"), *ONE[:2]]) == 0
    assert (files / "parts" / "reference.npz").read_bytes() == stored
    assert results(files / "whole")["state_sha256"] == results(files / "parts")["state_sha256"]
    err = capsys.readouterr().err
    assert "reference of train" in err or "log-probabilities of the reference" in err
    assert use(["generate", str(files / "parts"), "ab", "--max-new-tokens", "3"]) == 0


@pytest.mark.slow
def test_other_validation_pairs_are_not_measured_by_the_reference_of_those_before(
    base, files, capsys
):
    valid = files / "valid.jsonl"
    valid.write_text((files / "pairs.jsonl").read_text())
    more = [*SHORT, "--data.valid", valid, "--training.steps", 1]
    assert align("dpo", base, files, "run", *more) == 0
    valid.write_text(valid.read_text().replace('"rejected": "cc"', '"rejected": "ef"'))
    (files / "run" / "results.json").unlink()
    assert decoder_only.main(["resume", str(files / "run"), *ONE[:2]]) == 3
    assert (
        "the preferences have changed since the run began: restore them" in capsys.readouterr().err
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ipo", "kto", "simpo", "reward"])
def test_each_method_trains_from_its_file(base, files, method):
    assert align(method, base, files, "run", *SHORT, "--training.steps", 2) == 0
    found = results(files / "run")
    assert found["steps"] == 2
    if method == "reward":
        assert 0 <= found["scores"]["valid"]["calibration_error"] <= 1
        assert use(["classify", str(files / "run"), "ab"]) == 0


@pytest.mark.parametrize("adapters", [[], ["--lora.rank", 2]], ids=["whole", "adapters"])
@pytest.mark.slow
def test_the_two_references_give_one_run(base, files, adapters):
    for where in ("precomputed", "frozen"):
        more = ["--align.reference", where, "--training.steps", 3, *adapters]
        assert align("dpo", base, files, where, *SHORT, *more) == 0
    one, two = (
        [json.loads(line) for line in (files / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("precomputed", "frozen")
    )
    for a, b in zip(one, two, strict=True):
        for key in ("loss", "valid_loss", "valid_accuracy"):
            if key in a:
                assert a[key] == pytest.approx(b[key], abs=1e-5)
    assert use(["generate", str(files / "frozen"), "ab", "--max-new-tokens", "3"]) == 0


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("dpo", [*SHORT, "--align.reference", "frozen"]),
        ("kto", SHORT),
        ("reward", SHORT),
        ("ppo", SAMPLES),
        ("grpo", [*SAMPLES, "--lora.base-dtype", "bfloat16"]),
    ],
    ids=["dpo_frozen", "kto", "reward", "ppo", "grpo_narrow"],
)
def test_adapters_are_trained_on_one_copy_of_the_base(base, files, method, more):
    """Rows B39 and B40: policy and reference share the base; the run resumes bit for bit."""
    more = [*more, "--lora.rank", 2, "--training.steps", 4, "--loop.checkpoint-every", 2]
    if more[0] == SAMPLES[0]:
        more += ["--reward.file", files / "reward.py"]
    run = files / "run"
    assert align(method, base, files, "run", *more) == 0
    before, parts = flatten_dict(load_params(base).params), load_parts(run, "last")
    heads = {"reward": "labels/", "ppo": "value/"}
    trained = flatten_dict(parts.params)
    assert {name for name in trained if "/lora_" not in name} == {
        name for name in trained if name.startswith(heads.get(method, "-"))
    }
    kept = (check_checkpoint(run / "frozen/step_00000000", "")[0] or {})["tree"]
    beside = {name.removeprefix("params/reference/") for name in kept if "/reference/" in name}
    assert beside <= trained.keys()
    for name, array in flatten_dict(parts.frozen).items():
        assert (array == before[name].astype(array.dtype)).all(), name
    whole = results(run)["state_sha256"]
    (run / "results.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step_00000004")
    assert decoder_only.main(["resume", str(run), *ONE[:2]]) == 0
    assert results(run)["state_sha256"] == whole
    if method == "reward":
        assert use(["classify", str(run), "ab"]) == 0
        return
    assert use(["merge", str(run), "--output", str(files / "merged")]) == 0
    text = [str(tj_load(files / name).generate("ab", max_new_tokens=4)) for name in PLAIN]
    chosen = tj_load(base).with_adapters({"own": run})
    if method != "grpo":  # whose base is rounded
        text.append(str(chosen.generate("ab", max_new_tokens=4, adapter="own")))
    assert len(set(text)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("dpo", [*SHORT, "--align.reference", "frozen"]),
        ("dpo", SHORT),
        ("ppo", SAMPLES),
        ("grpo", SAMPLES),
    ],
    ids=["dpo_frozen", "dpo_precomputed", "ppo", "grpo"],
)
def test_tokens_that_a_run_adds_are_the_policys_alone(base, files, method, more):
    """Rows B39 and B40: the reference keeps the rows as they began, in the base of both."""
    more = [*more, "--lora.rank", 2, "--training.steps", 4, "--loop.checkpoint-every", 2]
    more += ["--tokenizer.add-special-tokens", "<|user|>", "--optimizer.learning-rate", "0.05"]
    if method != "dpo":
        (files / "sum.py").write_text("def reward(p, c):\n    return sum(map(ord, c)) / 99\n")
        more += ["--reward.file", files / "sum.py"]
    run = files / "run"
    assert align(method, base, files, "run", *more) == 0
    before, parts = flatten_dict(load_params(base).params), load_parts(run, "last")
    rows = flatten_dict(parts.params)["embedding/table_rows"]
    begun = flatten_dict(parts.frozen)["embedding/table"]
    assert begun[:-1].tobytes() == before["embedding/table"].tobytes()
    assert (rows != begun[-1:]).any()
    after = flatten_dict(load_params(run, "last").params)["embedding/table"]
    assert after[:-1].tobytes() == begun[:-1].tobytes()
    assert after[-1:].tobytes() == rows.tobytes()
    whole = results(run)["state_sha256"]
    (run / "results.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step_00000004")
    assert decoder_only.main(["resume", str(run), *ONE[:2]]) == 0
    assert results(run)["state_sha256"] == whole
    assert use(["merge", str(run), "--output", str(files / "merged")]) == 0
    text = {str(tj_load(files / name).generate("ab", max_new_tokens=4)) for name in PLAIN}
    assert len(text) == 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_a_policy_learns_from_a_file_and_from_a_reward_model(base, files, method):
    steps = ["--training.steps", 2]
    assert align("reward", base, files, "reward", *SHORT, *steps) == 0
    for name, reward in (("file", files / "reward.py"), ("run", files / "reward")):
        more = [f"--reward.{name}", reward, *steps, *SAMPLES]
        assert align(method, base, files, f"by_{name}", *more) == 0
        assert use(["generate", str(files / f"by_{name}"), "ab", "--max-new-tokens", "3"]) == 0
        rows = (files / f"by_{name}" / "metrics.jsonl").read_text().splitlines()
        first = next(row for row in map(json.loads, rows) if "reward" in row)
        assert abs(first["kl"]) < 1e-3


@pytest.mark.parametrize(
    ("method", "more", "said"),
    [
        ("dpo", ["--align.margin", "1"], "align.margin is a setting of simpo"),
        ("simpo", ["--align.reference", "frozen"], "simpo has no reference"),
        ("dpo", ["--align.max-length", "100"], "align.max_length is 100, but the model has"),
        ("dpo", ["--data.train", "FILES/labels.jsonl"], "labels.jsonl:10: no field 'chosen'"),
        ("grpo", SAMPLES, "either --reward.file FILE.py or --reward.run RUN"),
        ("grpo", [*SAMPLES, "--reward.file", "FILES/no.py"], "no.py: there is no such file"),
        ("grpo", [*SAMPLES, "--reward.run", "BASE"], "not a reward model: train one"),
        ("grpo", ["--align.gae-decay", "0.5"], "align.gae_decay is a setting of ppo"),
        ("ppo", ["--align.kl-coefficient", "0", "--align.kl-target", "2"], "a weight of 0 never"),
        ("dpo", ["--lora.alpha", "4"], "add --lora.rank 8"),
        ("reward", [*SHORT, "--reinit-head"], "has no head for this run, so it is new anyway"),
        ("dpo", ["--lora.rank", "2", "--freeze", "1"], "leave one of them out"),
        (
            "dpo",
            ["--lora.rank", "2", "--lora.base-dtype", "bfloat16"],
            "add --align.reference frozen, which shares the base",
        ),
        ("kto", ["--training.gradient-accumulation-steps", "2"], "kto compares all rows"),
        ("kto", ["--training.mode", "pmap"], "kto compares all rows"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_is_written(
    base, files, capsys, method, more, said
):
    paths = {"FILES": str(files), "BASE": str(base)}
    for word, path in paths.items():
        more = [one.replace(word, path) for one in more]
    assert align(method, base, files, "run", *more) in (2, 3)
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert said in error
    assert not (files / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "prompts of at most 12 tokens and completions of at most 12,"),
        (["--align.max-prompt-length", "10"], "prompts of at most 10 tokens and completions of at"),
        (["--align.max-new-tokens", "9"], "prompts of at most 15 tokens and completions of at mo"),
        (["--align.max-prompt-length", "64"], "is 96, but the model has positions for 24 tokens"),
    ],
)
def test_lengths_that_nobody_asked_for_fit_the_positions_of_the_start(
    base, files, capsys, more, said
):
    # Without a reward it ends before anything is written.
    assert align("grpo", base, files, "run", *more) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_reward_model_that_reads_other_rows_than_samples_are_is_refused(
    base, files, tmp_path, capsys
):
    small = language_run(tmp_path / "small", "characters", "rope", "bos", context=8)
    short = [*SHORT, "--align.max-length", "8", "--training.steps", 1]
    assert align("reward", small, files, "reward", *short) == 0
    assert align("grpo", base, files, "run", *SAMPLES, "--reward.run", files / "reward") == 2
    assert "has positions for 8 tokens, and the sum of" in capsys.readouterr().err
    rewarded = [*SAMPLES, "--reward.run", files / "reward", "--first", "eos"]
    assert align("grpo", base, files, "run", *rewarded) == 2
    said = "its texts begin with bos, texts of this run with eos: train both with the same --first"
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_reference_that_is_cut_short_is_refused_in_one_line(base, files, capsys):
    assert align("dpo", base, files, "run", *SHORT, "--training.steps", 1) == 0
    path = files / "run" / "reference.npz"
    path.write_bytes(path.read_bytes()[:-30])
    (files / "run" / "results.json").unlink()
    shutil.rmtree(files / "run" / "checkpoints")
    assert decoder_only.main(["resume", str(files / "run"), *ONE[:2]]) == 3
    assert "reference.npz: damaged (" in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.slow
def test_a_model_of_conversations_keeps_its_template(base, files):
    start, template = files / "start", "{% for m in messages %}{{ m.content }}{% endfor %}"
    shutil.copytree(base, start)
    (start / "chat_template.jinja").write_text(template)
    assert align("simpo", start, files, "run", *SHORT, "--training.steps", 1) == 0
    assert (files / "run" / "chat_template.jinja").read_text() == template


CHATS = """{% for m in messages %}{{ m.content }}{% if m.role == "user" %}a{% else %}
{{- eos_token }}{% endif %}{% endfor %}"""


@pytest.fixture
def conversations(base, files):
    """A model with a chat template, and pairs of answers."""
    start = files / "start"
    shutil.copytree(base, start)
    (start / "chat_template.jinja").write_text(CHATS)
    rows = [
        {"messages": [{"role": "user", "content": text}], "chosen": "ab", "rejected": "cd"}
        for text in ("ab", "cd", "ef", "fa")
    ]
    (files / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return start


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpo", "simpo", "reward"])
def test_answers_to_conversations_are_learnt_in_their_template(conversations, files, method):
    """Row B40: the chosen answer is the one that the model then gives."""
    more = ["--data.train", files / "chats.jsonl", *SHORT, "--data.read.validation-size", "0.25"]
    more += ["--training.steps", 60 if method == "dpo" else 2, "--optimizer.learning-rate", "1e-2"]
    assert align(method, conversations, files, "run", *more) == 0
    assert (files / "run" / "chat_template.jinja").read_text() == CHATS
    if method == "dpo":
        found = tj_load(files / "run").chat(
            [{"role": "user", "content": "ab"}], max_new_tokens=1, temperature=0
        )
        assert str(found) == "a"
        rows = map(json.loads, (files / "run" / "metrics.jsonl").read_text().splitlines())
        assert [row["valid_accuracy"] for row in rows if "valid_accuracy" in row][-1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("reward", ["file", "run"])
@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_a_policy_learns_from_rewards_of_its_answers(conversations, files, method, reward, capsys):
    """Row B40: by a function of texts or a reward model of the same template, also resumed."""
    lines = (files / "chats.jsonl").read_text().splitlines()
    asked = [row["messages"] for row in map(json.loads, lines)]
    rows, said = [{"prompt": messages} for messages in asked], files / "said.txt"  # TRL's form
    (files / "trl.jsonl").write_text("\n".join(map(json.dumps, rows)))
    if reward == "run":
        more = ["--data.train", files / "chats.jsonl", "--training.steps", 1, *SHORT]
        assert align("reward", conversations, files, "by", *more) == 0
    else:
        rule = "def reward(p, c):\n    with open({!r}, 'a') as file:\n        print(p, file=file)\n"
        (files / "by.py").write_text(rule.format(str(said)) + "    return len(c)\n")
    by = files / ("by.py" if reward == "file" else "by")
    more = [f"--reward.{reward}", by, *SAMPLES, "--data.train", files / "trl.jsonl"]
    more += ["--training.steps", 4, "--loop.checkpoint-every", 2]
    assert align(method, conversations, files, "run", *more) == 0
    run = files / "run"
    assert (run / "chat_template.jinja").read_text() == CHATS
    whole = results(run)["state_sha256"]
    (run / "results.json").unlink()
    shutil.rmtree(run / "checkpoints" / "step_00000004")
    assert decoder_only.main(["resume", str(run), *ONE[:2]]) == 0
    assert results(run)["state_sha256"] == whole
    if reward == "file":
        assert set(said.read_text().split()) == {messages[-1]["content"] for messages in asked}
    assert len(str(tj_load(run).chat(asked[0], max_new_tokens=2))) <= 2
    changed = by if reward == "file" else by / "config.json"
    changed.write_text(changed.read_text() + "\n")
    capsys.readouterr()
    assert decoder_only.main(["resume", str(run), *ONE[:2]]) == 3
    what = "contents of reward.file" if reward == "file" else "settings of reward.run"
    assert f"the {what} {changed} have changed since the run began" in capsys.readouterr().err


def test_conversations_that_cannot_be_learnt_from_are_refused(conversations, base, files, capsys):
    given = ["--data.train", files / "chats.jsonl"]
    reward = ["--reward.file", files / "reward.py", *SAMPLES]
    for method, start, more, said in (
        ("grpo", base, reward, "has no chat template: start from a run of instruct"),
        ("dpo", base, SHORT, "has no chat template: start from a run of instruct"),
        (
            "dpo",
            conversations,
            ["--data.valid", files / "pairs.jsonl"],
            "use the same form for both",
        ),
        (
            "grpo",
            conversations,
            [*reward, "--data.valid", files / "pairs.jsonl"],
            "the same form for both",
        ),
    ):
        assert align(method, start, files, "run", *given, *more) == 2
        assert said in capsys.readouterr().err.strip().splitlines()[-1]
        assert not (files / "run" / "config.json").exists()


@pytest.mark.slow
def test_a_reward_model_of_another_form_or_template_is_refused(conversations, base, files, capsys):
    chats, texts = (["--data.train", files / f"{name}.jsonl"] for name in ("chats", "pairs"))
    for name, data in (("of_chats", chats), ("of_texts", texts)):
        more = [*data, *SHORT, "--training.steps", 1]
        assert align("reward", conversations, files, name, *more) == 0
    other = files / "other"
    shutil.copytree(conversations, other)
    (other / "chat_template.jinja").write_text("{# another #}" + CHATS)
    for start, data, reward, said in (
        (conversations, chats, "of_texts", "was trained on texts, but data.train"),
        (conversations, texts, "of_chats", "was trained on conversations, but data.train"),
        (
            other,
            chats,
            "of_chats",
            f"has a different chat template from {other}: train a reward model",
        ),
    ):
        more = [*data, *SAMPLES, "--reward.run", files / reward]
        assert align("grpo", start, files, "run", *more) == 2
        assert said in capsys.readouterr().err.strip().splitlines()[-1]
        assert not (files / "run" / "config.json").exists()


def test_a_run_without_a_start_says_what_it_needs(capsys):
    assert decoder_only.main(["align", "dpo", *ONE]) == 2
    assert (
        "a decoder trained on preferences needs --init-from RUN_OR_FOLDER"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_a_reward_that_raises_ends_the_run_in_one_line(base, files, capsys):
    more = ["--reward.file", files / "bad.py", *SAMPLES, "--training.steps", 2]
    assert align("grpo", base, files, "run", *more) == 3
    error = capsys.readouterr().err
    assert error.strip().splitlines()[-1].startswith(f"error: {files / 'bad.py'}: reward(")
    assert error.strip().endswith("raised ZeroDivisionError: division by zero")
    assert "Traceback" not in error
