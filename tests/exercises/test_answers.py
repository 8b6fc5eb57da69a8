"""Every right answer passes, every blank and typical mistake fails, most with their cause."""

import ast
import inspect
import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.doors import uses
from tests.exercises.answers import ANSWERS
from transformer_jax.cli.main import main
from transformer_jax.core.errors import ArgumentError, DataError
from transformer_jax.exercises import blanks, table
from transformer_jax.exercises.checking import Verdict, blank, check
from transformer_jax.exercises.table import EXERCISES, TRANSFORMER
from transformer_jax.exercises.trial import check_file
from transformer_jax.lectures import read_ledger

ROOT = Path(__file__).parents[2]
MISTAKES = [
    pytest.param(name, old, new, cause, id=f"{name}-{n}")
    for name, (_, mistakes) in ANSWERS.items()
    for n, (old, new, cause) in enumerate(mistakes)
]


@pytest.fixture(autouse=True)
def plain_broadcasting():
    """Broadcasting as in NumPy, as in the process of a reader's file."""
    import jax

    with jax.numpy_rank_promotion("allow"):
        yield


def function(name, text):
    """The function of a file with this text."""
    names = {}
    jax = "import jax\nimport jax.numpy as jnp\n" if "jax." in text or "jnp." in text else ""
    exec(f"{jax}import numpy as np\n{text}", names)
    return names[name]


def changed(name, old, new):
    text, _ = ANSWERS[name]
    assert old in text
    text = text.replace(old, new).rstrip()
    return text + ")" * (text.count("(") - text.count(")")) + "\n"


def test_there_are_24_with_a_blank_eight_mistakes_and_hints_each():
    assert len(EXERCISES) == 24
    assert {*EXERCISES} == {*ANSWERS} == {*blanks.__all__}
    assert len(MISTAKES) == 192
    assert all(1 <= len(exercise.hints) <= 3 for exercise in EXERCISES.values())
    for name, exercise in EXERCISES.items():
        arguments = len(inspect.signature(getattr(blanks, name)).parameters)
        assert all(len(inputs) in (arguments, 3) for inputs in exercise.cases.values())


@pytest.mark.quick("shift_right", "bpe_merge")
@pytest.mark.parametrize("name", EXERCISES)
def test_an_answer_in_numpy_or_jax_passes(name):
    assert check(name, function(name, ANSWERS[name][0])).holds


@pytest.mark.quick("wordpiece")
@pytest.mark.parametrize("name", EXERCISES)
def test_the_packages_functions_pass_and_the_blank_fails(name):
    assert check(name, EXERCISES[name].right).holds
    verdict = check(name, getattr(blanks, name))
    assert not verdict.holds
    assert verdict.cause.startswith("nothing is returned")


@pytest.mark.quick("shift_right-0", "bpe_merge-1", "next_sentences-3", "mask_words-0")
@pytest.mark.parametrize(("name", "old", "new", "cause"), MISTAKES)
def test_a_mistake_fails_with_its_cause(name, old, new, cause):
    verdict = check(name, function(name, changed(name, old, new)))
    assert not verdict.holds
    assert cause in verdict.cause
    assert cause


@pytest.mark.slow
def test_mistakes_of_the_table_are_wrong():
    """Each gives a wrong value for some inputs, so that it never explains a right answer."""
    right = []
    for name, exercise in EXERCISES.items():
        for words, mistake in exercise.mistakes.items():
            plain = eval("lambda *inputs: mistake(*inputs)", {"mistake": mistake})  # of NumPy
            right += [(name, words)] if check(name, plain).holds else []
    assert not right


def test_arguments_may_stand_in_another_order():
    swapped = lambda bos, tokens: np.concatenate([0 * tokens[:, :1] + bos, tokens[:, :-1]], 1)
    assert tj.check("shift_right", swapped).holds


def test_a_file_that_imports_jax_gets_arrays_of_jax():
    def shift_right(tokens, bos):
        return jnp.roll(tokens, 1, axis=1).at[:, 0].set(bos)

    assert check("shift_right", shift_right).holds


def test_the_line_names_inputs_place_value_right_value_and_cause():
    verdict = check("shift_right", lambda tokens, bos: tokens)
    assert str(verdict) == (
        "shift_right: two targets, [0, 0]: 7 instead of 1; likely: nothing is shifted"
    )


def test_an_error_names_its_line():
    verdict = check("shift_right", lambda tokens, bos: tokens @ tokens)
    assert verdict.where.startswith("line ")
    assert "Error" in verdict.value


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("return tokens @ tokens", "another shape"),
        ("tokens[0].append(1)", ""),
        ("return np.rol(tokens, 1)", ""),
        ("return undefined", "a name is not defined"),
        ("raise SystemExit", "ends the program"),
        ("return shift_right(tokens, bos)", "calls itself"),
        ("return np.ones((2**25, 2**25))", "far larger"),
        ("raise OSError(27)", "little printed"),
        ("return jnp.zeros(2).__setitem__(0, 1)", "not changed in place"),
        ("return (lambda one: one)()", ""),
    ],
)
def test_an_error_has_the_cause_of_its_kind_and_its_line(line, cause):
    text = f"import numpy as np\n\ndef shift_right(tokens, bos):\n    {line}\n"
    names = {"jnp": jnp}
    exec(compile(text, "/home/me/transformer_jax/my.py", "exec"), names)
    verdict = check("shift_right", names["shift_right"])
    assert verdict.where == "line 4"
    assert cause in verdict.cause
    assert bool(cause) == bool(verdict.cause)


