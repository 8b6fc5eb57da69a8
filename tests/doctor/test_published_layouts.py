"""Doctor finds nothing in models of Hugging Face layouts, of every family."""

import jax
import pytest
from flax import nnx

from tests.doctor.tiny_models import configuration, model
from tests.parity import layouts
from transformer_jax.core.errors import ConfigError
from transformer_jax.doctor import examine
from transformer_jax.inference.pretrained import abstract_model, facts_of, open_directory
from transformer_jax.models.config import PositionConfig


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_published_layouts_break_no_law(layout, tmp_path):
    run = open_directory(layouts.write(layout, tmp_path / layout))
    graph, _ = nnx.split(abstract_model(facts_of(run)))
    found = examine(nnx.merge(graph, jax.device_put(run.load_params().params)))
    assert not found.broken, [str(one) for one in found.broken]


def test_too_few_positions_are_refused():
    short = configuration(0, 1, positions=PositionConfig(kind="learned", max_length=2))
    with pytest.raises(ConfigError, match="at most 2 tokens: doctor needs at least 4"):
        examine(model("decoder", short))


def test_a_law_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="no law cache; did you mean cached"):
        examine(model("decoder", configuration(0, 1)), {"cache"})


def test_models_of_others_are_sent_to_the_laws():
    with pytest.raises(ConfigError, match=r"Linear: doctor knows .* transformer_jax.laws"):
        examine(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
