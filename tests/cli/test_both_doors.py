"""A predictor and its command are one: on messy texts they give the same, or refuse the same."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transformer_jax as tj
from tests.cli.conftest import Command
from tests.doors.messy import TEXTS
from tests.doors.uses import Use
from transformer_jax.core.errors import UserError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.* (the length limit|does not know|truncated)"),
]

FEW = {"num_beams": 2, "max_len_a": 0, "max_len_b": 6}
FEW_FLAGS = ("--num-beams", "2", "--max-len-a", "0", "--max-len-b", "6")
SAMPLED = {"do_sample": True, "num_beams": 1, "seed": 3, "max_len_a": 0, "max_len_b": 6}
SAMPLED_FLAGS = ("--sample", "--seed", "3", "--max-len-a", "0", "--max-len-b", "6")
GREEDY = {"max_new_tokens": 4, "temperature": 0}
GREEDY_FLAGS = ("--max-new-tokens", "4", "--temperature", "0", "--tsv")


@dataclasses.dataclass(frozen=True)
class Doors:
    """Both doors to a use.

    Attributes:
        layout: Name of its model.
        command: ``command(folder, file, other)`` returns the arguments; the files have the texts,
            and the texts in reverse order. None for a file is standard input.
        shown: ``shown(model, texts)`` returns what the command prints of each text, by the
            predictor.
        ends: Numbers of lines of the output before and after those of texts.
        cells: The first and the last cell of a line that are compared.
        how: Arguments of ``tj.load``.
    """

    layout: str
    command: Callable[[Path, Path, Path], Sequence[str | Path]]
    shown: Callable[[Any, list[str]], list[str]]
    ends: tuple[int, int] = 0, 1
    cells: tuple[int, int | None] = 0, None
    how: dict[str, str] = dataclasses.field(default_factory=dict)


def _named(name: str, *flags: str) -> Callable[[Path, Path, Path], Sequence[str | Path]]:
    return lambda folder, file, other: [name, folder, *flags]


def _translated(**how: Any) -> Callable[[Any, list[str]], list[str]]:
    return lambda model, texts: [str(one) for one in model(texts, **how)]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def _generated(model: Any, texts: list[str]) -> list[str]:
    return [_escaped(str(one)) for one in model.generate(texts, **GREEDY)]


def _scored(model: Any, texts: list[str]) -> list[str]:
    return [f"{one.log_prob:.4f}\t{len(one.tokens)}" for one in model.score(texts)]


def _tagged(model: Any, texts: list[str]) -> list[str]:
    blank = str.maketrans("\t\n\r", "   ")
    rows = (" ".join(f"{one.word}/{one.tag}" for one in words) for words in model(texts))
    return [row.translate(blank) for row in rows]


USES = {
    "translate": Doors("bart", _named("translate", *FEW_FLAGS), _translated(**FEW)),
    "translate by samples": Doors(
        "bart", _named("translate", *SAMPLED_FLAGS), _translated(**SAMPLED)
    ),
    "translate with CTranslate2": Doors(
        "bart",
        _named("translate", *FEW_FLAGS, "--engine", "ctranslate2"),
        _translated(**FEW),
        how={"engine": "ctranslate2"},
    ),
    "generate": Doors("gpt2", _named("generate", *GREEDY_FLAGS), _generated, (1, 1), (3, None)),
    "generate with CTranslate2": Doors(
        "gpt2",
        _named("generate", *GREEDY_FLAGS, "--engine", "ctranslate2"),
        _generated,
        (1, 1),
        (3, None),
        {"engine": "ctranslate2"},
    ),
    "score texts": Doors(
        "gpt2",
        lambda folder, file, other: ["score", folder, file],
        _scored,
        (1, 2),
        (1, 3),
    ),
    "score translations": Doors(
        "bart",
        lambda folder, file, other: ["score", folder, "--source", file, "--target", other],
        lambda model, texts: [f"{one:.4f}" for one in model.score(texts, texts[::-1])],
        (1, 2),
        (1, 2),
    ),
    "classify": Doors(
        "bert_cls",
        _named("classify"),
        lambda model, texts: [f"{one.label}\t{one.probability:.4f}" for one in model(texts)],
    ),
    "reward": Doors(
        "qwen3_number",
        _named("classify"),
        lambda model, texts: [f"{one:.4f}" for one in np.asarray(model(texts)).ravel().tolist()],
    ),
    "tag": Doors("bert_tag", _named("tag"), _tagged),
}


@pytest.mark.parametrize("name", USES)
def test_a_predictor_and_its_command_agree_on_messy_texts(
    name: str, tmp_path: Path, run_command: Command
) -> None:
    doors = USES[name]
    folder = Use(doors.layout, str).write(tmp_path / "model")
    model = tj.load(folder, **doors.how)
    file, other = tmp_path / "texts", tmp_path / "reversed"

    def by_command(texts: list[str]) -> tuple[int, list[str], str]:
        given = "".join(f"{text}\n" for text in texts).encode()
        file.write_bytes(given)
        other.write_bytes("".join(f"{text}\n" for text in texts[::-1]).encode())
        code, lines, err = run_command(*doors.command(folder, file, other), text=given)
        before, after = doors.ends
        cells = (line.split("\t")[slice(*doors.cells)] for line in lines[before:-after])
        rows = list(map("\t".join, cells))
        return code, rows, err

    refused = {}
    for text in TEXTS:
        try:
            doors.shown(model, [text])
        except UserError as error:
            refused[text] = str(error).split(": ", 1)[-1]
    accepted = [text for text in TEXTS if text not in refused]
    code, rows, err = by_command(accepted)
    assert code == 0, err
    for text, row, said in zip(accepted, rows, doors.shown(model, accepted), strict=True):
        assert row == said, repr(text)
    for text, why in refused.items():
        code, _, err = by_command([text])
        assert code in (2, 3), repr(text)
        assert err.strip().endswith(why), repr(text)
