"""Long sentences and a vector of fixed size, a bottleneck that attention removes.

A translator without attention keeps a sentence only in the last states of its encoder. Its
translations get worse with the length of the sentence (Cho et al. 2014, arXiv:1409.1259; Bahdanau
et al. 2015, figure 2); with attention, the decoder reads every state. Here sentences are random
words, each with one translation, in the same or in reverse order.
"""

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Int, Key

from transformer_jax.core.json_types import Json
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.programs import generate
from transformer_jax.evaluation.bleu import translation_scores
from transformer_jax.laboratory.fitting import FitProgress, Say, Schedule, fit
from transformer_jax.laboratory.pictures import Line, Panel, draw_panels
from transformer_jax.laboratory.readers import nearest_sizes
from transformer_jax.laboratory.settings import LengthSettings, ScoreChoice
from transformer_jax.models.composed import EncoderDecoder
from transformer_jax.models.config import CellName
from transformer_jax.models.layers.basic import Embed
from transformer_jax.models.layers.recurrent_attention import make_score
from transformer_jax.models.layers.recurrent_layers import Recurrent
from transformer_jax.models.recurrent_modules import RecurrentDecoder, RecurrentEncoder
from transformer_jax.training.objectives import sequence_to_sequence
from transformer_jax.training.step import Batch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LengthErrors", "LengthFigures", "lengths", "make_translator", "sentences"]

PAD, BOS, EOS, FIRST = 0, 1, 2, 3  # token ids; words begin at FIRST
_LEXICON, _TEST = 0, 9  # random streams: of the translations of words, and of test sentences


class LengthErrors(NamedTuple):
    """Scores of translations of sentences of one length.

    Attributes:
        tokens: Fraction of the references' words that are at the same position.
        sentences: Fraction of sentences translated without a mistake.
        bleu: SacreBLEU of the corpus, 0 to 100, on unchanged words.
    """

    tokens: float
    sentences: float
    bleu: float


@dataclasses.dataclass(frozen=True)
class LengthFigures:
    """Scores by translator, length and seed."""

    settings: LengthSettings
    sizes: dict[str, int]  # size of the decoder's state
    parameters: dict[str, int]
    tokens: dict[str, list[list[float]]]  # by translator: a row per length, a value per seed
    sentences: dict[str, list[list[float]]]
    bleu: dict[str, list[list[float]]]

    def to_dict(self) -> dict[str, Json]:
        """Returns the figures by name, for JSON."""
        return dataclasses.asdict(self)

    def table(self) -> list[list[str]]:
        """Returns a header, and for each translator a row of BLEU and one of accuracy."""
        head = ["attention", "parameters", "score"]
        head += [f"T={T}" for T in self.settings.test_lengths]
        rows = []
        for name, count in self.parameters.items():
            for score, found, digits in (("BLEU", self.bleu, 1), ("tokens", self.tokens, 2)):
                means = [f"{np.mean(row):.{digits}f}" for row in found[name]]
                rows.append([name, f"{count:,}", score, *means])
        return [head, *rows]

    def draw(self, path: Path | None = None) -> "Figure":
        """Draws the picture, and saves it to ``path`` in the format of its suffix."""
        asked = self.settings
        label = lambda name: "no attention" if name == "none" else f"attention ({name})"
        panels = [
            Panel(
                title,
                "words of the sentence",
                scale,
                [Line(name, asked.test_lengths, found[name], label(name)) for name in found],
                edge=(asked.train_length, "longest in training"),
                limits=(0.0, 1.05 * top),
            )
            for title, scale, found, top in (
                ("BLEU", "BLEU", self.bleu, 100),
                ("words at the right position", "fraction of words", self.tokens, 1),
            )
        ]
        title = f"Recurrent translators ({asked.cell}), trained on up to {asked.train_length} words"
        return draw_panels(panels, path, title=title)


def lengths(
    settings: LengthSettings = LengthSettings(), *, say: Say | None = None
) -> LengthFigures:
    """Trains translators on short sentences, and scores their translations at all lengths.

    Translations are found by greedy search. All translators see the same sentences.

    Args:
        settings: The settings.
        say: Called with lines about the progress.

    Raises:
        ConfigError: No size of a translator has this many parameters.
    """
    progress = FitProgress(say)
    make = functools.partial(make_translator, words=settings.words, cell=settings.cell)
    begun = functools.partial(make, seed=settings.seed)
    sizes, count = nearest_sizes(settings.scores, begun, settings.parameters, 2)
    scored: dict[str, list[list[LengthErrors]]] = {name: [] for name in sizes}
    cosine = optax.cosine_decay_schedule(settings.learning_rate, settings.steps)
    texts = functools.partial(_training_sentences, settings)
    for name in settings.scores:
        for seed in range(settings.seed, settings.seed + settings.seeds):
            where = f"{'no attention' if name == 'none' else name}, seed {seed}"
            progress(f"{where}: compiling", ends=True)
            fitted = fit(
                make(name, sizes[name], seed=seed),
                sequence_to_sequence(bos=BOS),
                texts,
                Schedule(settings.steps, cosine),
                seed=seed,
                progress=progress.within(where),
            )
            progress(f"{where}: translating", ends=True)
            scored[name].append(_scores(fitted.model, settings, seed))
    of = lambda field: {
        name: [[getattr(one, field) for one in row] for row in zip(*rows, strict=True)]
        for name, rows in scored.items()
    }
    return LengthFigures(settings, sizes, count, of("tokens"), of("sentences"), of("bleu"))


