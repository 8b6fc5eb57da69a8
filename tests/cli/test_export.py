"""``export --format``: folders for CTranslate2, and programs that run without this library."""

import json
import sys

import numpy as np
import pytest
import tokenizers

from tests.interop.word_level import tokenizer_json
from tests.opened import load
from tests.parity import layouts
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.translator import Translator
from transformer_jax.interop.stablehlo import load_stablehlo


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")

    def folder(name):
        if not (root / name).exists():
            layouts.write(name, root / name)
            text = tokenizer_json(97)
            if name.startswith("bert"):  # whose configurations do not say them
                text = text.replace('"w1"', '"[CLS]"').replace('"w2"', '"[SEP]"')
            (root / name / "tokenizer.json").write_text(text)
        return root / name

    return folder


@pytest.mark.slow
def test_a_trained_translator_translates_in_ctranslate2(trained_run, lesson, run_command, tmp_path):
    """Row L1, in an engine of others: the lesson is known there too."""
    ct2 = pytest.importorskip("ctranslate2")
    out = tmp_path / "out"
    code, lines, err = run_command("export", trained_run, out, "--format", "ctranslate2")
    assert (code, lines) == (0, [""]), err
    said = "ctranslate2: TransformerSpec, float32; sources are tokens framed as … <eos>"
    assert err == f"wrote {out}: {said}\n"
    _, tokenizer = load(trained_run)
    names = lambda text: [tokenizer.name(id) for id in [*tokenizer.encode(text), tokenizer.eos]]
    beside = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    assert all(beside.encode(source).tokens == names(source) for source, _ in lesson)
    their = ct2.Translator(str(out), device="cpu", intra_threads=1)
    for beams in (1, 4):
        found = their.translate_batch([names(source) for source, _ in lesson], beam_size=beams)
        for result, (_, target) in zip(found, lesson, strict=True):
            assert result.hypotheses[0] == names(target)[:-1]


@pytest.mark.slow
def test_a_trained_translator_translates_as_a_program(trained_run, lesson, run_command, tmp_path):
    pytest.importorskip("flatbuffers")
    out = tmp_path / "out"
    flags = ["--format", "stablehlo", "--length", 32]
    code, lines, err = run_command("export", trained_run, out, *flags)
    assert (code, lines) == (0, [""]), err
    assert err.startswith(f"wrote {out}: stablehlo: forward, translate for cpu, cuda, tpu, of jax ")
    model, tokenizer = load(trained_run)
    ids = [[*tokenizer.encode(source), tokenizer.eos] for source, _ in lesson]
    source = np.full((len(ids), max(map(len, ids))), tokenizer.pad)
    for row, text in zip(source, ids, strict=True):
        row[: len(text)] = text
    lengths = np.array(list(map(len, ids)))
    found = load_stablehlo(out).translate(
        source=source, source_lengths=lengths, limits=np.full(len(ids), 32)
    )
    texts = tokenizer.decode_batch(np.asarray(found["tokens"]).tolist())
    assert texts == [target for _, target in lesson]
    ours = Translator(model, tokenizer).translate(
        [s for s, _ in lesson], TRANSLATION.changed(num_beams=1)
    )
    log_probs = [translation.hypotheses[0].log_prob for translation in ours]
    assert np.allclose(found["log_probs"], log_probs, atol=1e-3)


def test_a_text_begins_as_in_training(decoder_run, run_command, tmp_path):
    """Not with BOS, where texts of the training began with a line end."""
    pytest.importorskip("ctranslate2")
    code, _, err = run_command("export", decoder_run, tmp_path / "out", "--format", "ctranslate2")
    assert code == 0, err
    assert "TransformerDecoderSpec, float32; prompts begin with '\\n'" in err
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["bos_token"] == "\n"


@pytest.mark.parametrize("name", ["gpt2", "bert_cls"])
@pytest.mark.quick("bert_cls")
def test_published_folders_become_programs(published, run_command, tmp_path, name):
    pytest.importorskip("flatbuffers")
    code, _, err = run_command("export", published(name), tmp_path / "out", "--format", "stablehlo")
    assert code == 0, err
    manifest = load_stablehlo(tmp_path / "out").manifest
    wanted = {"gpt2": ["forward", "generate"], "bert_cls": ["forward"]}
    assert list(manifest["functions"]) == wanted[name]


MISTAKES = [
    ("gpt2", ["--format", "ctranslate2", "--dtype", "bfloat16"], "--dtype is for --format hf"),
    ("gpt2", ["--format", "stablehlo", "--max-shard-size", "1"], "--max-shard-size is for"),
    ("gpt2", ["--length", "3"], "--length is for --format stablehlo, not hf"),
    ("gpt2", ["--format", "stablehlo", "--length", "99"], "allowed are 1 to 43"),
    (
        "bert",
        ["--format", "stablehlo", "--length", "9"],
        "an encoder or classifier does not generate texts",
    ),
    ("bert", ["--format", "ctranslate2"], "CTranslate2 cannot run this model: it is an encoder"),
    (
        "gemma2",
        ["--format", "ctranslate2"],
        "scores.attn_logit_softcapping is not supported",
    ),
    ("vit", ["--format", "stablehlo"], "models of texts"),
    ("gpt2", ["--format", "onnx"], "onnx"),
]


@pytest.mark.parametrize(("name", "flags", "said"), MISTAKES, ids=[m[2] for m in MISTAKES])
def test_a_mistake_is_said_before_anything_is_written(
    published, run_command, tmp_path, name, flags, said
):
    code, _, err = run_command("export", published(name), tmp_path / "out", *flags)
    assert code == 2
    assert said in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("format", "package", "extra"),
    [("ctranslate2", "ctranslate2", "ctranslate2"), ("stablehlo", "flatbuffers", "export")],
)
def test_a_missing_package_is_one_line(
    published, run_command, tmp_path, monkeypatch, format, package, extra
):
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = run_command("export", published("gpt2"), tmp_path / "out", "--format", format)
    assert code == 2
    assert f"pip install 'transformer-jax[{extra}]'" in err
    assert len(err.strip().splitlines()) == 1


def test_a_link_to_a_folder_stays(published, run_command, tmp_path):
    """A new link stays, and a replaced one."""
    (tmp_path / "link").symlink_to("held")
    for flags in ([], ["--overwrite"]):
        code, _, err = run_command("export", published("gpt2"), tmp_path / "link", *flags)
        assert code == 0, err
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "held" / "model.safetensors").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held", "link"]
