"""Semantic search: sentence vectors, cosine similarity, and the sentences nearest to a query."""

import sys

import numpy as np

import transformer_jax as tj

SENTENCES = (
    "A cat sleeps on the sofa.",
    "The stock market fell sharply today.",
    "A kitten is taking a nap.",
    "Investors sold their shares in a hurry.",
    "The recipe needs two eggs and flour.",
)


def main(path="models/all-MiniLM-L6-v2", query="animals that rest", top_k=3):
    encoder = tj.load(path)  # a sentence encoder, with the checkpoint's pooling and dense layer
    vectors = encoder.embed(SENTENCES)  # [B, D]
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    asked = encoder.embed(query)
    scores = vectors @ (asked / np.linalg.norm(asked))
    found = [(float(scores[i]), SENTENCES[i]) for i in np.argsort(-scores)[:top_k]]
    for score, sentence in found:
        print(f"{score:.3f}  {sentence}")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
