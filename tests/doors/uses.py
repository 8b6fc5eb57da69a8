"""The uses of models: a small model for each that reads text, and what to call on it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import transformer_jax as tj
from tests.parity import layouts
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.inference.results import GeneratedText

TEXT = "un café à la carte, déjà vu"
# Each message is ended by the end token of the tokenizer, which takes the place of END.
TEMPLATE = "{% for one in messages %}{{ one['content'] | trim }}END{% endfor %}"


@dataclasses.dataclass(frozen=True)
class Use:
    """A use of a model that reads a text.

    Attributes:
        layout: Name of its model in ``tests.parity.layouts``.
        call: ``call(predictor, text)`` returns what depends on the tokens of the text.
        command: ``command(folder, text)`` returns the arguments of the same use on the command
            line, and its standard input.
    """

    layout: str
    call: Callable[[Any, str], Any]
    command: Callable[[Path, str], tuple[list[str], str]] | None = None

    def write(self, folder: Path) -> Path:
        """Writes the folder of the model, with random weights and a tokenizer that knows TEXT."""
        layouts.write(self.layout, folder)
        texts, encoder = [TEXT, "abcdefghijklmnopqrstuvwxyz"] * 3, self.layout.startswith("bert")
        if encoder:
            tokenizer = train_tokenizer("wordpiece", texts, 90, special=BERT_SPECIAL)
        else:
            tokenizer = train_tokenizer("characters", texts, 90)
        tokenizer.save(folder / "tokenizer.json")
        if not encoder:
            config = json.loads((folder / "config.json").read_text())
            ids = {f"{name}_token_id": getattr(tokenizer, name) for name in ("bos", "eos", "pad")}
            config |= ids | {"decoder_start_token_id": tokenizer.bos}
            (folder / "config.json").write_text(json.dumps(config))
            end = tokenizer.convert_ids_to_tokens([tokenizer.eos])[0]
            (folder / "chat_template.jinja").write_text(TEMPLATE.replace("END", end))
        return folder


def _lines(name: str, *rest: str) -> Callable[[Path, str], tuple[list[str], str]]:
    return lambda folder, text: ([name, str(folder), *rest], text + "\n")


def _given(name: str, *rest: str) -> Callable[[Path, str], tuple[list[str], str]]:
    return lambda folder, text: ([name, str(folder), *rest, text], "")


def _scored(text: GeneratedText) -> tuple[str, float]:
    """Returns a text with its score, which depends on all that the model read."""
    return str(text), round(text.score, 4)


def _chat(model: Any, text: str) -> tuple[str, float]:
    message = {"role": "user", "content": text}
    return _scored(model.chat([message], max_new_tokens=4, temperature=0))


def _search(model: Any, text: str) -> np.ndarray:
    return np.asarray(model.embed(["un", text])) @ np.asarray(model.embed(text))


# By the name of the door.
USES: dict[str, Use] = {
    "translate": Use(
        "bart",
        lambda model, text: _scored(model(text, num_beams=1, max_len_b=6, max_len_a=0)),
        _lines("translate", "--num-beams", "1", "--max-len-b", "6", "--max-len-a", "0"),
    ),
    "embed a translator's sources": Use("bart", lambda model, text: model.embed(text)),
    "score translations": Use("bart", lambda model, text: model.score(text, "carte")),
    "look at attention": Use("bert", lambda model, text: model.attention(text).tokens),
    "generate": Use(
        "gpt2",
        lambda model, text: _scored(model.generate(text, max_new_tokens=4, temperature=0)),
        _given("generate", "--max-new-tokens", "4", "--temperature", "0"),
    ),
    "chat": Use("gpt2", _chat),
    "score texts": Use("gpt2", lambda model, text: model.score(text)),
    "classify texts": Use("bert_cls", lambda model, text: model(text), _lines("classify")),
    "rank texts": Use(
        "qwen3_number", lambda model, text: [one.score for one in model.rank("un", [text])]
    ),
    "reward texts": Use("qwen3_number", lambda model, text: model(text), _lines("classify")),
    "tag words": Use("bert_tag", lambda model, text: model(text), _lines("tag")),
    "tag tokens": Use(
        "bert_tag", lambda model, text: tj.pipeline("ner", model, ignore_labels=[])(text)
    ),
    "find answers": Use(
        "bert_qa", lambda model, text: tj.pipeline("question-answering", model)(text, TEXT)
    ),
    "answer questions": Use("bert_qa", lambda model, text: model(text, TEXT)),
    "fill masks": Use("bert", lambda model, text: model.fill_mask(f"[MASK] {text}", top_k=2)),
    "embed texts": Use("bert", lambda model, text: model.embed(text)),
    "search texts": Use("bert", _search),
    "tokenize": Use("bert", lambda model, text: model.tokenizer.encode(text), _lines("tokenize")),
}
