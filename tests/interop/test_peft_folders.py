"""Damaged folders in PEFT's format end in one line (row B39); whole ones: ``tests/parity``."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.parity import layouts
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.errors import ConfigError, UserError
from transformer_jax.interop.peft import CONFIG, WEIGHTS
from transformer_jax.predictors.loading import load

SPECIAL = ("<start>", "<pad>", "<stop>", "<unk>", "</s>")
DAMAGED = [
    ({"lora_alpha": "much"}, "must be numbers"),
    ({"lora_alpha": float("nan")}, "must be numbers"),
    ({"alpha_pattern": ["c_attn"]}, "must be numbers"),
    ({"alpha_pattern": {"c_attn": None}}, "must be numbers"),
    ({"alpha_pattern": {"c_(attn": 4}}, "alpha_pattern 'c_\\(attn'"),
    ({"peft_type": "IA3"}, "LORA is what is read here"),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peft") / "gpt2"
    layouts.write("gpt2", folder)
    train_tokenizer("wordpiece", ["um dois três"], 40, special=SPECIAL).save(
        folder / "tokenizer.json"
    )
    return load(folder)


@pytest.mark.parametrize(("fields", "said"), DAMAGED, ids=[str(case[0]) for case in DAMAGED])
def test_a_configuration_that_says_nothing_is_one_line(base, tmp_path, fields, said):
    (tmp_path / CONFIG).write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 8} | fields))
    with pytest.raises(ConfigError, match=said) as found:
        base.with_adapters({"a": tmp_path})
    assert "\n" not in str(found.value)


ROWS = "base_model.model.transformer.wte.token_adapter.trainable_tokens_delta"
STRANGE = [
    ([3, 3], "is \\[3, 3\\]: a list of ids, each once"),
    ({"lm_head": [3, 4]}, "names no tokens of transformer.wte"),
    ([3], "fits nothing of the base"),
    ([3, 999], "trains the row of token 999, and transformer.wte of the base has"),
    ([3, 4], "with the rows of 2 tokens beside its adapters"),
]


@pytest.mark.parametrize(("tokens", "said"), STRANGE, ids=[str(case[0]) for case in STRANGE])
def test_trained_rows_that_fit_nothing_are_one_line(base, tmp_path, tokens, said):
    fields = {"peft_type": "LORA", "lora_alpha": 8, "trainable_token_indices": tokens}
    (tmp_path / CONFIG).write_text(json.dumps(fields))
    width = base.model.embedding.table.shape[1]
    save_file({ROWS: np.zeros((2, width), np.float32)}, tmp_path / WEIGHTS)
    with pytest.raises(UserError, match=said) as found:
        base.with_adapters({"a": tmp_path})
    assert "\n" not in str(found.value)
