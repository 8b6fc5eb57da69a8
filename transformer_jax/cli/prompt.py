"""``transformer-jax prompt``: few-shot evaluation of a language model."""

import dataclasses
import json
import re
import string
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from transformer_jax.cli.output import note, note_unknown
from transformer_jax.cli.support.run_command import CheckpointCommand
from transformer_jax.core.config_fields import Count, Range, Seed
from transformer_jax.core.errors import ConfigError, DataError, plural, were
from transformer_jax.evaluation.few_shot import (
    Demonstrations,
    Example,
    Normalize,
    Template,
    accuracy,
)

if TYPE_CHECKING:
    from transformer_jax.data.bad_rows import BadRows
    from transformer_jax.decoding.requests import LanguageModel
    from transformer_jax.evaluation.answers import FewShotResult

__all__ = ["Prompt", "read_examples", "unescaped"]

HEADER = ("  k", "accuracy", "exact match", "token F1", "queries")
LIMIT = 300  # queries of a built-in task


@dataclasses.dataclass(frozen=True)
class Prompt(CheckpointCommand):
    """Few-shot evaluation: accuracy with 0, 1, 2 ... demonstrations in the prompt."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of a language model."""
    examples: Path | None = None
    """File of demonstrations: .tsv or .csv with a header line, or .jsonl, with the fields of the
    template."""
    queries: Path | None = None
    """File of queries with reference answers, in the same format."""
    task: Literal["in-context"] | None = None
    """Built-in task instead of files; its rules are not in the training data."""
    template: str = "{input}>"
    """Template of a query, with fields in braces; \\n is a line end, \\t a tab, \\\\ a
    backslash."""
    answer_template: str = "{output}\\n"
    """Template of an answer, with one field; the text after the field is the stop string."""
    header: str = ""
    """Text before all demonstrations."""
    num_shots: tuple[Annotated[int, Range(0, 1_000_000)], ...] = (0, 1, 2, 4, 8)
    """Numbers of demonstrations to evaluate with."""
    match_field: str | None = None
    """Field that demonstrations share with their query; the rule, for the built-in task."""
    choices: tuple[str, ...] = ()
    """Possible answers, ranked by probability; without them, answers are generated greedily."""
    normalize: Normalize = "none"
    """Normalize the log-probability of a choice by its length in tokens or bytes."""
    max_new_tokens: Annotated[int, Range(1, 1_000_000)] = 32
    """Maximum number of new tokens per answer."""
    seed: Seed = 0
    """Random seed for the choice of demonstrations and the rules of the task."""
    limit: Count | None = None
    """Maximum number of queries; None is all in a file, or 300 for the built-in task."""
    json: bool = False
    """Write one JSON object per number of demonstrations."""
    show: bool = False
    """Print a prompt with the most demonstrations, and its answer, on standard error."""

    def __call__(self) -> int:
        """Prints a row per number of demonstrations, as soon as it is evaluated."""
        self.check()
        template = self.written()
        pool, queries, match_field = self.asked(template)
        from transformer_jax.data.coverage import unknown_texts
        from transformer_jax.inference.pretrained import Pretrained, read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        prepare = facts.preparation.text
        template = template.prepared(prepare)
        prepared = lambda example: {name: prepare(text) for name, text in example.items()}
        pool, queries = list(map(prepared, pool)), list(map(prepared, queries))
        choices = list(map(prepare, self.choices))
        demonstrations = Demonstrations(pool, template, match_field, self.seed)
        # Read before the model is loaded, so that errors come early.
        asked = {k: demonstrations.prompts(queries, k) for k in self.num_shots}

        # Prompts are joined from prepared parts.
        model = Pretrained.load(facts, "decoder", "ngram").language(prepare=str)
        answers: dict[str, Any] = {
            "choices": choices or None,
            "normalize": self.normalize,
            "max_new_tokens": self.max_new_tokens,
        }
        if self.show:
            self.shown(model, template, asked[max(self.num_shots)][0], queries[0])
        if not self.json:
            _write("  ".join(HEADER))
        for k in self.num_shots:
            cut = _cut(model, asked[k])
            [row] = accuracy(model, demonstrations, queries, shots=(k,), **answers)
            _write(self.line(row, cut))
            if cut:
                asked_for = f"{plural(row.count, 'prompt')} of {plural(k, 'example')}"
                note(
                    f"{cut} of {asked_for} {were(cut)} longer than the context: the first "
                    f"examples were omitted"
                )
        unknown = unknown_texts(asked[max(self.num_shots)], model.tokenizer)
        note_unknown({"unknown": unknown}, "prompt")
        return 0

    def check(self) -> None:
        """Refuses missing and conflicting flags.

        Raises:
            ConfigError: A flag is missing, or two exclude each other.
        """
        files = {"--examples": self.examples, "--queries": self.queries}
        given = [flag for flag, path in files.items() if path is not None]
        if self.task is not None and given:
            raise ConfigError(f"--task and {given[0]} exclude each other: give one of them")
        if self.task is None and len(given) < 2:
            missing = " and ".join(flag for flag in files if flag not in given)
            raise ConfigError(f"{missing} missing: give two files, or --task in-context")
        if not self.num_shots:
            raise ConfigError("--num-shots needs numbers from 0, such as 0 1 2 4 8")
        if any(not choice.strip() for choice in self.choices):
            raise ConfigError("--choices has an empty answer")
        if self.normalize != "none" and not self.choices:
            raise ConfigError("--normalize is for --choices: give the possible answers")

    def written(self) -> Template:
        """Returns the template of the demonstrations.

        Raises:
            ConfigError: A template is invalid, or the answer template does not have exactly one
                field.
        """
        query, answer = unescaped(self.template), unescaped(self.answer_template)
        fields = _fields(answer, "--answer-template")
        _fields(query, "--template")
        if len(fields) != 1:
            raise ConfigError(
                f"--answer-template {self.answer_template!r}: has {plural(len(fields), 'field')}, "
                f"needs exactly one, such as {{output}}"
            )
        return Template(query + answer, answer=fields[0], header=unescaped(self.header))

    def asked(self, template: Template) -> "tuple[list[Example], list[Example], str | None]":
        """Returns demonstrations, queries, and the field in which they must agree.

        Raises:
            ConfigError: A file has an unknown format or too few demonstrations.
            DataError: A file cannot be read, lacks a field or is empty, or an answer is not a
                choice.
        """
        if self.task is not None:
            from transformer_jax.data.corpora.in_context import examples

            pool, queries = examples("test", self.limit or LIMIT, self.seed)
            for field in template.fields:
                if field not in queries[0]:
                    raise ConfigError(
                        f"--task {self.task}: has no field {field!r}: its fields are "
                        f"{', '.join(queries[0])}"
                    )
            shown: list[Example] = [*pool]
            return shown, self.possible(enumerate(queries, 1), template, "query "), "rule"
        assert self.examples is not None
        assert self.queries is not None
        needed = (*template.fields, *([self.match_field] if self.match_field else []))
        shown = [row for _, row in read_examples(self.examples, needed, "--examples")]
        asked = list(read_examples(self.queries, needed, "--queries"))[: self.limit]
        if max(self.num_shots) > len(shown):
            raise ConfigError(
                f"--num-shots {max(self.num_shots)}: {self.examples} has "
                f"{plural(len(shown), 'example')}: use fewer"
            )
        return shown, self.possible(asked, template, f"{self.queries}:"), self.match_field

    def possible(
        self, queries: Iterable[tuple[int, Example]], template: Template, at: str
    ) -> list[Example]:
        """Returns the queries without line numbers; each answer must be one of the choices.

        Raises:
            DataError: Reference answers are not among the choices; up to twenty are listed.
        """
        from transformer_jax.data.bad_rows import BadRows

        found, bad = [], BadRows("--queries", what="answer")
        choices = {choice.strip() for choice in self.choices}
        for number, query in queries:
            with bad:
                wanted = query[template.answer].strip()
                if choices and wanted not in choices:
                    raise DataError(
                        f"{at}{number}: the answer {wanted!r} is not among --choices "
                        f"{', '.join(self.choices)}"
                    )
                found.append(query)
        bad.check(len(found))
        return found

    def line(self, row: "FewShotResult", cut: int) -> str:
        """Returns the line of scores for a number of demonstrations."""
        if self.json:
            return json.dumps({**dataclasses.asdict(row), "cut": cut})
        values = (f"{row.accuracy:.3f}", f"{row.exact_match:.3f}", f"{row.f1:.3f}")
        cells = zip((str(row.k), *values, str(row.count)), HEADER, strict=True)
        return "  ".join(cell.rjust(len(name)) for cell, name in cells)

    def shown(
        self, model: "LanguageModel", template: Template, prompt: str, query: Example
    ) -> None:
        """Prints one prompt and the model's answer on standard error."""
        from transformer_jax.evaluation.few_shot import answer, rank_choices

        if self.choices:
            led = [template.lead + choice for choice in self.choices]
            given = self.choices[rank_choices(model, [prompt], led, self.normalize)[0]]
        else:
            [given] = answer(
                model, [prompt], stop=template.stop, max_new_tokens=self.max_new_tokens
            )
        print(f"{prompt}{template.lead}[{given}]", file=sys.stderr)
        print(f"wanted: {query[template.answer]}\n", file=sys.stderr, flush=True)


