"""Ours, as a worker: word vectors."""

import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.worker import serve


def train(
    text: str, method: str, loss: str, size: int, window: int, sample: float, output: str
) -> tuple[Any, dict]:
    """Trains epochs of word2vec on a text of words between blanks; writes the last vectors.

    Each run starts again, with the next seed.
    """
    import jax
    import numpy as np

    from transformer_jax.word_vectors.corpus import read_corpus
    from transformer_jax.word_vectors.embeddings import WordEmbeddings
    from transformer_jax.word_vectors.formats import save_embeddings
    from transformer_jax.word_vectors.settings import Word2VecConfig
    from transformer_jax.word_vectors.word2vec_training import initial_tables, train_epochs

    folder = tempfile.TemporaryDirectory()
    began = time.perf_counter()
    corpus = read_corpus([Path(text)], Path(folder.name) / "ids", words="blanks", min_count=5)
    read = time.perf_counter() - began

    seeds = itertools.count()

    def run(epochs: int) -> int:
        assert folder
        config = Word2VecConfig(
            method=method,  # type: ignore[arg-type]
            loss=loss,  # type: ignore[arg-type]
            size=size,
            window=window,
            sample=sample,
            epochs=epochs,
            seed=next(seeds),
        )
        tables = initial_tables(len(corpus.words), config)
        for _, trained in train_epochs(corpus, config, tables):
            tables = trained
        vectors = np.asarray(jax.device_get(tables.inputs))
        save_embeddings(WordEmbeddings(corpus.words, vectors), output, binary=True)
        return corpus.total * epochs

    return run, {"vocabulary": len(corpus.words), "words": corpus.total, "read_s": round(read, 2)}


if __name__ == "__main__":
    os.environ.setdefault("PJRT_NPROC", "1")  # as in the training program
    serve({"train": train})
