"""Chat templates find the special tokens that transformers gives them, and no others."""

import random

import pytest

from tests.interop.test_undefined_tokens import CHAT, SPECIAL, folder_of
from transformer_jax.data.chat.template import find_template
from transformer_jax.data.chat.token_names import TOKEN_NAMES

pytestmark = [pytest.mark.parity, pytest.mark.slow]

CLASSES = (None, "PreTrainedTokenizerFast", "LlamaTokenizer", "LlamaTokenizerFast",
           "Qwen2Tokenizer", "GPT2Tokenizer", "GemmaTokenizer")  # fmt: skip
LAYOUTS = (
    "llama", "qwen2", "qwen3", "gemma2", "gpt2", "opt", "phi3", "mistral", "starcoder2",
)  # fmt: skip
ADDED = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}


@pytest.mark.parametrize("number", range(60))
def test_names_are_defined_where_they_are_there(tmp_path, number):
    """Each name is missing, null, a text or an object, for each class and type of model."""
    transformers = pytest.importorskip("transformers")
    draw = random.Random(number)
    chosen = draw.choice(CLASSES)
    said = {} if chosen is None else {"tokenizer_class": chosen}
    for name in TOKEN_NAMES:
        kind, token = draw.choice(["missing", "null", "text", "object"]), draw.choice(SPECIAL)
        if kind == "object":
            said[name] = ADDED | {"content": token, "special": True, "__type": "AddedToken"}
        elif kind != "missing":
            said[name] = token if kind == "text" else None
    text = "".join(f"[{{{{ {name} }}}}]" for name in TOKEN_NAMES)
    path = folder_of(tmp_path / "folder", said, layout=draw.choice(LAYOUTS), template=text)
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    assert find_template(path).render(CHAT).text == theirs.apply_chat_template(CHAT, tokenize=False)
