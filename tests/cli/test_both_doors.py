"""A predictor and its command are one: on messy input they give the same, or refuse the same."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import transformer_jax as tj
from tests.cli.conftest import Command
from tests.data.speech.synthetic import WIDTH, write_speech
from tests.data.speech.test_audio import pcm
from tests.data.speech.test_speech_runs import ALONE
from tests.data.speech.test_speech_runs import train as train_speech
from tests.doors.messy import TEXTS
from tests.doors.uses import Use
from transformer_jax.cli.main import main
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
        write: Writes its model to a folder, and returns it.
        command: ``command(folder, file, other)`` returns the arguments; the files have the texts,
            and the texts in reverse order. None for a file is standard input.
        shown: ``shown(model, texts)`` returns what the command prints of each text, by the
            predictor.
        ends: Numbers of lines of the output before and after those of texts.
        cells: The first and the last cell of a line that are compared.
        how: Arguments of ``tj.load``.
    """

    write: Callable[[Path], Path]
    command: Callable[[Path, Path, Path], Sequence[str | Path]]
    shown: Callable[[Any, list[str]], list[str]]
    ends: tuple[int, int] = 0, 1
    cells: tuple[int, int | None] = 0, None
    how: dict[str, str] = dataclasses.field(default_factory=dict)


def _folder(layout: str) -> Callable[[Path], Path]:
    return Use(layout, str).write


def _summarizer(folder: Path) -> Path:
    """Trains a summarizer of a published translator, with a prefix that both doors have to add."""
    pytest.importorskip("rouge_score", reason="needs rouge-score")
    start, data = _folder("bart")(folder.with_name("start")), folder.with_name("data.jsonl")
    data.write_text('{"source": "un café à la carte", "target": "un café"}\n' * 8)
    flags = ["--init-from", start, "--data.train", data, "--training.steps", "1", *ALONE]
    flags += ["--training.num-buckets", "1", "--data.read.max-length", "40"]
    prefix = ["--data.read.source-prefix", "abc ", "--output", folder]
    assert main(["finetune", "summarize", *map(str, [*flags, *prefix])]) == 0
    return folder


def _transcriber(folder: Path) -> Path:
    data = folder.with_name("speech")
    for seed, part in enumerate(("train", "valid", "test")):
        write_speech(data, part, 12, seed)
    assert train_speech(data, folder) == 0
    return folder


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
    "translate": Doors(_folder("bart"), _named("translate", *FEW_FLAGS), _translated(**FEW)),
    "summarize": Doors(_summarizer, _named("translate", *FEW_FLAGS), _translated(**FEW)),
    "translate by samples": Doors(
        _folder("bart"), _named("translate", *SAMPLED_FLAGS), _translated(**SAMPLED)
    ),
    "translate with CTranslate2": Doors(
        _folder("bart"),
        _named("translate", *FEW_FLAGS, "--engine", "ctranslate2"),
        _translated(**FEW),
        how={"engine": "ctranslate2"},
    ),
    "generate": Doors(
        _folder("gpt2"), _named("generate", *GREEDY_FLAGS), _generated, (1, 1), (3, None)
    ),
    "generate with CTranslate2": Doors(
        _folder("gpt2"),
        _named("generate", *GREEDY_FLAGS, "--engine", "ctranslate2"),
        _generated,
        (1, 1),
        (3, None),
        {"engine": "ctranslate2"},
    ),
    "score texts": Doors(
        _folder("gpt2"),
        lambda folder, file, other: ["score", folder, file],
        _scored,
        (1, 2),
        (1, 3),
    ),
    "score translations": Doors(
        _folder("bart"),
        lambda folder, file, other: ["score", folder, "--source", file, "--target", other],
        lambda model, texts: [f"{one:.4f}" for one in model.score(texts, texts[::-1])],
        (1, 2),
        (1, 2),
    ),
    "classify": Doors(
        _folder("bert_cls"),
        _named("classify"),
        lambda model, texts: [f"{one.label}\t{one.probability:.4f}" for one in model(texts)],
    ),
    "reward": Doors(
        _folder("qwen3_number"),
        _named("classify"),
        lambda model, texts: [f"{one:.4f}" for one in np.asarray(model(texts)).ravel().tolist()],
    ),
    "tag": Doors(_folder("bert_tag"), _named("tag"), _tagged),
}


@pytest.mark.parametrize("name", USES)
def test_a_predictor_and_its_command_agree_on_messy_texts(
    name: str, tmp_path: Path, run_command: Command
) -> None:
    doors = USES[name]
    folder = doors.write(tmp_path / "model")
    model = tj.load(folder, **doors.how)
    run_command.capsys.readouterr()  # of the training
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


