"""Translators and language models as functions of text."""

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jaxtyping import Float

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.languages import Direction
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.line_translator import LineTranslator
from transformer_jax.decoding.requests import CountingLanguageModel, TextScore
from transformer_jax.decoding.text_tokenizer import TextTokenizer
from transformer_jax.decoding.translator import Translator
from transformer_jax.inference.base import Predictor, listed, warn_after, warn_of_texts
from transformer_jax.inference.capture import DecoderCapture, TranslatorCapture
from transformer_jax.inference.directions import DirectedPredictor, Languages
from transformer_jax.inference.exploring import Explorable
from transformer_jax.inference.folder_generation import note_unused_here
from transformer_jax.inference.generation_settings import (
    ConfigChoice,
    changes_of,
    generated,
    is_hf,
    refuse_hf,
    request_of,
    requests_of,
    search_settings,
    warn_if_limited,
)
from transformer_jax.inference.hf_generation import HFTextGenerator
from transformer_jax.inference.results import GeneratedText
from transformer_jax.models.recurrent_config import RecurrentConfig

if TYPE_CHECKING:
    from transformer_jax.inference.chat_session import ChatModel
    from transformer_jax.inference.embedding import Embedding
    from transformer_jax.inference.encoding.vectors import Layers, Pool
    from transformer_jax.inference.pretrained import Pretrained

__all__ = ["LanguageModelPredictor", "TranslationPredictor", "generated"]


class TranslationPredictor(TranslatorCapture, Explorable, DirectedPredictor, Predictor):
    """A trained encoder-decoder as a function from sentences to translations.

    On CTranslate2, ``model`` is None, and it can only translate. A recurrent model can translate
    and score.
    """

    _translator: LineTranslator

    def __init__(self, opened: "Pretrained"):
        self.opened, self.tokenizer = opened, opened.tokenizer
        self.model, self._translator = opened.module, opened.translator()
        self._usual = search_settings(opened.facts)
        self.folder_search = HFTextGenerator(opened, batch=32) if opened.on_jax else None

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        texts: str,
        *,
        to: str | None = ...,
        from_: str | None = ...,
        generation_config: ConfigChoice = ...,
        **settings: Any,
    ) -> GeneratedText: ...
    @overload
    def __call__(
        self,
        texts: Iterable[str],
        *,
        to: Languages = ...,
        from_: Languages = ...,
        generation_config: ConfigChoice = ...,
        **settings: Any,
    ) -> list[GeneratedText]: ...
    def __call__(
        self,
        texts: str | Iterable[str],
        *,
        to: Languages = None,
        from_: Languages = None,
        generation_config: ConfigChoice = None,
        **settings: Any,
    ) -> GeneratedText | list[GeneratedText]:
        """Returns the translation of a sentence, or a list of translations.

        The translation of an empty sentence is empty. Translations do not depend on other sentences
        of the call. A warning counts translations that reach the length limit.

        Args:
            texts: One sentence or many.
            to: Language of the translations, for a multilingual translator; or a list of one per
                sentence.
            from_: Language of the sentences, or a list of one per sentence.
            generation_config: Settings of the search; None is beam search with 4 beams, scores
                normalized for length (Wu et al. 2016), with the length limit and the length penalty
                of the run. ``"hf"`` searches as in Hugging Face ``transformers``, with the
                checkpoint's generation config.
            **settings: Settings of :class:`.GenerationConfig` that override these, such as
                ``num_beams``, ``num_return_sequences`` (all but the best are ``alternatives``),
                ``length_penalty``, ``max_len_a`` and ``max_len_b``; None is ignored.

        Raises:
            ConfigError: A setting is unknown or out of range, or a language is unknown or missing.
            NumericsError: The model computed NaN or infinity.
        """
        changes, given = changes_of(generation_config, settings), listed(texts)
        directions = self.directions(from_, to, len(given))
        if is_hf(generation_config):
            if self.folder_search is None:
                where = self.opened.facts.source
                raise ConfigError(f"{where}: CTranslate2 does not support generation_config hf")
            with warn_of_texts(self.folder_search.counts):
                return _first(
                    texts, [*map(generated, self.folder_search(given, changes, directions))]
                )
        note_unused_here(self, "translator", changes)
        search = TRANSLATION.changed(**self._usual | changes)
        translator = self._translator
        with warn_of_texts(translator.counts), warn_if_limited(translator, search):
            translations = translator.translate(given, search, directions)
        return _first(texts, [generated(one.hypotheses) for one in translations])

    def embed(
        self,
        texts: str | Iterable[str],
        *,
        layers: "Layers" = "last",
        pooling: "Pool | None" = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        to: str | None = None,
        from_: str | None = None,
    ) -> Float[np.ndarray, "*B_and_layers D"]:
        """Returns the vectors of texts by the encoder, see :meth:`.Embedding.embed`.

        A multilingual translator encodes them as for translation from ``from_`` to ``to``.

        Raises:
            ConfigError: The model runs on CTranslate2 or is recurrent; a layer, pooling or prompt
                is unknown; or a language is unknown or missing.
        """
        self._refuse_engine()
        return self._sentences(self._direction(from_, to)).embed(
            texts, layers=layers, pooling=pooling, prompt_name=prompt_name, prompt=prompt
        )

    @functools.cache  # noqa: B019  (one for each direction of one model)
    def _sentences(self, direction: Direction) -> "Embedding":
        """Returns the encoder as a function from texts to vectors."""
        from transformer_jax.inference.embedding import Embedding

        if isinstance(self.opened.facts.config, RecurrentConfig):
            where = self.opened.facts.source
            raise ConfigError(
                f"{where}: a recurrent translator, which has no sentence vectors: use a Transformer"
            )
        return Embedding(self.opened, direction)

    def score(
        self,
        sources: str | Sequence[str],
        targets: str | Sequence[str],
        *,
        to: Languages = None,
        from_: Languages = None,
    ) -> float | list[float]:
        """Returns the log-probability of a target given its source in nats, or a list of them.

        Args:
            sources: One sentence or many.
            targets: Their translations.
            to: Language of the targets, for a multilingual translator; or a list of one per target.
            from_: Language of the sources, or a list of one per source.

        Raises:
            DataError: The numbers of sources and targets differ, or a target is too long.
            ConfigError: The model runs on CTranslate2, or a language is unknown or missing.
        """
        scorer = self._refuse_engine()
        read, written = listed(sources), listed(targets)
        directions = self.directions(from_, to, len(read))
        with warn_of_texts(scorer.counts):
            found = [score.log_prob for score in scorer.score(read, written, directions)]
        return found[0] if isinstance(sources, str) and isinstance(targets, str) else found

    def _refuse_engine(self) -> Translator:
        """Returns the translator, which must run on JAX.

        Raises:
            ConfigError: The translator runs on CTranslate2.
        """
        if not isinstance(self._translator, Translator):
            where = self.opened.facts.source
            raise ConfigError(f"{where}: CTranslate2 only translates: leave engine out")
        return self._translator


