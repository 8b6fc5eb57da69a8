"""Every field of every Hugging Face configuration changed: as transformers, or refused."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from tests.parity import layouts
from tests.parity.sweep.mutating import mutations
from transformer_jax.core.errors import UserError
from transformer_jax.interop import hf_checkpoint as folders

pytestmark = [pytest.mark.parity, pytest.mark.slow, pytest.mark.apart]

# Others of the same family and head have the same fields.
ALIKE = {"bert_mlm", "bert_bare", "bert_tag", "bert_qa", "camembert_tag"}
LAYOUTS = [name for name in layouts.LAYOUTS if name not in ALIKE]
# What an error may name instead: without names there is a number; of another type, its own keys.
NAMED = {"id2label": ("num_labels",), "hidden_size": ("pooler_output_size",)}
# A configuration of another family may be refused by any of its keys.
ANY = {"model_type"}
# Classes are chosen by this one, which is about nothing but them.
CLASSES = {"architectures"}
# Rates, which change nothing outside training.
DROPOUT = {
    "embedding": "dropout",
    "attention": "dropout",
    "feed_forward": "activation_dropout",
    "norm": "residual_dropout",
}
# Tokens that are read at once, where angles depend on them.
SHORT = {"llama_dynamic": 36, "phi3_long": 36}
AUTO = {
    "ForPreTraining": "PreTraining",
    "ForMaskedLM": "MaskedLM",
    "ForSequenceClassification": "SequenceClassification",
    "ForTokenClassification": "TokenClassification",
    "ForQuestionAnswering": "QuestionAnswering",
    "ForConditionalGeneration": "Seq2SeqLM",
    "MTModel": "Seq2SeqLM",
    "ForCausalLM": "CausalLM",
    "LMHeadModel": "CausalLM",
    "ForImageClassification": "ImageClassification",
}


def auto(architecture):
    """The class that picks another by the configuration's model_type, as users take it."""
    ends = [kind for end, kind in AUTO.items() if architecture.endswith(end)]
    return f"AutoModelFor{ends[0]}" if ends else architecture


@pytest.fixture(scope="module")
def tools():
    pytest.importorskip("torch", reason="compares with transformers: no torch here")
    pytest.importorskip("transformers", reason="compares with transformers")
    import jax

    from tests.parity.sweep import checking, reference

    least = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
    with reference.quietly():
        yield checking, reference
    jax.config.update("jax_persistent_cache_min_compile_time_secs", least)


class Pair:
    """A folder as both read it, again and again with other configurations."""

    def __init__(self, folder, inputs, tools):
        self.folder, self.inputs = folder, inputs
        self.checking, self.reference = tools
        self.fields = json.loads((folder / "config.json").read_text())
        self.cls = auto(self.fields["architectures"][0])
        self.model = folders.open_hf_checkpoint(folder).model
        self.there = self.reference.load(self.cls, folder)
        self.given = self.reference.accepted(self.there, inputs(self.fields))
        self.wanted = self.reference.outputs(self.there, self.given)

    def problem(self, name, changed):
        """The fault of our reading of a changed configuration, if any."""
        (self.folder / "config.json").write_text(json.dumps(changed))
        try:
            here = folders.open_hf_checkpoint(self.folder)
        except UserError as error:
            named = [*name.split("."), *NAMED.get(name.split(".")[0], ())]
            known = name in ANY or any(part in str(error) for part in named)
            return None if known else f"refused without its name: {error}"
        places = here.model.config.positions
        longest = self.inputs(changed).get("input_ids", np.zeros((1, 1))).shape[1]
        if places.kind == "rope" and places.bounded and longest > places.max_length:
            return None  # texts of this length are refused
        same = usual(here.model) == usual(self.model)
        try:
            there, given, wanted = self.theirs(name, changed)
        except Exception as error:
            return None if same else f"transformers refuses, ours reads it: {error}"[:200]
        if same and np.array_equal(
            given["input_ids" if "input_ids" in given else "pixel_values"],
            self.given.get("input_ids", given.get("pixel_values")),
        ):
            # Of one function there may be two ways to compute it.
            near = functools.partial(np.allclose, rtol=1e-4, atol=1e-6)
            equal = all(near(wanted[kind], value) for kind, value in self.wanted.items())
            return None if equal else "transformers gives another result, ours the same"
        from tests.parity import ours

        found = ours.compute(here.model, here.load(), self.checking.filled(given, here))
        try:
            self.checking.compare(found, wanted, there, given)
        except AssertionError as error:
            return f"another result: {error}"
        return None

    def theirs(self, name, fields):
        """The model as transformers reads it, what it is given, and what it gives.

        Null is a missing key to ours, and to transformers what most keys cannot be.
        """
        try:
            return self.computed(fields)
        except Exception:
            if (missing := without_null(fields, name)) == fields:
                raise
            (self.folder / "config.json").write_text(json.dumps(missing))
            return self.computed(fields)

    def computed(self, fields):
        """The model of the file, inputs for a configuration, and what it gives."""
        there = self.reference.load(self.cls, self.folder)
        pad = getattr(there.config, "pad_token_id", None)  # or what it is where a file has none
        given = self.reference.accepted(there, self.inputs(fields | {"pad_token_id": pad}))
        return there, given, self.reference.outputs(there, given)


