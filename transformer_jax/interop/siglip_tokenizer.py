"""SigLIP's tokenizer: pieces of canonical text, without punctuation and in lower case.

Zhai et al. 2023. https://huggingface.co/docs/transformers/model_doc/siglip#transformers.SiglipTokenizer
"""

import tokenizers
from tokenizers import normalizers, processors

from transformer_jax.core.errors import DataError
from transformer_jax.interop.sentencepiece import BLANK, PieceModel, piece_tokenizer

__all__ = ["canonical_tokenizer"]

_PUNCTUATION = r"[!-/:-@\[-`{-~]"  # of ASCII
_BLANKS = r"[\s\x1c-\x1f]+"  # the blanks of Python's regular expressions
_GUARD = "\ue000"  # of private use
_LAST_SIGMA = r"(?<=\p{L})Σ(?!\p{L})"  # at the end of a word, in Python's lower()


def canonical_tokenizer(model: PieceModel, *, lowercase: bool) -> tokenizers.Tokenizer:
    """Returns a tokenizer with the ids of ``SiglipTokenizer``.

    A blank is put before the text, which loses its punctuation and repeated blanks; then the pieces
    are those of SentencePiece, with ``</s>`` at the end.

    Args:
        model: The pieces.
        lowercase: Whether text is lower-cased (``do_lower_case``).

    Raises:
        DataError: ``tokenizers`` does not support the model, or it lacks ``</s>``.
    """
    replace = lambda pattern, text: normalizers.Replace(tokenizers.Regex(pattern), text)
    rules: list[normalizers.Normalizer] = [normalizers.Replace(BLANK, " ")]
    if lowercase:
        rules += [replace(_LAST_SIGMA, "ς"), normalizers.Lowercase()]
    rules += [replace(_PUNCTUATION, ""), replace(_BLANKS, " "), replace(r" \z", "")]
    # The blank is not at the beginning when SentencePiece reads it, and so it is kept.
    rules.append(normalizers.Prepend(_GUARD + BLANK))
    backend = piece_tokenizer(model._replace(dummy_prefix=False))
    last = replace(rf"\A{_GUARD}", "")
    backend.normalizer = normalizers.Sequence([*rules, backend.normalizer, last])
    if (end := backend.token_to_id("</s>")) is None:
        raise DataError("lacks </s>, which ends every text")
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B:1 </s>:1", special_tokens=[("</s>", end)]
    )
    return backend
