"""One table reads and writes the keys of a family's configuration."""

import collections
import importlib
from pathlib import Path

import pytest

from tests.parity import layouts
from transformer_jax.core.errors import CheckpointError
from transformer_jax.interop import families
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families import FAMILIES
from transformer_jax.interop.family import Tensors
from transformer_jax.interop.key_table import KeyTable, activation, flag, number, size

MODULES = {
    name: importlib.import_module(f"{families.__name__}.{name}") for name in families._MODULES
}
TABLES = {name: module._TABLE for name, module in MODULES.items() if hasattr(module, "_TABLE")}
TABLE = KeyTable(
    size("vocab_size", "vocab_size"),
    size("d_model", "n_embd", "hidden_size"),
    size(
        "feed_forward.d_ff",
        "n_inner",
        default=lambda fields: 4 * fields.whole("n_embd", "hidden_size"),
    ),
    activation("act", "gelu_new"),
    flag("embedding.scale", "scale_embedding", False, values=(1.0, None)),
    number("norm.residual_dropout embedding.dropout", "dropout", default=0.1),
)
REST = {"encoder_layers": 0, "decoder_layers": 1, "attention.num_heads": 2}


def test_a_key_is_read_and_written_by_the_same_line():
    fields = {
        "vocab_size": 60, "n_embd": 8, "n_inner": 20, "act": "silu", "scale_embedding": True,
        "dropout": 0.3,
    }  # fmt: skip
    config = TABLE.config(ConfigReader(fields), REST)
    assert (config.d_model, config.feed_forward.d_ff, config.embedding.scale) == (8, 20, None)
    assert config.norm.residual_dropout == config.embedding.dropout == 0.3
    assert TABLE.fields(config) == fields


def test_missing_keys_have_older_names_and_defaults():
    found = TABLE.settings(ConfigReader({"vocab_size": 60, "hidden_size": 8, "n_embd": None}))
    assert found["d_model"] == 8
    found = TABLE.settings(ConfigReader({"vocab_size": 60, "n_embd": 8}))
    assert (found["feed_forward.d_ff"], found["feed_forward.activation"]) == (32, "gelu_tanh")
    assert (found["embedding.scale"], found["embedding.dropout"]) == (1.0, 0.1)
    with pytest.raises(CheckpointError, match="n_embd is missing: a whole number"):
        TABLE.settings(ConfigReader({"vocab_size": 60}))


@pytest.mark.parametrize("name", TABLES)
def test_each_key_and_each_setting_has_one_line(name):
    for names in zip(*((key.name, key.settings) for key in TABLES[name].keys), strict=True):
        flat = [one for name in names for one in ([name] if isinstance(name, str) else name)]
        assert max(collections.Counter(flat).values()) == 1


def test_the_keys_of_a_model_describe_it():
    """For every layout: what a family writes it reads as the same model."""
    for layout in sorted(layouts.LAYOUTS):
        fields = layouts.LAYOUTS[layout]["config"]
        [family] = [one for one in FAMILIES if fields["model_type"] in one.types]
        shapes = {name: array.shape for name, array in layouts.weights(layout).items()}
        tensors = Tensors(shapes, same=lambda a, b: True)
        model = family.model(ConfigReader(fields), tensors)
        assert family.model(ConfigReader(family.fields(model)), tensors) == model, layout


def test_every_family_is_registered_once():
    """A file that is not named in the folder's list would be found by no command."""
    files = Path(families.__file__).parent.glob("[!_]*.py")
    holding = {file.stem for file in files if "\nFAMILIES" in file.read_text()}
    assert set(families._MODULES) == holding
    types = collections.Counter(name for family in FAMILIES for name in family.types)
    assert max(types.values()) == 1


def test_every_type_has_a_layout():
    """Its names and shapes from transformers, which the tests of folders go through."""
    alike = {"xlm-roberta", "mt5"}  # as RoBERTa and T5
    known = {layout["config"]["model_type"] for layout in layouts.LAYOUTS.values()}
    assert {name for family in FAMILIES for name in family.types} - alike == known
