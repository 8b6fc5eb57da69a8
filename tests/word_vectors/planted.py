"""A small text in which words have planted relations."""

import itertools

import numpy as np

from transformer_jax.word_vectors.embeddings import WordEmbeddings

THINGS, RELATIONS = 8, 4


def word(thing, relation):
    """Such as ``c_r2``: thing ``c`` in relation 2."""
    return f"{'abcdefgh'[thing]}_r{relation}"


def planted_text(lines=6000, seed=0):
    """Sentences of a word with words of its thing and words of its relation.

    So the vector of a word is that of its thing plus that of its relation, and
    ``a_r0 : a_r1 = b_r0 : b_r1``.
    """
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(lines):
        thing, relation = int(rng.integers(THINGS)), int(rng.integers(RELATIONS))
        near = [f"thing{thing}x{rng.integers(4)}", f"relation{relation}x{rng.integers(4)}"]
        near += [f"thing{thing}x{rng.integers(4)}", f"relation{relation}x{rng.integers(4)}"]
        sentence = [*near, word(thing, relation)]
        rng.shuffle(sentence)
        made.append(" ".join(sentence))
    return "\n".join(made) + "\n"


def planted_accuracy(made: WordEmbeddings):
    """The share of all analogies of things and relations that 3CosAdd answers."""
    right = total = 0
    for one, other in itertools.permutations(range(THINGS), 2):
        for first, second in itertools.permutations(range(RELATIONS), 2):
            asked = word(one, second), word(one, first), word(other, first)
            right += made.analogy(*asked, top=1)[0][0] == word(other, second)
            total += 1
    return right / total
