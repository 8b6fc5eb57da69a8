"""A model that is trained from a published one gives the same outputs in transformers.

Every layout with every command that trains from it; the parameters of the run are drawn.
"""

import contextlib
import json

import numpy as np
import pytest

from tests.interop import published_starts as starts
from tests.opened import load
from tests.parity import layouts, ours
from transformer_jax.cli.main import main
from transformer_jax.inference.pretrained import facts_of, open_directory
from transformer_jax.interop.export_plan import unscan_layers
from transformer_jax.interop.hf_run_directory import model_of
from transformer_jax.recipes.registry import stored_recipe

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
exact = pytest.importorskip("tests.parity.exact").exact

pytestmark = pytest.mark.parity

CELLS = [cell for cell in starts.CELLS if starts.refusal(*cell) is None]


@pytest.fixture(scope="module")
def data(shared):
    return shared("published_starts", starts.write_data)


@pytest.mark.parametrize(("layout", "command"), CELLS, ids=[" ".join(cell) for cell in CELLS])
def test_an_export_has_the_outputs_of_its_run(layout, command, shared, data, tmp_path):
    start = shared(f"start_{layout}", lambda path: starts.write(layout, path))
    run, output = tmp_path / "run", tmp_path / "export"
    assert starts.begin(layout, command, start, data, run) == 0
    starts.draw_parameters(run)
    assert main(["export", str(run), str(output)]) == 0
    fields = json.loads((output / "config.json").read_text())
    given = layouts.inputs_of(fields, layouts.random(f"{layout} {command}"))
    if layout in layouts.CONTEXTS:  # longer texts have other angles in transformers
        most = fields["max_position_embeddings"]
        given = {name: value[:, :most] for name, value in given.items()}
    for name, value in mine(run, given).items():
        theirs = reference(output, fields, given, np.float32)[name]
        exact = reference(output, fields, given, np.float64)[name]
        mask = given.get("attention_mask")
        each_token = mask is not None and value.shape[:2] == mask.shape
        real = mask > 0 if each_token else slice(None)
        if not each_token and fields.get("classifier_pooling") == "cls":
            real = mask[:, 0] > 0  # theirs reads the padding before a text
        apart = np.abs(value - exact)[real].max()
        assert apart <= max(2e-5, 2 * np.abs(theirs - exact)[real].max()), name


def mine(run, given):
    """The outputs of a run of ours."""
    directory = open_directory(run)
    fields, kind = directory.read_config(), facts_of(directory).kind
    model = model_of(fields, kind, stored_recipe(fields, directory.config).stored(fields).task)
    (_, params), _ = load(run, "last", kind=kind)
    model, params = unscan_layers(model, params)
    params.pop("value", None)  # of a policy, for its training
    return ours.compute(model, params, given)


def reference(folder, fields, given, kind):
    """The outputs of the class that an export names."""
    [name] = fields["architectures"]
    model = getattr(transformers, name).from_pretrained(folder, attn_implementation="eager").eval()
    model = model.to(torch.float64 if kind is np.float64 else torch.float32)
    tensors = {key: torch.tensor(np.asarray(value)) for key, value in given.items()}
    tensors = {k: v.to(model.dtype) if v.is_floating_point() else v for k, v in tensors.items()}
    wide = exact() if kind is np.float64 else contextlib.nullcontext()
    with torch.no_grad(), wide:
        return {key: value.numpy() for key, value in model(**tensors).items() if key in NAMES}


NAMES = (
    "logits", "start_logits", "end_logits", "prediction_logits", "seq_relationship_logits",
    "last_hidden_state", "pooler_output", "image_embeds", "text_embeds", "logits_per_image",
)  # fmt: skip
