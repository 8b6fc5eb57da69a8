"""``transformer-jax prefer``: pairs from choices, row B40."""

import json
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest

from tests.cli.conftest import language_run
from transformer_jax.data.preferences import read_preferences
from transformer_jax.decoding.requests import Continuation


@pytest.fixture(scope="module")
def run(shared):
    return shared("align_base", lambda path: language_run(path, "characters", "rope", "bos"))


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("ab\ncd\n\nef\n")
    return path


def prefer(run_command, run, prompts, text="", *more):
    output = prompts.parent / "pairs.jsonl"
    flags = ("--output", output, "--max-new-tokens", 6, *more)
    code, lines, err = run_command("prefer", run, prompts, *flags, text=text)
    rows = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    return code, lines, err, rows


def sampling(monkeypatch, texts):
    """Replaces models: the samples of every prompt are ``texts``."""
    made = [Continuation(text, (), 0.0, "end", 0.0) for text in texts]

    class Fixed:
        language = SimpleNamespace(counts=Counter())

        def __call__(self, part):
            return [made] * len(part)

        def reads(self, request):
            return True

    for name in ("prefer", "win_rate"):
        monkeypatch.setattr(f"transformer_jax.cli.{name}.load_sampler", lambda *_, **__: Fixed())


@pytest.mark.slow
def test_choices_become_pairs_that_training_reads(run_command, run, prompts):
    code, lines, err, rows = prefer(run_command, run, prompts, "1\nx\n2\ns\nq\n")
    assert code == 0
    assert [row["line"] for row in rows] == [1, 2]
    samples = [line.split(" ", 1)[1] for line in lines if line.startswith(("[1]", "[2]"))]
    assert (rows[0]["chosen"], rows[0]["rejected"]) == (samples[0], samples[1])
    assert (rows[1]["chosen"], rows[1]["rejected"]) == (samples[3], samples[2])
    assert "'x': type 1, 2, s or q" in err
    found = read_preferences(prompts.parent / "pairs.jsonl", "pairs")
    assert found.prompts == ["ab", "cd"]


@pytest.mark.slow
def test_it_continues_where_it_stopped_with_the_samples_of_one_go(run_command, run, prompts):
    *_, whole = prefer(run_command, run, prompts, "1\n2\n1\n2\n")
    (prompts.parent / "pairs.jsonl").unlink()
    prefer(run_command, run, prompts, "1\n")
    *_, err, parts = prefer(run_command, run, prompts, "2\n1\n2\n")
    assert "continued at prompt 2 of 4" in err
    assert parts == whole
    *_, again = prefer(run_command, run, prompts)
    assert again == whole


@pytest.mark.slow
def test_a_rule_chooses_by_its_reward(run_command, run, prompts):
    rule = prompts.parent / "rule.py"
    rule.write_text("def reward(prompt, completion):\n    return ord(completion[0])\n")
    code, _, _, rows = prefer(run_command, run, prompts, "", "--rule", rule)
    assert code == 0
    assert rows
    assert all(row["chosen"][0] > row["rejected"][0] for row in rows)
    *_, again = prefer(run_command, run, prompts, "", "--rule", rule)
    assert again == rows


def test_prompts_without_a_pair_are_counted_by_reason(run_command, run, prompts, monkeypatch):
    rule = prompts.parent / "rule.py"
    rule.write_text("def reward(prompt, completion):\n    return 1.0\n")
    sampling(monkeypatch, ["x", "y"])
    *_, err, rows = prefer(run_command, run, prompts, "", "--rule", rule)
    assert not rows
    assert "0 pairs written; prompts without a pair: empty prompt 1, equal rewards 3" in err
    *_, err, rows = prefer(run_command, run, prompts, "1\ns\ns\n")
    assert "1 pair written; prompts without a pair: skipped 2, empty prompt 1" in err
    assert len(rows) == 1


@pytest.mark.slow
def test_prompts_are_lower_cased_for_a_model_of_lower_cased_text(run_command, run, tmp_path):
    lower, prompts = tmp_path / "lower", tmp_path / "prompts.txt"
    shutil.copytree(run, lower)
    config = json.loads((lower / "config.json").read_text())
    config["data"] = {"read": {"lowercase": True}}
    (lower / "config.json").write_text(json.dumps(config))
    found = []
    for text in ("AB\n", "ab\n"):
        prompts.write_text(text)
        found.append(prefer(run_command, lower, prompts, "1\n")[-1])
        (tmp_path / "pairs.jsonl").unlink()
    assert found[0] == found[1]
    assert found[0][0]["prompt"] == "ab"


@pytest.mark.parametrize(
    ("rule", "said"),
    [("def reward(p, c):\n    return None", "returned None: a finite"), ("", "no function reward")],
)
@pytest.mark.slow
def test_a_rule_that_fails_says_so(run_command, run, prompts, rule, said):
    path = prompts.parent / "rule.py"
    path.write_text(rule)
    code, _, err, rows = prefer(run_command, run, prompts, "", "--rule", path)
    assert code in (2, 3)
    assert said in err
    assert err.strip().count("Traceback") == 0
    assert not rows


