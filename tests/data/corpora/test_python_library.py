"""The built-in text of Python's reference and library: the same each time, and nothing twice."""

import email
from pathlib import Path

import pytest

from transformer_jax.data.corpora import python_docs, python_library


@pytest.fixture(scope="module")
def parts():
    return {split: python_library.generate(split) for split in ("train", "valid", "test")}


def paragraphs(documents):
    return {" ".join(p.split()) for text in documents for p in text.split("\n\n") if p.strip()}


@pytest.mark.slow
def test_no_paragraph_of_the_tests_was_trained_on(parts):
    train, *others = (paragraphs(parts[split]) for split in ("train", "valid", "test"))
    for other in others:
        assert not train & other


@pytest.mark.slow
def test_it_is_several_times_the_reference_and_splits_in_tenths(parts):
    sizes = {split: sum(map(len, documents)) for split, documents in parts.items()}
    assert sizes["train"] > 2 * sum(map(len, python_docs.generate("train")))
    assert 0.7 < sizes["train"] / sum(sizes.values()) < 0.9
    assert min(map(len, parts["train"])) > 0


@pytest.mark.slow
def test_it_is_the_same_each_time(parts):
    assert python_library.generate("valid") == parts["valid"]


@pytest.fixture
def of_folder(monkeypatch):
    """The text of another folder than that of the standard library."""

    def read(folder):
        monkeypatch.setattr(python_library.sysconfig, "get_path", lambda name: str(folder))
        python_library._modules.cache_clear()

    yield read
    python_library._modules.cache_clear()


def test_a_package_gives_the_same_text_each_time(of_folder):
    found = []
    for _ in range(2):
        of_folder(Path(email.__file__).parent)
        found.append([python_library.generate(split) for split in ("train", "valid", "test")])
    assert found[0] == found[1]
    assert found[0][0]
    train, *others = map(paragraphs, found[0])
    assert not any(train & other for other in others)


def test_a_module_that_cannot_be_parsed_is_left_out(tmp_path, of_folder):
    (tmp_path / "good.py").write_text(f'"""{"A word of some use. " * 30}"""\n')
    (tmp_path / "bad.py").write_text("def (:\n")
    (tmp_path / "short.py").write_text('"""Short."""\n')
    of_folder(tmp_path)
    assert list(python_library._modules()) == ["good.py"]