class LanguageModelPredictor(DecoderCapture, Explorable, Predictor):
    """A trained decoder, or an n-gram model, as a function from prompts to texts.

    On CTranslate2, ``model`` is None.
    """

    tokenizer: TextTokenizer
    _language: CountingLanguageModel

    def __init__(self, opened: "Pretrained"):
        self.opened, self.model, self.tokenizer = opened, opened.module, opened.tokenizer
        self._language = opened.language()
        searches = opened.on_jax and not opened.adapters
        self.folder_search = HFTextGenerator(opened, batch=32) if searches else None
        self._chat: ChatModel | None = None

    def with_adapters(
        self, adapters: Mapping[str, str | os.PathLike[str]]
    ) -> "LanguageModelPredictor":
        """Returns the same model with several adapters; this predictor is unchanged.

        ``generate(prompts, adapter=name)`` selects an adapter, or one per prompt in a single batch.
        Without ``adapter``, and for scores, the plain model is used.

        Args:
            adapters: Runs that were trained with adapters on this model, or folders in PEFT's
                format, by name.

        Raises:
            CheckpointError: A path has no adapter, or an adapter is damaged or belongs to another
                base.
            ConfigError: The model is an n-gram model, or runs on CTranslate2.
        """
        from transformer_jax.inference.adapters import with_adapters_of

        if self.folder_search is None:
            where = self.opened.facts.source
            raise ConfigError(f"{where}: adapters need a decoder that runs on JAX")
        return LanguageModelPredictor(with_adapters_of(self.opened, adapters))

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompts: str, *, generation_config: ConfigChoice = ..., **settings: Any
    ) -> GeneratedText: ...
    @overload
    def generate(
        self, prompts: Iterable[str], *, generation_config: ConfigChoice = ..., **settings: Any
    ) -> list[GeneratedText]: ...
    def generate(
        self,
        prompts: str | Iterable[str],
        *,
        generation_config: ConfigChoice = None,
        **settings: Any,
    ) -> GeneratedText | list[GeneratedText]:
        """Returns the continuation of a prompt, without the prompt, or a list of continuations.

        Args:
            prompts: One prompt or many.
            generation_config: Settings; None samples at most 128 tokens at temperature 1. ``"hf"``
                searches as in Hugging Face ``transformers``, with the checkpoint's generation
                config.
            **settings: Settings of :class:`.GenerationConfig` that override these, such as
                ``max_new_tokens``, ``temperature`` and ``num_beams``. ``stop`` may be a single
                text; ``adapter`` is a name, or a list of one per prompt.

        Raises:
            ConfigError: A setting is unknown or out of range.
            NumericsError: The model computed NaN or infinity.
        """
        changes = changes_of(generation_config, settings)
        if is_hf(generation_config):
            return _first(prompts, self._by_hf_config(listed(prompts), changes))
        note_unused_here(self, "language model", changes)
        requests = requests_of(listed(prompts), changes)
        with warn_of_texts(self._language.counts):
            found = self._language.generate(requests)
        return _first(prompts, list(map(generated, found)))

    __call__ = generate

    def _by_hf_config(self, prompts: list[str], changes: dict[str, Any]) -> list[GeneratedText]:
        if self.folder_search is None:
            where = self.opened.facts.source
            raise ConfigError(
                f"{where}: n-gram models, CTranslate2 and models with a choice of adapters "
                f"have no generation config"
            )
        with warn_of_texts(self.folder_search.counts):
            return [*map(generated, self.folder_search(prompts, changes))]

    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        generation_config: ConfigChoice = None,
        **settings: Any,
    ) -> GeneratedText:
        """Returns the answer to a conversation, with the chat template of the model.

        For a conversation that begins like the previous one, only new tokens are computed. If the
        context is full, the oldest turns are dropped, except a system prompt.

        Args:
            messages: Messages with ``role`` (system, user, assistant) and ``content``; the last one
                is not from the assistant.
            generation_config: See :meth:`generate`, except ``"hf"``.
            **settings: See :meth:`generate`, except beams and several texts.

        Raises:
            ConfigError: The model has no chat template, or a message or setting is invalid.
            DataError: The chat template refuses the conversation, or it is too long.
        """
        from transformer_jax.data.conversations import check_asked

        checked = check_asked(list(messages))
        changes = changes_of(generation_config, settings)
        for name in ("num_beams", "num_return_sequences"):
            if changes.get(name, 1) != 1:
                raise ConfigError(f"{name}: an answer is one text, sampled or greedy: leave it out")
        refuse_hf(generation_config, "answers")
        request = request_of("", changes)
        note_unused_here(self, "language model", changes, has_hf=False)
        if self._chat is None:
            from transformer_jax.inference.chats import answering

            self._chat = answering(self.opened.facts, self.opened.chat, self._language)
        with warn_of_texts(self._chat.language.counts):
            return generated([self._chat.answer(checked, request)])

    def stream(
        self, prompt: str, *, generation_config: GenerationConfig | None = None, **settings: Any
    ) -> Iterator[str]:
        """Yields the continuation of a prompt in parts, as they are generated.

        Args:
            prompt: The prompt.
            generation_config: See :meth:`generate`, except ``"hf"``.
            **settings: See :meth:`generate`, except beams.
        """
        changes = changes_of(generation_config, settings)
        note_unused_here(self, "language model", changes, has_hf=False)
        request = request_of(prompt, changes)
        return warn_after(self._language.stream(request), self._language.counts)

    def score(self, texts: str | Iterable[str]) -> TextScore | list[TextScore]:
        """Returns the log-probability of a text and of its tokens in nats, or a list of them."""
        with warn_of_texts(self._language.counts):
            found = list(self._language.score(listed(texts)))
        return found[0] if isinstance(texts, str) else found


def _first(texts: str | Iterable[str], found: list[GeneratedText]) -> Any:
    """Returns one result for a string, or a list."""
    return found[0] if isinstance(texts, str) else found
