"""A tokenizer for tiny Hugging Face models: one word for each id."""

import json

from transformer_jax.data.tokenizer import Tokenizer


def tokenizer_json(size: int) -> str:
    """A ``tokenizer.json`` whose words are ``w0``, ``w1`` and so on."""
    words = {f"w{id}": id for id in range(size)}
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    model = {"type": "WordLevel", "vocab": words, "unk_token": "w3"}
    splits = {"type": "WhitespaceSplit"}
    fields = {"version": "1.0", "added_tokens": [], "pre_tokenizer": splits, "model": model}
    return json.dumps(parts | fields)


def tokenizer_of(fields: dict, size: int, unk: str | None = "w3") -> Tokenizer:
    """The tokenizer of a configuration, with its special ids."""
    begin = fields.get("decoder_start_token_id", fields.get("bos_token_id", 0))
    ids = {"pad": fields.get("pad_token_id", 1), "eos": fields.get("eos_token_id", 2), "bos": begin}
    if "forced_bos_token_id" in fields:
        ids["forced_bos"] = fields["forced_bos_token_id"]
    special = {role: f"w{id}" for role, id in ids.items()}
    return Tokenizer(tokenizer_json(size), special | ({} if unk is None else {"unk": unk}))
