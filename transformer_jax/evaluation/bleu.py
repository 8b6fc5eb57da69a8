"""Corpus sacreBLEU and chrF of raw, detokenized text, each with its signature."""

import dataclasses
from collections.abc import Sequence

from sacrebleu.metrics import CHRF

from transformer_jax.core.errors import DataError, plural
from transformer_jax.evaluation.words import choose_tokenize, make_bleu

__all__ = ["BleuScores", "translation_scores"]


@dataclasses.dataclass(frozen=True)
class BleuScores:
    """SacreBLEU and chrF of a corpus, 0 to 100, with their signatures.

    Papineni et al. 2002; Popović 2015; Post 2018.
    """

    bleu: float
    chrf: float
    signature: str  # of sacreBLEU
    chrf_signature: str
    sentences: int
    length_ratio: float  # words written / words in the references, as sacreBLEU splits them

    def __str__(self) -> str:
        return (
            f"sacreBLEU {self.bleu:.1f} ({self.signature}) "
            f"chrF {self.chrf:.1f} ({self.chrf_signature})"
        )

    def to_dict(self) -> dict[str, float | int | str]:
        """The scores by name."""
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
    """SacreBLEU and chrF of translations against references, over the whole corpus.

    Both are raw text, cased and detokenized: sacreBLEU splits words itself and says so in its
    signature (Post 2018). A score on text tokenized or lower-cased beforehand compares with
    nothing published; ``lowercase`` is part of the signature.

    Args:
        hypotheses: One translation a sentence.
        references: One reference a sentence, or several lists of them.
        lowercase: Compare without case (``case:lc`` in the signature).
        tokenize: How sacreBLEU splits words: a name of :data:`.Tokenize`, such as ``13a`` or
            ``zh``; None follows from the script of the references, see :func:`.choose_tokenize`.

    Raises:
        ConfigError: There is no such tokenizer.
        DataError: Nothing to score, or a list of references of another length.

    Example:
        >>> scores = translation_scores(["The dog sleeps today."], ["The dog sleeps today."])
        >>> print(scores)
        sacreBLEU 100.0 (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...) chrF 100.0 (...)
    """
    one = all(isinstance(reference, str) for reference in references)
    streams: list[Sequence[str]] = [references] if one else list(references)  # type: ignore[list-item]
    if not hypotheses:
        raise DataError("there is no translation to score: the test set is empty")
    for stream in streams:
        if len(stream) != len(hypotheses):
            raise DataError(
                f"{plural(len(hypotheses), 'translation')} but {plural(len(stream), 'reference')}: "
                f"they must be one a line, in the same order"
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
