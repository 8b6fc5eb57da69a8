"""Updates by Optax transformations, with the further arguments that some of them need."""

import re
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, Float, Int, PyTree
from optax.contrib import SAMState, ScheduleFreeState

from transformer_jax.core.errors import ConfigError

__all__ = [
    "check_average",
    "evaluated_parameters",
    "further_arguments",
    "moving_average",
    "optimizer_state",
    "optimizer_update",
]

_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"^(?:(\w+)\.)?.*missing \d+ required .*arguments?: (.+)$")


def optimizer_state(tx: optax.GradientTransformation, params: PyTree) -> PyTree:
    """Returns the state of a transformation before its first update.

    Raises:
        ConfigError: It is for other parameters than nested dictionaries of arrays.
    """
    try:
        state = tx.init(params)
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"optimizer: no state for the parameters of a model ({error}): choose another "
            f"transformation"
        ) from error
    is_lookahead = lambda node: isinstance(node, optax.LookaheadState)
    if any(map(is_lookahead, jax.tree.leaves(state, is_leaf=is_lookahead))):
        raise ConfigError(
            "optimizer: lookahead trains pairs of parameters (LookaheadParams), which a model does "
            "not have: choose another transformation"
        )
    return state


def further_arguments(
    loss_at: Callable[[PyTree], Float[Array, ""]], grads_at: Callable[[PyTree], PyTree]
) -> dict[str, Callable[[PyTree], PyTree]]:
    """Returns the functions that some transformations need: ``value_fn`` and ``grad_fn``.

    Line searches, as in ``lbfgs``, evaluate the loss of the batch at other parameters and
    differentiate it; ``sam`` needs its gradient alone.

    Args:
        loss_at: The loss of the batch at other parameters.
        grads_at: Its gradient, which differentiating ``loss_at`` would not give if devices add
            their sums by hand, and which is computed in micro-batches.
    """
    value = jax.custom_vjp(loss_at)
    value.defvjp(
        lambda params: (loss_at(params), grads_at(params)),
        lambda grads, slope: (jax.tree.map(lambda g: g * slope.astype(g.dtype), grads),),
    )

    def value_fn(params: PyTree, norm: object = None, grad_fn: object = None) -> Float[Array, ""]:
        del norm, grad_fn  # line searches pass all arguments that they do not know
        return value(params)

    return {"value_fn": value_fn, "grad_fn": lambda params, *_: grads_at(params)}


def optimizer_update(
    tx: optax.GradientTransformation,
    grads: PyTree,
    opt_state: PyTree,
    params: PyTree,
    further: Mapping[str, PyTree],
) -> tuple[PyTree, PyTree]:
    """Returns the updates of a transformation and its next state.

    Args:
        tx: The transformation.
        grads: The gradients.
        opt_state: Its state.
        params: The parameters.
        further: Arguments by name, of which it gets all that it knows.

    Raises:
        ConfigError: The transformation needs other arguments; the message names them.

    Example:
        >>> tx = optax.contrib.reduce_on_plateau()
        >>> params = {"w": jnp.ones(2)}
        >>> optimizer_update(tx, params, tx.init(params), params, {"value": 1.0, "norm": 2.0})[0]
        {'w': Array([1., 1.], dtype=float32)}
        >>> optimizer_update(tx, params, tx.init(params), params, {"norm": 2.0})
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: optimizer: reduce_on_plateau needs 'value', and a \
step gives norm: choose another transformation
    """
    further, known = dict(further), ", ".join(further)
    while True:
        try:
            found: tuple[PyTree, PyTree] = optax.with_extra_args_support(tx).update(
                grads, opt_state, params, **further
            )
        except TypeError as error:
            unexpected, missing = _UNEXPECTED.search(str(error)), _MISSING.search(str(error))
            if unexpected is not None and unexpected[1] in further:
                del further[unexpected[1]]
                continue
            if missing is None:
                raise
            raise ConfigError(
                f"optimizer: {missing[1] or 'the transformation'} needs {missing[2]}, and a "
                f"step gives {known}: choose another transformation"
            ) from error
        except (AttributeError, ValueError) as error:  # such as optional arguments that are needed
            raise ConfigError(
                f"optimizer: {error}: a step gives {known}: choose another transformation"
            ) from error
        else:
            return found


def evaluated_parameters(opt_state: PyTree, params: PyTree) -> PyTree | None:
    """Returns the parameters that an optimizer evaluates, if they differ from those that it trains.

    They are the average of ``schedule_free``, and the parameters of ``sam`` without its adversarial
    updates; None for other optimizers.

    Args:
        opt_state: The state of the optimizer.
        params: The trained parameters.

    Example:
        >>> tx, params = optax.contrib.schedule_free_sgd(1.0, b1=0.5), {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> evaluated_parameters(state, optax.apply_updates(params, updates))["w"].tolist()
        [0.0, 0.0]
    """
    is_own = lambda node: (
        isinstance(node, ScheduleFreeState)
        or (isinstance(node, SAMState) and node.cache is not None)
    )
    states = [node for node in jax.tree.leaves(opt_state, is_leaf=is_own) if is_own(node)]
    for state in states:
        if isinstance(state, SAMState):
            params = _where_trained(state.cache, params, _sam_formula(state))
        else:
            params = _where_trained(state.z, params, _average_formula(state))
    return params if states else None


def check_average(state: PyTree, ema_decay: float | None) -> None:
    """Refuses a state without the moving average of a step, or with another average.

    Raises:
        ConfigError: The message says what to do.
    """
    own = evaluated_parameters(state.opt_state, state.params) is not None
    if own and ema_decay is not None:
        raise ConfigError(
            f"ema_decay is {ema_decay}, but the optimizer (schedule_free or sam) decides which "
            f"parameters are evaluated: leave ema_decay out"
        )
    if not own and (ema_decay is None) != (state.ema_params is None):
        raise ConfigError(
            "ema_decay and state.ema_params go together: "
            "create the state with ema=True if and only if ema_decay is set"
        )


def moving_average(ema: PyTree, params: PyTree, step: Int[Array, ""], decay: float) -> PyTree:
    """Returns the moving average of parameters after another step.

    The average starts at the initial parameters; after ``n`` steps, the decay is at most ``(1 + n)
    / (10 + n)``, so that no bias correction is needed.

    Example:
        >>> moving_average(jnp.zeros(1), jnp.ones(1), jnp.int32(0), 0.99).round(4)
        Array([0.9], dtype=float32)
    """
    keep = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(lambda a, p: a + (1.0 - keep).astype(p.dtype) * (p - a), ema, params)


Formula = Callable[[Array, Array], Array]  # of an optimizer's array and a parameter


def _sam_formula(state: SAMState) -> Formula:
    """The parameters before the adversarial updates, which ``sam`` keeps meanwhile."""
    return lambda kept, now: jnp.where(state.steps_since_sync > 0, kept, now)


def _average_formula(state: ScheduleFreeState) -> Formula:
    """``x = (y − (1 − β₁) z) / β₁``: Defazio et al. 2024, formula (1), solved for the average."""
    return lambda z, y: (y - (1 - state.b1) * z) / state.b1


def _where_trained(own: PyTree, params: PyTree, formula: Formula) -> PyTree:
    """Applies a formula to an optimizer's arrays and the parameters, except masked parameters."""
    is_masked = lambda node: isinstance(node, optax.MaskedNode)
    combine = lambda a, b: b if is_masked(a) else formula(a, b).astype(b.dtype)
    return jax.tree.map(combine, own, params, is_leaf=is_masked)
