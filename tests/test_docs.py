"""Commands, flags, settings, modules, files and links of README and docs exist."""

import dataclasses
import functools
import json
import re
import typing
from pathlib import Path

import pytest

import transformer_jax as tj
from benchmarks.__main__ import OWN
from benchmarks.kernels import Settings as KernelBenchmark
from benchmarks.settings import Settings as Benchmark
from benchmarks.settings import What
from benchmarks.word_vectors import WordVectors as WordVectorBenchmark
from tests.command_lines import OUTSIDE, flags_after
from transformer_jax.cli import laboratory, train_word_vectors, training
from transformer_jax.cli.commands import with_flags
from transformer_jax.cli.flags import flags_of, positional
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.models.presets import PRESETS

ROOT = Path(__file__).parents[1]
BUILT = {"_build", "measured"}  # folders of docs that `make docs` writes
SITE = sorted(path for path in (ROOT / "docs").rglob("*.md") if not BUILT & {*path.parts})
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *SITE]
TRAINS = ("train", "pretrain", "finetune", "train-speech", "instruct", "align")
FOLDERS = ("transformer_jax/", "tests/", "docs/", "benchmarks/", "experiments/", "examples/")
COMMON = {"help", "import", "version"}
# Of the programs of others that pages name: hf download --local-dir.
OF_OTHERS = {"local-dir"}
FLAG = re.compile(r"(?<![\w=-])--([a-z][\w.-]*)(?:[= ]([^\s`|]+))?")


@functools.cache
def choices(kind, prefix=""):
    """The values that each flag of a dataclass allows; None is any."""
    found, hints = dict.fromkeys(flags_of(kind)), typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        flag, hint = field.name.replace("_", "-"), hints[field.name]
        if positional(field):
            continue
        if dataclasses.is_dataclass(hint):
            found |= {f"{flag}.{name}": values for name, values in choices(hint).items()}
            continue
        options = [hint, *typing.get_args(hint)]
        literals = [one for one in options if typing.get_origin(one) is typing.Literal]
        others = [one for one in options[1:] if one not in literals and one is not type(None)]
        if literals and not (typing.get_args(hint) and typing.get_origin(hint) is tuple):
            values = {str(value) for one in literals for value in typing.get_args(one)}
            found[flag] = values if literals[0] is hint or not others else None
    return found


def union(kinds):
    """The flags of several dataclasses together."""
    found = {}
    for kind in kinds:
        for flag, values in choices(kind).items():
            before = found.get(flag, set())
            found[flag] = None if values is None or before is None else before | values
    return found


@functools.cache
def every_flag():
    """All flags of all commands."""
    runs = {type(run) for name in training.COMMANDS
            for _, run in training.training_runs(name).values()}  # fmt: skip
    kinds = {kind for name in training.COMMANDS for kind in training.flag_kinds(name).values()}
    experiments = {*laboratory.COMMANDS.values(), *train_word_vectors.COMMANDS.values()}
    known = {*dict(with_flags()).values(), *runs, *kinds, *experiments, KernelBenchmark}
    return union(known | {WordVectorBenchmark, Benchmark}) | dict.fromkeys(OUTSIDE)


def strange_flags(text, known, where):
    """The faults of the flags in a piece of code or prose."""
    for flag, value in FLAG.findall(text):
        flag = flag.rstrip(".")
        if flag in COMMON | OF_OTHERS or flag.startswith("xla"):
            continue
        if flag not in known:
            yield f"{where} has no flag --{flag}"
            continue
        value = value.strip("`,.:)'\"")
        if value.islower() and known[flag] is not None and value not in known[flag]:
            yield f"--{flag} is not {value}: {sorted(known[flag])}"


def strange_command(code):
    """The fault of a command line."""
    if launched := re.match(r"(transformer-jax launch .*?) -- (.*)", code):
        code, inner = launched.groups()
        yield from strange_command(f"transformer-jax {inner}")
    if found := re.match(r"transformer-jax (-|[A-Z.])", code):
        return
    if found := re.match(r"transformer-jax (\S.*)", code):
        words = found[1].split()
        kinds = flags_after(words)
        if kinds is None and words != ["laboratory"]:
            yield f"no command {' '.join(words[:2])}"
        elif kinds:
            more = OUTSIDE if words[0] in TRAINS else ()
            yield from strange_flags(code, union(kinds) | dict.fromkeys(more), words[0])
        return
    found = re.match(r"python -m ([\w.]+)(?: ([\w-]+))?", code)
    if not found:
        return
    module = ROOT / found[1].replace(".", "/")
    if not (module.with_suffix(".py").exists() or (module / "__main__.py").exists()):
        yield f"no module {found[1]}"
    if found[1] == "benchmarks" and found[2] not in (*typing.get_args(What), *OWN):
        yield f"no benchmark {found[2]}"


def of_an_example(found):
    """A command that starts the kind of an example, as one that starts a kind of the package."""
    example = ROOT / "examples" / f"{found[2]}.py"
    registers = example.exists() and f'RECIPES["{found[1]}"] =' in example.read_text()
    return "train small" if registers else found[0]


