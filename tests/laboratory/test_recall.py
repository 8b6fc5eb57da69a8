"""Rows B25, H14, L2: recall over a distance, and models of as many parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer_jax.core.errors import ConfigError
from transformer_jax.laboratory.fitting import FitProgress, Schedule, evaluated, fit
from transformer_jax.laboratory.readers import nearest_size, nearest_sizes
from transformer_jax.laboratory.recall import answers, cued_texts, make_reader, recall
from transformer_jax.laboratory.settings import RecallSettings
from transformer_jax.models.layers.basic import Linear
from transformer_jax.training.state import split

FAR = RecallSettings(
    distances=(24,),
    models=("tanh", "attention"),
    symbols=4,
    parameters=6_000,
    steps=200,
    learning_rate=5e-3,
    eval_texts=128,
)


@pytest.fixture(scope="module")
def far():
    said = []
    return recall(FAR, say=said.append), said


@pytest.mark.slow
def test_attention_recalls_where_a_recurrent_network_does_not(far):
    figures, _ = far
    assert figures.accuracy["attention"][0][0] > 0.95
    assert figures.accuracy["tanh"][0][0] < 0.5  # chance is .25
    assert figures.steps["tanh"] == [[200]]
    assert figures.steps["attention"][0][0] < 200, "it stops once it recalls all"


@pytest.mark.slow
def test_figures_have_a_value_for_each_model_and_distance(far, tmp_path):
    figures, said = far
    assert said[0] == "tanh, distance 24, seed 0: compiling"
    assert said[-1].startswith("attention, distance 24, seed 0: accuracy ")
    head, *rows = figures.table()
    assert head == ["model", "parameters", "D=24"]
    assert [row[0] for row in rows] == ["tanh", "attention"]
    found = figures.to_dict()
    assert found["chance"] == 0.25
    assert found["settings"]["distances"] == (24,)
    figures.draw(tmp_path / "recall.svg")
    assert "<svg" in (tmp_path / "recall.svg").read_text()


@pytest.mark.slow
def test_a_seed_says_all():
    asked = RecallSettings(
        distances=(3,), models=("gru",), symbols=3, parameters=900, steps=60, eval_texts=64,
        seeds=2,
    )  # fmt: skip
    once = recall(asked)
    assert once == recall(asked)
    [row] = once.accuracy["gru"]
    assert len(set(row)) == 2, "seeds differ"


def test_nothing_but_the_cue_says_the_answer():
    batch = cued_texts(512, 5, 4)(jax.random.key(1))
    tokens = np.asarray(batch["tokens"])
    assert (tokens[:, 0] == batch["answers"]).all()
    assert ((tokens[:, 1:-1] >= 4) & (tokens[:, 1:-1] < 8)).all()
    assert (tokens[:, -1] == 8).all()
    at = np.corrcoef(np.column_stack([tokens[:, :-1], batch["answers"]]).T)[-1, 1:-1]
    assert (abs(at) < 0.2).all()


@pytest.mark.slow
def test_models_of_the_defaults_have_about_as_many_parameters():
    asked = RecallSettings(models=("tanh", "relu", "lstm", "gru", "attention"))
    make = lambda name, size: make_reader(name, size, symbols=8, length=513, seed=0)
    _, count = nearest_sizes(asked.models, make, asked.parameters)
    assert all(abs(number / asked.parameters - 1) < 0.1 for number in count.values()), count


def test_sizes_that_cannot_be_are_refused():
    make = lambda size: Linear(size, size, (None, None), rngs=nnx.Rngs(0))
    assert nearest_size(make, 20, 4) == 4
    with pytest.raises(ConfigError, match="--parameters is 9: from 20 to 16,781,312 is possible"):
        nearest_size(make, 9, 4)


@pytest.mark.slow
def test_training_leaves_the_model_and_ends_at_its_goal():
    model = make_reader("gru", 8, symbols=2, length=3, seed=0)
    before = jax.tree.map(np.asarray, split(model)[1])
    texts = cued_texts(8, 2, 2)
    fitted = fit(model, answers, texts, Schedule(1_000, 1e-2, 0.9), seed=0)
    assert fitted.metrics["accuracy"] >= 0.9
    assert fitted.steps < 1_000
    assert fitted.steps % 50 == 0
    after = split(model)[1]
    assert all(map(np.array_equal, jax.tree.leaves(before), jax.tree.leaves(after)))
    found = evaluated(fitted.model, answers, texts, batches=8, seed=0)
    assert found["accuracy"] > evaluated(model, answers, texts, batches=8, seed=0)["accuracy"]


@pytest.mark.slow
def test_evaluation_draws_other_batches_than_training():
    """A model whose loss is a number of the batch: training and evaluation see other numbers."""
    make = lambda key: {"x": jax.random.uniform(key, (1,))}
    objective = lambda model, batch, key=None: {
        "loss": ((batch["x"] + 0 * model(jnp.ones((1, 1)))[0]).sum(), jnp.float32(1))
    }
    model = Linear(1, 1, (None, None), rngs=nnx.Rngs(0))
    once = lambda seed: fit(model, objective, make, Schedule(1, 1e-3), seed=seed).metrics["loss"]
    new = evaluated(model, objective, make, batches=1, seed=0)["loss"]
    assert once(0) == once(0)
    assert len({once(0), once(1), new}) == 3


def test_progress_says_the_first_line_and_every_end():
    said = []
    progress = FitProgress(said.append, seconds=1e6)
    progress("begins")
    progress("too soon")
    progress("ends", ends=True)
    progress.within("part")("too soon")
    assert said == ["begins", "ends"]
    FitProgress(None)("nobody listens", ends=True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"distances": ()}, "--distances needs at least one value"),
        ({"distances": (8, 8)}, "--distances 8 8: each value only once"),
        ({"distances": (0,)}, "--distances: 0 is outside 1 to 8,192"),
        ({"symbols": 1}, "--symbols is 1: at least 2"),
        ({"steps": 0}, "--steps is 0: at least 1"),
        ({"seed": -1}, "--seed is -1: at least 0"),
        ({"learning_rate": 0.0}, "--learning-rate is 0.0: above 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        RecallSettings(**wrong)