def test_pairs_of_other_prompts_and_greedy_samples_are_refused(run_command, run, prompts):
    (prompts.parent / "pairs.jsonl").write_text('{"prompt": "zz", "line": 1}\n')
    code, _, err, _ = prefer(run_command, run, prompts)
    assert code == 3
    assert "pairs.jsonl:1: not a pair of a prompt in" in err
    code, _, err, _ = prefer(run_command, run, prompts, "", "--temperature", 0)
    assert (code, "--temperature is 0" in err) == (2, True)


@pytest.mark.slow
def test_answers_to_conversations_are_chosen_and_compared(run_command, run, prompts):
    start = prompts.parent / "start"
    shutil.copytree(run, start)
    (start / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{{ eos_token if m.role == 'assistant' }}{% endfor %}"
    )
    rows = [{"messages": [{"role": "user", "content": text}]} for text in ("ab", "cd", "ef")]
    path, rule = prompts.parent / "asked.jsonl", prompts.parent / "rule.py"
    path.write_text("\n".join(map(json.dumps, rows)))
    rule.write_text("def reward(prompt, answer):\n    return len(answer) + ord(prompt[0])\n")
    code, _, err, found = prefer(run_command, start, path, "", "--rule", rule)
    assert code == 0, err
    assert found
    for row in found:
        assert row["messages"] == rows[row["line"] - 1]["messages"]
        assert len(row["chosen"]) > len(row["rejected"])
    assert read_preferences(prompts.parent / "pairs.jsonl", "pairs").conversational
    flags = ("--rule", rule, "--max-new-tokens", 6)
    assert run_command("win-rate", start, start, path, *flags)[0] == 0
    code, _, err = run_command("win-rate", start, run, path, *flags)
    assert code == 2
    assert "has no chat template" in err


def test_blank_lines_are_no_prompts(run_command, run, prompts, monkeypatch):
    sampling(monkeypatch, ("a", "b"))
    *_, rows = prefer(run_command, run, prompts, "1\n2\n1\n2\n")
    assert [row["line"] for row in rows] == [1, 2, 4]
    assert [row["prompt"] for row in rows] == ["ab", "cd", "ef"]


def test_a_last_line_that_is_not_whole_is_made_anew(run_command, run, prompts, monkeypatch):
    output = prompts.parent / "pairs.jsonl"
    sampling(monkeypatch, ("a", "b"))
    *_, whole = prefer(run_command, run, prompts, "1\n2\n1\n")
    lines = output.read_text().splitlines(keepends=True)
    output.write_text(lines[0] + lines[1][: len(lines[1]) // 2])  # killed
    *_, err, parts = prefer(run_command, run, prompts, "2\n1\n")
    assert "the last line was incomplete" in err
    assert parts == whole
    output.write_text("".join(lines[:2]).removesuffix("\n"))  # edited
    assert prefer(run_command, run, prompts, "1\n")[-1] == whole
    output.write_text("a note")
    code, _, err = run_command("prefer", run, prompts, "--output", output)
    assert (code, output.read_text()) == (3, "a note")
    assert "pairs.jsonl:1: not JSON" in err


def test_pairs_are_not_appended_to_a_compressed_file(run_command, run, prompts):
    given = ("prefer", run, prompts, "--output", prompts.parent / "pairs.jsonl.gz")
    code, _, err = run_command(*given)
    assert (code, "which .gz does not allow" in err) == (2, True)
    assert not (prompts.parent / "pairs.jsonl.gz").exists()


def test_prefer_and_win_rate_give_a_rule_the_same_texts(run_command, run, prompts, monkeypatch):
    """Answers without outer blanks, as templates write them; prompts as training prepares them."""
    path, rule = prompts.parent / "asked.jsonl", prompts.parent / "rule.py"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "AB"}]}))
    rule.write_text("def reward(prompt, answer):\n    raise ValueError(repr((prompt, answer)))\n")
    lower = shutil.copytree(run, prompts.parent / "lower")
    config = json.loads((lower / "config.json").read_text())
    (lower / "config.json").write_text(json.dumps(config | {"data": {"read": {"lowercase": True}}}))
    texts = (" a.\n", " b")
    sampling(monkeypatch, texts)
    asked = ["--rule", rule]
    for words in (["prefer", lower, path, "--output", path.with_suffix(".out")],
                  ["win-rate", lower, lower, path, "--samples", 2]):  # fmt: skip
        code, _, err = run_command(*words, *asked)
        assert code == 3
        assert "raised ValueError: ('AB', 'a.')" in err


@pytest.mark.parametrize("samples", [("a", "a"), ("a", ""), ("a", "b\0")])
def test_samples_that_training_refuses_are_skipped(run_command, run, prompts, monkeypatch, samples):
    sampling(monkeypatch, samples)
    code, _, err, rows = prefer(run_command, run, prompts, "1\n" * 4)
    assert (code, rows) == (0, [])
    assert "samples are equal or empty, or hold NUL, skipped" in err
