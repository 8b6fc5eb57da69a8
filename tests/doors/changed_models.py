"""Small models whose folders hostile cases change, and changes of their files."""

import json
from collections.abc import Callable
from pathlib import Path

import transformer_jax as tj
from tests.parity import layouts
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer

Prepare = Callable[[Path], Callable[[], object]]
DEEP = "[" * 200_000
DIGITS = "1" * 100_000


def model(
    layout: str, change: Callable[[Path], None], read: Callable[[Path], object] = tj.load
) -> Prepare:
    """The folder of a small model with a tokenizer, and a change."""

    def prepare(folder: Path) -> Callable[[], object]:
        layouts.write(layout, folder)
        texts = ["low lower lowest a probe 1 2"] * 3
        special = BERT_SPECIAL if layout.startswith("bert") else None
        made = train_tokenizer("wordpiece", texts, 60, **({"special": special} if special else {}))
        if not layout.startswith("vit"):
            made.save(folder / "tokenizer.json")
        change(folder)
        return lambda: read(folder)

    return prepare


def rewritten(name: str, change: Callable[[dict], object], layout: str = "bert") -> Prepare:
    """The folder of a small model with a changed JSON file."""

    def write(folder: Path) -> None:
        path = folder / name
        fields = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(change(fields)))

    return model(layout, write)


def text_of(name: str, text: str, layout: str = "bert") -> Prepare:
    """The folder of a small model with a file of this content."""
    return model(layout, lambda folder: (folder / name).write_text(text))


def bytes_of(name: str, content: bytes, layout: str = "bert") -> Prepare:
    """The same with bytes."""
    return model(layout, lambda folder: (folder / name).write_bytes(content))


def huge(name: str, size: int) -> Prepare:
    def write(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        with open(folder / name, "wb") as file:
            file.truncate(size)  # no blocks on a disk

    return model("bert", write)


def linked(name: str, target: str) -> Prepare:
    def write(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target if target != "itself" else folder / name)

    return model("bert", write)


def with_fields(**fields: object) -> Callable[[dict], dict]:
    return lambda old: {**old, **fields}
