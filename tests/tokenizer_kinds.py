"""Small tokenizers of every kind that published checkpoints have, with the kinds trained here."""

import functools

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from transformer_jax.data.backends import SPECIAL
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer

TEXTS = [
    "Hi hello user assistant yes no [INST] there chat between so",
    "naïve 日本 😀, the end.",
] * 3
ENDS = ("<|im_start|>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<end_of_turn>", "[/INST]")
TRAINED = ("bpe", "unigram", "wordpiece", "words", "bytes", "characters")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁Hi", "▁hello", "▁yes", "▁no", "▁so", "ello", "ser", "▁u", "日", "é", "▁the", "..."]
LETTERS = [chr(code) for code in range(33, 127)]


def _byte_pairs(fallback=True):
    """BPE over characters, with bytes for those it lacks."""
    pieces = [*SPECIAL, *BYTES, "▁", *LETTERS, "日", "é"]
    merges = [("▁", "n"), ("▁n", "o"), ("▁", "H"), ("▁H", "i"), ("l", "o"), (".", "."), ("..", ".")]
    merges += [("▁", "▁"), ("s", "o"), ("e", "l"), ("▁", "日")]
    pieces += ["".join(pair) for pair in merges]
    vocab = {piece: id for id, piece in enumerate(dict.fromkeys(pieces))}
    return models.BPE(vocab, merges, byte_fallback=fallback, unk_token="<unk>", fuse_unk=True)


def _unigram(fallback):
    pieces = [(piece, 0.0) for piece in (*SPECIAL, *BYTES)]
    pieces += [(piece, -2.0 - len(piece) / 9) for piece in ("▁", *WORDS)]
    pieces += [(piece, -6.0) for piece in LETTERS]
    return models.Unigram(pieces, unk_id=SPECIAL.index("<unk>"), byte_fallback=fallback)


def _make(kind):
    blanks = decoders.Replace("▁", " ")
    rest = [decoders.ByteFallback(), decoders.Fuse()]
    strip = decoders.Strip(" ", 1, 0)
    if kind == "llama":
        made = tokenizers.Tokenizer(_byte_pairs())
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        made.decoder = decoders.Sequence([blanks, *rest, strip])
    elif kind == "metaspace":
        made = tokenizers.Tokenizer(_byte_pairs())
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        made.decoder = decoders.Sequence([blanks, *rest, strip])
    elif kind == "gemma":
        made = tokenizers.Tokenizer(_byte_pairs())
        made.normalizer = normalizers.Replace(" ", "▁")
        made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        made.decoder = decoders.Sequence([blanks, *rest])
    elif kind == "sentencepiece":
        made = tokenizers.Tokenizer(_unigram(True))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    elif kind == "t5":
        made = tokenizers.Tokenizer(_unigram(False))
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        made.decoder = decoders.Metaspace()
    else:
        assert kind == "clip", kind
        letters = [*LETTERS, *(letter + "</w>" for letter in LETTERS), "n", "no</w>", "日</w>"]
        vocab = {piece: id for id, piece in enumerate(dict.fromkeys([*SPECIAL, *letters]))}
        made = tokenizers.Tokenizer(
            models.BPE(vocab, [("n", "o</w>")], unk_token="<unk>", end_of_word_suffix="</w>")
        )
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.BPEDecoder("</w>")
    return made


PUBLISHED = ("llama", "metaspace", "gemma", "sentencepiece", "t5", "clip")
KINDS = (*TRAINED, *PUBLISHED)


@functools.cache
def tokenizer_of(kind, special=ENDS, **flags):
    """The tokenizer of a kind.

    Args:
        kind: One of ``KINDS``.
        special: Special tokens besides the usual ones.
        **flags: Of the further special tokens, such as ``rstrip``.
    """
    if kind in TRAINED:
        made = tokenizers.Tokenizer.from_str(train_tokenizer(kind, TEXTS, 420).text)
    else:
        made = _make(kind)
        made.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in SPECIAL])
    made.add_special_tokens(
        [tokenizers.AddedToken(name, special=True, **flags) for name in special]
    )
    return Tokenizer(made.to_str())
