"""The command line: quick to start, one line for a mistake, the nearest right word."""

import contextlib
import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.cli import commands
from transformer_jax.cli.commands import with_flags
from transformer_jax.cli.main import main
from transformer_jax.cli.process import collect_late

COMMANDS = dict(with_flags())
ROOT = Path(__file__).parents[2]


def command(*arguments, **how):
    """The installed command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "import sys; from transformer_jax.cli.main import main; "
         "sys.exit(main())", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, **how,
    )  # fmt: skip


def mistake(capsys, *arguments):
    """The exit code and the only line of a command that ends with a mistake."""
    code = main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return code, err


def test_garbage_is_first_collected_after_many_objects_and_then_as_usual():
    usual, callbacks = gc.get_threshold(), [*gc.callbacks]
    try:
        collect_late()
        assert gc.get_threshold()[0] > 340_000
        gc.collect()
        assert gc.get_threshold() == usual
        assert gc.callbacks == callbacks
    finally:
        gc.set_threshold(*usual)


def test_the_end_of_a_program_searches_for_no_garbage_but_flushes_and_calls_its_hooks():
    code = """
import atexit
from transformer_jax.cli.process import run_and_leave

class Circle:
    def __init__(self): self.me = self
    def __del__(self): print("collected")

def program():
    atexit.register(print, "hook")
    print("work")

circle = Circle()
run_and_leave(program)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["work", "hook"]


def test_help_is_quick_and_names_every_command():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = command("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    assert done.stderr == ""
    for name in commands.COMMANDS:
        assert f"\n  {name} " in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 80
    assert set(COMMANDS) <= set(commands.COMMANDS)
    # Processor time, which other work on the machine does not change much.
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 1.0, spent


def test_nothing_heavy_is_imported_before_the_arguments_are_right():
    code = (
        "import sys\nfrom transformer_jax.cli.main import main\n"
        "code = main(['translate', 'run', '--num-beems', '3'])\n"
        "heavy = {'jax', 'numpy', 'flax', 'orbax', 'matplotlib', 'tokenizers'} & set(sys.modules)\n"
        "assert code == 2 and not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    assert main([name, "--help"]) == 0
    assert "usage: transformer-jax " + name in capsys.readouterr().out


def test_no_arguments_print_help(capsys):
    assert main([]) == 0
    assert "usage: transformer-jax" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("transformer-jax 0.")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["tranlate", "run"],
            "unknown command tranlate: did you mean translate? `transformer-jax --help` lists",
        ),
        (["xyzzy"], "unknown command xyzzy: `transformer-jax --help` lists them all\n"),
        (["translate", "run", "--num-beems", "3"], "did you mean --num-beams?"),
        (["translate", "run", "--num-beems=3"], "did you mean --num-beams?"),
        (["score", "run", "--scource", "a", "--target", "b"], "did you mean --source?"),
        (["describe", "--presets", "gpt2"], "did you mean --preset?"),
        (["translate", "run", "--zzzzzz"], "translate has no flag --zzzzzz (see"),
        (["translate"], "Missing from transformer-jax translate: RUN"),
        (["translate", "run", "--num-beams", "few"], "--num-beams is 'few': a whole number"),
        (
            ["translate", "run", "--normalization", "gnm"],
            "allowed are none, power, gnmt, or None; did you mean gnmt?",
        ),
        (["score", "run", "--source", "a"], "--target"),
        (["translate", "run", "more"], "more"),
    ],
)
def test_wrong_words_are_one_line_and_exit_2(capsys, arguments, says):
    code, err = mistake(capsys, *arguments)
    assert code == 2
    assert says in err


@pytest.mark.parametrize("name", ["translate", "verify", "describe"])
def test_a_run_that_is_not_there_exits_4(capsys, tmp_path, name):
    code, err = mistake(capsys, name, str(tmp_path / "none"))
    assert code == 4
    assert "none: no such run directory" in err
    code, err = mistake(capsys, name, str(tmp_path))
    assert code == 4
    assert "not a run directory" in err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ("{}", "no model"),
        ('{"model": {"d_modle": 3}}', "d_model"),
    ],
)
def test_a_foreign_run_exits_4(capsys, tmp_path, text, says):
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "tokenizer.json").write_text("{}")
    for name in ("translate", "describe"):
        code, err = mistake(capsys, name, str(tmp_path))
        assert code == 4
        assert says in err


def test_a_reader_that_goes_away_is_no_error():
    source = "import sys; from transformer_jax.cli.main import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", source, "describe", "--preset", "vaswani_base"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


@pytest.mark.parametrize(("nbest", "wanted"), [(1, "a b"), (2, "a b\t-1.0000\tc d\t-2.0000")])
def test_one_line_out_whatever_the_model_writes(nbest, wanted):
    from transformer_jax.cli.translate import Translate
    from transformer_jax.decoding.requests import Continuation, Translation

    written = (
        Continuation("a\nb", (1,), -1.0, "end", -1.0),
        Continuation("c\td", (1,), -2.0, "end", -2.0),
    )
    translation = Translation("source", written)
    assert Translate(run=Path("run"), num_return_sequences=nbest).line(translation) == wanted


@pytest.mark.parametrize("words", [["fill-mask"], ["train", "small"], ["resume"], ["launch"]])
def test_help_lists_the_import_of_a_module_of_ones_own(words, capsys):
    with contextlib.suppress(SystemExit):
        main([*words, "--help"])
    assert "--import" in capsys.readouterr().out
