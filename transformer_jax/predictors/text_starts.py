"""The tokens that the texts of a decoder begin with."""

from typing import TYPE_CHECKING

from transformer_jax.predictors.runs import text_format

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.decoding.context import TextStart
    from transformer_jax.training.run_directory import RunDirectory

__all__ = ["first_token", "text_start"]


def first_token(run: "RunDirectory", tokenizer: "Tokenizer") -> int:
    """The start token of the texts of a decoder.

    A model that was published without one has the token that ends texts.
    """
    published = _reads_as_published(run)
    first = text_format(run).first
    if first == "newline":
        [[line_end]] = tokenizer.encode_batch(["\n"])
        return line_end
    stands_in = published and "bos" not in tokenizer.roles
    return tokenizer.eos if first == "eos" or stands_in else tokenizer.bos


def text_start(run: "RunDirectory", tokenizer: "Tokenizer") -> "TextStart":
    """Returns the tokens that a decoder reads before a text.

    A model that was published reads what its tokenizer puts there, as in transformers, and a start
    token only where it would read nothing; a model trained here has a start token.
    """
    from transformer_jax.decoding.context import TextStart

    first = first_token(run, tokenizer)
    published = _reads_as_published(run)
    return TextStart(tokenizer.prefix_ids, first) if published else TextStart.of(first)


def _reads_as_published(run: "RunDirectory") -> bool:
    return bool(run.read_config().get("prompts") == "template")
