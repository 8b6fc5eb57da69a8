"""Losses of every task are sums over what is real, however a batch is split or padded."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from tests.training import families
from transformer_jax import laws

# A loss that compares the rows of a batch, or mixes them, is no sum over rows.
MIXING = ("pictures", "convolved pictures", "images and texts", "compared texts")
TASKS = [task for task in families.TASKS if task not in MIXING]
tasks = pytest.mark.parametrize("task", TASKS)


def real_places(lengths, array):
    return np.arange(array.shape[1]) < lengths[:, None]


@functools.lru_cache(maxsize=2)
def drawn(task):
    """Sums of the objective and the gradient of its loss, and a batch."""
    case = families.draw(task, length=8, rows=6)
    lengths = [case.batch.get("lengths"), case.batch.get("inputs", {}).get("source_lengths")]
    for some in lengths:
        if some is not None:
            some[0] = 4  # there is padding, whatever was drawn
    if "masked_positions" not in case.batch and "weights" in case.batch:
        case.batch["weights"][0, 0] = 0
    if task == "tag":  # padding has no label
        real = real_places(case.batch["lengths"], case.batch["labels"])
        case.batch["labels"] = np.where(real, case.batch["labels"], -1)
    if task == "qa":  # and no answer
        case.batch["allowed"] = real_places(case.batch["lengths"], case.batch["allowed"])
    graph, params = nnx.split(case.make())

    @jax.jit
    def totals(batch):
        def loss(params):
            sums = case.objective(nnx.merge(graph, params), batch, None)
            return sums["loss"][0], sums

        gradient, sums = jax.grad(loss, has_aux=True)(params)
        return {"sums": sums, "gradient": nnx.to_pure_dict(gradient)}

    return totals, case.batch


@tasks
@pytest.mark.slow
def test_a_batch_is_the_sum_of_its_parts(task):
    totals, batch = drawn(task)
    # Sums of this size have no more digits in float32.
    laws.loss_split(totals, batch, parts=3, tolerance=3e-4).require()


@tasks
@pytest.mark.slow
def test_padding_changes_neither_the_loss_nor_its_gradient(task):
    totals, batch = drawn(task)
    if "source" in batch.get("inputs", {}):
        source, lengths = batch["inputs"]["source"], batch["inputs"]["source_lengths"]
        put = lambda source, _: totals(
            batch | {"inputs": {"source": source, "source_lengths": lengths}}
        )
        laws.loss_padding(put, source, real_places(lengths, source)).require()
    if "weights" in batch and "masked_positions" not in batch:
        part, mask = {"targets": batch["targets"]}, batch["weights"] > 0
    else:
        names = [name for name in ("target", "tokens", "types") if name in batch]
        part = {name: batch[name] for name in names}
        mask = real_places(batch["lengths"], batch[names[0]])
    laws.loss_padding(lambda part, _: totals(batch | part), part, mask).require()
