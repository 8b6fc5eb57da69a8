"""``transformer-jax most-similar``: nearest words of word vectors, and word-similarity tests."""

import dataclasses
from pathlib import Path

import tyro

from transformer_jax.cli.output import tsv
from transformer_jax.core.config_fields import Configuration, Count
from transformer_jax.core.errors import ConfigError

__all__ = ["MostSimilar"]


@dataclasses.dataclass(frozen=True)
class MostSimilar(Configuration, group="--"):
    """Print the words with the highest cosine to a word, as TSV, or evaluate similarity files."""

    vectors: tyro.conf.Positional[Path]
    """Word vectors: a file of word2vec (text or binary), or the folder of their training."""
    words: tyro.conf.Positional[tuple[str, ...]] = ()
    """One word, or several, whose vectors are added."""
    without: tuple[str, ...] = ()
    """Words whose vectors are subtracted."""
    top: Count = 10
    """Number of words to print."""
    pairs: tuple[Path, ...] = ()
    """Files with two words and a similarity per line, such as WS-353: prints Spearman's and
    Pearson's correlation with the cosines, and the number of pairs with vectors."""
    limit: Count | None = None
    """Size of the vocabulary: the most frequent words; None is all."""

    def __call__(self) -> int:
        """Prints words with cosines, or correlations."""
        if bool(self.words) == bool(self.pairs):
            raise ConfigError(
                "give either words, such as most-similar VECTORS house, or --pairs FILE"
            )
        if self.without and not self.words:
            raise ConfigError("--without needs words: most-similar VECTORS king --without man")
        from transformer_jax.word_vectors.formats import load_embeddings
        from transformer_jax.word_vectors.questions import correlate_similarities, read_similarities

        files = [(path, read_similarities(path)) for path in self.pairs]
        embeddings = load_embeddings(self.vectors, self.limit)
        if self.words:
            for word, cosine in embeddings.most_similar(self.words, self.without, self.top):
                print(tsv(word, cosine).decode(), end="")
            return 0
        width = max(4, *(len(path.name) for path, _ in files))
        print(f"{'file':<{width}}  Spearman  Pearson  pairs with vectors")
        for path, pairs in files:
            one = correlate_similarities(embeddings, pairs)
            print(
                f"{path.name:<{width}}  {one.spearman:8.4f}  {one.pearson:7.4f}  "
                f"{one.answered:,} of {one.pairs:,}"
            )
        return 0