def _tone(count: int) -> np.ndarray:
    return np.sin(np.arange(count) * 0.3) / 2


def write_messy_recordings(folder: Path) -> None:
    """Writes recordings as people make them, and files that are none."""
    frames = np.random.default_rng(0).standard_normal((30, WIDTH)).astype(np.float32)
    for name, array in {
        "frames": frames,
        "double": frames.astype(np.float64),
        "half": frames.astype(np.float16),
        "loud": 100 * frames,
        "one frame": frames[:1],
        "no frame": frames[:0],
        "narrow": frames[:, :3],
        "flat": frames[:, 0],
        "whole": np.ones((9, WIDTH), np.int32),
        "nan": np.where(frames > 2, np.nan, frames),
        "infinite": np.where(frames > 2, np.inf, frames),
        "long": np.tile(frames, (20, 1)),
    }.items():
        np.save(folder / f"{name}.npy", array)
    for name, content in {
        "tone": pcm(_tone(1600), 16),
        "bytes": pcm(_tone(1600), 8),
        "deep": pcm(_tone(1600), 24),
        "stereo": pcm(np.stack([_tone(1600), -_tone(1600)], 1), 16),
        "silence": pcm(np.zeros(1600), 16),
        "other rate": pcm(_tone(3200), 16, 16_000),
        "a few samples": pcm(_tone(5), 16),
        "no sample": pcm(_tone(0), 16),
        "cut": pcm(_tone(1600), 16)[:500],
        "empty": b"",
        "text": b"un caf\xc3\xa9",
    }.items():
        (folder / f"{name}.wav").write_bytes(content)


def write_messy_pictures(folder: Path) -> None:
    """Writes pictures as people make them, and files that are none."""
    noise = np.random.default_rng(0).integers(0, 256, (20, 31, 3), dtype=np.uint8)
    plain = Image.fromarray(noise)
    for mode in ("1", "L", "P", "RGBA", "LA", "I;16"):
        plain.convert("L" if mode == "I;16" else mode).convert(mode).save(folder / f"{mode}.png")
    for mode in ("RGB", "CMYK", "L"):
        plain.convert(mode).save(folder / f"{mode}.jpg")
    turned = Image.Exif()
    turned[0x0112] = 6  # the orientation
    plain.save(folder / "turned.jpg", exif=turned)
    plain.save(folder / "moving.gif", save_all=True, append_images=[plain.rotate(90)])
    plain.save(folder / "un caf\u00e9.webp")
    plain.save(folder / "named otherwise.png", "BMP")
    for size in ((1, 1), (1, 90), (90, 1), (300, 200)):
        plain.resize(size).save(folder / f"{size[0]} by {size[1]}.png")
    content = (folder / "RGBA.png").read_bytes()
    (folder / "cut.png").write_bytes(content[: len(content) // 2])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.png").write_text("un café")


FILES = {
    "transcribe": (_transcriber, write_messy_recordings, FEW, (*FEW_FLAGS, "--tsv")),
    "caption": (
        _folder("vit_gpt2"),
        write_messy_pictures,
        {"num_beams": 2, "max_len_b": 6},
        ("--num-beams", "2", "--max-len-b", "6"),
    ),
    "caption by the folder": (_folder("vit_gpt2"), write_messy_pictures, {}, ()),
}


@pytest.mark.parametrize("name", FILES)
def test_a_predictor_and_its_command_agree_on_messy_files(
    name: str, tmp_path: Path, run_command: Command
) -> None:
    write, write_messy, how, flags = FILES[name]
    model = tj.load(write(tmp_path / "model"))
    run_command.capsys.readouterr()  # of the training
    (tmp_path / "files").mkdir()
    write_messy(tmp_path / "files")
    accepted, refused = [], {}
    for file in sorted((tmp_path / "files").iterdir()):
        try:
            model(file, **how)
            accepted.append(file)
        except UserError as error:
            refused[file] = str(error)
    assert len(accepted) > 8
    assert len(refused) > 2
    command = [name.partition(" ")[0], tmp_path / "model", *flags]
    code, lines, err = run_command(*command, *accepted)
    assert code == 0, err
    shown = list(map(str, made := model(accepted, **how)))
    if "--tsv" in flags:  # for the scores: most of these transcripts are empty
        lines = lines[1:]
        shown = [
            f"{file}\t{one.score:.4f}\t{text}"
            for file, one, text in zip(accepted, made, shown, strict=True)
        ]
    assert lines == [*shown, ""]
    assert len(set(shown)) > 5
    for file, why in refused.items():
        code, _, err = run_command(*command, file)
        assert code in (2, 3), file
        assert err.strip().endswith(why), file
