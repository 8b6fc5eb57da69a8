"""Laws of runs: devices, interruptions and repetition do not change a result."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jaxtyping import PyTree

from transformer_jax.core.errors import ArgumentError
from transformer_jax.laws.finding import Finding, difference, finding, law, worst

__all__ = ["repeatability", "resumed", "sharded"]


@law("The same inputs give the same outputs, bit for bit.")
def repeatability(
    outputs: Callable[[PyTree], PyTree], inputs: PyTree, *, tolerance: float = 0.0
) -> Finding:
    """Checks that a model in evaluation is not random: dropout is off.

    Args:
        outputs: Maps inputs to outputs; called twice.
        inputs: An array, or a tree of arrays.
        tolerance: Largest difference of an output.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> repeatability(lambda x: x + 1, np.ones(3)).holds
        True
        >>> repeatability(lambda x: x * draw.integers(0, 9, 3), np.ones(3)).holds
        False
    """
    once = jax.tree.map(np.array, outputs(inputs))
    return finding("repeatability", difference(outputs(inputs), once, ("row",)), tolerance)


@law("Arrays spread over devices give the results of one device.")
def sharded(
    run: Callable[[PyTree], PyTree], placements: Sequence[PyTree], *, tolerance: float = 1e-5
) -> Finding:
    """Checks that results do not depend on the placement of arrays.

    Args:
        run: Maps a placement to results: outputs, losses, gradients, parameters after some steps.
            The placement None is one device.
        placements: Arguments of ``run``, such as meshes or shardings.
        tolerance: Largest difference of a result.

    Example:
        >>> from jax.sharding import NamedSharding, PartitionSpec
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
        >>> rows = NamedSharding(mesh, PartitionSpec("data"))
        >>> x = np.arange(16.0, dtype=np.float32).reshape(8, 2)
        >>> square = jax.jit(lambda x: (x * x).sum())
        >>> sharded(lambda placement: square(jax.device_put(x, placement)), [rows]).holds
        True
        >>> sharded(lambda parts: x.sum() / (parts or 1), [2]).where
        '2: []'
    """
    if not placements:
        raise ArgumentError("laws: there is no placement to compare with one device")
    wanted = jax.tree.map(np.asarray, run(None))
    places = []
    for placement in placements:
        error, where = difference(run(placement), wanted)
        places.append((error, f"{placement}: {where}"))
    return finding("sharded", worst(*places), tolerance)


@law("A run that was stopped and resumed ends like an uninterrupted one, bit for bit.")
def resumed(
    train: Callable[[tuple[int, ...]], PyTree],
    stops: Sequence[tuple[int, ...]],
    *,
    tolerance: float = 0.0,
) -> Finding:
    """Checks that stopping a run after some steps and resuming it does not change its result.

    Args:
        train: Trains from start to end, stopping and resuming after the given steps, and returns
            everything that must be the same: parameters, optimizer state, metrics, a checksum.
        stops: Steps at which a run stops, for each run to compare with the uninterrupted one.
        tolerance: Largest difference of a result.

    Example:
        >>> def train(stops, forgets=False):
        ...     x = momentum = 0.0
        ...     for step in range(6):
        ...         momentum = 0.5 * (0.0 if forgets and step in stops else momentum) + 1
        ...         x = x + momentum
        ...     return {"x": x}
        >>> resumed(train, [(2,), (1, 4)]).holds
        True
        >>> resumed(lambda stops: train(stops, forgets=True), [(2,), (1, 4)]).where
        'stopped after step 1, 4: x: []'
    """
    for steps in stops:
        if not isinstance(steps, tuple) or not all(isinstance(n, int) and n > 0 for n in steps):
            raise ArgumentError(f"laws: stops has {steps!r}: tuples of steps from 1 on, as [(2,)]")
    if not any(stops):
        raise ArgumentError("laws: no run stops: give steps, such as [(2,)]")
    wanted, places = train(()), []
    for steps in stops:
        error, where = difference(train(steps), wanted)
        places.append((error, f"stopped after step {', '.join(map(str, steps))}: {where}"))
    return finding("resumed", worst(*places), tolerance)
