"""Models on CTranslate2: from batches of token ids to tokens and log-probabilities."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.interop.ctranslate2 import import_ctranslate2, vocabulary
from transformer_jax.interop.family import Model

__all__ = ["CTranslate2Engine", "check_compute", "check_settings"]

Begins = Sequence[Sequence[int]]  # one per row, or empty
# (row, token, log-probability of a new token) -> whether the row ends with it.
Receive = Callable[[int, int, float], bool]

_COOLEST = 1e-6  # lower temperatures overflow float32
_SEEDS = 2**32 - 1


# Settings of a GenerationConfig that CTranslate2 supports, or that are implemented around it.
_COMMON = {
    *("max_new_tokens", "max_length", "num_beams", "num_return_sequences", "do_sample", "seed"),
    *("temperature", "top_k", "top_p", "normalization", "early_stopping", "at_limit"),
}
SETTINGS = {
    "translator": _COMMON
    | {"length_penalty", "min_length", "min_new_tokens", "max_len_a", "max_len_b", "allow_unk"},
    "language model": _COMMON | {"repetition_penalty", "no_repeat_ngram_size", "stop"},
}


def check_settings(config: GenerationConfig, kind: Literal["translator", "language model"]) -> None:
    """Refuses settings that CTranslate2 does not support.

    Raises:
        ConfigError: The message names the setting.

    Example:
        >>> check_settings(GenerationConfig(min_p=0.1), "translator")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: min_p: CTranslate2 has no such setting: leave ...
    """
    reason = "CTranslate2 has no such setting: leave it out, or use the engine jax"
    config.refuse_settings(SETTINGS[kind], reason)


def depends_on_text(config: GenerationConfig) -> bool:
    """Returns whether settings penalize tokens by the prompt or the text."""
    return config.repetition_penalty != 1 or config.no_repeat_ngram_size > 0


class CTranslate2Engine:
    """A translator or language model on CTranslate2.

    Log-probabilities are normalized over the tokens that may be generated.

    Attributes:
        encodes: Whether the model is a translator.
        window: The maximum length of a prompt that is read at once; None is unlimited.
    """

    def __init__(self, folder: Path, model: Model, tokenizer: Tokenizer, compute: str = "float32"):
        """Loads a folder of :func:`~transformer_jax.interop.ctranslate2.write_ctranslate2`.

        Args:
            folder: The exported model.
            model: The description of the model.
            tokenizer: The tokenizer.
            compute: Data type of weights and products: float32, int8, int16 ...

        Raises:
            ConfigError: The package is missing, or the processor does not support the data type.
            CheckpointError: The folder is damaged.
        """
        check_compute(compute)
        self.encodes = model.kind == "encoder-decoder"
        self.window = model.config.scores.sliding_window
        self._folder, self._compute = folder, compute
        self._source = vocabulary(tokenizer, model.config.vocab_size)
        self._target = vocabulary(tokenizer, model.config.decoder().vocab_size)
        self._ends = list(tokenizer.end_tokens)
        tags = tokenizer.languages.ids if tokenizer.languages else ()
        self._tags = [self._target[id] for id in sorted(tags)]
        self._ids = {name: id for id, name in enumerate(self._target)}
        self._model = self._load()

    def _load(self) -> Any:
        package = import_ctranslate2()
        make = package.Translator if self.encodes else package.Generator
        try:
            return make(str(self._folder), device="cpu", compute_type=self._compute)
        except (RuntimeError, ValueError) as error:
            why = " ".join(str(error).split())
            raise CheckpointError(f"{self._folder}: CTranslate2 cannot load it: {why}") from None

    def reseed(self, seed: int) -> None:
        """Makes the next samples depend only on ``seed``.

        A worker is seeded only when it starts, so the model is loaded into a new one.
        """
        self._model = None  # so that two are never in memory
        import_ctranslate2().set_random_seed(seed % _SEEDS)
        self._model = self._load()

    def generate(
        self,
        rows: Sequence[Sequence[int]],
        longest: int,
        config: GenerationConfig,
        receive: Receive,
        begins: Begins = (),
    ) -> None:
        """Generates each row token by token, until EOS, the limit, or ``receive`` returns True.

        Args:
            rows: Sources of a translator, prompts of a language model.
            longest: Maximum number of new tokens per row.
            config: Settings of greedy search, or of sampling with ``do_sample``.
            receive: Called with each new token, including EOS.
            begins: The first tokens of each translation, equally many.

        Raises:
            NumericsError: The model computed NaN or infinity.
        """
        whole = self._reads_stepwise(rows, depends_on_text(config))
        given = len(begins[0]) if begins else 0
        prompt = [len(row) - 1 if whole else given for row in rows]
        failed: list[BaseException] = []

        def callback(step: Any) -> bool:
            row = int(step.batch_id)
            if prompt[row]:  # a token of the prompt or prefix
                prompt[row] -= 1
                return False
            try:
                refuse_nonfinite(step.log_prob)
                return receive(row, int(step.token_id), float(step.log_prob))
            except BaseException as error:  # raised below, since it cannot cross C++ threads
                failed.append(error)
                return True

        how = self._common(config, given) | {
            "beam_size": 1,
            "length_penalty": 0,
            "repetition_penalty": config.repetition_penalty,
            "no_repeat_ngram_size": config.no_repeat_ngram_size,
            "callback": callback,
        }
        if config.do_sample and config.temperature > 0:
            how |= {
                "sampling_temperature": max(config.temperature, _COOLEST),
                "sampling_topk": min(config.top_k or 0, len(self._target)),
                "sampling_topp": 1.0 if config.top_p is None else config.top_p,
            }
        self._run(rows, longest, whole, how, begins)
        if failed:
            raise failed[0]

    def beam_search(
        self,
        rows: Sequence[Sequence[int]],
        longest: int,
        config: GenerationConfig,
        exhaustive: bool = False,
        begins: Begins = (),
    ) -> list[list[tuple[list[int], float]]]:
        """Returns the hypotheses of each row: tokens, including EOS, and log-probability.

        Complete ones are first, best first, followed by those truncated by the limit, without EOS.

        Args:
            rows: Sources of a translator, or prompts of a language model of equal length.
            longest: Maximum number of new tokens per row.
            config: The beam search.
            exhaustive: Whether to search up to the length limit and to return all complete
                hypotheses. Otherwise the search ends with ``num_beams`` complete hypotheses, or
                without length penalty with ``num_return_sequences`` complete ones, which include
                the best.
            begins: The first tokens of each translation, equally many.

        Raises:
            NumericsError: The model computed NaN or infinity.
        """
        whole = self._reads_stepwise(rows, False)
        patience = float(longest) if exhaustive else 1.0
        alpha = 0.0 if config.normalization == "none" else config.length_penalty
        if exhaustive and not alpha:
            alpha = 1e-9  # with 0, search ends when the best is complete
        most = config.num_return_sequences if not alpha else round(config.num_beams * patience)
        # CTranslate2 counts the first tokens of a translation and returns them.
        given = len(begins[0]) if begins else 0
        how = self._common(config, given) | {
            "beam_size": config.num_beams,
            "num_hypotheses": most,
            "patience": patience,
            "length_penalty": alpha,
        }
        start = len(rows[0]) if whole else given
        counted = start - whole  # tokens of the prompt that CTranslate2 counts in the length
        found = []
        for texts, scores in self._run(rows, longest, whole, how, begins):
            refuse_nonfinite(scores)
            texts = [text[start:] for text in texts]
            worth = [
                score * (counted + len(text)) ** alpha
                for text, score in zip(texts, scores, strict=True)
            ]
            ended = lambda pair: pair[0][-1] in self._ends if pair[0] else False
            found.append(sorted(zip(texts, worth, strict=True), key=ended, reverse=True))
        return found

    def log_probs(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Returns the log-probability of each token of texts except the first, by a language model.

        Raises:
            NumericsError: The model computed NaN or infinity.
        """
        named = [[self._target[id] for id in text] for text in texts]
        found = [list(one.log_probs) for one in self._model.score_batch(named, max_input_length=0)]
        for values in found:
            refuse_nonfinite(values)
        return found

    def _common(self, config: GenerationConfig, given: int) -> dict[str, object]:
        least = "min_decoding_length" if self.encodes else "min_length"
        never = [*(self._target[id] for id in config.suppress_tokens), *self._tags]
        return {
            least: config.shortest() + given,
            "suppress_sequences": [[token] for token in never] or None,
            "disable_unk": not config.allow_unk,
            "return_scores": True,
            "return_end_token": True,
            "end_token": self._ends,
        }

    def _run(
        self,
        rows: Sequence[Sequence[int]],
        longest: int,
        whole: bool,
        how: dict[str, object],
        begins: Begins,
    ) -> list[tuple[list[list[int]], list[float]]]:
        """Returns the texts of each row as ids, and their scores."""
        names = self._source if self.encodes else self._target
        named = [[names[id] for id in row] for row in rows]
        if self.encodes:
            prefix = [[self._target[id] for id in ids] for ids in begins]
            given = len(begins[0]) if begins else 0
            how |= {"max_decoding_length": longest + given, "max_input_length": 0}
            how |= {"target_prefix": prefix} if given else {}
            found = self._model.translate_batch(named, **how)
            ids = lambda text: [self._ids[name] for name in text]
            return [(list(map(ids, one.hypotheses)), one.scores) for one in found]
        longest += max(map(len, rows)) - 1 if whole else 0
        how |= {"max_length": longest, "include_prompt_in_result": whole}
        return [
            ([list(text) for text in one.sequences_ids], one.scores)
            for one in self._model.generate_batch(named, **how)
        ]

    def _reads_stepwise(self, rows: Sequence[Sequence[int]], penalized: bool) -> bool:
        """Returns whether prompts are read token by token.

        Otherwise penalties ignore prompt tokens, windows are not applied, and prompts in a batch
        with a prompt of a single token would be returned as if they had been generated.
        """
        if self.encodes:
            return False
        lengths = [len(row) for row in rows]
        beyond = self.window is not None and max(lengths) > self.window
        return penalized or beyond or (min(lengths) == 1 < max(lengths))


def check_compute(compute: str) -> None:
    """Refuses data types that CTranslate2 does not support on this processor.

    Raises:
        ConfigError: The data type is not supported; the message names supported ones. Or the
            package is missing.
    """
    supported = sorted(import_ctranslate2().get_supported_compute_types("cpu"))
    if compute not in supported:
        raise ConfigError(
            f"compute is {compute}: CTranslate2 has {', '.join(supported)} on this processor"
        )
