"""Word vectors as the initial embeddings of a model's tokens."""

import functools
import re
from collections.abc import Callable, Hashable
from typing import NamedTuple
from unicodedata import normalize

import jax
import numpy as np
from jax.tree_util import KeyPath
from jaxtyping import Array, Float32, Int, PyTree

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import log, show_progress
from transformer_jax.core.trees import path_name
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.models.recurrent_config import ModelConfig

__all__ = [
    "TokenVectors",
    "check_size",
    "embedding_tables",
    "initial_embeddings",
    "vectors_of_tokens",
    "words_of_tokens",
]

_FLAG = "model.embedding.init"
_TABLE = re.compile(r"(.*/)?(decoder_)?embedding/table")


class TokenVectors(NamedTuple):
    """The tokens of a vocabulary that are words of a file.

    Attributes:
        ids: Ids of the tokens.
        vectors: One row per token.
    """

    ids: Int[np.ndarray, " N"]
    vectors: Float32[np.ndarray, "N E"]


def words_of_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """The word that each token is by itself, by id; special tokens and parts of words are omitted.

    A token is a word if it begins one (``Ġhouse``, ``▁house``, WordPiece's ``house``), but not if
    it continues one (``##house``). In a vocabulary without such marks, every token is a word.

    Example:
        >>> from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
        >>> words_of_tokens(train_tokenizer("wordpiece", ["do re"], 12, special=BERT_SPECIAL))
        {7: 'd', 8: 'e', 9: 'o', 10: 'r', 11: 'do'}
        >>> words_of_tokens(train_tokenizer("bpe", ["no do do"], 263))
        {261: 'do'}
    """
    inside, special = tokenizer.is_continuation, tokenizer.special_ids
    ids = [id for id in range(tokenizer.vocab_size) if id not in special and not inside[id]]
    names = map(str.strip, tokenizer.convert_ids_to_tokens(ids))
    return {id: name for id, name in zip(ids, names, strict=True) if name}


def vectors_of_tokens(path: str, tokenizer: Tokenizer) -> TokenVectors:
    """Returns the vectors of a file whose words are tokens of a vocabulary.

    Raises:
        DataError: The file cannot be read or is damaged.
        ConfigError: No token is a word of the file.
    """
    from transformer_jax.word_vectors.formats import load_embeddings

    words = words_of_tokens(tokenizer)
    with show_progress(f"reading word vectors from {path}"):
        # A file may spell the words with other, canonically equal characters.
        forms = {normalize(form, word) for word in words.values() for form in ("NFC", "NFD")}
        found = load_embeddings(path, only=forms | set(words.values()))
    places = {id: row for id, word in words.items() if (row := found.find(word)) is not None}
    ids = list(places)
    if not ids:
        raise ConfigError(
            f"{_FLAG} {path}: none of the {plural(tokenizer.vocab_size, 'token')} is a word of the "
            f"file: take vectors of the language and case of the texts, and a tokenizer of words "
            f"or subwords"
        )
    return TokenVectors(np.array(ids), found.vectors[list(places.values())])


def check_size(config: ModelConfig) -> None:
    """Refuses a file whose vectors differ in size from the model's embeddings.

    Raises:
        DataError: The file cannot be read, or is not a file of word vectors.
        ConfigError: It has vectors of another size.
    """
    from transformer_jax.word_vectors.formats import size_of_vectors

    path, size = config.embedding.init, config.embedding_size
    if path is None:
        return
    found = size_of_vectors(path)
    if found != size:
        given = config.embedding.embedding_size
        name = "d_model" if given is None else "embedding.embedding_size"
        raise ConfigError(
            f"{_FLAG} {path}: its vectors have {plural(found, 'number')} and the model's "
            f"embeddings {size:,}: set model.{name} to {found}, or train vectors of {size:,}"
        )


def embedding_tables(
    table: Float32[np.ndarray, "V E"], found: TokenVectors
) -> Float32[np.ndarray, "V E"]:
    """Puts word vectors into a table, in the rows of their tokens and at the table's scale.

    All vectors are multiplied by one factor, which gives them the root mean square of the random
    table: ``E[id] = v · rms(E) / rms(v)``. Angles and proportions between them do not change, and
    the model starts with inputs, and logits if the table is tied, of the same scale as without
    vectors. All other rows keep their random values.

    Args:
        table: The randomly initialized table.
        found: Tokens and their vectors; tokens without a row are ignored.

    Example:
        >>> drawn = np.full((3, 2), 0.5, np.float32)
        >>> embedding_tables(drawn, TokenVectors(np.array([1]), np.array([[3, -3]], np.float32)))
        array([[ 0.5,  0.5],
               [ 0.5, -0.5],
               [ 0.5,  0.5]], dtype=float32)
    """
    rms = lambda numbers: float(np.sqrt(np.mean(np.square(numbers, dtype=np.float64))))
    known = found.ids < len(table)
    scale = rms(table) / (rms(found.vectors) or 1.0)
    made = np.array(table)
    made[found.ids[known]] = found.vectors[known] * np.float32(scale)
    return made


def initial_embeddings(
    config: ModelConfig, tokenizer: Tokenizer
) -> Callable[[PyTree], PyTree] | None:
    """Returns ``Task.initial`` for a model initialized with word vectors; None without them."""
    path = config.embedding.init
    return None if path is None else functools.partial(_initial, config, tokenizer)


def _initial(config: ModelConfig, tokenizer: Tokenizer, params: PyTree) -> PyTree:
    """Returns the parameters with word vectors in every table of token embeddings."""
    path = config.embedding.init
    assert path is not None
    check_size(config)
    found = vectors_of_tokens(path, tokenizer)
    log(
        f"word vectors: {len(found.ids):,} of {plural(tokenizer.vocab_size, 'token')} begin with "
        f"the vector of their word in {path}"
    )

    def begun(where: KeyPath[Hashable], leaf: Array) -> Array | np.ndarray:
        if not _TABLE.fullmatch(path_name(where)):
            return leaf
        return embedding_tables(np.asarray(leaf, np.float32), found).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(begun, params)
