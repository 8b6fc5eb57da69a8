"""Tokens that are added to a tokenizer that was learnt before."""

import json
from collections.abc import Sequence
from typing import Any

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.tokenizer import Tokenizer

__all__ = ["add_tokens", "has_token"]


def add_tokens(
    tokenizer: Tokenizer, words: Sequence[str] = (), special: Sequence[str] = ()
) -> Tokenizer:
    """The tokenizer with more tokens, whose ids follow those that it has.

    Tokens that it has already stay as they are, and so does the token of each role.

    Args:
        tokenizer: Any tokenizer.
        words: Tokens that text becomes wherever it has them.
        special: Tokens that no text becomes, such as the roles of a chat; decoded text leaves them
            out.

    Raises:
        ConfigError: A token is empty, or would be decoded as another text.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> grown = add_tokens(train_tokenizer("bytes", []), ["JAX"], ["<|user|>"])
        >>> grown.convert_ids_to_tokens(grown.encode("a JAX")), len(grown.encode("<|user|>"))
        (['a', ' ', 'JAX'], 8)
        >>> grown.token_id("<|user|>") == grown.vocab_size - 1
        True
    """
    new = [(token, False) for token in dict.fromkeys(words) if not has_token(tokenizer, token)]
    new += [(token, True) for token in dict.fromkeys(special) if not has_token(tokenizer, token)]
    if not new:
        return tokenizer
    if any(not token for token, _ in new):
        raise ConfigError("an added token is empty: give at least a character")
    texts = [_with_tokens(tokenizer.text, tokenizer.vocab_size, new)]
    if tokenizer.targets is not tokenizer:
        texts.append(_with_tokens(tokenizer.targets.text, tokenizer.vocab_size, new))
    grown = Tokenizer(texts[0], tokenizer.special, *texts[1:])
    if any(_roles(grown).get(role) != name for role, name in _roles(tokenizer).items()):
        grown = Tokenizer(texts[0], _roles(tokenizer), *texts[1:])
    for i, (token, kind) in enumerate(new):
        right = has_token(grown, token) and grown.token_id(token) == tokenizer.vocab_size + i
        if not right or not (kind or grown.decode(grown.encode(token)).strip() == token.strip()):
            raise ConfigError(f"the token {token!r} cannot be added to this tokenizer exactly")
    return grown


def _with_tokens(text: str, first: int, new: Sequence[tuple[str, bool]]) -> str:
    """The file of a tokenizer with new tokens, of ids from ``first`` on."""
    file = json.loads(text)
    rest = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    file["added_tokens"] = (file.get("added_tokens") or []) + [
        {"id": first + i, "content": token, **rest, "special": kind}
        for i, (token, kind) in enumerate(new)
    ]
    return json.dumps(file, ensure_ascii=False)


def _roles(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the names of special tokens by role, of further ends, and the tags of languages."""
    roles = ("pad", "unk", "bos", "eos", "mask")
    ids = {role: getattr(tokenizer, role) for role in roles}
    ids["forced_bos"] = next(iter(tokenizer.target_prefix_ids), None)
    names: dict[str, Any] = {role: tokenizer.name(id) for role, id in ids.items() if id is not None}
    ends = [tokenizer.name(id) for id in tokenizer.end_tokens[1:]]
    languages = tokenizer.special.get("languages")
    return names | {k: v for k, v in {"ends": ends, "languages": languages}.items() if v}


def has_token(tokenizer: Tokenizer, token: str) -> bool:
    """Returns whether a tokenizer has a token of this name.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> has_token(train_tokenizer("bytes", []), "<eos>")
        True
    """
    try:
        tokenizer.token_id(token)
    except DataError:
        return False
    return True
