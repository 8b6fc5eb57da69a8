"""A special token that a folder does not define is undefined: no other token stands in for it."""

import json

import pytest

import transformer_jax as tj
from tests.interop.word_level import tokenizer_json
from tests.opened import load_language
from tests.parity import layouts
from transformer_jax.cli.main import main
from transformer_jax.data.chat.template import copy_template, find_template
from transformer_jax.data.chat.token_names import token_names
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.decoding.windowed_generation import TextStart
from transformer_jax.inference.chats import encoder_in, special_names
from transformer_jax.inference.pretrained import read_facts
from transformer_jax.interop.hf_run_directory import HFRunDirectory, convert

TEXT = ["i sat on the bank of the river.", "i took cash to the bank.", "rivers ran; who ran?"]
SPECIAL = ("<pad>", "</s>", "<unk>")
TEMPLATE = (
    "{{ bos_token }}{{ pad_token }}{{ unk_token }}{{ cls_token }}{{ sep_token }}"
    "{{ mask_token }} bank "
    "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
)
FAST = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
CHAT = [{"role": "user", "content": "i took"}, {"role": "assistant", "content": "cash"}]


def folder_of(path, settings=FAST, *, special=SPECIAL, layout="llama", template=TEMPLATE, **keys):
    layouts.write(layout, path)
    train_tokenizer("wordpiece", TEXT * 3, 90, special=special).save(path / "tokenizer.json")
    fields = layouts.LAYOUTS[layout]["config"] | {"bos_token_id": None, "eos_token_id": 1} | keys
    fields |= {"pad_token_id": None}
    (path / "config.json").write_text(json.dumps(fields))
    said = settings | {"chat_template": template}
    (path / "tokenizer_config.json").write_text(json.dumps(said))
    return path


def rendered(path):
    encoder = encoder_in(path, read_facts(path).tokenizer)
    return encoder.template.render(CHAT).text.partition(" bank ")[0]


# What a folder says, and what stands before the conversation.
NAMED = [
    (FAST, ""),
    (FAST | {"bos_token": None, "pad_token": None}, ""),
    (FAST | {"pad_token": "<pad>"}, "<pad>"),
    (FAST | {"unk_token": {"content": "<unk>"}, "cls_token": "</s>"}, "<unk></s>"),
    (FAST | {"tokenizer_class": "LlamaTokenizer"}, "<s><unk>"),
    (FAST | {"tokenizer_class": "LlamaTokenizer", "bos_token": None}, "<unk>"),
    ({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "</s>"}, "<|endoftext|>" * 2),
    ({"eos_token": "</s>"}, ""),  # transformers has no class for Llama's type
]


@pytest.mark.quick("settings2-<pad>", "settings4-<s><unk>")
@pytest.mark.parametrize(("settings", "before"), NAMED)
def test_a_template_finds_the_tokens_that_its_folder_defines(tmp_path, settings, before):
    path = folder_of(tmp_path / "folder", settings)
    assert rendered(path) == before
    convert(path, tmp_path / "run", overwrite=False)
    assert rendered(tmp_path / "run") == before
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "run"), str(out), "--format", "hf"]) == 0
    assert rendered(out) == before


def test_tokens_of_the_older_file_count_where_the_newer_is_silent(tmp_path):
    path = folder_of(tmp_path / "folder")
    (path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<pad>"}))
    assert token_names(path) == {"eos_token": "</s>", "pad_token": "<pad>"}


def test_a_tokenizer_of_training_has_the_tokens_that_it_has(tmp_path):
    tokenizer = train_tokenizer("wordpiece", TEXT * 3, 90, special=("</s>", "<unk>"))
    assert (tokenizer.pad, tokenizer.bos) == (tokenizer.eos, tokenizer.eos)
    assert special_names(tokenizer) == {"eos_token": "</s>", "unk_token": "<unk>"}
    assert token_names(tmp_path) is None


def test_a_copied_template_leaves_other_settings(tmp_path):
    source, target = folder_of(tmp_path / "folder"), tmp_path / "target"
    target.mkdir()
    old = {"model_max_length": 9, "bos_token": "<pad>"}
    (target / "tokenizer_config.json").write_text(json.dumps(old))
    copy_template(source, target)
    said = json.loads((target / "tokenizer_config.json").read_text())
    assert said == {"model_max_length": 9, "eos_token": "</s>"}
    assert find_template(target).text == find_template(source).text


@pytest.mark.slow
def test_a_prompt_is_what_the_tokenizer_of_the_folder_makes_of_it(tmp_path):
    """Like transformers, without a start token that the tokenizer does not write."""
    path = folder_of(tmp_path / "folder", {})
    (path / "tokenizer.json").write_text(tokenizer_json(97))
    convert(path, tmp_path / "run", overwrite=False)
    tokenizer = HFRunDirectory(path).load_tokenizer()
    prompt, ids = "w5 w7", [5, 7]
    for place in (path, tmp_path / "run"):
        language = load_language(place)
        assert language.start == TextStart((), tokenizer.eos)
        assert language.prompt_tokens(prompt) == ids
        assert language.prompt_tokens("") == [tokenizer.eos]
    loaded = tj.load(path)
    own, theirs = (
        loaded.generate(prompt, max_new_tokens=5, temperature=0, **how)
        for how in ({}, {"generation_config": "hf"})
    )
    assert own.tokens == theirs.tokens
    [scored] = language.score(["w9 w8"], [prompt])
    [values] = language.log_probs([[7, 9, 8]], [[5]])
    assert scored.log_prob == pytest.approx(sum(values[1:]), abs=1e-4)
    # Each token of a text has a row, as it has a score: the first one after the end token.
    shown = loaded.attention("w5 w7 w9")["decoder"]
    assert [name.strip("▁") for name in shown.rows] == ["w5", "w7", "w9"]
    assert shown.columns[1:] == shown.rows[:-1]
    assert shown.weights.shape[-2:] == (3, 3)


def test_a_start_token_that_the_tokenizer_writes_is_read(tmp_path):
    path = folder_of(tmp_path / "folder", special=("<s>", "</s>", "<unk>"), bos_token_id=0)
    file = json.loads((path / "tokenizer.json").read_text())
    begin = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    file["post_processor"] = {
        "type": "TemplateProcessing", "single": [begin, text[0]], "pair": [begin, *text],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps(file))
    facts = read_facts(path)
    assert facts.text_start(facts.tokenizer) == TextStart((0,), 0)


def test_what_a_decoder_begins_with_is_its_familys_where_no_file_says_it(tmp_path):
    keys = layouts.LAYOUTS["bart"]["config"]
    special = ("<s>", "<pad>", "</s>", "<unk>")
    path = folder_of(tmp_path / "bart", layout="bart", special=special, **keys)
    fields = json.loads((path / "config.json").read_text())
    del fields["decoder_start_token_id"]
    (path / "config.json").write_text(json.dumps(fields))
    assert HFRunDirectory(path).load_tokenizer().bos == 2