def make_translator(
    score: ScoreChoice, size: int, *, words: int, cell: CellName, seed: int
) -> EncoderDecoder:
    """Makes a new translator: one bidirectional layer, then one with or without attention.

    Args:
        score: Score of the decoder's attention.
        size: Size of embeddings and states; each direction of the encoder has half.
        words: Size of each vocabulary.
        cell: Cell of both layers.
        seed: Random seed of the parameters.
    """
    rngs = nnx.Rngs(seed)
    table = lambda: Embed(FIRST + words, size, scale=1.0, rngs=rngs)
    encoder = Recurrent(size, size // 2, cell, bidirectional=True, rngs=rngs)
    decoder = Recurrent(size, size, cell, rngs=rngs)
    made = None if score == "none" else make_score(score, size, size, rngs=rngs)
    return EncoderDecoder(
        RecurrentEncoder(table(), encoder),
        RecurrentDecoder(table(), decoder, encoder, made, rngs=rngs),
    )


def sentences(
    settings: LengthSettings, key: Key[Array, ""], length: Int[Array, " B"], longest: int
) -> Batch:
    """Generates random sentences and their translations, as training reads them.

    Args:
        settings: Words and their order.
        key: Random key of the sentences; translations of words do not depend on it.
        length: Number of words in each sentence.
        longest: Largest number of words.

    Example:
        >>> batch = sentences(LengthSettings(), jax.random.key(0), jnp.array([3, 1]), 4)
        >>> batch["inputs"]["source"].shape, batch["target"].shape
        ((2, 4), (2, 5))
        >>> batch["target"][:, 3], batch["target"][1, 1:]  # after the last word, EOS and padding
        (Array([2, 0], dtype=int32), Array([2, 0, 0, 0], dtype=int32))
    """
    lexicon = jnp.asarray(np.random.default_rng(_LEXICON).permutation(settings.words))
    source = jax.random.randint(key, (len(length), longest), 0, settings.words)
    places, last = jnp.arange(longest + 1)[None], length[:, None]
    inside = places < last
    at = jnp.where(inside, places if settings.order == "same" else last - 1 - places, 0)
    target = jnp.take_along_axis(lexicon[source] + FIRST, at, axis=1)
    target = jnp.where(inside, target, jnp.where(places == last, EOS, PAD))
    source = jnp.where(inside[:, :-1], source + FIRST, PAD)
    return {
        "inputs": {"source": source, "source_lengths": length},
        "target": target,
        "lengths": length + 1,
    }


def _training_sentences(settings: LengthSettings, key: Key[Array, ""]) -> Batch:
    of_lengths, of_words = jax.random.split(key)
    longest = settings.train_length
    length = jax.random.randint(of_lengths, (settings.batch_size,), 1, longest + 1)
    return sentences(settings, of_words, length, longest)


def _scores(model: EncoderDecoder, settings: LengthSettings, seed: int) -> list[LengthErrors]:
    """Returns the scores at each length; sentences of all lengths are translated together."""
    length = jnp.repeat(jnp.asarray(settings.test_lengths), settings.eval_sentences)
    key = jax.random.fold_in(jax.random.key(seed), _TEST)
    make = jax.jit(lambda key, length: sentences(settings, key, length, max(settings.test_lengths)))
    batch = make(key, length)
    search = GenerationConfig(
        decoder_start_token_id=BOS,
        eos_token_id=(EOS,),
        pad_token_id=PAD,
        suppress_tokens=(PAD, BOS),
        max_new_tokens=batch["target"].shape[1],
    )
    written = generate(model, batch["inputs"], search)
    apart = functools.partial(np.split, indices_or_sections=len(settings.test_lengths))
    sides = zip(
        apart(written), apart(np.asarray(batch["target"])), settings.test_lengths, strict=True
    )
    return [_measured(mine, wanted, T) for mine, wanted, T in sides]


def _measured(
    written: Int[np.ndarray, "B T"], target: Int[np.ndarray, "B T"], length: int
) -> LengthErrors:
    same = written[:, : length + 1] == target[:, : length + 1]
    text = lambda ids: " ".join(f"w{token}" for token in ids[ids >= FIRST])
    hypotheses, references = (list(map(text, side)) for side in (written, target))
    bleu = translation_scores(hypotheses, references, tokenize="none").bleu
    return LengthErrors(float(same[:, :length].mean()), float(same.all(1).mean()), bleu)
