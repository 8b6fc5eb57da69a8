"""What messages tell people to set exists: every setting and every flag that one names."""

import ast
import dataclasses
import re
import typing
from pathlib import Path

from experiments import decoder_only, encoder_only, seq2seq
from experiments.benchmark import Settings
from experiments.encoder_settings import FinetuneRun, PretrainRun
from experiments.language_settings import LanguageRun, NgramRun
from experiments.settings import Run
from transformer_jax.cli.flags import flags_of
from transformer_jax.cli.main import COMMANDS
from transformer_jax.config import TransformerConfig

ROOT = Path(__file__).parents[1]
RUNS = (Run, LanguageRun, NgramRun, PretrainRun, FinetuneRun)
FILES = ("json", "jsonl", "bin", "pt", "safetensors", "txt", "npz", "png", "html", "py", "log")
SETTING = re.compile(r"(?<![\w/.{}-])([a-z_]+(?:\.[a-z_]+)+)\b(?![({/])")
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9_]*(?:[.-][a-z0-9_]+)*)")


def ms_settings(kind: type, prefix: str = "") -> set[str]:
    """Every setting of a dataclass, dotted, and every group of settings."""
    found, hints = set(), typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name, hint = prefix + field.name, hints[field.name]
        found.add(name)
        if dataclasses.is_dataclass(hint):
            found |= ms_settings(hint, f"{name}.")
    return found


def ms_text(node: ast.AST) -> str:
    """The text of a string, with {} where an f-string has a value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(ms_text(v) if isinstance(v, ast.Constant) else "{}" for v in node.values)
    return ""


def ms_messages() -> list[tuple[str, str]]:
    """Where each message of an error of ours stands, and what it says."""
    found = []
    for folder in ("transformer_jax", "experiments"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                    continue
                if not re.fullmatch(r"\w+Error|Stopped|say", node.func.id):
                    continue
                for part in ast.walk(node):
                    if isinstance(part, ast.JoinedStr | ast.Constant) and ms_text(part):
                        where = f"{path.relative_to(ROOT)}:{part.lineno}"
                        found.append((where, ms_text(part)))
    return found


MESSAGES = ms_messages()


def test_every_setting_that_a_message_names_exists():
    known = set().union(*map(ms_settings, RUNS), ms_settings(TransformerConfig))
    groups = {name.partition(".")[0] for name in known if "." in name}
    wrong, met = [], 0
    for where, text in MESSAGES:
        for name in SETTING.findall(text):
            if name.partition(".")[0] in groups and name.rpartition(".")[2] not in FILES:
                met += 1
                if name not in known:
                    wrong.append(f"{where} names {name}")
    assert not wrong, "\n".join(wrong)
    assert met > 60


def test_every_flag_that_a_message_names_exists():
    kinds = [*RUNS, *COMMANDS.values(), Settings]
    kinds += [seq2seq.Evaluate, decoder_only.Evaluate, encoder_only.Evaluate, encoder_only.Glue]
    known = {flag for kind in kinds for flag in flags_of(kind)} | {"help", "version", "config"}
    wrong, met = [], 0
    for where, text in MESSAGES:
        for name in FLAG.findall(text):
            met += 1
            if name.replace("_", "-") not in known:
                wrong.append(f"{where} names --{name}")
    assert not wrong, "\n".join(wrong)
    assert met > 40