def strange_code(code):
    """The fault of an inline piece of code, or of a line of a block."""
    code = re.sub(r"train ([\w-]+) --import (\w+)$", of_an_example, code)
    yield from strange_command(code)
    yield from strange_request(code)
    words = code.split()
    if len(words) >= 2 and words[0] in TRAINS and re.fullmatch(r"[a-z0-9-]+", words[1]):
        known = training.training_runs(words[0])
        if words[1] not in known and words[1] != "--config" and not words[1].startswith("-"):
            yield f"{words[0]} has no run {words[1]}"
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if (found := re.match(r"make ([\w-]+)$", code)) and found[1] not in targets:
        yield f"no make {found[1]}"
    for path in re.findall(r"[\w./*-]+", code):
        made = path.startswith("docs/_build/")
        if path.startswith(FOLDERS) and not made and not list(ROOT.glob(path.rstrip("/."))):
            yield f"no file {path}"
    yield from (f"tj has no {name}" for name in re.findall(r"\btj\.(\w+)", code)
                if name not in tj.__all__)  # fmt: skip
    yield from (f"no preset {name}" for name in re.findall(r"presets\[\"(\w+)", code)
                if name not in PRESETS)  # fmt: skip


def strange_request(line):
    """The fault of a JSON request, or of a line of preferences."""
    if line.startswith('{"prompt"'):
        fields = {field.name for field in dataclasses.fields(GenerationRequest)}
        if fields.isdisjoint(json.loads(line).keys() - {"prompt"}):
            fields |= {"chosen", "rejected", "completion", "label"}
        yield from (f"requests have no {name}" for name in json.loads(line).keys() - fields)


def heading(line):
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", line.lower()).strip().replace(" ", "-")


def anchors(text):
    """The anchors of a page: of its headings, and those that stand before a heading by name."""
    lines = text.splitlines()
    named = {found[1] for line in lines if (found := re.fullmatch(r"\(([\w-]+)\)=", line))}
    return named | {heading(line.lstrip("#")) for line in lines if line[:1] == "#"}


def strange_links(text, folder):
    """Relative links whose file or heading does not exist, or whose text names another file."""
    for said, link in re.findall(r"([^\[\]]*)\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", link):
            continue
        name, _, anchor = link.partition("#")
        path = folder / name
        if not path.exists():
            yield f"no file {link}"
        elif anchor and anchor not in anchors(path.read_text() if name else text):
            yield f"no heading {link}"
        elif re.fullmatch(r"\w+\.py", said) and said != path.name:
            yield f"{said} is called {path.name}"


def faults(text, folder=ROOT):
    """All that a page refers to and that does not exist."""
    found = list(strange_links(text, folder))
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    blocks = [line for part in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
              for line in part.splitlines()]  # fmt: skip
    blocks += [line[4:] for line in prose.splitlines() if line.startswith("    ")]
    for code in [*blocks, *re.findall(r"`([^`\n]+)`", prose)]:
        found += strange_code(code.strip())
    for line in prose.splitlines():
        found += strange_flags(line, every_flag(), "no command")
        # The flags in a row of a table are those of its command.
        if first := re.match(r"\| `(transformer-jax [\w-]+)[^`]*` \|(.*)", line):
            found += strange_command(" ".join([first[1], *re.findall(r"--[^`]*", first[2])]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_pages_refer_to_exists(page):
    assert faults(page.read_text(), page.parent) == []


def listed(page):
    """The pages in the tables of contents of a page; a pattern stands for those that it matches."""
    for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.splitlines():
            if line and not line.startswith(":"):
                name = re.sub(r"^.*<(.*)>$", r"\1", line)  # after a title of its own
                yield from page.parent.glob(f"{name}.md")


def test_every_page_is_once_in_the_tables_of_contents():
    pages = [child for page in SITE for child in listed(page) if not BUILT & {*child.parts}]
    assert sorted([ROOT / "docs" / "index.md", *pages]) == SITE


def test_pictures_of_docs_are_small_and_shown_on_a_page():
    texts = [page.read_text() for page in PAGES]
    for picture in (ROOT / "docs").glob("*.png"):
        assert any(re.search(rf"!\[.+\]\((docs/)?{picture.name}\)", text) for text in texts)
        assert picture.stat().st_size < 100_000


@pytest.mark.parametrize(
    "text",
    [
        "`--no-such-flag`",
        "`--tokenizer.kind letters`",
        "`--training.no-such-setting 3`",
        "    transformer-jax translte RUN",
        "    transformer-jax train smal",
        "    transformer-jax launch --rehears 8 -- train small",
        "    transformer-jax launch --rehearse 8 -- train smal",
        "    transformer-jax train small --data.no-such-setting FILE",
        "    transformer-jax evaluate RUN --no-such-flag F",
        "| `transformer-jax evaluate RUN` | `--template X` |",
        "    transformer-jax translate RUN --freeze 3",
        "| `transformer-jax describe RUN` | `--template X` |",
        "    python -m experiments.seq2seqs train small",
        "    transformer-jax trian small",
        "    transformer-jax train small --data.text FILE",
        "    transformer-jax evaluate RUN --texts FILE",
        "    python -m benchmarks tran",
        "    transformer-jax laboratory recal",
        "    transformer-jax laboratory recall --distance 8",
        "    transformer-jax word-vectors trian TEXT --output D/ --training.epochs 2",
        "    transformer-jax word-vectors train TEXT --training.no-such-setting 3",
        "`pretrain large`",
        "`make tset`",
        "`transformer_jax/nowhere.py`",
        "[a](nowhere.md)",
        "[a](README.md#nowhere)",
        "```python\ntj.lode()\n```",
        '`tj.presets["bert_huge"]`',
        '    {"prompt": "a", "no_such_setting": 1}',
    ],
)
def test_what_does_not_exist_is_found(text):
    assert len(faults(text)) > 0


def test_what_exists_is_not_found():
    text = "`train phrasebook`, `--data.text`, [a](README.md), [b](docs/lectures.md)"
    assert faults(text) == []
