"""``eos_token_id: [2, 266]``: each of them ends the texts of a folder, by every door."""

import json
import shutil
import warnings

import numpy as np
import pytest
from tokenizers import Tokenizer

import transformer_jax as tj
from tests.opened import load, load_language
from tests.parity import layouts
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.decoding.hf_config import from_generation_config
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.interop.hf_run_directory import HFRunDirectory, convert
from transformer_jax.runs.run_directory import RunDirectory

TEXT = ["i sat on the bank of the river.", "i took cash to the bank.", "rivers ran; who ran?"]
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
EOS, NEW = 2, 12
PROMPT, GREEDY = "i took", {"max_new_tokens": NEW, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("ends")

    def make(layout, *ends, file="config.json"):
        path = root / f"{layout} {ends} {file}".replace(".", "_")
        if not path.exists():
            layouts.write(layout, path)
            train_tokenizer("wordpiece", TEXT * 3, 90, special=SPECIAL).save(
                path / "tokenizer.json"
            )
            fields = layouts.LAYOUTS[layout]["config"] | {"eos_token_id": EOS, "max_length": NEW}
            (path / "config.json").write_text(json.dumps(fields))
            said = fields | {"eos_token_id": [EOS, *ends] if ends else EOS}
            (path / file).write_text(json.dumps(said))
        return path

    return make


def greedy(path, **how):
    [[found]] = load_language(path, **how).generate(
        [GenerationRequest(PROMPT, max_new_tokens=NEW, temperature=0)]
    )
    return found


@pytest.fixture(scope="module")
def decoder(folder):
    """A folder whose greedy text ends by its second end token, and the tokens of the text."""
    free = greedy(folder("llama")).tokens
    end = max(set(free) - {EOS, 9}, key=free.index)
    return folder("llama", 9, end), free[: free.index(end) + 1]


@pytest.mark.slow
def test_a_decoder_ends_by_any(decoder, folder, tmp_path):
    path, wanted = decoder
    found = greedy(path)
    assert (found.tokens, found.finish_reason) == (wanted, "end")
    assert tj.load(path).generate(PROMPT, **GREEDY).finish_reason == "end"
    file = folder("llama", wanted[-1], file="generation_config.json")
    assert greedy(file).tokens == wanted
    # The run made of it, and a run that begins with its tokenizer.
    convert(path, tmp_path / "run", overwrite=False)
    assert greedy(tmp_path / "run").tokens == wanted
    tokenizer = RunDirectory.open(tmp_path / "run").load_tokenizer()
    assert tokenizer.end_tokens == HFRunDirectory(path).load_tokenizer().end_tokens
    assert tokenizer.end_tokens == (EOS, 9, wanted[-1])


def test_without_an_end_token_in_its_own_file_that_of_config_json_ends_texts(folder, tmp_path):
    """transformers generates up to the limit then; own search needs the end that training wrote."""
    shutil.copytree(folder("llama", 9), tmp_path / "x")
    (tmp_path / "x/generation_config.json").write_text('{"max_length": 7}')
    run = HFRunDirectory(tmp_path / "x")
    assert run.load_tokenizer().end_tokens == (EOS, 9)
    assert from_generation_config(run.read_config()["published"]["generation"]).eos_token_id == ()


@pytest.mark.slow
def test_an_end_token_of_plain_text_is_text_in_prompts(decoder, tmp_path):
    path, wanted = decoder
    plain = wanted[-1]
    shutil.copytree(path, tmp_path / "plain")
    fields = json.loads((path / "config.json").read_text()) | {"eos_token_id": plain}
    (tmp_path / "plain/config.json").write_text(json.dumps(fields))
    tokenizer = HFRunDirectory(tmp_path / "plain").load_tokenizer()
    raw = Tokenizer.from_file(str(path / "tokenizer.json"))
    ids = raw.encode(f"i {raw.decode([plain])} took").ids
    assert tokenizer.eos == plain in ids
    assert tokenizer.encode(raw.decode(ids)) == ids
    assert greedy(tmp_path / "plain").tokens == wanted


@pytest.mark.slow
def test_another_engine_ends_by_any(decoder, folder):
    pytest.importorskip("ctranslate2")
    path, wanted = decoder
    language = tj.load(path, engine="ctranslate2")
    found = language.generate(PROMPT, **GREEDY)
    assert (found.tokens, found.finish_reason) == (wanted, "end")
    assert "".join(language.stream(PROMPT, **GREEDY)) == found


def translated(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the text without end is cut by the limit
        return tj.load(path)(PROMPT, num_beams=1)


@pytest.fixture(scope="module")
def translator(folder):
    free = translated(folder("bart")).tokens
    end = max(set(free) - {EOS}, key=free.index)
    return folder("bart", end), free[: free.index(end) + 1]


@pytest.mark.slow
def test_a_translator_ends_by_any(translator):
    path, wanted = translator
    found = translated(path)
    assert (found.tokens, found.finish_reason) == (wanted, "end")
    best = tj.load(path)(PROMPT, num_beams=3)
    assert not {EOS, wanted[-1]} & set(best.tokens[:-1])
    assert best.finish_reason == "end"


@pytest.mark.slow
def test_another_engine_translates_to_any_end(translator):
    pytest.importorskip("ctranslate2")
    path, wanted = translator
    for beams in (1, 3):
        here, there = (
            tj.load(path, engine=engine)(PROMPT, num_beams=beams)
            for engine in ("jax", "ctranslate2")
        )
        assert there.finish_reason == here.finish_reason == "end"
        assert not {EOS, wanted[-1]} & set(there.tokens[:-1])
        if beams == 1:
            assert there.tokens == wanted


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["llama", "bart"])
def test_an_exported_program_ends_by_any(decoder, translator, tmp_path, layout):
    pytest.importorskip("flatbuffers")
    from transformer_jax.interop.hf_run_directory import model_of
    from transformer_jax.interop.stablehlo import load_stablehlo, write_stablehlo

    path, wanted = decoder if layout == "llama" else translator
    kind = "decoder" if layout == "llama" else "encoder-decoder"
    (_, params), tokenizer = load(path, kind=kind)
    model = model_of(HFRunDirectory(path).read_config(), kind)
    write_stablehlo(tmp_path / "out", model, params, tokenizer, length=NEW)
    assert json.loads((tmp_path / "out/manifest.json").read_text())["end_tokens"][-1] == wanted[-1]
    made = load_stablehlo(tmp_path / "out")
    ids, rows = tokenizer.encode(PROMPT), {"limits": np.array([NEW], np.int32)}
    if layout == "llama":
        name, rows = "generate", rows | {"tokens": np.array([ids]), "starts": np.zeros(1, int)}
    else:
        read = [*tokenizer.prefix_ids, *ids, *tokenizer.suffix_ids]
        rows |= {"source": np.array([read]), "source_lengths": np.array([len(read)])}
        name = "translate"
    found = made.call(name, **{key: value.astype(np.int32) for key, value in rows.items()})
    tokens = np.asarray(found["tokens"])[0][: int(np.asarray(found["lengths"])[0])].tolist()
    ends = [i for i, token in enumerate(tokens) if token in tokenizer.end_tokens]
    assert ends in ([], [len(tokens) - 1])
    assert layout == "llama" or tokens == list(wanted)[:NEW]


@pytest.mark.slow
def test_what_was_never_published_says_all_its_ends(decoder, tmp_path):
    """A model of other sizes has a configuration of its own, with the ends of its tokenizer."""
    from transformer_jax.interop.export import TextForm, write_model
    from transformer_jax.interop.hf_run_directory import model_of

    path, wanted = decoder
    (_, params), tokenizer = load(path, kind="decoder")
    model = model_of(HFRunDirectory(path).read_config(), "decoder")
    write_model(tmp_path / "out", model, params, tokenizer, texts=TextForm(tokenizer.bos))
    said = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert said["eos_token_id"] == [EOS, 9, wanted[-1]]
