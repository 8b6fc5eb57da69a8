"""Quotations of pages, compared with what their commands printed and wrote.

Shortened commands print other figures, so that words, names of rows and of columns are compared,
and formulas and tolerances, which no training changes.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.docs.documented import PAGES
from tests.docs.shell import Done

Outputs = Mapping[str, Done]


def output_of(start: str, outputs: Outputs) -> str:
    """The standard output and error of the commands that begin so."""
    found = [done for line, done in outputs.items() if line.startswith(f"transformer-jax {start}")]
    assert found, f"no command of the page begins with {start}"
    return "\n".join(done.out + done.err for done in found)


def cells(line: str) -> list[str]:
    """The cells of a row: those of Markdown, or what two blanks divide."""
    if line.startswith("|"):
        return [cell.strip().replace("`", "") for cell in line.strip("| \n").split("|")]
    return re.split(r" {2,}", line.strip())


def table(text: str, head: str) -> list[list[str]]:
    """The table of a page that begins with a cell, its head first."""
    rows = text[text.index(f"| {head} |") :].splitlines()
    end = next((i for i, row in enumerate(rows) if not row.startswith("|")), len(rows))
    return [cells(row) for row in rows[:end] if not row.startswith("|--")]


def has_words(words: list[str], printed: str) -> None:
    """Every word was printed, whatever its case, blanks and hyphens."""
    letters = lambda text: re.sub(r"[^a-z0-9]", "", text.lower())
    missing = [word for word in words if letters(word) not in letters(printed)]
    assert not missing, f"not printed: {missing}"


def sentence(page: str, pattern: str) -> list[str]:
    """The items of a list in a sentence of a page."""
    match = re.search(pattern, PAGES[page].read_text())
    assert match, f"{page}: no sentence {pattern}"
    items = re.split(r", | and ", match[1].replace("`", "").replace("*", ""))
    return [item.strip() for item in items if item.strip()]


def has_columns(page: str, start: str) -> Callable[[Outputs], None]:
    """The columns that a table of the page explains are those of a command's table."""

    def check(outputs: Outputs) -> None:
        names = [name for row in table(PAGES[page].read_text(), "column")[1:]
                 for name in row[0].split(", ")]  # fmt: skip
        has_words(names, output_of(start, outputs))

    return check


def has_items(page: str, pattern: str, start: str) -> Callable[[Outputs], None]:
    """A command prints all that a sentence lists."""
    return lambda outputs: has_words(sentence(page, pattern), output_of(start, outputs))


def check_doctor(outputs: Outputs) -> None:
    """Laws and tolerances, and the head of their table."""
    printed = {tuple(cells(line)[:1] + cells(line)[3:4])
               for line in output_of("doctor runs/pt-en", outputs).splitlines()}  # fmt: skip
    block = PAGES["doctor"].read_text().split("    law  ")[1].split("\n\n")[0]
    quoted = [cells(line) for line in f"law  {block}".splitlines()]
    assert len(quoted) > 3
    assert {(row[0], row[3]) for row in quoted} <= printed


def check_complexity(outputs: Outputs) -> None:
    """The operations and path lengths of each layer, exactly."""
    first = output_of("complexity", outputs).split("\n\n")[0].splitlines()
    printed = {row[0]: row for row in map(cells, first)}
    for name, operations, path, *_ in table(PAGES["complexity"].read_text(), "layer"):
        assert printed[name][1] == operations, name
        assert path.startswith(printed[name][-1]), name


def check_tokenizers(outputs: Outputs) -> None:
    """Head and rows of the comparison of tokenizers."""
    quoted = table(PAGES["data"].read_text(), "tokenizer")
    printed = [cells(line) for line in output_of("compare-tokenizers", outputs).splitlines()]
    assert quoted[0] == printed[0]
    assert [row[0] for row in quoted] == [row[0] for row in printed[: len(quoted)]]


def check_laboratory(outputs: Outputs) -> None:
    """The rows of tables are those that the commands print."""
    text = PAGES["laboratory"].read_text()
    for start, head in (
        ("laboratory recall", "accuracy at distance"),
        ("laboratory rewards", "mean of the last 40 steps, range over seeds"),
    ):
        printed = [cells(line)[0] for line in output_of(start, outputs).splitlines()]
        names = [row[0].lower() for row in table(text, head)[1:]]
        assert printed[1 : len(names) + 1] == names


def check_start(outputs: Outputs) -> None:
    """One line is printed for one line; how it reads depends on the training."""
    [[line, done]] = [item for item in outputs.items() if item[0].startswith("echo")]
    quoted = re.search(r"prints\n\n((?: {4}.*\n)+)", PAGES["start"].read_text())
    assert quoted
    assert len(done.out.splitlines()) == len(quoted[1].splitlines()), line
    for name in re.findall(r"`([\w/]+\.(?:html|png))`", PAGES["start"].read_text()):
        assert Path(name).exists(), name


def check_run_directory(outputs: Outputs) -> None:
    """The files of a run."""
    del outputs
    folder, *names = re.findall(r"^ {4}(runs/\S+/ .*)$", PAGES["runs"].read_text(), re.M)[0].split()
    assert [name for name in names if not Path(folder, name).exists()] == []


def check_rewards(outputs: Outputs) -> None:
    """The metrics of learning from samples."""
    del outputs
    lines = Path("runs/grpo/metrics.jsonl").read_text().splitlines()
    known = {name for line in lines for name in json.loads(line)}
    named = sentence("preferences", r"The metrics are (.*?)\. Validation")
    named += sentence("preferences", r"from held-out prompts and measures (.*?)\.")
    assert set(named) <= known


CHECKS: Mapping[str, list[Callable[[Outputs], None]]] = {
    "complexity": [check_complexity, has_columns("complexity", "complexity")],
    "data": [check_tokenizers],
    "doctor": [check_doctor],
    "laboratory": [check_laboratory],
    "languages": [has_columns("languages", "evaluate runs/babel")],
    "preferences": [
        check_rewards,
        has_items("preferences", r"- pairs or labels: (.*)", "evaluate runs/dpo"),
    ],
    "runs": [check_run_directory],
    "start": [check_start],
    "summarization": [
        has_items("summarization", r"A run ends with (ROUGE-1.*?): the mean", "finetune summarize"),
        lambda outputs: has_words(
            [row[0] for row in table(PAGES["summarization"].read_text(), "row")[1:]],
            output_of("finetune summarize --init-from runs/mine", outputs),
        ),
        lambda outputs: has_words(
            re.findall(r"\*\*(.*?)\*\*", PAGES["summarization"].read_text()),
            output_of("diversity", outputs),
        ),
    ],
    "vision": [has_items("vision", r"`evaluate` prints (.*?)\.", "evaluate runs/vit")],
}