@pytest.mark.parametrize("value", [1j, "abc", [[1, 2], [3]], [[None]], {}])
def test_what_is_no_array_of_numbers_is_shown(value):
    verdict = check("shift_right", lambda tokens, bos: tokens + value if value == 1j else value)
    assert verdict.right == "an array"


def test_no_message_holds_a_solution():
    """Neither blanks nor hints hold code that returns the value."""
    for name in EXERCISES:
        tree = ast.parse(blank(name))
        [body] = [one.body for one in tree.body if isinstance(one, ast.FunctionDef)]
        assert [type(one) for one in body] == [ast.Expr, ast.Expr]
    assert not any("return " in hint for one in EXERCISES.values() for hint in one.hints)


def test_an_unknown_exercise_is_refused():
    with pytest.raises(ArgumentError, match="did you mean attention"):
        check("attenton", print)


def test_the_command_lists_exercises_and_prints_blanks(capsys):
    assert main(["check"]) == 0
    listed = capsys.readouterr().out
    rows = {row.name: row.exercise for row in read_ledger().values() if row.exercise}
    assert {*rows.values()} == {*EXERCISES} - {"adam_step"}  # which no slide shows
    assert {"mask": "L16, B29", "top_p": "B33"}.items() <= {
        line.split()[0]: line[19:27].strip() for line in listed.splitlines() if line[2:3].strip()
    }.items()
    assert main(["check", "--blank", "all"]) == 0
    printed = capsys.readouterr().out
    names = [one.name for one in ast.parse(printed).body if isinstance(one, ast.FunctionDef)]
    assert names == [*EXERCISES]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "attention"], "EXERCISE FILE"),
        (["check", "nothing", __file__], "no exercise 'nothing'"),
        (["check", "attention", "missing.py"], "no such file"),
        (["check", "--all", __file__], "none of the functions"),
        (["check", "attention", __file__, "--run", "runs/x"], "needs --all"),
    ],
)
def test_the_command_refuses_what_does_not_fit(words, message, capsys):
    assert main(words) in (2, 3)
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_is_checked_in_a_process(tmp_path, capsys):
    file = tmp_path / "mine.py"
    texts = ANSWERS["shift_right"][0] + ANSWERS["wordpiece"][0].replace("##", "")
    file.write_text(f"import numpy as np\nprint('x' * 100)\n{texts}")
    assert main(["check", "--all", str(file), "--json"]) == 5
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["exercise"], line["holds"]) for line in lines] == [
        ("shift_right", True), ("wordpiece", False)
    ]  # fmt: skip
    assert main(["check", "wordpiece", str(file), "--hint", "1"]) == 5
    assert "hint: Try the whole rest first" in capsys.readouterr().out
    assert main(["check", "shift_right", str(file)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("while True:\n        pass", "not done within 3 s"),
        ("return np.ones((2**17, 2**17))", "Error"),
        ("import os\n    os._exit(9)", "ended with status 9"),
        ("print('x' * 2**26)\n    return tokens", "Error"),
    ],
)
def test_a_process_is_limited(tmp_path, body, found):
    file = tmp_path / "mine.py"
    file.write_text(f"import numpy as np\n\ndef shift_right(tokens, bos):\n    {body}\n")
    trial = check_file(file, ["shift_right", "token_loss"], seconds=3)
    assert found in f"{trial.verdicts[0]}"
    assert len(trial.verdicts) == 2
    assert not any(verdict.holds for verdict in trial.verdicts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = 1\nimport nothing_of_this_name", "line 2: ModuleNotFoundError"),
        ("x = (", "mine.py, line 1: SyntaxError '(' was never closed: mend the file"),
        ("raise SystemExit", "line 1: SystemExit"),
        ("import os\nos._exit(4)", "when imported, the process ended with status 4"),
        ("while True: pass", "when imported, not done within 2 s"),
    ],
)
def test_a_file_that_cannot_be_imported_is_told(tmp_path, text, found):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(DataError, match=re.escape(found)):
        check_file(file, ["shift_right", "wordpiece"], seconds=2)


@pytest.mark.slow
def test_functions_after_one_that_never_ends_are_checked_and_prints_are_shown(tmp_path, capsys):
    file = tmp_path / "mine.py"
    loop = "def attention(q, k, v, mask):\n    print('here')\n    while True: pass\n"
    text = ANSWERS["shift_right"][0]
    file.write_text(f"import numpy as np\n{loop}{text}block = 3\n")
    assert main(["check", "--all", str(file), "--seconds", "5"]) == 5
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "attention: not done within 5 s; likely: a loop never ends; for slow answers raise "
        "--seconds",
        "block: mine.py has no function block",
        "shift_right: all laws hold",
        "1 of 3 functions right",
    ]
    assert "  printed: here" in err


@pytest.mark.slow
def test_a_run_of_another_kind_is_refused_before_functions_are_checked(tmp_path):
    file, run = tmp_path / "mine.py", tmp_path / "run"
    file.write_text("def softmax(scores, mask):\n    while True: pass\n")
    with pytest.raises(DataError, match="no such run directory"):
        check_file(file, ["softmax"], seconds=20, run=run)
    uses.Use("gpt2", str).write(run)
    with pytest.raises(DataError, match="decoder"):
        check_file(file, ["softmax"], seconds=20, run=run)


def test_twelve_make_a_transformer():
    assert len(TRANSFORMER) == 12
    tree = ast.parse((ROOT / "course/transformer.py").read_text())
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    for name in TRANSFORMER:
        given = [argument.arg for argument in functions[name].args.args]
        assert given == list(inspect.signature(getattr(blanks, name)).parameters)


def test_a_verdict_is_its_line():
    assert repr(Verdict("mask", True)) == "mask: all laws hold"
    assert table.EXERCISES is EXERCISES
