"""The Python of the pages "If you come from ..." runs, with the models that it names."""

import re

import pytest

from tests.docs import documented, world
from tests.docs.reader import Reader

PAGES = [name for name in documented.PAGES if name.startswith("from/")]
CODE = {
    name: "\n".join(re.findall(r"```python\n(.*?)```", documented.PAGES[name].read_text(), re.S))
    for name in PAGES
}


@pytest.fixture(scope="session")
def files(shared):
    return shared("documented", world.write)


def test_there_are_five_pages_with_what_was_typed_before():
    assert len(PAGES) == 5
    for name in PAGES:
        text = documented.PAGES[name].read_text()
        assert "```text\n" in text
        assert documented.block_lines(text)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", [name for name in PAGES if CODE[name]])
def test_the_python_of_a_page_runs(page, files, shared, tmp_path, monkeypatch, capsysbinary):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    reader = Reader(page, files, shared, monkeypatch, capsysbinary)
    reader.need(" ".join(["python", *re.findall(r"(?:models|runs)/[\w.-]+", CODE[page])]))
    exec(CODE[page], {})
