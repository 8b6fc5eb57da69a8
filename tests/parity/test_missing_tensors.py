"""Folders that lack a tensor are refused, or give what transformers gives."""

import json
import re

import numpy as np
import pytest

from tests.parity import layouts
from transformer_jax.core.errors import UserError
from transformer_jax.interop import hf_checkpoint
from transformer_jax.interop.hf_checkpoint import open_hf_checkpoint

pytestmark = [pytest.mark.parity, pytest.mark.slow, pytest.mark.apart]

# Pairs: a tensor that files may hold once more, and the name of its copy.
COPIES = (
    (r"(bert)\.embeddings\.word_embeddings\.weight", "cls.predictions.decoder.weight"),
    (r"cls\.predictions\.bias", "cls.predictions.decoder.bias"),
    (r"roberta\.embeddings\.word_embeddings\.weight", "lm_head.decoder.weight"),
    (r"lm_head\.bias", "lm_head.decoder.bias"),
    (r"distilbert\.embeddings\.word_embeddings\.weight", "vocab_projector.weight"),
    (r"electra\.embeddings\.word_embeddings\.weight", "generator_lm_head.weight"),
    (r"mpnet\.embeddings\.word_embeddings\.weight", "lm_head.decoder.weight"),
    (r"transformer\.wte\.weight", "lm_head.weight"),
    (r"model\.(decoder\.)?embed_tokens\.weight", "lm_head.weight"),
    (r"model\.shared\.weight", "lm_head.weight"),
    (r"model\.shared\.weight", "model.encoder.embed_tokens.weight"),
    (r"model\.shared\.weight", "model.decoder.embed_tokens.weight"),
    (r"shared\.weight", "lm_head.weight"),
    (r"shared\.weight", "encoder.embed_tokens.weight"),
    (r"shared\.weight", "decoder.embed_tokens.weight"),
)
HEADS = {  # what reads the folder of a model without head
    "bert": "BertModel", "roberta": "RobertaModel", "camembert": "CamembertModel",
    "distilbert": "DistilBertModel", "electra": "ElectraModel", "vit": "ViTModel",
    "deit": "DeiTModel", "mpnet": "MPNetModel",
}  # fmt: skip
HEADLESS = re.compile(
    r"(cls|lm_head|vocab_.*|generator_.*|discriminator_predictions|(cls_|distillation_)?classifier|pre_classifier|"
    r"qa_outputs|score)\..*|final_logits_bias"
)


@pytest.fixture(scope="module")
def reference():
    pytest.importorskip("torch", reason="compares with transformers: no torch here")
    pytest.importorskip("transformers", reason="compares with transformers")
    from tests.parity.sweep import reference

    with reference.quietly():
        yield reference


def with_copies(tensors):
    """The tensors with every copy of a table or bias that files of the family may hold."""
    heads = {"generator_lm_head": "generator_predictions", "vocab_projector": "vocab_transform",
             "cls": "cls", "lm_head": "lm_head."}  # fmt: skip
    found = dict(tensors)
    for pattern, copy in COPIES:
        head = heads.get(copy.partition(".")[0])
        masked = any("word_embeddings" in name for name in tensors)
        if masked and not any(head and name.startswith(head) for name in tensors):
            continue
        if any(name.startswith(("score.", "classifier.")) for name in tensors):
            continue
        for name in tensors:
            if re.fullmatch(pattern, name):
                found.setdefault(copy, tensors[name].copy())
    return found


def bare(tensors):
    """The tensors of the body alone, as a model without head is saved."""
    body = {name: value for name, value in tensors.items() if not HEADLESS.fullmatch(name)}
    return {
        re.sub(
            r"^(bert|roberta|distilbert|electra|mpnet|transformer|model|vit|deit)\.", "", name
        ): value
        for name, value in body.items()
    }


def variants(layout):
    """Each configuration and set of tensors of a layout, from which tensors are removed."""
    fields, tensors = layouts.LAYOUTS[layout]["config"], layouts.weights(layout)
    silent = {key: value for key, value in fields.items() if key != "tie_word_embeddings"}
    cls = fields["architectures"][0]
    encoder = HEADS.get(fields["model_type"])
    yield "as written", fields, tensors, cls
    yield "default", silent, tensors, cls
    for tied in (True, False):
        yield f"tied {tied}", silent | {"tie_word_embeddings": tied}, tensors, cls
        told = silent | {"tie_word_embeddings": tied}
        yield f"tied {tied} and copies", told, with_copies(tensors), cls
    for name, said in (("bare", fields), ("bare and silent", silent)):
        body = re.sub(r"(For[A-Z]\w+|LMHeadModel|MTModel)$", "Model", cls)
        # A body of a decoder is read as a language model.
        causal = "LMHeadModel" if "GPT2" in cls else "ForCausalLM"
        reader = encoder or cls.replace("ForSequenceClassification", causal)
        yield name, said | {"architectures": [body]}, bare(tensors), reader


def write(folder, fields, tensors):
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def differences(reference, folder, cls, layout):
    """The differences of the two, or the reason why ours refuses the folder; one is empty."""
    from tests.parity import ours
    from tests.parity.sweep.checking import compare

    try:
        here = open_hf_checkpoint(folder)
    except UserError as error:
        return "", str(error)
    import transformers as hf

    there = getattr(hf, cls).from_pretrained(folder, attn_implementation="eager").eval()
    inputs = layouts.inputs(layout)
    given = reference.accepted(there, inputs)
    wanted = reference.outputs(there, given)
    found = ours.compute(layouts.in_context(layout, here.model), here.load(), inputs)
    if not here.model.config.head.pooler:  # transformers draws one at random
        found.pop("pooler_output", None)
    try:
        compare(found, {kind: wanted[kind] for kind in wanted.keys() & found}, there, given)
    except AssertionError as error:
        return str(error), ""
    return "", ""


@pytest.mark.parametrize("layout", list(layouts.LAYOUTS))
def test_each_tensor_of_a_layout_is_needed(reference, layout, tmp_path, monkeypatch):
    """Removed in turn: the folder is refused, or equal to what transformers gives of it."""
    # The keys that an error names take most of the time.
    monkeypatch.setattr(hf_checkpoint, "diagnose_config", lambda fields, outcome: "")
    wrong, refused, equal = [], 0, []
    for number, (variant, fields, tensors, cls) in enumerate(variants(layout)):
        for name in ("", *tensors):
            rest = {each: value for each, value in tensors.items() if each != name}
            folder = write(tmp_path / str(number), fields, rest)
            difference, refusal = differences(reference, folder, cls, layout)
            refused += bool(refusal)
            if difference:
                wrong.append(f"{variant}, without {name or 'nothing'}: {difference}")
            elif not refusal:
                equal.append(f"{variant}: {name or 'whole'}")
            elif variant == "as written" and not name:
                wrong.append(f"{variant}: {refusal}")
    print(f"{layout}: {refused} refused; equal: {equal}")
    assert not wrong, "\n".join(wrong)
    assert refused > len(layouts.weights(layout)) / 2
    assert np.any(equal)
