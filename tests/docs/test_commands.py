"""The commands of each page run in their order, in a folder with the files that the page names.

Training is shortened by one rule (``shortening.py``); what a page says that a command prints is
compared with what it printed.
"""

from pathlib import Path

import pytest

from tests.docs import documented, quotes, world
from tests.docs.documented import PAGES, lines_of
from tests.docs.outside import OUTSIDE, is_outside
from tests.docs.quotes import CHECKS
from tests.docs.reader import Reader
from tests.docs.shell import Done, Shell
from tests.docs.shortening import few_texts
from tests.object_stores import bucket, object_store  # noqa: F401

LINES = {
    name: [line for line in lines_of(name, world.STANDS.get(name, {}))
           if not is_outside(line.text) and not documented.is_pattern(line.text)]
    for name in PAGES
}  # fmt: skip
CASE_LINES = 10  # of a lecture, whose rows stand for themselves


def cases():
    """The pages with the lines of each case: all of a guide, some of a lecture."""
    for name, lines in LINES.items():
        size = CASE_LINES if name.startswith("lectures/") else len(lines)
        for start in range(0, len(lines), size or 1):
            case = f"{name}-{start // size}" if len(lines) > size else name
            yield pytest.param(name, lines[start : start + size], id=case)


@pytest.fixture(scope="session")
def files(shared):
    return shared("documented", world.write)


@pytest.mark.apart
@pytest.mark.quick("data")
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize(("page", "lines"), [*cases()])
def test_the_commands_of_a_page_run(
    page, lines, files, shared, tmp_path, monkeypatch, capsysbinary, request
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    few_texts(monkeypatch)
    reader = Reader(page, files, shared, monkeypatch, capsysbinary)
    if any("s3://bucket" in line.text for line in lines):
        reader.use_bucket(request.getfixturevalue("bucket"))
    outputs, failed = {}, []
    for number, line in lines:
        outputs[line] = done = reader.read(line)
        # A reader fills in the function that a page asks for.
        if done.code and not (done.code == 5 and "not right yet" in done.err):
            failed.append(f"{page}:{number}: {line}\n  {done.code}: {done.err[-600:]}")
    assert not failed, "\n".join(failed)
    for check in CHECKS.get(page, []):
        check(outputs)


def test_other_output_than_the_page_quotes_is_found():
    head = "  ".join(quotes.table(PAGES["data"].read_text(), "tokenizer")[0]) + "\n"
    rows = "".join(f"{row[0]}  1\n" for row in quotes.table(PAGES["data"].read_text(), "tokenizer"))
    line, [check] = "transformer-jax compare-tokenizers a", CHECKS["data"]
    check({line: Done(0, head + rows.partition("\n")[2], "")})
    for printed in (head, head.replace("unknown", "unk") + rows.partition("\n")[2]):
        with pytest.raises(AssertionError):
            check({line: Done(0, printed, "")})


def test_a_line_runs_as_in_a_shell(tmp_path, monkeypatch, capsysbinary):
    monkeypatch.chdir(tmp_path)
    shell = Shell(monkeypatch, capsysbinary)
    assert shell("printf 'a # b\\n' > text  # a note").code == 0
    assert Path("text").read_text() == "a # b\n"
    found = shell("echo 'a bad idea' | transformer-jax no-such-command < text")
    assert (found.code, found.out) == (2, "")
    assert "unknown command no-such-command" in found.err


def test_lines_outside_are_on_pages_and_blocks_hold_no_patterns():
    texts = [line.text for name in PAGES for line in lines_of(name, {})]
    assert [start for start in OUTSIDE if not any(text.startswith(start) for text in texts)] == []
    for name, path in PAGES.items():
        lines = documented.block_lines(path.read_text())
        patterns = [line for line in lines if documented.is_pattern(line.text)]
        assert patterns == [], name


def test_runs_and_models_of_the_world_are_those_that_pages_name():
    texts = [line.text for lines in LINES.values() for line in lines]
    texts += [command for commands in world.MADE.values() for command in commands]
    words = {part for text in texts for word in documented.words(text)
             for part in word.replace("=", ",").split(",")}  # fmt: skip
    assert sorted({*world.MADE, *world.MODELS} - words) == []
    assert [page for page in (*world.STANDS, *world.MADE_FOR) if not LINES[page]] == []
