"""Tiny published encoder-decoders with tokenizers, and summaries of made-up texts."""

import json

import tokenizers
from tokenizers.processors import TemplateProcessing

from tests.parity import layouts

# Tokens of ids 0, 1, ..., and of the last id, as the configurations have them, and what stands
# around a text.
SPECIAL = {
    "bart": (("<s>", "<pad>", "</s>", "<unk>", "<mask>"), (), "<s> $A </s>"),
    "t5": (("<pad>", "</s>", "<unk>", *(f"<extra_id_{i}>" for i in range(6))), (), "$A </s>"),
    "marian": (("</s>", "<unk>"), ("<pad>",), "$A </s>"),
}
COLORS, ANIMALS = ("red", "blue", "big", "old"), ("dog", "cat", "fish", "bird")
WORDS = [*COLORS, *ANIMALS, "the", "came", "it", "saw", "a", ".", "summarize", ":"]


def write(name, folder, words=WORDS):
    """A folder of Hugging Face with random weights and a tokenizer of ``words``, and others."""
    layouts.write(name, folder)
    size = layouts.LAYOUTS[name]["config"]["vocab_size"]
    first, last, around = SPECIAL[name]
    rest = [f"w{i}" for i in range(size)][: size - len(first) - len(words) - len(last)]
    tokens = [*first, *words, *rest, *last]
    model = tokenizers.models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token="<unk>")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens([*first, *last])
    ids = [(token, tokens.index(token)) for token in (*first, *last) if token in around]
    made.post_processor = TemplateProcessing(single=around, special_tokens=ids)
    made.save(str(folder / "tokenizer.json"))
    return folder


def write_data(folder):
    """``train.jsonl``, ``valid.jsonl``, ``text.txt`` and ``pairs.tsv``."""
    folder.mkdir()
    pairs = [(f"the {a} {b} came . it saw a {b} .", f"a {a} {b}") for a in COLORS for b in ANIMALS]
    rows = [json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs]
    (folder / "train.jsonl").write_text("".join(rows * 2))
    (folder / "valid.jsonl").write_text("".join(rows[::5]))
    (folder / "text.txt").write_text("\n\n".join(source for source, _ in pairs * 2))
    (folder / "pairs.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs[::5]))