def without_null(fields, name):
    """The same without the key called ``name``, within objects by dots, if it is null."""
    first, _, rest = name.partition(".")
    if rest:
        return fields | {first: without_null(fields[first], rest)}
    return {key: value for key, value in fields.items() if key != first or value is not None}


def usual(model):
    """A model without what changes no result."""
    config, encoder = usual_config(model.config), model.encoder and usual_config(model.encoder)
    labels = tuple("-" * len(model.labels))
    return dataclasses.replace(model, config=config, encoder=encoder, labels=labels)


def usual_config(config):
    """A configuration without what changes no result."""
    still = {
        group: dataclasses.replace(getattr(config, group), **{rate: 0.0})
        for group, rate in DROPOUT.items()
    }
    places = config.positions
    if places.kind in ("rope", "relative") and not places.bounded:
        places = dataclasses.replace(places, max_length=1)
    return dataclasses.replace(config, **still, positions=places)


def inputs_of(name):
    """Inputs of a layout, padded with the token that a configuration names."""
    usual = {key: value[:, : SHORT.get(name)] for key, value in layouts.inputs(name).items()}
    usual_fields = layouts.LAYOUTS[name]["config"]

    def inputs(fields):
        if "vision_config" in usual_fields:
            return towers(name, fields)
        pad = fields.get("pad_token_id")
        if "input_ids" not in usual or isinstance(pad, bool) or not isinstance(pad, int):
            return usual
        real, ids = usual["attention_mask"], usual["input_ids"]
        if not 0 <= pad < 97:
            return usual
        clash = np.where(ids == pad, (pad + 7) % 90, ids)
        return usual | {"input_ids": np.where(real == 1, clash, pad)}

    return inputs


def towers(name, fields):
    """Inputs of two towers whose texts end with the token that a configuration names."""
    usual = layouts.LAYOUTS[name]["config"]
    text = (fields.get("text_config") or {}) if isinstance(fields.get("text_config"), dict) else {}
    end = text.get("eos_token_id")
    known = isinstance(end, int) and not isinstance(end, bool) and 0 <= end < 96
    named = usual["text_config"] | ({"eos_token_id": end} if known else {})
    return layouts.towers(layouts.random(f"{name} inputs"), usual | {"text_config": named})


@pytest.mark.parametrize("name", [*LAYOUTS, "mt5"])
def test_a_changed_field_changes_what_it_does_there_or_is_refused(
    tools, tmp_path, monkeypatch, name
):
    layout = "t5_gated" if name == "mt5" else name
    folder = layouts.write(layout, tmp_path / name)
    if name == "mt5":
        fields = json.loads((folder / "config.json").read_text())
        del fields["scale_decoder_outputs"]
        names = {"model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"]}
        (folder / "config.json").write_text(json.dumps(fields | names))
    # Most mutations describe the same parameters.
    shapes = functools.cache(folders.parameter_shapes)
    monkeypatch.setattr(folders, "parameter_shapes", shapes)
    pair = Pair(folder, inputs_of(layout), tools)
    wrong, count = [], 0
    for field, what, changed in mutations(pair.fields):
        if field in CLASSES:
            continue
        count += 1
        if problem := pair.problem(field, changed):
            wrong.append(f"{field} {what}: {problem}")
    assert count > 80
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong)
