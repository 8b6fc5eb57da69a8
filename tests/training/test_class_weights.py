"""A class of weight w counts in the loss as if each of its examples were there w times."""

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.recipes.tasks.labeled import weights_of_classes
from transformer_jax.training import objectives

OBJECTIVES = {
    "sequences": (objectives.sequence_classification, (6,)),
    "tokens": (objectives.token_classification, (3, 4)),
}


def loss_of(objective, logits, labels):
    batch = {"tokens": labels, "lengths": labels, "types": labels, "labels": labels}
    sums = objective(lambda *_, key: jnp.asarray(logits), batch)
    return {name: float(total) / float(weight) for name, (total, weight) in sums.items()}


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_a_weight_is_a_number_of_copies(kind):
    make, shape = OBJECTIVES[kind]
    rng = np.random.default_rng(0)
    labels = rng.integers(-1, 3, shape)
    logits = rng.normal(size=(*shape, 3)).astype(np.float32)
    weighted = loss_of(make((1.0, 3.0, 2.0)), logits, jnp.asarray(labels))
    plain = loss_of(make(), logits, jnp.asarray(labels))
    copies = np.array([1, 3, 2, 1])[labels.ravel()]
    rows, marks = np.repeat(logits.reshape(-1, 3), copies, 0), np.repeat(labels.ravel(), copies)
    copied = loss_of(objectives.sequence_classification(), rows, jnp.asarray(marks))
    np.testing.assert_allclose(weighted["loss"], copied["loss"], rtol=1e-6)
    assert weighted["accuracy"] == plain["accuracy"]
    assert loss_of(make((1.0, 1.0, 1.0)), logits, jnp.asarray(labels)) == plain


@pytest.mark.parametrize("seed", range(5))
def test_balanced_weights_are_those_of_scikit_learn(seed):
    from sklearn.utils.class_weight import compute_class_weight

    rng = np.random.default_rng(seed)
    labels = ("a", "b=2", "c")
    examples = [*labels, *rng.choice(labels, 40, p=[0.7, 0.2, 0.1])]
    wanted = compute_class_weight("balanced", classes=np.array(labels), y=np.array(examples))
    found = weights_of_classes(["balanced"], "classify", labels, examples)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (["balanced"], "regress", "the task regress has no classes"),
        (["yes"], "classify", "training.class-weights yes: balanced, or CLASS=WEIGHT"),
        (["maybe=2"], "classify", "of these classes: 'no', 'a=b'"),
        (["no=-1"], "pair", "a weight is a number from 0"),
        (["no=inf"], "tag", "a weight is a number from 0"),
        (["no=0", "a=b=0"], "tag", "all weights are 0"),
    ],
)
def test_weights_that_cannot_be_are_refused(given, kind, message):
    with pytest.raises(ConfigError, match=message):
        weights_of_classes(given, kind, ("no", "a=b"), ["no"])
    assert weights_of_classes(["a=b=2"], "tag", ("no", "a=b"), []) == (1.0, 2.0)
