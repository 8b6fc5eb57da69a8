"""The inputs of a search program: a static plan, and the settings as arrays."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from transformer_jax.decoding.generation_config import GenerationConfig, Normalization
from transformer_jax.decoding.length_penalty import length_penalty
from transformer_jax.decoding.options import SpecialTokens

__all__ = [
    "NEUTRAL",
    "SearchPlan",
    "SearchValues",
    "penalty_table",
    "plan_of",
    "search_settings",
    "token_mask",
    "used",
    "values_of",
    "with_special",
]

# Logits processors in the order of transformers, with values that disable each.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "sequence_bias": ((),),
    "encoder_repetition_penalty": (1,),
    "repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "bad_words_ids": ((),),
    "min_length": (0, 1),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": ((),),
    "remove_invalid_values": (False,),
    "exponential_decay_length_penalty": (None,),
    "suppress_tokens": ((),),
    "begin_suppress_tokens": ((),),
    "temperature": (),
    "top_k": (None,),
    "top_p": (None,),
    "min_p": (None,),
    "renormalize_logits": (False,),
}
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
# These only forbid tokens, so beams rank raw logits and normalize only a few.
MASKS = {"min_length", "suppress_tokens"}
READS_TEXT = {
    "sequence_bias",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
}
# Values that are shared by all rows, or one per row.
_EACH = (
    "min_length",
    "repetition",
    "encoder_repetition",
    "ngram",
    "encoder_ngram",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
)


# Values that each processor reads.
_READ = {
    "sequence_bias": ("biased", "biases"),
    "encoder_repetition_penalty": ("encoder_repetition",),
    "repetition_penalty": ("repetition",),
    "no_repeat_ngram_size": ("ngram",),
    "encoder_no_repeat_ngram_size": ("encoder_ngram",),
    "bad_words_ids": ("barred", "barriers"),
    "min_length": ("min_length",),
    "forced_bos_token_id": ("forced_first",),
    "forced_eos_token_id": ("forced_last", "at_last"),
    "remove_invalid_values": ("finite",),
    "exponential_decay_length_penalty": ("decay",),
    "suppress_tokens": ("suppressed",),
    "begin_suppress_tokens": ("begin_suppressed", "first"),
    "renormalize_logits": ("renormalize",),
}


# On the host when it is planned, on a device in a program.
Value: TypeAlias = Array | np.ndarray | np.int32 | np.float32 | np.bool_


class SearchPlan(NamedTuple):
    """The static part of a search, which determines the compiled program."""

    beams: int = 1
    kept: int = 1  # finished hypotheses to keep: the returned ones, or all beams ("hf")
    finishing: str = "optimal"
    cut: bool = True  # at the limit a text is cut; otherwise its end token is scored
    processors: tuple[str, ...] = ()  # in the order of NEUTRAL
    ngram: int = 0  # the largest n of any row
    encoder_ngram: int = 0
    ends: int = 1  # number of end tokens
    biased: tuple[int, int] = (0, 0)  # number of sequences with a bias, and their largest length
    barred: tuple[int, int] = (0, 0)  # the same for sequences that are never written

    @property
    def ranks_log_probs(self) -> bool:
        """Returns whether beams rank log-probabilities of all tokens, like transformers."""
        return self.beams > 1 and (self.finishing == "hf" or bool(set(self.processors) - MASKS))

    @property
    def reads_text(self) -> bool:
        """Returns whether scores depend on the tokens of prompt and text."""
        return bool(READS_TEXT & set(self.processors))

    @property
    def may_end_short(self) -> bool:
        """Returns whether the last step may end a text shorter than ``min_length``."""
        return not self.cut or (self.beams == 1 and self.finishing == "optimal")

    @property
    def missing_score(self) -> float:
        """The score of a missing hypothesis; transformers subtracts 1e9."""
        return -1e9 if self.finishing == "hf" else -np.inf


class SearchValues(NamedTuple):
    """The settings of a search as arrays: shared by all rows, or one per row; None is unused."""

    ends: Int[Value, " E"]  # -1 is none
    pad: Int[Value, ""]  # fills after an end
    penalties: Float32[Value, "#B T"] | None = None  # divisors of log-probabilities by length
    min_length: Int[Value, "*B"] | None = None  # smallest number of tokens, including the end
    # Continues to the limit, where the result is the same ("optimal").
    patient: Bool[Value, ""] | None = None
    eager: Bool[Value, ""] | None = None  # a sentence is done once all hypotheses have ended ("hf")
    hopeful: Bool[Value, ""] | None = None  # beams are expected to get the longest text ("hf")
    suppressed: Bool[Value, " V"] | None = None
    begin_suppressed: Bool[Value, " V"] | None = None
    first: Int[Value, ""] | None = None  # number of columns before the first written token
    forced_first: Int[Value, ""] | None = None
    forced_last: Bool[Value, " V"] | None = None
    at_last: Int[Value, ""] | None = None  # number of written tokens when the last is forced
    repetition: Float32[Value, "*B"] | None = None
    encoder_repetition: Float32[Value, "*B"] | None = None
    ngram: Int[Value, "*B"] | None = None
    encoder_ngram: Int[Value, "*B"] | None = None
    biased: Int[Value, "N L"] | None = None  # sequences, right-aligned and padded with -1
    biases: Float32[Value, " N"] | None = None
    barred: Int[Value, "N L"] | None = None
    barriers: Float32[Value, " N"] | None = None
    decay: Float32[Value, " T"] | None = None  # added to the score of ends, by number of new tokens
    finite: Bool[Value, ""] | None = None
    renormalize: Bool[Value, ""] | None = None
    temperature: Float32[Value, "*B"] | None = None
    top_k: Int[Value, "*B"] | None = None
    top_p: Float32[Value, "*B"] | None = None
    min_p: Float32[Value, "*B"] | None = None

    def map_rows(self, change: Callable[[Value], Value]) -> "SearchValues":
        """Replaces values that differ between rows."""
        rows = {name: getattr(self, name) for name in _EACH if np.ndim(getattr(self, name)) == 1}
        return self._replace(**{name: change(value) for name, value in rows.items()})

    def take(self, rows: Int[Array, " n"]) -> "SearchValues":
        """Returns the values of some rows."""
        some = self.map_rows(lambda value: jnp.asarray(value)[rows])
        table = some.penalties
        if table is None or table.shape[0] == 1:
            return some
        return some._replace(penalties=jnp.asarray(table)[rows])


def plan_of(
    configs: Iterable[GenerationConfig],
    *,
    beams: int = 1,
    sampled: bool = False,
    kept: int | None = None,
) -> SearchPlan:
    """Returns the plan of a program for all ``configs``.

    Args:
        configs: Configurations with the same ``finishing`` and ``at_limit``.
        beams: Number of beams per text.
        sampled: Whether tokens are sampled.
        kept: Number of finished hypotheses; None is ``num_return_sequences``, or all beams for
            ``hf``.

    Example:
        >>> plan = plan_of([GenerationConfig(eos_token_id=(2,), top_k=3, min_length=4)])
        >>> plan.processors, plan.ends
        (('min_length',), 1)
    """
    each = list(configs)
    first = each[0]
    most = lambda size: max(size(one) for one in each)
    table = lambda runs: (most(lambda one: len(runs(one))), most(lambda one: _longest(runs(one))))

    def used(name: str) -> bool:
        if name in SAMPLING and not sampled:
            return False
        value = lambda one: one.barred if name == "bad_words_ids" else getattr(one, name)
        neutral = NEUTRAL[name]
        on = any(value(one) not in neutral for one in each)
        return on or (name == "min_length" and any(one.min_new_tokens for one in each))

    optimal = first.finishing == "optimal"
    if kept is None:
        kept = first.num_return_sequences if optimal and beams > 1 else beams
    return SearchPlan(
        beams=beams,
        kept=kept,
        finishing=first.finishing,
        cut=beams == 1 or first.at_limit == "cut",
        processors=tuple(filter(used, NEUTRAL)),
        ngram=most(lambda one: one.no_repeat_ngram_size),
        encoder_ngram=most(lambda one: one.encoder_no_repeat_ngram_size),
        ends=max(1, most(lambda one: len(one.eos_token_id))),
        biased=table(lambda one: [run for run, _ in one.sequence_bias]),
        barred=table(lambda one: one.barred),
    )


def values_of(
    config: GenerationConfig,
    plan: SearchPlan,
    *,
    vocab: int,
    length: int,
    prompt: int = 1,
    longest: int | None = None,
) -> SearchValues:
    """Returns the settings of a configuration as arrays, for the program of a plan.

    Args:
        config: The configuration.
        plan: A plan from :func:`plan_of`, for this and possibly other configurations.
        vocab: V, the number of tokens that the model can write.
        length: T, the largest number of tokens that the program writes.
        prompt: Number of tokens before the first written one, including padding.
        longest: Number of tokens in a text, including the prompt; None is ``prompt + length``.

    Example:
        >>> config = GenerationConfig(eos_token_id=(3,), length_penalty=2.0)
        >>> values = values_of(config, plan_of([config]), vocab=5, length=3)
        >>> values.ends.tolist(), values.penalties.tolist(), values.suppressed
        ([3], [[1.0, 1.0, 4.0, 9.0]], None)
    """
    ranked = plan.finishing == "hf" and plan.beams > 1
    biases = np.array([bias for _, bias in config.sequence_bias], np.float32)
    later = prompt == 1 and config.forced_bos_token_id is not None
    longest = prompt + length if longest is None else longest
    values = SearchValues(
        ends=_filled(config.eos_token_id, plan.ends),
        pad=np.int32(config.fill if ranked else config.pad),
        penalties=penalty_table(config.normalization, config.length_penalty, length),
        min_length=np.int32(config.shortest(prompt) + 1),
        eager=np.bool_(config.early_stopping is True),
        hopeful=np.bool_(config.early_stopping == "never" and config.length_penalty > 0),
        suppressed=token_mask(config.suppress_tokens, vocab),
        begin_suppressed=token_mask(config.begin_suppress_tokens, vocab),
        first=np.int32(prompt + later),
        forced_first=np.int32(
            -1 if config.forced_bos_token_id is None else config.forced_bos_token_id
        ),
        forced_last=token_mask(config.forced_eos_token_id, vocab),
        at_last=np.int32(longest - 1 - prompt),
        repetition=np.float32(config.repetition_penalty),
        encoder_repetition=np.float32(1 / config.encoder_repetition_penalty),
        ngram=np.int32(config.no_repeat_ngram_size),
        encoder_ngram=np.int32(config.encoder_no_repeat_ngram_size),
        biased=_aligned([run for run, _ in config.sequence_bias], plan.biased),
        biases=np.pad(biases, (0, plan.biased[0] - len(biases))),
        barred=_aligned(config.barred, plan.barred),
        barriers=np.full(plan.barred[0], -np.inf, np.float32),
        decay=_decay(config, length),
        finite=np.bool_(config.remove_invalid_values),
        renormalize=np.bool_(config.renormalize_logits),
        temperature=np.float32(config.temperature),
        top_k=np.int32(min(config.top_k or vocab, vocab)),
        top_p=np.float32(config.top_p or 1),
        min_p=np.float32(config.min_p or 0),
    )
    unread = {"eager", "hopeful"} if not ranked else set()
    for name in NEUTRAL:
        if name not in plan.processors:
            unread |= {*_READ.get(name, (name,))}
    # Ends and padding are always read.
    return values._replace(**dict.fromkeys(unread))  # type: ignore[arg-type]


@functools.lru_cache(maxsize=64)
def search_settings(
    config: GenerationConfig,
    special: SpecialTokens | None = None,
    *,
    vocab: int,
    length: int,
    sampled: bool = False,
    kept: int | None = None,
) -> tuple[SearchPlan, SearchValues]:
    """Returns the plan and the values of one configuration, for texts after one token.

    They are computed once per arguments; the arrays are read-only.

    Args:
        config: The configuration.
        special: End tokens, padding and suppressed tokens; None takes the tokens of ``config``.
        vocab: V, the number of tokens that the model can write.
        length: T, the largest number of tokens in a text.
        sampled: Whether tokens are sampled, which requires a single beam.
        kept: See :func:`plan_of`.
    """
    plan = plan_of([config], beams=1 if sampled else config.num_beams, sampled=sampled, kept=kept)
    values = values_of(config, plan, vocab=vocab, length=length)
    if special is not None:
        plan, values = with_special(plan, values, special, vocab)
    for value in values:
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return plan, values


def with_special(
    plan: SearchPlan, values: SearchValues, special: SpecialTokens, vocab: int
) -> tuple[SearchPlan, SearchValues]:
    """Returns a plan and values with the end tokens, padding and suppressed tokens of a model.

    Args:
        plan: The plan.
        values: The values.
        special: The tokens.
        vocab: V, the number of tokens that the model can write.
    """
    names = {*plan.processors, "suppress_tokens"}
    plan = plan._replace(
        processors=tuple(name for name in NEUTRAL if name in names), ends=len(special.ends)
    )
    return plan, values._replace(
        ends=np.array(special.ends, np.int32),
        pad=np.int32(special.pad),
        suppressed=token_mask(special.suppress_tokens, vocab),
    )


def used(value: Value | None) -> Array:
    """Returns a value that the plan uses, so that it is there, as an array of JAX.

    Example:
        >>> used(np.float32(0.5))
        Array(0.5, dtype=float32)
    """
    assert value is not None, "a search without a setting of its plan"
    return jnp.asarray(value)


def penalty_table(
    normalization: Normalization, alphas: Float[np.ndarray, " B"] | float | int, length: int
) -> Float32[np.ndarray, "B T"] | None:
    """Returns the divisors of log-probabilities for lengths 0 to ``length``; None is 1.

    Computed by :func:`.length_penalty` in double precision and rounded once.

    Args:
        normalization: Kind of normalization by length.
        alphas: The exponent, or one per row.
        length: T.

    Example:
        >>> penalty_table("power", 0.5, 4).tolist()
        [[1.0, 1.0, 1.4142135381698608, 1.7320507764816284, 2.0]]
    """
    if normalization == "none":
        return None
    exponents = np.atleast_1d(np.asarray(alphas, np.float64))[:, None]
    return length_penalty(np.arange(length + 1)[None], normalization, exponents).astype(np.float32)


def token_mask(tokens: Iterable[int], vocab: int) -> Bool[np.ndarray, " V"]:
    """Marks ``tokens`` in a vocabulary; tokens beyond it are ignored.

    Example:
        >>> token_mask((2, -1), 4).tolist()
        [False, False, True, False]
    """
    mask = np.zeros(vocab, bool)
    mask[[token for token in tokens if 0 <= token < vocab]] = True
    return mask


def _decay(config: GenerationConfig, length: int) -> Float32[np.ndarray, " T"]:
    start, base = config.exponential_decay_length_penalty or (0, 1.0)
    with np.errstate(over="ignore"):  # clipped to the range of float32, where the end is certain
        decay = float(base) ** np.maximum(np.arange(length + 1.0) - start, 0) - 1
    return np.minimum(decay, np.finfo(np.float32).max / 1e4).astype(np.float32)


def _longest(runs: Sequence[Sequence[int]]) -> int:
    return max(map(len, runs), default=0)


def _filled(ids: Sequence[int], size: int) -> Int[np.ndarray, " n"]:
    return np.array([*ids, *[-1] * (size - len(ids))], np.int32)


def _aligned(runs: Sequence[Sequence[int]], shape: tuple[int, int]) -> Int[np.ndarray, "N L"]:
    table = np.full(shape, -1, np.int32)
    for row, run in enumerate(runs):
        table[row, shape[1] - len(run) :] = run
    return table
