"""Bad rows come at once: an error lists up to twenty, or they are skipped and counted in a line."""

from pathlib import Path

import pytest

from tests.doors.readers import write_picture
from tests.doors.rows import NO_ROWS, ROWS, Rows, lines, squad
from transformer_jax.cli.prompt import read_examples
from transformer_jax.cli.support.input_lines import requests_of
from transformer_jax.cli.support.sampling import read_prompts
from transformer_jax.core.errors import DataError
from transformer_jax.data.images.data import ImageReadOptions, open_table
from transformer_jax.data.labeled import LabeledOptions, read_labeled
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.evaluation.system_outputs import read_outputs
from transformer_jax.word_vectors.questions import read_analogies, read_similarities

LAW = 9
KINDS = ("reader",)


class _Questions(Rows):
    """Questions, which are rows within one JSON object."""

    def write(self, folder, kinds):
        rows = {"g": ("Which?", "one"), "b": ("", "one")}
        path = folder / self.file
        path.write_text(squad([rows[kind] for kind in kinds]))
        return str(path)


def _read_questions(path, policy):
    return read_labeled(path, "qa", LabeledOptions(bad_rows=policy)).questions


class _Classes(Rows):
    """Pictures in class folders, of which bad ones are no pictures."""

    def write(self, folder, kinds):
        for old in folder.glob(f"{self.file}/cat/*"):
            old.unlink()
        for number, kind in enumerate(kinds):
            path = folder / self.file / "cat" / f"{number}.png"
            write_picture(path)
            if kind == "b":
                path.write_bytes(b"no picture")
        return str(folder / self.file)


def _read_classes(path, policy):
    return open_table(path, ImageReadOptions(bad_rows=policy), "").texts


def _listed(name, read, good, bad):
    """Rows of which none can be skipped: each has its part in a score, or its line of output."""
    return Rows(name, lambda path, _: list(read(Path(path))), good, bad, "", "", skips=False)


def _read_numbers(path):
    return read_outputs(path, [path], "regress").texts


_USUAL = GenerationConfig(max_new_tokens=4)
_PROMPT, _NO_PROMPT = lines({"prompt": "one"}), lines({"prompt": 1})
CASES = ROWS | {
    "demonstrations": _listed(
        "a.jsonl", lambda path: read_examples(path, ["prompt"], "--queries"), _PROMPT, _NO_PROMPT
    ),
    "prompts in lines or JSONL": _listed("a.jsonl", read_prompts, _PROMPT, _NO_PROMPT),
    "requests": _listed(
        "a.jsonl", lambda path: requests_of(path, _USUAL, lambda _: None), _PROMPT, _NO_PROMPT
    ),
    "outputs with references": _listed("a.txt", _read_numbers, lines("1"), lines("one")),
    "analogy questions": _listed("a.txt", read_analogies, lines("a b c d"), lines("a b")),
    "similar words": _listed("a.txt", read_similarities, lines("a b 1.5"), lines("a b")),
    "questions": _Questions("a.json", _read_questions, "", "", "", ""),
    "pictures in class folders": _Classes("pets", _read_classes, "", "", "", ""),
}
EXEMPT = NO_ROWS | {
    "pictures in arrays": "one array, which is damaged as a whole",
}
OFFER = "with --data.read.bad-rows skip"
SKIPPED = [name for name, case in CASES.items() if case.skips]


@pytest.mark.parametrize("name", CASES)
def test_all_bad_rows_are_in_one_error_with_a_way_to_leave_them_out(name, tmp_path):
    case = CASES[name]
    with pytest.raises(DataError) as refused:
        case.read(case.write(tmp_path, "gbgb"), "refuse")
    head, *rows = str(refused.value).splitlines()
    assert head.startswith(f"{tmp_path / case.file}: 2 bad ")
    assert head.endswith(OFFER if case.skips else "correct them")
    places = [row.removeprefix(f"  {tmp_path / case.file}:").lstrip().split(":")[0] for row in rows]
    assert len({*places}) == 2


@pytest.mark.parametrize("name", SKIPPED)
def test_skipped_rows_are_counted_in_one_line_and_no_other_row_is_lost(name, tmp_path, capfd):
    case = CASES[name]
    good = case.read(case.write(tmp_path, "gg"), "refuse")
    capfd.readouterr()
    assert case.read(case.write(tmp_path, "gbgb"), "skip") == good
    said = capfd.readouterr().err
    assert said.count(": 2 bad ") == (not case.summary)


@pytest.mark.parametrize("name", SKIPPED)
def test_a_file_without_a_good_row_is_refused_though_rows_are_skipped(name, tmp_path):
    case = CASES[name]
    with pytest.raises(DataError, match="all 2 bad"):
        case.read(case.write(tmp_path, "bb"), "skip")


@pytest.mark.parametrize("name", CASES)
def test_twenty_rows_are_listed_and_the_others_counted(name, tmp_path):
    case = CASES[name]
    with pytest.raises(DataError) as refused:
        case.read(case.write(tmp_path, "g" + 25 * "b"), "refuse")
    head, *rows = str(refused.value).splitlines()
    assert ": 25 bad " in head
    assert len(rows) == 21
    assert rows[-1].strip() == "and 5 more"
