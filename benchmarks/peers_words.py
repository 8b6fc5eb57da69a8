"""gensim, as a worker: word vectors."""

import itertools
import time
from typing import Any

from benchmarks.worker import serve


def train(
    text: str, method: str, size: int, window: int, sample: float, output: str, workers: int
) -> tuple[Any, dict]:
    """Trains epochs of word2vec on a text of words between blanks; writes the last vectors.

    Each run starts again, with the next seed.
    """
    import gensim
    import numpy as np
    from gensim.models import Word2Vec

    began = time.perf_counter()
    how = {"sg": int(method == "skip-gram"), "vector_size": size, "window": window}
    make = lambda: Word2Vec(
        **how, negative=5, sample=sample, min_count=5, workers=workers, alpha=0.025
    )
    model = make()
    model.build_vocab(corpus_file=text)
    facts = {
        "vocabulary": len(model.wv),
        "words": model.corpus_total_words,
        "read_s": round(time.perf_counter() - began, 2),
        "gensim": gensim.__version__,
    }

    seeds = itertools.count()

    def run(epochs: int) -> int:
        model.seed = next(seeds)
        model.random = np.random.RandomState(model.seed)
        model.wv.vectors = None  # else init_weights keeps the trained vectors
        model.init_weights()
        model.train(
            corpus_file=text,
            total_examples=model.corpus_count,
            total_words=model.corpus_total_words,
            epochs=epochs,
        )
        model.wv.save_word2vec_format(output, binary=True)
        return facts["words"] * epochs

    return run, facts


if __name__ == "__main__":
    serve({"train": train})
