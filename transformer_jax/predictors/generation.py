"""Translators and language models as functions of text."""

import contextvars
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from transformer_jax.predictors.inputs import listed, truncation
from transformer_jax.predictors.results import GeneratedText
from transformer_jax.predictors.runs import as_trained, load, load_language
from transformer_jax.predictors.texts import Embedding

if TYPE_CHECKING:
    from transformer_jax.decoding.requests import TextScore
    from transformer_jax.decoding.translator import TextTokenizer

__all__ = ["GenerationSettings", "LanguageModelPredictor", "TranslationPredictor"]


class GenerationSettings(TypedDict, total=False):
    """Settings of text generation, each optional."""

    max_new_tokens: int  # 128 unless given
    temperature: float  # 1 unless given; 0 is greedy
    top_k: int | None  # sample from the k most probable tokens
    top_p: float | None  # from the fewest tokens that hold this probability
    min_p: float | None  # from tokens at least this fraction as probable as the most probable
    repetition_penalty: float  # above 1 makes tokens that were read or written less probable
    no_repeat_ngram_size: int  # no n-gram of this size comes twice; 0 is free
    stop: str | Sequence[str]  # the text ends before the first of these strings
    num_beams: int  # more than 1 is beam search instead of sampling
    num_return_sequences: int  # texts of each prompt
    seed: int  # random seed for sampling


class TranslationPredictor(Embedding):
    """A trained encoder-decoder as a function from sentences to translations.

    Args:
        path: A run directory or a Hugging Face checkpoint.
        checkpoint: ``best``, ``last``, a step, or ``average:N``, the mean of the last N.

    Attributes:
        model: The Flax module.
        tokenizer: Tokenizer used in training.

    Raises:
        ConfigError: The model is of another family.
        CheckpointError: Nothing trained is there, or its files are damaged.
    """

    def __init__(self, path: Path, checkpoint: str = "best"):
        from flax import nnx

        from transformer_jax.decoding.translator import Translator

        loaded = load(path, checkpoint)
        super().__init__(path, loaded)
        self.tokenizer = loaded[1]
        self.model: Any = nnx.merge(*loaded[0])
        self._translator = Translator(loaded[0], self.tokenizer)
        self._prepare = as_trained(path)

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        texts: str,
        *,
        num_beams: int = ...,
        num_return_sequences: int = ...,
        length_penalty: float = ...,
    ) -> GeneratedText: ...
    @overload
    def __call__(
        self,
        texts: Iterable[str],
        *,
        num_beams: int = ...,
        num_return_sequences: int = ...,
        length_penalty: float = ...,
    ) -> list[GeneratedText]: ...
    def __call__(
        self,
        texts: str | Iterable[str],
        *,
        num_beams: int = 4,
        num_return_sequences: int = 1,
        length_penalty: float = 0.6,
    ) -> GeneratedText | list[GeneratedText]:
        """The translation of a sentence, or a list with that of each sentence.

        An empty sentence stays empty. A translation depends on its sentence alone, not on those
        that are translated with it.

        Args:
            texts: One sentence or many.
            num_beams: Hypotheses that beam search keeps; 1 is greedy search.
            num_return_sequences: Translations of each sentence, at most ``num_beams``; all but the
                best are ``alternatives``.
            length_penalty: Exponent of the length that scores are divided by (Wu et al. 2016);
                0 prefers short translations.

        Raises:
            ConfigError: A setting is out of range.
            NumericsError: The model computed NaN or infinity.
        """
        from transformer_jax.decoding.options import BeamSearchConfig

        search = BeamSearchConfig(
            num_beams=num_beams, nbest=num_return_sequences, length_penalty=length_penalty
        )
        lines = map(self._prepare, listed(texts))
        with truncation(lambda: self._translator.counts["cut"]):
            found = [_best(one.hypotheses) for one in self._translator.translate(lines, search)]
        return found[0] if isinstance(texts, str) else found

    def score(self, sources: str | Sequence[str], targets: str | Sequence[str]) -> list[float]:
        """The log-probability of each target given its source, in nats; a list also of one pair.

        Raises:
            DataError: There are more of the one than of the other, or a target is too long.
        """
        pairs = [list(map(self._prepare, listed(side))) for side in (sources, targets)]
        return [score.log_prob for score in self._translator.score(*pairs)]


