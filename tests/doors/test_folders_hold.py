"""A folder holds what it says: each key of its files is applied, refused, or has no effect here.

Whatever head or family stands above it: the length of texts, token types, the activation of scores,
special tokens, the search. Keys that no table knows are told.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transformer_jax as tj
from tests.doors import uses
from transformer_jax.core.errors import UserError
from transformer_jax.interop.folder_keys import TABLES
from transformer_jax.interop.hf_run_directory import HFRunDirectory

LAW = 6
KINDS = ("folder", "use")

LENGTH = 8  # tokens, with special ones
TEXTS = [" ".join(uses.TEXT[i : i + 3].strip() for i in range(0, 24, 3)), uses.TEXT]


def _says(folder: Path, name: str, **settings: Any) -> Path:
    """The folder with settings added to one of its files."""
    file = folder / name
    fields = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(fields | settings))
    return folder


def _cut(model: Any, text: str) -> str:
    """The longest beginning of a text that has LENGTH tokens with the special ones."""
    tokens = lambda text: len(model.tokenizer.encode(text))
    found = [text[:end] for end in range(len(text)) if tokens(text[:end]) <= LENGTH - 2]
    return found[-1].strip()


def _length(name: str, folder: Path) -> None:
    """A use reads no more tokens than the tokenizer says."""
    use = uses.USES[name]
    whole = tj.load(use.write(folder / "whole"))
    copy = shutil.copytree(folder / "whole", folder / "short")
    short = tj.load(_says(copy, "tokenizer_config.json", model_max_length=LENGTH))
    text = uses.TEXT
    expected = use.call(whole, _cut(whole, text))
    with pytest.warns(UserWarning, match="longer than the model reads"):
        found = use.call(short, text)
    np.testing.assert_allclose(_numbers(found), _numbers(expected), atol=1e-5)


def _numbers(result: Any) -> np.ndarray:
    if hasattr(result, "probability"):
        return np.asarray([result.probability])
    if isinstance(result, dict):
        return np.asarray(list(result.values()))
    return np.asarray(result, np.float64)


def _named(name: str, folder: Path) -> None:
    """A search of this library names the settings of the folder that it does not apply."""
    path = uses.USES[name].write(folder / "model")
    _says(path, "generation_config.json", repetition_penalty=1.5, num_beams=3, use_cache=True)
    model = tj.load(path)
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_jax.inference.folder_generation.log", lines.append)
        uses.USES[name].call(model, uses.TEXT)
    assert len(lines) == 1
    assert "this search does not apply " in lines[0]
    assert "repetition_penalty 1.5" in lines[0]
    assert "applies " in lines[0] or "give " in lines[0]


def _keys(file: str) -> Callable[[str, Path], None]:
    """Every key of the table of a file is known, and an unknown one is told."""

    def check(name: str, folder: Path) -> None:
        path = uses.USES["embed texts"].write(folder / "model")
        _says(path, file, **{"a_key_of_tomorrow": 1})
        lines: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("transformer_jax.interop.folder_keys.log", lines.append)
            HFRunDirectory(path).read_config()
        assert [line for line in lines if "a_key_of_tomorrow" in line]
        assert len(TABLES[file]) > 5

    return check


def _refused(file: str, message: str, **settings: Any) -> Callable[[str, Path], None]:
    """A setting that is not supported is refused, with its file."""

    def check(name: str, folder: Path) -> None:
        path = uses.USES["embed texts"].write(folder / "model")
        with pytest.raises(UserError, match=message) as caught:
            HFRunDirectory(_says(path, file, **settings)).read_config()
        assert file in str(caught.value)

    return check


Check = Callable[[str, Path], None]
CASES: dict[str, Check] = {
    "configuration of a model": _refused(
        "config.json", "position_embedding_type", position_embedding_type="relative_key"
    ),
    "settings of a tokenizer": _keys("tokenizer_config.json"),
    "settings of generation": _keys("generation_config.json"),
    "tokenizer": _refused(
        "tokenizer_config.json", "truncation_side is left", truncation_side="left"
    ),
    "sentence encoder": _keys("config_sentence_transformers.json"),
    "SentencePiece": _refused(
        "tokenizer_config.json", "sp_model_kwargs", sp_model_kwargs={"enable_sampling": True}
    ),
    "classify texts": _length,
    "embed texts": _length,
    "translate": _named,
    "generate": _named,
    "chat": _named,
}
EXEMPT = {
    "weights": "tensors, each of which is used or refused: tests/interop/test_missing_tensors.py",
    "processor of pictures": "each key: tests/interop/test_image_processors.py, and tests/parity",
    "chat template": "a program that is run as it is: tests/data/chat",
    "adapter": "each key is applied or refused: tests/interop/test_peft_folders.py",
    "run": "the files of this package, whose settings are checked when they are read",
    "plan of a run": "settings of this package, checked as those of a run",
    "embed a translator's sources": "transformers gives translators no maximum length of sources",
    "score translations": "no search, and the tokens of both sides are those of translate",
    "look at attention": "shows the tokens that the model reads, up to its positions",
    "score texts": "transformers gives language models no maximum length of texts",
    "compare samples": "samples of generate",
    "few-shot prompts": "prompts of generate",
    "rank texts": "a classifier, which reads pairs as classify texts does",
    "reward texts": "a classifier, which reads texts as classify texts does",
    "tag words": "long sentences continue in further rows: nothing is cut",
    "answer questions": "long contexts are read in windows: nothing is cut",
    "tag tokens": "model_max_length is applied as in transformers: tests/inference/test_pipelines",
    "find answers": "long contexts are read in windows: nothing is cut",
    "fill masks": "a mask beyond the length is refused, not cut",
    "search texts": "vectors of embed texts",
    "compare vectors of a word": "vectors of embed texts",
    "transcribe": "no published family takes sound",
    "caption": "the search of the folder: tests/parity/test_folder_captions.py",
    "classify pictures": "takes pictures: see the processor of pictures",
    "embed pictures": "takes pictures: see the processor of pictures",
    "match pictures and texts": "two towers, of the length of their tokenizer: tests/parity",
    "tokenize": "all tokens of a text, before any model cuts it",
    "words of word vectors": "files of vectors say nothing about reading",
}


@pytest.mark.quick(
    "configuration of a model",
    "settings of a tokenizer",
    "settings of generation",
    "tokenizer",
    "sentence encoder",
    "SentencePiece",
)
@pytest.mark.filterwarnings("ignore:1 of 1 text reached the length limit")
@pytest.mark.parametrize("name", CASES)
def test_a_folder_is_used_as_it_says(name, tmp_path):
    CASES[name](name, tmp_path)
