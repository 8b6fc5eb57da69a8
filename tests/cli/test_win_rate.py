"""``transformer-jax win-rate``: two models compared by a rule, row B40."""

import json

import pytest

from tests.cli.conftest import language_run
from transformer_jax.inference.pretrained import read_facts


@pytest.fixture(scope="module")
def runs(shared):
    return [
        shared(name, lambda path: language_run(path, "characters", "rope", "bos"))
        for name in ("align_base", "win_rate_other")
    ]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "prompts.txt").write_text("ab\ncd\n\nef\n")
    (tmp_path / "rule.py").write_text("def reward(prompt, text):\n    return text.count('a')\n")
    return tmp_path


def compared(run_command, runs, files, *more):
    flags = ("--rule", files / "rule.py", "--max-new-tokens", 6, "--json", files / "out.json")
    code, lines, err = run_command("win-rate", *runs, files / "prompts.txt", *flags, *more)
    path = files / "out.json"
    return code, lines, err, json.loads(path.read_text()) if path.exists() else None


@pytest.mark.slow
def test_completions_are_compared_by_the_rule(run_command, runs, files):
    code, lines, err, found = compared(run_command, runs, files, "--samples", 4)
    assert code == 0, err
    assert found["prompts"] == ["ab", "cd", "ef"]
    for side in ("run", "other"):
        texts, rewards = found[side]["completions"], found[side]["rewards"]
        assert [len(row) for row in texts] == [4] * 3
        assert rewards == [[text.count("a") for text in row] for row in texts]
    pairs = [
        (a, b)
        for one, two in zip(found["run"]["rewards"], found["other"]["rewards"], strict=True)
        for a, b in zip(one, two, strict=True)
    ]
    assert found["win_rate"]["wins"] == sum(a > b for a, b in pairs)
    assert found["win_rate"]["ties"] == sum(a == b for a, b in pairs)
    assert lines[1].startswith(str(runs[0]))
    assert "3 prompts; 95 % interval" in err


@pytest.mark.slow
def test_a_model_ties_with_itself(run_command, runs, files):
    code, lines, _, found = compared(run_command, [runs[0], runs[0]], files, "--show", 1)
    assert code == 0
    assert found["win_rate"]["rate"] == 0.5
    assert found["win_rate"]["ties"] == 3
    assert sum(line.startswith("1\t") for line in lines) == 2


@pytest.mark.slow
def test_prompts_that_a_model_would_cut_are_skipped_and_counted(run_command, runs, files):
    """Two models would complete two prompts."""
    context = read_facts(runs[0]).layers.max_length
    (files / "prompts.txt").write_text("ab\n" + "cd" * context + "\nef\n")
    code, _, err, found = compared(run_command, runs, files)
    assert (code, found["prompts"]) == (0, ["ab", "ef"])
    assert "1 of 3 prompts skipped: longer than the context of" in err
    (files / "prompts.txt").write_text("cd" * context + "\n")
    code, _, err, _ = compared(run_command, runs, files)
    assert (code, err.count("\n")) == (3, 1)
    assert "all prompts are longer than the context" in err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--samples", 0], "--samples is 0: at least 1"),
        (["--samples", 2, "--temperature", 0], "all samples would be equal"),
        (["--rule", "none.py"], "--rule none.py: there is no such file"),
        (["--max-new-tokens", 0], "--max-new-tokens is 0: at least 1, or None"),
        (["--json", "out.txt"], "--json"),
    ],
)
def test_bad_settings_are_refused_in_one_line(run_command, runs, files, more, said):
    code, lines, err, found = compared(run_command, runs, files, *more)
    assert (code, lines, found) == (2, [""], None)
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_rule_that_fails_and_prompts_that_are_none_end_in_one_line(run_command, runs, files):
    (files / "rule.py").write_text("def reward(prompt, text):\n    return float('nan')\n")
    code, _, err, found = compared(run_command, runs, files)
    assert (code, found) == (3, None)
    assert "returned nan: a finite number is needed" in err
    (files / "prompts.txt").write_text("  \n\n")
    code, _, err, _ = compared(run_command, runs, files)
    assert code == 3
    assert "no prompts: it is empty" in err