class LanguageModelPredictor:
    """A trained decoder, or an n-gram model, as a function from prompts to texts.

    Args:
        path: A run directory or a Hugging Face checkpoint.
        checkpoint: ``best``, ``last``, a step, or ``average:N``, the mean of the last N.

    Attributes:
        tokenizer: Tokenizer used in training.

    Raises:
        ConfigError: The model is of another family.
        CheckpointError: Nothing trained is there, or its files are damaged.
    """

    tokenizer: "TextTokenizer"

    def __init__(self, path: Path, checkpoint: str = "best"):
        # The model itself is loaded later, as it would be now.
        self._later = contextvars.copy_context(), path.absolute(), checkpoint
        self._language: Any = load_language(path, checkpoint)
        self.tokenizer = self._language.tokenizer
        self._prepare = as_trained(path, trim=False)

    @functools.cached_property
    def model(self) -> Any:
        """The Flax module; of an n-gram model its counts."""
        if hasattr(self._language, "model"):
            return self._language.model
        from flax import nnx

        context, path, checkpoint = self._later
        found = context.copy().run(functools.partial(load, kind="decoder"), path, checkpoint)
        return nnx.merge(*found[0])

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompts: str, **settings: Unpack[GenerationSettings]
    ) -> GeneratedText: ...
    @overload
    def generate(
        self, prompts: Iterable[str], **settings: Unpack[GenerationSettings]
    ) -> list[GeneratedText]: ...
    def generate(
        self, prompts: str | Iterable[str], **settings: Unpack[GenerationSettings]
    ) -> GeneratedText | list[GeneratedText]:
        """The continuation of a prompt, or a list with that of each prompt, without the prompts.

        Args:
            prompts: One prompt or many.
            **settings: As in :class:`GenerationSettings`.

        Raises:
            ConfigError: A setting is unknown or out of range.
            NumericsError: The model computed NaN or infinity.
        """
        requests = [_request(self._prepare(prompt), settings) for prompt in listed(prompts)]
        with truncation(lambda: self._cut):
            written = self._language.generate(requests)
        found = [
            _best(
                [
                    GeneratedText(
                        one.text, score=one.log_prob, tokens=one.tokens, finish_reason=one.reason
                    )
                    for one in texts
                ]
            )
            for texts in written
        ]
        return found[0] if isinstance(prompts, str) else found

    __call__ = generate

    @property
    def _cut(self) -> int:
        return getattr(self._language, "counts", {}).get("cut", 0)

    def stream(self, prompt: str, **settings: Unpack[GenerationSettings]) -> Iterator[str]:
        """The continuation of a prompt in parts, each as soon as it is written.

        Args:
            prompt: The prompt.
            **settings: As of :meth:`generate`, without beams.
        """
        return iter(self._language.stream(_request(self._prepare(prompt), settings)))

    def score(self, texts: str | Iterable[str]) -> "list[TextScore]":
        """The log-probability of each text and of each of its tokens, in nats."""
        return list(self._language.score([self._prepare(text) for text in listed(texts)]))


# Settings of generation by the names that they have elsewhere, too.
_NAMES = {
    "max_new_tokens": "tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "stop": "stop",
    "num_beams": "beams",
    "seed": "seed",
}


def _request(prompt: str, settings: GenerationSettings) -> Any:
    """A prompt with its settings, as language models take them.

    Raises:
        ConfigError: A setting is unknown or out of range.
    """
    from transformer_jax.decoding.requests import GenerationRequest
    from transformer_jax.errors import ConfigError

    known = GenerationSettings.__annotations__
    if unknown := [name for name in settings if name not in known]:
        raise ConfigError(f"{unknown[0]} is no setting of generation: there are {', '.join(known)}")
    given: dict[str, Any] = {
        _NAMES[name]: value for name, value in settings.items() if name in _NAMES
    }
    stop = settings.get("stop", ())
    given["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    several = settings.get("num_return_sequences", 1)
    given["nbest" if given.get("beams", 1) != 1 else "samples"] = several
    return GenerationRequest(prompt, **given)


def _best(texts: Sequence[Any]) -> GeneratedText:
    """The first of some texts, which has the others as its alternatives."""
    best, *others = (
        text
        if isinstance(text, GeneratedText)
        else GeneratedText(text.text, score=text.score, tokens=text.tokens)
        for text in texts
    )
    best.alternatives = tuple(others)
    return best
