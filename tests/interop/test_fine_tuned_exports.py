"""A model that is trained from a published one can be exported, or is refused at its start.

Runs begin without training: their parameters are drawn. That the exports give the same outputs in
transformers is compared in ``tests/parity/test_fine_tuned_exports.py``.
"""

import json
import re

import pytest

from tests.interop import published_starts as starts
from transformer_jax.cli.main import main
from transformer_jax.data.bert_pretraining import MaskingConfig
from transformer_jax.interop.hf_checkpoint import open_hf_checkpoint
from transformer_jax.recipes import driver
from transformer_jax.runs.run_directory import RunDirectory

# Cells whose family needs other layers for the head, and a refused one.
QUICK = ("gemma2 finetune regress", "t5_encoder finetune qa")


@pytest.fixture(scope="module")
def data(shared):
    return shared("published_starts", starts.write_data)


@pytest.fixture
def folder(shared):
    return lambda name: shared(f"start_{name}", lambda path: starts.write(name, path))


@pytest.mark.quick(*QUICK)
@pytest.mark.apart("layout")
@pytest.mark.parametrize(
    ("layout", "command"), starts.CELLS, ids=[" ".join(cell) for cell in starts.CELLS]
)
def test_a_run_is_exported_or_refused_before_it_trains(
    layout, command, folder, data, tmp_path, capsys
):
    run, output = tmp_path / "run", tmp_path / "export"
    code = starts.begin(layout, command, folder(layout), data, run)
    if why := starts.refusal(layout, command):
        assert code == 2
        assert not run.exists()
        assert re.search(why, capsys.readouterr().err)
        return
    assert code == 0, capsys.readouterr().err
    starts.draw_parameters(run)
    assert main(["export", str(run), str(output)]) == 0, capsys.readouterr().err
    open_hf_checkpoint(output)


@pytest.mark.slow
def test_settings_that_a_family_does_not_have_are_refused(folder, data, tmp_path, capsys):
    """Before any text is read, with the setting."""
    more = ["--model.scores.attn-logit-softcapping", "50"]
    assert starts.begin("gpt2", "causal LM", folder("gpt2"), data, tmp_path / "run", *more) == 2
    err = capsys.readouterr().err
    assert "the trained model could not be exported" in err
    assert "scores.attn_logit_softcapping None instead of 50" in err


@pytest.mark.quick("roberta")
@pytest.mark.parametrize("layout", ["bert", "bert_mlm", "roberta"])
def test_a_published_encoder_goes_on_with_the_heads_that_it_has(
    layout, folder, data, tmp_path, capsys
):
    assert starts.begin(layout, "masked LM", folder(layout), data, tmp_path / "run") == 0
    has_pairs = layout == "bert"
    objective = json.loads((tmp_path / "run/config.json").read_text())["masking"]
    expected = MaskingConfig.sentence_objective if has_pairs else "none"
    assert objective["sentence_objective"] == expected
    assert ("masked tokens alone are learned" in capsys.readouterr().err) != has_pairs


def test_a_family_without_a_head_for_pairs_learns_none(folder, data, tmp_path, capsys):
    pairs = ["--masking.sentence-objective", "nsp"]
    code = starts.begin("roberta", "masked LM", folder("roberta"), data, tmp_path / "run", *pairs)
    assert code == 2
    said = "masking.sentence_objective is nsp, but RoBERTa has no head for pairs of texts"
    assert f"{said}: give none" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "command"),
    [("llama", "captions"), ("bert", "translate"), ("vit", "captions")],
    ids=["llama captions", "bert translate", "vit encoder of captions"],
)
def test_a_model_with_a_published_part_says_that_it_has_no_published_form(
    layout, command, folder, data, tmp_path, capsys
):
    """In one line before training, when it is resumed, and when its export is refused."""
    run, part = tmp_path / "run", folder(layout)
    if layout == "vit":
        more = ["--init-encoder", str(part), "--model.scores.attn-logit-softcapping", "5"]
        assert starts.begin(layout, command, None, data, run, *more) == 0
    else:
        assert starts.begin(layout, command, part, data, run) == 0
    said = f"note: this model will not have a Hugging Face form, unlike {part}: no Hugging Face"
    assert capsys.readouterr().err.count(said) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "train", lambda *_: 0)
        assert main(["resume", str(run)]) == 0
    assert capsys.readouterr().err.count(said) == 1
    starts.draw_parameters(run)
    for form in ("hf", "ctranslate2"):
        assert main(["export", str(run), str(tmp_path / "export"), "--format", form]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert re.search("no Hugging Face model type|CTranslate2", line), line
        assert not (tmp_path / "export").exists()


def test_every_layout_is_trained_in_a_way():
    assert {layout for layout, _ in starts.CELLS} == set(starts.LAYOUTS)


@pytest.mark.slow
def test_a_converted_folder_is_a_published_start(folder, data, tmp_path):
    assert main(["convert", str(folder("bert_mlm")), str(tmp_path / "bert")]) == 0
    run, output = tmp_path / "run", tmp_path / "export"
    assert starts.begin("bert_mlm", "finetune classify", tmp_path / "bert", data, run) == 0
    assert RunDirectory.open(run).read_config()["model"]["head"]["pooler"]
    starts.draw_parameters(run)
    assert main(["export", str(run), str(output)]) == 0
    assert open_hf_checkpoint(output).model.config.head.pooler