def unescaped(text: str) -> str:
    r"""Replaces ``\n``, ``\r``, ``\t`` and ``\\`` in a text with the characters that they mean.

    Example:
        >>> unescaped(r"Q: {question}\nA:"), unescaped(r"C:\\new \d")
        ('Q: {question}\nA:', 'C:\\new \\d')
    """
    meant = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
    return re.sub(r"\\([nrt\\])", lambda found: meant[found[1]], text)


def read_examples(
    path: Path, needed: Sequence[str], flag: str
) -> "Iterator[tuple[int, dict[str, str]]]":
    """Yields the rows of a file as line number and texts by field; empty lines are skipped.

    Args:
        path: ``.tsv`` or ``.csv`` with a header line, or ``.jsonl``; ``.gz`` is decompressed.
        needed: Fields that each row must have.
        flag: The flag of the file, for messages.

    Raises:
        ConfigError: The extension is unknown.
        DataError: The file cannot be read or is empty, or rows are malformed or lack a field; up to
            twenty are listed.
    """
    from transformer_jax.data.bad_rows import BadRows

    suffix = Path(str(path).removesuffix(".gz")).suffix.lower()
    if suffix not in (".tsv", ".csv", ".jsonl"):
        raise ConfigError(f"{flag} {path}: the name must end in .tsv, .csv or .jsonl")
    bad, count = BadRows(str(path)), 0
    for number, row in (_jsonl if suffix == ".jsonl" else _table)(path, flag, needed, bad):
        count += 1
        yield number, row
    bad.check(count)
    if not count:
        raise DataError(f"{flag} {path}: no rows: it is empty")


