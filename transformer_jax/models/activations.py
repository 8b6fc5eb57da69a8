"""The activations of a model by name: read while it computes, and replaced.

Names extend the paths of parameters. They are the same in :func:`capture`, in the predictors of
``transformer_jax.load`` and on the page of ``transformer-jax explore``. With ``A`` for
``encoder/blocks/0/self_attention``, ``decoder/blocks/0/cross_attention`` and so on:

===========================  ===========  ==========================================================
name                         shape        value
===========================  ===========  ==========================================================
``encoder/blocks/0/input``   ``[T D]``    the residual stream before a block
``encoder/blocks/0/output``  ``[T D]``    the residual stream after it
``A/q``                      ``[N T H]``  queries, as they meet the keys: normalized and rotated
``A/k``, ``A/v``             ``[K S H]``  keys and values
``A/scores``                 ``[N T S]``  scaled products with biases, before the mask
``A/weights``                ``[N T S]``  their softmax under the mask
``A/heads``                  ``[N T U]``  weighted values: the outputs of the heads
``A/output``                 ``[T D]``    their map to the residual stream
``…/feed_forward/hidden``    ``[T F]``    hidden units after the activation
``…/feed_forward/output``    ``[T D]``    their map to the residual stream
``encoder/final_norm``       ``[T D]``    the output of the stack, if it ends in a norm
``logits``                   ``[T V]``    the output of the model; of a classifier ``[V]``
===========================  ===========  ==========================================================

A head of ``q``, ``k``, ``v``, ``scores``, ``weights`` and ``heads`` is named by its number, from 0:
``A/heads/2``. A head whose output is replaced by 0 is switched off.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Key

from transformer_jax.core.config_fields import nearest
from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.scores import Scores, mix
from transformer_jax.models.layers.cache import LayerCache
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.surgery import replaced
from transformer_jax.models.prepare import with_separate_blocks
from transformer_jax.models.transformer.layers import Attention, Block, FeedForward, Stack

__all__ = ["Replacement", "activation_names", "capture", "watched"]

Model = TypeVar("Model", bound=nnx.Module)

# A function from the name of an activation and its value to the value to go on with.
Watch = Callable[[str, Array], Array]

# A new value, which broadcasts to the shape of the activation, or a function from the old value.
Replacement = ArrayLike | Callable[[np.ndarray], ArrayLike]

_OF_HEADS = ("q", "k", "v", "scores", "weights", "heads")
_COMPUTED_INSIDE = ("scores", "weights")  # not of attention of one's own


def activation_names(model: nnx.Module) -> tuple[str, ...]:
    """Returns the names of the activations of a model, in the order of its computation.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> from transformer_jax.models.transformer.models import Decoder
        >>> model = nnx.eval_shape(lambda: Decoder(PRESETS["nanogpt_char"], rngs=nnx.Rngs(0)))
        >>> activation_names(model)[:4]
        ('decoder/blocks/0/input', 'decoder/blocks/0/self_attention/q', ...)
    """
    names: list[str] = []
    for side in ("encoder", "decoder"):
        stack = getattr(model, side, None)
        if not isinstance(stack, Stack):
            continue
        for i, block in enumerate(_blocks(stack)):
            names += _names_of_block(f"{side}/blocks/{i}", block)
        names += [f"{side}/final_norm"] if stack.final_norm is not None else []
    return (*names, "logits")


def _names_of_block(path: str, block: Block) -> list[str]:
    names = [f"{path}/input"]
    for name in ("self_attention", "cross_attention"):
        attention = getattr(block, name)
        if attention is None:
            continue
        own = type(attention).attend is not Attention.attend
        parts = [part for part in _OF_HEADS if not (own and part in _COMPUTED_INSIDE)]
        names += [f"{path}/{name}/{part}" for part in (*parts, "output")]
    if block.feed_forward is not None:
        names += [f"{path}/feed_forward/{part}" for part in ("hidden", "output")]
    return [*names, f"{path}/output"]


def _blocks(stack: Stack) -> list[Block]:
    """The blocks of a stack; of a scanned one the same one for each layer."""
    if isinstance(stack.blocks, nnx.List):
        return list(stack.blocks)
    return [stack.blocks] * stack.layers


def watched(model: Model, watch: Watch) -> Model:
    """Returns the model with ``watch(name, value)`` in place of each activation but the logits.

    ``watch`` gets activations with the axis of the batch, and returns each as it is, or another of
    the same shape. The given model does not change; the parameters are shared with it. Attention is
    computed by the model's kernel, unless scores or weights are replaced.

    Args:
        model: A model of :mod:`.transformer.models`, :mod:`.heads` or :mod:`.step_decoder`.
        watch: Called once for each activation, in the order of the computation.
    """

    def inside(path: str, module: nnx.Module) -> None:
        if isinstance(module, Attention):
            _watch_attention(path, module, watch)
        if isinstance(module, FeedForward):
            names = f"{path}/hidden", f"{path}/output"
            module.down = _Watched(module.down, watch, *names)  # type: ignore[assignment]
        if isinstance(module, Stack) and module.final_norm is not None:
            norm = _Watched(module.final_norm, watch, None, f"{path}/final_norm")
            module.final_norm = norm  # type: ignore[assignment]

    def around(path: str, module: nnx.Module) -> nnx.Module | None:
        return _WatchedBlock(path, module, watch) if isinstance(module, Block) else None

    return replaced(with_separate_blocks(model), inside, around)


def _watch_attention(path: str, attention: Attention, watch: Watch) -> None:
    """Shows the activations of attention, at :meth:`.Attention.attend`."""
    inner, own = attention.attend, type(attention).attend is not Attention.attend
    see = lambda part, value: watch(f"{path}/{part}", value)

    def attend(
        q: Float[Array, "B N T H"],
        k: Float[Array, "B K S H"],
        v: Float[Array, "B K S U"],
        scores: Scores,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B N T U"]:
        q, k, v = see("q", q), see("k", k), see("v", v)
        if own:
            return see("heads", inner(q, k, v, scores, key))
        before = scores.before_mask(q, k)
        s = see("scores", before)
        computed = scores.softmax(s)
        w = see("weights", computed)
        if s is before and w is computed:
            return see("heads", inner(q, k, v, scores, key))
        return see("heads", mix(w.astype(v.dtype), v).astype(q.dtype))

    attention.attend = attend  # type: ignore[method-assign]
    attention.out = _Watched(attention.out, watch, None, f"{path}/output")  # type: ignore[assignment]


class _Watched(Module):
    """A module whose output is watched, and its input if it has a name."""

    before: str | None

    def __init__(self, module: Module, watch: Watch, before: str | None, after: str):
        self.module, self.watch, self.before, self.after = module, watch, before, after

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows F"]:
        x = x if self.before is None else self.watch(self.before, x)
        return self.watch(self.after, self.module(x))


class _WatchedBlock(Block):
    """A block whose input and output are watched; it runs without a cache."""

    def __init__(self, path: str, block: Block, watch: Watch):
        self.path, self.block, self.watch = path, block, watch

    def __call__(
        self, x: Float[Array, "B T D"], *rest: Any, **how: Any
    ) -> tuple[Float[Array, "B T D"], LayerCache | None]:
        y, cache = self.block(self.watch(f"{self.path}/input", x), *rest, **how)
        return self.watch(f"{self.path}/output", y), cache


def capture(
    model: Model,
    run: Callable[[Model], Float[Array, "1 *rows V"]],
    at: Iterable[str] | str = ("logits",),
    replace: Mapping[str, Replacement] | None = None,
) -> dict[str, np.ndarray]:
    """Returns activations of a model for one text, by name, without the axis of the batch.

    Args:
        model: The model.
        run: The computation: a function from the model to logits, of a batch of one text. Not
            compiled, so that replacements may be any functions.
        at: Names, or patterns such as ``"decoder/*/weights"``.
        replace: New values by name, or functions from old values to new ones, in float32.

    Returns:
        The activations in the order of the computation; one that is replaced, with its new value.

    Raises:
        ArgumentError: The model has no such activation, or a new value does not fit its shape.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> from transformer_jax.models.transformer.models import Decoder
        >>> model = nnx.eval_shape(lambda: Decoder(PRESETS["nanogpt_char"], rngs=nnx.Rngs(0)))
        >>> capture(model, lambda model: model(jnp.array([[1, 2, 3]])), "logit")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: at: no activation 'logit'; did you mean ...
    """
    patterns = [at] if isinstance(at, str) else list(at) if isinstance(at, Iterable) else [at]
    if not all(isinstance(name, str) for name in patterns):
        raise ArgumentError(f"at: {at!r:.60}: give a name, or a list of names")
    replace = {} if replace is None else replace
    if not isinstance(replace, Mapping):
        raise ArgumentError(f"replace: {replace!r:.60}: give a dictionary of new values by name")
    _check_names(model, patterns, list(replace))
    found: dict[str, np.ndarray] = {}

    def watch(name: str, value: Array) -> Array:
        for key, new in replace.items():
            if key == name or (part := _head(key, name)) is not None:
                where = slice(None) if key == name else part
                value = value.at[0, where].set(_new_value(key, value[0, where], new))
        for pattern in patterns:
            if fnmatch.fnmatchcase(name, pattern):
                found[name] = np.asarray(value[0], np.float32)
            elif (part := _head(pattern, name)) is not None:
                found[pattern] = np.asarray(value[0, part], np.float32)
        return value

    watch("logits", run(watched(model, watch)))
    return found


def _head(key: str, name: str) -> int | None:
    """The head of ``name`` that ``key`` names, or None."""
    whole, _, number = key.rpartition("/")
    return int(number) if whole == name and number.isdecimal() else None


def _new_value(name: str, old: Array, new: Replacement) -> Array:
    """Returns the new value of an activation, in the shape and dtype of the old one."""
    given = new(np.asarray(old, np.float32)) if callable(new) else new
    try:
        made = jnp.asarray(given)
    except (TypeError, ValueError):
        made = None
    if made is None or jnp.iscomplexobj(made):
        raise ArgumentError(
            f"replace: {name} becomes {given!r:.60}: give real numbers, or a function from the old "
            f"value to them"
        )
    try:
        return jnp.broadcast_to(made, old.shape).astype(old.dtype)
    except ValueError:
        raise ArgumentError(
            f"replace: {name} has shape {old.shape}, its new value {made.shape}"
        ) from None


def _check_names(model: nnx.Module, patterns: list[str], replace: list[str]) -> None:
    """Refuses names of no activation.

    Raises:
        ArgumentError: It lists the names that there are.
    """
    names = activation_names(model)
    heads = {
        f"{name}/{n}": name
        for name in names
        if name.rpartition("/")[2] in _OF_HEADS
        for n in range(_num_heads(model, name))
    }
    known = {*names, *heads}
    for what, asked in (("at", patterns), ("replace", replace)):
        for key in asked:
            pattern = what == "at" and any(fnmatch.fnmatchcase(name, key) for name in names)
            if key not in known and not pattern:
                # The names of one block for all of them.
                every = dict.fromkeys(re.sub(r"/blocks/\d+/", "/blocks/i/", name) for name in names)
                sides = ("encoder", "decoder")
                counts = [
                    f"{side}: i below {n}" for side in sides if (n := _num_blocks(model, side))
                ]
                hint = nearest(key, known) or ":"
                raise ArgumentError(
                    f"{what}: no activation {key!r}{hint} there are {', '.join(every)} ("
                    f"{', '.join(counts)}); and each head of {', '.join(_OF_HEADS)}, such as "
                    f"{next(iter(heads), 'none')}"
                )


def _num_blocks(model: nnx.Module, side: str) -> int:
    stack = getattr(model, side, None)
    return stack.layers if isinstance(stack, Stack) else 0


def _num_heads(model: nnx.Module, name: str) -> int:
    side, _, layer, kind, part = name.split("/")
    attention: Attention = getattr(_blocks(getattr(model, side))[int(layer)], kind)
    return attention.K if part in ("k", "v") else attention.N
