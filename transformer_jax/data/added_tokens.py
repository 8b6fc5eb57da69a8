"""Tokens added to an existing tokenizer."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.languages import Direction, LanguageTags
from transformer_jax.data.tokenizer import Tokenizer

__all__ = ["Tags", "add_tokens", "has_token", "tag_languages"]

Tags = Literal["source", "target", "none"]


def add_tokens(
    tokenizer: Tokenizer, words: Sequence[str] = (), special: Sequence[str] = ()
) -> Tokenizer:
    """Returns the tokenizer with more tokens, whose ids follow the existing ones.

    Existing tokens do not change, and neither does the token of each role.

    Args:
        tokenizer: Any tokenizer.
        words: Tokens that replace their text wherever it occurs.
        special: Tokens that text is never encoded as, such as the roles of a chat; decoded text
            omits them.

    Raises:
        ConfigError: A token is empty, or would be decoded as different text.

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


def tag_languages(
    tokenizer: Tokenizer, directions: Iterable[Direction], tags: Tags | None = None
) -> Tokenizer:
    """Returns a tokenizer that knows the languages of a translator of several directions.

    Each language has a tag, a special token such as ``<2de>`` that text is never encoded as.
    Languages that the tokenizer already knows keep their tags.

    Args:
        tokenizer: Any tokenizer.
        directions: The trained directions.
        tags: Position of the tag of the target language: first in the source (Johnson et al. 2017),
            the first token of the target, or no tag. None keeps the position of the languages that
            the tokenizer knows, or is ``source``.

    Raises:
        ConfigError: The tokenizer puts tags elsewhere.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> both = [Direction("de", "en"), Direction("en", "de")]
        >>> tokenizer = tag_languages(train_tokenizer("bytes", []), both)
        >>> frame = tokenizer.languages.frame(Direction(target="de"))
        >>> tokenizer.convert_ids_to_tokens([*frame.before, *frame.after])
        ['<2de>', '<eos>']
    """
    directions, known = list(directions), tokenizer.languages
    before, after, begins = tokenizer.prefix_ids, tokenizer.suffix_ids, tokenizer.target_prefix_ids
    template = tuple[str | int, ...]
    templates: dict[Tags, tuple[template, template, template]] = {
        "source": (("to", *before), after, begins),
        "target": (before, after, (*begins, "to")),
        "none": (before, after, begins),
    }
    if known is None:
        known = LanguageTags({}, *templates[tags or "source"], (), (), frozenset())
    elif tags is not None and (known.before, known.after, known.begins) != templates[tags]:
        raise ConfigError(
            f"data.languages.tags is {tags}: the model that this run starts from has its tags in "
            f"another place: leave it out"
        )
    new = [one for one in dict.fromkeys(one for way in directions for one in way if one)
           if one not in known.tags]  # fmt: skip
    grown = add_tokens(tokenizer, special=[known.token(one) for one in new])
    own = {one: grown.token_id(known.token(one)) for one in new}
    stored = known.trained_on(directions, {**known.tags, **own})
    special = grown.special | {"languages": stored.to_dict(grown.name)}
    targets = [] if grown.targets is grown else [grown.targets.text]
    return Tokenizer(grown.text, special, *targets)


def _with_tokens(text: str, first: int, new: Sequence[tuple[str, bool]]) -> str:
    """The file of a tokenizer with new tokens, whose ids start at ``first``."""
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
