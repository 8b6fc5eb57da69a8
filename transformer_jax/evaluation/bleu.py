"""Corpus sacreBLEU and chrF of raw, detokenized text, each with its signature."""

import dataclasses
from collections.abc import Sequence

from sacrebleu.metrics import CHRF

from transformer_jax.core.errors import DataError, plural
from transformer_jax.evaluation.word_splitting import choose_tokenize, make_bleu

__all__ = ["BleuScores", "reference_streams", "translation_scores"]


@dataclasses.dataclass(frozen=True)
class BleuScores:
    """SacreBLEU and chrF of a corpus, 0 to 100, with their signatures.

    Papineni et al. 2002; Popović 2015; Post 2018.
    """

    bleu: float
    chrf: float
    signature: str  # signature of sacreBLEU
    chrf_signature: str
    sentences: int
    length_ratio: float  # words of translations / words of references, split by sacreBLEU

    def __str__(self) -> str:
        return (
            f"sacreBLEU {self.bleu:.1f} ({self.signature}) "
            f"chrF {self.chrf:.1f} ({self.chrf_signature})"
        )

    def to_dict(self) -> dict[str, float | int | str]:
        """Returns the scores by name."""
        return {
            "sacrebleu": self.bleu,
            "sacrebleu_signature": self.signature,
            "chrf": self.chrf,
            "chrf_signature": self.chrf_signature,
            "sentences": self.sentences,
            "length_ratio": self.length_ratio,
        }


def translation_scores(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    tokenize: str | None = None,
) -> BleuScores:
    """Computes corpus sacreBLEU and chrF of translations against references.

    Both must be raw text, cased and detokenized: sacreBLEU splits words itself, as stated in its
    signature (Post 2018). Scores of text that was tokenized or lower-cased before are not
    comparable with published ones; ``lowercase`` is part of the signature.

    Args:
        hypotheses: One translation per sentence.
        references: One reference per sentence, or several lists of them.
        lowercase: Ignore case (``case:lc`` in the signature).
        tokenize: Tokenizer of sacreBLEU: a name of :data:`.Tokenize`, such as ``13a`` or ``zh``;
            None is chosen by the script of the references, see :func:`.choose_tokenize`.

    Raises:
        ConfigError: The tokenizer is unknown.
        DataError: There is nothing to score, or the numbers of translations and references differ.

    Example:
        >>> scores = translation_scores(["The dog sleeps today."], ["The dog sleeps today."])
        >>> print(scores)
        sacreBLEU 100.0 (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...) chrF 100.0 (...)
    """
    one = all(isinstance(reference, str) for reference in references)
    streams: list[Sequence[str]] = [references] if one else list(references)  # type: ignore[list-item]
    if not hypotheses:
        raise DataError("there are no translations to score: the test set is empty")
    for stream in streams:
        if len(stream) != len(hypotheses):
            raise DataError(
                f"{plural(len(hypotheses), 'translation')} but {plural(len(stream), 'reference')}: "
                f"they must be one per line, in the same order"
            )
    if tokenize is None:
        tokenize = choose_tokenize([text for stream in streams for text in stream])
    bleu = make_bleu(tokenize, lowercase=lowercase)
    chrf = CHRF(lowercase=lowercase)
    words = bleu.corpus_score(list(hypotheses), streams)
    letters = chrf.corpus_score(list(hypotheses), streams)
    return BleuScores(
        bleu=float(words.score),
        chrf=float(letters.score),
        signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(hypotheses),
        length_ratio=float(words.ratio),
    )


def reference_streams(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """Returns lists of references as sacreBLEU reads them, of all outputs each, with None for none.

    Args:
        references: The references of each output.

    Example:
        >>> reference_streams([["a cat", "the cat"], ["a dog"]])
        [['a cat', 'a dog'], ['the cat', None]]
    """
    most = max(map(len, references), default=0)
    return [[row[i] if i < len(row) else None for row in references] for i in range(most)]
