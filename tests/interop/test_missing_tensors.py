"""A tensor that a folder lacks is never replaced by another, unless its configuration ties them."""

import numpy as np
import pytest

from tests.interop.test_hf_checkpoint import equal, folder_of, without
from transformer_jax.core.errors import CheckpointError
from transformer_jax.interop.hf_checkpoint import open_hf_checkpoint


def tied(flag):
    """The configuration with ``tie_word_embeddings``, or without where ``flag`` is None."""

    def change(fields):
        rest = {key: value for key, value in fields.items() if key != "tie_word_embeddings"}
        return rest if flag is None else rest | {"tie_word_embeddings": flag}

    return change


# A layout, its configuration's flag, and a tensor that nothing may stand in for.
UNTIED = [
    ("llama", False, "lm_head.weight"),
    ("llama", None, "lm_head.weight"),
    ("llama", False, "model.embed_tokens.weight"),
    ("mistral", None, "lm_head.weight"),
    ("qwen2", None, "lm_head.weight"),
    ("qwen3_mixed", None, "lm_head.weight"),
    ("phi3", None, "lm_head.weight"),
    ("stablelm", None, "lm_head.weight"),
    ("gemma", False, "lm_head.weight"),
    ("gemma2", False, "lm_head.weight"),
    ("starcoder2", False, "lm_head.weight"),
    ("gpt2", False, "lm_head.weight"),
    ("opt", False, "lm_head.weight"),
    ("t5", False, "lm_head.weight"),
    ("t5_gated", False, "lm_head.weight"),
    ("bert_mlm", False, "cls.predictions.decoder.bias"),
    ("roberta", False, "lm_head.decoder.bias"),
    ("camembert", False, "lm_head.decoder.bias"),
    ("mpnet", False, "lm_head.decoder.bias"),
    ("distilbert", False, "vocab_projector.weight"),
    ("electra_mlm", False, "generator_lm_head.weight"),
    ("modernbert", False, "decoder.weight"),
]


@pytest.mark.quick(
    "llama-None-lm_head.weight",
    "gpt2-False-lm_head.weight",
    "bert_mlm-False-cls.predictions.decoder.bias",
)
@pytest.mark.parametrize(("layout", "flag", "name"), UNTIED)
def test_an_untied_tensor_is_missing(tmp_path, layout, flag, name):
    folder = folder_of(layout, tmp_path, tensors=without(name), fields=tied(flag))
    with pytest.raises(CheckpointError, match=f"the tensor {name} is missing"):
        open_hf_checkpoint(folder)


@pytest.mark.parametrize(
    "layout", ["bart", "mbart", "m2m_100", "pegasus", "marian", "marian_unshared"]
)
def test_a_family_whose_head_is_always_tied_says_so(tmp_path, layout):
    with pytest.raises(CheckpointError, match="tie_word_embeddings is false: only true"):
        open_hf_checkpoint(folder_of(layout, tmp_path, fields=tied(False)))


@pytest.mark.parametrize("layout", ["llama", "qwen2", "mistral"])
def test_a_body_alone_has_no_head(tmp_path, layout):
    bare = lambda found: {
        name.removeprefix("model."): value
        for name, value in found.items()
        if name != "lm_head.weight"
    }
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        open_hf_checkpoint(folder_of(layout, tmp_path, tensors=bare))


@pytest.mark.parametrize(
    ("layout", "head"),
    [
        ("gpt2_multi", ["score.weight"]),
        ("llama_cls", ["score.weight"]),
        ("bert_cls", ["classifier.weight", "classifier.bias"]),
        ("bert_qa", ["qa_outputs.weight", "qa_outputs.bias"]),
        ("electra_cls", ["classifier.out_proj.weight", "classifier.out_proj.bias"]),
        ("vit", ["classifier.weight", "classifier.bias"]),
    ],
)
def test_a_class_with_a_head_for_labels_has_one(tmp_path, layout, head):
    """Without it a decoder would write texts by its embeddings, as if that had been asked for."""
    with pytest.raises(CheckpointError, match="its head is missing"):
        open_hf_checkpoint(folder_of(layout, tmp_path, tensors=without(*head)))


TIED = [*((layout, None) for layout in ("gpt2", "gemma", "opt", "t5")), ("llama3", True)]


@pytest.mark.parametrize(("layout", "flag"), TIED)
def test_a_head_is_tied_where_the_configuration_or_the_family_ties_it(tmp_path, layout, flag):
    folder = open_hf_checkpoint(folder_of(layout, tmp_path, fields=tied(flag)))
    assert folder.model.config.head.tie_word_embeddings


def test_an_untied_head_that_equals_the_table_is_a_tensor_of_its_own(tmp_path):
    """Training moves the two apart."""
    double = lambda found: found | {"lm_head.weight": found["model.embed_tokens.weight"].copy()}
    folder = open_hf_checkpoint(folder_of("llama", tmp_path, tensors=double))
    assert not folder.model.config.head.tie_word_embeddings
    params = folder.load()
    np.testing.assert_array_equal(params["head"]["table"], params["embedding"]["table"])


@pytest.mark.parametrize("layout", ["bert_mlm", "roberta"])
def test_an_untied_output_layer_of_masked_words_has_its_own_bias(tmp_path, layout):
    """``decoder.bias`` is what transformers adds; the other bias is its copy where it is tied."""
    table = {"bert_mlm": "bert.embeddings.word_embeddings.weight",
             "roberta": "roberta.embeddings.word_embeddings.weight"}[layout]  # fmt: skip
    bias, own = {"bert_mlm": ("cls.predictions.bias", "cls.predictions.decoder"),
                 "roberta": ("lm_head.bias", "lm_head.decoder")}[layout]  # fmt: skip

    def untie(found):
        found = dict(found) | {f"{own}.weight": found[table] + 1}
        return found | {f"{own}.bias": found.pop(bias)}

    folder = open_hf_checkpoint(
        folder_of(layout, tmp_path / "a", tensors=untie, fields=tied(False))
    )
    params = folder.load()
    whole = open_hf_checkpoint(folder_of(layout, tmp_path / "b")).load()
    equal(params["head"]["bias"], whole["head"]["bias"])
    np.testing.assert_array_equal(params["head"]["table"], whole["embedding"]["table"] + 1)
    # Another value under the name that is not read is a contradiction.
    apart = lambda found: untie(found) | {bias: found[bias] + 1}
    with pytest.raises(CheckpointError, match=f"{bias} is unexpected"):
        open_hf_checkpoint(folder_of(layout, tmp_path / "c", tensors=apart, fields=tied(False)))