def _table(
    path: Path, flag: str, needed: Sequence[str], bad: "BadRows"
) -> Iterator[tuple[int, dict[str, str]]]:
    from transformer_jax.data.tables import cell_rows, table_format

    every = cell_rows(path, "csv" if table_format(path) == "csv" else "tsv", flag, bad)
    rows = ((number, cells) for number, cells in every if cells)
    first, names = next(rows, (1, list[str]()))
    if len({*names}) < len(names):
        raise DataError(f"{path}:{first}: duplicate field names: {', '.join(names)}")
    for field in needed if names else ():
        if field not in names:
            raise DataError(
                f"{path}:{first}: no field {field!r}: the header names {', '.join(names)}"
            )
    for number, cells in rows:
        with bad:
            if len(cells) != len(names):
                found = plural(len(cells), "column")
                raise DataError(f"{path}:{number}: {found}, but the header has {len(names)}")
        if len(cells) == len(names):
            yield number, dict(zip(names, cells, strict=True))


def _jsonl(
    path: Path, flag: str, needed: Sequence[str], bad: "BadRows"
) -> Iterator[tuple[int, dict[str, str]]]:
    from transformer_jax.data.tables import json_rows

    for number, row in json_rows(path, flag, bad):
        with bad:
            yield number, {name: row.text(name, "the template needs it") for name in needed}


def _fields(text: str, flag: str) -> list[str]:
    """Returns the names of the fields of a template."""
    try:
        return [name for _, name, *_ in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise ConfigError(
            f"{flag} {text!r}: {error}; write fields {{name}}, braces {{{{ and }}}}"
        ) from None


def _cut(model: Any, made: Sequence[str]) -> int:
    """Returns the number of prompts longer than the context; 0 for an n-gram model."""
    context = getattr(model, "context", None)
    if context is None:
        return 0
    return sum(1 + len(ids) > context for ids in model.tokenizer.encode_batch(list(made)))


def _write(line: str) -> None:
    sys.stdout.buffer.write(line.encode() + b"\n")
    sys.stdout.buffer.flush()
